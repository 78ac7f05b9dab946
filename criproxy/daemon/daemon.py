"""The one place where effects are built and wired: `criproxy run`."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from criproxy import __version__
from criproxy.cgroup.box import Box
from criproxy.cgroup.detect import detect_any
from criproxy.cgroup.disk_weight import DiskWeights
from criproxy.cgroup.driver import AbsentDriver, CgroupDriver, CgroupError
from criproxy.cgroup.naming import parse_placement
from criproxy.cgroup.pressure import PressureListener
from criproxy.cgroup.processes import ProcCgroupReader, RealtimeThreads
from criproxy.cgroup.systemd.units import SystemdUnits
from criproxy.cgroup.tree import Tree
from criproxy.cgroup.worker import Worker
from criproxy.config import Loaded, load
from criproxy.control.capacity import CapacityReader
from criproxy.control.clock import SystemClock
from criproxy.control.guard import Guard
from criproxy.control.loop import Loop
from criproxy.control.memory_pressure import EvictionHard
from criproxy.daemon import bypass, footprint, late
from criproxy.daemon.active_parts import Work
from criproxy.daemon.checkpoint import Checkpointer, CheckpointFile
from criproxy.daemon.reload import Reload, Told
from criproxy.daemon.standing import Standing
from criproxy.daemon.tasks import Tasks
from criproxy.daemon.timetable import Timetable
from criproxy.daemon.upgrade.admission import Admissions
from criproxy.daemon.upgrade.predecessor import Predecessor
from criproxy.daemon.upgrade.successor import command_of
from criproxy.daemon.upgrade.upgrades import Parts, Upgrades
from criproxy.daemon.watch import FileWatch
from criproxy.daemon.watchdog import Duty
from criproxy.fronts.chosen import ChosenEngine
from criproxy.fronts.cri.interception import HookInterceptor
from criproxy.fronts.cri.pods_runtime import PodsRuntime
from criproxy.fronts.cri.runtime import RuntimeInfo, RuntimeLink
from criproxy.fronts.socket import ListenSocket, SocketError
from criproxy.hooks import offline_chain
from criproxy.kubelet.cgroup_driver import find_driver
from criproxy.kubelet.cpu_manager import CpuManager, CpusOfBox
from criproxy.model import PodRef, Sandbox
from criproxy.observe import log as logs
from criproxy.observe.disk_watch import DiskWatch
from criproxy.observe.http import HttpServer
from criproxy.observe.listener import Listener, TcpAddress, UnixAddress
from criproxy.observe.log_writer import LogWriter
from criproxy.observe.metrics import Metrics
from criproxy.observe.notify import Notifier, notify_address
from criproxy.observe.report import Reporter
from criproxy.observe.routes import PRIVATE_S, PUBLIC_S, Routes
from criproxy.observe.status import AttachStatus
from criproxy.pods.inventory import Inventory
from criproxy.pods.memory_relief import MemoryRelief
from criproxy.pods.overhead import Overhead, Reader
from criproxy.pods.placement_check import Verifier
from criproxy.pods.realtime import RealtimeWatch
from criproxy.pods.reconciler import Upkeep
from criproxy.pods.runtime import Running
from criproxy.pods.unbounded import Unbounded

_LOOK_TIMEOUT_S: Final = 10.0

_LARGE_BYTES: Final = 1024 * 1024
_READ_S: Final = 2.0
"""Once a large list has been read, it leaves as much memory behind as it has bytes: its messages were small blocks."""

_LOAD_S: Final = 1.0
"""For so long kubelet's calls wait for a disk with the checkpoint on it."""

_GRACE_S: Final = 5.0
"""What calls in flight get at the end; kubelet repeats what is cut off."""


def run(config_file: Path, dry_run: bool) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status. A bad config makes a pass-through, not a failure."""
    log_writer = logs.take_stderr()
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
        asyncio.run(_serve(watch, loaded, driver, log_writer, dry_run=dry_run))
    except SocketError as error:
        log.error("cannot_listen", error=str(error))
        return 1
    return 0


async def _serve(
    watch: FileWatch, loaded: Loaded, driver: CgroupDriver, log_writer: LogWriter, *, dry_run: bool
) -> None:
    await Daemon(watch, loaded, driver, log_writer, dry_run=dry_run).serve()


class Daemon:
    """All parts of a running criproxy. `loaded` was read from the file of `watch`.

    With errors in `loaded`, it is a pass-through: nothing new is placed and no limit is raised, but containers still
    follow their sandboxes into the box.
    """

    def __init__(
        self, watch: FileWatch, loaded: Loaded, driver: CgroupDriver, log_writer: LogWriter, *, dry_run: bool
    ) -> None:
        self._loaded = loaded
        self._log = structlog.get_logger()
        self._tasks = Tasks(self._log)
        self._notifier = Notifier(notify_address(os.environ), lambda: time.monotonic_ns() // 1000)
        self._metrics = Metrics(__version__, lambda: log_writer.dropped)
        self._clock = SystemClock()
        timetable = Timetable(loaded.config)
        stage = timetable.stage(self._clock.wall_s())
        standing = Standing(loaded.config, stage, pass_through=bool(loaded.errors), dry_run=dry_run)

        self._link = RuntimeLink(Path(loaded.config.proxy.runtime_path), self._connected, self._log)
        self._make_pods(standing, driver)
        self._bypass = bypass.of_service(os.environ)
        predecessor = Predecessor.of_environment(os.environ)
        self._make_proxy(standing, driver, succeeds=predecessor is not None)
        self._reporter = Reporter(
            self._metrics,
            self._box,
            self._inventory,
            self._link,
            self._notifier,
            unbounded=self._unbounded,
            verifier=self._verifier,
            engine=self._engine,
            config_file=watch.file,
            dry_run=dry_run,
            clock=time.monotonic,
        )
        self._make_control(standing, driver)
        self._make_upgrades(predecessor)
        told = Told(self._reporter, self._metrics, self._notifier, self._bypass, self._socket, self._link.path)
        self._reload = Reload(watch, standing, timetable, self._apply, told, clock=self._clock, log=self._log)
        self._reporter.log_lines_missing = lambda: log_writer.missing
        self._reporter.attachment = self._attachment
        self._reporter.overhead = lambda: (self._overhead.work, self._overhead.problem)
        self._reporter.realtime = lambda: self._realtime.found
        self._reporter.disks = lambda: self._disk_watch.disks
        self._reporter.cpus_problem = lambda: self._cpu_manager.problem
        self._reporter.kubelets_driver = lambda: self._interceptor.kubelets_driver
        self._reload.begin(loaded)

    def _make_pods(self, standing: Standing, driver: CgroupDriver) -> None:
        """What looks after the pods that run."""
        self._pods = PodsRuntime(self._query)
        self._inventory = Inventory(self._pods, lambda placement: _exists(driver, placement))
        cpus = CpusOfBox(self._inventory)
        self._box = Box(driver, standing.box(), cpus.cpus, time.monotonic)
        self._cpu_manager = CpuManager(Path(standing.config.kubelet.root_dir), cpus, self._box)
        self._unbounded = Unbounded(standing.unbounded(), self._inventory, self._pods.stop)
        self._upkeep = Upkeep(
            standing.upkeep(),
            self._inventory,
            self._box,
            stop_sandbox=self._pods.stop,
            runtime_ready=lambda: self._link.ready,
            on_listed=lambda: self._verifier.look(),  # noqa: PLW0108  # it is made below, as it asks the upkeep
            on_swept=lambda count: self._reporter.swept(count),  # noqa: PLW0108
            bound=self._unbounded.look,
            clock=time.monotonic,
        )
        self._looks = Worker("node-looks", _LOOK_TIMEOUT_S)
        self._disk_reader = Worker("disk-reader", _LOOK_TIMEOUT_S)  # pods' logs, kubelet's config: a disk may hang
        self._overhead = Overhead(
            standing.overhead(),
            self._inventory,
            Reader(),
            self._disk_reader,
            runtime_pid=lambda: self._link.pid,
            evict=self._upkeep.evict,
            observer=self._metrics,
            clock=self._clock,
        )
        self._disk_watch = DiskWatch(DiskWeights(Tree()), self._looks, self._box.state, self._clock)
        self._realtime = RealtimeWatch(
            standing.verify().evict,
            self._inventory,
            RealtimeThreads(Tree()),
            self._looks,
            evict=self._upkeep.evict,
            clock=self._clock,
        )
        self._proc_cgroups = ProcCgroupReader()
        self._verifier = Verifier(
            standing.verify(),
            self._inventory,
            process_of=self._overhead.noting(self._pods.process_of),
            cgroups_of=self._proc_cgroups.read,
            evict=self._upkeep.evict,
            on_misplaced=self._metrics.on_misplaced,
            clock=self._clock,
        )
        self._relief = MemoryRelief(
            standing.relief(),
            self._inventory,
            self._box,
            stop_sandbox=self._pods.stop,
            read_hard=self._eviction_hard,
            worker=self._disk_reader,
            on_stopped=self._metrics.on_memory_eviction,
            clock=self._clock,
        )

    def _make_control(self, standing: Standing, driver: CgroupDriver) -> None:
        """What bounds the box."""
        self._reporter.relief = self._relief
        self._guard = Guard(
            self._box,
            PressureListener(self._box.pressure_file, time.monotonic),
            lambda: self._loop.outlook(),  # noqa: PLW0108  # the loop is made below, as it asks the guard
            self._clock,
            standing.guard(),
            observer=self._metrics,
            log=self._log,
        )
        self._loop = Loop(
            self._box,
            CapacityReader(Path(driver.root_cpuset) if driver.root_cpuset else None).read,
            self._clock,
            standing.loop(),
            observer=self._reporter,
            log=self._log,
            guard=self._guard.ceiling,
            starting=lambda: self._box.starting,
            kept_free=self._relief.kept_free,
            on_sample=self._relief.sampled,
        )
        checkpoint = CheckpointFile(Path(standing.config.control.checkpoint), self._clock, self._log)
        self._checkpointer = Checkpointer(checkpoint, self._clock, self._loop.checkpoint, self._log)

    def _make_proxy(self, standing: Standing, driver: CgroupDriver, *, succeeds: bool) -> None:
        """What carries kubelet's calls."""
        self._admissions = Admissions(self._box)
        self._interceptor = HookInterceptor(
            standing.intercept(),
            offline_chain(),
            self._inventory,
            self._admissions,
            self._metrics,
            child_quota=driver.capabilities.child_quota,
            on_started=self._pod_started,
            on_removed=self._pod_removed,
            cpu_manager=self._cpu_manager,
            held=self._held,
        )
        proxy, pid = standing.config.proxy, os.getpid()
        self._socket = ListenSocket(Path(proxy.listen_path), pid, self._bypass.socket, succeeds=succeeds)
        self._engine = ChosenEngine(
            proxy.carried_by,
            self._link.path,
            self._socket,
            pid=pid,
            interceptor=self._interceptor,
            metrics=self._metrics,
            clock=time.monotonic,
        )

    def _make_upgrades(self, predecessor: Predecessor | None) -> None:
        self._work = Work(self._tasks, self._working, self._make_listeners())
        parts = Parts(
            engine=self._engine,
            socket=self._socket,
            admissions=self._admissions,
            box=self._box,
            cpu_manager=self._cpu_manager,
            upkeep=self._upkeep,
            learned=self._loop.checkpoint,
            work=self._work,
            duty=Duty(self._notifier, self._reporter.unhealthy, self._tasks, os.environ, os.getpid()),
            notifier=self._notifier,
            reporter=self._reporter,
            metrics=self._metrics,
        )
        command = command_of(sys.argv, sys.orig_argv)
        self._upgrades = Upgrades(parts, self._tasks, command, predecessor, self._log)

    def _make_listeners(self) -> Sequence[Listener]:
        """Where questions are answered."""
        config = self._loaded.config
        private = UnixAddress(Path(config.proxy.status_path))
        endpoints = self._reporter.endpoints(self._loop.history, self._guard.status)
        routes = Routes(endpoints, private.path, pod_names=config.observe.pod_names)
        listeners = (
            Listener(private, HttpServer(routes.private, PRIVATE_S).serve, self._log),
            Listener(TcpAddress(*config.observe.host_port), HttpServer(routes.public, PUBLIC_S).serve, self._log),
        )
        self._reporter.deaf = lambda: [listener.problem for listener in listeners if listener.problem is not None]
        return listeners

    def _working(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The parts that write, or act on the config."""
        return (
            self._loop.run(),
            self._guard.run(),
            self._relief.relieve(),
            self._relief.follow_kubelet(),
            self._upkeep.run(),
            self._upkeep.tend(),
            self._cpu_manager.run(),
            self._verifier.run(),
            self._overhead.run(),
            self._disk_watch.run(),
            self._realtime.run(),
            self._checkpointer.run(),
            self._reload.reload_when_asked(),
            self._reload.watch_config(),
            self._reload.follow_schedule(),
        )

    def _apply(self, standing: Standing) -> None:
        """Set the parts to how things stand."""
        self._box.configure(standing.box())
        self._interceptor.settings = standing.intercept()
        self._loop.replace_settings(standing.loop())
        self._guard.replace_settings(standing.guard())
        self._unbounded.settings = standing.unbounded()
        self._upkeep.configure(standing.upkeep())
        self._verifier.configure(standing.verify())
        self._realtime.evicts = standing.verify().evict
        self._overhead.settings = standing.overhead()
        self._relief.configure(standing.relief())

    # --- the process ------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Run until a signal ends it. Raises SocketError when the socket can't be had, and what a part failed of."""
        self._handle_signals()
        await self._cpu_manager.look()  # before a first box is made
        await self._engine.start()
        self._socket.follow(self._link.path)
        self._tasks.keep(self._link.run())
        try:
            await self._serve()
        finally:
            await self._end()
        if self._tasks.failure is not None:
            raise self._tasks.failure

    async def _serve(self) -> None:
        """Take over from a predecessor, if there is one, and work until the end, or until another takes over."""
        if not await self._upgrades.take_over(self._loaded.errors):
            return
        await self._restore()
        self._socket.publish()
        self._log.info("listening", socket=str(self._socket.path), runtime=str(self._link.path), pid=os.getpid())
        handed_over = await self._upgrades.begin()
        self._tasks.keep(late.load_soon())
        await self._tasks.race(handed_over)

    async def _restore(self) -> None:
        """Have the predictors know what was known before; when the disk is slow, they get it while all goes on."""
        if self._upgrades.learned:
            self._loop.restore(self._upgrades.learned, 0.0)
            return
        loading = self._tasks.keep(self._checkpointer.load(self._loop.restore))
        await asyncio.wait((loading,), timeout=_LOAD_S)

    async def _end(self) -> None:
        await self._upgrades.end()
        await self._engine.stop(_GRACE_S)
        worked = self._work.goes_on
        await self._tasks.cancel()
        await self._work.cease()
        if worked:
            await self._checkpointer.save_last()
        await self._link.close()
        self._box.close()
        self._cpu_manager.close()
        self._proc_cgroups.close()
        self._looks.close()
        self._disk_reader.close()
        self._work.release_sockets()

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._tasks.stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload.asked.set)
        loop.add_signal_handler(signal.SIGUSR2, self._upgrades.ask)

    def _attachment(self) -> AttachStatus:
        from criproxy.commands.attach.seen import attachment  # late: only who asks for the status needs it

        return attachment(str(self._socket.path))

    def _eviction_hard(self) -> EvictionHard:
        from criproxy.kubelet.evictionhard import read  # late: it takes its time, and is not needed to serve

        return read(str(self._socket.path))

    def _held(self, pod: PodRef) -> str:
        """Why a pod may not start in the box for now. Another process that serves by now judges for itself."""
        if not self._work.goes_on:
            return ""
        who = (self._verifier, self._overhead, self._realtime, self._relief)
        return next((why for one in who if (why := one.held(pod))), "")

    # --- the runtime ------------------------------------------------------------------------------------------------

    async def _connected(self, _: RuntimeInfo) -> None:
        self._socket.follow(self._link.path)
        if self._upgrades.waiting:
            await self._inventory.refresh()
        else:
            await self._upkeep.connected()
        self._upgrades.listed.set()
        if self._interceptor.kubelets_driver is None:
            self._tasks.keep(self._find_driver())

    async def _find_driver(self) -> None:
        driver = await find_driver(
            self._inventory,
            process_of=self._pods.process_of,
            cgroups_of=self._proc_cgroups.read,
        )
        self._interceptor.kubelets_driver = self._interceptor.kubelets_driver or driver

    def _pod_started(self, running: Running) -> None:
        if running.container and running.sandbox.placement is not None:
            self._box.started(parse_placement(running.sandbox.placement).name)
        self._verifier.started(running)
        self._upgrades.changed()

    def _pod_removed(self, sandbox: Sandbox) -> None:
        self._upkeep.removed(sandbox)
        self._upgrades.changed()

    async def _query(self, method: str, request: bytes, timeout_s: float) -> bytes:
        answer = await self._link.call(method, request, timeout_s)
        if len(answer) > _LARGE_BYTES:
            asyncio.get_running_loop().call_later(_READ_S, footprint.trim)
        return answer


def _exists(driver: CgroupDriver, placement: str) -> bool:
    try:
        return driver.exists(placement)
    except CgroupError:  # of another shape than this driver's
        return False
