"""Which driver a machine gets."""

from pathlib import Path

import pytest

from criproxy.cgroup.detect import detect, detect_any
from criproxy.cgroup.driver import CgroupError
from tests.fakes.kernel import FakeKernel
from tests.fakes.systemd import FakeSystemd


def test_hybrid_machine_gets_v1(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, 1)

    assert detect(kernel, str(tmp_path)).version == 1


def test_unified_machine_gets_v2(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, 2)

    assert detect(kernel, str(tmp_path)).version == 2


@pytest.mark.parametrize(
    ("mountinfo", "message"),
    [
        pytest.param("", "no cgroup mount", id="nothing"),
        pytest.param("1 0 0:1 /sub /c rw - cgroup2 cgroup2 rw", "no cgroup mount", id="a_subtree_only"),
        pytest.param("1 0 0:1 / /c rw - cgroup cgroup rw,cpu", "cpuacct, memory", id="v1_in_part"),
        pytest.param("1 0 0:1 / {root}/cg rw - cgroup2 cgroup2 rw", "lacks cpu, memory", id="v2_without_controllers"),
    ],
)
def test_machine_without_the_controllers_is_refused(tmp_path: Path, mountinfo: str, message: str) -> None:
    kernel = FakeKernel(tmp_path, 2)
    kernel.by_hand("self/mountinfo", mountinfo.format(root=tmp_path))
    kernel.by_hand("cg/cgroup.controllers", "io")

    with pytest.raises(CgroupError, match=message):
        detect(kernel, str(tmp_path))


WHOLE = "         0          0 4294967295\n"
"""The uid_map of the machine's own user namespace."""


def status(user: int, capabilities: int) -> str:
    return f"Name:\tcriproxy\nUid:\t{user}\t{user}\t{user}\t{user}\nCapEff:\t{capabilities:016x}\n"


@pytest.mark.parametrize(
    ("uid_map", "said", "message"),
    [
        pytest.param(
            "0 1000 1\n1 100000 65536\n", status(0, 1), "in a user namespace, .* 0 1000 1; 1 10", id="rootless"
        ),
        pytest.param(WHOLE, status(1000, 0), "user 1000, who may not write .*: run it as root", id="a-user"),
        pytest.param(WHOLE, status(1000, 1 << 12), "user 1000", id="a-user-with-another-right"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_process_that_may_not_have_the_machines_cgroups_is_refused(
    tmp_path: Path, uid_map: str, said: str, message: str, version: int
) -> None:
    kernel = FakeKernel(tmp_path, version)
    kernel.by_hand("self/uid_map", uid_map)
    kernel.by_hand("self/status", said)

    with pytest.raises(CgroupError, match=message):
        detect_any(kernel, FakeSystemd(kernel), str(tmp_path))


@pytest.mark.parametrize(
    "said", [pytest.param(status(0, 0), id="root"), pytest.param(status(1000, 1 << 1), id="a-user-with-the-right")]
)
def test_process_that_may_have_them_is_not_refused(tmp_path: Path, said: str) -> None:
    kernel = FakeKernel(tmp_path, 2)
    kernel.by_hand("self/uid_map", WHOLE)
    kernel.by_hand("self/status", said)

    assert detect_any(kernel, FakeSystemd(kernel), str(tmp_path)).version == 2
