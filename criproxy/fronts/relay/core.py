"""The relay between one client connection and one runtime connection: bytes and events in, actions out.

No I/O, no clock. Frames pass as they came, under the same stream ids; only of the calls that `wants` names are the
request's DATA opened, and some answers learned from.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from criproxy.fronts.engine import Ticket
from criproxy.fronts.http2 import codes, frames
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
        self._runtime_to_client: RuntimeToClient
        self._client_to_runtime = ClientToRuntime(
            state,
            self._outbox,
            wants,
            on_setting=self._client_setting,
            on_ping_ack=self._ping_ack,
        )
        self._runtime_to_client = RuntimeToClient(
            state,
            self._outbox,
            on_setting=self._client_to_runtime.runtime_setting,
            end=self._client_to_runtime.end,
            forget=self._client_to_runtime.forget,
        )
        self._drain = _Drain.NO
        self._closed = False

    def _client_setting(self, setting: int, value: int) -> None:
        self._runtime_to_client.client_setting(setting, value)

    @property
    def calls(self) -> int:
        """How many calls are open."""
        return len(self._state.calls)

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
            self._runtime_to_client.feed(chunk)
        except BrokenError as error:
            return self._broken("runtime", error)
        return self._taken() if self._drain is _Drain.NO else self._done()

    def forward(self, stream: int, message: bytes, ticket: Ticket | None = None) -> list[Action]:
        """What the interceptor made of an `Ask`. With a ticket, an OK answer comes as `Learn`."""
        call = self._asked(stream)
        if call is None or (hook := call.hook) is None:
            return []
        hook.ticket = ticket
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
        return self._do(lambda: self._client_to_runtime.refuse(call, codes.UNAVAILABLE, message))

    def turn_away(self, message: str) -> None:
        """Answer all further calls with UNAVAILABLE."""
        self._client_to_runtime.refusing = message

    def client_closed(self) -> list[Action]:
        return self._close("the client has closed", codes.CANCELLED)

    def runtime_closed(self) -> list[Action]:
        return self._close("the runtime has closed", codes.UNAVAILABLE)

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
            self._go_on_draining()
            if self._drain is _Drain.LAST_CALLS and not self._state.calls and self._outbox.idle:
                return self._close("drained", codes.UNAVAILABLE)
        return self._taken()

    def _broken(self, peer: str, error: BrokenError) -> list[Action]:
        return self._close(f"the {peer} sent {error}", codes.UNAVAILABLE, broken=True)

    def _taken(self) -> list[Action]:
        state = self._state
        actions: list[Action] = []
        if state.lessons:
            actions, state.lessons = state.lessons, []
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

    def _go_on_draining(self) -> None:
        if self._drain is _Drain.WANTED and self._runtime_to_client.scanner.greeted:
            self._drain = _Drain.ANNOUNCED
            self._client_to_runtime.scanner.pings_pass = False
            if self._runtime_to_client.last_stream == MAX_STREAM:
                self._state.to_client.send(frames.goaway(MAX_STREAM))
            self._state.to_client.send(frames.frame(PING, 0, 0, _PING))

    def _ping_ack(self, payload: memoryview) -> bool:
        """Whether a PING's ACK is the runtime's business. After ours, no call is under way that we do not know."""
        if self._drain is not _Drain.ANNOUNCED or bytes(payload) != _PING:
            return True
        self._drain = _Drain.LAST_CALLS
        self._runtime_to_client.last_stream = min(self._runtime_to_client.last_stream, self._state.last_stream)
        self._state.to_client.send(frames.goaway(self._runtime_to_client.last_stream))
        return False
