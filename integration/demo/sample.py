"""What the demo writes down while it plays: one row per sample, and the play's own constants."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment of the play. Cores are means since the sample before; None: not known yet, or no limit.

    `t_s` counts from the play's start. `online_cores` is what the online pod used, `wanted_cores` what its curve asked
    for in the same time; `node_cores` is the whole machine. `prediction_cores`, `limit_cores`, `throttled_ratio` (of
    all CPUs' time) and `reason` are what criproxy said at that moment.
    """

    t_s: float
    wanted_cores: float
    online_cores: float
    node_cores: float
    box_cores: float
    prediction_cores: float | None
    limit_cores: float | None
    throttled_ratio: float
    reason: str = ""

    @property
    def rest_cores(self) -> float:
        """All that ran outside the box: what criproxy calls online usage."""
        return max(self.node_cores - self.box_cores, 0.0)

    def is_open(self, capacity_cores: float) -> bool:
        """Whether the box may use all that online leaves, as nothing tells of harm."""
        return self.limit_cores is not None and self.limit_cores >= capacity_cores

    def reaches_into_box(self, capacity_cores: float, floor_cores: float) -> bool:
        """Whether the limit, neither open nor as low as can be, gives CPU to the box that the rest is using."""
        limit = self.limit_cores
        if limit is None or self.is_open(capacity_cores):
            return False
        return limit > 1.01 * floor_cores and limit + self.rest_cores > capacity_cores


@dataclass(frozen=True, slots=True)
class Setting:
    """What does not change during a play. `compression` is seconds of the trace in one second of the play.

    `floor_cores` is what criproxy leaves to the box however busy the machine is.
    """

    title: str
    seconds: float
    compression: float
    capacity_cores: float
    floor_cores: float
    half_life_s: float
    cgroup_version: int

    def day_clock(self, t_s: float) -> str:
        """The trace's own time, as hours and minutes since its first sample."""
        minutes = int(max(t_s, 0.0) * self.compression / 60)
        return f"{minutes // 60:02d}:{minutes % 60:02d}"


def clock(t_s: float) -> str:
    """Minutes and seconds of the play."""
    seconds = int(max(t_s, 0.0) + 0.5)
    return f"{seconds // 60}:{seconds % 60:02d}"
