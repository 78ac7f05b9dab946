"""The search for kubelet's process, which goes through all of /proc only while none is known."""

import os
import shutil
from pathlib import Path

import pytest

from criproxy.kubelet.process import KubeletSearch
from tests.fakes.proc import kubelet

LISTEN = "/run/criproxy/criproxy.sock"
USES_US = f"--container-runtime-endpoint=unix://{LISTEN}"


def found(search: KubeletSearch) -> int | None:
    one = search.find()
    return None if one is None else int(one.directory.name)


def end(root: Path, pid: int) -> None:
    shutil.rmtree(root / f"proc/{pid}")


def test_kubelet_that_is_known_is_not_searched_for_again(tmp_path: Path) -> None:
    kubelet(tmp_path, pid=5)
    search = KubeletSearch(LISTEN, tmp_path)
    assert found(search) == 5

    kubelet(tmp_path, USES_US, pid=9)  # a search would prefer it

    assert {found(search) for _ in range(KubeletSearch.ANEW - 1)} == {5}
    assert found(search) == 9, "another kubelet may be the one that uses us: seen after a while"


def test_kubelet_that_uses_us_stays_the_one_while_it_lives(tmp_path: Path) -> None:
    kubelet(tmp_path, USES_US, pid=9)
    search = KubeletSearch(LISTEN, tmp_path)
    assert found(search) == 9
    (tmp_path / "proc").rename(tmp_path / "all")
    (tmp_path / "proc").mkdir()
    (tmp_path / "all/9").rename(tmp_path / "proc/9")
    kubelet(tmp_path, USES_US, pid=5)

    assert {found(search) for _ in range(3 * KubeletSearch.ANEW)} == {9}


def test_command_line_is_that_of_now(tmp_path: Path) -> None:
    kubelet(tmp_path, USES_US)
    search = KubeletSearch(LISTEN, tmp_path)
    search.find()
    kubelet(tmp_path, USES_US, "--v=2")

    one = search.find()

    assert one is not None and "--v=2" in one.words


@pytest.mark.parametrize(
    ("file", "text"),
    [
        pytest.param("stat", f"5 (kubelet) S 1{' 0' * 17} 200 0\n", id="another-with-its-pid"),
        pytest.param("comm", "nginx\n", id="exec"),
        pytest.param("status", "Uid:\t1000\t1000\nNSpid:\t5\n", id="a-users"),
        pytest.param("status", "Uid:\t0\t0\nNSpid:\t5\t1\n", id="a-pods"),
    ],
)
def test_process_that_is_no_longer_that_kubelet_is_searched_for(tmp_path: Path, file: str, text: str) -> None:
    kubelet(tmp_path, pid=5)
    search = KubeletSearch(LISTEN, tmp_path)
    assert found(search) == 5
    kubelet(tmp_path, USES_US, pid=9)

    (tmp_path / "proc/5" / file).write_text(text)

    assert found(search) == 9


def test_kubelet_that_has_restarted_is_found_at_once(tmp_path: Path) -> None:
    kubelet(tmp_path, USES_US, pid=5)
    search = KubeletSearch(LISTEN, tmp_path)
    assert found(search) == 5

    end(tmp_path, 5)
    assert found(search) is None
    kubelet(tmp_path, USES_US, pid=6)
    assert found(search) == 6


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories whose entries were listed."""
    listed: list[str] = []
    listdir = os.listdir

    def counted(path: str) -> list[str]:
        listed.append(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", counted)
    return listed


def unit(root: Path, name: str, *pids: int) -> None:
    """The unit's processes."""
    file = root / f"sys/fs/cgroup/system.slice/{name}/cgroup.procs"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{pid}\n" for pid in pids))


def test_node_whose_kubelet_is_no_process_is_walked_through_rarely(tmp_path: Path, walks: list[str]) -> None:
    kubelet(tmp_path, pid=5)
    (tmp_path / "proc/5/comm").write_text("k3s-agent\n")
    unit(tmp_path, "k3s-agent.service", 5)
    search = KubeletSearch(LISTEN, tmp_path)

    assert {found(search) for _ in range(30)} == {None}

    assert len(walks) == 3


def test_kubelet_of_no_unit_that_comes_late_is_found(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    search = KubeletSearch(LISTEN, tmp_path)
    assert found(search) is None

    kubelet(tmp_path, pid=5)

    assert found(search) == 5, "soon after criproxy's start it is looked for each time"


def test_kubelet_of_no_unit_that_comes_much_later_is_found(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    search = KubeletSearch(LISTEN, tmp_path)
    assert {found(search) for _ in range(3 * KubeletSearch.ANEW)} == {None}

    kubelet(tmp_path, pid=5)

    assert [found(search) for _ in range(KubeletSearch.ANEW)][-1] == 5


@pytest.mark.parametrize("name", ["kubelet.service", "rke2-agent.service"])
def test_kubelet_of_a_unit_is_found_at_once_and_without_a_walk(tmp_path: Path, walks: list[str], name: str) -> None:
    (tmp_path / "proc").mkdir()
    search = KubeletSearch(LISTEN, tmp_path)
    assert found(search) is None and len(walks) == 1

    kubelet(tmp_path, USES_US, pid=5)
    unit(tmp_path, name, 4, 5)

    assert {found(search) for _ in range(30)} == {5}
    assert len(walks) == 1


def test_kubelet_that_uses_us_goes_before_the_unit_s(tmp_path: Path) -> None:
    kubelet(tmp_path, pid=5)
    unit(tmp_path, "kubelet.service", 5)
    kubelet(tmp_path, USES_US, pid=9)

    assert found(KubeletSearch(LISTEN, tmp_path)) == 9


def test_kubelet_that_has_ended_for_good_is_looked_for_rarely(tmp_path: Path, walks: list[str]) -> None:
    kubelet(tmp_path, USES_US, pid=5)
    search = KubeletSearch(LISTEN, tmp_path)
    assert found(search) == 5
    end(tmp_path, 5)

    assert {found(search) for _ in range(KubeletSearch.ANEW)} == {None}
    del walks[:]
    assert {found(search) for _ in range(30)} == {None}

    assert len(walks) == 3


def test_what_is_no_process_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "proc/sys").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1 kB\n")
    (tmp_path / "proc/3").mkdir()  # it has ended

    assert found(KubeletSearch(LISTEN, tmp_path)) is None
