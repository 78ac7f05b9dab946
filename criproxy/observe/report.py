"""What the outside is told of a running daemon: /status, /healthz, /readyz, systemd's status line, gauges."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

from msgspec.structs import replace

from criproxy import __version__
from criproxy.cgroup.box import Box, BoxState
from criproxy.cgroup.disk_weight import DiskWeight
from criproxy.cgroup.naming import Driver, parse_box
from criproxy.config import Config, ConfigError
from criproxy.control.guardlaw import GuardStatus
from criproxy.control.history import History
from criproxy.fronts.cri.runtime import RuntimeLink
from criproxy.model import MEMORY, UNLIMITED, Decision, LimitChange, PodRef, Snapshot
from criproxy.observe import why
from criproxy.observe.above_bound import AboveBound
from criproxy.observe.metrics import Metrics
from criproxy.observe.notify import Notifier
from criproxy.observe.routes import Endpoints
from criproxy.observe.status import (
    AttachStatus,
    BoxStatus,
    BypassStatus,
    CgroupStatus,
    ConfigStatus,
    DiskStatus,
    OverheadStatus,
    PlacementStatus,
    PodOverhead,
    RuntimeStatus,
    ScheduleStatus,
    Status,
    StrayContainer,
    UpgradeStatus,
    latest_decisions,
    offline_pod,
    resource_status,
    share_status,
)
from criproxy.pods.inventory import Inventory
from criproxy.pods.memory_relief import MemoryRelief
from criproxy.pods.overhead import Work
from criproxy.pods.placement_check import Finding, Verifier
from criproxy.pods.unbounded import Unbounded

_STALLED_S: Final = 30.0
"""A tick may be so late; one that waits for a kernel that does not answer takes 20 s."""

_HEADLINE_EVERY_S: Final = 10.0
_DECISIONS: Final = 5
_LOUDEST: Final = 3

_DISCARDED: Final = 3
"""Samples that were discarded one after the other, of which an operator is told; a CPU that comes makes one."""


Colocation = Literal["on", "off", "pass-through"]


class EngineView(Protocol):
    """What carries new connections, and what is wrong with it (None: nothing)."""

    @property
    def name(self) -> str: ...
    @property
    def problem(self) -> str | None: ...


class Reporter:
    """Observes the loop and answers the endpoints, some of which ask from a thread: it only reads.

    `clock`: monotonic, in s.
    """

    def __init__(
        self,
        metrics: Metrics,
        box: Box,
        inventory: Inventory,
        link: RuntimeLink,
        notifier: Notifier,
        *,
        unbounded: Unbounded,
        verifier: Verifier,
        engine: EngineView,
        config_file: Path,
        dry_run: bool,
        clock: Callable[[], float],
    ) -> None:
        self._metrics = metrics
        self._box = box
        self._inventory = inventory
        self._unbounded = unbounded
        self._verifier = verifier
        self._engine = engine
        self._link = link
        self._config_file = config_file
        self._notifier = notifier
        self._dry_run = dry_run
        self._clock = clock
        self._started_s = self._ticked_s = self._headline_s = clock()
        self._stalled_s = _STALLED_S
        self._tick_failures = self._swept = 0
        self._tick_failed = False
        self._discarded, self._discarded_for = 0, ""
        """So many readings, one after the other, were no measurements, and why the last was none."""
        self._last: tuple[Snapshot, Decision, Colocation] | None = None
        self._above = AboveBound()
        self._colocation: Colocation = "off"
        self._config = ConfigStatus(str(config_file), (), ())
        self._schedule = ScheduleStatus("", "")
        self.bypass: Callable[[], BypassStatus | None] = lambda: None
        """Tells of the bypass; to be set."""
        self.attachment: Callable[[], AttachStatus] = lambda: AttachStatus("unknown", "")
        """Tells whether kubelet uses criproxy; to be set."""
        self.kubelets_driver: Callable[[], Driver | None] = lambda: None
        """Tells kubelet's cgroup driver, as far as its pods have told; to be set."""
        self.overhead: Callable[[], tuple[Work, str]] = lambda: (Work(), "")
        """Tells what is done outside the box for offline pods, and why it is too much ("": it is not); to be set."""
        self.disks: Callable[[], Sequence[DiskWeight]] = tuple
        """Tells which disks keep to the box's weight; to be set."""
        self.realtime: Callable[[], Mapping[PodRef, str]] = dict
        """Tells which offline pods run in real time, and what of them; to be set."""
        self.cpus_problem: Callable[[], str] = lambda: ""
        """Tells why the box may not be kept to the CPUs that kubelet leaves; to be set."""
        self.log_lines_missing: Callable[[], int] = lambda: 0
        """Tells how many lines of the log were dropped of late; to be set."""
        self.deaf: Callable[[], Sequence[str]] = lambda: ()
        """Tells where nobody can ask, and why; to be set."""
        self.relief: MemoryRelief | None = None
        """To be set."""
        self.upgrade = UpgradeStatus()
        """To be replaced at any time."""

    # --- the loop's observer ----------------------------------------------------------------------------------------

    def ticked(self, snapshot: Snapshot, decision: Decision, changes: tuple[LimitChange, ...], seconds: float) -> None:
        self._ticked_s = self._clock()
        self._tick_failed = False
        self._discarded = 0
        self._last = (snapshot, decision, self._colocation)
        self._above.look(self._box.state(), self._ticked_s)
        self._metrics.ticked(snapshot, self._in_force(decision, self._colocation), changes, seconds)
        if self._ticked_s - self._headline_s >= _HEADLINE_EVERY_S:
            self._headline_s = self._ticked_s
            self._notifier.status(self.headline())

    def tick_failed(self, seconds: float) -> None:
        self._ticked_s = self._clock()
        self._tick_failures += 1
        self._tick_failed = True
        self._above.look(self._box.state(), self._ticked_s)
        self._metrics.tick_failed(seconds)

    def sample_discarded(self, reason: str) -> None:
        self._ticked_s = self._clock()
        self._discarded, self._discarded_for = self._discarded + 1, reason
        self._metrics.sample_discarded()

    def ticks_missed(self, count: int) -> None:
        self._metrics.ticks_missed(count)

    # --- the rest of the daemon -------------------------------------------------------------------------------------

    def swept(self, count: int) -> None:
        self._swept += count
        self._metrics.box_swept(count)

    def configured(
        self, config: Config, errors: Sequence[ConfigError], needs_restart: tuple[str, ...], *, pass_through: bool
    ) -> None:
        if pass_through:
            self._colocation = "pass-through"
        else:
            self._colocation = "on" if config.colocation.enabled else "off"
        self._stalled_s = _STALLED_S + config.control.interval_s
        self._config = ConfigStatus(str(self._config_file), tuple(str(error) for error in errors), needs_restart)

    def scheduled(self, words: str, closed: str) -> None:
        """What the schedule says from now on; see `ScheduleStatus`."""
        self._schedule = ScheduleStatus(words, closed)

    def headline(self) -> str:
        """One line, for `systemctl status`."""
        runtime = "runtime ready" if self._link.ready else "waiting for the runtime"
        return f"colocation {self._colocation}, {runtime}, {len(self._inventory.running_pods)} offline pods"

    def endpoints(self, history: History, guard: Callable[[], GuardStatus]) -> Endpoints:
        return Endpoints(
            page=lambda: f"criproxy {__version__}: {self.headline()}",
            metrics=lambda: self._render_metrics(guard()),
            unhealthy=self.unhealthy,
            unready=self._unready,
            status=lambda: self._status(guard(), history),
            why=lambda asked_s: self._why(history, asked_s),
        )

    def unhealthy(self) -> str | None:
        """What is wrong with the daemon itself, in words; None: nothing is."""
        stalled_s = self._clock() - self._ticked_s
        return f"the control loop has not ticked for {stalled_s:.0f} s" if stalled_s > self._stalled_s else None

    # --- the endpoints ----------------------------------------------------------------------------------------------

    def _render_metrics(self, guard: GuardStatus) -> bytes:
        self._metrics.guard_ceiling(guard.ceiling_cores)
        self._metrics.runtime_ready(self._link.ready)
        self._metrics.offline_sandboxes(len(self._inventory.running_pods))
        self._metrics.in_use(self._box.state().in_use)
        self._metrics.misplaced(len(self._verifier.misplaced), len(self._verifier.unknown))
        self._metrics.unbounded_pods(len(self._unbounded.pods()))
        self._metrics.bypass(self.bypass())
        self._metrics.runtime_overloaded(bool(self.overhead()[1]))
        self._metrics.realtime_pods(len(self.realtime()))
        for disk in self.disks():
            self._metrics.disk_weight(disk.disk, bool(disk.keeper))
        state = self._box.state()
        self._metrics.box_held(state.limits, state.memory.used_bytes if state.memory else None)
        if self.relief is not None:
            eviction = self.relief.status()
            self._metrics.eviction(eviction.hard_bytes, eviction.available_bytes, known=not eviction.problem)
        for resource, seconds in self._above.seconds(self._clock()).items():
            self._metrics.above_bound(resource, seconds)
        return self._metrics.render()

    def _unready(self) -> str | None:
        return None if self._link.ready else f"the runtime is not ready: {self._link.problem}"

    def _problems(self, attached: AttachStatus) -> Iterator[str]:
        """Why it is not well: what an operator should look at."""
        bypass = self.bypass()
        for problem in (self.unhealthy(), self._unready(), self._engine.problem):
            if problem is not None:
                yield problem
        if self._config.errors:
            effect = "nothing new is placed" if self._colocation == "pass-through" else "the one before holds"
            yield f"the config file has errors, so {effect}"
        yield from self._unbounded_box()
        if misplaced := len(self._verifier.misplaced):
            yield f"{misplaced} containers of offline pods run outside the box"
        if unbounded := len(self._unbounded.pods()):
            yield f"{unbounded} offline pods run outside the box"
        yield from self._unheld()
        if self.upgrade.problem:
            yield f"the last upgrade failed, so this one goes on: {self.upgrade.problem}"
        if bypass is not None and bypass.open_since_s is not None:
            yield "kubelet's calls pass by criproxy: the bypass is open"
        yield from self.deaf()
        if missing := self.log_lines_missing():
            yield f"{missing} lines of the log were dropped, as nobody reads it: look after journald, or what reads it"
        if attached.problem:
            yield attached.problem

    def _unbounded_box(self) -> Iterator[str]:
        """Why the box is not bounded as it should be."""
        state = self._box.state()
        if self._colocation == "on" and not state.version:
            yield "this machine has no cgroup hierarchy for a box, so offline pods are refused"
        if self._colocation == "on" and not state.welcome:
            yield f"no offline pod is let in: {state.reason}"
        if self._tick_failed:
            yield "the control loop's last tick failed, so the limits stay as they are; the log says why"
        yield from self._above.problems(self._clock())
        if self.relief is not None:
            yield from self.relief.problems()
        if self._discarded >= _DISCARDED:
            yield f"the last {self._discarded} samples are impossible and not used: {self._discarded_for}"

    def _unheld(self) -> Iterator[str]:
        """What offline pods cost where no limit of the box holds."""
        for pod, words in self.realtime().items():
            yield f"{words} in offline pod {pod}, and no limit of the box holds it"
        for problem in (self.cpus_problem(), self.overhead()[1]):
            if problem:
                yield problem

    def _status(self, guard: GuardStatus, history: History) -> Status:
        info, attached = self._link.info, self.attachment()
        return Status(
            version=__version__,
            pid=os.getpid(),
            uptime_s=self._clock() - self._started_s,
            dry_run=self._dry_run,
            colocation=self._colocation,
            schedule=self._schedule,
            runtime=RuntimeStatus(
                socket=str(self._link.path),
                ready=self._link.ready,
                version=f"{info.name} {info.version}, CRI {info.api}" if info else "",
                problem=self._link.problem,
            ),
            config=self._config,
            box=self._box_status(),
            pods=tuple(offline_pod(sandbox) for sandbox in self._inventory.running_pods),
            guard=guard,
            bypass=self.bypass(),
            unbounded=tuple(str(pod) for pod in self._unbounded.pods().values()),
            problems=tuple(self._problems(attached)),
            engine=self._engine.name,
            cgroup=self._cgroup_status(),
            placement=self._placement_status(),
            decisions=latest_decisions(history.records(), _DECISIONS),
            upgrade=self.upgrade,
            attached=attached,
            overhead=_overhead(self.overhead()[0]),
            disks=tuple(DiskStatus(one.disk, one.keeper, one.why) for one in self.disks()),
            eviction=None if self.relief is None else self.relief.status(),
        )

    def _why(self, history: History, asked_s: float | None) -> why.Why:
        if asked_s is not None:
            return why.answer(history, asked_s)
        state = self._box.state()
        return why.answer(history, None, state.limits, _used(state))

    def _in_force(self, decision: Decision, decided: Colocation) -> Decision:
        """What is decided while colocation is off is not applied: then the kernel's limits are told."""
        if self._colocation == decided == "on":
            return decision
        reason = f"what the kernel holds, as colocation is {self._colocation}"
        if self._colocation == "on":
            reason = "what the kernel holds until the next tick, the first since colocation is on"
        limits = self._box.state().limits or {}
        held = {
            name: replace(decided, limit=limits.get(name, UNLIMITED), reason=reason)
            for name, decided in decision.resources.items()
        }
        return replace(decision, resources=held)

    def _cgroup_status(self) -> CgroupStatus:
        box, driver = self._box.state(), self.kubelets_driver()
        if driver is None and box.path is not None:
            driver = parse_box(box.path).driver
        return CgroupStatus(box.version, None if driver is None else driver.value)

    def _placement_status(self) -> PlacementStatus:
        verifier = self._verifier
        return PlacementStatus(
            verifier.verified, tuple(map(_stray, verifier.misplaced)), tuple(map(_stray, verifier.unknown))
        )

    def _box_status(self) -> BoxStatus:
        box, resources = self._box.state(), {}
        if self._last is not None:
            snapshot, decision, decided = self._last
            resources = resource_status(snapshot, self._in_force(decision, decided), box.limits, _used(box))
        return BoxStatus(
            path=box.path,
            drift=box.drift,
            swept=self._swept,
            tick_failures=self._tick_failures,
            resources=resources,
            cpus=box.cpus,
            shares=share_status(box.in_use),
        )


def _used(box: BoxState) -> dict[str, float | None]:
    """All that a limit of the box bounds, where that is more than what counts as its use."""
    return {MEMORY: box.memory.used_bytes if box.memory else None}


def _overhead(work: Work) -> OverheadStatus:
    loudest = [pod for pod in work.pods if pod.log_bytes_per_s or pod.shim_cores][:_LOUDEST]
    pods = [
        PodOverhead(one.pod.namespace, one.pod.name, one.pod.uid, one.shim_cores, one.log_bytes_per_s)
        for one in loudest
    ]
    return OverheadStatus(work.runtime_cores, work.shim_cores, work.log_bytes_per_s, tuple(pods))


def _stray(finding: Finding) -> StrayContainer:
    pod = finding.pod
    return StrayContainer(pod.namespace, pod.name, pod.uid, finding.container, finding.detail)
