"""`./bench ledger`: starts a ledger beside an API server that is played, and asks it at both doors."""

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from benchmarks.cluster.figures import Figure, line
from benchmarks.ledger import crowd
from benchmarks.ledger.api import CPU, MEMORY, SLOT, PlayedApi, uid_of
from benchmarks.table import table
from criproxy_cluster.ledger import messages
from criproxy_cluster.ledger.grpc_door import SERVICE
from integration.lab.cluster_side import run as run_program
from integration.lab.control_plane import Authority
from integration.lab.ports import free_ports
from integration.lab.process import Process

NODES: Final = 10_000
RUNNING: Final = 80_000
WAITING: Final = 30_000
SLOTS: Final = 12
READY_S: Final = 300.0
END_S: Final = 0.2
BATCH: Final = 256
AT_ONCE: Final = 32
"""Calls under way, of those one by one, and connections of the API server's."""

QUIET_S: Final = 0.02
"""Between two calls, when it is quiet."""

MIB: Final = 1 << 20
_EMPTY: Final = (sys.executable, "-m", "benchmarks.ledger.empty")
TARGETS: Final = {"batches": 20_000.0, "one by one": 2_000.0, "binds": 1_500.0}


class Load:
    """Waiting pods, one after another, and the nodes that have room for them."""

    def __init__(self) -> None:
        self._next = 0

    def take(self) -> tuple[int, str]:
        """Raises StopIteration when there is none left."""
        if self._next == WAITING:
            raise StopIteration
        self._next += 1
        return self._next - 1, f"node-{(self._next - 1) % NODES}"


class Doors:
    """Clients of a ledger at these ports."""

    def __init__(self, folder: Path, api: PlayedApi, port: int, grpc_port: int) -> None:
        self._ca = folder / "pki" / "ca.crt"
        self._api = api
        self._port = port
        self._grpc_port = grpc_port

    # --- gRPC ---------------------------------------------------------------------------------------------------------

    def channel(self) -> Any:
        credentials = grpc.ssl_channel_credentials(self._ca.read_bytes())
        return grpc.aio.secure_channel(f"localhost:{self._grpc_port}", credentials)

    async def batches(self, seconds: float) -> float:
        """Reservations a second: a batch is reserved, then given back."""
        async with self.channel() as channel:
            ends_s, done, began_s = time.monotonic() + seconds, 0, time.monotonic()

            async def one(first: int) -> None:
                nonlocal done
                wishes = [_wish(first + number, f"node-{(first + number) % NODES}") for number in range(BATCH)]
                request = messages.ReserveRequest(wishes=wishes, all_or_nothing=True)
                release = messages.ReleaseRequest(uids=[wish.uid for wish in wishes])
                while time.monotonic() < ends_s:
                    said = await _reserve(channel)(request)
                    whys = {verdict.why for verdict in said.verdicts}
                    assert whys == {""}, whys
                    await _release(channel)(release)
                    done += BATCH

            await asyncio.gather(*(one(number * BATCH) for number in range(4)))
            return done / (time.monotonic() - began_s)

    async def singles(self, seconds: float, at_once: int, pause_s: float = 0.0) -> tuple[float, list[float]]:
        """Reservations a second, one for each call, each of another pod, and how long each took.

        Each asker gives a batch of them back at a time, lest nodes be full, which counts in the first figure.
        """
        took_s: list[float] = []
        async with self.channel() as channel:
            ends_s, began_s = time.monotonic() + seconds, time.monotonic()

            async def one(first: int) -> None:
                pods = itertools.cycle(range(first, WAITING // 2, at_once))
                while time.monotonic() < ends_s:
                    held = list[str]()
                    while time.monotonic() < ends_s and len(held) < BATCH:
                        number = next(pods)
                        wish = _wish(number, f"node-{number % NODES}")
                        asked_s = time.monotonic()
                        said = await _reserve(channel)(messages.ReserveRequest(wishes=[wish]))
                        took_s.append(time.monotonic() - asked_s)
                        assert said.verdicts[0].why == "", said.verdicts[0].why
                        held.append(wish.uid)
                        await asyncio.sleep(pause_s)
                    await _release(channel)(messages.ReleaseRequest(uids=held))

            await asyncio.gather(*(one(number) for number in range(at_once)))
            return len(took_s) / (time.monotonic() - began_s), took_s

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Callable[[bytes], Awaitable[bytes]]]:
        """Asks at /bind on a connection that is kept."""
        context = ssl.create_default_context(cafile=str(self._ca))
        reader, writer = await asyncio.open_connection("localhost", self._port, ssl=context)

        async def ask(body: bytes) -> bytes:
            head = f"POST /bind?timeout=1s HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = next(one for one in answer.lower().split(b"\r\n") if one.startswith(b"content-length"))
            return await reader.readexactly(int(length.split(b":")[1]))

        try:
            yield ask
        finally:
            writer.close()

    async def binds(self, load: Load, seconds: float, at_once: int, pause_s: float = 0.0) -> tuple[float, list[float]]:
        """Binds that were let through a second, each of another pod and shown by the watch, and how long each took."""
        took_s: list[float] = []
        ends_s, began_s = time.monotonic() + seconds, time.monotonic()

        async def one() -> None:
            async with self.connection() as ask:
                while time.monotonic() < ends_s:
                    try:
                        number, node = load.take()
                    except StopIteration:
                        return
                    body, asked_s = _review(number, node), time.monotonic()
                    said = await ask(body)
                    took_s.append(time.monotonic() - asked_s)
                    assert b'"allowed":true' in said, said
                    self._api.show(number, node)
                    await asyncio.sleep(pause_s)

        await asyncio.gather(*(one() for _ in range(at_once)))
        return len(took_s) / (time.monotonic() - began_s), took_s


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="./bench ledger", description="Measure what the ledger bears.")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement (default: %(default)s)")
    parser.add_argument("--crowd", metavar="SECONDS", type=float, help="two kube-schedulers on full nodes instead")
    parser.add_argument("--json", metavar="F", type=Path, help="write the figures to this file, too")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="criproxy-ledger-") as folder:
        if options.crowd:
            print(table(crowd.measure(Path(folder), options.crowd)))
            return 0
        figures = asyncio.run(_measure(Path(folder), options.seconds))
    print(table([line(one) for one in figures]))
    if options.json:
        options.json.write_text(json.dumps({one.what: one.value for one in figures}, indent=1) + "\n")
    return 0


async def _measure(folder: Path, seconds: float) -> list[Figure]:
    api = PlayedApi(NODES, SLOTS, RUNNING, WAITING)
    server = f"http://127.0.0.1:{await api.serve()}"
    both = Authority(folder / "pki").sign("ledger", "/CN=localhost", "subjectAltName=DNS:localhost").read_bytes()
    for name in ("tls.crt", "tls.key"):
        (folder / name).write_bytes(both)
    config = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "criproxy-system"}}],
        "current-context": "x",
    }
    (folder / "config").write_text(json.dumps(config))
    port, grpc_port, empty_port = free_ports(3)
    ports = ["--port", str(port), "--grpc-port", str(grpc_port)]
    verb = ["ledger", *ports, "--certificates", str(folder)]
    process = run_program(verb, folder / "log", {"KUBECONFIG": str(folder / "config")})
    empty_server = Process("empty server", [*_EMPTY, str(empty_port), folder / "tls.key"], folder / "empty.log")
    doors, load = Doors(folder, api, port, grpc_port), Load()
    empty = Doors(folder, api, port, empty_port)
    try:
        listed_s = await _ready(port, doors, process)
        gc.freeze()
        await asyncio.sleep(4.0)  # a new leader abstains
        listed_mib = _rss_mib(process.pid)
        quiet_bind = await doors.binds(load, seconds, 1, QUIET_S)
        quiet, quiet_empty = await _in_turns(doors, empty, seconds, 1, QUIET_S)
        batches = await doors.batches(seconds)
        singles, empty_singles = await _in_turns(doors, empty, seconds, AT_ONCE)
        before_s = _cpu_s(process.pid)
        binds = await doors.binds(load, seconds, AT_ONCE)
        bind_us = (_cpu_s(process.pid) - before_s) / len(binds[1]) * 1e6
        after_mib = _rss_mib(process.pid)
    except BaseException:
        print((folder / "log").read_text()[-2000:], file=sys.stderr)
        raise
    finally:
        process.stop()
        empty_server.kill()
        await asyncio.sleep(END_S)  # the played API server sees that its connections are closed
    return [
        Figure("reservations in batches, short of 20,000/s by", max(TARGETS["batches"] - batches, 0), "/s", 0),
        Figure("reservations in batches", batches, "/s"),
        Figure("reservations one by one, short of 2,000/s by", max(TARGETS["one by one"] - singles[0], 0), "/s", 0),
        Figure("reservations one by one", singles[0], "/s"),
        Figure("… of a gRPC server that does nothing", empty_singles[0], "/s"),
        Figure("binds, short of 1,500/s by", max(TARGETS["binds"] - binds[0], 0), "/s", 0),
        Figure("binds", binds[0], "/s"),
        Figure("processor time of a bind, with its watch's event", bind_us, "us"),
        Figure("bind, p99, quiet", _p99_ms(quiet_bind[1]), "ms", 5.0),
        Figure("reservation, p99, quiet", _p99_ms(quiet[1]), "ms", 5.0),
        Figure("… of a gRPC server that does nothing", _p99_ms(quiet_empty[1]), "ms"),
        Figure(f"memory with {NODES} nodes and {RUNNING + WAITING} pods", listed_mib, "MiB", 150.0),
        Figure("memory after all of this", after_mib, "MiB", 150.0),
        Figure("from its start until all is listed", listed_s, "s"),
    ]


async def _in_turns(
    doors: Doors, empty: Doors, seconds: float, at_once: int, pause_s: float = 0.0
) -> list[tuple[float, list[float]]]:
    """What `singles` says of the ledger, and of the empty server: each for so long, one after the other, twice."""
    turns = [await one.singles(seconds / 2, at_once, pause_s) for one in (doors, empty, doors, empty)]
    return [((turns[one][0] + turns[one + 2][0]) / 2, turns[one][1] + turns[one + 2][1]) for one in (0, 1)]


async def _ready(port: int, doors: Doors, process: Any) -> float:
    began_s = time.monotonic()
    body = _review(0, "node-0").replace(b'"dryRun": false', b'"dryRun": true')
    while time.monotonic() - began_s < READY_S:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with doors.connection() as ask:
                if b'"allowed"' in await ask(body):
                    return time.monotonic() - began_s
        if not process.is_alive():
            break
        await asyncio.sleep(0.2)
    raise RuntimeError(f"the ledger at port {port} is not ready")


def _wish(number: int, node: str) -> messages.Wish:
    name = f"w{WAITING - 1 - number}"
    wanted = {CPU: SLOT, MEMORY: 1 << 30}
    return messages.Wish(uid=uid_of(name), namespace="default", name=name, node=node, resources=wanted)


def _review(number: int, node: str) -> bytes:
    """As kube-apiserver 1.37 sends it."""
    meta = {"name": f"w{number}", "namespace": "default", "uid": uid_of(f"w{number}"), "creationTimestamp": None}
    binding = {"group": "", "version": "v1", "kind": "Binding"}
    pods = {"group": "", "version": "v1", "resource": "pods"}
    return json.dumps({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": uid_of("review"), "kind": binding, "resource": pods, "subResource": "binding",
            "requestKind": binding, "requestResource": pods, "requestSubResource": "binding",
            "name": f"w{number}", "namespace": "default", "operation": "CREATE",
            "userInfo": {"username": "system:kube-scheduler", "groups": ["system:authenticated"]},
            "object": {
                "kind": "Binding", "apiVersion": "v1", "metadata": meta, "target": {"kind": "Node", "name": node},
            },
            "oldObject": None, "dryRun": False, "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }).encode()  # fmt: skip


def _reserve(channel: Any) -> Any:
    request, response = messages.ReserveRequest, messages.ReserveResponse
    return channel.unary_unary(f"/{SERVICE}/Reserve", request.SerializeToString, response.FromString)


def _release(channel: Any) -> Any:
    request, response = messages.ReleaseRequest, messages.ReleaseResponse
    return channel.unary_unary(f"/{SERVICE}/Release", request.SerializeToString, response.FromString)


def _p99_ms(took_s: list[float]) -> float:
    return sorted(took_s)[len(took_s) * 99 // 100] * 1e3


def _rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024 / MIB


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
