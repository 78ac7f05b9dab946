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
from criproxy.pods.service_checks import MOST_BYTES, TooLargeError

_HEALTH: Final = "/grpc.health.v1.Health/Check"
_SERVING: Final = b"\x08\x01"
"""HealthCheckResponse with status SERVING. Source: gRPC, grpc/health/v1/health.proto."""


class ServiceAsker(Struct, frozen=True):
    """An `AsksServices`. A pod on the host's network is asked at 127.0.0.1."""

    runtime: PodsRuntime

    async def ask(self, check: ServiceCheck, sandbox_id: str, container_id: str) -> ServiceAnswer:
        if check.exec is not None:
            status, output = await self.runtime.execute(container_id, check.exec.command, check.timeout_s)
            if len(output) > MOST_BYTES:
                raise TooLargeError
            text = output.decode(errors="replace")
            return ServiceAnswer(status == 0, text if status == 0 else f"exit status {status}")
        host = await self.runtime.address(sandbox_id)
        return await (_http(host, check.http) if check.http is not None else _health(host, check.grpc))

    async def hindrance(self, check: ServiceCheck, sandbox_id: str) -> str:
        over_the_network = check.http or check.grpc
        if over_the_network is None:
            return ""
        host = await self.runtime.address(sandbox_id)
        return f"{host}: {remedy([host])}, or the network of all pods" if is_barred(host, over_the_network.port) else ""


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
