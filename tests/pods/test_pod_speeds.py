"""What is counted of pods' speed, what it moves, and when one is to go."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from criproxy.cgroup.pod_use import PodCounters
from criproxy.control.pod_speed import Feedback
from criproxy.model import Asked, ContainerKind, PodRef, Sandbox
from criproxy.model.signals import PodCpuTimes
from criproxy.pods.pod_speeds import PodSpeeds
from criproxy.pods.runtime import ListedContainer
from criproxy.pods.stopping import ON_STARVED
from tests.fakes.bench import PartBench
from tests.fakes.part import node_settings, round_of
from tests.fakes.pods import FakeInventory

BOX = "/offline"
LOOK_S = 10.0


class Bench(PartBench):
    """The API server's publisher, too: it has published so many cores."""

    def __init__(self, *settings: str, published: float | None = 4.0) -> None:
        super().__init__(*(settings or (ON_STARVED,)))
        self.inventory, self.published = FakeInventory(), published
        self.counted: dict[str, tuple[float, float]] = {}
        self.part = PodSpeeds(self.shared(inventory=self.inventory, evicts=self))
        self.part.configure(node_settings())
        self.round = round_of(self.part, self.log, self.clock)

    def promised_cores(self) -> float | None:
        return self.published

    def runs(self, uid: str, asked: float, containers: dict[str, Asked] | None = None) -> None:
        sandbox = Sandbox(
            uid, PodRef(uid, "batch", uid), f"{BOX}/pod{uid}", int(1024 * asked), containers=containers or {}
        )
        self.inventory.placed = (*self.inventory.placed, sandbox)

    def looks(self, seconds: float = LOOK_S, **use: tuple[float, float]) -> None:
        """For so long, pods use so many cores, and wait for such a part of the time."""

        async def looks() -> None:
            if not self.counted:
                self.read(use)
                await self.round.look(self.part)
            for _ in range(round(seconds / LOOK_S)):
                self.clock.advance(LOOK_S)
                for uid, (cores, waiting) in use.items():
                    used_s, waited_s = self.counted[uid]
                    self.counted[uid] = used_s + LOOK_S * cores, waited_s + LOOK_S * waiting
                self.read(use)
                await self.round.look(self.part)

        asyncio.run(looks())

    def read(self, pods: Iterable[str]) -> None:
        readings = self.part.shared.readings
        self.counted = {uid: self.counted.get(uid, (0.0, 0.0)) for uid in pods}
        readings.at_s = self.clock.boottime_s()
        readings.of = {
            f"{BOX}/pod{uid}": PodCounters(PodCpuTimes(used_s, {0: waited_s}), 0)
            for uid, (used_s, waited_s) in self.counted.items()
        }

    def seconds(self, *name: str) -> float:
        return sum(by for counted, labels, by in self.counters.counted if (counted, *labels) == name)


def test_time_below_shares_of_what_was_asked_is_counted_for_pods_that_want_cpu() -> None:
    bench = Bench()
    for uid in ("slow", "fair", "full", "idle"):
        bench.runs(uid, 1.0)
    bench.looks(100.0, slow=(0.3, 0.7), fair=(0.7, 0.3), full=(1.0, 0.0), idle=(0.001, 0.0))

    assert bench.seconds("pod_seconds") == pytest.approx(300.0)
    assert bench.seconds("slow_pod_seconds", "0.5") == pytest.approx(100.0)
    assert bench.seconds("slow_pod_seconds", "0.9") == pytest.approx(200.0)
    assert bench.part.of_pod(bench.inventory.placed[0]) == {"speed_ratio": 0.3}
    assert bench.part.of_pod(bench.inventory.placed[3]) == {"speed_ratio": None}
    ((head, words),) = bench.part.rows()
    assert (head, words) == (
        "pods' speed",
        "3 offline pods want CPU, 2 below 90% of what they asked for, 1 below 50% of what they asked for",
    )


def test_why_says_what_pods_get_what_is_aimed_at_and_what_follows() -> None:
    bench = Bench()
    for uid in ("slow", "fair", "full", "idle"):
        bench.runs(uid, 1.0)
    before = bench.part.why()
    bench.looks(1800.0, slow=(0.3, 0.7), fair=(0.7, 0.3), full=(1.0, 0.0), idle=(0.001, 0.0))

    assert before == ""
    assert bench.part.why() == (
        "of 3 that want CPU, 67% below 90%, 33% below 50% of what they asked for; "
        "the aim is at most 1% of their time below 50%; "
        "so 1.19 x what the hour's forecast leaves is published while the box is open; starved for five minutes: 1"
    )


@pytest.mark.parametrize(("ratio", "slow"), [(0.9, "100% below 90%"), (1.0, "100% below 100%, 100% below 90%")])
def test_why_names_each_share_once(ratio: float, slow: str) -> None:
    bench = Bench()
    bench.part.configure(node_settings(f"kubernetes.speed_ratio = {ratio}\n"))
    bench.runs("a", 1.0)
    bench.looks(30.0, a=(0.7, 0.3))

    assert f"of 1 that want CPU, {slow} of what" in bench.part.why()


def test_pods_that_asked_for_nothing_of_what_is_lent_are_not_looked_at() -> None:
    bench = Bench()
    bench.runs("a", 0.0)
    bench.runs("b", 2 / 1024)
    bench.looks(100.0, a=(0.1, 0.9), b=(0.1, 0.9))

    assert bench.seconds("pod_seconds") == 0.0
    assert not list(bench.part.rows())


def test_once_a_container_runs_what_init_containers_asked_for_does_not_count() -> None:
    bench = Bench()
    containers = {"init": Asked(4096, kind=ContainerKind.INIT), "main": Asked(512)}
    bench.runs("a", 4.0, containers)
    bench.inventory.containers = {"a": (ListedContainer("c1", "a", "main", True),)}
    bench.looks(20.0, a=(0.5, 1.0))

    assert bench.part.speeds[f"{BOX}/poda"].asked == 0.5


def test_what_pods_get_moves_what_is_published() -> None:
    bench = Bench()
    bench.runs("a", 1.0)
    bench.looks(1800.0, a=(0.3, 0.7))
    slow = bench.part.feedback.position
    bench.looks(1800.0, a=(1.0, 0.0))

    assert slow == 0.0, "from step 4, it loses 5 in half an hour"
    assert bench.part.feedback.position == pytest.approx(0.05), "and gains a tenth in an hour"


def test_nothing_moves_while_no_pod_wants_cpu() -> None:
    bench = Bench()
    bench.runs("a", 1.0)
    bench.looks(3600.0, a=(0.0, 0.0))

    assert bench.part.feedback == Feedback(0.5)


@pytest.mark.parametrize("by", ["schedule", "operator", "ladder"])
def test_what_pods_get_while_their_cpu_is_taken_moves_nothing_and_starves_nobody(by: str) -> None:
    bench = Bench()
    bench.runs("a", 1.0)
    bench.looks(400.0, a=(0.3, 0.7))
    before, starved = bench.part.feedback, bench.part.why_one_is_to_go()
    open_stage = node_settings().stage
    if by == "schedule":
        bench.part.configure(node_settings(stage=replace(open_stage, off=True, closed="it is day")))
    elif by == "operator":
        bench.part.configure(node_settings(held_off="an operator holds it off"))
    else:
        bench.part.ladder_holds_cpu(True)
    bench.looks(3600.0, a=(0.05, 0.95))
    meanwhile = bench.part.feedback, dict(bench.part.starved), bench.part.why_one_is_to_go()
    bench.part.configure(node_settings())
    bench.part.ladder_holds_cpu(False)
    bench.looks(200.0, a=(0.3, 0.7))
    after = bench.part.why_one_is_to_go()
    bench.looks(200.0, a=(0.3, 0.7))

    assert starved
    assert meanwhile == (before, {}, "")
    assert after == "", "what it got before says nothing of now"
    assert bench.part.why_one_is_to_go()
    assert bench.seconds("slow_pod_seconds", "0.5") == pytest.approx(4400.0), "it is counted"


def test_pods_that_starve_before_the_schedule_turns_off_go_as_before() -> None:
    """The box has all its CPU until then."""
    bench = Bench()
    bench.runs("a", 1.0)
    stage = replace(node_settings().stage, closed="the schedule turns off at 08:00, within 300 s")
    bench.part.configure(node_settings(stage=stage))
    bench.looks(400.0, a=(0.3, 0.7))

    assert bench.part.feedback.position < Feedback(0.5).position
    assert bench.part.why_one_is_to_go()


def test_another_speed_begins_anew_and_the_same_goes_on() -> None:
    bench = Bench()
    bench.part.restore(Feedback(0.5, 6.0))
    bench.part.configure(node_settings())
    before = bench.part.feedback
    bench.part.configure(node_settings("kubernetes.speed_ratio = 0.8\n"))

    assert (before, bench.part.feedback) == (Feedback(0.5, 6.0), Feedback(0.8))


def test_pod_below_half_for_five_minutes_starves_and_one_is_to_go() -> None:
    bench = Bench()
    bench.runs("a", 1.0)
    bench.runs("b", 1.0)
    bench.looks(290.0, a=(0.3, 0.7), b=(0.9, 0.1))
    before = bench.part.why_one_is_to_go()
    bench.looks(30.0, a=(0.3, 0.7), b=(0.9, 0.1))

    why = "2 offline pods want 2.00 cores, get 1.20, and starved for five minutes"
    assert (before, bench.part.why_one_is_to_go()) == ("", why)
    assert bench.log.names() == ["pod_starved"]
    assert list(bench.part.problems())
    bench.part.one_was_to_go()
    assert bench.part.why_one_is_to_go() == ""


@pytest.mark.parametrize(
    ("settings", "published"),
    [
        pytest.param((ON_STARVED,), None, id="nothing is published"),
        pytest.param((ON_STARVED,), 0.5, id="they say that they asked for more than is"),
        pytest.param(("other",), 4.0, id="it is only reported"),
    ],
)
def test_none_is_to_go_however_long_one_starves(settings: tuple[str, ...], published: float | None) -> None:
    bench = Bench(*settings, published=published)
    bench.runs("a", 1.0)
    bench.looks(400.0, a=(0.3, 0.7))

    assert bench.part.starved
    assert bench.part.why_one_is_to_go() == ""


def test_without_kubernetes_none_is_to_go() -> None:
    bench = Bench()
    shared: Any = bench.shared(inventory=bench.inventory)
    bench.part.shared = shared
    bench.runs("a", 1.0)
    bench.looks(400.0, a=(0.3, 0.7))

    assert bench.part.why_one_is_to_go() == ""


def test_look_without_another_reading_counts_nothing() -> None:
    bench = Bench()
    bench.runs("a", 1.0)
    bench.looks(10.0, a=(0.3, 0.7))
    bench.clock.advance(10.0)
    bench.look(bench.part, 3)

    assert bench.seconds("pod_seconds") == pytest.approx(10.0)


def test_what_was_seen_before_it_ceased_does_not_count() -> None:
    bench = Bench()
    bench.runs("a", 1.0)
    bench.looks(400.0, a=(0.3, 0.7))
    bench.part.cease()

    assert (bench.part.starved, bench.part.speeds) == ({}, {})
