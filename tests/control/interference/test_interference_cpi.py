"""Cycles per instruction: what is usual is learned, what is slow for long is told, and an experiment shows it end."""

import random
from collections.abc import Callable

import pytest

from criproxy.control.interference.cpi import HELD, LEAST, WINDOW_S, CpiMeter, Usual
from criproxy.model.signals import Missing, Work, WorkReading

LEARNED_S = (LEAST + 2) * WINDOW_S
HELD_S = HELD * WINDOW_S


class Node:
    """Online pods that run 10^9 cycles a second; `cpi` of each at a time, by uid."""

    def __init__(self, **cpi: Callable[[float], float]) -> None:
        self.meter, self.cpi, self.t_s = CpiMeter(), cpi, 0.0
        self.done = dict.fromkeys(cpi, Work(0, 0))
        self.random = random.Random(7)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.t_s += 1.0
            for uid, cpi in self.cpi.items():
                was, noise = self.done[uid], self.random.gauss(1.0, 0.02)
                done = Work(was.cycles + 10**9, was.instructions + round(10**9 / (cpi(self.t_s) * noise)))
                self.done[uid] = done
            self.meter.take(WorkReading(self.t_s, dict(self.done)), {uid: f"shop/{uid[0]}" for uid in self.cpi})

    def value(self) -> float | None:
        return self.meter.at_rest().value


def steady(cpi: float) -> Callable[[float], float]:
    return lambda _: cpi


def slow_from(at_s: float, to_s: float = 1e9) -> Callable[[float], float]:
    return lambda t_s: 1.5 if at_s <= t_s < to_s else 1.0


def test_nothing_is_said_before_the_usual_is_known() -> None:
    node = Node(a1=steady(1.0))
    node.run(5 * WINDOW_S)
    early = node.meter.at_rest()
    node.run(LEARNED_S)

    assert (early.value, "being learned: " in early.gap) == (None, True)
    assert node.value() == pytest.approx(0.0, abs=1.5)


def test_workload_that_is_slow_for_long_is_told_and_not_before() -> None:
    node = Node(a1=slow_from(LEARNED_S), b1=steady(3.0))
    node.run(LEARNED_S + HELD_S - 2 * WINDOW_S)
    early = node.value()
    node.run(2 * WINDOW_S)

    late = node.meter.at_rest()
    assert early is not None and late.value is not None
    assert early < 2.0
    assert late.value > 5.0
    assert late.note.startswith("shop/a: 1.")


def test_pods_of_one_workload_share_what_is_usual() -> None:
    node = Node(a1=steady(1.0))
    node.run(LEARNED_S)
    node.cpi["a2"], node.done["a2"] = steady(1.6), Work(0, 0)
    node.run(HELD_S + 2)

    signal = node.meter.at_rest()
    assert signal.value is not None
    assert signal.value > 5.0


def test_experiment_sees_the_accused_pod_alone_and_at_once() -> None:
    node = Node(a1=slow_from(LEARNED_S, LEARNED_S + 60.0), b1=steady(3.0))
    node.run(LEARNED_S + 59.0)
    before = node.value()
    since_s = node.t_s
    node.run(4)

    during, convicted = node.meter.of_accused(since_s), node.meter.of_accused()
    assert before is not None and during.value is not None and convicted.value is not None
    assert during.value < before / 2 < convicted.value + before / 2


def test_accused_that_has_gone_has_no_value() -> None:
    node = Node(a1=slow_from(LEARNED_S))
    node.run(LEARNED_S + 40.0)
    assert node.value() is not None
    node.meter.take(WorkReading(node.t_s + 1.0, {}), {})

    assert (node.meter.of_accused().value, node.meter.of_accused().gap) == (None, "the pod that was slow has gone")
    assert node.meter.at_rest().gap == "no online pod is counted"


def test_idle_pod_says_nothing() -> None:
    node = Node(a1=steady(1.0))
    node.run(LEARNED_S)
    for _ in range(60):
        node.t_s += 1.0
        node.meter.take(WorkReading(node.t_s, dict(node.done)), {"a1": "shop/a"})

    assert node.value() is None


def test_counter_that_begins_anew_is_no_measurement() -> None:
    node = Node(a1=steady(1.0))
    node.run(LEARNED_S)
    node.done["a1"] = Work(0, 0)
    node.run(2)

    assert node.value() is None


def test_machine_without_counters_says_so() -> None:
    meter = CpiMeter()
    meter.take(Missing("no counters"), {})

    assert (meter.at_rest().absent, meter.of_accused().absent) == ("no counters", "no counters")


def test_what_a_day_has_taught_outlives_one_bad_hour_and_a_restart() -> None:
    node = Node(a1=steady(1.5))
    node.meter.load({"shop/a": Usual(8640, 1.0, 0.0025)})
    node.run(3600.0)
    again = CpiMeter()
    again.load(node.meter.state())
    node.meter = again
    node.run(HELD_S + 12)

    value = node.value()
    assert value is not None
    assert value > 2.0


def test_one_workload_more_than_are_remembered_drops_the_one_that_was_seen_longest_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("criproxy.control.interference.cpi.MOST_WORKLOADS", 2)
    node = Node(a1=steady(1.0), b1=steady(1.0), c1=steady(1.0))
    node.run(2 * WINDOW_S + 1)

    assert set(node.meter.state()) == {"shop/b", "shop/c"}


def test_usual_is_the_mean_and_the_spread() -> None:
    usual, source = Usual(), random.Random(1)
    for _ in range(2000):
        usual = usual.learned(source.gauss(2.0, 0.2))

    assert (usual.mean, usual.sigma) == (pytest.approx(2.0, rel=0.02), pytest.approx(0.2, rel=0.1))
