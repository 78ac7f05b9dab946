"""The link to the container runtime: one channel, and a watcher that knows whether the runtime can be relied upon.

Connected is not ready: the runtime is ready when it has answered Version and the inventory has been read from it anew.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import structlog
from grpc import aio

from criproxy.proxy.cri_pb2 import VersionRequest, VersionResponse
from criproxy.proxy.socket import grpc_target

APIS: Final = ("runtime.v1", "runtime.v1alpha2")
"""The packages of CRI, the preferred one first."""

METADATA_BYTES: Final = 16 * 1024 * 1024
"""The largest header list: as much as gRPC-Go takes, on which kubelet and the runtimes stand (http_util.go)."""

CHANNEL_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),  # else it is the socket's path, which strict servers (Rust's h2) refuse
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2500),  # gRPC adds up to a fifth at random: 3 s
)

STATUS_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
"""gRPC's status codes by number."""

_VERSION_TIMEOUT_S: Final = 5.0
_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 3.0


class CallError(ConnectionError):
    """The runtime, or the way to it, answered a call of ours with an error. `code` is a gRPC status code number."""

    def __init__(self, method: str, code: int, message: str) -> None:
        super().__init__(f"{method}: {STATUS_CODES[code].name}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """What the runtime says of itself, and the API (`runtime.v1`) under which it said so. Source: CRI Version."""

    name: str
    version: str
    api: str


class RuntimeLink:
    """The runtime behind the unix socket at `path`.

    `on_connected` is awaited each time the runtime has come (back) and has answered Version; it may use `call`. While
    it fails, the runtime is not ready, and all is tried again. It must bound its own waits.
    """

    def __init__(
        self,
        path: Path,
        on_connected: Callable[[RuntimeInfo], Awaitable[None]],
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self.path = path
        self.channel: Any = aio.insecure_channel(grpc_target(path), options=CHANNEL_OPTIONS)
        self._on_connected = on_connected
        self._log = log
        self._info: RuntimeInfo | None = None
        self._ready = False
        self.problem = ""
        """Why the runtime is not ready; "" while it is, and before the first attempt."""

    @property
    def ready(self) -> bool:
        """Whether the runtime is connected, has answered Version, and `on_connected` has succeeded since."""
        return self._ready

    @property
    def info(self) -> RuntimeInfo | None:
        """What the runtime said last; None before it first answered."""
        return self._info

    async def call(self, method: str, request: bytes, timeout_s: float, api: str | None = None) -> bytes:
        """Call a method of RuntimeService (`ListPodSandbox`), under the API in use or the given one.

        Raises CallError, with UNAVAILABLE at once while the runtime is away.
        """
        service = api or (self._info.api if self._info else APIS[0])
        try:
            answer: bytes = await self.channel.unary_unary(f"/{service}.RuntimeService/{method}")(
                request, timeout=timeout_s
            )
        except aio.AioRpcError as error:
            raise CallError(method, error.code().value[0], error.details()) from error
        return answer

    async def run(self) -> None:
        """Watch the runtime until cancelled."""
        retry_s = _FIRST_RETRY_S
        try:
            while True:
                await self._connected()
                if await self._greet():
                    retry_s = _FIRST_RETRY_S
                    await self._while_connected()
                else:
                    await asyncio.sleep(retry_s)
                    retry_s = min(retry_s * 2, _LAST_RETRY_S)
        finally:
            self._ready = False

    async def close(self) -> None:
        """Close the channel and cancel the calls on it: stop the server first."""
        await self.channel.close()

    async def _connected(self) -> None:
        state = self.channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                self._complain("cannot connect")
            await self.channel.wait_for_state_change(state)
            state = self.channel.get_state(try_to_connect=True)

    async def _while_connected(self) -> None:
        # Any change is a loss, even if a call has reconnected meanwhile: that is another life of the runtime.
        await self.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        self._ready = False
        self._complain("connection lost")

    async def _greet(self) -> bool:
        try:
            self._info = await self._version()
            await self._on_connected(self._info)
        except Exception as error:  # whatever is wrong with the runtime or its inventory: not ready yet
            self._complain(str(error) or type(error).__name__)
            return False
        self._ready = True
        self.problem = ""
        self._log.info("runtime_ready", runtime=self._info.name, version=self._info.version, api=self._info.api)
        return True

    async def _version(self) -> RuntimeInfo:
        request = VersionRequest().SerializeToString()
        for api in APIS:
            try:
                answer = VersionResponse.FromString(await self.call("Version", request, _VERSION_TIMEOUT_S, api))
            except CallError as error:
                if error.code != grpc.StatusCode.UNIMPLEMENTED.value[0]:
                    raise
            else:
                return RuntimeInfo(_text(answer.runtime_name), _text(answer.runtime_version), api)
        reason = f"{self.path} serves none of {', '.join(APIS)}: is its CRI on?"
        raise CallError("Version", grpc.StatusCode.UNIMPLEMENTED.value[0], reason)

    def _complain(self, reason: str) -> None:
        if reason != self.problem:
            self.problem = reason
            self._log.warning("runtime_not_ready", socket=str(self.path), reason=reason)


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
