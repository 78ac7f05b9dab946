"""The guard: looks at the node many times a second, and squeezes the box at once when online wants CPU back.

It only ever lowers the quota. What it gives back, the ticks give, which ask for its ceiling.
"""

from collections.abc import Callable
from typing import Final, Protocol

import structlog
from msgspec import Struct

from criproxy.control.clock import Clock
from criproxy.control.guardlaw import GuardSettings, GuardState, GuardStatus, Look, Outlook, watch
from criproxy.model import GuardCeiling

_HURRY: Final = 0.5
"""After an alarm the next looks come after this share of the interval: the first has seen the step's beginning only."""

_HURRIED_LOOKS: Final = 3

_SHARE: Final = 0.01
"""Looks take so much of a core at most, on average. On cgroup v2 each read of a CPU counter first sums up all cgroups
below it that ran since the last: 0.3 ms per thousand of them and CPU. Source: kernel/cgroup/rstat.c, css_rstat_flush.
"""

_RAREST_S: Final = 0.5
"""However dear a look is, the next comes by then."""

_AT_ONCE_S: Final = 0.002
_TRIES: Final = 3
"""Counters of node and box that were read further apart tell of a step that never was: what the box used between."""

_IMPOSSIBLE: Final = 2.0
"""A look that says so many times the capacity is none: a counter has jumped, as when a virtual machine is resumed."""


class Node(Protocol):
    """What the guard looks at and acts on (`criproxy.cgroup.box`)."""

    def cpu_times(self) -> tuple[float, float] | None:
        """CPU seconds of the node and of the box, read without blocking; None: there is no box. Raises OSError."""
        ...

    async def squeeze(self, cores: float) -> object:
        """Lower the box's CPU limit to `cores`; never raise it."""
        ...


class Pressure(Protocol):
    """The kernel's reports that online waits for CPU (`criproxy.cgroup.pressure`)."""

    @property
    def note(self) -> str: ...

    def follow(self) -> None:
        """Listen where the box is now; cheap, to be called often."""
        ...

    def take(self) -> bool:
        """Whether a report has come since the last call."""
        ...

    def close(self) -> None: ...


class Observer(Protocol):
    """Who is told of each squeeze that was made, and of each that proved needless."""

    def guard_squeezed(self) -> None: ...

    def guard_false_alarm(self) -> None: ...


class Settings(Struct, frozen=True):
    """`law` None: switched off."""

    law: GuardSettings | None
    interval_s: float = 0.05


class Guard:
    """`outlook` is the last tick's, None before the first."""

    def __init__(
        self,
        node: Node,
        pressure: Pressure,
        outlook: Callable[[], Outlook | None],
        clock: Clock,
        settings: Settings,
        *,
        observer: Observer,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._node = node
        self._pressure = pressure
        self._outlook = outlook
        self._clock = clock
        self._settings = settings
        self._observer = observer
        self._log = log
        self._state = GuardState()
        self._last: tuple[float, float, float] | None = None
        self._failures = self._hurried = 0
        self._costs_s = (0.0, 0.0)
        """CPU time of the last two looks: the lesser counts, as one alone may have met anything."""
        self._trouble = False
        self._noted = ""

    def ceiling(self) -> GuardCeiling | None:
        """What the next decision has to keep to; None: the guard is at rest."""
        return self._state.ceiling

    def status(self) -> GuardStatus:
        state, enabled = self._state, self._settings.law is not None
        return GuardStatus(
            enabled=enabled,
            ceiling_cores=state.ceiling.cores if state.ceiling else None,
            reason=state.ceiling.reason if state.ceiling else "",
            squeezes=state.squeezes,
            false_alarms=state.false_alarms,
            failures=self._failures,
            pressure=self._pressure.note if enabled else "",
        )

    def replace_settings(self, settings: Settings) -> None:
        """From the next look on."""
        self._settings = settings

    async def run(self) -> None:
        """Look at each interval until cancelled, and squeeze when a look calls for it."""
        try:
            while True:
                await self._clock.repeat(self._look)
                await self._squeeze()
                await self._clock.sleep(self._pause_s())
        finally:
            self._pressure.close()

    def _look(self) -> float | None:
        """In how many s to look again; None: the box must be squeezed. Never raises."""
        self._hurried = max(0, self._hurried - 1)
        before = self._state.squeezes
        try:
            self._see()
        except Exception as error:
            self._failed(error)
        return None if self._state.squeezes > before else self._pause_s()

    def _pause_s(self) -> float:
        interval_s = self._settings.interval_s
        if self._hurried:
            return interval_s * _HURRY
        return max(interval_s, min(min(self._costs_s) / _SHARE, _RAREST_S))

    async def _squeeze(self) -> None:
        """Never raises, but for what cancels it."""
        if self._state.ceiling is None:
            return
        self._hurried = _HURRIED_LOOKS
        try:
            await self._node.squeeze(self._state.ceiling.cores)
            self._observer.guard_squeezed()
        except Exception as error:
            self._failed(error)
        else:
            self._trouble = False

    def _see(self) -> None:
        law, outlook = self._settings.law, self._outlook()
        if law is None or outlook is None:
            self._rest()
            return
        began_s = self._clock.thread_cpu_s()
        read = self._read()
        self._costs_s = self._costs_s[1], self._clock.thread_cpu_s() - began_s
        if read is None:
            return
        t_s, times = read
        if times is None:
            self._rest()
            return
        last, (node_s, box_s) = self._last, times
        self._last = t_s, node_s, box_s
        self._pressure.follow()
        if self._pressure.note != self._noted:
            self._noted = self._pressure.note
            self._log.info("guard_pressure", note=self._noted)
        # A counter that has gone back is another cgroup's.
        if last is None or t_s <= last[0] or node_s < last[1] or box_s < last[2]:
            return
        seconds, capacity = t_s - last[0], outlook.capacity_cores
        node_cores, box_cores = (node_s - last[1]) / seconds, (box_s - last[2]) / seconds
        if max(node_cores, box_cores) > _IMPOSSIBLE * capacity:
            return
        online_cores = min(max(0.0, node_cores - box_cores), capacity)
        look = Look(t_s, seconds, online_cores, box_cores, self._pressure.take())
        before, self._state = self._state, watch(look, outlook, self._state, law)
        if self._state.false_alarms > before.false_alarms:
            self._observer.guard_false_alarm()

    def _read(self) -> tuple[float, tuple[float, float] | None] | None:
        """When the counters were read, and what they said; None: they could not be read at one moment."""
        for _ in range(_TRIES):
            from_s = self._clock.boottime_s()
            times = self._node.cpu_times()
            t_s = self._clock.boottime_s()
            if t_s - from_s <= _AT_ONCE_S:
                return t_s, times
        return None

    def _rest(self) -> None:
        """Without a box, without a first tick or switched off: nothing is held."""
        if self._last is not None or self._state.ceiling is not None:
            self._last = None
            self._state = GuardState(squeezes=self._state.squeezes, false_alarms=self._state.false_alarms)
            self._pressure.close()

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        if not self._trouble:
            self._trouble = True
            self._log.error("guard_failed", error=f"{type(error).__name__}: {error}", exc_info=error)
