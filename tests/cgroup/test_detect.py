"""Which driver a machine gets."""

from pathlib import Path

import pytest

from criproxy.cgroup.detect import detect
from criproxy.cgroup.driver import CgroupError
from tests.fakes.kernel import FakeKernel


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
