"""packaging/deb/build: each release's package for each architecture, the same bytes each time, also without network."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from integration.lab.elf import machine, needed

CHECKOUT = Path(__file__).resolve().parents[1]
PARTS = (
    *("criproxy", "packaging", "README.md", "LICENSE", "docs", "config.example.toml"),
    *("requirements.lock", "requirements-build.lock"),
)
RELEASES = {"bookworm": "3.11", "trixie": "3.13", "forky": "3.14", "noble": "3.12"}
MAGIC = {"3.11": 3495, "3.13": 3571, "3.14": 3627}
"""What bytecode begins with. Source: CPython, Include/internal/pycore_magic_number.h; 3.11: importlib's."""
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
OF_DEPENDS = {
    *("libc.so.6", "libm.so.6", "libpthread.so.0", "librt.so.1", "libdl.so.2", "libstdc++.so.6", "libgcc_s.so.1"),
    *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
}
"""What the package's Depends bring: libc6, libstdc++6 and what that needs."""

pytestmark = [
    pytest.mark.by_command,
    pytest.mark.skipif(shutil.which("dh") is None, reason="needs debhelper: integration/setup debs"),
    pytest.mark.timeout(1200),
]


def copy(source: Path, directory: Path, mtime_s: int) -> Path:
    """The sources of a checkout, all of that age."""
    directory.mkdir(parents=True)
    for part in PARTS:
        if (source / part).is_dir():
            shutil.copytree(source / part, directory / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source / part, directory)
    for path in [directory, *directory.rglob("*")]:
        os.utime(path, (mtime_s, mtime_s))
    return directory


def build(checkout: Path, arguments: Sequence[str], umask: str, zone: str, *, network: bool) -> list[Path]:
    """What the builder named by `arguments` (its path first) says it has made."""
    program, *words = arguments
    command = f"umask {umask} && {program} --out {checkout}/out {' '.join(words)}"
    environment = {**os.environ, "TZ": zone}
    within = [] if network else ["unshare", "--net"]
    done = subprocess.run(
        [*within, "sh", "-c", command], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stdout.split()]


def build_twice(tmp_path: Path, arguments: Sequence[str]) -> list[Path]:
    """What is built, elsewhere and later by the same bytes."""
    one = copy(CHECKOUT, tmp_path / "one", 1_500_000_000)
    another = copy(one, tmp_path / "another" / "place", 1_700_000_000)  # of the same state, whoever edits meanwhile
    first = build(one, arguments, "022", "UTC", network=True)
    second = build(another, arguments, "027", "Asia/Tokyo", network=False)
    assert [file.name for file in first] == [file.name for file in second]
    for ours, theirs in zip(first, second, strict=True):
        assert ours.read_bytes() == theirs.read_bytes(), ours.name
    return first


@pytest.mark.parametrize("architecture", MACHINES)
@pytest.mark.parametrize("release", RELEASES)
def test_package_is_of_its_release_and_architecture_and_the_same_bytes_twice(
    release: str, architecture: str, tmp_path: Path
) -> None:
    (package,) = build_twice(tmp_path, ["packaging/deb/build", "--arch", architecture, release])
    python = RELEASES[release]
    fields = subprocess.run(["dpkg-deb", "-f", package], capture_output=True, text=True, check=True).stdout
    assert f"\nArchitecture: {architecture}\n" in fields
    assert f"python{python}," in fields
    root = tmp_path / "root"
    subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    assert (root / "usr/bin/criproxy").read_text().startswith(f"#!/usr/bin/python{python} -ISB\n")
    libraries = sorted(root.rglob("*.so"))
    assert len(libraries) >= 4
    assert {machine(file) for file in libraries} == {MACHINES[architecture]}
    tag = f".cpython-{python.replace('.', '')}-{MACHINES[architecture]}-linux-gnu.so"
    assert [file.name for file in libraries if not file.name.endswith((tag, ".abi3.so"))] == []
    assert {name for file in libraries for name in needed(file)} <= OF_DEPENDS
    bytecode = {int.from_bytes(file.read_bytes()[:2], "little") for file in root.rglob("*.pyc")}
    assert bytecode == ({MAGIC[python]} if python in MAGIC else set())
    if shutil.which("lintian") and release in ("bookworm", "trixie", "forky"):
        done = subprocess.run(["lintian", "--fail-on", "warning", package], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
