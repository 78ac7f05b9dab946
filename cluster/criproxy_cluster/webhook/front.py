"""The webhook's front: HTTP/1.1 over TLS, which hostile and idle connections can't take from those that ask.

How it works
------------
Each connection is a task of its own, from its accept on: TLS handshake, head, body, answer, then the next request.
What is bounded:

| what | by | what becomes of it beyond that |
|---|---|---|
| a whole head, from accept (or from its first byte, of a later request) | `head_s` | the connection is cut |
| a whole request and its answer | `request_s` | the connection is cut |
| a connection that waits for another request | `idle_s` | it is closed |
| connections | `connections` | the one that is worth least is cut |
| bytes of all bodies and answers together | `held_bytes` | what comes waits, and the oldest long request is cut |
| one body | `Answers.most_bytes` | 413 |
| a body in chunks, each of which costs as much as a long one | | 411: who asks here says how long it is |
| a request that comes before the answer to the last one | | it has none: the connection is closed |

A connection is worth least when it has never had an answer, then when it waits for another request, then when it is
amid one; of two that are worth the same, the older one in that state is. So a new connection is always let in, and one
that has asked before is not cut by those that never ask. Each has `grace_s` to ask before it is cut for another, which
waits in the kernel's queue until then: or those that come back as soon as they are cut would cut good ones, too. For
bytes, one request is cut each `CUT_EVERY_S`, as who comes back only sends as much again. Requests of up to
`SHORT_BYTES`, as nearly all reviews are, wait for nobody's.

What takes the processor's time has turns. TLS begins with the newest connection first, so that whoever comes amid a
crowd need not wait for all of it; long heads are read and answers are worked out one after another, the shortest
request first, so that a review of ordinary size waits for two of the largest at most. One turn of `OLDEST_EACH` is the
one's who has waited longest, as new connections and short requests can come without end.

**The end.** From `end` on, `/readyz` says no, so that the Service forgets this replica; and what comes meanwhile is
answered as ever, on old connections and new ones, but with `Connection: close`, so that clients let go of them. After
`lame_duck_s` nothing is accepted any more, what waits is closed, and what is under way is answered, within `request_s`.
Where another part of the process fails, `serve` is cancelled: the same, without the `lame_duck_s`.

A server library has some of it: uvicorn counts connections and answers 503 beyond, hypercorn times single reads out,
aiohttp bounds neither the head's time nor bytes in all. None cuts the worst connection for a good one, and each counts
one only from its TLS handshake on. So the parser is h11, which uvicorn has, too; it takes 24 MiB and 0.6 s to start
where uvicorn with Starlette takes 31 MiB and 1.5 s.
"""

import asyncio
import socket
import ssl
from asyncio import sslproto
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Protocol

import h11
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

CHUNK_BYTES: Final = 16 << 10
"""Read at once, and the longest head. A record of TLS has as much at most."""

TLS_BUFFER_BYTES: Final = 16 << 10
"""Asyncio's own is 256 KiB, written to for each connection that is made: the API server keeps dozens of them."""

SHORT_BYTES: Final = 64 << 10
SHORT_HEAD_BYTES: Final = 1 << 10
"""Of a head that waits for no turn. The API server's has some 400."""

OLDEST_EACH: Final = 4
CUT_EVERY_S: Final = 0.25
ACCEPTED_AT_ONCE: Final = 32
BACKLOG: Final = 1024
CLOSING_S: Final = 1.0
"""For the other end to take the last of an answer, and TLS's end."""

KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""Source: tcp(7). A client that is gone without a word is noticed after a minute."""

SHED_LOGGED_S: Final = 60.0


class FrontLimits(Struct, frozen=True):
    """See the table of the module. `idle_s` is above the 90 s of the API server's client, which closes first.

    `turn_bytes`: a body of as many waits for no turn, where its answer costs next to nothing.
    """

    head_s: float = 5.0
    request_s: float = 10.0
    idle_s: float = 120.0
    connections: int = 1024
    grace_s: float = 1.0
    held_bytes: int = 32 << 20
    lame_duck_s: float = 10.0
    turn_bytes: int = 0


class Reply(Struct, frozen=True):
    status: int
    body: bytes
    media_type: str = "text/plain; charset=utf-8"


class Answers(Protocol):
    """What is served. `most_bytes`: of a body."""

    @property
    def most_bytes(self) -> int: ...

    def answer(
        self, method: str, path: str, body: bytes | bytearray, *, ending: bool
    ) -> Reply | Coroutine[Any, Any, Reply]:
        """Never raises. `ending`: this replica is about to end. An answer that waits for something is a coroutine."""


class _Connection:
    """`worth`: 0 until it has had an answer, then 1 while it waits and 2 while it asks; `since_s` of that state."""

    def __init__(self, number: int, now_s: float) -> None:
        self.number = number
        self.worth = 0
        self.since_s = now_s
        self.held_bytes = 0
        self.asked = False
        """Whether a request has begun."""
        self.cut = False

    def begins(self, now_s: float) -> None:
        self.asked = True
        if self.worth:
            self.worth, self.since_s = 2, now_s

    def waits(self, now_s: float) -> None:
        self.asked, self.worth, self.since_s = False, 1, now_s


_Task = asyncio.Task[None]


class _Gone(Exception):
    """The other end has closed the connection."""


class _Turns:
    """One goes after another: the one with the lowest rank, and each so often the one who has waited longest."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], int] = {}
        """Each with its rank, as they came."""
        self._task: _Task | None = None

    async def take(self, rank: int) -> None:
        """Returns when it is one's turn, which lasts until one waits for something."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[mine] = rank
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._give())
        await mine

    async def _give(self) -> None:
        """Each has had its turn before the next is chosen, of all that have come until then."""
        turn = 0
        while self._waiting:
            oldest = turn % OLDEST_EACH == OLDEST_EACH - 1
            one = next(iter(self._waiting)) if oldest else min(self._waiting, key=self._waiting.__getitem__)
            del self._waiting[one]
            if not one.done():
                turn += 1
                one.set_result(None)
                for _ in range(3):  # it has its turn, and what came meanwhile is read
                    await asyncio.sleep(0)


class HasContext(Protocol):
    """Who has the server's certificate; without one, the context accepts no call."""

    @property
    def context(self) -> ssl.SSLContext: ...


class Front:
    """Serves `answers` by what `certificate` has at a connection's begin, until `end`, and all answers are out."""

    def __init__(
        self, answers: Answers, certificate: HasContext, log: FilteringBoundLogger, limits: FrontLimits | None = None
    ) -> None:
        sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
        self._answers = answers
        self._certificate = certificate
        self._log = log
        self._limits = limits or FrontLimits()
        self._open: dict[_Task, _Connection] = {}
        self._held_bytes = 0
        self._greetings = _Turns()
        self._works = _Turns()
        self._end = asyncio.Event()
        self._cut_s = self._shed_s = float("-inf")
        self.port = 0
        """0 until it listens."""
        self.cuts = 0
        """How many connections were cut, as there were too many."""

    def end(self) -> None:
        self._end.set()

    async def serve(self, address: str, port: int) -> None:
        """`address` "": all that there are, as a Pod of an IPv6 cluster has no other. Raises OSError."""
        listener = _listen(address, port)
        self.port = listener.getsockname()[1]
        accepting, ending = asyncio.create_task(self._accept(listener)), asyncio.create_task(self._end.wait())
        try:
            await asyncio.wait([accepting, ending], return_when=asyncio.FIRST_COMPLETED)
            if accepting.done():
                accepting.result()  # it never ends by itself: what it raises ends the process, which starts anew
            self._log.info("ends", connections=len(self._open), seconds=self._limits.lame_duck_s)
            await asyncio.sleep(self._limits.lame_duck_s)
        finally:
            self._end.set()  # it is not, where this is cancelled
            for one in (accepting, ending):
                one.cancel()
            await asyncio.wait([accepting, ending])
            listener.close()
            for task in [one for one, connection in self._open.items() if not connection.asked]:
                task.cancel()
            if self._open:
                _, late = await asyncio.wait(list(self._open), timeout=self._limits.request_s)
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)

    # --- connections ------------------------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        loop, accepted = asyncio.get_running_loop(), 0
        while True:
            try:
                made, _ = await loop.sock_accept(listener)
            except OSError as error:  # no descriptor is left, or the client is gone already
                self._log.warning("not_accepted", error=str(error))
                await asyncio.sleep(0.1)
                continue
            try:
                _keep_alive(made)
            except OSError:
                made.close()
                continue
            await self._make_room()
            accepted += 1
            if accepted % ACCEPTED_AT_ONCE == 0:
                await asyncio.sleep(0)  # a full queue must not keep the others from their turns
            connection = _Connection(accepted, loop.time())
            task = asyncio.create_task(self._keep(made, connection))
            self._open[task] = connection
            task.add_done_callback(self._open.pop)

    async def _make_room(self) -> None:
        now_s = asyncio.get_running_loop().time
        while len(self._open) >= self._limits.connections:
            worst = min(self._open, key=self._worth)
            if (left_s := self._open[worst].since_s + self._limits.grace_s - now_s()) <= 0.0:
                self._shed(worst, "connections")
            else:
                await asyncio.sleep(min(left_s, 0.1))  # another may end before

    def _worth(self, task: _Task) -> tuple[int, float]:
        connection = self._open[task]
        return connection.worth, connection.since_s

    def _shed(self, task: _Task, what: str) -> None:
        connection = self._open.pop(task)
        task.remove_done_callback(self._open.pop)
        self.holds(connection, 0)
        connection.cut = True
        self.cuts += 1
        task.cancel()
        if (now_s := asyncio.get_running_loop().time()) - self._shed_s >= SHED_LOGGED_S:
            self._shed_s = now_s
            self._log.warning("connections_cut", reason=f"too many {what}", consequence="the least useful are closed")

    async def _keep(self, made: socket.socket, connection: _Connection) -> None:
        """All of a connection's life. Whatever the other end does ends it alone."""
        limits, loop = self._limits, asyncio.get_running_loop()
        transport: asyncio.BaseTransport | None = None
        begun = False
        try:
            reader = asyncio.StreamReader(CHUNK_BYTES)
            protocol = asyncio.StreamReaderProtocol(reader)
            async with asyncio.timeout(limits.head_s) as limit:
                await self._greetings.take(-connection.number)
                begun = True
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol,
                    made,
                    ssl=self._certificate.context,
                    ssl_handshake_timeout=limits.head_s,
                    ssl_shutdown_timeout=CLOSING_S,
                )
                assert isinstance(transport, asyncio.WriteTransport)
                transport.set_read_buffer_limits(CHUNK_BYTES)  # type: ignore[attr-defined]  # TLS's own has it
                transport.set_write_buffer_limits(high=1, low=0)  # what is not sent yet is waited for
                writer = asyncio.StreamWriter(transport, protocol, reader, loop)
                await _Talk(self, connection, reader, writer, limit).run()
                async with asyncio.timeout(CLOSING_S):
                    writer.close()
                    await writer.wait_closed()
        except (OSError, TimeoutError, _Gone, h11.ProtocolError):  # TLS's errors are OSErrors
            pass
        finally:
            self.holds(connection, 0)
            if transport is not None:
                assert isinstance(transport, asyncio.WriteTransport)
                transport.abort()
            elif not begun:
                made.close()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    # --- what connections share -------------------------------------------------------------------------------------

    @property
    def limits(self) -> FrontLimits:
        return self._limits

    @property
    def answers(self) -> Answers:
        return self._answers

    @property
    def ending(self) -> bool:
        return self._end.is_set()

    def holds(self, connection: _Connection, held_bytes: int) -> None:
        """From now on, of its body or its answer."""
        if not connection.cut:
            self._held_bytes += held_bytes - connection.held_bytes
            connection.held_bytes = held_bytes

    async def has_room(self, connection: _Connection) -> None:
        """Returns when what this one holds is not too much, of all together."""
        now_s = asyncio.get_running_loop().time
        while self._held_bytes > self._limits.held_bytes and connection.held_bytes > SHORT_BYTES:
            if now_s() - self._cut_s >= CUT_EVERY_S:
                self._cut_s = now_s()
                holders = [one for one, other in self._open.items() if other.held_bytes > SHORT_BYTES]
                self._shed(min(holders, key=lambda one: self._open[one].since_s), "bytes")
            await asyncio.sleep(CUT_EVERY_S)

    async def turn(self, size_bytes: int) -> None:
        """Returns when it is this request's turn to be worked out."""
        await self._works.take(size_bytes)


class _Talk:
    """The requests of one connection, one after another."""

    def __init__(
        self,
        front: Front,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limit: asyncio.Timeout,
    ) -> None:
        self._front = front
        self._connection = connection
        self._reader = reader
        self._writer = writer
        self._limit = limit
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=CHUNK_BYTES)
        self._now_s = asyncio.get_running_loop().time
        self._only_head = False

    async def run(self) -> None:
        """Until the connection is to be closed. Raises OSError, _Gone and h11.ProtocolError."""
        limits = self._front.limits
        while True:
            await self._request()
            is_done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
            if not is_done or self._http.trailing_data[0]:
                return
            self._http.start_next_cycle()
            self._connection.waits(self._now_s())
            self._limit.reschedule(self._now_s() + limits.idle_s)
            await self._receive()
            self._limit.reschedule(self._now_s() + limits.head_s)

    async def _request(self) -> None:
        try:
            head = await self._event()
            if not isinstance(head, h11.Request):
                raise _Gone
            self._connection.begins(self._now_s())
            self._only_head = head.method == b"HEAD"
            self._limit.reschedule(self._now_s() + self._front.limits.request_s)
            body = await self._body(head)
        except h11.RemoteProtocolError as error:
            if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                await self._send(Reply(error.error_status_hint, b"criproxy: this is no HTTP/1.1\n"), close=True)
            raise
        if isinstance(body, Reply):
            await self._send(body, close=True)
            await self._discard()
            return
        if len(body) > self._front.limits.turn_bytes:
            await self._front.turn(len(body))
        method, path = head.method.decode(), head.target.decode("ascii", "replace").partition("?")[0]
        answer = self._front.answers.answer(method, path, body, ending=self._front.ending)
        del body
        reply = answer if isinstance(answer, Reply) else await answer
        self._front.holds(self._connection, len(reply.body))
        await self._send(reply, close=self._front.ending)
        self._front.holds(self._connection, 0)

    async def _body(self, head: h11.Request) -> bytearray | Reply:
        """A reply: why it is not read."""
        most = self._front.answers.most_bytes
        headers = dict(head.headers)
        if b"transfer-encoding" in headers:
            return Reply(411, b"criproxy: a body in chunks is not read: send it with a Content-Length\n")
        said = headers.get(b"content-length", b"0")
        if len(said) > 20 or int(said) > most:  # h11 has seen that it is a number
            return Reply(413, f"criproxy: more than {most} bytes\n".encode())
        if self._http.they_are_waiting_for_100_continue:
            self._writer.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        body = bytearray()
        try:
            while not isinstance(event := await self._event(), h11.EndOfMessage):
                if not isinstance(event, h11.Data):
                    raise _Gone
                body += event.data
                self._front.holds(self._connection, len(body))
                await self._front.has_room(self._connection)
        except BaseException:
            body.clear()  # the exception has it for a while
            raise
        return body

    async def _discard(self) -> None:
        """What is left of a long body, so that its sender reads our answer; not for ever."""
        self._front.holds(self._connection, 0)
        left_bytes = 2 * self._front.answers.most_bytes
        while left_bytes > 0 and (data := await self._reader.read(CHUNK_BYTES)):
            left_bytes -= len(data)

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            await self._receive()
        return event

    async def _receive(self) -> None:
        if not (data := await self._reader.read(CHUNK_BYTES)):
            raise _Gone
        self._http.receive_data(data)
        if self._http.their_state is h11.IDLE:
            head, _, _ = self._http.trailing_data[0].partition(b"\r\n\r\n")
            if len(head) > SHORT_HEAD_BYTES:
                await self._front.turn(len(head))

    async def _send(self, reply: Reply, *, close: bool) -> None:
        headers: Mapping[str, str] = {
            "Content-Type": reply.media_type,
            "Content-Length": str(len(reply.body)),
            **({"Connection": "close"} if close else {}),
        }
        head = h11.Response(status_code=reply.status, headers=[*headers.items()])
        body = () if self._only_head else (h11.Data(data=reply.body),)
        events = (head, *body, h11.EndOfMessage())
        data = b"".join(self._http.send(one) or b"" for one in events)
        for begin in range(0, len(data), CHUNK_BYTES):  # one long write would all be let into the socket's own buffer
            self._writer.write(data[begin : begin + CHUNK_BYTES])
            await self._writer.drain()


def _keep_alive(made: socket.socket) -> None:
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        made.setsockopt(socket.IPPROTO_TCP, option, value)


def _listen(address: str, port: int) -> socket.socket:
    if not address and socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    else:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, port), family=family, backlog=BACKLOG)
    listener.setblocking(False)
    return listener
