"""What the outside is told of a running daemon: /status, /healthz, /readyz, systemd's status line, gauges."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from criproxy import __version__
from criproxy.cgroup.box import Box
from criproxy.config import Config, ConfigError
from criproxy.control.guardlaw import GuardStatus
from criproxy.control.history import History
from criproxy.model import UNLIMITED, Decision, LimitChange, Limits, Snapshot
from criproxy.observe import why
from criproxy.observe.http import Endpoints
from criproxy.observe.metrics import Metrics
from criproxy.observe.notify import Notifier
from criproxy.observe.status import (
    BoxStatus,
    ConfigStatus,
    RuntimeStatus,
    ScheduleStatus,
    Status,
    cpu_status,
    memory_status,
    offline_pod,
)
from criproxy.proxy.inventory import Inventory
from criproxy.proxy.runtime import RuntimeLink

_STALLED_S: Final = 30.0
"""A tick may be so late; one that waits for a kernel that does not answer takes 20 s."""

_HEADLINE_EVERY_S: Final = 10.0


class Reporter:
    """Observes the loop and answers the endpoints, which ask from threads of their own: it only reads.

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
        config_file: Path,
        dry_run: bool,
        clock: Callable[[], float],
    ) -> None:
        self._metrics = metrics
        self._box = box
        self._inventory = inventory
        self._link = link
        self._config_file = config_file
        self._notifier = notifier
        self._dry_run = dry_run
        self._clock = clock
        self._started_s = self._ticked_s = self._headline_s = clock()
        self._stalled_s = _STALLED_S
        self._tick_failures = self._swept = 0
        self._last: tuple[Snapshot, Decision] | None = None
        self._colocation: Literal["on", "off", "pass-through"] = "off"
        self._config = ConfigStatus(str(config_file), (), ())
        self._schedule = ScheduleStatus("", "")

    # --- the loop's observer ----------------------------------------------------------------------------------------

    def ticked(self, snapshot: Snapshot, decision: Decision, changes: tuple[LimitChange, ...], seconds: float) -> None:
        self._ticked_s = self._clock()
        decision = self._in_force(decision)
        self._last = (snapshot, decision)
        self._metrics.ticked(snapshot, decision, changes, seconds)
        if self._ticked_s - self._headline_s >= _HEADLINE_EVERY_S:
            self._headline_s = self._ticked_s
            self._notifier.status(self.headline())

    def tick_failed(self, seconds: float) -> None:
        self._ticked_s = self._clock()
        self._tick_failures += 1
        self._metrics.tick_failed(seconds)

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
        return f"colocation {self._colocation}, {runtime}, {len(self._inventory.placed)} offline pods"

    def endpoints(self, history: History, guard: Callable[[], GuardStatus]) -> Endpoints:
        return Endpoints(
            metrics=lambda: self._render_metrics(guard()),
            unhealthy=self.unhealthy,
            unready=self._unready,
            status=lambda: self._status(guard()),
            why=lambda asked_s: why.answer(history, asked_s),
        )

    def unhealthy(self) -> str | None:
        """What is wrong with the daemon itself, in words; None: nothing is."""
        stalled_s = self._clock() - self._ticked_s
        return f"the control loop has not ticked for {stalled_s:.0f} s" if stalled_s > self._stalled_s else None

    # --- the endpoints ----------------------------------------------------------------------------------------------

    def _render_metrics(self, guard: GuardStatus) -> bytes:
        self._metrics.guard_ceiling(guard.ceiling_cores)
        self._metrics.runtime_ready(self._link.ready)
        self._metrics.offline_sandboxes(len(self._inventory.placed))
        return self._metrics.render()

    def _unready(self) -> str | None:
        return None if self._link.ready else f"the runtime is not ready: {self._link.problem}"

    def _status(self, guard: GuardStatus) -> Status:
        info = self._link.info
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
            pods=tuple(offline_pod(sandbox) for sandbox in self._inventory.placed),
            guard=guard,
        )

    def _in_force(self, decision: Decision) -> Decision:
        """What is decided while colocation is off is not applied: then the kernel's limits are told."""
        if self._colocation == "on":
            return decision
        limits, reason = self._box.state().limits, f"what the kernel holds, as colocation is {self._colocation}"
        return replace(decision, limits=limits or Limits(UNLIMITED, UNLIMITED), cpu_reason=reason, memory_reason=reason)

    def _box_status(self) -> BoxStatus:
        box, last = self._box.state(), self._last
        return BoxStatus(
            path=box.path,
            drift=box.drift,
            swept=self._swept,
            tick_failures=self._tick_failures,
            cpu=cpu_status(*last) if last else None,
            memory=memory_status(*last) if last else None,
        )
