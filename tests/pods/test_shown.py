"""What parts show of themselves: rows of the status, problems, gauges."""

from collections.abc import Callable
from typing import Any

import pytest

from criproxy.cgroup.disk_weight import DiskWeight
from criproxy.cgroup.resctrl import CacheGroup
from criproxy.model import Finding, PodRef, Sandbox
from criproxy.pods.cache_share import CacheShare
from criproxy.pods.cpu_pinning import CpuPinning
from criproxy.pods.disk_keeping import DiskKeeping
from criproxy.pods.overhead import OutsideLoad, OverheadWatch, PodLoad
from criproxy.pods.part import Part
from criproxy.pods.placement_check import PlacementCheck
from criproxy.pods.realtime import RealtimeWatch

JOB = Sandbox("s1", PodRef("u", "batch", "job"), "/offline/podu")
STRAY = Finding("u", "batch", "job", "main", "/elsewhere")
HIDDEN = Finding("u", "batch", "job", "", "why")


class Nobody:
    """Stands for every port: nobody asks anything of it."""

    def __getattr__(self, name: str) -> Any:
        return Nobody()

    def __call__(self, *_: object) -> None: ...


def part(kind: Callable[..., Part], ports: int, **fields: Any) -> Part:
    made = kind(*[Nobody()] * ports)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


PLACEMENT = part(PlacementCheck, 3, _pids={"a": 1, "b": 2, "c": 3}, _misplaced={"x": STRAY}, _unknown={"y": HIDDEN})
LOUD = part(OverheadWatch, 4, load=OutsideLoad(0.9375, (PodLoad(JOB, 0.01, 2e7),)), too_much="it works too much")
DISKS = part(DiskKeeping, 5, found=(DiskWeight("sda", "bfq"), DiskWeight("sdb", "", "W"), DiskWeight("sdc", "", "W")))
EQUALS = "there, offline pods read and write as equals of online ones"


@pytest.mark.parametrize(
    ("shows", "rows"),
    [
        pytest.param(
            PLACEMENT,
            [
                (
                    "placement",
                    "3 containers verified, 1 misplaced, 1 not known",
                    "misplaced: batch/job, container main: /elsewhere",
                    "not known: batch/job, sandbox: why",
                )
            ],
            id="placement",
        ),
        pytest.param(
            LOUD,
            [
                (
                    "overhead",
                    "runtime 0.94 cores; for offline pods: shims 0.01 cores, logs 20.00 MB/s",
                    "batch/job: shim 0.01 cores, logs 20.00 MB/s",
                )
            ],
            id="overhead",
        ),
        pytest.param(
            part(OverheadWatch, 4),
            [("overhead", "runtime not known; for offline pods: shims 0.00 cores, logs 0.00 MB/s")],
            id="runtime-not-known",
        ),
        pytest.param(
            DISKS,
            [("disk weight", "in force on sda (bfq)"), ("disk weight", f"not in force on sdb, sdc: W; {EQUALS}")],
            id="disks",
        ),
        pytest.param(part(CacheShare, 4), [], id="no-share-of-caches"),
        pytest.param(
            part(CacheShare, 4, group=CacheGroup("L3:0=7", 12)),
            [("cache", "L3:0=7 for 12 threads of offline pods")],
            id="share-of-caches",
        ),
        pytest.param(
            part(CacheShare, 4, failure="resctrl is not mounted"),
            [("cache", "not bounded: resctrl is not mounted")],
            id="caches-fail",
        ),
    ],
)
def test_rows_of_the_status(shows: Part, rows: list[tuple[str, ...]]) -> None:
    assert list(shows.rows()) == rows


@pytest.mark.parametrize(
    ("shows", "problems", "gauges"),
    [
        pytest.param(
            PLACEMENT,
            ["1 containers of offline pods run outside the box"],
            {"misplaced_containers": 1, "unverified_containers": 1},
            id="placement",
        ),
        pytest.param(LOUD, ["it works too much"], {"runtime_overloaded": True}, id="overhead"),
        pytest.param(DISKS, [], {"disk_weight_in_force": {"sda": True, "sdb": False, "sdc": False}}, id="disks"),
        pytest.param(
            part(RealtimeWatch, 4, found={JOB.pod: "thread 7 runs under SCHED_FIFO"}),
            ["thread 7 runs under SCHED_FIFO in offline pod batch/job, and no limit of the box holds it"],
            {"realtime_pods": 1},
            id="real-time",
        ),
        pytest.param(
            part(CpuPinning, 3, pinned={"/offline/podu": frozenset({0})}, failure="there is no cpuset hierarchy"),
            [
                "keeping offline pods to CPUs of their own failed, and is tried again: there is no cpuset hierarchy",
            ],
            {"pinned_pods": 1},
            id="pinning",
        ),
    ],
)
def test_problems_and_gauges(shows: Part, problems: list[str], gauges: dict[str, object]) -> None:
    assert list(shows.problems()) == problems
    assert {one.name: one.read(shows) for one in shows.GAUGES} == gauges


def test_status_tells_on_which_cpus_a_pod_stays() -> None:
    pinning = part(CpuPinning, 3, pinned={"/offline/podu": frozenset({0, 2, 3})})
    assert pinning.of_pod(JOB) == {"cpus": "0,2-3"}
    assert part(CpuPinning, 3).of_pod(JOB) == {"cpus": ""}
