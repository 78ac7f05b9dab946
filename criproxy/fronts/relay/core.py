"""The relay between one client connection and one connection to the runtime: bytes and events in, actions out.

No I/O and no clock, so that it can be tested and fuzzed without sockets; `connection` has the two sockets.

Streams
    Each client connection has a connection of its own to the runtime, and a call has the same stream id on both. Whole
    frames go on, most of them as the bytes that came: PING, SETTINGS, metadata, deadlines, cancellation and compression
    are the two peers' own affair. A call is one of two kinds, from its first HEADERS on:
    - *passing*: nothing of it is opened. It is only followed to its end, to be counted.
    - *hooked* (`wants` names its path): its HEADERS go on at once, but the relay is the end of its request's DATA.
      COLLECTING until END_STREAM; ASKED while the interceptor decides; SENDING while the runtime's windows are too
      small for the new message; SENT. The answer goes on as it comes, and is read beside when a `Learner` asks for it.
    A call is forgotten when both peers have ended their side, or one has reset it. Of a call that the relay itself has
    ended (refused, or cut off), frames that still come for it are dropped: `ended_here`.

Flow control
    A passing stream's window is the two peers' own. A hooked stream has two: the relay's towards the client
    (`advertised`) and the runtime's towards the relay (`window`), so a message larger than either can be collected.
    The connection's window is shared by both kinds of calls (`ConnectionWindow`, all in bytes):
        real        what the runtime still takes
        waiting     what the client has sent, and thereby paid for, and what has not gone to the runtime yet
        owed        what has gone to the runtime, and the client has not paid for: a message that has grown, or one
                    whose bytes were given back to the client early, so that it could go on
        advertised  what the client may send, = real + owed - waiting
    These hold after each step:
    - owed and waiting are not negative, and no more is sent than `real`;
    - a client that sends more than `advertised` has broken the protocol;
    - the client's own count of its window is `advertised`. So of a WINDOW_UPDATE of the runtime's, what settles `owed`
      is kept from the client, and what the client has paid in vain (a message that shrank, a call that was reset)
      settles `owed` first, and then is given back to it;
    - when nothing is owed and nothing waits, all three counts are the same.

Order
    Frames keep their order, but for these:
    - DATA for which `real` is too small waits in the `Outbox`, and what is not bound to it goes past: PING,
      WINDOW_UPDATE, and resets.
    - Header blocks never go past one another: each may change the header table that the next one refers to. Neither do
      they go past a held SETTINGS ACK, nor does that go past held DATA: it was sent under the windows before.
    - A reset goes past its call's DATA, which is dropped, but not past its HEADERS. A WINDOW_UPDATE of a stream whose
      HEADERS wait, waits with them.
    - Frames of the relay's own are put between any two frames, but never within a header block.
    A header block passes unaltered, so the peers' tables stay in step. After one that only one peer has seen, as its
    call was turned away or ended here, they are not (`diverged`): from then on all blocks in that direction are written
    anew, with no reference to a table.

Errors
    what happens                        the client sees            the runtime sees      counted as
    the interceptor refuses             its status, Trailers-Only  RST_STREAM            its status
    a hooked request is no message      INTERNAL                   RST_STREAM            INTERNAL
    the client resets a call            -                          its RST_STREAM        CANCELLED
    the runtime resets a call           its RST_STREAM             -                     as gRPC maps the error
    the runtime ends a hooked call      its answer                 RST_STREAM, when the  its status
      before it has the whole request                              request is not sent
    the client closes                   -                          its connection closes CANCELLED
    the runtime closes                  its connection closes      -                     UNAVAILABLE
    a peer breaks HTTP/2                its connection closes      its connection closes UNAVAILABLE
    What the interceptor or the relay itself raises is `connection`'s to handle.

A drain asks the client to take new calls elsewhere: GOAWAY, then a PING; calls that were under way come before its ACK,
and when the last of them has ended, the connection closes. Source: RFC 9113; gRPC over HTTP/2.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from criproxy.fronts.engine import Learner
from criproxy.fronts.http2 import frames
from criproxy.fronts.http2.codes import Code
from criproxy.fronts.http2.frames import MAX_STREAM, PING, BrokenError, Bytes
from criproxy.fronts.relay.actions import Action, Close, Forget, ToClient, ToRuntime
from criproxy.fronts.relay.client_to_runtime import ClientToRuntime
from criproxy.fronts.relay.outbox import Outbox
from criproxy.fronts.relay.runtime_to_client import RuntimeToClient
from criproxy.fronts.relay.state import RelayedCall, RelayState, RequestPhase

_PING: Final = b"hand-off"


class _Drain(Enum):
    """How far the graceful end of the connection is. Source: RFC 9113, section 6.8."""

    NO = auto()
    WANTED = auto()
    ANNOUNCED = auto()
    LAST_CALLS = auto()


class Relay:
    """One connection's relay. Each method returns what is to be done now, in order; after a `Close`, nothing more."""

    def __init__(self, wants: Callable[[str], bool]) -> None:
        self._state = state = RelayState()
        self._outbox = Outbox(state)
        self._client_to_runtime = ClientToRuntime(state, self._outbox, wants, self._ping_ack)
        self._runtime_to_client = RuntimeToClient(state, self._outbox, self._client_to_runtime)
        self._drain = _Drain.NO
        self._closed = False

    @property
    def greeted(self) -> bool:
        """Whether the client has begun as HTTP/2 begins."""
        return self._client_to_runtime.greeted

    def client_bytes(self, chunk: Bytes) -> list[Action]:
        if self._closed:
            return []
        try:
            self._client_to_runtime.feed(chunk)
        except BrokenError as error:
            return self._broken("client", error)
        return self._taken() if self._drain is _Drain.NO else self._done()

    def runtime_bytes(self, chunk: Bytes) -> list[Action]:
        if self._closed:
            return []
        try:
            self._runtime_to_client.scanner.feed(chunk)
        except BrokenError as error:
            return self._broken("runtime", error)
        return self._taken() if self._drain is _Drain.NO else self._done()

    def forward(self, stream: int, message: bytes, learn: Learner | None = None) -> list[Action]:
        """What the interceptor made of an `Ask`. With `learn`, an OK answer comes as `Learn`."""
        call = self._asked(stream)
        if call is None or (hook := call.hook) is None:
            return []
        hook.learn = learn
        return self._do(lambda: self._client_to_runtime.forward(call, hook, message))

    def refuse(self, stream: int, code: int, message: str) -> list[Action]:
        """The interceptor ends the call of an `Ask` with a status."""
        call = self._asked(stream)
        if call is None:
            return []
        return self._do(lambda: self._client_to_runtime.refuse(call, code, message))

    def drain(self) -> list[Action]:
        """Ask the client to take new calls elsewhere; `Close` comes when the last call here has ended."""
        if self._drain is _Drain.NO:
            self._drain = _Drain.WANTED
        return self._done() if not self._closed else []

    def end(self, stream: int, message: str) -> list[Action]:
        """End a call with UNAVAILABLE, whatever it is at."""
        call = self._state.calls.get(stream)
        if call is None or call.runtime_ended:
            return []
        return self._do(lambda: self._client_to_runtime.refuse(call, Code.UNAVAILABLE, message))

    def turn_away(self, message: str) -> None:
        """Answer all further calls with UNAVAILABLE."""
        self._client_to_runtime.refusing = message

    def client_closed(self) -> list[Action]:
        return self._close("the client has closed", Code.CANCELLED)

    def runtime_closed(self) -> list[Action]:
        return self._close("the runtime has closed", Code.UNAVAILABLE)

    def _asked(self, stream: int) -> RelayedCall | None:
        call = self._state.calls.get(stream)
        asked = call is not None and call.hook is not None and call.hook.phase is RequestPhase.ASKED
        return call if asked and not self._closed else None

    def _do(self, step: Callable[[], None]) -> list[Action]:
        """After the closing, nothing."""
        if self._closed:
            return []
        try:
            step()
        except BrokenError as error:
            return self._broken("client", error)
        return self._done()

    def _done(self) -> list[Action]:
        if self._drain is not _Drain.NO:
            if self._drain is _Drain.WANTED and self._runtime_to_client.scanner.greeted:
                self._drain = _Drain.ANNOUNCED
                self._client_to_runtime.scanner.show_pings()
                if self._runtime_to_client.last_stream == MAX_STREAM:
                    self._state.to_client.send(frames.goaway(MAX_STREAM))
                self._state.to_client.send(frames.frame(PING, 0, 0, _PING))
            if self._drain is _Drain.LAST_CALLS and not self._state.calls and self._outbox.idle:
                return self._close("drained", Code.UNAVAILABLE)
        return self._taken()

    def _broken(self, peer: str, error: BrokenError) -> list[Action]:
        return self._close(f"the {peer} sent {error}", Code.UNAVAILABLE, broken=True)

    def _taken(self) -> list[Action]:
        state = self._state
        actions: list[Action] = []
        if state.learned:
            actions, state.learned = state.learned, []
        if state.to_runtime.parts:
            actions.append(ToRuntime(state.to_runtime.take()))
        if state.to_client.parts:
            actions.append(ToClient(state.to_client.take()))
        if state.events:
            actions += state.events
            state.events = []
        return actions

    def _close(self, reason: str, code: int, *, broken: bool = False) -> list[Action]:
        if self._closed:
            return []
        self._closed = True
        state = self._state
        for call in state.calls.values():
            state.count(call, code)
            if call.hook is not None and call.hook.phase is RequestPhase.ASKED:
                state.events.append(Forget(call.stream))
        state.calls.clear()
        state.to_runtime.close()
        state.to_client.close()
        return [*self._taken(), Close(reason, broken)]

    def _ping_ack(self, payload: memoryview) -> bool:
        """Whether a PING's ACK is the runtime's business. After ours, no call is under way that we do not know."""
        if self._drain is not _Drain.ANNOUNCED or bytes(payload) != _PING:
            return True
        self._drain = _Drain.LAST_CALLS
        self._runtime_to_client.last_stream = min(self._runtime_to_client.last_stream, self._state.last_stream)
        self._state.to_client.send(frames.goaway(self._runtime_to_client.last_stream))
        return False
