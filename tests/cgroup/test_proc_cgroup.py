"""Whether a process is in the box, by what its /proc/PID/cgroup says."""

import asyncio
import os
from pathlib import Path

import pytest

from criproxy.cgroup.processes import ProcCgroupReader
from criproxy.cgroup.strays import astray

SLICE = "/kubelet.slice/kubelet-offline.slice"


def v1(cpu: str, memory: str, systemd: str = "/", pids: str | None = None) -> str:
    """As a hybrid machine shows it. `pids` None: with memory."""
    pids = memory if pids is None else pids
    return f"9:pids:{pids}\n8:memory:{memory}\n4:cpu,cpuacct:{cpu}\n1:name=systemd:{systemd}\n0::{systemd}\n"


INSIDE = "/offline/pod1/c1"


@pytest.mark.parametrize(
    ("cgroups", "box", "where"),
    [
        pytest.param(f"0::{INSIDE}\n", "/offline", "", id="v2"),
        pytest.param(f"0::{INSIDE}/init.scope\n", "/offline", "", id="v2-nested"),
        pytest.param(f"0::{INSIDE} (deleted)\n", "/offline", "", id="v2-ending"),
        pytest.param(v1(INSIDE, INSIDE), "/offline", "", id="v1-and-what-does-not-bound-elsewhere"),
        pytest.param("0::/x\r0::/offline/pod1\n", "/offline", "/x\r0::/offline/pod1", id="v2-a-name-like-two-lines"),
        pytest.param("0::/x\v0::/offline/pod1\n", "/offline", "/x\v0::/offline/pod1", id="v2-a-name-with-a-tab"),
        pytest.param("0::/x\u20280::/offline/pod1\n", "/offline", "/x\u20280::/offline/pod1", id="v2-a-separator"),
        pytest.param("0::/system.slice/x.scope\n", "/offline", "/system.slice/x.scope", id="v2-outside"),
        pytest.param("0::/offline\n", "/offline", "/offline", id="beside-the-pods-in-it"),
        pytest.param("0::/offlinex/pod1/c1\n", "/offline", "/offlinex/pod1/c1", id="another-name-that-begins-so"),
        pytest.param("0::/x/offline/pod1/c1\n", "/offline", "/x/offline/pod1/c1", id="another-root"),
        pytest.param(v1("/k/c1", "/k/c1"), "/offline", "/k/c1", id="v1-outside"),
        pytest.param(v1(INSIDE, "/k/c1"), "/offline", "/k/c1 (memory and pids)", id="v1-one-outside"),
        pytest.param(v1("/k/c1", INSIDE), "/offline", "/k/c1 (cpu and cpuacct)", id="v1-two-outside"),
        pytest.param(v1("/a", "/b"), "/offline", "/a (cpu and cpuacct), /b (memory and pids)", id="v1-in-two-places"),
        pytest.param(v1(INSIDE, INSIDE, pids="/k/c1"), "/offline", "/k/c1 (pids)", id="v1-pids-outside"),
        pytest.param(v1("/", "/", INSIDE), "/offline", "/", id="v1-only-unbounding-inside"),
        pytest.param(f"4:cpu:{INSIDE}\n", "/offline", "no cgroup (cpuacct and memory)", id="v1-hierarchies-missing"),
        pytest.param("0::/offline.slice/offline-pod1.slice/cri-c1.scope\n", "offline.slice", "", id="slice"),
        pytest.param(f"0::{SLICE}/kubelet-offline-pod1.slice/x.scope\n", "kubelet-offline.slice", "", id="deep-slice"),
        pytest.param(
            "0::/system.slice/offline-pod1.slice:cri-containerd:c1\n",
            "offline.slice",
            "/system.slice/offline-pod1.slice:cri-containerd:c1",
            id="slice-under-a-runtime-of-the-other-driver",
        ),
        pytest.param(v1(*["/offline.slice/offline-pod1.slice/c.scope"] * 2), "offline.slice", "", id="v1-slice"),
        pytest.param("", "/offline", "no cgroup", id="empty"),
    ],
)
def test_astray(cgroups: str, box: str, where: str) -> None:
    assert astray(cgroups, box) == where


def test_read_gives_the_processes_that_are_there(tmp_path: Path) -> None:
    async def go() -> dict[int, str]:
        reader = ProcCgroupReader()
        try:
            assert await ProcCgroupReader(tmp_path).read([]) == {}
            return await reader.read([os.getpid(), 1 << 30])
        finally:
            reader.close()

    found = asyncio.run(go())
    assert list(found) == [os.getpid()]
    assert found[os.getpid()] == Path("/proc/self/cgroup").read_text()


def test_read_of_a_cgroup_whose_name_is_no_text_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_bytes(b"0::/x\xff/y\n")

    async def go() -> dict[int, str]:
        reader = ProcCgroupReader(tmp_path)
        try:
            return await reader.read([7])
        finally:
            reader.close()

    assert astray(asyncio.run(go())[7], "/offline") == r"/x\xff/y"
