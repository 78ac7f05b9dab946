"""The one place where effects are built and wired: `criproxy run`."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from criproxy import __version__, derive
from criproxy.cgroup.absent import AbsentDriver
from criproxy.cgroup.box import Box
from criproxy.cgroup.detect import detect
from criproxy.cgroup.driver import CgroupDriver, CgroupError
from criproxy.cgroup.pressure import PressureListener
from criproxy.cgroup.tree import Tree
from criproxy.config import Loaded, load, restart_keys
from criproxy.control.capacity import CapacityReader
from criproxy.control.checkpoint import Checkpointer, CheckpointFile
from criproxy.control.clock import SystemClock
from criproxy.control.guard import Guard
from criproxy.control.loop import Loop
from criproxy.control.policy import safe_limits
from criproxy.hooks import offline_chain
from criproxy.observe import http
from criproxy.observe import log as logs
from criproxy.observe.metrics import Metrics
from criproxy.observe.notify import Notifier, notify_address, watchdog_interval_s
from criproxy.proxy import codec
from criproxy.proxy.intercept import HookInterceptor
from criproxy.proxy.inventory import Inventory
from criproxy.proxy.runtime import RuntimeInfo, RuntimeLink
from criproxy.proxy.server import Carrier, ProxyServer
from criproxy.proxy.socket import ListenSocket, SocketError
from criproxy.report import Reporter
from criproxy.standing import Standing
from criproxy.timetable import Timetable
from criproxy.upkeep import Upkeep
from criproxy.watch import FileWatch

_LIST_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 120.0
_GRACE_S: Final = 5.0
"""What calls in flight get at the end; kubelet repeats what is cut off."""

_CONFIG_POLL_S: Final = 0.5

_SCHEDULE_EVERY_S: Final = 1.0
"""The schedule is asked again and again, not once at its next change: the wall clock may jump."""


def run(config_file: Path, dry_run: bool) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status. A bad config makes a pass-through, not a failure."""
    watch = FileWatch(config_file)  # before it is read: what changes from then on is seen
    loaded = load(config_file)
    logs.configure(loaded.config.observe.log_level)
    log = structlog.get_logger()
    driver: CgroupDriver
    try:
        driver = detect(Tree())
    except CgroupError as error:
        log.error("no_cgroups", error=str(error), consequence="while colocation is on, offline pods are refused")
        driver = AbsentDriver(str(error))
    try:
        asyncio.run(_serve(watch, loaded, driver, dry_run=dry_run))
    except SocketError as error:
        log.error("cannot_listen", error=str(error))
        return 1
    return 0


async def _serve(watch: FileWatch, loaded: Loaded, driver: CgroupDriver, *, dry_run: bool) -> None:
    await Daemon(watch, loaded, driver, dry_run=dry_run).serve()


class Daemon:
    """All parts of a running criproxy. `loaded` was read from the file of `watch`.

    With errors in `loaded`, it is a pass-through: nothing new is placed and no limit is touched, but containers still
    follow their sandboxes into the box.
    """

    def __init__(self, watch: FileWatch, loaded: Loaded, driver: CgroupDriver, *, dry_run: bool) -> None:
        self._watch = watch
        self._first_config = loaded.config
        self._log = structlog.get_logger()
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None
        self._reload = asyncio.Event()
        self._notifier = Notifier(notify_address(os.environ), lambda: time.monotonic_ns() // 1000)
        self._metrics = Metrics(__version__)
        config, clock = loaded.config, SystemClock()
        self._clock = clock
        self._timetable = Timetable(config)
        stage = self._timetable.stage(clock.wall_s())
        self._standing = Standing(config, stage, pass_through=bool(loaded.errors), dry_run=dry_run)

        self._box = Box(driver, safe_limits(derive.policy(config)), time.monotonic)
        self._link = RuntimeLink(Path(config.proxy.runtime_path), self._connected, self._log)
        self._inventory = Inventory(self._query, lambda placement: _exists(driver, placement))
        self._upkeep = Upkeep(
            self._standing.upkeep(),
            self._inventory,
            self._box,
            stop_sandbox=self._stop_sandbox,
            runtime_ready=lambda: self._link.ready,
            on_swept=self._swept,
            clock=time.monotonic,
        )
        self._reporter = Reporter(
            self._metrics,
            self._box,
            self._inventory,
            self._link,
            self._notifier,
            config_file=watch.file,
            dry_run=dry_run,
            clock=time.monotonic,
        )
        self._guard = Guard(
            self._box,
            PressureListener(self._box.pressure_file, time.monotonic),
            lambda: self._loop.outlook(),  # noqa: PLW0108  # the loop is made below, as it asks the guard
            clock,
            self._standing.guard(),
            observer=self._metrics,
            log=self._log,
        )
        self._loop = Loop(
            self._box,
            CapacityReader(Path(driver.root_cpuset) if driver.root_cpuset else None).read,
            clock,
            self._standing.loop(),
            observer=self._reporter,
            log=self._log,
            guard=self._guard.ceiling,
        )
        checkpoint = CheckpointFile(Path(config.control.checkpoint), clock, self._log)
        self._loop.restore(*checkpoint.load())
        self._checkpointer = Checkpointer(checkpoint, clock, self._loop.checkpoint, self._log)
        self._interceptor = HookInterceptor(
            self._standing.intercept(),
            offline_chain(),
            self._inventory,
            self._box,
            self._metrics,
            child_quota=driver.capabilities.child_quota,
            on_removed=self._upkeep.removed,
        )
        self._socket = ListenSocket(Path(config.proxy.listen_path), os.getpid())
        carrier = Carrier(self._link.channel, self._interceptor, self._metrics, time.monotonic)
        self._server = ProxyServer(carrier, self._socket)
        self._tell_config(loaded)
        self._tell_stage()

    async def serve(self) -> None:
        """Run until a signal ends it. Raises SocketError when the socket can't be had, and what a part failed of."""
        self._handle_signals()
        await self._server.start()
        self._socket.follow(self._link.path)
        self._log.info("listening", socket=str(self._socket.path), runtime=str(self._link.path), pid=os.getpid())
        self._notifier.ready("waiting for the runtime")
        endpoints = self._reporter.endpoints(self._loop.history, self._guard.status)
        web = http.serve(*self._first_config.observe.host_port, endpoints)
        tasks = [
            self._task(part)
            for part in (
                self._link.run(),
                self._loop.run(),
                self._guard.run(),
                self._upkeep.run(),
                self._checkpointer.run(),
                self._watch_config(),
                self._follow_schedule(),
                self._feed_watchdog(),
            )
        ]
        await self._stop.wait()
        self._log.info("stopping")
        self._notifier.stopping()
        await self._server.stop(_GRACE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._checkpointer.save()
        await self._link.close()
        self._box.close()
        if web is not None:
            web.close()
        if self._failure is not None:
            raise self._failure

    # --- the runtime ------------------------------------------------------------------------------------------------

    async def _connected(self, _: RuntimeInfo) -> None:
        self._socket.follow(self._link.path)
        await self._upkeep.connected()

    async def _query(self, method: str, request: bytes) -> bytes:
        return await self._link.call(method, request, _LIST_TIMEOUT_S)

    async def _stop_sandbox(self, sandbox_id: str) -> None:
        await self._link.call("StopPodSandbox", codec.stop_sandbox(sandbox_id), _STOP_TIMEOUT_S)

    def _swept(self, count: int) -> None:
        self._reporter.swept(count)

    # --- the config -------------------------------------------------------------------------------------------------

    async def _watch_config(self) -> None:
        """Reload at once on SIGHUP, and when the file has changed."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._reload.wait(), _CONFIG_POLL_S)
            if self._reload.is_set():
                self._reload.clear()
                self._watch.read()
            elif not self._watch.changed():
                continue
            self._take_up(load(self._watch.file))

    def _take_up(self, loaded: Loaded) -> None:
        """The new config, or, with errors in it, the old one on."""
        self._notifier.reloading()
        if not loaded.errors:
            self._box.floor = safe_limits(derive.policy(loaded.config))
            self._timetable = Timetable(loaded.config)
            stage = self._timetable.stage(self._clock.wall_s())
            self._take_standing(replace(self._standing, config=loaded.config, stage=stage, pass_through=False))
            logs.configure(loaded.config.observe.log_level)
        self._metrics.config_loaded(not loaded.errors)
        self._tell_config(loaded)
        self._tell_stage()
        self._notifier.ready(self._reporter.headline())

    async def _follow_schedule(self) -> None:
        while True:
            await self._clock.sleep(_SCHEDULE_EVERY_S)
            stage = self._timetable.stage(self._clock.wall_s())
            if stage != self._standing.stage:
                self._take_standing(replace(self._standing, stage=stage))
                self._tell_stage()

    def _take_standing(self, standing: Standing) -> None:
        self._standing = standing
        self._interceptor.settings = standing.intercept()
        self._loop.replace_settings(standing.loop())
        self._guard.replace_settings(standing.guard())
        self._upkeep.configure(standing.upkeep())

    def _tell_stage(self) -> None:
        stage = self._standing.stage
        self._reporter.scheduled(stage.words, stage.closed if self._standing.enabled else "")
        if stage.words:
            self._log.info("schedule", holds=stage.words, closed=stage.closed, drain=stage.drain)

    def _tell_config(self, loaded: Loaded) -> None:
        standing = self._standing
        pending = restart_keys(self._first_config, standing.config)
        self._reporter.configured(standing.config, loaded.errors, pending, pass_through=standing.pass_through)
        if loaded.errors:
            self._log.error(
                "config_refused",
                errors=[str(error) for error in loaded.errors],
                consequence="nothing new is placed" if standing.pass_through else "the old one holds",
            )
        else:
            self._log.info(
                "config_taken", file=str(self._watch.file), enabled=standing.enabled, needs_restart=list(pending)
            )

    # --- the process ------------------------------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)

    def _task(self, part: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A part that fails ends the daemon: better to be started anew than to go on without it."""
        task = asyncio.create_task(part)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("part_failed", error=str(error) or type(error).__name__, exc_info=error)
            self._failure = self._failure or error
            self._stop.set()

    async def _feed_watchdog(self) -> None:
        """Systemd hears of us while the loop goes on."""
        interval_s = watchdog_interval_s(os.environ, os.getpid())
        if interval_s is None:
            return
        while True:
            if self._reporter.unhealthy() is None:
                self._notifier.watchdog()
            await asyncio.sleep(interval_s)


def _exists(driver: CgroupDriver, placement: str) -> bool:
    try:
        return driver.exists(placement)
    except CgroupError:  # of another shape than this driver's
        return False
