"""A record of one node's online usage."""

from array import array
from functools import cached_property
from itertools import pairwise
from statistics import median

from msgspec import Struct


class Trace(Struct, frozen=True, dict=True):
    """Samples of one resource of one node: at `times_s[i]` online used `usages[i]`, of `capacity` (one unit for both).

    Times rise strictly; usages lie within 0 and capacity.
    """

    id: str
    family: str
    capacity: float
    times_s: "array[float]"
    usages: "array[float]"

    @cached_property
    def step_s(self) -> float:
        """The usual time from one sample to the next; 0 with fewer than two samples."""
        times = self.times_s
        return median(later - earlier for earlier, later in pairwise(times)) if len(times) > 1 else 0.0

    @property
    def span_s(self) -> float:
        return self.times_s[-1] - self.times_s[0] if self.times_s else 0.0
