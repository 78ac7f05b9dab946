"""A daemon's part in a hand-over: take over from the criproxy before it, and hand over to the one after it."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
import structlog
from msgspec import Struct, field

from criproxy import __version__
from criproxy.cgroup.box import Box
from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.naming import parse_box
from criproxy.concurrency.closing import done_all
from criproxy.concurrency.worker import StuckError
from criproxy.concurrency.workers import Workers
from criproxy.control.series import PredictorState
from criproxy.daemon.checkpoint import GoesOn, Remembered
from criproxy.daemon.lifecycle import ActiveParts, Tasks, Watchdog
from criproxy.daemon.reload import Reload
from criproxy.daemon.upgrade.admission import Admissions, Remote
from criproxy.daemon.upgrade.channel import (
    MOST_STATE_BYTES,
    HeldMessage,
    LadderMessage,
    Learned,
    Main,
    NriMessage,
    Ready,
    Take,
)
from criproxy.daemon.upgrade.predecessor import NRI_EVENTS, Predecessor
from criproxy.daemon.upgrade.successor import HandedOver, HandOverRefusedError, Successor, UpgradeError, hand_over
from criproxy.fronts.engine import Engine
from criproxy.fronts.nri.front import NriFront
from criproxy.fronts.nri.plugin import EVENTS_ASKED
from criproxy.fronts.socket import ListenSocket, SocketError
from criproxy.observe.notify import Notifier
from criproxy.observe.recorder import Recorder
from criproxy.pods.cpu_manager import CpuManager
from criproxy.pods.interference import InterferenceState
from criproxy.pods.reconciler import Reconciler
from criproxy.pods.stopping import Holds

_RUNTIME_S: Final = 10.0
"""How long a new process waits for the runtime before it says that it is ready all the same."""

_ENDING_S: Final = 1.0
"""A process's descriptors close one after the other, when it is killed: its socket may be the last."""

_AGAIN_S: Final = 1.0

_SETTLES_S: Final = 5.0
"""How long pods that are being let in are waited for: nobody bounds the box meanwhile."""

_DRAIN_S: Final = 3600.0
"""How long a process that was replaced may take to finish its calls: as long as the slowest image pull."""

_Sockets = Sequence[socket.socket]


class Upgrades(Struct):
    """`command` starts the criproxy that is installed now. `predecessor`: who hands over to us, None: nobody.

    In order: `take_over`, `begin`, and `end` at the end. The daemon sets `listed` once it knows the runtime's pods.
    `learned`: what the predecessor has learned, `ladder`: where its ladder stands (None: it does not say); both after
    `take_over`. `waiting`: it still does the work. `nri`: the front whose connection to the runtime changes hands.

    The parts are what changes hands, or goes on in the one process and then the other.
    """

    engine: Engine
    socket: ListenSocket
    admissions: Admissions
    box: Box
    cpu_manager: CpuManager
    reconciler: Reconciler
    holds: Holds
    workers: Workers
    reload: Reload
    remembered: Callable[[], Remembered]
    kubernetes: GoesOn
    active: ActiveParts
    watchdog: Watchdog
    notifier: Notifier
    recorder: Recorder
    tasks: Tasks
    command: Sequence[str]
    predecessor: Predecessor | None
    log: structlog.typing.FilteringBoundLogger
    nri: NriFront | None = None
    listed: asyncio.Event = field(default_factory=asyncio.Event)
    learned: Mapping[str, PredictorState] = {}
    ladder: InterferenceState | None = None
    waiting: bool = False
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _handing_over: asyncio.Task[None] | None = None
    _successor: Successor | None = None

    def __post_init__(self) -> None:
        self.waiting = self.predecessor is not None

    # --- from the predecessor ---------------------------------------------------------------------------------------

    async def take_over(self, config_errors: tuple[str, ...]) -> bool:
        """Be ready, and wait for our turn; False: the predecessor has gone, or a signal has come."""
        if self.predecessor is None:
            return True
        turn = asyncio.create_task(self._turn(self.predecessor, config_errors))
        await self.tasks.race(turn)
        take = turn.result() if turn.done() else None
        turn.cancel()
        if take is None:
            stopped = self.tasks.stop.is_set()
            who = "this one has got a signal to end" if stopped else "the one that started this one has ended"
            self.log.warning("upgrade_given_up", reason=who)
            return False
        self.kubernetes.go_on_by(self.predecessor.kubernetes)
        try:
            await self.reload.read_again()  # before anything acts
        except (OSError, ValueError) as error:
            self.predecessor.decline(str(error))
            self.log.warning("upgrade_given_up", reason=str(error))
            return False
        self.waiting = False
        self.holds.recall(self.predecessor.held, 0.0)
        self.learned, self.ladder = self.predecessor.learned, self.predecessor.ladder
        self.active.adopt(self.predecessor.listeners())
        self.box.pods.expect(take.admitted)
        if take.box is not None:
            await self.cpu_manager.refresh()
            await self.reconciler.take_over(parse_box(take.box))
        return True

    async def begin(self) -> asyncio.Task[None]:
        """We serve now, so go to work. The task ends when another process has taken over from us."""
        if self.predecessor is None:
            self.watchdog.begin("waiting for the runtime")
        else:
            self.predecessor.serving()
            self.tasks.keep(self._attend(self.predecessor))
        await self.resume()
        self._handing_over = self.tasks.spawn(self._hand_over())
        return self._handing_over

    async def _turn(self, predecessor: Predecessor, errors: tuple[str, ...]) -> Take | None:
        with contextlib.suppress(TimeoutError):  # a node without its runtime can be upgraded all the same
            async with asyncio.timeout(_RUNTIME_S):
                await self.listed.wait()
        takes_nri = self.nri is not None and self.nri.awaits
        return await predecessor.turn(Ready(__version__, str(self.socket.path), errors, takes_nri=takes_nri))

    async def _attend(self, predecessor: Predecessor) -> None:
        """Stand in for the predecessor while it finishes its calls."""
        recorder = self.recorder
        recorder.predecessor(there=True)
        await predecessor.serve(
            self.admissions, lambda: self.watchdog.begin(recorder.headline()), self._relist, self._take_nri
        )
        recorder.predecessor(there=False)
        self.tasks.attempt("clear the sockets that others have left", self._clear_leftovers())

    def _take_nri(self, sockets: _Sockets, state: bytes) -> None:
        if self.nri is not None:
            self.nri.take(sockets, state)
            return
        for one in sockets:
            one.close()

    async def _clear_leftovers(self) -> None:
        await asyncio.sleep(_ENDING_S)
        self.socket.clear_leftovers()

    async def _relist(self) -> None:
        try:
            await self.reconciler.connected()
        except Exception as error:  # each listing to come makes up for it
            self.log.warning("not_relisted", error=str(error) or type(error).__name__)

    # --- to the successor -------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """An upgrade is wanted."""
        if self._asked.is_set():
            self.log.warning("upgrade_refused", reason="another one is under way")
        self._asked.set()

    async def end(self) -> None:
        """When there is a successor, finish our calls; else this process just ends."""
        if self._handing_over is not None and self._successor is None:
            self._handing_over.cancel()
            await asyncio.gather(self._handing_over, return_exceptions=True)
        self.watchdog.end()
        if self._successor is None:
            self.log.info("stopping")
            if not self.waiting:
                self.notifier.stopping()
        else:
            await self._retire(self._successor)

    async def rest(self) -> HandedOver:
        """Stop what writes, for another process to begin. Waits for no disk: until it begins, nobody bounds the box."""
        await self.holds.hold_offs.rest()  # the other one has to know what operators hear here
        await self.active.cease()
        self.admissions.hold()
        self.holds.rest(judges_on=self.nri is not None)  # by NRI, we are asked until the connection is passed on
        try:
            async with asyncio.timeout(_SETTLES_S):
                await self.box.settle()
            await self.workers.rest()  # after this, nothing is written by any thread
        except (CgroupError, StuckError) as error:
            raise HandOverRefusedError(f"{error}: try again") from error
        except TimeoutError as error:
            raise HandOverRefusedError(f"pods are let in for longer than {_SETTLES_S:g} s: try again") from error
        remembered = self.remembered()
        learned = (Learned(resource, state) for resource, state in remembered.predictors.items())
        ladder = LadderMessage(msgspec.Raw(msgspec.json.encode(remembered.interference)))
        held, take = HeldMessage(remembered.holds), Take(self.box.path, self.box.pods.admitted)
        return self.active.sockets(), (*learned, ladder, self.kubernetes.memory(), held, take)

    async def resume(self) -> None:
        """Let what writes work, if it does not. What fails of it keeps nothing else from working."""
        await done_all(
            self.log,
            ("let the threads write", self.workers.resume),
            ("let pods in", self.admissions.resume),
            ("judge which pods may start", self.holds.resume),
            ("obey operators", self.holds.hold_offs.resume),
            ("clear the sockets that others have left", self.socket.clear_leftovers),
            ("have kubelet's calls come here", self._publish),
            ("begin the parts", self._begin),
        )

    def _publish(self) -> None:
        if not self.active.goes_on and not self.socket.is_published:
            try:
                self.socket.publish()
            except SocketError:
                self.tasks.attempt("have kubelet's calls come here", self._publish_again())
                raise

    async def _publish_again(self) -> None:
        while not self.socket.is_published:
            await asyncio.sleep(_AGAIN_S)
            with contextlib.suppress(SocketError):
                self.socket.publish()

    def _begin(self) -> None:
        if not self.active.goes_on:
            self.recorder.begins()
            self.active.begin()

    async def _hand_over(self) -> None:
        """Hand over to a new process whenever somebody asks for it, and end once it has succeeded."""
        while True:
            await self._asked.wait()
            self.log.info("upgrade", command=list(self.command))
            try:
                self._successor = await hand_over(self, self.socket.path, self.command, self._environ())
            except Exception as error:  # all is as it was, whatever it is
                self._asked.clear()
                self.recorder.upgrade_failed(str(error), refused=isinstance(error, HandOverRefusedError))
                trouble = None if isinstance(error, UpgradeError) else error
                self.log.error("upgrade_failed", error=str(error), consequence="this process goes on", exc_info=trouble)
            else:
                self.active.leave_sockets()
                return

    def _environ(self) -> Mapping[str, str]:
        passes = self.nri is not None and self.nri.connected
        return os.environ | {NRI_EVENTS: f"{os.getpid()}:{EVENTS_ASKED}"} if passes else os.environ

    async def _retire(self, successor: Successor) -> None:
        """Finish the calls that are under way here, or came before their clients knew; a signal ends this."""
        self.notifier.main_pid(successor.pid)
        successor.channel.send(Main())
        remote = Remote(successor.channel)
        self.admissions.hand_to(remote)
        remote.changed()  # perhaps, since the successor has listed the runtime
        self.log.info("upgraded", to_pid=successor.pid, pid=os.getpid())
        answers = self.tasks.spawn(remote.run())
        if self.nri is not None and successor.takes_nri:
            self.nri.pass_on = partial(_pass_nri, successor, self.log)
        finished = asyncio.create_task(self._finished())
        await self.tasks.race(finished)
        self.log.info("retired", calls_finished=finished.done())
        for task in (finished, answers):
            task.cancel()

    async def _finished(self) -> None:
        await self.engine.drain(_DRAIN_S)
        if self.predecessor is not None:  # its pods are let in by way of us
            await self.predecessor.gone.wait()


def _pass_nri(
    successor: Successor, log: structlog.typing.FilteringBoundLogger, sockets: _Sockets, state: bytes
) -> None:
    """One whose state is too long for a message is not passed on: the new process dials the runtime."""
    if len(state) > MOST_STATE_BYTES:
        log.warning("nri_not_passed_on", state_bytes=len(state), most_bytes=MOST_STATE_BYTES)
        sockets, state = (), b"null"
    successor.give(sockets)
    successor.channel.send(NriMessage(msgspec.Raw(state)))
