"""The box's limits on disks: one line of io.max each, known again as ours, and nobody else's touched."""

from pathlib import Path

import pytest

from criproxy.cgroup.detect import detect_any, detect_signals
from criproxy.cgroup.disks import disk_use, hold_disks
from criproxy.cgroup.files import io_max, parse_io_max
from criproxy.model.signals import DiskRate, Missing
from tests.fakes.clock import FakeClock
from tests.fakes.kernel import FakeKernel
from tests.fakes.systemd import FakeSystemd

RATE, MORE = DiskRate(1_048_576, 20), DiskRate(2_000_000, 40)
OURS = "8:0 rbps=1048576 wbps=1048576 riops=20 wiops=20"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("", {}, id="none"),
        pytest.param(OURS, {"8:0": RATE}, id="ours"),
        pytest.param("8:0 rbps=5 wbps=max riops=max wiops=max", {"8:0": None}, id="of-reads-alone"),
        pytest.param("8:0 rbps=5 wbps=6 riops=7 wiops=7", {"8:0": None}, id="other-for-writes"),
        pytest.param("8:0 rbps=5 wbps=5 riops=max wiops=max", {"8:0": None}, id="of-bytes-alone"),
        pytest.param(f"{OURS}\n253:1 rbps=max wbps=9 riops=max wiops=max", {"8:0": RATE, "253:1": None}, id="both"),
    ],
)
def test_limits_of_ours_are_known_again(text: str, found: dict[str, DiskRate | None]) -> None:
    assert parse_io_max(text) == found


def test_line_is_what_is_read_again() -> None:
    assert io_max("8:0", RATE) == OURS
    assert io_max("8:0", None) == "8:0 rbps=max wbps=max riops=max wiops=max"


@pytest.mark.parametrize("box", ["/offline", "offline.slice"])
def test_disks_are_bounded_lifted_and_others_limits_stay(tmp_path: Path, box: str) -> None:
    kernel = FakeKernel(tmp_path, 2)
    driver = detect_any(kernel, FakeSystemd(kernel), kernel.root)
    driver.ensure(box)
    file = f"cg/{box.lstrip('/')}/io.max"
    kernel.write(f"{kernel.root}/{file}", "253:1 wbps=9")
    first = hold_disks(driver.files, box, {"8:0": RATE, "253:1": RATE})
    again = hold_disks(driver.files, box, {"8:0": RATE})
    held = kernel.file(file).splitlines()
    reading = detect_signals(kernel, FakeClock(), kernel.root).read(box, own_limits=False).disk_limits
    changed = hold_disks(driver.files, box, {"8:0": DiskRate(2_000_000.7, 40.9), "8:16": MORE})
    lifted = hold_disks(driver.files, box, {})

    assert sorted(held) == ["253:1 rbps=max wbps=9 riops=max wiops=max", OURS]
    assert reading == {"253:1": None, "8:0": RATE}
    assert (len(first), again, len(changed), len(lifted)) == (1, (), 2, 2)
    assert changed[0].new == "8:0 rbps=2000000 wbps=2000000 riops=40 wiops=40"
    assert kernel.file(file) == "253:1 rbps=max wbps=9 riops=max wiops=max"


def test_box_that_has_gone_or_has_no_such_file_takes_no_limit(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, 2, lacks=("io.max",))
    driver = detect_any(kernel, FakeSystemd(kernel), kernel.root)
    gone = hold_disks(driver.files, "/offline", {"8:0": RATE})
    driver.ensure("/offline")
    limits = detect_signals(kernel, FakeClock(), kernel.root).read("/offline", own_limits=False).disk_limits

    assert gone == hold_disks(driver.files, "/offline", {"8:0": RATE}) == ()
    assert isinstance(limits, Missing) and "io.max does not exist" in limits.why


def test_v1_bounds_no_disk_and_says_why(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, 1)
    driver = detect_any(kernel, FakeSystemd(kernel), kernel.root)
    driver.ensure("/offline")
    limits = detect_signals(kernel, FakeClock(), kernel.root).read("/offline", own_limits=False).disk_limits

    assert hold_disks(driver.files, "/offline", {"8:0": RATE}) == ()
    assert isinstance(limits, Missing) and "cgroup v1" in limits.why


def test_use_of_disks_is_what_was_read_and_written(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, 2)
    driver = detect_any(kernel, FakeSystemd(kernel), kernel.root)
    driver.ensure("/offline")
    kernel.by_hand("cg/offline/io.stat", "8:0 rbytes=10 wbytes=5 rios=1 wios=1\n8:16 rbytes=1 wbytes=0 rios=1 wios=0")

    assert disk_use(driver.files, "/offline") == 16
    assert disk_use(driver.files, "/offline/podgone") is None
