"""How online services are asked: by HTTP or gRPC at their pod's own address, or by a command in their container."""

import asyncio
import contextlib
from typing import Final

from msgspec import Struct

from criproxy.cgroup.address_filter import is_barred, remedy
from criproxy.control.interference.service_checks import GrpcCheck, HttpCheck, ServiceAnswer, ServiceCheck
from criproxy.fronts.cri.pods_runtime import PodsRuntime
from criproxy.fronts.http2.client.connection import CallError, Connection
from criproxy.fronts.http2.codes import Code
from criproxy.pods.service_checks import MOST, MOST_BYTES, NotAskedError, TooLargeError

_HEALTH: Final = "/grpc.health.v1.Health/Check"
_SERVING: Final = b"\x08\x01"
"""HealthCheckResponse with status SERVING. Source: gRPC, grpc/health/v1/health.proto."""


_ADDRESS_RATIO: Final = 0.8
"""The share of a check's time-out in which the runtime has to tell where the pod is. If it takes longer, that is not
the pod's doing.
"""

_MOST_KNOWN: Final = 4 * MOST
"""Addresses; then all are asked for anew."""


class ServiceAsker(Struct, frozen=True):
    """An `AsksServices`. A pod on the host's network is asked at 127.0.0.1.

    A runtime that is restarted, or that is busy, must not make all services look down at once. So the address, which a
    sandbox keeps for as long as it lives, is asked for once.
    """

    runtime: PodsRuntime
    _addresses: dict[str, str] = {}
    """By sandbox."""

    async def ask(self, check: ServiceCheck, sandbox_id: str, container_id: str) -> ServiceAnswer:
        if check.exec is not None:
            try:
                status, output = await self.runtime.execute(container_id, check.exec.command, check.timeout_s)
            except CallError as error:
                if error.code != Code.UNAVAILABLE:
                    raise
                raise NotAskedError(str(error)) from error
            if len(output) > MOST_BYTES:
                raise TooLargeError
            text = output.decode(errors="replace")
            return ServiceAnswer(status == 0, text if status == 0 else f"exit status {status}")
        host = await self._address(sandbox_id, check.timeout_s * _ADDRESS_RATIO)
        return await (_http(host, check.http) if check.http is not None else _health(host, check.grpc))

    async def hindrance(self, check: ServiceCheck, sandbox_id: str) -> str:
        over_the_network = check.http or check.grpc
        if over_the_network is None:
            return ""
        host = await self._address(sandbox_id, check.timeout_s * _ADDRESS_RATIO)
        return f"{host}: {remedy([host])}, or the network of all pods" if is_barred(host, over_the_network.port) else ""

    async def _address(self, sandbox_id: str, timeout_s: float) -> str:
        if (known := self._addresses.get(sandbox_id)) is not None:
            return known
        try:
            async with asyncio.timeout(timeout_s):
                found = await self.runtime.address(sandbox_id)
        except TimeoutError as error:
            raise NotAskedError(f"the runtime has not told its address within {timeout_s:g} s") from error
        except CallError as error:
            raise NotAskedError(str(error)) from error
        if len(self._addresses) >= _MOST_KNOWN:
            self._addresses.clear()
        self._addresses[sandbox_id] = found
        return found


async def _http(host: str, check: HttpCheck) -> ServiceAnswer:
    """HTTP/1.0, so that the answer ends with the connection and comes in one piece. Source: RFC 1945."""
    reader, writer = await asyncio.open_connection(host, check.port)
    try:
        named = f"[{host}]" if ":" in host else host
        request = f"GET {check.path} HTTP/1.0\r\nHost: {named}:{check.port}\r\nUser-Agent: criproxy\r\n\r\n"
        writer.write(request.encode())
        answer = b""
        while part := await reader.read(MOST_BYTES + 1 - len(answer)):
            answer += part
            if len(answer) > MOST_BYTES:
                raise TooLargeError
    finally:
        writer.transport.abort()
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.partition(b"\r\n")[0].split(None, 2)
    with contextlib.suppress(IndexError, ValueError):
        if words[0].startswith(b"HTTP/1."):
            well = 200 <= int(words[1]) < 400
            return ServiceAnswer(well, body.decode(errors="replace") if well else f"status {int(words[1])}")
    raise ValueError("it is no HTTP/1")


async def _health(host: str, check: GrpcCheck | None) -> ServiceAnswer:
    assert check is not None
    name = check.service.encode()
    length = bytes([len(name) % 128 | 128, len(name) // 128]) if len(name) > 127 else bytes([len(name)])
    request = b"\x0a" + length + name if name else b""
    async with await Connection.dial_tcp(host, check.port, MOST_BYTES) as connection:
        try:
            answer = await connection.call(_HEALTH, request, 60.0)
        except CallError as error:
            if error.code == Code.RESOURCE_EXHAUSTED:
                raise TooLargeError from error
            return ServiceAnswer(False, str(error))
    return ServiceAnswer(answer == _SERVING, "" if answer == _SERVING else "it is not serving")
