"""A CPU of a real machine goes and comes back, under a running criproxy."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.lab.criproxy import QUICK, Criproxy
from integration.lab.process import wait_until
from integration.lab.throwaway import CONTAINERD_SOCKET
from integration.lab.usage import CPUS

CPU = Path("/sys/devices/system/cpu/cpu1/online")
WAIT_S = 90
SAMPLES = 5
"""Enough for the readings on both sides of the change."""


@pytest.fixture
def criproxy(tmp_path: Path) -> Iterator[Criproxy]:
    if not CPU.exists():
        pytest.skip(f"{CPU} does not exist: this machine can't take its second CPU off")
    proxy = Criproxy(tmp_path, CONTAINERD_SOCKET, {"control": dict(QUICK)})
    proxy.start()
    yield proxy
    CPU.write_text("1")
    proxy.stop()


def metric(criproxy: Criproxy, name: str) -> float:
    lines = criproxy.http("/metrics")[1].splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), math.nan)


def samples(criproxy: Criproxy) -> float:
    return metric(criproxy, "criproxy_tick_duration_seconds_count")


def wait_for_samples(criproxy: Criproxy) -> None:
    before = samples(criproxy)
    wait_until(lambda: samples(criproxy) >= before + SAMPLES, WAIT_S, f"{SAMPLES} samples")


def test_cpu_off_and_on_leaves_no_sample_that_starves_the_box(criproxy: Criproxy) -> None:
    """A sample of days of work in a second keeps a level of past usage at the top for hours."""
    wait_for_samples(criproxy)

    for online, cpus in (("0", CPUS - 1), ("1", CPUS)):
        CPU.write_text(online)
        wait_until(lambda: metric(criproxy, "criproxy_capacity_cores") == cpus, WAIT_S, f"{cpus} CPUs")  # noqa: B023
        wait_for_samples(criproxy)
        assert metric(criproxy, 'criproxy_usage_cores{scope="online"}') <= cpus

    wait_until(lambda: metric(criproxy, "criproxy_prediction_cores") < 0.9 * CPUS, WAIT_S, "a prediction below the top")
