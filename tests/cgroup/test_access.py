"""What is remembered of kernel files, to know what somebody else has changed."""

from pathlib import Path

import pytest

from criproxy.cgroup import kernel_files as rows
from criproxy.cgroup.access import FileAccess
from tests.fakes.kernel import FakeKernel

POD, ALIKE = "/poda", "/poda2"


@pytest.fixture
def access(tmp_path: Path) -> FileAccess:
    kernel = FakeKernel(tmp_path, 2)
    mount = f"{kernel.root}/cg"
    kernel.write(f"{mount}/cgroup.subtree_control", "+pids")
    access = FileAccess(2, {"": mount}, (mount,), kernel)
    for path in (POD, ALIKE):
        access.make(mount + path)
        access.settle(rows.PIDS_MAX, path, 64)
        kernel.by_hand(f"cg{path}/pids.max", "128")
    return access


def test_cgroup_that_was_forgotten_starts_anew_and_no_other_does(access: FileAccess) -> None:
    access.forget(access.directory("pids", POD))

    drift = [change.drift for path in (POD, ALIKE) for change in access.settle(rows.PIDS_MAX, path, 32)]

    assert drift == [False, True]


def test_forgetting_a_cgroup_takes_no_time_for_those_that_are_known(access: FileAccess) -> None:
    known = access._last

    access.forget(access.directory("pids", POD))

    assert access._last is known, "made anew, out of all that is known"
    assert list(known) == [access.directory("pids", ALIKE)]
