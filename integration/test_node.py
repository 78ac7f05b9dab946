"""What the nodes are made from, without starting one: names of cgroups, locks, tables, the disk of trees."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.lab.naming import Driver, placement, spelled, told, told_of_spec
from integration.node import table
from integration.node.build import mount_all, prepare_image
from integration.node.packages import CHECKOUT, SOURCE_ONLY, TESTS_NEED, pinned
from integration.node.settings import Settings
from integration.node.spawn import GuestKernelError, NodeError
from integration.node.suites import Outcome, once_more_after_a_kernel_failure, suite_files, summary
from integration.node.trees import pack

ARM64 = "trixie-v2-arm64"
ID = "0123456789abcdef" * 4
SPELLINGS = {
    "root": ("/", "/"),
    "prefix": ("/lab-1", "/lab_1.slice"),
    "box": ("/offline", "/offline.slice"),
    "pod": (
        "/kubepods/besteffort/pod12-34",
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod12_34.slice",
    ),
    "container": (f"/offline/pod1/{ID}", f"/offline.slice/offline-pod1.slice/cri-containerd-{ID}.scope"),
}


@pytest.mark.parametrize(("path", "spelling"), SPELLINGS.values(), ids=SPELLINGS.keys())
def test_path_is_spelled_as_the_driver_does_and_told_back(path: str, spelling: str) -> None:
    assert spelled(path, Driver.SYSTEMD) == spelling
    assert told(spelling, Driver.SYSTEMD) == path
    assert spelled(path, Driver.CGROUPFS) == told(path, Driver.CGROUPFS) == path


@pytest.mark.parametrize(
    "spelling",
    [
        pytest.param("/system.slice/node-agent.service", id="a-service"),
        pytest.param("/offline/pod1", id="cgroupfs"),
        pytest.param("/offline-pod1.slice", id="not-below-its-parent"),
        pytest.param(f"/other.slice/offline-pod1.slice/cri-containerd-{ID}.scope", id="below-another-parent"),
        pytest.param(f"/system.slice/offline-pod1.slice:cri-containerd:{ID}", id="a-driver-s-mistake"),
    ],
)
def test_what_the_systemd_driver_would_not_have_spelled_so_is_told_as_it_is(spelling: str) -> None:
    assert told(spelling, Driver.SYSTEMD) == spelling


def test_placement_is_a_slice_alone_under_systemd() -> None:
    assert placement("/lab-1/offline/pod1-2", Driver.SYSTEMD) == "lab_1-offline-pod1_2.slice"
    assert placement("/lab-1/offline/pod1-2", Driver.CGROUPFS) == "/lab-1/offline/pod1-2"


@pytest.mark.parametrize(
    "cgroups_path", [f"/lab-1/offline/pod1-2/{ID}", f"lab_1-offline-pod1_2.slice:cri-containerd:{ID}"]
)
def test_bundle_s_cgroups_path_is_told_in_either_form(cgroups_path: str) -> None:
    assert told_of_spec(cgroups_path) == f"/lab-1/offline/pod1-2/{ID}"


def test_lock_has_every_package_that_the_tests_need_with_hashes() -> None:
    entries = pinned((CHECKOUT / "requirements-dev.lock").read_text())
    needed = {*pinned((CHECKOUT / "requirements.lock").read_text()), *TESTS_NEED, *SOURCE_ONLY}
    assert needed <= entries.keys()
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entries[name]) for name in needed)


def test_everything_left_out_is_a_test_of_this_checkout_and_a_node_of_the_table() -> None:
    for entry in table.LEFT_OUT:
        assert any(re.fullmatch(entry.nodes, node) for node in table.NODES), entry
        assert not re.fullmatch(entry.nodes, table.HOST), entry
    texts = {file: (CHECKOUT / file).read_text() for file in suite_files(CHECKOUT)}
    ids = [f"{file}::{name}" for file, text in texts.items() for name in re.findall(r"^def (test_\w+)", text, re.M)]
    ids.append("integration/test_x.py::test_y[runtime.v1alpha2]")
    assert [entry for entry in table.LEFT_OUT if not any(re.search(entry.tests, test) for test in ids)] == []
    assert table.left_out("forky-v2", "integration/test_x.py::test_y[runtime.v1alpha2]") is not None
    assert table.left_out("trixie-v2", "integration/test_x.py::test_y[runtime.v1alpha2]") is None
    assert {node.release for node in table.NODES.values()} == table.PYTHONS.keys()


@pytest.mark.parametrize(
    "asks",
    [r"build\.(find|version)\(\"containerd\"\)", r"integration\.(lab\.prometheus|test_monitoring)\b"],
    ids=["containerd", "prometheus"],
)
def test_no_file_wants_programs_that_a_node_has_not_but_what_is_left_out_there(asks: str) -> None:
    asking = [file for file in suite_files(CHECKOUT) if re.search(asks, (CHECKOUT / file).read_text())]
    assert asking
    assert [file for file in asking if not all(table.left_out(node, file) for node in table.NODES)] == []


def test_every_file_with_a_kubelet_leaves_tests_out_on_a_node_that_has_none() -> None:
    asks = re.compile(r"from integration\.lab\.kubelet import .*\b(static_pod|find_kubelet|Kubelet)\b")
    texts = {file: (CHECKOUT / file).read_text() for file in suite_files(CHECKOUT)}
    found = {file: re.findall(r"^def (test_\w+)", text, re.M) for file, text in texts.items() if asks.search(text)}
    assert "integration/test_pids.py" in found
    left_out = {file for file, tests in found.items() for test in tests if table.left_out(ARM64, f"{file}::{test}")}
    assert found.keys() - left_out == set()


def test_script_and_names_are_of_the_node_s_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODE_QEMU", raising=False)
    monkeypatch.setenv("NODE_ARCH", "arm64")
    here, there = Settings.from_environment("amd64"), Settings.from_environment()
    assert (here.qemu, there.qemu) == ("qemu-system-x86_64", "qemu-system-aarch64")
    assert prepare_image(here) == (CHECKOUT / "integration/node/prepare-image.sh").read_text()
    assert "linux-image-cloud-arm64" in prepare_image(there)
    assert "amd64" not in prepare_image(there)


def test_architecture_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_ARCH", "riscv64")
    with pytest.raises(ValueError, match="NODE_ARCH=riscv64: set it to amd64 or arm64"):
        Settings.from_environment()


@pytest.mark.skipif(not shutil.which("unsquashfs"), reason="needs squashfs-tools")
def test_disk_has_the_trees_by_number_without_caches_and_with_single_files(tmp_path: Path) -> None:
    source, file = tmp_path / "source", tmp_path / "program"
    for name in ("a/kept.py", "a/__pycache__/a.pyc", ".git/config", ".venv-node/bin/x"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    (source / "link").symlink_to("a")
    file.write_text("#!/bin/sh")
    disk = pack([source, file])
    command = ["unsquashfs", "-d", "", "-l", f"/proc/self/fd/{disk}"]
    listed = subprocess.run(command, pass_fds=[disk], capture_output=True, text=True, check=True).stdout
    os.close(disk)
    assert {line for line in listed.splitlines() if line.startswith("/")} == {
        *("/0", "/0/a", "/0/a/kept.py", "/0/link", "/1"),
    }


def test_tree_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=str(tmp_path / "absent")):
        pack([tmp_path / "absent"])


@pytest.mark.parametrize(
    ("words", "recent"),
    [
        ("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)", True),
        ("QEMU emulator version 8.1.0", True),
        ("QEMU emulator version 8.0.4", False),
        ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)", False),
        ("something else", False),
    ],
)
def test_old_qemu_is_refused(words: str, recent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qemu = tmp_path / "qemu"
    qemu.write_text(f"#!/bin/sh\necho '{words}'\n")
    qemu.chmod(0o755)
    monkeypatch.setenv("NODE_QEMU", str(qemu))
    settings = Settings.from_environment()
    if recent:
        assert settings.find_qemu() == words
    else:
        with pytest.raises(NodeError, match=r"8\.1 or later"):
            settings.find_qemu()


def test_summary_shows_how_a_failed_file_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        summary([Outcome("a", "passed.py", 0, 1, "all well"), Outcome("b", "failed.py", 1, 2, "the last words")]) == 1
    )
    shown = capsys.readouterr().err
    assert "the last words" in shown
    assert "all well" not in shown


def test_trees_and_files_are_mounted_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "program"
    file.touch()
    script = mount_all({"/opt/a b": tmp_path, "/opt/program": file})
    assert "mkdir -p '/opt/a b'; mount --bind /mnt/1 '/opt/a b'" in script
    assert "touch /opt/program; mount --bind /mnt/2 /opt/program" in script


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        pytest.param([0], 0, id="passed"),
        pytest.param([1, 0], 1, id="a-failure-stands"),
        pytest.param([GuestKernelError("x"), 0], 0, id="a-kernel-failure"),
        pytest.param([GuestKernelError("x"), 1], 1, id="a-kernel-failure-and-a-failure"),
    ],
)
def test_suite_is_run_once_more_only_after_its_kernel_failed(outcomes: list[int | Exception], expected: int) -> None:
    assert once_more_after_a_kernel_failure(answering(outcomes)) == expected


@pytest.mark.parametrize(
    "outcomes", [[NodeError("no agent"), 0], [GuestKernelError("x"), GuestKernelError("x"), 0]], ids=["other", "twice"]
)
def test_node_that_fails_otherwise_or_again_has_failed(outcomes: list[int | Exception]) -> None:
    with pytest.raises(NodeError):
        once_more_after_a_kernel_failure(answering(outcomes))


def answering(outcomes: list[int | Exception]) -> Callable[[], int]:
    left = iter(outcomes)

    def run() -> int:
        outcome = next(left)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return run
