"""The calibrated predictor by its definition: each value is recomputed from all raw samples, nothing is incremental.

Slow and plain on purpose; `criproxy.control.predictor` has to agree with it.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass, field

FIRST, RATIO, COUNT = 0.01, 1.05, 176
EDGES = [FIRST * (RATIO**k - 1) / (RATIO - 1) for k in range(COUNT)]
ERROR_EDGES = [0.05 * (1.08**j - 1) / (1.08 - 1) for j in range(81)]


def area_percentile(samples: list[tuple[float, float]], now: float, half_life_s: float, q: float) -> float:
    mass = [0.0] * COUNT
    for t, value in samples:
        k = bisect_right(EDGES, value) - 1
        mass[k] += 2.0 ** ((t - now) / half_life_s) * FIRST * RATIO**k
    target, below = q * math.fsum(mass), 0.0
    for k, m in enumerate(mass):
        if below + m >= target * (1 - 1e-12):
            upper = EDGES[k + 1] if k + 1 < COUNT else EDGES[k]
            return EDGES[k] + min(max((target - below) / m, 0.0), 1.0) * (upper - EDGES[k])
        below += m
    raise AssertionError("no sample")


def error_quantile(errors: list[tuple[float, float]], now: float, q: float) -> float | None:
    values = []
    for t, z in errors:
        j = min(bisect_right(ERROR_EDGES, abs(z)) - 1, 79)
        values.append((ERROR_EDGES[j + 1] if z >= 0 else -ERROR_EDGES[j], 2.0 ** ((t - now) / (3 * 86400.0))))
    values.sort()
    total, seen = math.fsum(w for _, w in values), 0.0
    for value, weight in values:
        seen += weight
        if seen >= q * total * (1 - 1e-12):
            return value
    return None


@dataclass
class Reference:
    alpha: float
    horizon: float
    cold_probes: int
    samples: list[tuple[float, float]] = field(default_factory=list)
    probes: list[dict] = field(default_factory=list)
    errors: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {"A": [], "B": [], "S": []})
    losses: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {"A": [], "B": [], "S": []})
    slots: dict[int, list[float]] = field(default_factory=dict)
    slot: tuple[int, float] | None = None
    last_probe: float = -math.inf
    matured: int = 0
    previous: float | None = None

    def observe(self, t: float, wall: float, u: float, capacity: float) -> float:
        u = max(u, 0.0)
        for probe in self.probes:
            if t <= probe["t"] + self.horizon:
                probe["y"] = max(probe["y"], u)
        ripe = [p for p in self.probes if p["t"] + self.horizon <= t]
        self.probes = [p for p in self.probes if p["t"] + self.horizon > t]
        for probe in ripe:
            if probe["y"] < 0:
                continue
            self.matured += 1
            for x, (base, scale, forecast) in probe["of"].items():
                self.errors[x].append((t, (probe["y"] - base) / scale))
                over = probe["y"] - min(forecast, capacity)
                loss = ((1 - self.alpha) * over if over > 0 else -self.alpha * over) / capacity
                self.losses[x].append((t, loss))
        self.samples.append((t, u))
        level = area_percentile(self.samples, t, 900.0, 0.9)
        volatility = 0.0
        for (t0, u0), (t1, u1) in zip(self.samples, self.samples[1:], strict=False):
            volatility += (1 - 2 ** (-(t1 - t0) / 1800)) * (abs(u1 - u0) - volatility)
        peak = self._day(wall, u)
        of = {
            "A": (level, 0.05 * capacity),
            "B": (u, 0.01 * capacity + volatility),
            "S": (max(level, peak), 0.05 * capacity),
        }
        forecasts, loss = {}, {}
        for x, (base, scale) in of.items():
            margin = error_quantile(self.errors[x], t, 1 - self.alpha)
            forecasts[x] = capacity if margin is None else base + scale * margin
            loss[x] = math.fsum(w * 2 ** ((at - t) / 43200) for at, w in self.losses[x])
        self.spoke = min("ABS", key=lambda x: (loss[x], x))
        p = forecasts[self.spoke]
        if len(self.samples) <= 3:
            p = capacity
        elif self.matured < self.cold_probes:
            p = max(p, 1.25 * level, u + 0.1 * capacity)
        p = max(p, u)
        if self.previous is not None:
            p = max(p, self.previous * 2 ** (-(t - self.samples[-2][0]) / 900))
        self.previous = min(p, capacity)
        if t - self.last_probe >= self.horizon / 12:
            self.last_probe = t
            self.probes.append({"t": t, "y": -1.0, "of": {x: (*of[x], forecasts[x]) for x in of}})
        return self.previous

    def _day(self, wall: float, u: float) -> float:
        slot = math.floor(wall % 86400 / 1800)
        if self.slot is not None and self.slot[0] == slot:
            self.slot = (slot, max(self.slot[1], u))
        else:
            if self.slot is not None:
                self.slots.setdefault(self.slot[0], []).append(self.slot[1])
            self.slot = (slot, u)
        peak = 0.0
        for k in range(math.floor(wall / 1800), math.floor((wall + self.horizon) / 1800) + 1):
            days = self.slots.get(k % 48, [])
            weights = [2 ** (-(len(days) - 1 - i) / 2) for i in range(len(days))]
            if days:
                peak = max(peak, math.fsum(w * m for w, m in zip(weights, days, strict=True)) / math.fsum(weights))
        return peak
