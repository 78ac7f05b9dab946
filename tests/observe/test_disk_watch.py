"""The watch on the disks, which the test scripts."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
import structlog

from criproxy.cgroup.box import BoxState
from criproxy.cgroup.disk_weight import DiskWeight
from criproxy.observe.disk_watch import DiskWatch

T = TypeVar("T")

BFQ, NONE = DiskWeight("sda", "bfq"), DiskWeight("sdb", "", "scheduler none keeps to no weight")


@dataclass
class Bench:
    """`says`: what is read next."""

    says: tuple[DiskWeight, ...] | Exception = ()
    version: int = 2

    def __post_init__(self) -> None:
        self.watch = DiskWatch(self, self, self.state, self, structlog.get_logger())  # type: ignore[arg-type]

    def state(self) -> BoxState:
        return BoxState("/offline", self.version, None, True, "", drift=0, timeouts=0, pods=())

    def read(self, version: int, box: str | None) -> tuple[DiskWeight, ...]:
        assert (version, box) == (2, "/offline")
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    async def run(self, what: str, job: Callable[[], T]) -> T:
        return job()

    async def sleep(self, seconds: float, slack_s: float = 0.0) -> None:
        raise asyncio.CancelledError

    def look(self, says: tuple[DiskWeight, ...] | Exception) -> list[Any]:
        self.says = says
        with structlog.testing.capture_logs() as log:
            asyncio.run(self.watch.look())
        return [entry["event"] for entry in log]


def test_each_change_is_told_once() -> None:
    bench = Bench()
    assert bench.look((BFQ, NONE)) == ["disk_weight_in_force", "disk_weight_not_in_force"]
    assert bench.look((BFQ, NONE)) == []
    assert bench.look((BFQ,)) == ["disk_weight_in_force"]
    assert bench.watch.disks == (BFQ,)


def test_failure_is_told_once_and_keeps_what_is_known() -> None:
    bench = Bench()
    bench.look((BFQ,))
    assert bench.look(OSError("no")) == ["disk_weight_not_known"]
    assert bench.look(OSError("no")) == []
    assert bench.watch.disks == (BFQ,)
    assert bench.look((BFQ,)) == []


def test_machine_without_cgroups_is_not_looked_at() -> None:
    bench = Bench(version=0)
    assert bench.look(AssertionError("not to be read")) == []


def test_run_looks_at_once_and_after_each_sleep() -> None:
    bench = Bench((BFQ,))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(bench.watch.run())
    assert bench.watch.disks == (BFQ,)
