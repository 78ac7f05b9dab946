"""A plugin's conversation with the runtime, as far as it is bytes: it registers, and then it is called. Pure.

    plugin                                     runtime
      RegisterPlugin (connection 2, stream 1)->
                                             <- its answer
                                             <- Configure, Synchronize, and a call for each event (connection 1)
      an answer or an error to each          ->

The calls may be answered in any order. What the runtime sends that is no call of the plugin's is passed over, as later
versions may have more; what can't be followed raises WireError, and the socket has to be closed.
"""

from __future__ import annotations  # the messages in them are not imported yet

from typing import Final

from google.protobuf.message import DecodeError, Message
from msgspec import Struct

from criproxy.fronts.nri import messages as nri
from criproxy.fronts.nri import mux, ttrpc
from criproxy.fronts.nri.mux import WireError

API: Final = "0.12.0"
"""The version of NRI that this speaks; earlier ones, too."""

_PACKAGE: Final = b"nri.pkg.api.v1alpha1"
_REGISTERS: Final = 1
"""The stream of our one request."""


class Called(Struct, frozen=True):
    """The runtime calls `method` of the plugin; to be answered on the same stream."""

    stream: int
    method: str
    payload: bytes


class Registered(Struct, frozen=True):
    """The runtime has answered the registration; `refusal` says why not, "": it is done."""

    refusal: str = ""


class Session:
    """One connection, from its first byte to its last, or from where another session has left it.

    The first bytes to send are those of `register`.
    """

    def __init__(self) -> None:
        self._socket = mux.Demultiplexer()
        self._calls = ttrpc.FrameReader()
        self._answers = ttrpc.FrameReader()

    @property
    def whole(self) -> bool:
        """Whether no message is left in part: another session can go on with what comes next."""
        return self._socket.whole and self._calls.whole and self._answers.whole

    def register(self, name: str, index: str) -> bytes:
        """`index`: two digits, by which the runtime orders its plugins."""
        asked = nri.RegisterPluginRequest(
            plugin_name=name.encode(), plugin_idx=index.encode(), NRI_version=API.encode()
        )
        request = nri.TtrpcRequest(
            service=_PACKAGE + b".Runtime", method=b"RegisterPlugin", payload=asked.SerializeToString()
        )
        return mux.chunk(mux.RUNTIME, ttrpc.frame(_REGISTERS, ttrpc.REQUEST, request.SerializeToString()))

    def receive(self, data: bytes) -> list[Called | Registered]:
        """What these bytes complete. Raises WireError."""
        found: list[Called | Registered] = []
        for connection, some in self._socket.feed(data):
            if connection == mux.PLUGIN:
                found += [_called(one) for one in self._calls.feed(some) if one.kind == ttrpc.REQUEST]
            elif connection == mux.RUNTIME:
                answers = self._answers.feed(some)
                found += [_registered(one) for one in answers if (one.kind, one.stream) == (ttrpc.RESPONSE, _REGISTERS)]
        return found

    def answer(self, call: Called, payload: bytes) -> bytes:
        return _response(call, nri.TtrpcResponse(payload=payload))

    def refuse(self, call: Called, code: int, words: str) -> bytes:
        """`code`: one of `fronts.http2.codes`."""
        return _response(call, nri.TtrpcResponse(status=nri.TtrpcStatus(code=code, message=words.encode())))


def _response(call: Called, response: nri.TtrpcResponse) -> bytes:
    return mux.chunk(mux.PLUGIN, ttrpc.frame(call.stream, ttrpc.RESPONSE, response.SerializeToString()))


def _called(one: ttrpc.TtrpcFrame) -> Called:
    request = nri.TtrpcRequest()
    _decode(request, one.data)
    method = request.method.decode("ascii", "replace") if request.service == _PACKAGE + b".Plugin" else ""
    return Called(one.stream, method, request.payload)


def _registered(one: ttrpc.TtrpcFrame) -> Registered:
    response = nri.TtrpcResponse()
    _decode(response, one.data)
    status = response.status
    return Registered(f"code {status.code}: {status.message.decode(errors='replace')}" if status.code else "")


def _decode(message: Message, data: bytes) -> None:
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes are no {type(message).__name__}: {error}") from error
