"""The rows of kernel files: a value comes back from its text, and a new limit of the box is a row and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from criproxy.cgroup import kernel_driver
from criproxy.cgroup import kernel_files as rows
from criproxy.cgroup.detect import detect_any
from criproxy.cgroup.kernel_files import BoxLimit, Column, Format, KernelFile
from criproxy.cgroup.systemd import driver as systemd_driver
from criproxy.model import UNLIMITED
from tests.fakes.kernel import FakeKernel
from tests.fakes.systemd import FakeSystemd


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("row", "value", "v1", "v2"),
    [
        (rows.CPU_IDLE, True, "1", "1"),
        (rows.CPU_WEIGHT, 300, "300", "300"),
        (rows.CPU_QUOTA, 0.07, "7000", "7000 100000"),
        (rows.CPU_QUOTA, UNLIMITED, "-1", "max 100000"),
        (rows.MEMORY_MAX, 4096, "4096", "4096"),
        (rows.PIDS_MAX, 64, "64", "64"),
        (rows.PIDS_MAX, UNLIMITED, "max", "max"),
        (rows.CPUS, frozenset({0, 1, 2, 8}), "0-2,8", "0-2,8"),
        (rows.IO_BFQ_WEIGHT, "default 1", None, "default 1"),
    ],
    ids=lambda of: of.v2.name if isinstance(of, KernelFile) else str(of),
)
def test_value_is_written_as_the_kernel_wants_it_and_read_back(
    version: int, row: KernelFile, value: object, v1: str | None, v2: str
) -> None:
    text, column = v1 if version == 1 else v2, row.column(version)
    if text is None:
        pytest.skip("a number there")

    assert column is not None
    assert column.format.text(value) == text
    assert column.format.value(text) == value
    assert column.format.held(text) == text


@pytest.mark.parametrize(
    ("row", "text", "held"),
    [
        pytest.param(rows.MEMORY_MAX.v1, "9223372036854771712", "-1", id="no-limit-of-v1"),
        pytest.param(rows.CPU_QUOTA.v2, "50000 200000", "50000 200000", id="another-period"),
        pytest.param(rows.IO_WEIGHT.v2, "default 1\n8:0 50", "default 1", id="a-device-of-its-own"),
        pytest.param(rows.CPUS.v2, "", "\n", id="no-cpus"),
    ],
)
def test_text_of_the_kernel_is_compared_in_our_form(row: Column, text: str, held: str) -> None:
    assert row.format.held(text) == held


# --- one more limit of the box -------------------------------------------------------------------------------------

READ_BPS = BoxLimit(
    KernelFile(
        v1=Column("blkio.throttle.read_bps_device", Format(lambda bps: f"8:0 {bps}", str, exact=True)),
        v2=Column("io.latency", Format(lambda bps: f"8:0 rbps={bps}", str, exact=True), None, lambda bps: {"Bps": bps}),
        optional=True,
    )
)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("box", ["/offline", "offline.slice"])
def test_box_is_bounded_by_another_file_with_its_row_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, box: str
) -> None:
    limits: dict[str, Any] = {**rows.LIMITS, "io.latency": READ_BPS}
    monkeypatch.setattr(kernel_driver, "LIMITS", limits)
    monkeypatch.setattr(systemd_driver, "LIMITS", limits)
    kernel = FakeKernel(tmp_path, version)
    systemd = FakeSystemd(kernel)
    driver = detect_any(kernel, systemd, kernel.root)
    driver.ensure(box)
    column = READ_BPS.limit.column(version)
    assert column is not None
    file = f"{'blkio' if version == 1 else 'cg'}/{box.lstrip('/')}/{column.name}"
    without = driver.write_limit(box, "io.latency", 1000)
    kernel.by_hand(file, "")

    changes = driver.write_limit(box, "io.latency", 1000)
    again = driver.write_limit(box, "io.latency", 1000)
    kernel.by_hand(file, "")
    drifted = driver.write_limit(box, "io.latency", 1000)

    held = driver.read_limit(box, "io.latency")

    assert (without, again) == ((), ())
    assert held is not None and held.limit == column.format.text(1000)
    assert kernel.file(file) == column.format.text(1000)
    assert [change.drift for change in (*changes, *drifted)] == [False, True]
    if version == 2 and box == "offline.slice":
        assert systemd.units[box]["Bps"] == 1000
