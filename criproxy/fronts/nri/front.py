"""The front that the runtime calls: it keeps a connection to the runtime's socket, or has one handed over.

    dialled or handed over -> registered -> synchronized -> a call for each event -> lost, and dialled anew

**Every call has an answer within `answers_within_s`.** The runtime calls its plugins one after the other, under one
lock, and throws out the one that takes longer than its own limit (2 s): the container is then made as if there were no
plugin. An offline pod's call that takes longer than ours is refused, and what was begun for it goes on for kubelet's
next try. An online pod's call is answered before the event loop does anything else.

**In a hand-over, the connection goes on**: once the new process has taken over, the old one answers the calls that it
has, and passes the open socket on, between two messages, with what it knows. Nothing registers: while a plugin does,
the runtime starts and stops no container, of online pods neither, and waits for stops that are under way.

Where one of the two can't do that, two processes are registered at a time, under one name: the new one registers before
it takes over and answers nothing until then, but for containers that the old one was too slow for; the old one leaves
once its calls have ended.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy.concurrency.clock import Clock
from criproxy.config import Config
from criproxy.fronts.http2.codes import Code
from criproxy.fronts.nri import messages
from criproxy.fronts.nri.handed import NAME, Handed, HandedListener
from criproxy.fronts.nri.mux import WireError
from criproxy.fronts.nri.plugin import NriAnswer, NriPlugin, NriRefusal, Pending, PluginMemory, RuntimeSeen
from criproxy.fronts.nri.promises import NOT_BOUNDED, gaps, unmet
from criproxy.fronts.nri.session import Called, Registered, Session
from criproxy.model.modes import Mode
from criproxy.model.shown import Gauge, Shows
from criproxy.vocabulary.names import PLUGIN

INDEX: Final = "95"
"""Late among the runtime's plugins: what others have set is seen."""

DEADLINE_S: Final = 0.45
_SHORT_S: Final = 0.2
"""In less, a busy node makes no room for a pod."""

_REGISTERS_S: Final = 10.0
"""From a connection to its first Synchronize. The runtime gives a plugin 5 s to register, and takes them in turn."""

_PASSED_S: Final = 10.0
"""For the old process's connection, once we have taken over: it answers its calls first."""

_SOON_S: Final = 0.02
_LATER_S: Final = 1.0
_SOON_FOR_S: Final = 30.0
"""For so long after a loss, it is dialled again so soon: a runtime that starts is about to make containers."""

_NOT_CALLED_S: Final = 30.0
"""A runtime that is restarted is back by then: nothing is lent after that."""

_NOT_TOLD: Final = "the runtime has not answered over CRI yet, which tells its version"


def answers_within_s(runtime: RuntimeSeen) -> float:
    """How long a call may take: `DEADLINE_S`, or half of the runtime's own limit, where it tells a short one."""
    told_s = runtime.request_timeout_s
    return min(DEADLINE_S, told_s / 2) if told_s else DEADLINE_S


class SaysVersion(Protocol):
    """What the runtime says of itself, over CRI."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...


class KnowsRuntime(Protocol):
    """`info`: None while the runtime has never answered."""

    @property
    def info(self) -> SaysVersion | None: ...


class KnowsSentry(Protocol):
    """`state`: "on" while the runtime has one. `starts`: whether it starts one, and the launcher, when it starts."""

    @property
    def state(self) -> str: ...
    @property
    def starts(self) -> bool: ...


class NriConnectionStatus(Struct, frozen=True):
    """The front's section of /status. `by`: "socket", or "launcher"; "": there is no connection."""

    socket: str
    connected: bool
    by: str
    runtime: str
    nri_version: str
    lost: int
    problem: str
    missed: int
    required_plugins: str


class PassedOn(Struct, frozen=True):
    """With a connection that another process goes on with. `by`: who has made it."""

    by: str
    plugin: PluginMemory


PassOn = Callable[[Sequence[socket.socket], bytes], object]
"""Gives another process a connection, and its `PassedOn` as JSON; (), and null: there is none. The sockets are the
runtime's and, where the launcher has brought it, the launcher's, which ends once nobody has that open.
"""


class NriFront(Shows):
    """In order: `start`, `act` once it is this process that places pods, `drain` when another does, `stop`.

    `connected` is awaited after each registration while it acts; it lists the runtime's pods. `run_dir`: where the
    launcher finds us. `link` tells which runtime it is, before it is dialled: there are some that a plugin can lock up.

    `sentry` says whether it keeps out what gets past us.

    `awaits`: the process before this one passes its connection on, to `take`, and until then it is
    the one that is called. `pass_on`, set before `drain`: the process after this one takes ours.
    """

    GAUGES = (
        Gauge("nri_connected", "Whether the runtime's NRI calls criproxy", lambda front: float(front.connected)),
        Gauge("nri_connections_lost", "Connections to the runtime's NRI that ended", lambda front: float(front.lost)),
        Gauge(
            "nri_missed_containers",
            "Containers of offline pods that were made outside the box while NRI did not call criproxy",
            lambda front: float(front.missed),
        ),
    )

    def __init__(
        self,
        plugin: NriPlugin,
        path: Path,
        run_dir: Path,
        connected: Callable[[], Awaitable[None]],
        link: KnowsRuntime,
        *,
        sentry: KnowsSentry,
        clock: Clock,
        log: FilteringBoundLogger,
        awaits: bool = False,
    ) -> None:
        self.plugin = plugin
        self.path = path
        self.lost = 0
        self.problem = _NOT_TOLD
        self.registered: Final = asyncio.Event()
        """Set while a connection is synchronized."""
        self.awaits = awaits
        self.pass_on: PassOn | None = None
        self._taken: Final = asyncio.Event()
        """Set once it awaits no more, and what came is among the connections."""
        if not awaits:
            self._taken.set()
        self._has_connected = connected
        self._link = link
        self._sentry = sentry
        self._unmet: tuple[str, ...] = ()
        self._clock = clock
        self._log = log
        self._launcher = HandedListener(run_dir / NAME, self._serve_handed, log)
        self._connections: set[NriConnection] = set()
        self._dialling: asyncio.Task[None] | None = None
        self._following: set[asyncio.Task[None]] = set()
        self._leaves = False
        self._absent: Final = asyncio.Event()
        """Set while no connection is synchronized, since `_absent_s`."""
        self._absent.set()
        self._absent_s = clock.monotonic_s()

    @property
    def connected(self) -> bool:
        return self.registered.is_set()

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return any(one.busy for one in self._connections)

    @property
    def missed(self) -> int:
        return self.plugin.missed

    def configure(self, config: Config) -> None:
        """From now on this holds."""
        self._unmet = unmet(config)

    # --- its life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Dial, until `drain` or `stop`."""
        messages.load()  # now, as an upgrade removes the files that it imports
        if self.awaits:
            self.registered.set()
            self._absent.clear()
        self._dialling = asyncio.ensure_future(self._dial())

    def act(self) -> None:
        """Place pods, and let the launcher find us. A path that can't be had is a warning: the socket is dialled."""
        self.plugin.act()
        if self.awaits:
            asyncio.get_running_loop().call_later(_PASSED_S, self._await_no_more)
        try:
            self._launcher.listen()
        except OSError as error:
            self._log.warning("launcher_cannot_come", error=str(error))

    def take(self, sockets: Sequence[socket.socket], state: bytes) -> None:
        """The other process's connection, as `PassOn` says; (): it has none, so we dial."""
        with contextlib.suppress(msgspec.MsgspecError):
            if self.awaits and not self._leaves and sockets:
                passed = msgspec.json.decode(state, type=PassedOn)
                self.awaits = False
                self.plugin.recall(passed.plugin)
                task = asyncio.ensure_future(self._go_on(*sockets, by=passed.by))
                self._following.add(task)
                task.add_done_callback(self._following.discard)
                return
        for one in sockets:
            one.close()
        self._await_no_more()

    def _await_no_more(self) -> None:
        if not self.awaits:
            return
        self.awaits = False
        self._taken.set()
        if not any(one.synchronized.is_set() for one in self._connections):  # the launcher may have brought one
            self.registered.clear()
            self._absent_s = self._clock.monotonic_s()
            self._absent.set()

    async def drain(self, limit_s: float) -> None:
        """Another process goes on: leave, once no call is under way, or after `limit_s`."""
        self._launcher.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                if self.pass_on is not None:
                    await self._taken.wait()
                self._leaves = True
                for one in list(self._connections):
                    await (one.idle() if self.pass_on is None else one.rest())
        self._leaves = True
        if self.pass_on is not None:
            self._pass(self.pass_on)
            self.pass_on = None
        self._leave()

    def _pass(self, pass_on: PassOn) -> None:
        """The first that rests between two messages."""
        for one in self._connections:
            if one.rests and one.synchronized.is_set() and (sockets := one.sockets):
                pass_on(sockets, msgspec.json.encode(PassedOn(one.by, self.plugin.memory())))
                return
        pass_on((), b"null")

    async def stop(self, grace_s: float) -> None:
        await self.drain(min(grace_s, DEADLINE_S))
        tasks = [one for one in (self._dialling, *self._following) if one is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _leave(self) -> None:
        for one in list(self._connections):
            one.close()

    # --- connections ------------------------------------------------------------------------------------------------

    async def _dial(self) -> None:
        while not self._leaves:
            await self._absent.wait()
            if self._leaves:
                return
            if (dialled := self._dialled()) is not None:
                began_s = self._clock.monotonic_s()
                good = await self._serve(dialled, PLUGIN, INDEX, "socket")
                if not good and self._clock.monotonic_s() - began_s < _LATER_S:
                    await asyncio.sleep(_LATER_S)
            recently = self._absent_for_s() < _SOON_FOR_S
            await asyncio.sleep(_SOON_S if recently else _LATER_S)

    def _dialled(self) -> socket.socket | None:
        if why := self._undialled():
            self._complain(why)
            return None
        dialled = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            dialled.connect(str(self.path))
        except OSError as error:
            dialled.close()
            self._complain(f"{self.path}: {error.strerror or error}")
            return None
        return dialled

    def _undialled(self) -> str:
        """Why the runtime must not be dialled; "": it may."""
        if (info := self._link.info) is None:
            return _NOT_TOLD
        if RuntimeSeen(info.name, info.version).locks_up:
            return (
                f"{info.name} {info.version} can lock up when a plugin registers (containerd/containerd#10085): "
                'update it to 1.7.16 or later, or set proxy.front = "cri"'
            )
        return ""

    async def _serve_handed(self, handed: Handed, runtime: socket.socket, launcher: socket.socket) -> None:
        await self._serve(runtime, handed.plugin_name, handed.plugin_index, "launcher", launcher)

    async def _go_on(self, runtime: socket.socket, *launcher: socket.socket, by: str) -> None:
        """With a connection on which another process was registered."""
        runtime.setblocking(False)
        connection = NriConnection(self.plugin, by, self._log, *launcher, goes_on=True)
        try:
            made = await self._connected_by(connection, runtime)
            self._taken.set()
            if made:
                await self._until_end(connection)
            else:
                self._ended(connection)
        finally:
            for one in launcher:
                one.close()

    async def _connected_by(self, connection: "NriConnection", runtime: socket.socket) -> bool:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, runtime)
        except OSError as error:
            runtime.close()
            self._complain(str(error))
            return False
        self._connections.add(connection)
        return True

    async def _serve(self, runtime: socket.socket, name: str, index: str, by: str, *launcher: socket.socket) -> bool:
        """Until the connection ends; whether it came to be synchronized."""
        connection = NriConnection(self.plugin, by, self._log, *launcher)
        if not await self._connected_by(connection, runtime):
            return False
        connection.send(connection.session.register(name, index))
        return await self._until_end(connection)

    async def _until_end(self, connection: "NriConnection") -> bool:
        """Whether it came to be synchronized."""
        waiting = asyncio.ensure_future(connection.synchronized.wait())
        try:
            await asyncio.wait((waiting, connection.ended), timeout=_REGISTERS_S, return_when="FIRST_COMPLETED")
            if not connection.synchronized.is_set():
                # Perhaps it was the event that this runtime does not know: the next attempt is without.
                self.plugin.asks_resizes = not (connection.events_refused and self.plugin.asks_resizes)
                connection.close()
                self._complain(connection.why or "the runtime did not register criproxy in time")
                return False
            self._begun(connection)
            await asyncio.wait((connection.ended,))
            return True
        finally:
            waiting.cancel()
            connection.close()
            self._connections.discard(connection)
            self._ended(connection)

    def _begun(self, connection: "NriConnection") -> None:
        self.problem = ""
        self.registered.set()
        self._absent.clear()
        seen = self.plugin.runtime
        self._log.info(
            "nri_registered",
            runtime=seen.name,
            version=seen.version,
            nri=seen.nri,
            by=connection.by,
            resizes=self.plugin.asks_resizes and seen.knows_resizes,
        )
        task = asyncio.ensure_future(self._follow())
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _follow(self) -> None:
        try:
            await (self._has_connected() if self.plugin.acts else self.plugin.placing.inventory.refresh())
        except Exception as error:  # the runtime's CRI is not there yet: its link does the same once it is
            self._log.info("nri_not_listed", error=str(error) or type(error).__name__)

    def _ended(self, connection: "NriConnection") -> None:
        if any(one.synchronized.is_set() for one in self._connections):
            return
        self.registered.clear()
        if connection.synchronized.is_set():
            self._absent_s = self._clock.monotonic_s()
            self.plugin.asks_resizes = True
        self._absent.set()
        if connection.synchronized.is_set() and not self._leaves:
            self.lost += 1
            self.problem = connection.why or "the runtime has closed the connection"
            self._log.warning(
                "nri_lost", reason=self.problem, consequence="until it is back, offline pods start outside the box"
            )

    def _complain(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._log.warning("nri_not_registered", reason=problem)

    # --- what it shows ----------------------------------------------------------------------------------------------

    def _absent_for_s(self) -> float:
        return self._clock.monotonic_s() - self._absent_s

    def knows_modes(self) -> bool:
        """A runtime whose NRI is off never registers us: the time that one has to come back is not lent in."""
        return self.connected or self.lost > 0 or self._absent_for_s() >= _NOT_CALLED_S

    def modes(self) -> Mapping[Mode, str]:
        absent_s = self._absent_for_s()
        if self.connected or absent_s < _NOT_CALLED_S:
            return {}
        return {Mode.NOT_CALLED: f"NRI has not called criproxy for {absent_s:.0f} s"}

    def problems(self) -> Iterator[str]:
        if not self.connected:
            yield f"NRI does not call criproxy, so offline pods start outside the box: {self.problem}"
        runtime = self.plugin.runtime
        if answers_within_s(runtime) < _SHORT_S:
            yield (
                f"{runtime.name} waits only {runtime.request_timeout_s:g} s for a plugin of NRI, and a busy node "
                "refuses offline pods then: raise it to 1 s or more (containerd: plugin_request_timeout, CRI-O: "
                "nri_plugin_request_timeout)"
            )

        if self._unmet:
            yield (
                f'{", ".join(self._unmet)}: no effect with proxy.front = "nri" (docs/nri.md): take it out, or attach '
                'kubelet with proxy.front = "cri"'
            )

    def unready(self) -> str | None:
        return None if self.connected else f"NRI: {self.problem}"

    def section(self) -> Mapping[str, Any]:
        seen = self.plugin.runtime
        by = next((one.by for one in list(self._connections) if one.synchronized.is_set()), "")
        return {
            "nri": NriConnectionStatus(
                str(self.path),
                self.connected,
                by,
                f"{seen.name} {seen.version}".strip(),
                seen.nri,
                self.lost,
                "" if self.connected else self.problem,
                self.missed,
                self._required(),
            )
        }

    def _required(self) -> str:
        """Whether the runtime waits for us with offline pods, as far as that can be known here."""
        plugin = self.plugin
        if not plugin.runtime.may_require_plugins:
            return "no: the runtime has no validator for it"
        if not plugin.started:
            return "not known: no offline pod has started yet"
        carry = f"{plugin.required} of {plugin.started} offline pods that have started carry the annotation"
        return f"{carry}; the runtime's default validator, by which alone it counts, does not tell whether it is on"

    def rows(self) -> Iterator[tuple[str, ...]]:
        now = self.section()["nri"]
        told = f"NRI by {now.by}, {now.runtime}" if self.connected else f"NRI, not connected: {self.problem}"
        lost = (
            [f"lost {self.lost} times, {self.missed} offline containers made outside the box meanwhile"]
            if self.lost
            else []
        )
        there = gaps(self.plugin.runtime, starts=self._sentry.starts, sentry=self._sentry.state == "on")
        past = [f"at the runtime's start: {there.at_start}; while criproxy is away: {there.away}"] if now.by else []
        yield "front", told, *lost, *past, f"required plugin: {now.required_plugins}"
        yield "not bounded", f"by NRI: {', '.join(NOT_BOUNDED)}"


class NriConnection(asyncio.Protocol):
    """One connection to the runtime: calls are answered in the order in which they are decided."""

    def __init__(
        self, plugin: NriPlugin, by: str, log: FilteringBoundLogger, *launcher: socket.socket, goes_on: bool = False
    ) -> None:
        self.by = by
        self._launcher = launcher
        self.session: Final = Session()
        self.synchronized: Final = asyncio.Event()
        self.ended: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self._configured = self._events_taken = goes_on
        if goes_on:
            self.synchronized.set()
        self.rests = False
        self.why = ""
        self._plugin = plugin
        self._log = log
        self._transport: asyncio.Transport | None = None
        self._pending: set[asyncio.Task[None]] = set()
        self._late: set[asyncio.Future[NriAnswer]] = set()
        """What is still decided of calls that were refused meanwhile: for kubelet's next try."""

    @property
    def busy(self) -> bool:
        return bool(self._pending)

    @property
    def events_refused(self) -> bool:
        """Whether the runtime has ended it as it was told which events we ask for."""
        return self._configured and not self._events_taken and self.ended.done()

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """Its own and, where the launcher has brought it, the launcher's; (): it has ended."""
        if self._transport is None or self._transport.is_closing():
            return ()
        return cast("socket.socket", self._transport.get_extra_info("socket")), *self._launcher

    async def idle(self) -> None:
        """Until every call has its answer."""
        while self.busy:
            await asyncio.wait(self._pending)

    async def rest(self) -> None:
        """Until every call has its answer, and nothing is read any more: what comes next is for another to read."""
        while (transport := self._transport) is not None:
            await self.idle()
            if self.session.whole and not transport.get_write_buffer_size():
                transport.pause_reading()
                self.rests = True
                return
            await asyncio.sleep(_SOON_S)

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # --- asyncio's --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.why = self.why or (str(exc) if exc else "")
        self._transport = None
        if not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        try:
            events = self.session.receive(data)
        except WireError as error:
            self.why = f"the runtime's bytes can't be followed: {error}"
            self.close()
            return
        for event in events:
            if isinstance(event, Called):
                self._called(event)
            elif isinstance(event, Registered) and event.refusal:
                self.why = f"the runtime does not register criproxy: {event.refusal}"
                self.close()

    # --- calls ------------------------------------------------------------------------------------------------------

    def _called(self, call: Called) -> None:
        answer: NriAnswer | Pending
        try:
            answer = self._plugin.call(call.method, call.payload)
        except Exception as error:  # a fault of our own must not hurt an online pod
            self._log.error("nri_call_failed", method=call.method, exc_info=error)
            answer = b""
        if isinstance(answer, Pending):
            task = asyncio.ensure_future(self._answer_later(call, answer))
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)
            return
        self._answer(call, answer)
        if call.method == "Configure":
            self._configured = True
        elif call.method == "Synchronize":
            self._events_taken = True  # the runtime looks at them before
            if isinstance(answer, bytes) and not self._plugin.awaits_more:
                self.synchronized.set()

    async def _answer_later(self, call: Called, pending: Pending) -> None:
        deciding = asyncio.ensure_future(pending.outcome)
        within_s = answers_within_s(self._plugin.runtime)
        await asyncio.wait((deciding,), timeout=within_s)
        if not deciding.done():
            self._answer(call, pending.late(within_s))
            self._late.add(deciding)
            deciding.add_done_callback(self._decided_late)
            return
        if (error := deciding.exception()) is not None:  # only offline pods' calls wait
            self._log.error("nri_call_failed", method=call.method, exc_info=error)
            self._answer(call, NriRefusal(Code.INTERNAL, f"criproxy failed in {call.method}: {error}"))
        else:
            self._answer(call, deciding.result())

    def _decided_late(self, deciding: asyncio.Future[NriAnswer]) -> None:
        self._late.discard(deciding)
        if not deciding.cancelled():
            deciding.exception()  # nobody is there to see it

    def _answer(self, call: Called, answer: NriAnswer) -> None:
        if isinstance(answer, NriRefusal):
            self.send(self.session.refuse(call, answer.code, answer.words))
        else:
            self.send(self.session.answer(call, answer))
