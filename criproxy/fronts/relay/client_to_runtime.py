"""From the client to the runtime: what each frame of the client's does."""

from collections.abc import Callable
from typing import Final

from criproxy.fronts.http2 import frames, message
from criproxy.fronts.http2.codes import Code
from criproxy.fronts.http2.frames import ACK, END_STREAM, MAX_WINDOW, BrokenError, Bytes
from criproxy.fronts.http2.headers import NO_TABLE, Block, literal, refusal
from criproxy.fronts.http2.scanner import Scanner
from criproxy.fronts.relay.actions import Ask, Forget, Started
from criproxy.fronts.relay.outbox import Outbox
from criproxy.fronts.relay.state import HookedCall, RelayedCall, RelayState, RequestPhase, announced

MAX_CALLS: Final = 65_536
"""Open calls on one connection; more is no kubelet."""

_WAITING_BYTES: Final = 16_384
"""So much of the connection's window, a quarter of the smallest, may wait for verdicts: they hold up no other call."""


class ClientToRuntime:
    """Follows the client. `wants` says of a path whether its calls are opened here."""

    def __init__(
        self,
        state: RelayState,
        outbox: Outbox,
        wants: Callable[[str], bool],
        on_ping_ack: Callable[[memoryview], bool],
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._wants = wants
        self._on_ping_ack = on_ping_ack
        self._diverged = False
        """Whether the runtime's header table is not the client's: then blocks are written without it."""
        self.scanner = Scanner(state.to_runtime, self, pings_pass=True, credits_pass=True)
        self._preface = bytearray()
        self.greeted = False
        """Whether the client's preface has come."""
        self.refusing = ""
        """Why new calls are turned away; "" when they are not."""

    def feed(self, chunk: Bytes) -> None:
        """Raises BrokenError."""
        if not self.greeted:
            size = len(frames.PREFACE) - len(self._preface)
            self._preface += chunk[:size]
            if not frames.PREFACE.startswith(self._preface):
                raise BrokenError("no HTTP/2 preface")
            if len(self._preface) < len(frames.PREFACE):
                return
            self.greeted = True
            self._state.to_runtime.send(frames.PREFACE)
            chunk = chunk[size:]
        self.scanner.feed(chunk)

    # --- frames ------------------------------------------------------------------------------------------------------

    def data(self, flags: int, stream: int, payload: memoryview) -> bool:
        state = self._state
        call = state.calls.get(stream)
        size = len(payload)
        if call is not None:
            if call.client_ended:
                raise BrokenError(f"DATA on stream {stream}, after its end")
            if call.hook is not None:
                self._collect(call, call.hook, flags, payload)
                return False
            if flags & END_STREAM:
                call.client_ended = True
                if call.runtime_ended:
                    del state.calls[stream]
        elif stream in state.ended_here:
            state.window.pay(size)
            self._outbox.refund(size)
            return False
        if self._outbox.queue or size > state.window.real:
            self._outbox.hold_data(stream, frames.unpadded(flags, payload), size, ends=bool(flags & END_STREAM))
            return False
        if flags & frames.PADDED:
            frames.unpadded(flags, payload)
        state.window.real -= size
        return True

    def block(self, stream: int, end_stream: bool, block: bytes, raw: Bytes) -> bool:
        read = self._state.requests.read(block)
        state = self._state
        if self._diverged:
            raw = frames.header_frames(stream, NO_TABLE + literal(read.fields), end_stream=end_stream)
        if stream > state.last_stream:
            if self.refusing:
                self._turn_away(stream, end_stream)
                return self._skip(read)
            call = self._begin(stream, end_stream, read)
            wrong = message.NO_MESSAGE if end_stream else ""
        elif stream in state.calls:
            call = state.calls[stream]
            if call.client_ended:
                raise BrokenError(f"HEADERS on stream {stream}, after its end")
            if end_stream and call.hook is None:
                call.client_ended = True
                if call.runtime_ended:
                    del state.calls[stream]
            wrong = "trailers in the request of a unary call"
        else:
            return self._skip(read) if stream in state.ended_here else self._pass_block(stream, raw)
        if call.hook is None or not wrong:
            return self._pass_block(stream, raw, call.hook)
        if self._pass_block(stream, raw):  # also of a call that goes no further, as blocks after it refer to it
            state.to_runtime.send(raw)
        self.refuse(call, Code.INTERNAL, wrong)
        return False

    def credit(self, increment: int) -> bool:
        """What the runtime may send more is its own affair."""
        return True

    def frame(self, kind: int, flags: int, stream: int, payload: memoryview) -> bool:
        match kind:
            case 8 if stream and stream in self._state.ended_here:  # WINDOW_UPDATE
                return False
            case 8 if stream and self._outbox.queue:
                return not self._outbox.widen(stream, frames.long(payload) & MAX_WINDOW)
            case 4:
                return self._settings(flags, payload)
            case 3:
                return self._reset(stream, payload)
            case 6 if flags & ACK:
                return self._on_ping_ack(payload)
        return True

    def _skip(self, block: Block) -> bool:
        """A block that the runtime never sees: it is not to pass, nor what refers to it."""
        self._diverged |= block.changes
        return False

    def _pass_block(self, stream: int, raw: Bytes, hook: HookedCall | None = None) -> bool:
        """Whether a block passes as it came; else it waits, or has been sent as the runtime can read it."""
        if self._outbox.queue and self._outbox.holds_up(stream):
            self._outbox.hold_raw(raw, stream)
            if hook is not None:
                hook.headers_wait = True
            return False
        if self._diverged:
            self._state.to_runtime.send(raw)
        return not self._diverged

    def _begin(self, stream: int, end_stream: bool, block: Block) -> RelayedCall:
        state = self._state
        if not stream & 1:
            raise BrokenError(f"HEADERS on stream {stream}, which is not a client's")
        if len(state.calls) >= MAX_CALLS:
            raise BrokenError(f"over {MAX_CALLS} open calls")
        state.last_stream = stream
        method = block.path
        hook = None
        if self._wants(method):
            sized = bool(block.get(b"content-length"))
            hook = HookedCall(block.get(b"grpc-encoding"), state.first_window, state.first_window, sized)
        call = state.calls[stream] = RelayedCall(stream, method, hook, end_stream)
        state.events.append(Started(stream, method))
        if hook is not None:
            self._outbox.top_up(stream, hook)
        return call

    def _turn_away(self, stream: int, end_stream: bool) -> None:
        """A new call at a time when none is taken: the runtime never hears of it, nor of any call after it."""
        state = self._state
        state.last_stream = stream
        state.end_here(stream)
        block = refusal(Code.UNAVAILABLE, self.refusing, headers_sent=False)
        state.send_headers(stream, block, end_stream=True)
        if not end_stream:
            state.to_client.send(frames.rst_stream(stream, frames.NO_ERROR))

    def _settings(self, flags: int, payload: memoryview) -> bool:
        if not flags & ACK:
            state = self._state
            for setting, value in frames.settings(payload):
                state.answer_table_shrinks |= announced(setting, value, state.to_client, state.answers)
            return True
        if self._outbox.queue:
            self._outbox.hold_raw(frames.frame(frames.SETTINGS, ACK, 0), is_ack=True)
            return False
        self._outbox.acknowledged()
        if not self._outbox.idle:
            self._state.to_runtime.send(frames.frame(frames.SETTINGS, ACK, 0))
            self._outbox.pump()
            return False
        return True

    def _reset(self, stream: int, payload: memoryview) -> bool:
        state = self._state
        if stream in state.ended_here:
            return False
        call = state.calls.pop(stream, None)
        if call is not None:
            state.count(call, Code.CANCELLED)
            self.forget(call)
        if self._outbox.queue:
            self._pass_reset(stream, frames.frame(frames.RST_STREAM, 0, stream, payload))
            return False
        return True

    def _pass_reset(self, stream: int, raw: bytes) -> None:
        """A reset that overtakes the call's DATA, but not its headers."""
        if self._outbox.block(stream) is not None:
            self._outbox.hold_raw(raw)
            return
        self._outbox.drop_data(stream)
        self._state.to_runtime.send(raw)
        self._outbox.pump()

    # --- hooked calls ------------------------------------------------------------------------------------------------

    def _collect(self, call: RelayedCall, hook: HookedCall, flags: int, payload: memoryview) -> None:
        data, paid = frames.unpadded(flags, payload), len(payload)
        hook.request += data
        hook.advertised -= paid
        self._state.window.pay(paid)
        hook.paid += paid
        if error := message.too_large(len(hook.request)):
            self.refuse(call, error.code, str(error))
        elif flags & END_STREAM:
            call.client_ended = True
            self._ask(call, hook)
            if hook.paid and self._state.window.waiting > _WAITING_BYTES:
                self._advance(hook)
        elif paid:
            self._advance(hook)
            hook.advertised += paid
            self._state.to_client.send(frames.window_update(call.stream, paid))
            self._outbox.top_up(call.stream, hook)

    def _advance(self, hook: HookedCall) -> None:
        """Give the client back all that it has paid, whatever is owed, so that it goes on sending."""
        state = self._state
        state.window.waiting -= hook.paid
        state.to_client.send(frames.window_update(0, hook.paid))
        hook.paid = 0

    def _ask(self, call: RelayedCall, hook: HookedCall) -> None:
        try:
            opened = message.opened(hook.request, hook.encoding)
        except message.MessageError as error:
            self.refuse(call, error.code, str(error))
            return
        hook.phase = RequestPhase.ASKED
        hook.message = opened
        self._state.events.append(Ask(call.stream, call.method, opened))

    def forward(self, call: RelayedCall, hook: HookedCall, rewritten: bytes) -> None:
        """The hooks' message, or, when they changed nothing, the bytes that came."""
        if rewritten == hook.message:
            payload = bytes(hook.request)
        elif hook.sized:
            self.refuse(call, Code.INTERNAL, "criproxy can't change a request that has content-length: leave it out")
            return
        else:
            payload = message.wrapped(rewritten)
        hook.request = bytearray()
        hook.message = b""
        self._outbox.send(call, payload)

    def refuse(self, call: RelayedCall, code: int, text: str) -> None:
        """End a call here: a status for the client, a reset for the runtime."""
        state = self._state
        block = refusal(code, text, headers_sent=call.answered)
        state.send_headers(call.stream, block, end_stream=True)
        if not call.client_ended:
            state.to_client.send(frames.rst_stream(call.stream, frames.NO_ERROR))
        state.count(call, code)
        self.end(call)

    def end(self, call: RelayedCall) -> None:
        """Reset a call towards the runtime, and forget it."""
        self.forget(call)
        self._state.end_here(call.stream)
        self._pass_reset(call.stream, frames.rst_stream(call.stream, frames.CANCEL))

    def forget(self, call: RelayedCall) -> None:
        """A call has been reset by whom ever: drop what waits of its request."""
        if call.hook is not None:
            if call.hook.phase is RequestPhase.ASKED:
                self._state.events.append(Forget(call.stream))
            self._outbox.forget(call)
