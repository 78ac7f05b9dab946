"""A look from reading to decision: whose harm it is that a resource was convicted of, and how long that is known."""

import math
from collections.abc import Callable, Mapping

import pytest
from msgspec.structs import replace

from criproxy.control.interference.detectors import DETECTORS
from criproxy.control.interference.judge import Accusers, Judge, Look
from criproxy.control.interference.ladder import (
    ALL,
    Case,
    Hold,
    HoldMode,
    LadderSettings,
    LadderState,
    Mean,
    Rung,
    RungState,
    Transition,
)
from criproxy.control.interference.responder import ResponderState
from criproxy.control.interference.service_checks import ServiceSignal
from criproxy.model import CPU, PodRef
from criproxy.model.signals import CpuSpent, Missing, OwnLimits, PodStall, SignalReading, Stall

SETTINGS = LadderSettings()
NO_IO = frozenset({"io"})
IDLE = Missing("not in this test")


def restarted(judge: Judge) -> Judge:
    """A new one, from what this one would leave."""
    again = Judge(SETTINGS, seed=4)
    again.load(*judge.state(), 0.0)
    return again


def emptied(judge: Judge) -> Judge:
    """The same, after two looks at an empty box."""
    for _ in range(2):
        judge.forget()
        judge.judge(Look(judge.responder.ladder.t_s or 0.0, 0))
    return judge


class Node:
    """The box takes all of the CPU that it is left, which `harms` the first pod until it is `harmless`."""

    def __init__(self) -> None:
        self.judge, self.t_s, self.harmless = Judge(SETTINGS, seed=3), 1000.0, False
        self.shares: Mapping[str, float] = {}
        self.harmed_s = 0.0
        self.transitions: list[Transition] = []

    @property
    def harms(self) -> bool:
        return self.t_s > 1030.0 and self.shares.get(CPU, 1.0) > 0.6 and not self.harmless

    def look(self) -> None:
        self.t_s += self.judge.responder.look_s
        judged = self.judge.judge(self.seen())
        self.shares = judged.decision.shares
        self.transitions += judged.decision.transitions

    def seen(self) -> Look:
        raise NotImplementedError

    def run(self, seconds: float) -> None:
        end_s = self.t_s + seconds
        while self.t_s < end_s:
            self.look()

    def convict(self) -> None:
        while self.judge.responder.ladder.of(CPU).rung is not Rung.SQUEEZED:
            self.look()

    @property
    def spent(self) -> CpuSpent:
        return CpuSpent(self.t_s, 2 * self.t_s, self.t_s, 0.5 * self.t_s, 0.0, 16)


class Service(Node):
    """It says how it fares each second."""

    def __init__(self) -> None:
        super().__init__()
        self.pod, self.percent, self.asked_s = "a", 20.0, self.t_s

    def seen(self) -> Look:
        if self.t_s - self.asked_s >= 1.0:
            self.asked_s, self.percent = self.t_s, 200.0 if self.harms else 20.0
        word = ServiceSignal(PodRef(self.pod, "shop", f"web-{self.pod}"), self.percent, None, 3.0, self.asked_s)
        reading = SignalReading(cpu_use=self.spent, disks=IDLE)
        return Look(self.t_s, 3, reading, services=(word,), online={self.pod: "shop/web"}, unused=NO_IO)


def same(judge: Judge) -> Judge:
    return judge


@pytest.mark.parametrize("between", [same, restarted, emptied])
@pytest.mark.parametrize("pod", ["a", "b"], ids=["stays", "replaced"])
def test_box_convicted_by_a_service_is_given_back_whatever_becomes_of_that(
    pod: str, between: Callable[[Judge], Judge]
) -> None:
    node = Service()
    node.convict()
    node.run(20)
    node.pod, node.percent, node.asked_s, node.harmless = pod, 20.0, node.t_s, True
    node.judge = between(node.judge)
    node.run(300)
    assert node.judge.responder.ladder.of(CPU).rung is Rung.OPEN


class Crowded(Service):
    """Others take four more CPUs from just before its harm on, for half a minute."""

    def __init__(self) -> None:
        super().__init__()
        self.others_s, self.counted_s = 0.0, self.t_s

    @property
    def spent(self) -> CpuSpent:
        seconds, self.counted_s = self.t_s - self.counted_s, self.t_s
        self.others_s += 4.0 * seconds if 1025.0 < self.t_s < 1060.0 else 0.0
        return CpuSpent(self.t_s, 6 * self.t_s + self.others_s, 2 * self.t_s, 3 * self.t_s, 0.0, 16)


def test_cpu_that_is_not_tried_while_others_rise_is_tried_thereafter_and_before_memory() -> None:
    node = Crowded()
    node.run(300)
    assert [(one.resource, one.after) for one in node.transitions] == [(CPU, Rung.TRIED), (CPU, Rung.SQUEEZED)]
    assert not node.judge.responder.has_acquitted("service_check")


class TwoServices(Service):
    """Another fares well. For the `unheard` looks to come, the first is not heard."""

    unheard = 0.0

    def seen(self) -> Look:
        look = super().seen()
        other = ServiceSignal(PodRef("b", "shop", "web-b"), 20.0, None, 3.0, self.asked_s)
        services = (other,) if self.unheard > 0 else (*look.services, other)
        self.unheard -= 1
        return replace(look, services=services, online={"a": "shop/web-a", "b": "shop/web-b"})


def test_service_that_is_heard_later_than_others_after_a_restart_stays_the_one_that_is_asked() -> None:
    node = TwoServices()
    node.convict()
    node.run(20)
    node.judge, node.unheard = restarted(node.judge), 1
    node.run(600)
    assert [one.after for one in node.transitions] == [Rung.TRIED, Rung.SQUEEZED]


def test_service_that_is_not_heard_any_more_does_not_hold_the_box_for_ever() -> None:
    node = TwoServices()
    node.convict()
    node.harmless, node.unheard = True, math.inf
    node.run(300)
    assert node.judge.responder.ladder.of(CPU).rung is Rung.OPEN


class OneIll(TwoServices):
    """From five minutes on the other is somewhat ill, whatever the box does."""

    def seen(self) -> Look:
        look = super().seen()
        harmed, other = look.services
        look = replace(look, services=(replace(harmed, percent=2.0 * harmed.percent), other))
        ill = ServiceSignal(PodRef("b", "shop", "web-b"), 140.0, 100.0, 3.0, self.asked_s)
        return replace(look, services=(look.services[0], ill)) if self.t_s > 1300.0 else look


def test_service_that_is_ill_for_a_reason_of_its_own_does_not_have_the_box_closed_for_anothers_harm() -> None:
    node, floor_s, harmed_s = OneIll(), 0.0, 0.0
    while node.t_s < 4600.0:
        node.run(0.1)
        floor_s += node.judge.responder.look_s * (node.shares.get(CPU) == 0.0)
        harmed_s += node.judge.responder.look_s * node.harms
    assert Rung.CLOSED not in [one.after for one in node.transitions]
    assert "said by shop/web-b" not in [one.note for one in node.judge.signals() if one.name == "service_check"]
    assert floor_s < 360.0
    assert harmed_s < 260.0


class Waiting(Node):
    """One of many CPUs' pods waits, which pressure of all together does not show."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s = 0.0

    def seen(self) -> Look:
        seconds = self.judge.responder.look_s
        self.waited_s += (0.8 if self.harms else 0.02) * seconds
        self.harmed_s += seconds if self.harms else 0.0
        reading = SignalReading(
            cpu=Stall(self.t_s, 0.01 * self.t_s),
            cpu_use=self.spent,
            own_limits=OwnLimits(self.t_s, {}, self.t_s),
            pods={"a": PodStall("/kubepods/poda", Stall(self.t_s, self.waited_s))},
            disks=IDLE,
        )
        return Look(self.t_s, 3, reading, online={"a": "shop/web"}, unused=NO_IO)


def test_pod_by_whose_waiting_the_box_was_convicted_is_known_after_a_restart() -> None:
    harmed = []
    for between in (same, restarted):
        node = Waiting()
        node.convict()
        node.run(200)
        node.judge = between(node.judge)
        node.run(600)
        assert [one.after for one in node.transitions] == [Rung.TRIED, Rung.SQUEEZED]
        harmed.append(node.harmed_s)
    assert harmed[0] == harmed[1]


def test_restart_within_an_experiment_says_nothing_of_how_long_the_accused_waits() -> None:
    """Two thirds of its waiting are left when the box is squeezed: not the box's doing."""
    case = Case("pod_pressure", on=CPU, before=300.0, age_s=0.5, long_s=1.5, low=Mean(200.0, 1), high=Mean(1200.0, 4),
                returns=1)  # fmt: skip
    judge = Judge(SETTINGS, seed=1)
    state = ResponderState({}, LadderState(1000.0, {CPU: RungState(Rung.TRIED)}, case))
    judge.load(state, {}, Accusers(waits="a", bar=20.0), 0.0)
    transitions: list[Transition] = []
    for look in range(6):
        t_s = 1002.0 + 0.5 * look
        reading = SignalReading(
            own_limits=OwnLimits(t_s, {}, t_s),
            pods={"a": PodStall("/kubepods/poda", Stall(t_s, 0.4 * look))},
            disks=IDLE,
        )
        judged = judge.judge(Look(t_s, 3, reading, online={"a": "shop/web"}, unused=NO_IO))
        transitions += judged.decision.transitions
    assert Rung.SQUEEZED not in [one.after for one in transitions]


def test_test_that_ends_after_its_detector_was_switched_off_gives_the_resource_back() -> None:
    held = Hold(HoldMode.TEST, ALL, age_s=1.5, long_s=2.0, harm=Mean(40.0, 4), seen=Mean(20.0, 2), innocent=1)
    state = LadderState(100.0, {CPU: RungState(Rung.SQUEEZED, "cpu_pressure", 0.0, held)})
    judge = Judge(SETTINGS)
    judge.responder.load(ResponderState({}, state))
    judge.configure(SETTINGS, tuple(one for one in DETECTORS if one.name == "memory_shortage"))
    decision = judge.judge(Look(100.5, 3)).decision
    assert [(one.before, one.after) for one in decision.transitions] == [(Rung.SQUEEZED, Rung.OPEN)]
    assert decision.exonerated == ()
