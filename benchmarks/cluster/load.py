"""What simulated nodes can lend from moment to moment: recorded use, through the daemon's predictor, law and offer."""

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from criproxy.commands.simulate.replay import Plan, predict
from criproxy.commands.simulate.trace import Trace
from criproxy.config.settings import Config
from criproxy.control.policy import PolicyState, decide
from criproxy.control.publication import RECENT_S
from criproxy.kube.extended_resources import Offer, PublishSettings, offer
from criproxy.model import CPU, MEMORY, ResourcePrediction, ResourceSample, Snapshot
from criproxy.model.modes import Modes
from criproxy.pods.policy_settings import policy

HOUR_S: Final = 3600.0
ALPHA_RATIO: Final = 0.05
COLD_START_PROBES: Final = 288
MOST_SAMPLES: Final = 4000
"""Of each trace, the last ones; the predictor learns in their first half, and the second is played."""

PLAYED_S: Final = 2400.0
"""A node begins no later than so long before the end of its trace."""

SIZES: Final = ((16, 64), (32, 128), (64, 256), (96, 384))
"""Cores and GiB of nodes."""

_SETTINGS: Final = policy(Config())


@dataclass(frozen=True, slots=True)
class Course:
    """A trace's second half: online's use, and what was predicted for the hour, as ratios of capacity."""

    step_s: float
    used: "array[float]"
    hour: "array[float]"

    def at(self, t_s: float) -> int:
        """The sample of a moment; after the end, the last one."""
        return min(int(t_s / self.step_s), len(self.used) - 1)

    def recent(self, index: int) -> float:
        """The mean use of the last minutes at this sample."""
        part = self.used[max(0, index + 1 - max(1, round(RECENT_S / self.step_s))) : index + 1]
        return sum(part) / len(part)


def course(trace: Trace, resource: str, unit: float) -> Course:
    """`unit`: how many cores or bytes are 1 in the trace."""
    cut = slice(-MOST_SAMPLES, None)
    last = Trace(trace.id, trace.family, trace.capacity, trace.times_s[cut], trace.usages[cut])
    plan = Plan(
        resource, 0.0, alpha_ratio=ALPHA_RATIO, horizon_s=HOUR_S, cold_start_probes=COLD_START_PROBES, unit=unit
    )
    half = len(last.usages) // 2
    used, hour = (
        array("d", (value / trace.capacity for value in values[half:])) for values in (last.usages, predict(last, plan))
    )
    return Course(trace.step_s, used, hour)


class NodeLoad:
    """One node: a size, and a place in two courses, of CPU and of memory."""

    def __init__(self, cpu: Sequence[Course], memory: Sequence[Course], source: random.Random) -> None:
        cores, gib = source.choice(SIZES)
        self.cores: Final = cores
        self.memory_bytes: Final = gib << 30
        self._of = {name: (source.choice(courses)) for name, courses in ((CPU, cpu), (MEMORY, memory))}
        self._capacity: dict[str, float] = {CPU: float(cores), MEMORY: float(self.memory_bytes)}
        self._begins_s = {
            name: source.uniform(0.0, max(len(one.used) * one.step_s - PLAYED_S, 0.0)) for name, one in self._of.items()
        }
        self._seen: tuple[int, ...] = ()
        self._offer = Offer({})

    def offer(self, t_s: float) -> Offer:
        """`t_s` after the node's beginning; the same object as long as nothing has changed."""
        seen = tuple(one.at(self._begins_s[name] + t_s) for name, one in self._of.items())
        if seen != self._seen:
            self._seen = seen
            self._offer = self._made(t_s, dict(zip(self._of, seen, strict=True)))
        return self._offer

    def changes(self, after_s: float, until_s: float) -> Iterator[tuple[float, Offer]]:
        """When each sample after `after_s` begins, up to `until_s`, and what is on offer from then on."""
        spans = {
            name: (one.at(self._begins_s[name] + after_s), one.at(self._begins_s[name] + until_s))
            for name, one in self._of.items()
        }
        seen = {name: first for name, (first, _) in spans.items()}
        for t_s, name, index in sorted(
            (index * self._of[name].step_s - self._begins_s[name], name, index)
            for name, (first, last) in spans.items()
            for index in range(first + 1, last + 1)
        ):
            seen[name] = index
            self._seen, self._offer = tuple(seen.values()), self._made(t_s, seen)
            yield t_s, self._offer

    def _made(self, t_s: float, seen: dict[str, int]) -> Offer:
        samples, predictions = {}, {}
        for name, index in seen.items():
            capacity, one = self._capacity[name], self._of[name]
            used, hour = one.used[index] * capacity, one.hour[index] * capacity
            samples[name] = ResourceSample(capacity, used, 0.0, used)
            predictions[name] = ResourcePrediction(hour, hour=hour, recent=one.recent(index) * capacity)
        snapshot = Snapshot(t_s, samples, 0.0)
        decision, _ = decide(snapshot, predictions, PolicyState(), _SETTINGS)
        opened = {name: replace(one, open=name == CPU) for name, one in decision.resources.items()}
        return offer(snapshot, replace(decision, resources=opened), Modes(), PublishSettings())
