"""A node whose online pods are harmed now and then, by others or by the box: the signal that the ladder would see.

Severity: 0 is a detector's `rest`, 1 its threshold. A series has a value for each `DT_S`, and is the sum of

    usual     lognormal, correlated over 8 s, with spikes of a second; or the pressure of a healthy node by its use
    others    episodes of exponential lengths and gaps, each of a height of its own (lognormal, median 3)
    guilt     what the box adds if it is open, in its guilty phases: as high as others' episodes

The noise is assumed, not recorded. Heights vary within an episode (sigma 0.4, correlated over 2 s).
"""

import math
import random
from dataclasses import dataclass, field

DT_S = 0.25

Spell = tuple[float, float]
"""From when to when, in s."""


@dataclass(frozen=True)
class Noise:
    """What is usual, and what episodes are like; `gusts`: they come and go, on for 3 s and off for 2 s on average."""

    median: float = 0.2
    sigma: float = 0.6
    spikes_per_s: float = 1 / 600
    within: float = 0.4
    gusts: bool = False


NORMAL = Noise()
HOT = Noise(0.5, 0.6, 1 / 120)
GUSTS = Noise(gusts=True)


@dataclass(frozen=True)
class Scenario:
    """What is played. Episodes of others take `mean_s`, a gap of `gap_s` between them; 0: there are none.

    The box is guilty for `guilty_s` of each `of_s`, and of `part` of the harm then. `cpus`: the node is healthy, and
    its pressure is that of an ideal machine with so many, by a day that peaks at 75 % use; 0: it is not played.
    """

    name: str
    hours: float
    noise: Noise = NORMAL
    mean_s: float = 0.0
    gap_s: float = 0.0
    guilty_s: float = 0.0
    of_s: float = 0.0
    part: float = 1.0
    cpus: int = 0
    signal: str = "cpu_pressure"

    @property
    def seconds(self) -> float:
        return 3600.0 * self.hours


@dataclass
class World:
    usual: list[float]
    others: list[float]
    guilt: list[float]
    episodes: list[Spell] = field(default_factory=list)
    phases: list[Spell] = field(default_factory=list)
    use: list[float] = field(default_factory=list)
    """Online's, of the node; empty: not known."""


def world(scenario: Scenario, seed: int) -> World:
    rng = random.Random(f"{scenario.name} {seed}")
    steps, noise = int(scenario.seconds / DT_S), scenario.noise
    if scenario.cpus:
        return _healthy(scenario, rng, steps)
    usual = [noise.median * math.exp(x) for x in _wandering(rng, steps, 8.0, noise.sigma)]
    for step in range(steps):
        if rng.random() < noise.spikes_per_s * DT_S:
            height = rng.expovariate(1 / 1.5)
            for at in range(step, min(steps, step + round(1.0 / DT_S))):
                usual[at] += height
    made = World(usual, [0.0] * steps, [0.0] * steps)
    within = [math.exp(x - noise.within**2 / 2) for x in _wandering(rng, steps, 2.0, noise.within)]
    made.episodes = list(_episodes(rng, scenario)) if scenario.mean_s else []
    for spell in made.episodes:
        _add(made.others, spell, max(1.3, _height(rng)), within, rng, gusts=noise.gusts)
    begin_s = scenario.of_s - scenario.guilty_s
    while scenario.guilty_s and begin_s + scenario.guilty_s <= scenario.seconds - 240.0:
        # Somewhere in its turn, so that no probe keeps step with the phases.
        from_s = begin_s + rng.uniform(-0.2, 0.2) * (scenario.of_s - scenario.guilty_s)
        spell, height = (from_s, from_s + scenario.guilty_s), max(1.5, _height(rng))
        _add(made.guilt, spell, height * scenario.part, within, rng)
        _add(made.others, spell, height * (1.0 - scenario.part), within, rng)
        made.phases.append(spell)
        begin_s += scenario.of_s
    return made


def pressure(cpus: int, use: float) -> float:
    """PSI `some` of an ideal machine in %: E[min(waiting, CPUs)] / (CPUs * use), summed up over the states of M/M/c."""
    offered, weight, total, waiting = cpus * use, 1.0, 1.0, 0.0
    for pods in range(1, cpus + 2000):
        weight *= offered / min(pods, cpus)
        total += weight
        waiting += weight * min(max(0, pods - cpus), cpus)
        if weight < 1e-12 * total:
            break
    return 100.0 * waiting / total / offered


def _healthy(scenario: Scenario, rng: random.Random, steps: int) -> World:
    table = [pressure(scenario.cpus, max(0.005, percent / 100.0)) / 10.0 for percent in range(100)]
    use, usual = [], []
    for step, noise in enumerate(_wandering(rng, steps, 5.0, 0.25)):
        now = 0.4 + 0.35 * math.sin(2.0 * math.pi * step * DT_S / 86400.0)
        use.append(now)
        low = int(100.0 * now)
        level = table[low] + (100.0 * now - low) * (table[low + 1] - table[low])
        usual.append(level * math.exp(noise - 0.03) + 0.01)
    return World(usual, [0.0] * steps, [0.0] * steps, use=use)


def _height(rng: random.Random) -> float:
    return 3.0 * math.exp(0.6 * rng.gauss(0.0, 1.0))


def _wandering(rng: random.Random, steps: int, tau_s: float, sigma: float) -> list[float]:
    """A stationary first-order autoregressive series of this sigma."""
    keep = math.exp(-DT_S / tau_s)
    white, x, out = sigma * math.sqrt(1.0 - keep * keep), rng.gauss(0.0, sigma), []
    for _ in range(steps):
        x = keep * x + white * rng.gauss(0.0, 1.0)
        out.append(x)
    return out


def _episodes(rng: random.Random, scenario: Scenario) -> list[Spell]:
    found, t_s = [], 30.0 + rng.expovariate(1.0 / scenario.gap_s)
    while t_s < scenario.seconds:
        end_s = min(scenario.seconds, t_s + rng.expovariate(1.0 / scenario.mean_s))
        found.append((t_s, end_s))
        t_s = end_s + rng.expovariate(1.0 / scenario.gap_s)
    return found


def _add(
    series: list[float], spell: Spell, height: float, within: list[float], rng: random.Random, *, gusts: bool = False
) -> None:
    begin, end = spell
    turn_s, on = begin + rng.expovariate(1 / 3.0), True
    for step in range(int(begin / DT_S), min(len(series), math.ceil(end / DT_S))):
        now_s = step * DT_S
        if gusts and now_s >= turn_s:
            on = not on
            turn_s = now_s + rng.expovariate(1 / (3.0 if on else 2.0))
        covered = (min(now_s + DT_S, end) - max(now_s, begin)) / DT_S
        series[step] += on * height * covered * within[step]
