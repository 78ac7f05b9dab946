"""What waits for the runtime's windows: passing DATA that came too early, and the messages of hooked calls.

Source: RFC 9113, sections 5.2 and 6.9.
"""

from collections import deque
from typing import Final

from msgspec import Struct

from criproxy.fronts.http2 import frames
from criproxy.fronts.http2.frames import FRAME_BYTES, MAX_WINDOW, BrokenError, Bytes
from criproxy.fronts.relay.state import HookedCall, RelayedCall, RelayState, RequestPhase

_LOW: Final = 16_384
_TOPPED_UP: Final = 65_535
"""What a client may always send of a hooked call's request, however little the runtime's SETTINGS allow."""

LARGEST_FIRST: Final = MAX_WINDOW - _TOPPED_UP
"""The largest INITIAL_WINDOW_SIZE that may come after that: a client's window must not grow past the largest of all."""

HELD_BYTES: Final = 64 * 1024 * 1024
"""Of frames that wait, but for the data that windows are paid for. More is no kubelet."""

_HELD_ITEM: Final = 256
"""What each of them takes in memory besides its bytes."""


class HeldData(Struct):
    """DATA of a passing call for which the runtime has no window yet; `paid` by the client."""

    stream: int
    data: memoryview
    ends: bool
    paid: int


class HeldRaw(Struct):
    """What must not overtake it. `stream`: of a header block; `window`: what the client has added to its by then."""

    raw: Bytes
    stream: int = 0
    is_ack: bool = False
    window: int = 0


def _unpaid(item: HeldData | HeldRaw) -> int:
    """Bytes."""
    return _HELD_ITEM + (len(item.raw) if isinstance(item, HeldRaw) else 0)


class Outbox:
    """Sends to the runtime what it has windows for, in order: nothing is left behind for good."""

    def __init__(self, state: RelayState) -> None:
        self._state = state
        self.queue: deque[HeldData | HeldRaw] = deque()
        """The passing frames that wait."""
        self._unpaid_bytes = 0
        self._sending: dict[int, RelayedCall] = {}

    @property
    def idle(self) -> bool:
        return not self.queue and not self._sending

    def hold_data(self, stream: int, data: Bytes, paid: int, *, ends: bool) -> None:
        """DATA of a passing call; its padding goes no further.

        Raises BrokenError when no window allowed it, or too much waits.
        """
        state = self._state
        state.window.pay(paid)
        padding = paid - len(data)
        if padding and not ends:
            state.to_client.send(frames.window_update(stream, padding))
        if data or ends:
            self._hold(HeldData(stream, memoryview(bytes(data)), ends, paid))
        else:  # it says nothing, and would wait for nothing to pay
            self.refund(paid)

    def hold_raw(self, raw: Bytes, stream: int = 0, *, is_ack: bool = False) -> None:
        """Raises BrokenError when too much waits."""
        self._hold(HeldRaw(bytes(raw), stream, is_ack))

    def _hold(self, item: HeldData | HeldRaw) -> None:
        self._unpaid_bytes += _unpaid(item)
        if self._unpaid_bytes > HELD_BYTES:
            raise BrokenError(f"over {HELD_BYTES} bytes of frames that wait for windows")
        self.queue.append(item)

    def block(self, stream: int) -> HeldRaw | None:
        """The first header block of this stream that waits."""
        return next((item for item in self.queue if isinstance(item, HeldRaw) and item.stream == stream), None)

    def widen(self, stream: int, increment: int) -> bool:
        """Whether a header block of this stream waits, and with it what the client adds to the stream's window.

        It waits as a sum, or a client could add for ever. A sum that is no window's is the runtime's to complain of.
        """
        block = self.block(stream)
        if block is not None:
            block.window = min(block.window + increment, 2 * MAX_WINDOW)
        return block is not None

    def holds_up(self, stream: int) -> bool:
        """Whether a header block of this stream must wait: for its DATA, for other blocks, or for a SETTINGS ACK."""
        return any(isinstance(item, HeldRaw) or item.stream == stream for item in self.queue)

    def drop_data(self, stream: int) -> None:
        """The stream is reset: what waited of it goes nowhere."""
        keep: deque[HeldData | HeldRaw] = deque()
        for item in self.queue:
            if isinstance(item, HeldData) and item.stream == stream:
                self.refund(item.paid)
                self._unpaid_bytes -= _unpaid(item)
            else:
                keep.append(item)
        self.queue = keep

    def refund(self, paid: int) -> None:
        """Give back what the client has paid for nothing."""
        if paid and (back := self._state.window.forgive(paid)):
            self._state.to_client.send(frames.window_update(0, back))

    def send(self, call: RelayedCall, payload: bytes) -> None:
        """The request of a hooked call, to its end."""
        assert call.hook is not None
        call.hook.phase = RequestPhase.SENDING
        call.hook.out = memoryview(payload)
        self._sending[call.stream] = call
        self.pump()

    def forget(self, call: RelayedCall) -> None:
        """A hooked call has been reset."""
        self._sending.pop(call.stream, None)
        if call.hook is not None:
            self.refund(call.hook.paid)
            call.hook.paid = 0

    def pump(self) -> None:
        """Send what may be sent by now."""
        while self.queue:
            item = self.queue[0]
            if isinstance(item, HeldData):
                self._pump_data(item)
                if item.data or item.ends:
                    return
            else:
                self._pump_raw(item)
            self._unpaid_bytes -= _unpaid(self.queue.popleft())
        for call in list(self._sending.values()):
            self._pump_call(call)

    def acknowledged(self) -> None:
        """The client's SETTINGS ACK has passed: what the runtime said of windows holds. Raises BrokenError."""
        state = self._state
        if not state.windows_to_come:
            raise BrokenError("SETTINGS ACK for nothing")
        window = state.windows_to_come.pop(0)
        if window is None or window == state.first_window:
            return
        by, state.first_window = window - state.first_window, window
        for call in state.calls.values():
            if call.hook is not None:
                call.hook.window += by
                call.hook.advertised += by
                self.top_up(call.stream, call.hook)

    def top_up(self, stream: int, hook: HookedCall) -> None:
        """Keep the client sending: it ends here, so it needs no window of the runtime's."""
        if hook.phase is RequestPhase.COLLECTING and hook.advertised < _LOW:
            self._state.to_client.send(frames.window_update(stream, min(_TOPPED_UP - hook.advertised, MAX_WINDOW)))
            hook.advertised = _TOPPED_UP

    def _pump_raw(self, item: HeldRaw) -> None:
        state = self._state
        state.to_runtime.send(item.raw)
        for increment in (min(item.window, MAX_WINDOW), item.window - MAX_WINDOW):
            if increment > 0:
                state.to_runtime.send(frames.window_update(item.stream, increment))
        if item.is_ack:
            self.acknowledged()
        elif (call := state.calls.get(item.stream)) is not None and call.hook is not None:
            call.hook.headers_wait = False

    def _pump_data(self, item: HeldData) -> None:
        """As much of it as there is window for; `ends` is False when its end has gone."""
        state = self._state
        while item.data or item.ends:
            size = min(len(item.data), state.window.real, FRAME_BYTES)
            if item.data and size <= 0:
                return
            piece, item.data = item.data[:size], item.data[size:]
            last = not item.data and item.ends
            state.to_runtime.send(frames.frame(frames.DATA, frames.END_STREAM if last else 0, item.stream, piece))
            paid = min(item.paid, size)
            state.window.spend(size, paid)
            item.paid -= paid
            if last:
                item.ends = False
        self.refund(item.paid)
        item.paid = 0

    def _pump_call(self, call: RelayedCall) -> None:
        state, hook = self._state, call.hook
        assert hook is not None
        if hook.headers_wait:
            return
        while True:
            size = min(len(hook.out), hook.window, state.window.real, FRAME_BYTES)
            if hook.out and size <= 0:
                return
            piece, hook.out = hook.out[:size], hook.out[size:]
            state.to_runtime.send(frames.frame(frames.DATA, 0 if hook.out else frames.END_STREAM, call.stream, piece))
            paid = min(hook.paid, size)
            state.window.spend(size, paid)
            hook.paid -= paid
            hook.window -= size
            if not hook.out:
                break
        hook.phase = RequestPhase.SENT
        self.forget(call)
        if call.runtime_ended:
            state.calls.pop(call.stream, None)
