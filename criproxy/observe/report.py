"""What a running daemon shows: /status, /healthz, /readyz and the gauges of /metrics."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import asdict, replace

from criproxy import __version__
from criproxy.cgroup.box import Box, BoxState
from criproxy.cgroup.naming import parse_box
from criproxy.clients.link import RuntimeLink
from criproxy.control.history import History
from criproxy.fronts.chosen import ChosenEngine
from criproxy.model import MEMORY, AttachStatus, Decision, PodRef, Sandbox, Snapshot
from criproxy.model.modes import TABLE, Mode, Modes
from criproxy.model.shown import Shows
from criproxy.observe import why
from criproxy.observe.metrics import Metrics
from criproxy.observe.recorder import Recorder
from criproxy.observe.status import (
    BoxStatus,
    CgroupStatus,
    OfflinePod,
    RuntimeStatus,
    ScheduleStatus,
    Status,
    latest_decisions,
    resource_status,
)
from criproxy.pods.interference import InterferenceWatch
from criproxy.pods.inventory import Inventory
from criproxy.pods.kubelets_driver import KubeletsDriver
from criproxy.pods.reconciler import Reconciler
from criproxy.pods.stopping import Holds

_DECISIONS: Final = 5

_DISCARDED: Final = 3
"""How many samples in a row must be discarded to be a problem; a CPU that is plugged in makes one."""

_ANY: Final = PodRef("", "", "")
"""Stands for any pod: what holds this one holds every pod that starts."""


class PublishedBy(Protocol):
    """Whoever publishes what the node can lend."""

    def why(self) -> str:
        """Why it is as it is, in words; "": nothing is published."""


class Reporter(Struct, frozen=True):
    """What the routes answer with. It only reads the parts, as other threads ask it, too.

    `meters` are the metrics. `attachment`: whether kubelet uses us. `no_cgroups`: why no box can be made, "": one can.
    `shown`: whoever shows something of itself, in the order in which people see it.
    """

    meters: Metrics
    recorder: Recorder
    box: Box
    inventory: Inventory
    link: RuntimeLink
    engine: ChosenEngine
    kubelets_driver: KubeletsDriver
    history: History
    reconciler: Reconciler
    holds: Holds
    interference: InterferenceWatch
    no_cgroups: str
    attachment: Callable[[], AttachStatus]
    published: PublishedBy
    shown: Sequence[Shows]

    # --- the endpoints ----------------------------------------------------------------------------------------------

    def page(self) -> str:
        """A line for people, without pods' names."""
        return f"criproxy {__version__}: {self.recorder.headline()}"

    def metrics(self) -> bytes:
        metrics, state = self.meters, self.box.state()
        metrics.read(self.shown)
        metrics.in_use(state.in_use)
        metrics.box_held(state.limits, state.memory.used_bytes if state.memory else None)
        metrics.set(
            runtime_ready=self.link.ready,
            offline_sandboxes=len(self.inventory.running_pods),
            box_above_bound_seconds=self.recorder.above.seconds(self.recorder.clock.monotonic_s()),
        )
        return metrics.registry.render()

    def judge(self) -> None:
        """Have the metrics say how it is by now; for a thread, as it reads files of kubelet's."""
        attached = self.attachment()
        wanted = attached.problem or self.recorder.colocation != "off"  # a node that only looks on may be detached
        self.meters.set(
            attached={"yes": 1.0, "no": 0.0 if wanted else None}.get(attached.state),
            problems=len([*self._problems(self._modes(), attached)]),
        )

    def not_judged(self) -> None:
        """What it reads hangs: the metrics say nothing of it."""
        self.meters.set(attached=None, problems=None)

    def unhealthy(self) -> str | None:
        """What is wrong with the daemon, in words; None: nothing is."""
        return self.recorder.unhealthy()

    def unready(self) -> str | None:
        """Why kubelet's calls can't be served, or what of criproxy's own work is not done; None: all is.

        No mode is a reason: see `model.modes.Row`.
        """
        return self._without_runtime() or next(filter(None, (one.unready() for one in self.shown)), None)

    def status(self) -> Status:
        info, recorder = self.link.info, self.recorder
        attached, modes, running = self.attachment(), self._modes(), self.inventory.running_pods
        return Status(
            version=__version__,
            pid=os.getpid(),
            uptime_s=recorder.clock.monotonic_s() - recorder.started_s,
            dry_run=Mode.DRY_RUN in modes,
            colocation=recorder.colocation,
            schedule=ScheduleStatus(recorder.schedule, modes.why.get(Mode.CLOSED, "") if recorder.modes.judges else ""),
            runtime=RuntimeStatus(
                socket=str(self.link.path),
                ready=self.link.ready,
                version=f"{info.name} {info.version}, CRI {info.api}" if info else "",
                problem=self.link.problem,
            ),
            config=recorder.config,
            box=self._box_status(),
            pods=tuple(self._offline_pod(one) for one in running),
            problems=tuple(self._problems(modes, attached)),
            engine=self.engine.name,
            cgroup=self._cgroup_status(),
            decisions=latest_decisions(self.history.records(), _DECISIONS),
            upgrade=recorder.upgrade,
            attached=attached,
            modes=tuple(mode.value for mode in Mode if mode in modes),
            sections={key: value for one in self.shown for key, value in one.section().items()},
            rows=tuple(row for one in self.shown for row in one.rows()),
        )

    def why(self, asked_s: float | None) -> why.Why:
        """For a moment (UTC), None: for now."""
        moves = self.interference.status().moves
        if asked_s is not None:
            return why.answer(self.history, asked_s, moves=moves)
        state = self.box.state()
        answer = why.answer(self.history, None, state.limits, _used(state), moves)
        published = self.published.why()
        return replace(answer, published=published, pods_speed=self.interference.speeds.why() if published else "")

    def past(self, since_s: float) -> str:
        """The last day in numbers, as JSON: what is newer than this moment (UTC)."""
        clock = self.recorder.clock
        return self.recorder.day.to_json(clock.boottime_s(), clock.wall_s(), since_s)

    def decided(self) -> tuple[Snapshot, Decision, Modes] | None:
        """The last tick's sample, what is in force by it, and the modes; None before the first, and until the modes are
        known.
        """
        last = self.recorder.last
        known = all(one.knows_modes() for one in self.shown)
        return (*last, self._modes()) if last is not None and known else None

    def offline_uids(self) -> frozenset[str]:
        """Of the pods that run in the box."""
        return frozenset(one.pod.uid for one in self.inventory.running_pods)

    # --- what they are made of --------------------------------------------------------------------------------------

    def _without_runtime(self) -> str | None:
        return None if self.link.ready else f"the runtime is not ready: {self.link.problem}"

    def _modes(self) -> Modes:
        """All modes in force, each with why, in words."""
        modes, state = self.recorder.modes, self.box.state()
        found: dict[Mode, str | None] = dict(modes.why)
        if Mode.PASS_THROUGH in modes:
            found[Mode.PASS_THROUGH] = "the config file has errors, so nothing new is placed"
        if self.recorder.colocation == "on":
            if not state.version:
                found[Mode.NO_CGROUPS] = f"no box can be made, so offline pods are refused: {self.no_cgroups}"
            if not state.welcome:
                found[Mode.UNWELCOME] = f"no offline pod is let in: {state.reason}"
            found[Mode.HELD] = self.holds.held(_ANY) or None
        found[Mode.ENGINE_GIVEN_UP] = self.engine.problem
        for one in self.shown:
            found |= one.modes()
        return Modes({mode: reason for mode, reason in found.items() if reason is not None})

    def _problems(self, modes: Modes, attached: AttachStatus) -> Iterator[str]:
        """Why it is not well: what an operator should look at."""
        recorder = self.recorder
        yield from filter(None, (self.unhealthy(), self._without_runtime()))
        yield from (modes.why[mode] for mode, row in TABLE.items() if mode in modes and not row.well)
        if recorder.config.errors and Mode.PASS_THROUGH not in modes:
            yield "the config file has errors, so the one before holds"
        if recorder.tick_failed_last:
            yield "the control loop's last tick failed, so the limits stay as they are; the log says why"
        yield from recorder.above.problems(recorder.clock.monotonic_s())
        if recorder.discarded >= _DISCARDED:
            yield f"the last {recorder.discarded} samples are impossible and not used: {recorder.discarded_for}"
        for one in self.shown:
            yield from one.problems()
        if recorder.upgrade.problem:
            yield f"the last upgrade failed, so this one goes on: {recorder.upgrade.problem}"
        if attached.problem:
            yield attached.problem

    def _cgroup_status(self) -> CgroupStatus:
        box, driver = self.box.state(), self.kubelets_driver.driver
        if driver is None and box.path is not None:
            driver = parse_box(box.path).driver
        return CgroupStatus(box.version, None if driver is None else driver.value)

    def _box_status(self) -> BoxStatus:
        box, last = self.box.state(), self.recorder.last
        return BoxStatus(
            path=box.path,
            drift=box.drift,
            swept=self.reconciler.swept,
            tick_failures=self.recorder.tick_failures,
            resources=resource_status(*last, box.limits, _used(box)) if last else {},
            cpus=box.cpus,
            shares=box.in_use,
            cores=box.cores,
            tiers=self._tiers(box),
        )

    def _offline_pod(self, sandbox: Sandbox) -> OfflinePod:
        shown = {key: value for one in self.shown for key, value in one.of_pod(sandbox).items()}
        return OfflinePod(**asdict(sandbox.pod), placement=sandbox.placement or "", **shown)

    def _tiers(self, box: BoxState) -> str:
        if not box.tiers:
            return ""
        running = self.inventory.running_pods
        mid = sum(one.mid for one in running)
        pods = f"{mid} mid, {len(running) - mid} low"
        if box.version == 1:
            return f"{pods}; by CPU and by who goes first, as cgroup v1 protects no memory within the box"
        return f"{pods}; by CPU, memory and who goes first"


def _used(box: BoxState) -> dict[str, float | None]:
    """All that a limit of the box bounds, where that is more than what counts as its use."""
    return {MEMORY: box.memory.used_bytes if box.memory else None}
