"""How online services are checked: by HTTP or gRPC at their pod's own address, by a command in their container, or by a
query at the node's Prometheus.

What strangers send is read on a thread of its own, and no more than `MOST_BYTES` of it, in `MOST_PIECES` at most: who
sends an answer byte by byte costs as many turns of an event loop as it has bytes.
"""

import asyncio
from functools import partial
from typing import Final
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

from criproxy.cgroup.address_filter import is_barred, remedy
from criproxy.clients.http2.connection import CallError, Connection
from criproxy.clients.runtime import PodsRuntime
from criproxy.concurrency.loop_thread import LoopThread
from criproxy.control.interference.service_checks import (
    GrpcCheck,
    PrometheusCheck,
    ServiceAnswer,
    ServiceCheck,
)
from criproxy.fronts.http2.codes import Code
from criproxy.kube.http1 import ResponseError, ResponseReader
from criproxy.pods.service_checks import MOST, MOST_BYTES, NotAskedError, TooLargeError

_TOO_LONG: Final = f"has more than {MOST_BYTES} bytes"

_HEALTH: Final = "/grpc.health.v1.Health/Check"
_SERVING: Final = b"\x08\x01"
"""HealthCheckResponse with status SERVING. Source: gRPC, grpc/health/v1/health.proto."""


_OTHERS_RATIO: Final = 0.8
"""The share of a check's time-out in which the runtime has to tell where the pod is, or Prometheus to answer a query.
If it takes longer, that is not the pod's doing.
"""

MOST_PIECES: Final = 64
"""In which an answer may come."""

_MOST_KNOWN: Final = 4 * MOST
"""Addresses; then all are looked up anew."""


class _QueriedSample(Struct, frozen=True):
    """When the query was answered, and its value: a number, NaN, +Inf or -Inf."""

    value: tuple[float, str]


class _Vector(Struct, frozen=True, tag_field="resultType", tag="vector"):
    result: list[_QueriedSample]


class _Scalar(Struct, frozen=True, tag_field="resultType", tag="scalar"):
    result: tuple[float, str]


class _Queried(Struct, frozen=True):
    """An answer of Prometheus' HTTP API."""

    data: _Vector | _Scalar | None = None
    error: str = ""


class ServiceAsker(Struct, frozen=True):
    """An `AsksServices`. A pod on the host's network has 127.0.0.1. `prometheus`: where queries go, the host
    and the port; None: nowhere.

    A runtime that is restarted, or that is busy, must not make all services look down at once. So the address, which a
    sandbox keeps for as long as it lives, is looked up once.
    """

    runtime: PodsRuntime
    prometheus: tuple[str, int] | None = None
    _addresses: dict[str, str] = {}
    """By sandbox."""
    _strangers: LoopThread = field(default_factory=lambda: LoopThread("service-checks"))

    def close(self) -> None:
        """End its thread."""
        self._strangers.close()

    async def ask(self, check: ServiceCheck, sandbox_id: str, container_id: str) -> ServiceAnswer:
        if check.exec is not None:
            try:
                status, output = await self.runtime.execute(container_id, check.exec.command, check.timeout_s)
            except CallError as error:
                if error.code != Code.UNAVAILABLE:
                    raise
                raise NotAskedError(str(error)) from error
            if len(output) > MOST_BYTES:
                raise TooLargeError(_TOO_LONG)
            text = output.decode(errors="replace")
            return ServiceAnswer(status == 0, text if status == 0 else f"exit status {status}")
        if check.prometheus is not None:
            return await self._query(check.prometheus, check.timeout_s * _OTHERS_RATIO)
        host = await self._address(sandbox_id, check.timeout_s * _OTHERS_RATIO)
        if check.http is None:
            return await self._strangers.run(partial(_health, host, check.grpc))
        status, text = await self._strangers.run(partial(_get, host, check.http.port, check.http.path))
        well = 200 <= status < 400
        return ServiceAnswer(well, text if well else f"status {status}")

    async def hindrance(self, check: ServiceCheck, sandbox_id: str) -> str:
        if check.exec is not None:
            answers = await self.runtime.answers(check.timeout_s * _OTHERS_RATIO)
            return "" if answers else "it could not be asked: the runtime does not answer"
        over_the_network = check.http or check.grpc
        if over_the_network is None:
            return ""
        host = await self._address(sandbox_id, check.timeout_s * _OTHERS_RATIO)
        return f"{host}: {remedy([host])}, or the network of all pods" if is_barred(host, over_the_network.port) else ""

    async def _query(self, check: PrometheusCheck, timeout_s: float) -> ServiceAnswer:
        """Where there is no number, that is not the service's doing."""
        if self.prometheus is None:
            raise NotAskedError("interference.prometheus is not set, which says where queries go")
        host, port = self.prometheus
        try:
            async with asyncio.timeout(timeout_s):
                path = f"/api/v1/query?query={quote(check.query, safe='')}"
                status, text = await self._strangers.run(partial(_get, host, port, path))
            return ServiceAnswer(True, _number(status, text))
        except (OSError, ValueError) as error:
            if is_barred(host, port):
                raise NotAskedError(f"Prometheus at {host}: {remedy([host])}") from error
            why = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
            raise NotAskedError(f"Prometheus at {host}: {why}") from error

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


async def _get(host: str, port: int, path: str) -> tuple[int, str]:
    """The status and the text. Raises OSError, TooLargeError or ValueError.

    HTTP/1.1, as Envoy answers an older one with 426 unless it is told otherwise. Source: Envoy, Http1ProtocolOptions,
    accept_http_10.
    """
    reader, writer = await asyncio.open_connection(host, port)
    response, body, size_bytes, pieces = ResponseReader(), b"", 0, 0
    try:
        named = f"[{host}]" if ":" in host else host
        headers = f"Host: {named}:{port}\r\nUser-Agent: criproxy\r\nConnection: close\r\n"
        writer.write(f"GET {path} HTTP/1.1\r\n{headers}\r\n".encode())
        while not response.done and (part := await reader.read(MOST_BYTES + 1 - size_bytes)):
            size_bytes, pieces = size_bytes + len(part), pieces + 1
            if size_bytes > MOST_BYTES:
                raise TooLargeError(_TOO_LONG)
            if pieces > MOST_PIECES:
                raise TooLargeError(f"comes in more than {MOST_PIECES} pieces")
            body += response.feed(part)
        response.end()
    except ResponseError as error:
        raise ValueError(f"it is no HTTP/1: {error}") from error
    finally:
        writer.transport.abort()
    assert response.head is not None
    return response.head.status, body.decode(errors="replace")


def _number(status: int, text: str) -> str:
    """Of Prometheus' answer, as it writes numbers. Raises ValueError when there is none.

    What is wrong with a query comes with a status of its own, and in JSON. Source: Prometheus, HTTP API.
    """
    try:
        answer = msgspec.json.decode(text, type=_Queried)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"status {status}: {error}") from error
    if answer.data is None:
        raise ValueError(f"status {status}: {answer.error[:200] or 'the answer has no data'}")
    if isinstance(answer.data, _Vector) and not answer.data.result:
        raise ValueError("the query finds no sample")
    _, number = answer.data.result if isinstance(answer.data, _Scalar) else answer.data.result[0].value
    if number == "NaN":
        raise ValueError("the query's value is NaN")
    return number


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
                raise TooLargeError(_TOO_LONG) from error
            return ServiceAnswer(False, str(error))
    return ServiceAnswer(answer == _SERVING, "" if answer == _SERVING else "it is not serving")
