"""packaging/bundle/build: criproxy with its own Python, in userlands that have none, or an older one, or no C library.

Each is a directory that a program is confined to (chroot), with this machine's /proc, /sys, /dev and /run: a static
busybox alone, and Debian 11 (glibc 2.31, Python 3.9). The daemon starts in there before the lab's containerd.
"""

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from integration.lab import images
from integration.lab.client import CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Criproxy
from integration.lab.elf import is_elf, machine, needed
from integration.test_daemon import Daemon, config
from integration.test_deb import MACHINES, build_twice

BULLSEYE = "base-files,bash,coreutils,libc-bin,python3-minimal"
HERE = os.uname().machine
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: main, image: busybox}]}\n"
CONFIG = ("--config", "/opt/criproxy/config.example.toml")
CONFINED = """
for directory in proc sys dev run; do mkdir -p "$0/$directory" && mount --rbind "/$directory" "$0/$directory"; done
exec chroot "$0" "$@"
"""
EMULATOR = "qemu-aarch64-static"
PROGRAM = "/opt/criproxy/bin/criproxy"

pytestmark = [
    pytest.mark.by_command,
    pytest.mark.skipif(shutil.which("patchelf") is None, reason="needs patchelf: integration/setup bundle"),
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By machine, each built twice to the same bytes."""
    words = ["packaging/bundle/build", *(word for one in MACHINES for word in ("--arch", one))]
    built = build_twice(tmp_path_factory.mktemp("bundles"), words)
    return dict(zip(MACHINES.values(), built, strict=True))


def test_bundle_has_all_that_it_names_and_only_of_its_machine(bundles: dict[str, Path], tmp_path: Path) -> None:
    for name, bundle in bundles.items():
        with tarfile.open(bundle) as tar:
            tar.extractall(tmp_path / name, filter="tar")
        elves = [file for file in (tmp_path / name).rglob("*") if file.is_file() and is_elf(file)]
        assert {machine(file) for file in elves} == {name}
        assert len(elves) > 20
        brought = {file.name for file in elves}
        assert {library for file in elves for library in needed(file)} <= brought
        (python,) = (tmp_path / name).glob("criproxy/python-*/bin/python3.*")
        said = subprocess.run(["readelf", "-ld", python], capture_output=True, text=True, check=True).stdout
        assert f"interpreter: /opt/criproxy/{python.parents[1].name}/lib/ld-linux-" in said
        assert f"RPATH]: [/opt/criproxy/{python.parents[1].name}/lib]" in said.replace("Library rpath", "RPATH]")
        program = (tmp_path / name / "criproxy/bin/criproxy").read_text()
        assert program.startswith(f"#!/opt/criproxy/{python.parents[1].name}/bin/{python.name} -ISB\n")


# --- on this machine -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["busybox", "bullseye"])
def userland(
    request: pytest.FixtureRequest, bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    root = tmp_path_factory.mktemp(request.param)
    if request.param == "busybox":
        (root / "bin").mkdir()
        (root / "bin/busybox").write_bytes(images.read_busybox())
        (root / "bin/busybox").chmod(0o755)
        (root / "bin/sh").symlink_to("busybox")
    else:
        mirror = "apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep '/debian/*$' | head -n 1"
        make = (
            f"mmdebstrap -q --variant=extract --aptopt='Acquire::Check-Valid-Until \"false\"' --include={BULLSEYE} "
            f'bullseye - "deb $({mirror}) bullseye main" | tar -x --exclude=./dev -C {root}'
        )
        subprocess.run(["sh", "-ec", make], check=True)
    (root / "tmp").mkdir(exist_ok=True)
    (root / "opt").mkdir(exist_ok=True)
    with tarfile.open(bundles[HERE]) as tar:
        tar.extractall(root / "opt", filter="tar")
    (root / "tmp/pod.yaml").write_text(POD)
    return root


def confined(root: Path, *command: str | Path) -> list[str | Path]:
    return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", CONFINED, root, *command]


def run(root: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(confined(root, PROGRAM, *words), capture_output=True, text=True, check=False)


def test_commands_run_in_a_userland_without_a_python_of_their_own(userland: Path) -> None:
    assert run(userland, "--version").stdout.startswith("criproxy ")
    explained = run(userland, "explain", *CONFIG, "/tmp/pod.yaml")
    assert (explained.returncode, explained.stderr) == (0, "")
    assert "online" in explained.stdout
    simulated = run(userland, "simulate", "--example")
    assert (simulated.returncode, simulated.stderr) == (0, "")
    assert "Offline would have had" in simulated.stdout
    asked = run(userland, "status", *CONFIG)
    assert "no criproxy answers at" in asked.stderr


@pytest.mark.skipif(shutil.which(EMULATOR) is None, reason="needs qemu-user-static: integration/setup bundle")
def test_commands_run_on_the_other_processor_in_emulation(bundles: dict[str, Path], tmp_path: Path) -> None:
    with tarfile.open(bundles["aarch64"]) as tar:
        tar.extractall(tmp_path / "opt", filter="tar")
    (tmp_path / "bin").mkdir()
    shutil.copy(str(shutil.which(EMULATOR)), tmp_path / "bin" / EMULATOR)
    (tmp_path / "pod.yaml").write_text(POD)
    (python,) = tmp_path.glob("opt/criproxy/python-*/bin/python3.*")
    emulated: list[str | Path] = [
        "chroot",
        tmp_path,
        f"/bin/{EMULATOR}",
        f"/{python.relative_to(tmp_path)}",
        "-ISB",
        PROGRAM,
    ]
    for words, told in ((["--version"], "criproxy "), (["explain", *CONFIG, "/pod.yaml"], "class          online")):
        done = subprocess.run([*emulated, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert told in done.stdout


class Bundled(Criproxy):
    """One that runs in `root`."""

    root: Path

    def _program(self) -> Sequence[str | Path]:
        return confined(self.root, PROGRAM)


@pytest.fixture
def node(lab: Path, containerd: Containerd, client: CriClient, userland: Path) -> Iterator[Daemon]:
    (socket := lab / "runtime.sock").symlink_to(containerd.socket)
    with Daemon.before(containerd, config(), directory=lab, socket=socket, starts=False) as node:
        node.proxy.__class__ = Bundled
        node.proxy.root = userland  # type: ignore[attr-defined]
        yield node


def test_daemon_bounds_a_pod_from_a_userland_without_a_python_of_its_own(node: Daemon) -> None:
    node.start()
    offline, online = node.run_pod("offline"), node.run_pod("online")
    assert [node.is_in_box(offline), node.is_in_box(online)] == [True, False]


@pytest.mark.skipif(shutil.which("rpm") is None, reason="needs rpm: integration/setup bundle")
def test_rpm_has_the_same_tree_units_and_scripts(tmp_path: Path) -> None:
    done = subprocess.run(
        ["packaging/bundle/build", "--rpm", "--out", tmp_path], capture_output=True, text=True, check=True
    )
    rpm = done.stdout.split()[-1]
    ask = ["rpm", "-qp", "--nosignature", rpm]
    files = subprocess.run([*ask, "-l"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"/opt/criproxy/bin/criproxy", "/usr/lib/systemd/system/criproxy.service", "/usr/bin/criproxy"} <= {*files}
    configs = subprocess.run([*ask, "-c"], capture_output=True, text=True, check=True).stdout
    assert configs == "/etc/criproxy/config.toml\n"
    said = subprocess.run([*ask, "-i", "--scripts", "--requires"], capture_output=True, text=True, check=True).stdout
    for part in (f"Architecture: {HERE}", "units/postinst configure", "units/prerm remove", "systemd"):
        assert part in said
    subprocess.run(["rpm", "-K", "--nosignature", rpm], check=True, capture_output=True)
