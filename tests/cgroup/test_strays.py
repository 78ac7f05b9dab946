"""Which processes are a container's, and which of them are outside its box, in a /proc that is a folder."""

from pathlib import Path

import pytest

from criproxy.cgroup.strays import Stray, strays

IN, OUT = "0::/offline/pod1/c1\n", "0::/kubepods/pod2\n"
BOXES = {100: "/offline"}


class Proc:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.add(1, 0, "systemd", depth=1)
        self.add(50, 1, "containerd-shim", depth=1, cgroups="0::/system.slice\n")
        self.add(100, 50, "sh")

    def add(
        self, pid: int, parent: int, name: str = "work", *, depth: int = 2, cgroups: str = IN, state: str = "S"
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} ({name}) {state} {parent}{' 0' * 17} {pid * 10} 0 0\n")
        numbers = f"\t{pid}" * depth
        (folder / "status").write_text(f"Name:\t{name}\nNSpid:{numbers}\nNSpgid:\t1\n")
        (folder / "cgroup").write_text(cgroups)

    def found(self) -> list[tuple[int, str]]:
        return sorted((one.pid, one.where) for one in strays(self.root, BOXES))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_child_that_left_is_found_wherever_it_is_below_the_first_process(proc: Proc) -> None:
    proc.add(101, 100)
    proc.add(102, 101)
    proc.add(103, 102, cgroups=OUT)
    assert strays(proc.root, BOXES) == [Stray(100, 103, 1030, "/kubepods/pod2")]


def test_what_the_runtime_started_in_the_container_is_found_below_the_shim(proc: Proc) -> None:
    proc.add(110, 50, "exec", cgroups=OUT)
    proc.add(111, 110, "below", cgroups=OUT)
    proc.add(112, 50, "runc", depth=1, cgroups="0::/system.slice\n")
    assert proc.found() == [(110, "/kubepods/pod2"), (111, "/kubepods/pod2")]


def test_others_processes_are_nobodys_strays(proc: Proc) -> None:
    proc.add(60, 1, "containerd-shim", depth=1, cgroups="0::/system.slice\n")
    proc.add(200, 60, "online", cgroups=OUT)
    proc.add(300, 1, "sshd", depth=1, cgroups="0::/system.slice\n")
    assert proc.found() == []


def test_parent_that_is_no_shim_is_nobodys(proc: Proc) -> None:
    """As a runtime that is the parent of all containers."""
    (proc.root / "50" / "stat").write_text(f"50 (containerd) S 1{' 0' * 17} 500 0 0\n")
    proc.add(200, 50, "online", cgroups=OUT)
    assert proc.found() == []


@pytest.mark.parametrize("name", ["a) S 1 (b", "(", ")", "containerd-shim", "\u2028"])
def test_name_of_a_process_may_hold_anything(proc: Proc, name: str) -> None:
    proc.add(101, 100, name, cgroups=OUT)
    assert proc.found() == [(101, "/kubepods/pod2")]


@pytest.mark.parametrize("state", ["Z", "X"])
def test_process_that_is_ending_is_no_stray(proc: Proc, state: str) -> None:
    proc.add(101, 100, state=state, cgroups="0::/\n")
    assert proc.found() == []


def test_first_process_that_is_another_by_now_has_no_strays(proc: Proc) -> None:
    (proc.root / "100" / "cgroup").write_text("0::/system.slice\n")
    proc.add(101, 100, cgroups="0::/system.slice\n")
    assert proc.found() == []


def test_process_that_ends_meanwhile_is_left_out(proc: Proc) -> None:
    proc.add(101, 100, cgroups=OUT)
    (proc.root / "101" / "cgroup").unlink()
    (proc.root / "102").mkdir()
    assert proc.found() == []
