"""Online services, asked over real sockets: an HTTP server that does what it is told, a gRPC health service, CRI."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio

from criproxy.clients import services
from criproxy.clients.http2.connection import CallError
from criproxy.clients.runtime import PodsRuntime
from criproxy.clients.services import MOST_PIECES, ServiceAsker
from criproxy.control.interference.service_checks import (
    ExecCheck,
    GrpcCheck,
    HttpCheck,
    PrometheusCheck,
    ServiceAnswer,
    ServiceCheck,
)
from criproxy.fronts.cri import messages as cri
from criproxy.fronts.http2.codes import Code
from criproxy.pods.service_checks import MOST_BYTES, NotAskedError, TooLargeError
from integration.lab.ports import free_ports

NODE, POD = 2, 0
"""CRI's NamespaceMode."""


class Link:
    """The runtime's answers, by method."""

    ready, pid = True, 7

    def __init__(self, address: str = "127.0.0.1", mode: int = POD, exit_code: int = 0, output: bytes = b"") -> None:
        self.asked: list[tuple[str, bytes]] = []
        status = cri.PodSandboxStatus(
            network=cri.PodSandboxNetworkStatus(ip=address.encode()),
            linux=cri.LinuxPodSandboxStatus(namespaces=cri.Namespace(options=cri.NamespaceOption(network=mode))),
        )
        self._answers = {
            "PodSandboxStatus": cri.PodSandboxStatusResponse(status=status),
            "Version": cri.VersionResponse(),
            "ExecSync": cri.ExecSyncResponse(stdout=output, exit_code=exit_code),
        }

    async def call(self, method: str, request: bytes, timeout_s: float) -> bytes:
        self.asked.append((method, request))
        return self._answers[method].SerializeToString()


async def ask(check: ServiceCheck, link: Link | None = None) -> ServiceAnswer:
    return await ServiceAsker(PodsRuntime(link or Link())).ask(check, "s1", "c1")  # type: ignore[arg-type]


@asynccontextmanager
async def server(answer: bytes, requests: list[bytes] | None = None) -> AsyncIterator[int]:
    """An HTTP server that says this to whoever asks, and closes; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if requests is not None:
            requests.append(request)
        writer.write(answer)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(within())


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n12.5 ms\n", ServiceAnswer(True, "12.5 ms\n"), id="number"),
        pytest.param(b"HTTP/1.0 302 Found\r\n\r\n", ServiceAnswer(True, ""), id="redirect"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n12.\r\n4;a=b\r\n5 ms\r\n0\r\n\r\n",
            ServiceAnswer(True, "12.5 ms"),
            id="in-chunks",
        ),
        pytest.param(b"HTTP/1.1 503 No\r\n\r\n12", ServiceAnswer(False, "status 503"), id="refusal"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n\xff1", ServiceAnswer(True, "\ufffd1"), id="no-utf-8"),
    ],
)
def test_http_answer_is_its_status_and_its_text(answer: bytes, outcome: ServiceAnswer) -> None:
    async def test() -> None:
        requests: list[bytes] = []
        async with server(answer, requests) as port:
            assert await ask(ServiceCheck(http=HttpCheck(port, "/p99"))) == outcome
        assert requests[0].startswith(b"GET /p99 HTTP/1.1\r\nHost: 127.0.0.1:")

    run(test)


def test_http_answer_is_read_to_its_own_end_though_the_connection_stays() -> None:
    async def test() -> None:
        requests: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n12.5")
            await reader.read()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as keeps:
            port = keeps.sockets[0].getsockname()[1]
            assert await ask(ServiceCheck(http=HttpCheck(port))) == ServiceAnswer(True, "12.5")
        assert b"\r\nConnection: close\r\n" in requests[0]

    run(test)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 x y\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n9",
    ],
)
def test_what_is_no_http_is_refused(answer: bytes) -> None:
    async def test() -> None:
        async with server(answer) as port:
            with pytest.raises(ValueError, match="no HTTP/1"):
                await ask(ServiceCheck(http=HttpCheck(port)))

    run(test)


def test_answer_that_comes_byte_by_byte_is_read_no_further_than_allowed() -> None:
    """Each piece costs the event loop a turn, and all of the threads the time of it."""

    async def test() -> None:
        sent = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(ConnectionError):
                for byte in b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 2000:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    sent += 1
                    await asyncio.sleep(0.002)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as drips:
            port = drips.sockets[0].getsockname()[1]
            with pytest.raises(TooLargeError, match=f"comes in more than {MOST_PIECES} pieces"):
                await ask(ServiceCheck(http=HttpCheck(port)))
        assert sent < 1000

    run(test)


@pytest.mark.parametrize(
    "check", [ServiceCheck(http=HttpCheck(1)), ServiceCheck(grpc=GrpcCheck(1))], ids=["http", "grpc"]
)
def test_what_strangers_send_is_read_on_a_thread_of_its_own(
    check: ServiceCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    async def read(*_: object) -> object:
        threads.append(threading.current_thread().name)
        return (200, "1") if check.http else ServiceAnswer(True, "")

    monkeypatch.setattr(services, "_get" if check.http else "_health", read)

    async def test() -> None:
        asker = ServiceAsker(PodsRuntime(Link()))  # type: ignore[arg-type]
        for _ in range(2):
            await asker.ask(check, "s1", "c1")
        asker.close()

    run(test)
    assert threads == ["service-checks"] * 2


def test_http_answer_without_end_is_read_no_further_than_allowed() -> None:
    async def test() -> None:
        async with server(b"HTTP/1.1 200 OK\r\n\r\n" + b"1" * MOST_BYTES) as port:
            with pytest.raises(TooLargeError):
                await ask(ServiceCheck(http=HttpCheck(port)))

    run(test)


P99 = ServiceCheck(prometheus=PrometheusCheck('max(p99{pod="web-1"}) > 0'), threshold=40.0)


async def query(port: int | None) -> ServiceAnswer:
    asker = ServiceAsker(PodsRuntime(Link()), None if port is None else ("127.0.0.1", port))  # type: ignore[arg-type]
    return await asker.ask(P99, "s1", "c1")


def answered(data: str) -> bytes:
    return f'HTTP/1.0 200 OK\r\n\r\n{{"status": "success", "data": {data}}}'.encode()


@pytest.mark.parametrize(
    ("data", "number"),
    [
        pytest.param('{"resultType": "scalar", "result": [1700000000.1, "12.5"]}', "12.5", id="scalar"),
        pytest.param(
            '{"resultType": "vector", "result": [{"metric": {"pod": "a"}, "value": [1, "3e-05"]},'
            ' {"metric": {}, "value": [1, "7"]}]}',
            "3e-05",
            id="first-of-a-vector",
        ),
        pytest.param('{"resultType": "scalar", "result": [1, "+Inf"]}', "+Inf", id="infinite"),
    ],
)
def test_query_is_answered_by_a_scalar_or_by_the_first_sample(data: str, number: str) -> None:
    async def test() -> None:
        requests: list[bytes] = []
        async with server(answered(data), requests) as port:
            assert await query(port) == ServiceAnswer(True, number)
        assert requests[0].startswith(
            b"GET /api/v1/query?query=max%28p99%7Bpod%3D%22web-1%22%7D%29%20%3E%200 HTTP/1.1\r\n"
        )

    run(test)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(answered('{"resultType": "vector", "result": []}'), "the query finds no sample", id="no-sample"),
        pytest.param(answered('{"resultType": "scalar", "result": [1, "NaN"]}'), "NaN", id="nan"),
        pytest.param(answered('{"resultType": "matrix", "result": []}'), "matrix", id="a-range"),
        pytest.param(answered("null"), "no data", id="nothing"),
        pytest.param(
            b'HTTP/1.0 400 Bad Request\r\n\r\n{"status": "error", "error": "parse error: unexpected <eof>"}',
            "parse error: unexpected <eof>",
            id="no-query",
        ),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\n<html>", "status 200: JSON is malformed", id="another-server"),
        pytest.param(b"HTTP/1.1 401 Unauthorized\r\n\r\nUnauthorized\n", "status 401", id="a-password-is-asked-for"),
        pytest.param(b"HTTP/1.1 503 No\r\n\r\n{}", "status 503: the answer has no data", id="away"),
        pytest.param(b"SSH-2.0\r\n", "no HTTP/1", id="no-http"),
    ],
)
def test_query_without_a_number_says_nothing_of_the_service(answer: bytes, why: str) -> None:
    async def test() -> None:
        async with server(answer) as port:
            with pytest.raises(NotAskedError, match=why):
                await query(port)

    run(test)


def test_query_without_a_prometheus_says_nothing_of_the_service() -> None:
    async def test() -> None:
        (port,) = free_ports(1)
        for server, why in ((port, "Prometheus at 127.0.0.1: "), (None, "interference.prometheus is not set")):
            with pytest.raises(NotAskedError, match=why):
                await query(server)

    run(test)


def test_prometheus_that_does_not_answer_says_nothing_of_the_service() -> None:
    async def test() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as silent:
            with pytest.raises(NotAskedError, match=r"no answer within 0\.8 s"):
                await query(silent.sockets[0].getsockname()[1])

    run(test)


def test_answer_of_prometheus_is_read_no_further_than_allowed() -> None:
    async def test() -> None:
        async with server(b"HTTP/1.1 200 OK\r\n\r\n" + b"1" * MOST_BYTES) as port:
            with pytest.raises(TooLargeError):
                await query(port)

    run(test)


def test_nobody_listens() -> None:
    async def test() -> None:
        (port,) = free_ports(1)
        for check in (ServiceCheck(http=HttpCheck(port)), ServiceCheck(grpc=GrpcCheck(port))):
            with pytest.raises(ConnectionRefusedError):
                await ask(check)

    run(test)


@pytest.mark.parametrize(
    ("address", "mode", "reached"),
    [
        pytest.param("127.0.0.1", POD, True, id="its-own-address"),
        pytest.param("", NODE, True, id="the-hosts-network"),
        pytest.param("", POD, False, id="none"),
        pytest.param("example.org", POD, False, id="a-name"),
    ],
)
def test_pod_is_asked_at_the_address_that_the_runtime_tells(address: str, mode: int, reached: bool) -> None:
    async def test() -> None:
        async with server(b"HTTP/1.1 200 OK\r\n\r\n") as port:
            check = ServiceCheck(http=HttpCheck(port))
            if reached:
                assert (await ask(check, Link(address, mode))).well
            else:
                with pytest.raises(ValueError, match="no address"):
                    await ask(check, Link(address, mode))

    run(test)


@asynccontextmanager
async def health(answer: bytes, code: grpc.StatusCode = grpc.StatusCode.OK) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A gRPC server whose health service answers with these bytes; its port, and what it was asked."""
    requests: list[bytes] = []

    async def check(request: bytes, context: aio.ServicerContext) -> bytes:
        requests.append(request)
        if code is not grpc.StatusCode.OK:
            await context.abort(code, "unknown service")
        return answer

    serving = aio.server()
    handlers = {"Check": grpc.unary_unary_rpc_method_handler(check)}
    serving.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", handlers),))
    port = serving.add_insecure_port("127.0.0.1:0")
    await serving.start()
    try:
        yield port, requests
    finally:
        await serving.stop(None)


@pytest.mark.parametrize(
    ("answer", "code", "outcome"),
    [
        pytest.param(b"\x08\x01", grpc.StatusCode.OK, ServiceAnswer(True, ""), id="serving"),
        pytest.param(b"\x08\x02", grpc.StatusCode.OK, ServiceAnswer(False, "it is not serving"), id="not-serving"),
        pytest.param(b"", grpc.StatusCode.OK, ServiceAnswer(False, "it is not serving"), id="unknown"),
        pytest.param(
            b"", grpc.StatusCode.NOT_FOUND, ServiceAnswer(False, "Check: NOT_FOUND: unknown service"), id="error"
        ),
    ],
)
def test_grpc_health_is_what_its_server_says(answer: bytes, code: grpc.StatusCode, outcome: ServiceAnswer) -> None:
    async def test() -> None:
        async with health(answer, code) as (port, requests):
            for service in ("", "shop", "x" * 256):
                assert await ask(ServiceCheck(grpc=GrpcCheck(port, service))) == outcome
        length = struct.pack("BB", 0x80, 2)
        assert requests == [b"", b"\x0a\x04shop", b"\x0a" + length + b"x" * 256]

    run(test)


def test_grpc_answer_that_is_too_large_is_not_taken() -> None:
    async def test() -> None:
        async with health(b"\x12" + b"x" * (MOST_BYTES + 1)) as (port, _):
            with pytest.raises(TooLargeError):
                await ask(ServiceCheck(grpc=GrpcCheck(port)))

    run(test)


@pytest.mark.parametrize(
    ("exit_code", "output", "outcome"),
    [
        pytest.param(0, b"42\n", ServiceAnswer(True, "42\n"), id="number"),
        pytest.param(3, b"42\n", ServiceAnswer(False, "exit status 3"), id="failed"),
    ],
)
def test_command_runs_in_its_container_for_its_time(exit_code: int, output: bytes, outcome: ServiceAnswer) -> None:
    async def test() -> None:
        link = Link(exit_code=exit_code, output=output)
        check = ServiceCheck(exec=ExecCheck(("cat", "/x")), timeout_s=1.5)
        assert await ask(check, link) == outcome
        ((method, request),) = link.asked
        asked = cri.ExecSyncRequest.FromString(request)
        assert (method, asked.container_id, list(asked.cmd), asked.timeout) == ("ExecSync", b"c1", [b"cat", b"/x"], 2)

    run(test)


def test_output_of_a_command_that_is_too_large_is_not_looked_at() -> None:
    async def test() -> None:
        with pytest.raises(TooLargeError):
            await ask(ServiceCheck(exec=ExecCheck(("yes",))), Link(output=b"1" * (MOST_BYTES + 1)))

    run(test)


@pytest.mark.parametrize(
    ("address", "check", "hindered"),
    [
        pytest.param("127.255.255.255", ServiceCheck(http=HttpCheck(80, "/")), True, id="a-datagram-is-refused"),
        pytest.param("127.0.0.1", ServiceCheck(http=HttpCheck(80, "/")), False, id="nobody-listens"),
        pytest.param("127.255.255.255", ServiceCheck(exec=ExecCheck(("cat",))), False, id="a-command"),
    ],
)
def test_hindrance_is_told_with_the_command_that_ends_it(address: str, check: ServiceCheck, hindered: bool) -> None:
    async def test() -> None:
        asker = ServiceAsker(PodsRuntime(Link(address=address)))  # type: ignore[arg-type]
        said = await asker.hindrance(check, "s1")
        assert ("set-property criproxy.service IPAddressAllow=" in said) is hindered
        assert (address in said) is hindered

    run(test)


# --- a runtime that does not answer ----------------------------------------------------------------------------------


class AwayLink(Link):
    """It ends each call so, while it is `away`; None: it never ends."""

    def __init__(self, code: Code | None = Code.UNAVAILABLE) -> None:
        super().__init__()
        self.code, self.away = code, True

    async def call(self, method: str, request: bytes, timeout_s: float) -> bytes:
        if not self.away:
            return await super().call(method, request, timeout_s)
        if self.code is None:
            await asyncio.Event().wait()
        raise CallError(method, self.code or Code.UNKNOWN, "the runtime is restarted")


COMMAND = ServiceCheck(exec=ExecCheck(("true",)))


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.UNKNOWN, None])
def test_pod_whose_address_the_runtime_does_not_tell_was_not_asked(code: Code | None) -> None:
    async def test() -> None:
        with pytest.raises(NotAskedError):
            await ask(ServiceCheck(http=HttpCheck(80), timeout_s=0.1), AwayLink(code))

    run(test)


def test_service_is_asked_on_while_the_runtime_is_away() -> None:
    async def test() -> None:
        link = AwayLink()
        asker = ServiceAsker(PodsRuntime(link))  # type: ignore[arg-type]
        async with server(b"HTTP/1.1 200 OK\r\n\r\n") as port:
            check = ServiceCheck(http=HttpCheck(port))
            link.away = False
            await asker.ask(check, "s1", "")
            link.away = True
            assert (await asker.ask(check, "s1", "")).well
            with pytest.raises(NotAskedError):
                await asker.ask(check, "s2", "")

    run(test)


@pytest.mark.parametrize(
    ("code", "error"), [(Code.UNAVAILABLE, NotAskedError), (Code.NOT_FOUND, CallError)], ids=["away", "no-container"]
)
def test_command_that_the_runtime_does_not_take_was_not_run(code: Code, error: type[Exception]) -> None:
    async def test() -> None:
        with pytest.raises(error):
            await ask(COMMAND, AwayLink(code))

    run(test)


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, None])
def test_command_without_an_answer_says_nothing_of_the_service_while_the_runtime_does_not_answer(
    code: Code | None,
) -> None:
    async def test() -> None:
        link = AwayLink(code)
        asker = ServiceAsker(PodsRuntime(link))  # type: ignore[arg-type]
        check = ServiceCheck(exec=COMMAND.exec, timeout_s=0.1)
        assert await asker.hindrance(check, "s1") == "it could not be asked: the runtime does not answer"
        link.code = Code.NOT_FOUND
        assert await asker.hindrance(check, "s1") == "", "it says something"
        link.away = False
        assert await asker.hindrance(check, "s1") == "", "the command has taken too long"

    run(test)
