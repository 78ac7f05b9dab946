"""Decayed histograms with growing buckets, whose one quantile is kept up to date in O(1) per sample.

A sample at time t weighs 2^((t - ref)/half_life), so that older ones fade against it without being touched. Uniform
decay moves no quantile: only a new sample does, and then mostly by a bucket or none, so a pointer follows it.
"""

import math
from array import array
from bisect import bisect_right
from typing import Final

from msgspec import Struct

MAX_EXPONENT: Final = 60
"""Half-lives after which all weights are scaled down, long before float64 overflows."""

_TIE: Final = 1.0 - 1e-12


class MassState(Struct, frozen=True):
    """A `DecayedMass` for a checkpoint. `mass` holds the buckets above zero as float64 in hex, hence bit-exact."""

    buckets: int
    half_life_s: float
    quantile: float
    ref_s: float
    last_s: float
    total: float
    below: float
    pointer: int
    mass: dict[int, str]


class DecayedMass:
    """Mass per bucket that halves each half-life, and the bucket that the quantile lies in.

    Invariant once there is a sample: `below` is the mass of the buckets under `pointer`, and
    below < quantile * total <= below + mass[pointer]. The quantile is above 0 and below 1.
    """

    __slots__ = ("below", "half_life_s", "last_s", "mass", "pointer", "quantile", "ref_s", "total")

    def __init__(self, buckets: int, half_life_s: float, quantile: float) -> None:
        self.mass = array("d", bytes(8 * buckets))
        self.half_life_s = half_life_s
        self.quantile = quantile
        self.ref_s = self.last_s = 0.0
        self.total = self.below = 0.0
        self.pointer = 0

    def add(self, t_s: float, bucket: int, mass: float) -> None:
        """Add `mass`, seen at `t_s`, to a bucket. An older sample weighs as little as it would by now."""
        if self.total <= 0.0:
            self.ref_s = self.last_s = t_s
        exponent = (t_s - self.ref_s) / self.half_life_s
        if exponent > MAX_EXPONENT:
            exponent -= self._shift(math.floor(exponent))
        self.last_s = max(self.last_s, t_s)
        grown = mass * 2.0**exponent
        self.mass[bucket] += grown
        self.total += grown
        if bucket < self.pointer:
            self.below += grown
        self._follow()

    def _shift(self, half_lives: int) -> int:
        self.ref_s += half_lives * self.half_life_s
        self.mass = array("d", (math.ldexp(m, -half_lives) for m in self.mass))
        self.total = sum(self.mass)
        self.below = sum(self.mass[: self.pointer])
        return half_lives

    def _follow(self) -> None:
        """Move the pointer to the first bucket k with cum_k >= quantile * total."""
        mass, pointer, below = self.mass, self.pointer, self.below
        target = self.quantile * self.total * _TIE
        while below + mass[pointer] < target:
            below += mass[pointer]
            pointer += 1
        while pointer and below >= target:
            pointer -= 1
            below -= mass[pointer]
        self.pointer, self.below = pointer, below

    def state(self) -> MassState:
        """For a checkpoint: `load` of it continues bit for bit."""
        return MassState(
            buckets=len(self.mass),
            half_life_s=self.half_life_s,
            quantile=self.quantile,
            ref_s=self.ref_s,
            last_s=self.last_s,
            total=self.total,
            below=self.below,
            pointer=self.pointer,
            mass={k: m.hex() for k, m in enumerate(self.mass) if m > 0.0},
        )

    def load(self, state: MassState, shift_s: float) -> None:
        """Take over a state whose clock was `shift_s` behind ours. Another quantile is fine: its place is sought.

        Raises ValueError, changing nothing, when the state does not fit (half-life, buckets) or contradicts itself.
        """
        if (state.buckets, state.half_life_s) != (len(self.mass), self.half_life_s):
            raise ValueError(
                f"made with {state.buckets} buckets and a half-life of {state.half_life_s:g} s, "
                f"now {len(self.mass)} and {self.half_life_s:g} s"
            )
        mass = array("d", bytes(8 * state.buckets))
        for bucket, text in state.mass.items():
            if not 0 <= bucket < state.buckets:
                raise ValueError(f"bucket {bucket} of {state.buckets}")
            try:
                mass[bucket] = float.fromhex(text)
            except OverflowError as error:
                raise ValueError(f"bucket {bucket} has {text[:40]!r}, more than any number") from error
        pointer, below = (state.pointer, state.below) if state.quantile == self.quantile else (0, 0.0)
        sane = (
            all(0.0 <= m < math.inf for m in mass)
            and math.isfinite(state.ref_s + state.last_s + shift_s)
            and 0 <= pointer < state.buckets
            and math.isclose(sum(mass), state.total, rel_tol=1e-9)
            and math.isclose(sum(mass[:pointer]), below, rel_tol=1e-9, abs_tol=1e-9 * state.total)
        )
        if not sane:
            raise ValueError("its masses, total and quantile contradict each other")
        self.mass, self.pointer, self.below = mass, pointer, below
        self.total = state.total
        self.ref_s, self.last_s = state.ref_s + shift_s, state.last_s + shift_s
        self._follow()


class Buckets:
    """Buckets over [0, inf), each `ratio` times as wide as the one below; a table that many histograms share.

    edge(k) = first * (ratio^k - 1) / (ratio - 1). The last bucket is unbounded; its upper edge is its start.
    """

    __slots__ = ("count", "edges", "uppers", "widths")

    def __init__(self, first: float, largest: float, ratio: float = 1.05) -> None:
        self.count = math.ceil(math.log(largest * (ratio - 1.0) / first + 1.0) / math.log(ratio)) + 1
        self.edges = tuple(first * (ratio**k - 1.0) / (ratio - 1.0) for k in range(self.count))
        self.uppers = (*self.edges[1:], self.edges[-1])
        self.widths = tuple(first * ratio**k for k in range(self.count))

    def index(self, value: float) -> int:
        """The bucket that holds `value`; below 0 counts as 0. Exact at the edges, unlike a logarithm."""
        return bisect_right(self.edges, value) - 1 if value > 0.0 else 0


CPU_BUCKETS: Final = Buckets(first=0.01, largest=1000.0)
"""For cores: 10 millicores to 1000 cores."""

MEMORY_BUCKETS: Final = Buckets(first=10.0 * 2**20, largest=4.0 * 2**40)
"""For bytes: 10 MiB to 4 TiB."""


class LevelHistogram:
    """How high a usage runs: the percentile of decayed samples by area, a bucket's weight times its width.

    So it rises fast and falls slowly.
    """

    __slots__ = ("buckets", "decayed")

    def __init__(self, buckets: Buckets, half_life_s: float, percentile_ratio: float) -> None:
        self.buckets = buckets
        self.decayed = DecayedMass(buckets.count, half_life_s, percentile_ratio)

    def add(self, t_s: float, value: float, weight: float = 1.0) -> None:
        bucket = bisect_right(self.buckets.edges, value) - 1 if value > 0.0 else 0
        self.decayed.add(t_s, bucket, weight * self.buckets.widths[bucket])

    def percentile(self) -> float | None:
        """The percentile, interpolated within its bucket; None without a sample, which is not 0.

        edge(k) + (quantile * total - cum_{k-1}) / mass_k * (edge(k+1) - edge(k))
        """
        decayed = self.decayed
        if decayed.total <= 0.0:
            return None
        k = decayed.pointer
        share = (decayed.quantile * decayed.total - decayed.below) / decayed.mass[k]
        start = self.buckets.edges[k]
        return start + min(max(share, 0.0), 1.0) * (self.buckets.uppers[k] - start)


_ERROR_SIDE: Final = 80
_ERROR_RATIO: Final = 1.08
_ERROR_EDGES: Final = tuple(0.05 * (_ERROR_RATIO**j - 1.0) / (_ERROR_RATIO - 1.0) for j in range(_ERROR_SIDE + 1))
_ERROR_VALUES: Final = (*(-edge for edge in reversed(_ERROR_EDGES[:-1])), *_ERROR_EDGES[1:])


class ErrorHistogram:
    """How far a forecast was off: decayed signed errors and their weight quantile.

    80 growing buckets on each side of 0; a bucket's value is always its conservative (upper) edge.
    """

    __slots__ = ("decayed",)

    def __init__(self, half_life_s: float, quantile: float) -> None:
        self.decayed = DecayedMass(2 * _ERROR_SIDE, half_life_s, quantile)

    @staticmethod
    def index(error: float) -> int:
        """The bucket of a signed error: 80 + j from 0 upwards, 79 - j below 0."""
        if error >= 0.0:
            return _ERROR_SIDE + bisect_right(_ERROR_EDGES, error, 1, _ERROR_SIDE) - 1
        return _ERROR_SIDE - bisect_right(_ERROR_EDGES, -error, 1, _ERROR_SIDE)

    def add(self, t_s: float, error: float) -> None:
        self.decayed.add(t_s, self.index(error), 1.0)

    def quantile(self) -> float | None:
        """The error that only 1 - quantile of the past exceeded; None without any."""
        return _ERROR_VALUES[self.decayed.pointer] if self.decayed.total > 0.0 else None
