"""What is counted while a law is replayed, and what that comes to. Pure: sums of several parts of a cluster add up."""

from typing import Any, Final

from msgspec import Struct, field

SLOWDOWN_RATIO: Final = 1.002
"""A slowdown is counted in steps of 0.2 %."""

SLOWDOWN_STEPS: Final = 5000
"""Up to a slowdown of 20,000."""

WAIT_STEP_S: Final = 60.0
WAIT_STEPS: Final = 60_000
"""Up to 41 days."""


class Counted(Struct):
    """Sums over the cells that are counted, but for `course` (per cell of the whole record). Core-seconds, pod-seconds
    and node-seconds; slowdowns and waits as counts per step.
    """

    capacity: float = 0.0
    online: float = 0.0
    free: float = 0.0
    promised: float = 0.0
    placed: float = 0.0
    pods_s: float = 0.0
    below_half_s: float = 0.0
    below_09_s: float = 0.0
    nodes_s: float = 0.0
    squeezed_s: float = 0.0
    squeezes: int = 0
    """How often a node's pods fell below full speed."""
    samples: int = 0
    broken_cpu: int = 0
    broken_memory: int = 0
    evictions: int = 0
    starved: int = 0
    """Those evictions that were to relieve who starves, not memory."""
    lost: float = 0.0
    ended: int = 0
    reports: int = 0
    waiting: int = 0
    waiting_work_h: float = 0.0
    slowdowns: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    course: list[tuple[float, float, float, float]] = field(default_factory=list)
    """Per cell, in cores: capacity and online's use of the nodes on record, what is published, what offline uses."""

    def add(self, other: "Counted") -> None:
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if not isinstance(mine, list):
                setattr(self, name, mine + theirs)
            elif not mine:
                setattr(self, name, list(theirs))
            elif name == "course":
                self.course = [
                    (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3])
                    for a, b in zip(self.course, other.course, strict=True)
                ]
            else:
                setattr(self, name, [a + b for a, b in zip(mine, theirs, strict=True)])

    def figures(self, *, finite: bool) -> dict[str, Any]:
        """By the names that the JSON file has; None where nothing defines it. Ratios lie within 0 and 1."""
        slowdown = {
            f"slowdown_p{p}": None if (k := _step(self.slowdowns, p / 100)) is None else round(SLOWDOWN_RATIO**k, 4)
            for p in (50, 95, 99)
        }
        wait = {
            f"wait_p{p}_s": None if not finite or (k := _step(self.waits, p / 100)) is None else k * WAIT_STEP_S
            for p in (50, 95)
        }
        return {
            "placed_core_hours": self.placed / 3600.0,
            "promised_core_hours": self.promised / 3600.0,
            "free_core_hours": self.free / 3600.0,
            "placed_ratio": _ratio(self.placed, self.free),
            "utilisation": _ratio(self.online + self.placed, self.capacity),
            "utilisation_online": _ratio(self.online, self.capacity),
            "below_half": _ratio(self.below_half_s, self.pods_s),
            "below_09": _ratio(self.below_09_s, self.pods_s),
            "squeezed": _ratio(self.squeezed_s, self.nodes_s),
            "squeezes": self.squeezes,
            "broken_cpu": self.broken_cpu,
            "broken_memory": self.broken_memory,
            "online_samples": self.samples,
            "evictions": self.evictions,
            "evictions_starved": self.starved,
            "lost_core_hours": self.lost / 3600.0,
            "jobs_ended": self.ended,
            **slowdown,
            "waiting_jobs": self.waiting if finite else None,
            "waiting_core_hours": self.waiting_work_h if finite else None,
            **wait,
            "reports_per_node_hour": _ratio(self.reports * 3600.0, self.nodes_s),
        }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0.0 else None


def _step(counts: list[int], quantile: float) -> int | None:
    """The step that holds the quantile; None where nothing was counted."""
    total, below = sum(counts), 0
    for step, count in enumerate(counts):
        below += count
        if count and below >= quantile * total:
            return step
    return None
