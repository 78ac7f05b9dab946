"""The one place where effects are built and wired: `criproxy run`."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from criproxy import __version__, bypass, derive, late
from criproxy.cgroup.absent import AbsentDriver
from criproxy.cgroup.box import Box
from criproxy.cgroup.detect import detect_any
from criproxy.cgroup.driver import CgroupDriver, CgroupError
from criproxy.cgroup.naming import parse_box
from criproxy.cgroup.pressure import PressureListener
from criproxy.cgroup.tree import Tree
from criproxy.cgroup.units import SystemdUnits
from criproxy.cgroup.whereabouts import Whereabouts
from criproxy.config import Loaded, load, restart_keys
from criproxy.control.capacity import CapacityReader
from criproxy.control.checkpoint import Checkpointer, CheckpointFile
from criproxy.control.clock import SystemClock
from criproxy.control.guard import Guard
from criproxy.control.loop import Loop
from criproxy.control.policy import safe_limits
from criproxy.handover.admission import Admissions, Remote
from criproxy.handover.channel import Main, Ready, Take
from criproxy.handover.predecessor import Predecessor
from criproxy.handover.successor import Successor, UpgradeError, command_of, hand_over
from criproxy.hooks import offline_chain
from criproxy.model import Sandbox
from criproxy.observe import http
from criproxy.observe import log as logs
from criproxy.observe.metrics import Metrics
from criproxy.observe.notify import Notifier, notify_address, watchdog_interval_s
from criproxy.observe.status import AttachStatus, UpgradeStatus
from criproxy.proxy import codec
from criproxy.proxy.engine import Engine
from criproxy.proxy.intercept import HookInterceptor
from criproxy.proxy.inventory import Inventory, Running
from criproxy.proxy.process import process_of
from criproxy.proxy.runtime import RuntimeInfo, RuntimeLink
from criproxy.proxy.server import Carrier, ProxyServer
from criproxy.proxy.socket import ListenSocket, SocketError
from criproxy.report import Reporter
from criproxy.standing import Standing
from criproxy.timetable import Timetable
from criproxy.unbounded import Unbounded
from criproxy.upkeep import Upkeep
from criproxy.verify import Verifier
from criproxy.watch import FileWatch

_LIST_TIMEOUT_S: Final = 30.0
_STATUS_TIMEOUT_S: Final = 10.0
_STOP_TIMEOUT_S: Final = 120.0
_RUNTIME_S: Final = 10.0
"""For so long a new process waits for the runtime before it says that it is ready all the same."""

_ENDING_S: Final = 1.0
"""A process's descriptors close one after the other, when it is killed: its socket may be the last."""

_DRAIN_S: Final = 3600.0
"""For so long a process that was replaced may take to finish its calls: as long as the slowest image pull."""

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
        driver = detect_any(Tree(), SystemdUnits(time.monotonic, time.sleep))
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
        self._loaded = loaded
        self._first_config = loaded.config
        self._log = structlog.get_logger()
        self._predecessor = Predecessor.of_environment(os.environ)
        self._upgrade_asked = asyncio.Event()
        self._command = command_of(sys.argv, sys.orig_argv)
        self._successor: Successor | None = None
        self._upgrading: asyncio.Task[None] | None = None
        self._remote: Remote | None = None
        self._waiting = self._predecessor is not None
        self._listed = asyncio.Event()
        self._watchdog: asyncio.Task[None] | None = None
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
        self._unbounded = Unbounded(self._standing.unbounded(), self._inventory, self._stop_sandbox)
        self._upkeep = Upkeep(
            self._standing.upkeep(),
            self._inventory,
            self._box,
            stop_sandbox=self._stop_sandbox,
            runtime_ready=lambda: self._link.ready,
            on_listed=lambda: self._verifier.look(),  # noqa: PLW0108  # it is made below, as it asks the upkeep
            on_swept=self._swept,
            bound=self._unbounded.look,
            clock=time.monotonic,
        )
        self._whereabouts = Whereabouts()
        self._verifier = Verifier(
            self._standing.verify(),
            self._inventory,
            process_of=lambda running: process_of(self._ask, running),
            cgroups_of=self._whereabouts.read,
            evict=self._upkeep.evict,
            on_misplaced=self._metrics.on_misplaced,
            clock=clock,
        )
        self._bypass = bypass.of_service(os.environ)
        self._reporter = Reporter(
            self._metrics,
            self._box,
            self._inventory,
            self._link,
            self._notifier,
            unbounded=self._unbounded,
            verifier=self._verifier,
            engine="grpc",
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
        self._checkpoint = CheckpointFile(Path(config.control.checkpoint), clock, self._log)
        self._checkpointer = Checkpointer(self._checkpoint, clock, self._loop.checkpoint, self._log)
        self._admissions = Admissions(self._box)
        self._interceptor = HookInterceptor(
            self._standing.intercept(),
            offline_chain(),
            self._inventory,
            self._admissions,
            self._metrics,
            child_quota=driver.capabilities.child_quota,
            on_started=self._pod_started,
            on_removed=self._pod_removed,
            held=self._verifier.held,
        )
        self._socket = ListenSocket(
            Path(config.proxy.listen_path), os.getpid(), self._bypass.socket, succeeds=self._predecessor is not None
        )
        carrier = Carrier(self._link.channel, self._interceptor, self._metrics, time.monotonic)
        self._engine: Engine = ProxyServer(carrier, self._socket)
        self._web: http.HttpServer | None = None
        self._lasting: list[asyncio.Task[None]] = []
        self._working: list[asyncio.Task[None]] = []
        """The parts that write, or act on the config."""
        self._reporter.attachment = self._attachment
        self._tell_config(loaded)
        self._tell_stage()

    async def serve(self) -> None:
        """Run until a signal ends it. Raises SocketError when the socket can't be had, and what a part failed of."""
        self._handle_signals()
        await self._engine.start()
        self._socket.follow(self._link.path)
        self._lasting.append(self._task(self._link.run()))
        try:
            if upgrading := await self._begin():
                stop = asyncio.create_task(self._stop.wait())
                await asyncio.wait((upgrading, stop), return_when=asyncio.FIRST_COMPLETED)
                stop.cancel()
        finally:
            await self._end()
        if self._failure is not None:
            raise self._failure

    async def _begin(self) -> asyncio.Task[None] | None:
        """Take over from a predecessor, if there is one, and go to work; None: it is not to be.

        The task ends when another process has taken over from us.
        """
        if self._predecessor is not None and not await self._take_over(self._predecessor):
            return None
        self._loop.restore(*self._checkpoint.load())
        self._socket.publish()
        self._log.info("listening", socket=str(self._socket.path), runtime=str(self._link.path), pid=os.getpid())
        if self._predecessor is None:
            self._on_duty("waiting for the runtime")
        else:
            self._predecessor.serving()
            self._lasting.append(self._task(self._attend(self._predecessor)))
        await self.resume()
        self._upgrading = self._task(self._upgrade())
        self._lasting.append(self._task(asyncio.to_thread(late.load)))
        return self._upgrading

    async def _end(self) -> None:
        if self._upgrading is not None and self._successor is None:
            self._upgrading.cancel()
            await asyncio.gather(self._upgrading, return_exceptions=True)
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._successor is None:
            self._log.info("stopping")
            if not self._waiting:
                self._notifier.stopping()
        else:
            await self._retire(self._successor)
        await self._engine.stop(_GRACE_S)
        for task in (tasks := self._lasting + self._working):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._working:
            await self._checkpointer.save()
        await self._link.close()
        self._box.close()
        self._whereabouts.close()
        if self._web is not None:
            self._web.close()

    # --- upgrades ---------------------------------------------------------------------------------------------------

    async def _take_over(self, predecessor: Predecessor) -> bool:
        """Be ready, and wait for our turn; False: the predecessor has gone, or a signal has come."""
        turn = asyncio.create_task(self._turn(predecessor))
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait((turn, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        take = turn.result() if turn.done() else None
        turn.cancel()
        if take is None:
            who = "this one was told to end" if self._stop.is_set() else "the one that started this one has ended"
            self._log.warning("upgrade_given_up", reason=who)
            return False
        self._waiting = False
        self._box.expect(take.admitted)
        if take.box is not None:
            await self._upkeep.take_over(parse_box(take.box))
        return True

    async def _turn(self, predecessor: Predecessor) -> Take | None:
        with contextlib.suppress(TimeoutError):  # without its runtime, the node is to be upgraded all the same
            await asyncio.wait_for(self._listed.wait(), _RUNTIME_S)
        errors = tuple(str(error) for error in self._loaded.errors)
        return await predecessor.turn(Ready(__version__, str(self._socket.path), errors))

    async def _attend(self, predecessor: Predecessor) -> None:
        """Stand in for the predecessor while it finishes its calls."""
        self._reporter.upgrade = UpgradeStatus(predecessor=True)
        on_main = lambda: self._on_duty(self._reporter.headline())  # noqa: E731
        await predecessor.serve(self._admissions, on_main, self._relist)
        self._reporter.upgrade = replace(self._reporter.upgrade, predecessor=False)
        await asyncio.sleep(_ENDING_S)
        self._socket.clear_leftovers()

    def _on_duty(self, status: str) -> None:
        """The service manager listens to us now."""
        if self._watchdog is None:
            self._notifier.ready(status)
            self._watchdog = self._task(self._feed_watchdog())
            self._lasting.append(self._watchdog)

    async def _relist(self) -> None:
        try:
            await self._upkeep.connected()
        except (ConnectionError, codec.CodecError) as error:  # each listing to come makes up for it
            self._log.warning("not_relisted", error=str(error))

    async def _upgrade(self) -> None:
        """Hand over to a new process whenever that is asked for, and once it has succeeded, end."""
        while True:
            await self._upgrade_asked.wait()
            self._log.info("upgrade", command=list(self._command))
            try:
                successor = await hand_over(self, self._socket.path, self._command, os.environ)
            except Exception as error:  # all is as it was, whatever it is
                self._upgrade_asked.clear()
                failed = self._reporter.upgrade.failed + 1
                self._reporter.upgrade = replace(self._reporter.upgrade, failed=failed, problem=str(error))
                self._metrics.upgrade_failed()
                trouble = None if isinstance(error, UpgradeError) else error
                self._log.error(
                    "upgrade_failed", error=str(error), consequence="this process goes on", exc_info=trouble
                )
                continue
            self._successor = successor
            return

    async def rest(self) -> Take:
        """Stop what writes, for another process to begin."""
        if self._web is not None:
            await asyncio.to_thread(self._web.close)
            self._web = None
        working, self._working = self._working, []
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        self._admissions.hold()
        try:
            await self._box.settle()
        except CgroupError as error:
            raise UpgradeError(f"{error}: try again") from error
        await self._checkpointer.save()
        return Take(self._box.path, self._box.admitted)

    async def resume(self) -> None:
        """Let what writes work, if it does not."""
        self._admissions.resume()
        self._socket.clear_leftovers()
        if self._working:
            return
        if not self._socket.is_published:
            self._socket.publish()
        parts = (
            self._loop.run(),
            self._guard.run(),
            self._upkeep.run(),
            self._upkeep.tend(),
            self._verifier.run(),
            self._checkpointer.run(),
            self._watch_config(),
            self._follow_schedule(),
        )
        self._working = [self._task(part) for part in parts]
        endpoints = self._reporter.endpoints(self._loop.history, self._guard.status)
        self._web = http.serve(*self._first_config.observe.host_port, endpoints)

    async def _retire(self, successor: Successor) -> None:
        """Finish the calls that are under way here, or came before their clients knew; a signal ends this."""
        self._notifier.main_pid(successor.pid)
        successor.channel.send(Main())
        self._remote = Remote(successor.channel)
        self._admissions.hand_to(self._remote)
        self._log.info("upgraded", to_pid=successor.pid, pid=os.getpid())
        remote = self._task(self._remote.run())
        finished = asyncio.create_task(self._finished())
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait((finished, stop), return_when=asyncio.FIRST_COMPLETED)
        self._log.info("retired", calls_finished=finished.done())
        for task in (finished, stop, remote):
            task.cancel()

    async def _finished(self) -> None:
        await self._engine.drain(_DRAIN_S)
        if self._predecessor is not None:  # its pods are let in by way of us
            await self._predecessor.gone.wait()

    def _pod_started(self, running: Running) -> None:
        self._verifier.started(running)
        if self._remote is not None:
            self._remote.changed()

    def _pod_removed(self, sandbox: Sandbox) -> None:
        self._upkeep.removed(sandbox)
        if self._remote is not None:
            self._remote.changed()

    # --- the runtime ------------------------------------------------------------------------------------------------

    async def _connected(self, _: RuntimeInfo) -> None:
        self._socket.follow(self._link.path)
        if self._waiting:
            await self._inventory.refresh()
        else:
            await self._upkeep.connected()
        self._listed.set()

    async def _query(self, method: str, request: bytes) -> bytes:
        return await self._link.call(method, request, _LIST_TIMEOUT_S)

    async def _ask(self, method: str, request: bytes) -> bytes:
        return await self._link.call(method, request, _STATUS_TIMEOUT_S)

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
            self._leave_bypass()
            stage = self._timetable.stage(self._clock.wall_s())
            if stage != self._standing.stage:
                self._take_standing(replace(self._standing, stage=stage))
                self._tell_stage()

    def _take_standing(self, standing: Standing) -> None:
        self._standing = standing
        self._interceptor.settings = standing.intercept()
        self._loop.replace_settings(standing.loop())
        self._guard.replace_settings(standing.guard())
        self._unbounded.settings = standing.unbounded()
        self._upkeep.configure(standing.upkeep())
        self._verifier.configure(standing.verify())

    def _tell_stage(self) -> None:
        stage = self._standing.stage
        self._reporter.scheduled(stage.words, stage.closed if self._standing.enabled else "")
        if stage.words:
            self._log.info("schedule", holds=stage.words, closed=stage.closed, drain=stage.drain)

    def _leave_bypass(self) -> None:
        """The bypass may have opened at the moment of our return: then its switch had no more reason to shut it."""
        if not self._socket.is_bypassed:
            return
        try:
            self._socket.publish()
        except SocketError as error:
            self._log.warning("bypass_stays", error=str(error))
        else:
            self._log.info("bypass_left", socket=str(self._socket.path))

    def _attachment(self) -> AttachStatus:
        from criproxy.attach.seen import attachment  # late: only who asks for the status needs it

        return attachment(str(self._socket.path))

    def _tell_bypass(self) -> None:
        """Sockets that wait for a restart are not in force yet."""
        after_s = self._standing.config.proxy.bypass
        try:
            self._bypass.tell(self._socket.path, self._link.path, after_s)
        except bypass.BypassError as error:
            self._log.warning("bypass_not_told", error=str(error))
        self._reporter.bypass = lambda: self._bypass.status(self._socket.path, after_s)

    def _tell_config(self, loaded: Loaded) -> None:
        self._tell_bypass()
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
        loop.add_signal_handler(signal.SIGUSR2, self._ask_for_upgrade)

    def _ask_for_upgrade(self) -> None:
        if self._upgrade_asked.is_set():
            self._log.warning("upgrade_refused", reason="another one is under way")
        self._upgrade_asked.set()

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
