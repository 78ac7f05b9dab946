"""From the runtime to the client: what each frame of the runtime's does."""

from criproxy.fronts.engine import Learner
from criproxy.fronts.http2 import frames, message
from criproxy.fronts.http2.codes import Code
from criproxy.fronts.http2.frames import ACK, END_STREAM, MAX_STREAM, MAX_WINDOW, BrokenError, Bytes
from criproxy.fronts.http2.headers import literal
from criproxy.fronts.http2.scanner import Scanner
from criproxy.fronts.relay.actions import Learn
from criproxy.fronts.relay.client_to_runtime import ClientToRuntime
from criproxy.fronts.relay.outbox import LARGEST_FIRST, Outbox
from criproxy.fronts.relay.state import HookedCall, RelayedCall, RelayState, RequestPhase, announced


class RuntimeToClient:
    """Follows the runtime. `requests` is the other direction, where hooked calls are ended."""

    def __init__(self, state: RelayState, outbox: Outbox, requests: ClientToRuntime) -> None:
        self._state = state
        self._outbox = outbox
        self._requests = requests
        self.scanner = Scanner(state.to_client, self, pings_pass=True)
        self.last_stream = MAX_STREAM
        """What the last GOAWAY to the client said: it must never grow."""

    # --- frames ------------------------------------------------------------------------------------------------------

    def data(self, flags: int, stream: int, payload: memoryview) -> bool:
        state = self._state
        call = state.calls.get(stream)
        if call is None:
            if stream not in state.ended_here:
                return True
            if payload:
                state.to_runtime.send(frames.window_update(0, len(payload)))
            return False
        if flags & frames.PADDED or call.hook is not None:
            data = frames.unpadded(flags, payload)
            if call.hook is not None and call.hook.learn is not None:
                self._overhear(call.hook, data)
        if not flags & END_STREAM:
            return True
        return self._end_with(call, Code.UNKNOWN, frames.frame(frames.DATA, flags, stream, payload))

    def block(self, stream: int, end_stream: bool, block: bytes, raw: Bytes) -> bool:
        read = self._state.answers.read(block)
        state = self._state
        call = state.calls.get(stream)
        if call is None:
            if stream in state.ended_here:  # the client never sees it
                state.diverged |= read.changes
                return False
        else:
            call.answered = True
            hook = call.hook
            if hook is not None:
                if not end_stream:
                    hook.answer_encoding = read.get(b"grpc-encoding")
                elif hook.learn is not None and read.status == Code.OK:
                    self._learn(hook.learn, hook)
        passed = not state.diverged
        if not passed:
            state.send_headers(stream, literal(read.fields), end_stream=end_stream)
        return self._end_with(call, read.status, raw if passed else b"") if call and end_stream else passed

    def credit(self, increment: int) -> bool:
        state = self._state
        passed = state.window.credit(increment)
        if passed and passed != increment:
            state.to_client.send(frames.window_update(0, passed))
        if not self._outbox.idle:
            self._outbox.pump()
        return passed == increment

    def frame(self, kind: int, flags: int, stream: int, payload: memoryview) -> bool:
        state = self._state
        match kind:
            case 8:  # WINDOW_UPDATE
                return self._widen(stream, frames.long(payload) & MAX_WINDOW)
            case 3:
                return self._reset(stream, payload)
            case 4:
                if not flags & ACK:
                    return self._settings(payload)
                if state.answer_table_shrinks:  # the next block may be one that does not know
                    state.diverged = True
            case 7:
                return self._goaway(payload)
        return not (stream and stream in state.ended_here)

    def _settings(self, payload: memoryview) -> bool:
        state, window, passing = self._state, None, []
        for setting, value in frames.settings(payload):
            allowed = value
            if setting == frames.INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise BrokenError(f"SETTINGS with a window of {value}")
                window = allowed = min(value, LARGEST_FIRST)
            announced(setting, value, state.to_runtime, state.requests)
            passing.append((setting, allowed))
        if len(state.windows_to_come) >= 1000:
            raise BrokenError("1000 SETTINGS without an ACK")
        state.windows_to_come.append(window)
        passed = frames.settings_payload(passing)
        if passed == payload:
            return True
        state.to_client.send(frames.frame(frames.SETTINGS, 0, 0, passed))
        return False

    def _widen(self, stream: int, increment: int) -> bool:
        state = self._state
        call = state.calls.get(stream)
        if call is None or call.hook is None:
            return stream not in state.ended_here
        call.hook.window += increment
        if not increment or call.hook.window > MAX_WINDOW:
            raise BrokenError(f"WINDOW_UPDATE of {increment} on stream {stream}")
        if call.hook.phase is RequestPhase.SENDING:
            self._outbox.pump()
        return False

    def _reset(self, stream: int, payload: memoryview) -> bool:
        state = self._state
        if stream in state.ended_here:
            return False
        call = state.calls.get(stream)
        if call is None:
            return True
        state.count(call, Code.of_reset(frames.long(payload)))
        del state.calls[stream]
        self._requests.forget(call)
        if self._outbox.queue:
            self._outbox.drop_data(stream)
            self._outbox.pump()
        return True

    def _goaway(self, payload: memoryview) -> bool:
        last = frames.long(payload) & MAX_STREAM
        if last <= self.last_stream:
            self.last_stream = last
            return True
        self._state.to_client.send(frames.goaway(self.last_stream, frames.long(payload[4:]), payload[8:]))
        return False

    # --- the ends of calls -------------------------------------------------------------------------------------------

    def _end_with(self, call: RelayedCall, code: int, last: Bytes) -> bool:
        """The runtime's end of a call. `last` is the frame that passes, or b"" when it has been sent already."""
        state, hook = self._state, call.hook
        call.runtime_ended = True
        state.count(call, code)
        if hook is None or hook.phase is RequestPhase.SENT:
            if call.client_ended:
                del state.calls[call.stream]
            return bool(last)
        # An answer to a request that was never, or not wholly, sent.
        if last:
            state.to_client.send(last)
        if not call.client_ended:
            state.to_client.send(frames.rst_stream(call.stream, frames.NO_ERROR))
        self._requests.end(call)
        return False

    def _overhear(self, hook: HookedCall, data: Bytes) -> None:
        """The answer's DATA goes on: a unary call's client has nothing of it before the trailers."""
        hook.answer += data
        if message.too_large(len(hook.answer)):
            hook.learn = None
            hook.answer = bytearray()

    def _learn(self, learn: Learner, hook: HookedCall) -> None:
        try:
            answer = message.opened(hook.answer, hook.answer_encoding)
        except message.MessageError:  # no unary call's answer
            return
        self._state.learned.append(Learn(learn, answer))
