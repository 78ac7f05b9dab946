"""The one place where effects are built and wired: `criproxy run`."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec import Struct

from criproxy import __version__
from criproxy.cgroup.box import Box
from criproxy.cgroup.detect import detect_any, detect_signals
from criproxy.cgroup.driver import AbsentDriver, CgroupDriver, CgroupError
from criproxy.cgroup.naming import parse_placement
from criproxy.cgroup.pressure import PressureListener, online_pressure
from criproxy.cgroup.processes import ProcCgroupReader
from criproxy.cgroup.signals import SignalReader
from criproxy.cgroup.systemd.units import SystemdUnits
from criproxy.cgroup.topology import Topology, WholeCores, root_cpuset
from criproxy.cgroup.tree import Tree
from criproxy.clients.link import RuntimeInfo, RuntimeLink
from criproxy.clients.runtime import PodsRuntime
from criproxy.clients.services import ServiceAsker
from criproxy.concurrency.clock import Clock
from criproxy.concurrency.closing import done_all
from criproxy.concurrency.workers import Workers
from criproxy.config import Config, Loaded, OwnFiles
from criproxy.config.last_run import with_last_sockets
from criproxy.config.settings import Observe
from criproxy.control.capacity import CapacityReader
from criproxy.control.decider import Decider
from criproxy.control.guard import CpuGuard
from criproxy.control.memory_pressure import EvictionHard
from criproxy.daemon import footprint
from criproxy.daemon import settings as settings_of
from criproxy.daemon.attachment_watch import AttachmentWatch
from criproxy.daemon.bypass import Bypass, directories_of_service
from criproxy.daemon.checkpoint import Checkpointer, CheckpointFile, Remembered
from criproxy.daemon.hold_offs import OperatorsHoldOffs
from criproxy.daemon.kubernetes import KubernetesPart, load_first
from criproxy.daemon.lifecycle import ActiveParts, Tasks, Threads, Watchdog, run_apart
from criproxy.daemon.register import OTHERS, PARTS
from criproxy.daemon.reload import FileWatch, Reload
from criproxy.daemon.round import Round, one_of
from criproxy.daemon.settings import Timetable
from criproxy.daemon.upgrade.admission import Admissions
from criproxy.daemon.upgrade.predecessor import Predecessor
from criproxy.daemon.upgrade.successor import command_of
from criproxy.daemon.upgrade.upgrades import Upgrades
from criproxy.fronts.chosen import ChosenEngine
from criproxy.fronts.cri.interception import CriInterceptor
from criproxy.fronts.engine import NoInterceptor
from criproxy.fronts.event_loop import EventLoop
from criproxy.fronts.nri.front import NriFront
from criproxy.fronts.nri.plugin import EVENTS_ASKED, NriPlugin
from criproxy.fronts.sentry.rules import SentryRules
from criproxy.fronts.socket import ListenSocket, SocketError
from criproxy.model import Sandbox
from criproxy.model.shown import Shows
from criproxy.observe import log as logs
from criproxy.observe.above_bound import AboveBound
from criproxy.observe.http import HttpServer
from criproxy.observe.listener import Listener, Serve, TcpAddress, UnixAddress
from criproxy.observe.log_writer import LogWriter
from criproxy.observe.metrics import Metrics
from criproxy.observe.notify import Notifier, notify_address, watchdog_interval_s
from criproxy.observe.recorder import Recorder
from criproxy.observe.report import Reporter
from criproxy.observe.routes import PRIVATE_S, PUBLIC_S, Routes
from criproxy.pods.control_loop import ControlLoop
from criproxy.pods.cpu_assignments import CpusOfBox
from criproxy.pods.cpu_manager import CpuManager
from criproxy.pods.disk_bounds import DiskBounds
from criproxy.pods.eviction import PodEviction
from criproxy.pods.hold_offs import HoldOffs
from criproxy.pods.host_paths import HostPaths
from criproxy.pods.interference import InterferenceWatch
from criproxy.pods.inventory import Inventory, PodObserver
from criproxy.pods.kubelets_driver import KubeletsDriver
from criproxy.pods.memory_relief import MemoryRelief
from criproxy.pods.part import NodeSettings, Ports
from criproxy.pods.placing import Placing
from criproxy.pods.pod_speeds import PodSpeeds
from criproxy.pods.policy_settings import loop_settings
from criproxy.pods.reconciler import Reconciler
from criproxy.pods.runtime import Running
from criproxy.pods.service_checks import ServiceChecks
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import Holds, StopRequests
from criproxy.pods.unbounded import UnboundedPods

if TYPE_CHECKING:
    from criproxy.kubelet.process import KubeletSearch
    from criproxy.observe.remote import RemoteListener

_LOAD_S: Final = 1.0
"""How long kubelet's calls wait at most for a disk with the checkpoint on it."""

_REGISTERED_S: Final = 5.0
"""How long a new process waits for NRI at most before it takes over."""

_SETTLE_S: Final = 1.0

_GRACE_S: Final = 5.0
"""What calls in flight get at the end; kubelet repeats what is cut off."""


def run(config_file: Path, dry_run: bool) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status. A bad config makes a pass-through, not a failure."""
    log_writer = logs.take_stderr()
    watch = FileWatch(config_file)  # before it is read: what changes from then on is seen
    own = OwnFiles(config_file)
    loaded = load_first(own, dry_run=dry_run)
    if directories := directories_of_service(os.environ):
        loaded = with_last_sockets(loaded, directories[0])
    logs.configure(loaded.config.observe.log_level)
    log = structlog.get_logger()
    driver: CgroupDriver
    try:
        driver = detect_any(Tree(), SystemdUnits(time.monotonic, time.sleep))
    except CgroupError as error:
        log.error("no_cgroups", error=str(error), consequence="while colocation is on, offline pods are refused")
        driver = AbsentDriver(str(error))

    async def serve() -> None:
        await Daemon(watch, own, loaded, driver, log_writer, dry_run=dry_run).serve()

    try:
        with asyncio.Runner(loop_factory=EventLoop) as runner:
            runner.run(serve())
    except SocketError as error:
        log.error("cannot_listen", error=str(error))
        return 1
    return 0


class Daemon:
    """All parts of a running criproxy. `loaded` was read from the file of `watch`, by `own`.

    With errors in `loaded`, it is a pass-through: nothing new is placed and no limit is raised, but containers still
    follow their sandboxes into the box.
    """

    def __init__(
        self,
        watch: FileWatch,
        own: OwnFiles,
        loaded: Loaded,
        driver: CgroupDriver,
        log_writer: LogWriter,
        *,
        dry_run: bool,
    ) -> None:
        """Each step builds what the next ones are given; nothing is set later."""
        config, clock = loaded.config, Clock()
        self._log = structlog.get_logger()
        self._tasks = Tasks(self._log)
        timetable, workers = Timetable(config), Workers()
        file = Path(config.proxy.listen_path).with_suffix(".hold-offs")
        hold_offs = HoldOffs(file, workers["hold-offs"], clock, self._log)
        hold_offs.read()
        settings = NodeSettings(
            config,
            timetable.stage(clock.wall_s()),
            pass_through=bool(loaded.errors),
            dry_run=dry_run,
            held_off=hold_offs.why_box(),
            front=config.proxy.front,
            own_folders=config.own_folders,
        )
        predecessor = Predecessor.of_environment(os.environ)

        metrics = Metrics(__version__, lambda: log_writer.dropped, (*OTHERS, *PARTS))
        self._link = RuntimeLink(Path(config.proxy.runtime_path), self._log)
        self._kubernetes = KubernetesPart(
            own, config, watch.ask, dry_run=dry_run, metrics=metrics, clock=clock, log=self._log
        )
        runtime = PodsRuntime(self._link, footprint.trim)
        by_cri = config.proxy.front == "cri"
        inventory = Inventory(runtime, driver, holds_sandboxes=by_cri, places_known=by_cri, clock=clock)
        holds = Holds(clock, hold_offs, settings.stops_by)
        cluster = self._kubernetes if config.kubernetes.enabled else None
        shared = PodsShared(inventory, runtime, holds, metrics, clock, self._log, evicts=cluster, tells=cluster)
        self._asker = ServiceAsker(runtime, config.interference.prometheus_server)
        self._ports = self._make_ports(settings, driver, shared, workers, self._asker)
        self._recorder = Recorder(
            metrics,
            self._ports.box,
            inventory,
            self._link,
            Notifier(notify_address(os.environ), clock),
            clock,
            AboveBound(self._log),
            holds,
            shared.day,
        )
        self._make_control(settings, driver)
        listen, switch = Path(config.proxy.listen_path), directories_of_service(os.environ)
        self._bypass = Bypass(switch, listen, self._link.path, config.proxy.bypass)
        self._socket = ListenSocket(listen, os.getpid(), self._bypass.socket, succeeds=predecessor is not None)
        self._make_proxy(settings, predecessor)
        self._reload = Reload(
            watch,
            settings,
            timetable,
            self._apply,
            bypass=self._bypass,
            socket=self._socket,
            recorder=self._recorder,
            metrics=metrics,
            notifier=self._recorder.notifier,
            clock=clock,
            log=self._log,
            hold_offs=hold_offs,
            load=self._kubernetes.load,
        )
        inside = Listener(UnixAddress(Path(config.proxy.status_path)), self._log)
        outside = Listener(TcpAddress(*config.observe.host_port), self._log)
        self._remote = _remote(config.observe, self._log)
        remote = () if self._remote is None else (self._remote,)
        self._reporter = self._make_reporter(driver, (inside, outside, *remote, log_writer))
        self._active = ActiveParts(self._tasks, self._running, self._make_listeners(config, inside, outside))
        self._upgrades = self._make_upgrades(predecessor)
        self._reload.begin(loaded)

    def _make_ports(
        self,
        settings: NodeSettings,
        driver: CgroupDriver,
        shared: PodsShared,
        workers: Workers,
        services: ServiceAsker,
    ) -> Ports:
        """The pods' box, and what else all parts need for their work."""
        config, cpus = settings.config, CpusOfBox(shared.inventory)
        cores = WholeCores(Topology(Tree(), root_cpuset(driver)), cpus.own, cpus.exclusive)
        return Ports(
            shared,
            Box(driver, settings_of.box(settings), cpus.cpus, shared.clock, cores=cores, workers=workers),
            cpus,
            StopRequests(shared.clock),
            services,
            ProcCgroupReader(),
            workers,
            Path(config.proxy.listen_path),
            Path(config.kubelet.root_dir),
        )

    def _make_control(self, settings: NodeSettings, driver: CgroupDriver) -> None:
        """What bounds the box, what answers harm, and the round of all parts."""
        shared, box, config = self._ports.shared, self._ports.box, settings.config
        parts = [part.made(self._ports) for part in PARTS]
        speeds = one_of(parts, PodSpeeds)
        disks, eviction = DiskBounds(shared, box), PodEviction(shared, box, shared.stopper())
        hard = _EvictionHardReader(config.proxy.listen_path)
        relief = MemoryRelief(shared, box, eviction, hard, self._ports.workers["kubelets-config"])
        cpuset = root_cpuset(driver)
        self._guard = CpuGuard(
            box,
            PressureListener(lambda: online_pressure(driver, box.path)),
            shared.clock,
            settings_of.guard(settings),
            counters=shared.counters,
            log=self._log,
        )
        signals, budget = _signal_reader(shared.clock), shared.budget
        services = one_of(parts, ServiceChecks)
        harm = InterferenceWatch(shared, box, signals, relief, eviction, services, disks, speeds, budget.counts.set)
        self._loop = ControlLoop(
            shared,
            box,
            CapacityReader(Path(cpuset) if cpuset else None, for_box=box.pods.may_have).read,
            Decider(loop_settings(settings), self._log),
            self._recorder,
            self._guard,
            relief,
            harm,
            self._kubernetes.giving_back,
        )
        file = CheckpointFile(Path(config.control.checkpoint), shared.clock, self._log)
        self._checkpointer = Checkpointer(file, self._loop, self._kubernetes, shared.holds, budget)
        everything = [self._loop, relief, disks, *parts, self._checkpointer]
        self._round = Round(everything, shared.counters, shared.clock, self._log)
        self._round.configure(settings)

    def _make_proxy(self, settings: NodeSettings, predecessor: Predecessor | None) -> None:
        """What carries kubelet's calls."""
        ports, shared = self._ports, self._ports.shared
        self._admissions = Admissions(ports.box.pods)
        shared.inventory.watch(_PodsOfDaemon(ports.box, self._guard, self._admissions))
        self._host_paths = HostPaths(settings.config.kubelet.root_dir)
        self._kubelets_driver = KubeletsDriver(shared.inventory, shared.runtime, ports.proc_cgroups, log=self._log)
        self._placing = Placing(
            settings_of.placing(settings, child_quota=ports.box.version == 2),
            shared.inventory,
            self._admissions,
            cpu_manager=one_of(self._round.parts, CpuManager),
            kubelets_driver=self._kubelets_driver,
            holds=shared.holds,
            host_paths=self._host_paths,
            counters=shared.counters,
            log=self._log,
        )
        self._nri = self._make_nri(settings.config, predecessor) if settings.front == "nri" else None
        self._engine = ChosenEngine(
            settings.config.proxy.engine,
            self._link.path,
            self._socket,
            pid=os.getpid(),
            interceptor=CriInterceptor(self._placing, self._log) if self._nri is None else NoInterceptor(),
            metrics=self._recorder.metrics,
            clock=shared.clock,
            log=self._log,
            nri=self._nri,
        )

    def _make_nri(self, config: Config, predecessor: Predecessor | None) -> NriFront:
        nri = NriFront(
            NriPlugin(self._placing, self._log),
            Path(config.proxy.nri_path),
            Path(config.proxy.listen_path).parent,
            one_of(self._round.parts, Reconciler).connected,
            self._link,
            sentry=one_of(self._round.parts, SentryRules),
            clock=self._ports.shared.clock,
            log=self._log,
            awaits=predecessor is not None and predecessor.nri_events == EVENTS_ASKED,
        )
        nri.configure(config)
        return nri

    def _make_reporter(self, driver: CgroupDriver, answering: Sequence[Shows]) -> Reporter:
        """What knows the state of all parts; `answering`: what shows how calls are answered."""
        shared, harm = self._ports.shared, self._loop.harm
        return Reporter(
            meters=self._recorder.metrics,
            recorder=self._recorder,
            box=self._ports.box,
            inventory=shared.inventory,
            link=self._link,
            engine=self._engine,
            kubelets_driver=self._kubelets_driver,
            history=self._loop.history,
            reconciler=one_of(self._round.parts, Reconciler),
            holds=shared.holds,
            interference=harm,
            no_cgroups=driver.reason if isinstance(driver, AbsentDriver) else "",
            attachment=one_of(self._round.parts, AttachmentWatch).told,
            published=self._kubernetes,
            shown=(
                *(() if self._nri is None else (self._nri,)),
                shared.holds.hold_offs,
                self._bypass,
                self._reload,
                Threads(self._ports.workers),
                self._host_paths,
                self._guard,
                harm,
                *self._round.parts,
                self._round,
                self._kubernetes,
                *answering,
            ),
        )

    def _make_listeners(self, config: Config, inside: Listener, outside: Listener) -> Mapping[Listener, Serve]:
        """Where questions are answered, and what answers there."""
        shared, unbounded = self._ports.shared, one_of(self._round.parts, UnboundedPods)
        hold_offs = shared.holds.hold_offs
        operators = OperatorsHoldOffs(hold_offs, self._reload, self._ports.box, shared.inventory, unbounded)
        routes = Routes(
            self._reporter,
            Path(config.proxy.status_path),
            pod_names=config.observe.pod_names,
            hold_offs=operators,
            clock=shared.clock,
        )
        found: dict[Listener, Serve] = {
            inside: HttpServer(routes.private, PRIVATE_S, self._log, routes.obey).serve,
            outside: HttpServer(routes.public, PUBLIC_S, self._log).serve,
        }
        if self._remote is not None:
            found[self._remote] = HttpServer(routes.remote, PUBLIC_S, self._log, greet=self._remote.greet).serve
        return found

    def _make_upgrades(self, predecessor: Predecessor | None) -> Upgrades:
        interval_s, notifier = watchdog_interval_s(os.environ, os.getpid()), self._recorder.notifier
        return Upgrades(
            engine=self._engine,
            socket=self._socket,
            admissions=self._admissions,
            box=self._ports.box,
            cpu_manager=one_of(self._round.parts, CpuManager),
            reconciler=one_of(self._round.parts, Reconciler),
            holds=self._ports.shared.holds,
            workers=self._ports.workers,
            reload=self._reload,
            remembered=self._checkpointer.remembered,
            kubernetes=self._kubernetes,
            active=self._active,
            watchdog=Watchdog(notifier, self._recorder.unhealthy, self._tasks, interval_s),
            notifier=notifier,
            recorder=self._recorder,
            tasks=self._tasks,
            command=command_of(sys.argv, sys.orig_argv),
            predecessor=predecessor,
            log=self._log,
            nri=self._nri,
        )

    def _running(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The parts that write, or act on the config."""
        remote = () if self._remote is None else (self._remote.credentials.run(),)
        kubernetes = self._kubernetes.run(self._reporter, self._loop.harm.speeds)
        return self._guard.run(), self._round.run(), self._reload.run(), kubernetes, *remote

    def _apply(self, settings: NodeSettings) -> None:
        """The one way in for settings."""
        of, box = settings_of, self._ports.box
        box.configure(of.box(settings))
        self._placing.configure(of.placing(settings, child_quota=box.version == 2))
        self._guard.configure(of.guard(settings))
        self._ports.shared.holds.configure(settings.stops_by)
        self._round.configure(settings)
        if self._nri is not None:
            self._nri.configure(settings.config)
        self._bypass.configure(settings.config.proxy.bypass)
        self._kubernetes.configure(settings.config)

    # --- the process ------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Run until a signal ends it. Raises SocketError when the socket can't be had, and what a part failed of."""
        self._handle_signals()
        await one_of(self._round.parts, CpuManager).refresh()  # before a first box is made
        await self._engine.start()
        self._socket.follow(self._link.path)
        self._tasks.keep(self._link.run(self._connected))
        try:
            await self._serve()
        finally:
            await self._end()
        if self._tasks.failure is not None:
            raise self._tasks.failure

    async def _serve(self) -> None:
        """Take over from a predecessor, if there is one, and work until the end, or until another takes over."""
        if not await self._upgrades.take_over(self._recorder.config.errors):
            return
        await self._restore()
        self._socket.publish()
        if self._nri is not None:
            self._nri.act()
        self._log.info("listening", socket=str(self._socket.path), runtime=str(self._link.path), pid=os.getpid())
        handed_over = await self._upgrades.begin()
        self._tasks.attempt("settle", _settle_soon())
        await self._tasks.race(handed_over)

    async def _restore(self) -> None:
        """Have the parts know what was known before; when the disk is slow, they get it while all goes on, but that
        nothing is given back. A predecessor hands it over; one of an earlier version leaves the ladder in the file.
        """
        learned, ladder = self._upgrades.learned, self._upgrades.ladder
        self._checkpointer.restore(Remembered(learned, ladder), 0.0)
        if ladder is not None:
            return
        load = self._checkpointer.load(predictors=not learned, promises=self._upgrades.predecessor is None)
        loading = self._tasks.attempt("load the checkpoint", load)
        await asyncio.wait((loading,), timeout=_LOAD_S)

    async def _end(self) -> None:
        await done_all(
            self._log,
            ("hand over, or say that this ends", self._upgrades.end),
            ("stop the engine", partial(self._engine.stop, _GRACE_S)),
            ("end the tasks", self._tasks.cancel),
            ("end the parts", self._cease),
            ("close the link to the runtime", self._link.close),
            ("close the box", self._ports.box.close),
            ("close the reader of processes", self._ports.proc_cgroups.close),
            ("close the reader of paths", self._host_paths.close),
            ("close the parts", self._round.close),
            ("close the thread for online services", self._asker.close),
            ("close the threads", self._ports.workers.close),
            ("close the thread for the config", self._reload.close),
            ("release the sockets", self._active.release_sockets),
        )

    async def _cease(self) -> None:
        """What they know last is saved, if they worked here until now."""
        worked = self._active.goes_on
        await self._active.cease()
        if worked:
            await self._checkpointer.save_last()

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._tasks.stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload.asked.set)
        loop.add_signal_handler(signal.SIGUSR2, self._upgrades.ask)

    # --- the runtime ------------------------------------------------------------------------------------------------

    async def _connected(self, _: RuntimeInfo) -> None:
        self._socket.follow(self._link.path)
        if self._upgrades.waiting:
            await self._ports.shared.inventory.refresh()
        else:
            await one_of(self._round.parts, Reconciler).connected()
        if self._upgrades.waiting and self._nri is not None:
            with contextlib.suppress(TimeoutError):  # a node without NRI can be upgraded all the same
                async with asyncio.timeout(_REGISTERED_S):
                    await self._nri.registered.wait()
        self._upgrades.listed.set()
        self._tasks.attempt("look for kubelet's cgroup driver", self._kubelets_driver.find())


class _PodsOfDaemon(PodObserver, Struct):
    """What box, guard and the other process of a hand-over need to know of pods."""

    box: Box
    guard: CpuGuard
    admissions: Admissions

    def pod_started(self, running: Running) -> None:
        if running.container and running.sandbox.placement is not None:
            self.box.pods.started(parse_placement(running.sandbox.placement).name)
        self.guard.wake()
        self.admissions.changed()

    def resize_done(self, sandbox: Sandbox) -> None:
        self.admissions.changed()

    def pod_removed(self, sandbox: Sandbox) -> None:
        self.admissions.changed()


async def _settle_soon() -> None:
    """In a thread, a moment from now: the first calls are not to share the interpreter with this. Then the event loop,
    too, is as it stays.
    """
    while True:
        await asyncio.sleep(_SETTLE_S)
        with contextlib.suppress(RuntimeError):  # the machine has no more threads
            await run_apart("deferred-imports", footprint.settle)
            break
    if isinstance(loop := asyncio.get_running_loop(), EventLoop):
        loop.use_timerfd()


def _signal_reader(clock: Clock) -> SignalReader | None:
    try:
        return detect_signals(Tree(), clock)
    except CgroupError:  # the search for a driver has logged it
        return None


def _remote(observe: Observe, log: structlog.typing.FilteringBoundLogger) -> "RemoteListener | None":
    if observe.remote_host_port is None or observe.tls_certificate is None or observe.tls_key is None:
        return None
    from criproxy.observe.remote import Credentials, RemoteFiles, RemoteListener  # which imports ssl

    files = RemoteFiles(
        Path(observe.tls_certificate),
        Path(observe.tls_key),
        Path(observe.client_ca) if observe.client_ca else None,
        Path(observe.token_file) if observe.token_file else None,
    )
    address = TcpAddress(*observe.remote_host_port, "observe.remote_address")
    return RemoteListener(address, Credentials(files, log), log)


class _EvictionHardReader(Struct):
    """Reads kubelet's threshold. What it needs is imported with the first call: it takes its time."""

    listen: str
    _search: "KubeletSearch | None" = None

    def __call__(self) -> EvictionHard:
        from criproxy.kubelet.evictionhard import read
        from criproxy.kubelet.process import KubeletSearch

        self._search = self._search or KubeletSearch(self.listen)
        return read(self._search)
