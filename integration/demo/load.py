"""A day of usage, and the busybox shell loops that use CPU along it in the online container.

The loops keep time by themselves: each is busy for its share of every period, by the wall clock, whether it gets the
CPU or not. So what they use falls short of what they want exactly when something takes the CPU from them.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.readers import load
from integration.demo import DemoError

DAY: Final = Path(__file__).with_name("day.csv")
START_FILE: Final = "/tmp/start"
"""The online container waits for this file: its content is the play's start, in µs since 1970."""

_DAY_S: Final = 86400.0
_ANY_UNIT: Final = "1e300"
_MOST_STEPS: Final = 10_000

# Each worker: for every step of the curve, busy for its permille of each period, asleep for the rest. Sleeping is a
# read, with a timeout, from a pipe that nobody writes to: no fork. The workers' periods are staggered.
_ONLINE: Final = r"""
busybox mkfifo /tmp/never; exec 3<>/tmp/never
until [ -s $START ]; do read -t 0.05 -u 3 _; done
read start <$START
work() {
  period=$((start + $1 * 100000 / WORKERS)) until=$start
  for duty in $DUTIES; do
    until=$((until + STEP))
    while [ $period -lt $until ]; do
      stop=$((period + duty * 100)) period=$((period + 100000))
      while now=${EPOCHREALTIME/./}; [ $now -lt $stop ]; do :; done
      rest=$((period - now))
      if [ $rest -gt 0 ]; then rest=00000$rest; read -t 0.${rest:$((${#rest} - 6))} -u 3 _; fi
    done
  done
}
n=0; while [ $n -lt $WORKERS ]; do work $n & n=$((n + 1)); done
wait
exec sleep 100000000
"""


@dataclass(frozen=True, slots=True)
class Play:
    """Usage as it is played here: (seconds of the trace, usage) in `seconds`, its peak at `peak_cores`."""

    points: tuple[tuple[float, float], ...]
    seconds: float
    peak_cores: float

    @property
    def compression(self) -> float:
        """Seconds of the trace in one second of the play."""
        return self.points[-1][0] / self.seconds

    def wanted_cores(self, t_s: float) -> float:
        """What the online pod wants `t_s` seconds into the play, linear between the points."""
        at_s = min(max(t_s, 0.0) * self.compression, self.points[-1][0])
        after = min(bisect_right(self.points, at_s, key=lambda point: point[0]), len(self.points) - 1)
        (t0, u0), (t1, u1) = self.points[after - 1], self.points[after]
        return (u0 + (u1 - u0) * (at_s - t0) / (t1 - t0)) / max(u for _, u in self.points) * self.peak_cores


def read_play(trace: Path, series: str | None, seconds: float, peak_cores: float) -> Play:
    """The first day of one series of a file, the first one's by default. Raises DemoError."""
    try:
        traces, findings = load([str(trace)], _ANY_UNIT, None)
    except SimulateError as error:
        raise DemoError(str(error)) from error
    found = {one.id: one for one in traces}
    if series is not None and series not in found:
        raise DemoError(f"{trace} has no series {series!r}: choose --trace-id from those that it has ({list(found)})")
    one = found[series] if series is not None else traces[0]
    start_s = one.times_s[0]
    points = tuple((t - start_s, u) for t, u in zip(one.times_s, one.usages, strict=True) if t - start_s <= _DAY_S)
    if len(points) < 2 or max(u for _, u in points) <= 0:
        flaws = "; ".join(findings.lines()) or "choose another with --trace-id"
        raise DemoError(f"{trace}: series {one.id!r} has no two samples, or no usage, on its first day: {flaws}")
    return Play(points, seconds, peak_cores)


def online_command(play: Play, cores: int) -> tuple[str, ...]:
    """The online container's command: one worker per core, each with its part of the curve."""
    step_s = max(0.1, math.ceil(play.seconds / _MOST_STEPS / 0.1) * 0.1)
    middles = [(k + 0.5) * step_s for k in range(math.ceil(play.seconds / step_s - 1e-9))]
    duties = " ".join(str(min(round(1000 * play.wanted_cores(t_s) / cores), 1000)) for t_s in middles)
    head = f"START={START_FILE} WORKERS={cores} STEP={int(step_s * 1e6)} DUTIES='{duties}'"
    return ("sh", "-c", head + _ONLINE)
