"""Which processes are a container's, and which of them are outside its box, in a /proc that is a folder."""

from pathlib import Path

import pytest

from criproxy.cgroup.strays import Stray, cgroups_of, strays

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

    def end(self, pid: int, state: str, thread: str, *, cgroups: str) -> None:
        """The first thread of a process; it has another, with these cgroups, which lives if the state is "Z"."""
        stat = self.root / str(pid) / "stat"
        stat.write_text(stat.read_text().replace(") S ", ") Z "))
        (self.root / str(pid) / "cgroup").write_text(cgroups)
        for tid, its_state, its_cgroups in ((pid, "Z", cgroups), (pid + 5000, "S" if state == "Z" else state, thread)):
            folder = self.root / str(pid) / "task" / str(tid)
            folder.mkdir(parents=True)
            (folder / "stat").write_text(f"{tid} (a) b) {its_state} 50{' 0' * 17} 0\n")
            (folder / "cgroup").write_text(its_cgroups)

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


def test_only_what_the_runtime_executes_has_entered_the_container(proc: Proc) -> None:
    proc.add(101, 100, cgroups=OUT)
    proc.add(112, 50, "runc", depth=1, cgroups="0::/system.slice\n")
    proc.add(113, 112, "runc:[2:INIT]", cgroups=OUT)
    proc.add(114, 50, "exec", cgroups=OUT)
    proc.add(115, 114, cgroups=OUT)
    found = strays(proc.root, BOXES)
    assert {one.pid: one.entered for one in found} == {101: False, 113: True, 114: True, 115: False}


def test_process_of_the_most_groups_is_as_deep_as_it_is(proc: Proc) -> None:
    """Its groups come before its numbers in the namespaces. Source: limits.h, NGROUPS_MAX."""
    groups = " ".join(str(4294901760 + number) for number in range(65_536))
    for pid, depth in ((110, 2), (112, 1)):
        proc.add(pid, 50, "exec", depth=depth, cgroups=OUT)
        status = proc.root / str(pid) / "status"
        status.write_text(status.read_text().replace("NSpid", f"Groups:\t{groups} \nNSpid"))
    assert proc.found() == [(110, "/kubepods/pod2")]


def test_process_whose_depth_is_not_shown_is_deeper(proc: Proc) -> None:
    proc.add(110, 50, "exec", cgroups=OUT)
    (proc.root / "110" / "status").write_text("Name:\texec\n")
    assert proc.found() == [(110, "/kubepods/pod2")]


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


ROOTS = "9:memory:/\n4:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n"
"""Where v1 shows what has ended."""


def v1(path: str) -> str:
    return ROOTS.replace(":/\n", f":{path}\n")


@pytest.mark.parametrize(
    ("state", "thread", "left"),
    [
        pytest.param("Z", "/offline/pod1/c1", [101], id="it-runs-on-in-the-box"),
        pytest.param("Z", "/kubepods/pod2", [], id="it-runs-on-elsewhere"),
        pytest.param("S", "/offline/pod1/c1", [], id="its-first-thread-lives-in-the-root"),
    ],
)
def test_container_whose_first_thread_has_ended_is_where_its_others_are(
    proc: Proc, state: str, thread: str, left: list[int]
) -> None:
    proc.end(100, "Z", v1(thread), cgroups=ROOTS)
    proc.root.joinpath("100/stat").write_text(f"100 (sh) {state} 50{' 0' * 17} 1000 0 0\n")
    proc.add(101, 100, cgroups=v1("/kubepods/pod2"))
    assert [pid for pid, _ in proc.found()] == left


@pytest.mark.parametrize("shown", [ROOTS, IN], ids=["v1", "v2"])
def test_process_that_left_is_found_though_its_first_thread_has_ended(proc: Proc, shown: str) -> None:
    proc.add(101, 100, cgroups=shown)
    proc.end(101, "Z", OUT, cgroups=shown)
    assert proc.found() == [(101, "/kubepods/pod2")]


def test_process_that_has_begun_to_end_is_no_stray_where_v1_shows_it_in_the_roots(proc: Proc) -> None:
    proc.add(101, 100, cgroups=ROOTS)
    assert proc.found() == [(101, "/")]
    proc.root.joinpath("101/stat").write_text(f"101 (work) R 100 1 1 0 -1 {0x400004} {' 0' * 12} 1010 0 0\n")
    assert proc.found() == []


def test_process_all_of_whose_threads_have_ended_has_ended(proc: Proc) -> None:
    proc.end(100, "X", ROOTS, cgroups=ROOTS)
    assert cgroups_of(proc.root, 100) == ""


def test_first_process_that_is_another_by_now_has_no_strays(proc: Proc) -> None:
    (proc.root / "100" / "cgroup").write_text("0::/system.slice\n")
    proc.add(101, 100, cgroups="0::/system.slice\n")
    assert proc.found() == []


def test_process_that_ends_meanwhile_is_left_out(proc: Proc) -> None:
    proc.add(101, 100, cgroups=OUT)
    (proc.root / "101" / "cgroup").unlink()
    (proc.root / "102").mkdir()
    assert proc.found() == []
