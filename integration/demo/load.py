"""What runs in the demo's containers: busybox shell loops that use CPU, along a curve or without end. Pure.

The online loops keep time by themselves: each is busy for its share of every period, by the wall clock, whether it gets
the CPU or not. So what they use falls short of what they want exactly when something takes the CPU from them.
"""

import math
from collections.abc import Sequence
from typing import Final

from integration.demo.curve import Play

START_FILE: Final = "/tmp/start"
"""The online container waits for this file: its content is the play's start, in µs since 1970."""
PERIOD_US: Final = 100_000
_STEP_S: Final = 0.1
_MOST_STEPS: Final = 10_000

# Each worker: for every step of the curve, busy for its permille of each period, asleep for the rest. Sleeping is a
# read, with a timeout, from a pipe that nobody writes to: no fork. The workers' periods are staggered.
_ONLINE: Final = r"""
busybox mkfifo /tmp/never; exec 3<>/tmp/never
until [ -s $START ]; do read -t 0.05 -u 3 _; done
read start <$START
work() {
  period=$((start + $1 * PERIOD / WORKERS)) until=$start
  for duty in $DUTIES; do
    until=$((until + STEP))
    while [ $period -lt $until ]; do
      stop=$((period + duty * PERIOD / 1000)) period=$((period + PERIOD))
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

_OFFLINE: Final = r"""
n=1; while [ $n -lt $WORKERS ]; do (while :; do :; done) & n=$((n + 1)); done
while :; do :; done
"""


def online_command(play: Play, cores: int) -> tuple[str, ...]:
    """The online container's command: one worker per core, each with its part of the curve."""
    step_s = max(_STEP_S, math.ceil(play.seconds / _MOST_STEPS / _STEP_S) * _STEP_S)
    settings = {
        "START": START_FILE,
        "WORKERS": str(cores),
        "PERIOD": str(PERIOD_US),
        "STEP": str(int(step_s * 1e6)),
        "DUTIES": " ".join(map(str, duties(play.steps(step_s), cores))),
    }
    head = "".join(f"{name}='{value}'\n" for name, value in settings.items())
    return ("sh", "-c", head + _ONLINE)


def duties(wanted_cores: Sequence[float], cores: int) -> tuple[int, ...]:
    """How busy each of `cores` workers is, in permille, per step, for `wanted_cores` of all together."""
    return tuple(min(max(round(1000 * wanted / cores), 0), 1000) for wanted in wanted_cores)


def offline_command(cores: int) -> tuple[str, ...]:
    """An offline container's command: a busy loop per core."""
    return ("sh", "-c", f"WORKERS={cores}\n{_OFFLINE}")
