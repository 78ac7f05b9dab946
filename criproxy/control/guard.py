"""The guard: squeezes the box at once when online wants CPU back between two ticks of the control loop.

How it works
------------
The control loop predicts and decides once a second, and a burst of online's comes between two decisions. The guard
looks more often, and does one thing: it lowers the box's CPU limit. It never raises it. What it leaves to the box is
its *ceiling*, to which each decision keeps; when the ceiling rises or goes, the next decision gives the CPU back.

    state     what ends it
    resting   a tick of the control loop, a pod that starts, new settings, a report that online waits: then it takes one
              look
    watching  no box or no pod in it, no decision yet, or switched off: then it rests. So it does where nothing is held
              back and no use of online's is an alarm, as the box is bounded by evidence
    alarmed   the squeeze has been written, or has failed: then it watches, for `_HURRIED_LOOKS` looks at a faster pace

Resting takes no timer at all: a node without offline pods pays nothing for the guard, and one whose box is open pays
for a look with each tick. While watching, each look reads two CPU counters, the node's and the box's; online's usage is
their difference. `guardlaw.watch` makes the next state of that. When it has counted another squeeze, the box is
squeezed to its ceiling.

What always holds:

- The box is never squeezed below its configured floor, and a ceiling is always below the control loop's own limit.
- Some looks show nothing, and change nothing: the first after a rest, and those whose counters went back (they are
  another cgroup's), were read too far apart, or say more than the machine can do (a virtual machine was resumed).
- A failure to read or to write is counted, logged once until a squeeze succeeds, and ends nothing: the next look tries
  again, and the control loop bounds the box meanwhile.
- Looks take `_CPU_SHARE` of a core at most, on average, however dear a read is; but one comes at least each
  `_RAREST_S`.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

import structlog
from msgspec import Struct, field

from criproxy.concurrency.clock import Clock
from criproxy.control.guardlaw import GuardLaw, GuardState, GuardStatus, Outlook, UsageSample, acquitted, watch
from criproxy.model import UNLIMITED, Counters, GuardCeiling
from criproxy.model.shown import Counter, Gauge, Shows

_INTERVAL_S: Final = 0.05
_HURRY: Final = 0.5
"""After an alarm the next looks come after this share of the interval: the first has seen the step's beginning only."""

_HURRIED_LOOKS: Final = 3

_CPU_SHARE: Final = 0.01
"""On cgroup v2 each read of a CPU counter first sums up all cgroups below it that ran since the last: 0.3 ms per
thousand of them and CPU. Source: kernel/cgroup/rstat.c, css_rstat_flush.
"""

_RAREST_S: Final = 0.5

_AT_ONCE_S: Final = 0.002
_APART_RATIO: Final = 0.04
"""Of the time that they are measured over: as 2 ms of the usual 50. Where many cgroups make each read dear, looks are
rarer, by their cost.
"""
_TRIES: Final = 3
"""Counters of node and box that were read further apart show a step that never was: what the box used between."""

_IMPOSSIBLE: Final = 2.0
"""Times the capacity. What says more is no measurement: a counter has jumped, as when a virtual machine is resumed."""


class GuardedBox(Protocol):
    """What the guard looks at and acts on (`criproxy.cgroup.box`)."""

    def cpu_times(self) -> tuple[float, float] | None:
        """CPU seconds of the node and of the box, read without blocking; None: there is no box, or no pod in it.

        Raises OSError.
        """

    async def squeeze(self, cores: float) -> object:
        """Lower the box's CPU limit to `cores`; never raise it."""


class PressureReports(Protocol):
    """The kernel's reports that online waits for CPU (`criproxy.cgroup.pressure`)."""

    @property
    def note(self) -> str: ...

    def follow(self, now_s: float, on_report: Callable[[], None]) -> None:
        """Listen where the box is now; cheap, to be called often. `now_s`: a time that only grows. Each report
        calls `on_report`, which must not block.
        """

    def take(self) -> bool:
        """Whether a report has come since the last call."""

    def close(self) -> None: ...


_CounterReading = tuple[float, float, float]
"""When, and both counters at that moment: CPU seconds of the node and of the box."""


class CpuGuard(Shows, Struct, eq=False):
    """See the module. `run` is its task; everything else is safe to call at any time. `law` None: it is switched off.

    `_costs_s`: CPU time of the last two looks. The lesser counts, as one alone may have met anything.
    """

    GAUGES = (
        Gauge(
            "guard_ceiling_cores",
            "What the guard leaves to the box; +Inf: it is at rest",
            lambda guard: UNLIMITED if (ceiling := guard.ceiling()) is None else ceiling.cores,
        ),
    )
    COUNTERS = (
        Counter("guard_squeezes", "Times that the guard has lowered the box's CPU limit"),
        Counter("guard_false_alarms", "Squeezes that proved needless"),
    )

    box: GuardedBox
    pressure: PressureReports
    clock: Clock
    law: GuardLaw | None
    counters: Counters
    log: structlog.typing.FilteringBoundLogger
    _outlook: Outlook | None = None
    _awake: asyncio.Event = field(default_factory=asyncio.Event)
    _watching: bool = False
    _state: GuardState = GuardState()
    _last: _CounterReading | None = None
    _failures: int = 0
    _hurried: int = 0
    _costs_s: tuple[float, float] = (0.0, 0.0)
    _failing: bool = False
    _innocent: bool = False
    _noted: str = ""

    def configure(self, law: GuardLaw | None) -> None:
        """Go by another law from the next look on."""
        self.law = law
        self.wake()

    def decided(self, outlook: Outlook) -> None:
        """The control loop has made a decision, from this."""
        self._outlook = outlook
        self.wake()

    def wake(self) -> None:
        """There may be something to guard: a guard that rests takes a look."""
        self._awake.set()

    def acquit(self, innocent: bool) -> None:
        """Whether it is known that the box is not what online waits for: then reports that it waits mean nothing."""
        self._innocent = innocent
        if innocent:
            before, self._state = self._state, acquitted(self._state)
            self._count_false_alarms(before)

    def ceiling(self) -> GuardCeiling | None:
        """What the next decision has to keep to; None: nothing restricts it."""
        return self._state.ceiling

    def status(self) -> GuardStatus:
        state, enabled = self._state, self.law is not None
        return GuardStatus(
            enabled=enabled,
            ceiling_cores=state.ceiling.cores if state.ceiling else None,
            reason=state.ceiling.reason if state.ceiling else "",
            squeezes=state.squeezes,
            false_alarms=state.false_alarms,
            failures=self._failures,
            pressure=self.pressure.note if enabled else "",
        )

    def section(self) -> Mapping[str, Any]:
        return {"guard": self.status()}

    def rows(self) -> Iterator[tuple[str, ...]]:
        now = self.status()
        if not now.enabled:
            yield "guard", "off"
            return
        state = "at rest" if now.ceiling_cores is None else f"{now.ceiling_cores:.2f} cores at most ({now.reason})"
        counts = f"squeezes {now.squeezes}, needless {now.false_alarms}, failures {now.failures}"
        yield "guard", f"{state} ({counts})", f"pressure: {now.pressure}"

    async def run(self) -> None:
        """Guard the box until cancelled."""
        try:
            while True:
                await self._awake.wait()
                self._awake.clear()
                self._watching = True
                while self._watching:
                    await self.clock.repeat(self._look)
                    if self._watching:
                        await self._squeeze()
                        await self.clock.sleep(self._pause_s())
        finally:
            self.pressure.close()

    def _look(self) -> float | None:
        """In how many s to look again; None: the box must be squeezed, or there is nothing to watch. Never raises."""
        self._hurried = max(0, self._hurried - 1)
        before = self._state.squeezes
        try:
            self._judge()
        except Exception as error:
            self._failed(error)
        if self._outlook is not None and self._outlook.expects_all and not self._state.is_holding:
            self._watching = False
        return self._pause_s() if self._watching and self._state.squeezes == before else None

    def _pause_s(self) -> float:
        if self._hurried:
            return _INTERVAL_S * _HURRY
        return max(_INTERVAL_S, min(min(self._costs_s) / _CPU_SHARE, _RAREST_S))

    async def _squeeze(self) -> None:
        """Never raises, but for what cancels it."""
        if self._state.ceiling is None:
            return
        self._hurried = _HURRIED_LOOKS
        try:
            await self.box.squeeze(self._state.ceiling.cores)
            self.counters.count("guard_squeezes")
        except Exception as error:
            self._failed(error)
        else:
            self._failing = False

    def _judge(self) -> None:
        """One look: what it means for the ceiling. Raises what reading the counters does."""
        law, outlook = self.law, self._outlook
        if law is None or outlook is None:
            self._rest()
            return
        began_s = self.clock.thread_cpu_s()
        reading = self._read()
        self._costs_s = self._costs_s[1], self.clock.thread_cpu_s() - began_s
        if reading is None:
            return
        sample = self._sample(reading, outlook.capacity_cores)
        self._follow_pressure(reading[0])
        if sample is None:
            return
        waits = self.pressure.take() and not self._innocent
        before, self._state = self._state, watch(sample, waits, outlook, self._state, law)
        self._count_false_alarms(before)

    def _count_false_alarms(self, before: GuardState) -> None:
        if self._state.false_alarms > before.false_alarms:
            self.counters.count("guard_false_alarms")

    def _read(self) -> _CounterReading | None:
        """None: there is no pod to watch, so the guard rests, or the counters could not be read at one moment."""
        for _ in range(_TRIES):
            from_s = self.clock.boottime_s()
            times = self.box.cpu_times()
            t_s = self.clock.boottime_s()
            if times is None:
                self._rest()
                return None
            since_s = 0.0 if self._last is None else from_s - self._last[0]
            if t_s - from_s <= max(_AT_ONCE_S, _APART_RATIO * since_s):
                return (t_s, *times)
        self._follow_pressure(t_s)
        return None

    def _sample(self, now: _CounterReading, capacity_cores: float) -> UsageSample | None:
        """What was used since the last reading; None: there was none, or the two are not comparable."""
        last, self._last = self._last, now
        if last is None:
            return None
        seconds, node_s, box_s = now[0] - last[0], now[1] - last[1], now[2] - last[2]
        most_s = _IMPOSSIBLE * capacity_cores * seconds
        if seconds <= 0.0 or not (0.0 <= node_s <= most_s and 0.0 <= box_s <= most_s):
            return None
        node_cores, box_cores = node_s / seconds, box_s / seconds
        return UsageSample(now[0], seconds, min(max(0.0, node_cores - box_cores), capacity_cores), box_cores)

    def _follow_pressure(self, now_s: float) -> None:
        self.pressure.follow(now_s, self.wake)
        if self.pressure.note != self._noted:
            self._noted = self.pressure.note
            self.log.info("guard_pressure", note=self._noted)

    def _rest(self) -> None:
        """Restricts nothing while it watches nothing."""
        self._watching = False
        if self._last is not None or self._state.ceiling is not None:
            self._last = None
            self._state = GuardState(squeezes=self._state.squeezes, false_alarms=self._state.false_alarms)
            self.pressure.close()

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        if not self._failing:
            self._failing = True
            self.log.error("guard_failed", error=f"{type(error).__name__}: {error}", exc_info=error)
