"""A world against the product's own detectors and ladder, and what came of it."""

import inspect
import math
from dataclasses import dataclass, field
from typing import Any

from benchmarks.ladder.world import DT_S, Scenario, World
from criproxy.control.interference.detectors import DETECTORS, by_name
from criproxy.control.interference.ladder import LadderSettings
from criproxy.control.interference.responder import Responder

ALL, PREDICTION, FLOOR = 0.70, 0.50, 0.00625
"""Of a node of 16 cores: what online leaves, what the prediction leaves, the floor of 0.1 cores."""

FOLLOWS_S = {"memory": (2.0, 4.0)}
"""How fast a resource's harm follows its bound, downwards and upwards: of memory, pages must be read again first."""
AT_ONCE_S = (0.15, 0.15)
"""A quota works from its next period on."""


@dataclass
class Outcome:
    """Times in s. `lost`: what the box did not get of the resource it lost most of, as a share of all of it."""

    seconds: float
    lost: float = 0.0
    closed_s: float = 0.0
    episodes: int = 0
    false: int = 0
    stray: int = 0
    """Convictions outside of episodes and guilty phases."""
    experiments: list[float] = field(default_factory=list)
    convictions: list[float] = field(default_factory=list)
    evictions: int = 0
    phases: int = 0
    missed: int = 0
    harm_s: list[float] = field(default_factory=list)
    """Of each guilty phase: harm by the box before it was cured."""
    cure_s: list[float] = field(default_factory=list)
    """From the phase's begin to the conviction; inf: none."""
    release_s: list[float] = field(default_factory=list)
    """From a phase's end until nothing is held back."""
    guilty_s: float = 0.0
    harmed_s: float = 0.0
    used: float = 0.0
    """Of what it would use while guilty, all in all."""

    def row(self) -> dict[str, float]:
        hours = self.seconds / 3600.0
        return {
            "false %": 100.0 * self.false / max(1, self.episodes),
            "stray/day": 24.0 * self.stray / hours,
            "tried/h": len(self.experiments) / hours,
            "lost %": 100.0 * self.lost,
            "closed %": 100.0 * self.closed_s / self.seconds,
            "pods/day": 24.0 * self.evictions / hours,
            "missed %": 100.0 * self.missed / max(1, self.phases),
            "harm s p50": quantile(self.harm_s, 0.5),
            "harm s p90": quantile(self.harm_s, 0.9),
            "cure s p50": quantile(self.cure_s, 0.5),
            "back s p50": quantile(self.release_s, 0.5),
            "back s p90": quantile(self.release_s, 0.9),
            "harm s/guilty h": 3600.0 * self.harmed_s / max(1e-9, self.guilty_s) if self.guilty_s else math.nan,
            "used %": 100.0 * self.used / max(1e-9, self.guilty_s) if self.guilty_s else math.nan,
        }


def quantile(values: list[float], ratio: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(ratio * len(ordered)))] if ordered else math.nan


class Law:
    """The responder of whatever version this is run with, on one signal."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.detector = by_name(DETECTORS)[scenario.signal]
        takes = inspect.signature(Responder).parameters
        self._responder: Any = Responder(
            LadderSettings(), (self.detector,), **({"seed": seed} if "seed" in takes else {})
        )
        self._cpus = scenario.cpus
        self.shares: dict[str, float] = {}
        self.closed = False
        self.experiments: list[float] = []
        self.convictions: list[float] = []
        self.evictions = 0

    @property
    def look_s(self) -> float:
        return float(getattr(self._responder, "look_s", 1.0))

    def tick(self, t_s: float, severity: float, use: float | None) -> None:
        detector, extra = self.detector, dict[str, Any]()
        if use is not None and "use" in inspect.signature(self._responder.tick).parameters:
            from criproxy.control.interference.detectors import OnlineUse

            extra["use"] = OnlineUse(use * self._cpus, self._cpus)
        value = min(detector.rest + severity * (detector.threshold - detector.rest), 10.0 * detector.threshold)
        decision = self._responder.tick(t_s, {detector.name: value}, 30, **extra)
        self.shares, self.closed = dict(decision.shares), bool(decision.closed)
        for one in decision.transitions:
            if one.after == "tried":
                self.experiments.append(t_s)
            if one.before == "tried" and one.after == "squeezed":
                self.convictions.append(t_s)
        if decision.eviction is not None:
            self.evictions += 1
            self._responder.evicted((f"job-{self.evictions}",))

    @property
    def convicted(self) -> bool:
        return self._rung(self.detector.suspects[0]) in ("squeezed", "closed", "evicting")

    @property
    def at_rest(self) -> bool:
        return all(self._rung(name) == "open" for name in self.detector.suspects)

    def _rung(self, resource: str) -> str:
        return str(self._responder.ladder.of(resource).rung)


def play(world: World, scenario: Scenario, seed: int) -> Outcome:
    """The first suspect of the signal is the guilty one."""
    law, steps = Law(scenario, seed), len(world.usual)
    use = dict.fromkeys(law.detector.suspects, ALL)
    first, lost, found = law.detector.suspects[0], dict.fromkeys(law.detector.suspects, 0.0), Outcome(scenario.seconds)
    harmful, convicted, held = bytearray(steps), bytearray(steps), bytearray(steps)
    total, count, due = 0.0, 0, 1.0
    guilty_use = 0.0
    for step in range(steps):
        for name, used in use.items():
            share = law.shares.get(name)
            bound = ALL if share is None else FLOOR + share * (PREDICTION - FLOOR)
            down_s, up_s = FOLLOWS_S.get(name, AT_ONCE_S)
            use[name] = bound + (used - bound) * math.exp(-DT_S / (down_s if bound < used else up_s))
            lost[name] += (ALL - use[name]) * DT_S / ALL
        mine = world.guilt[step] * use[first] / ALL
        severity = world.usual[step] + world.others[step] + mine
        harmful[step] = mine > 0.5 and severity > 1.0
        guilty_use += DT_S * use[first] / ALL if world.guilt[step] else 0.0
        total, count = total + severity, count + 1
        now_s = (step + 1) * DT_S
        if now_s >= due:
            law.tick(now_s, total / count, world.use[step] if world.use else None)
            total, count, due = 0.0, 0, now_s + law.look_s
        found.closed_s += law.closed * DT_S
        convicted[step], held[step] = law.convicted, not law.at_rest
    found.lost = max(lost.values()) / scenario.seconds
    found.experiments, found.convictions, found.evictions = law.experiments, law.convictions, law.evictions
    found.used, found.harmed_s = guilty_use, sum(harmful) * DT_S
    _count(found, world, harmful, convicted, held)
    return found


def _count(found: Outcome, world: World, harmful: bytearray, convicted: bytearray, held: bytearray) -> None:
    covered: set[float] = set()
    for begin, end in world.episodes:
        inside = {at for at in found.convictions if begin <= at <= end + 12.0}
        found.episodes += 1
        if not any(b <= at <= e + 5.0 for at in inside for b, e in world.phases):
            found.false += bool(inside)
        covered |= inside
    for begin, end in world.phases:
        first, last = int(begin / DT_S), int(end / DT_S)
        found.phases += 1
        found.guilty_s += end - begin
        at = next((step for step in range(first, last + 20) if convicted[step]), None)
        covered |= {one for one in found.convictions if begin <= one <= end + 12.0}
        if at is None:
            found.missed += 1
            found.cure_s.append(math.inf)
            found.harm_s.append(sum(harmful[first:last]) * DT_S)
            continue
        found.cure_s.append((at - first) * DT_S)
        cured, quiet = at, int(3.0 / DT_S)
        while cured + quiet < last and any(harmful[cured : cured + quiet]):
            cured += 1
        found.harm_s.append(sum(harmful[first:cured]) * DT_S)
        free = held.find(0, last)
        if convicted[last - 1]:
            found.release_s.append((free - last) * DT_S if free >= 0 else math.inf)
    found.stray = sum(at not in covered for at in found.convictions)
