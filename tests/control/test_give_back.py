"""Ladder and limits together: a probe's seconds count once the box has what is probed."""

from collections.abc import Mapping

from criproxy.control.decider import Decider, LoopSettings, Now
from criproxy.control.evidence import HarmSeen
from criproxy.control.interference.detectors import DETECTORS, by_name
from criproxy.control.interference.ladder import LadderSettings, Rung
from criproxy.control.interference.responder import Responder
from criproxy.control.policy import DynamicSettings
from criproxy.control.series import PredictorSettings
from criproxy.model import CPU, UNLIMITED, Capacity, Usage, UsageReading
from tests import rows
from tests.fakes.control import GIB
from tests.fakes.log import FakeLog

CPUS = 16
LAWS = rows.laws(DynamicSettings(0.1, max_raise_ratio=0.1), DynamicSettings(GIB))
SETTINGS = LoopSettings(LAWS, PredictorSettings(kind="histogram"), cpu_by_evidence=True)


class Node:
    """A box that takes all of the CPU that it is left, and harms online with more than `harmless` cores of it."""

    def __init__(self, online_cores: float, harmless: float) -> None:
        self.online_cores, self.harmless = online_cores, harmless
        self.decider = Decider(SETTINGS, FakeLog())
        self.responder = Responder(LadderSettings(), (by_name(DETECTORS)["cpu_pressure"],), seed=1)
        self.t_s, self.sampled_s, self.limit = 1000.0, 0.0, 0.1
        self.shares: Mapping[str, float] = {}
        self.harmed_s, self.convictions = 0.0, 0

    def look(self) -> None:
        seconds = self.responder.look_s
        harmed = self.limit > self.harmless
        self.t_s += seconds
        self.harmed_s += seconds * harmed
        is_new = self.t_s - self.sampled_s >= SETTINGS.interval_s
        if is_new:
            self.sampled_s = self.t_s
            usage = UsageReading(Usage(self.online_cores * self.t_s, GIB), None, self.t_s)
            self.decider.sampled(self.t_s, self.t_s, usage, Capacity(CPUS, 64 * GIB))
        decision = self.responder.tick(self.t_s, {"cpu_pressure": 40.0 if harmed else 1.0}, 3)
        self.convictions += sum(one.after is Rung.SQUEEZED for one in decision.transitions)
        if self.decider.has_sample and (is_new or decision.shares != self.shares):
            self.shares = decision.shares
            self.decider.decide(Now(self.t_s))
            _, decided, _ = self.decider.joined(HarmSeen(self.shares, self.t_s, cpu_idle=True))
            self.decider.applied(decided.limits)
            limit = decided.limits[CPU]
            assert limit is not UNLIMITED
            self.limit = limit

    def run(self, seconds: float) -> "Node":
        end_s = self.t_s + seconds
        while self.t_s < end_s:
            self.look()
        return self


def test_box_that_harms_with_more_than_it_reaches_in_a_few_raises_stays_convicted() -> None:
    node = Node(10.0, harmless=12.0).run(3600)
    assert node.convictions == 1
    assert node.harmed_s <= 125.0


def test_level_at_which_the_box_harms_is_not_taken_for_good_before_the_box_has_it() -> None:
    node = Node(1.0, harmless=9.0).run(600)
    held = node.responder.ladder.of(CPU).held
    assert held is not None
    assert (held.level, held.bad) == (0.625, 0.75), "of some 13 cores"
