import socket
from dataclasses import replace
from pathlib import Path

import pytest

from integration.demo import DemoError
from integration.demo.checks import Machine, check_plot, check_port, problem

V2 = frozenset({"cpu"})
GOOD = Machine("linux", 0, 1, frozenset({"cpu", "cpuacct", "memory", "pids"}), (), shell_clock=True)


@pytest.mark.parametrize(
    "machine", [GOOD, replace(GOOD, cgroup_version=2, controllers=frozenset({"cpu", "memory"}))], ids=["v1", "v2"]
)
def test_problem_of_a_good_machine_is_none(machine: Machine) -> None:
    assert problem(machine) is None


@pytest.mark.parametrize(
    ("machine", "says", "remedy"),
    [
        pytest.param(replace(GOOD, platform="darwin"), "this is darwin", "Debian 12", id="not Linux"),
        pytest.param(replace(GOOD, user_id=1000), "needs root", "sudo ./demo", id="not root"),
        pytest.param(replace(GOOD, cgroup_version=None), "No cgroup", "/sys/fs/cgroup", id="no cgroups"),
        pytest.param(replace(GOOD, controllers=frozenset({"memory"})), "lacks cpu and cpuacct", "boot", id="v1"),
        pytest.param(
            replace(GOOD, cgroup_version=2, controllers=V2), "v2 hierarchy here lacks memory", "boot", id="v2"
        ),
        pytest.param(
            replace(GOOD, missing_programs=("containerd", "ctr", "runc")),
            "containerd, ctr, runc not found", "apt-get install containerd runc`", id="programs",
        ),
        pytest.param(replace(GOOD, shell_clock=False), "busybox is too old", "install busybox-static", id="old"),
    ],
)  # fmt: skip
def test_problem_of_a_lacking_machine_is_one_sentence_with_its_remedy(machine: Machine, says: str, remedy: str) -> None:
    found = problem(machine)
    assert found is not None and says in found and remedy in found
    assert "\n" not in found and found.endswith(".")


def test_check_port_taken_says_so_and_free_passes() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(DemoError, match=f"Port 127.0.0.1:{port} is taken.*--port"):
            check_port(port)
    check_port(port)


def test_check_plot_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DemoError, match=r"can't be written.*--plot"):
        check_plot(tmp_path / "file" / "plot.png")


def test_check_plot_leaves_no_file_and_keeps_an_old_one(tmp_path: Path) -> None:
    check_plot(tmp_path / "new" / "plot.png")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "old.png").write_bytes(b"old")
    check_plot(tmp_path / "old.png")
    assert (tmp_path / "old.png").read_bytes() == b"old"
