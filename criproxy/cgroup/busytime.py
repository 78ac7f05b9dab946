"""The CPU time of the whole node, from what its CPUs were idle; it goes on through CPUs that come, go and jump."""

from collections.abc import Mapping
from typing import Final

_TOLERANCE_S: Final = 0.1
_TOLERANCE_RATIO: Final = 0.5
"""How far a CPU's idle time may seem to be off, and as a share of the time between two readings: the kernel counts
it in ticks, and the clock is read a moment later."""


class BusyTime:
    """A counter of busy CPU seconds, fed with the idle time of each CPU that is online.

    busy += sum over CPUs of (elapsed - idle since the last reading)

    The kernel measures idle time; what it adds up as busy it samples at its timer's ticks, which miss short bursts
    (measured: 0.4 of 1.1 cores seen). But idle time is no steady counter: it leaves out a CPU that is offline, may
    start anew when that comes back, and can jump when a virtual machine is resumed or moved. A CPU that was not in the
    last reading, or whose idle time has gone back or has grown by more than the time that passed, adds nothing.
    """

    def __init__(self) -> None:
        self._busy_s = self._shown_s = 0.0
        self._last: tuple[float, Mapping[int, float]] | None = None

    def add(self, t_s: float, idle_s: Mapping[int, float]) -> float:
        """The CPU seconds so far. `t_s`: CLOCK_MONOTONIC at the reading, which stands still in a suspended machine.

        When no CPU's time is known the counter starts anew from 0, by which the reader knows that there is no rate.
        """
        last, self._last = self._last, (t_s, idle_s)
        if last is None:
            return self._shown_s
        elapsed_s = t_s - last[0]
        off_s = _TOLERANCE_S + _TOLERANCE_RATIO * elapsed_s
        busy_s = [elapsed_s - (idle - last[1][cpu]) for cpu, idle in idle_s.items() if cpu in last[1]]
        sound_s = [busy for busy in busy_s if -off_s <= busy <= elapsed_s + off_s]
        if sound_s:
            self._busy_s += sum(sound_s)
            self._shown_s = max(self._shown_s, self._busy_s)  # what ticks round up in one reading, the next takes back
        else:
            self._busy_s = self._shown_s = 0.0
        return self._shown_s
