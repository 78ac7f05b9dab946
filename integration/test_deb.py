"""packaging/deb/build: the same bytes from the same checkout, also without network, and lintian objects to nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
PARTS = (
    *("criproxy", "packaging", "README.md", "docs", "config.example.toml"),
    *("requirements.lock", "requirements-build.lock"),
)

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


def build(checkout: Path, release: str, umask: str, zone: str, *, network: bool) -> Path:
    command = f"umask {umask} && packaging/deb/build --out {checkout}/out {release}"
    environment = {**os.environ, "TZ": zone}
    within = [] if network else ["unshare", "--net"]
    done = subprocess.run(
        [*within, "sh", "-c", command], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.mark.parametrize("release", ["bookworm", "trixie", "forky"])
def test_two_builds_give_the_same_bytes_that_lintian_accepts(release: str, tmp_path: Path) -> None:
    one = copy(CHECKOUT, tmp_path / "one", 1_500_000_000)
    another = copy(one, tmp_path / "another" / "place", 1_700_000_000)  # of the same state, whoever edits meanwhile
    first = build(one, release, "022", "UTC", network=True)
    second = build(another, release, "027", "Asia/Tokyo", network=False)
    assert first.read_bytes() == second.read_bytes()
    if shutil.which("lintian"):
        done = subprocess.run(["lintian", "--fail-on", "warning", first], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
