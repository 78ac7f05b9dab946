"""What parts show of themselves: rows of the status, problems, gauges."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from criproxy.cgroup.disk_weight import DiskWeight
from criproxy.cgroup.resctrl import CacheGroup
from criproxy.control.guard import CpuGuard
from criproxy.control.guardlaw import GuardStatus
from criproxy.control.interference.responder import InterferenceStatus, RungStatus, SignalStatus
from criproxy.control.memory_pressure import EvictionStatus
from criproxy.daemon.bypass import Bypass, BypassStatus
from criproxy.daemon.kubernetes import KubernetesPart, KubernetesStatus, PolicyShown
from criproxy.model import UNLIMITED, Finding, GuardCeiling, PodRef, Sandbox
from criproxy.model.modes import Mode
from criproxy.model.shown import Shows
from criproxy.pods.cache_share import CacheShare
from criproxy.pods.cpu_pinning import CpuPinning
from criproxy.pods.disk_keeping import DiskKeeping
from criproxy.pods.interference import InterferenceWatch
from criproxy.pods.memory_relief import MemoryRelief
from criproxy.pods.overhead import OutsideLoad, OverheadWatch, PodLoad
from criproxy.pods.part import Part
from criproxy.pods.placement_check import PlacementCheck
from criproxy.pods.realtime import RealtimeWatch
from tests.fakes.part import Showing

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
            {"misplaced_containers": 1, "unverified_containers": 1, "stray_processes": 0},
            id="placement",
        ),
        pytest.param(LOUD, ["it works too much"], {"runtime_overloaded": True}, id="overhead"),
        pytest.param(
            part(RealtimeWatch, 4, found={JOB.pod: "thread 7 runs under SCHED_FIFO"}),
            [
                "offline pod batch/job: thread 7 runs under SCHED_FIFO, past every limit of the box: "
                "take CAP_SYS_NICE from it (capabilities.drop), and the scheduling class that another plugin of NRI "
                "gives it (docs/cpus.md)"
            ],
            {"realtime_pods": 1},
            id="real-time",
        ),
        pytest.param(DISKS, [], {"disk_weight_in_force": {"sda": True, "sdb": False, "sdc": False}}, id="disks"),
        pytest.param(
            part(CpuPinning, 4, pinned={"/offline/podu": frozenset({0})}, failure="there is no cpuset hierarchy"),
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
    assert {one.name: one.read(shows.now()) for one in shows.GAUGES} == gauges


def test_status_tells_on_which_cpus_a_pod_stays() -> None:
    pinning = part(CpuPinning, 4, pinned={"/offline/podu": frozenset({0, 2, 3})})
    assert pinning.of_pod(JOB) == {"cpus": "0,2-3"}
    assert part(CpuPinning, 4).of_pod(JOB) == {"cpus": ""}


def text(shows: Shows) -> str:
    """As the status has it, but for the width of a row's head."""
    return "".join(
        f"{head}: {words}\n" + "".join(f"  {line}\n" for line in more) for head, words, *more in shows.rows()
    )


@pytest.mark.parametrize(
    ("guard", "shown"),
    [
        (GuardStatus(True, None, "", 2, 1, 0, "p"), "at rest (squeezes 2, needless 1, failures 0)\n  pressure: p"),
        (GuardStatus(True, 0.5, "a step", 3, 0, 0, ""), "0.50 cores at most (a step)"),
        (GuardStatus(False, None, "", 0, 0, 0, ""), "guard: off"),
    ],
    ids=["at-rest", "squeezing", "off"],
)
def test_rows_of_the_guard(guard: GuardStatus, shown: str) -> None:
    assert shown in text(Showing(CpuGuard, guard))


GIB_BYTES = 1 << 30


@pytest.mark.parametrize(
    ("eviction", "shown"),
    [
        pytest.param(
            EvictionStatus("--eviction-hard", "", GIB_BYTES, 2 * GIB_BYTES, 4 * GIB_BYTES, ""),
            "eviction: kubelet evicts pods below 1.00 GiB of memory.available (--eviction-hard)\n"
            "  memory.available is 4.00 GiB; below 2.00 GiB, a pod goes while the box is above its memory limit\n",
            id="known",
        ),
        pytest.param(
            EvictionStatus("kubelet's default", "no kubelet", 100 << 20, 150 << 20, GIB_BYTES, "a/b: why"),
            "of memory.available (assumed, as no kubelet)\n",
            id="assumed",
        ),
        pytest.param(
            EvictionStatus("x", "", 100 << 20, 150 << 20, GIB_BYTES, "a/b: why"),
            "  stopped last: a/b: why\n",
            id="last",
        ),
        pytest.param(
            EvictionStatus("evictionHard in /c", "", 0, 0, GIB_BYTES, ""),
            "eviction: kubelet evicts no pod for memory (evictionHard in /c)\n",
            id="none",
        ),
        pytest.param(
            EvictionStatus("x", "", None, None, None, ""), "kubelet evicts pods below not known", id="no-sample-yet"
        ),
    ],
)
def test_rows_tell_how_near_kubelets_eviction_is(eviction: EvictionStatus, shown: str) -> None:
    assert shown in text(Showing(MemoryRelief, eviction))


HARM = InterferenceStatus(
    resting="",
    signals=(
        SignalStatus("cpu_pressure", "%", 31.2, 10.0, True, note="31 of 31 % are explained by online's own limits"),
        SignalStatus("run_queue_delay", "ms/s", None, 50.0, False, "not needed"),
        SignalStatus("refaults", "pages/s", None, 500.0, True, "two readings are needed"),
    ),
    rungs=(
        RungStatus("memory", "closed", 1.7e9, "it had to", 0.0),
        RungStatus("cpu", "open", None, "", None),
    ),
    closed="the box harms online pods: memory",
    evictions=2,
    most=6,
    kept=2,
)


@pytest.mark.parametrize(
    "shown",
    [
        "signals: 2 here, 1 not",
        "cpu_pressure: here, 31.2 %, harm above 10; 31 of 31 % are explained by online's own limits",
        "run_queue_delay: not here, not needed",
        "refaults: here, two readings are needed",
        "ladder: the box harms online pods: memory",
        "memory: closed, 0% of the way from its floor, since ",
        ": it had to",
        "2 pods were stopped in ten minutes, of 6 at most, 2 of them in an emergency only",
    ],
)
def test_text_tells_what_is_seen_of_harm_and_what_is_done(shown: str) -> None:
    assert shown in text(Showing(InterferenceWatch, HARM))


def test_text_tells_which_resource_is_not_tried() -> None:
    untried = replace(HARM, rungs=(RungStatus("memory", "open", None, "", None, untried="it would kill"),))
    assert "  memory: it would kill" in text(Showing(InterferenceWatch, untried))


def test_text_tells_why_no_signal_is_looked_at() -> None:
    resting = replace(HARM, resting="the box has no pods", signals=(), closed="", evictions=0)
    rows = text(Showing(InterferenceWatch, resting))
    assert "signals: none is looked at: the box has no pods" in rows
    assert "ladder: memory closed, cpu open" in rows


BYPASS = [
    (None, "", [None, None, None, None]),
    (
        BypassStatus(10.0, None, 2, 5.0),
        "bypass: opens after 10 s without criproxy; opened 2 times",
        [10.0, 0.0, 2, 5.0],
    ),
    (BypassStatus(None, 7.0, 3, 5.0), "bypass: open since ", [UNLIMITED, 1.0, 3, 5.0]),
    (BypassStatus(None, None, 0, None), "bypass: never opens\n", [UNLIMITED, 0.0, 0, None]),
]


@pytest.mark.parametrize(("told", "shown", "figures"), BYPASS, ids=["none", "shut", "open", "never"])
def test_bypass_is_shown(told: BypassStatus | None, shown: str, figures: list[object]) -> None:
    bypass = Showing(Bypass, told)
    assert text(bypass).startswith(shown)
    assert [one.read(bypass.now()) for one in bypass.GAUGES] == figures
    assert list(bypass.modes()) == ([Mode.BYPASS] if figures[1] == 1.0 else [])


def test_guards_ceiling_is_without_end_at_rest() -> None:
    (gauge,) = CpuGuard.GAUGES
    ceilings = [gauge.read(Showing(CpuGuard, ceiling=lambda one=one: one)) for one in (None, GuardCeiling(0.5, "why"))]
    assert ceilings == [UNLIMITED, 0.5]


PUBLISHED = KubernetesStatus(
    node="node1",
    kubeconfig="/etc/kubernetes/kubelet.conf",
    published={"kubernetes.io/batch-cpu": 1500},
    why="kubernetes.io/batch-cpu 1500: the floor; held: memory",
    age_s=61.0,
    policy=PolicyShown("night", "7", ("cpu.reserve_cores",), ("cpu.max_cores: is below the floor",)),
)


@pytest.mark.parametrize(
    ("told", "shown", "problems", "gauges"),
    [
        pytest.param(None, "kubernetes: off\n", [], [{}, None, False], id="off"),
        pytest.param(
            PUBLISHED,
            "kubernetes: node node1, by /etc/kubernetes/kubelet.conf\n"
            "  published 1 min 1 s ago: kubernetes.io/batch-cpu 1500\n"
            "  policy night (7) sets cpu.reserve_cores\n"
            "  policy refused: cpu.max_cores: is below the floor\n",
            ["the cluster's policy is refused: cpu.max_cores: is below the floor"],
            [{"kubernetes.io/batch-cpu": 1500}, 61.0, False],
            id="published",
        ),
        pytest.param(
            KubernetesStatus(trouble="no kubeconfig"),
            "kubernetes: no kubeconfig\n",
            ["Kubernetes: no kubeconfig"],
            [{}, None, True],
            id="trouble",
        ),
    ],
)
def test_kubernetes_is_shown(
    told: KubernetesStatus | None, shown: str, problems: list[str], gauges: list[object]
) -> None:
    part = Showing(KubernetesPart, told)
    assert (text(part), list(part.problems())) == (shown, problems)
    assert [one.read(part.now()) for one in part.GAUGES] == gauges
