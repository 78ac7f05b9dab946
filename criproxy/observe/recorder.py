"""What has happened in the daemon, as its parts tell it. It is made before them, and only the reporter reads it."""

from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from criproxy.cgroup.box import Box, BoxState
from criproxy.clients.link import RuntimeLink
from criproxy.concurrency.clock import Clock
from criproxy.control.day import Day
from criproxy.model import UNLIMITED, Decision, LimitChange, Snapshot
from criproxy.model.modes import Mode, Modes
from criproxy.observe.above_bound import AboveBound
from criproxy.observe.metrics import Metrics
from criproxy.observe.notify import Notifier
from criproxy.observe.status import ConfigStatus, UpgradeStatus
from criproxy.pods.inventory import Inventory
from criproxy.pods.stopping import Holds

_STALLED_S: Final = 30.0
"""How long after its deadline a tick may come; one that waits for a kernel that does not answer takes 20 s."""

_HEADLINE_EVERY_S: Final = 10.0

ColocationState = Literal["on", "off", "pass-through"]


class Recorder(Struct):
    """The control loop's observer, and whom the reconciler, the config and a hand-over tell.

    What is public may be read from any thread. `discarded`: how many readings in a row were no measurements, and why
    the last was none. `modes` are those that the config, the schedule and the command line bring about. `schedule`:
    what it says; "": there is none.
    """

    metrics: Metrics
    box: Box
    inventory: Inventory
    link: RuntimeLink
    notifier: Notifier
    clock: Clock
    above: AboveBound
    holds: Holds
    day: Day
    tick_failures: int = 0
    tick_failed_last: bool = False
    discarded: int = 0
    discarded_for: str = ""
    modes: Modes = Modes({Mode.DISABLED: ""})
    schedule: str = ""
    config: ConfigStatus = ConfigStatus("", (), ())
    upgrade: UpgradeStatus = UpgradeStatus()
    started_s: float = 0.0
    _ticked_s: float = 0.0
    _headline_s: float = 0.0
    _stalled_s: float = _STALLED_S
    _last: tuple[Snapshot, Decision, ColocationState] | None = None

    def __post_init__(self) -> None:
        self.started_s = self._ticked_s = self._headline_s = self.clock.monotonic_s()

    # --- the loop's observer ----------------------------------------------------------------------------------------

    def begins(self) -> None:
        """The loop begins, perhaps long after the process: a new process waits for its turn. No tick is overdue."""
        self._ticked_s = self.clock.monotonic_s()

    def ticked(self, snapshot: Snapshot, decision: Decision, changes: tuple[LimitChange, ...], seconds: float) -> None:
        self._ticked_s = self.clock.monotonic_s()
        self.tick_failed_last = False
        self.discarded = 0
        if self._last is not None:
            self.metrics.passed(*self._last[:2], snapshot)
        self._last = (snapshot, decision, self.colocation)
        state = self.box.state()
        self._look_above(state)
        self.day.sampled(snapshot, self._in_force(decision, self.colocation), self._closed(state))
        self.metrics.ticked(snapshot, self._in_force(decision, self.colocation), changes, seconds)
        if self._ticked_s - self._headline_s >= _HEADLINE_EVERY_S:
            self._headline_s = self._ticked_s
            self.notifier.status(self.headline())

    def tick_failed(self, seconds: float) -> None:
        self._ticked_s = self.clock.monotonic_s()
        self.tick_failures += 1
        self.tick_failed_last = True
        self._look_above(self.box.state())
        self.metrics.tick_failed(seconds)

    def _closed(self, box: BoxState) -> str:
        """Why no new offline pod is let in; "": they are, or none is placed at all."""
        if not self.modes.judges:
            return ""
        why = self.modes.why
        asked = next((why[mode] or mode.value for mode in (Mode.CLOSED, Mode.HELD_OFF) if mode in why), "")
        return asked or ("" if box.welcome else box.reason) or self.holds.closed

    def _look_above(self, state: BoxState) -> None:
        """While an operator holds criproxy off the box, the last decisions bound nothing."""
        held_off = Mode.HELD_OFF in self.modes
        self.above.look(replace(state, wanted=None, memory=None) if held_off else state, self._ticked_s)

    def sample_discarded(self, reason: str) -> None:
        self._ticked_s = self.clock.monotonic_s()
        self.discarded, self.discarded_for = self.discarded + 1, reason
        self.metrics.count("samples_discarded")

    def ticks_missed(self, count: int) -> None:
        self.metrics.count("ticks_missed", by=count)

    # --- the rest of the daemon -------------------------------------------------------------------------------------

    def configured(self, config: ConfigStatus, interval_s: float) -> None:
        """`interval_s`: from tick to tick."""
        self._stalled_s = _STALLED_S + interval_s
        self.config = config

    def scheduled(self, modes: Modes, schedule: str) -> None:
        """From now on, these modes are in force, and the schedule says this."""
        self.modes, self.schedule = modes, schedule

    def upgrade_failed(self, problem: str, *, refused: bool) -> None:
        self.upgrade = replace(self.upgrade, failed=self.upgrade.failed + 1, problem=problem, refused=refused)
        self.metrics.count("upgrade_failures")

    def predecessor(self, *, there: bool) -> None:
        """Whether the criproxy before this one still finishes its calls."""
        self.upgrade = replace(self.upgrade, predecessor=there)

    # --- in words ---------------------------------------------------------------------------------------------------

    @property
    def colocation(self) -> ColocationState:
        if Mode.PASS_THROUGH in self.modes:
            return "pass-through"
        return "off" if Mode.DISABLED in self.modes else "on"

    @property
    def last(self) -> tuple[Snapshot, Decision] | None:
        """The last tick's sample and what is in force by it; None before the first."""
        if self._last is None:
            return None
        snapshot, decision, decided = self._last
        return snapshot, self._in_force(decision, decided)

    def headline(self) -> str:
        """One line, for `systemctl status`."""
        runtime = "runtime ready" if self.link.ready else "waiting for the runtime"
        return f"colocation {self.colocation}, {runtime}, {len(self.inventory.running_pods)} offline pods"

    def unhealthy(self) -> str | None:
        """What is wrong with the daemon itself, in words; None: nothing is."""
        stalled_s = self.clock.monotonic_s() - self._ticked_s
        return f"the control loop has not ticked for {stalled_s:.0f} s" if stalled_s > self._stalled_s else None

    def _in_force(self, decision: Decision, decided: ColocationState) -> Decision:
        """What is decided while colocation is off, or criproxy held off, is not applied: the kernel's are shown."""
        colocation = self.colocation
        held_off = Mode.HELD_OFF in self.modes
        if colocation == decided == "on" and not held_off:
            return decision
        reason = f"what the kernel holds, as colocation is {colocation}"
        if held_off:
            reason = "what the kernel holds, as criproxy is held off the box"
        elif colocation == "on":
            reason = "what the kernel holds until the next tick, the first since colocation is on"
        limits = self.box.state().limits or {}
        held = {
            name: replace(one, limit=limits.get(name, UNLIMITED), reason=reason)
            for name, one in decision.resources.items()
        }
        return replace(decision, resources=held)
