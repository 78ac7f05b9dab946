"""Simulated nodes, all in one process: criproxy/kube's own publisher, watch and client, fed by recorded use.

`python -m benchmarks.cluster.agents FILE`: FILE is `Plan` as JSON. With the first line of its input the nodes begin,
and it prints a line of JSON each second until all are there; for each further line it prints `Figures`, which count
from the last such line on.

A node's first minutes are played before it is there, with its clock set back and an API server that takes everything.
Then it is created with what it would have published by then, so that the nodes' reports are spread as on a cluster that
has run for long: the first is due anywhere in the time that lies between two reports on average.

What of a node is not played: kubelet's own writes, evictions, the daemon's check of a policy's settings. A new policy
is reported as in force, as a node would.
"""

import asyncio
import contextlib
import json
import queue
import random
import ssl
import sys
import time
from array import array
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec import Struct

from benchmarks.cluster.load import Course, NodeLoad, course
from criproxy.commands.simulate.readers import load
from criproxy.commands.simulate.trace import Trace, example
from criproxy.concurrency.clock import Clock, Wake
from criproxy.control.publication import REPORT_S, falls
from criproxy.kube.client import MERGE_PATCH, ApiAnswer, ApiClient, ApiRequest, Asks, UnreachableError
from criproxy.kube.credential import Access, Credential
from criproxy.kube.extended_resources import LONGER_RATIO, Offer, PublishSettings, wanted
from criproxy.kube.kubeconfig import Kubeconfig, Pem
from criproxy.kube.node_watch import NodeWatch
from criproxy.kube.objects import Node, annotations_patch, path
from criproxy.kube.policy import parsed
from criproxy.kube.publisher import Publisher
from criproxy.kube.retry import Meaning
from criproxy.vocabulary.names import POLICY, POLICY_STATUS
from criproxy.vocabulary.policy import PolicyReport

PAST_S: Final = 70.0
"""The shortest past that a node has; the longest is `MEAN_S` more."""

MEAN_S: Final = REPORT_S * (1.0 + LONGER_RATIO / 2)
"""From one report to the next, on average."""

PAST_STEP_S: Final = 30.0
STARTING: Final = 16
"""So many nodes are created and begin to watch at once."""

CREATORS: Final = 4
"""Connections over which they are created."""

IMAGES: Final = 30
LABELS: Final = 15
POOL: Final = 10
"""Nodes with one value of the label `pool`."""


class Plan(Struct):
    """`cpu` and `memory`: recorded use for `criproxy simulate`, of nodes with 32 cores and 128 GiB; (): the example."""

    directory: str
    port: int
    nodes: int
    cpu: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    seed: int = 1


class Figures(Struct):
    """`late_s`: from when a sample of the course would lower a number by more than 10 % until the API server had that.

    Nodes whose number is off at the end count with their time until then.

    `held_up_s`: how late this process's own timers were; when that is much, the figures are its, not the cluster's.
    `heard`: of each policy's name, how many nodes have it, and when the last one had it (CLOCK_MONOTONIC).
    """

    seconds: float
    published: int
    reports: int
    lists: int
    failed: int
    late_s: list[float]
    publish_s: list[float]
    held_up_s: list[float]
    heard: dict[str, tuple[int, float]]
    troubles: list[str]


class _NodeCredential(Credential):
    """A certificate that is there already: 10,000 kubeconfigs in YAML would take a minute to read."""

    def __init__(self, access: Access) -> None:
        super().__init__()
        self._ready = access

    def access(self) -> Access:
        return self._ready


class Issuer:
    """Signs nodes' certificates with the lab's authority; all have one key."""

    def __init__(self, directory: Path, port: int) -> None:
        self._ca_file = directory / "ca.crt"
        self._ca = x509.load_pem_x509_certificate(self._ca_file.read_bytes())
        key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._ca_key = key
        self._key = ec.generate_private_key(ec.SECP256R1())
        form = serialization.PrivateFormat.PKCS8
        self._key_pem = self._key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        self._file = directory / "simulated-node.pem"
        self._config = Kubeconfig(
            host="127.0.0.1",
            port=port,
            path="",
            server_name="127.0.0.1",
            ca=Pem(str(self._ca_file)),
            certificate=Pem(),
            key=Pem(),
            token="",
            token_file="",
        )
        self._now = datetime.now(UTC)

    def credential(self, common_name: str, organization: str, node: str = "") -> Credential:
        subject = [(NameOID.ORGANIZATION_NAME, organization), (NameOID.COMMON_NAME, common_name)]
        signed = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(*one) for one in subject]))
            .issuer_name(self._ca.subject)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - timedelta(minutes=5))
            .not_valid_after(self._now + timedelta(days=1))
            .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .sign(self._ca_key, hashes.SHA256())
        )
        self._file.write_bytes(signed.public_bytes(serialization.Encoding.PEM) + self._key_pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cafile=self._ca_file)
        context.load_cert_chain(self._file)
        return _NodeCredential(Access(self._config, context, "", node))


class NodeClock(Clock):
    """The machine's, less `back_s`. Each sleeper has a timer of its own: there are tens of thousands of them."""

    def __init__(self) -> None:
        super().__init__()
        self.back_s = 0.0

    def boottime_s(self) -> float:
        return super().boottime_s() - self.back_s

    def wall_s(self) -> float:
        return super().wall_s() - self.back_s

    async def sleep(self, seconds: float | None, slack_s: float = 0.0, wake: Wake | None = None) -> None:
        await asyncio.sleep(seconds or 0.0)


class _Past:
    """An API server before the node is there: it takes each patch of the status. `status` is what came of it."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {}

    async def ask(self, request: ApiRequest) -> ApiAnswer:
        if request.method == "GET":
            return ApiAnswer(200, b'{"metadata": {"resourceVersion": "1"}, "items": []}')
        self.status = json.loads(request.body)["status"]
        return ApiAnswer(200, json.dumps({"status": self.status}).encode())

    async def ask_again(self, request: ApiRequest, tries: int = 4) -> ApiAnswer:
        return await self.ask(request)


class Counter:
    """What all nodes did since the last `taken`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.off_since_s: dict[str, float] = {}
        """Of nodes whose number on the Node is too high by more than 10 %, by CLOCK_BOOTTIME."""
        self.heard: dict[str, tuple[int, float]] = {}
        self.troubles: list[str] = []
        self._begin()

    def _begin(self) -> None:
        self._began_s = time.monotonic()
        self.published = self.reports = self.lists = self.failed = 0
        self.late_s: list[float] = []
        self.publish_s: list[float] = []
        self.held_up_s: list[float] = []

    def hear(self, before: str, policy: str) -> None:
        """A node has another policy."""
        count, at_s = self.heard.get(before, (1, 0.0))
        self.heard[before] = count - 1, at_s
        self.heard[policy] = self.heard.get(policy, (0, 0.0))[0] + 1, time.monotonic()

    def taken(self) -> Figures:
        now_s = self._clock.boottime_s()
        figures = Figures(
            time.monotonic() - self._began_s,
            self.published,
            self.reports,
            self.lists,
            self.failed,
            [*self.late_s, *(now_s - since_s for since_s in self.off_since_s.values())],
            self.publish_s,
            self.held_up_s,
            self.heard,
            self.troubles[:5],
        )
        self._begin()
        return figures

    def log(self) -> structlog.typing.FilteringBoundLogger:
        """Keeps what a node warns of."""

        def keep(_: Any, name: str, event: Any) -> Any:
            self.troubles.append(f"{name} {event}")
            raise structlog.DropEvent

        filtering = structlog.make_filtering_bound_logger(30)
        made: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(None, [keep], wrapper_class=filtering)
        return made


class Agent:
    """One node. It is a source of offers for its publisher, an observer of its watch, and the client of both."""

    def __init__(
        self,
        name: str,
        client: ApiClient,
        node_load: NodeLoad,
        *,
        clock: NodeClock,
        rng: random.Random,
        counter: Counter,
    ) -> None:
        self.name = name
        self._client = client
        self._load = node_load
        self._clock = clock
        self._counter = counter
        self._past: Asks | None = _Past()
        self._settings = PublishSettings()
        self._begins_s = self._followed_s = self._there_s = 0.0
        self._told: dict[str, int] = {}
        self._want: dict[str, int] = {}
        self._policy: str | None = None
        self._named = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._seen = asyncio.Event()
        log = counter.log()
        self._publisher = Publisher(self, name, self, self._settings, clock=clock, rng=rng, log=log)
        self._watch = NodeWatch(self, name, (self._publisher, self), clock=clock, rng=rng, log=log)

    # --- its life ---------------------------------------------------------------------------------------------------

    async def live(self, past_s: float) -> dict[str, Any]:
        """Play the past. Returns the status that the node has by now."""
        past = self._past
        assert isinstance(past, _Past)
        self._clock.back_s = past_s
        self._begins_s = self._followed_s = self._clock.boottime_s()
        while self._clock.back_s > 0.0:
            await self._publisher.look()
            self._clock.back_s = max(self._clock.back_s - PAST_STEP_S, 0.0)
        self._past = None
        return past.status

    async def begin(self) -> None:
        """Returns once the node is watched."""
        self._tasks = [asyncio.create_task(self._watch.run())]
        await self._seen.wait()
        self._there_s = self._clock.boottime_s()
        if self.name in self._counter.off_since_s:
            self._counter.off_since_s[self.name] = self._there_s
        self._tasks.append(asyncio.create_task(self._publisher.run()))

    def body(self, number: int, status: dict[str, Any]) -> bytes:
        """The Node as its kubelet would register it."""
        labels = {f"label{n}.example.com/key": f"value{n}" for n in range(LABELS)}
        labels |= {"kubernetes.io/hostname": self.name, "pool": f"p{number // POOL}"}
        amounts = {"cpu": str(self._load.cores), "memory": str(self._load.memory_bytes), "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        images = [{"names": [f"registry/image{n}@sha256:{'0' * 64}"], "sizeBytes": n} for n in range(IMAGES)]
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": labels},
            "status": {
                **{place: amounts | status.get(place, {}) for place in ("capacity", "allocatable")},
                "conditions": [ready, *status.get("conditions", ())],
                "images": images,
            },
        }
        return json.dumps(node).encode()

    # --- for its publisher and its watch ----------------------------------------------------------------------------

    def offer(self) -> tuple[float, Offer]:
        now_s = self._clock.boottime_s()
        self._follow(now_s)
        offered = self._load.offer(now_s - self._begins_s)
        self._want = wanted(offered, self._settings)
        return now_s, offered

    def _follow(self, now_s: float) -> None:
        """Since when the number on the Node is off, by the samples since the last look."""
        off_since_s = self._counter.off_since_s
        for t_s, offered in self._load.changes(self._followed_s - self._begins_s, now_s - self._begins_s):
            amounts = wanted(offered, self._settings).items()
            if any(falls(amount, self._told.get(name, 0)) for name, amount in amounts):
                off_since_s.setdefault(self.name, max(self._begins_s + t_s, self._there_s))
            else:
                off_since_s.pop(self.name, None)
        self._followed_s = now_s

    async def ask(self, request: ApiRequest) -> ApiAnswer:
        if self._past is not None:
            answer = await self._past.ask(request)
        else:
            began_s = time.monotonic()
            try:
                answer = await self._client.ask(request)
            except UnreachableError:
                self._counter.failed += 1
                raise
            self._count(request, answer, time.monotonic() - began_s)
        if request.method == "PATCH" and request.path.endswith("/status") and answer.meaning is Meaning.DONE:
            self._published()
        return answer

    async def ask_again(self, request: ApiRequest, tries: int = 4) -> ApiAnswer:
        return await self._client.ask_again(request, tries)

    def lines(self, where: str) -> AsyncGenerator[bytes]:
        return self._client.lines(where)

    def saw(self, node: Node | None) -> None:
        self._seen.set()
        text = None if node is None else node.annotation(POLICY)
        if text != self._policy:
            self._policy = text
            before, policy = self._named, parsed(text or "{}")
            self._named = policy.name
            self._counter.hear(before, policy.name)
            self._tasks.append(asyncio.create_task(self._report(policy.version)))

    async def _report(self, version: str) -> None:
        """As the node's follower does once the policy is in force."""
        told = msgspec.json.encode(PolicyReport(version, True)).decode() if version else None
        patch = annotations_patch({POLICY_STATUS: told})
        with contextlib.suppress(UnreachableError):
            await self.ask(ApiRequest("PATCH", path("nodes", self.name), patch, MERGE_PATCH))

    def _count(self, request: ApiRequest, answer: ApiAnswer, seconds: float) -> None:
        counter = self._counter
        counter.failed += answer.meaning is not Meaning.DONE
        if request.method == "GET":
            counter.lists += "/pods" in request.path
        elif request.path.endswith("/status"):
            counter.published += 1
            counter.publish_s.append(seconds)
        else:
            counter.reports += 1

    def _published(self) -> None:
        self._told = dict(self._want)
        since_s = self._counter.off_since_s.pop(self.name, None)
        if since_s is not None and self._past is None:
            self._counter.late_s.append(self._clock.boottime_s() - since_s)


class Creator:
    """Creates Nodes as the administrator, over connections that are kept. Its methods block."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._idle: queue.SimpleQueue[HTTPSConnection] = queue.SimpleQueue()
        for _ in range(CREATORS):
            self._idle.put(HTTPSConnection(access.config.host, access.config.port, context=access.context))

    def create(self, body: bytes) -> None:
        """Raises RuntimeError when it is refused, and OSError."""
        connection = self._idle.get()
        try:
            connection.request("POST", path("nodes"), body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
        finally:
            self._idle.put(connection)
        if answer.status != HTTPStatus.CREATED:
            raise RuntimeError(f"a node could not be created: {answer.status} {said[:300]!r}")


class Fleet:
    """All nodes. See `run`."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._counter = Counter(NodeClock())
        self._agents: list[Agent] = []
        self._rng = random.Random(plan.seed)
        self._issuer = Issuer(Path(plan.directory), plan.port)
        cpu, memory = courses(plan)
        self._loads = [NodeLoad(cpu, memory, self._rng) for _ in range(plan.nodes)]

    async def run(self) -> None:
        """Until the input ends."""
        await asyncio.to_thread(sys.stdin.readline)
        held_up = asyncio.create_task(self._hold_up())
        begun = asyncio.create_task(self._begin_all())
        while not begun.done():
            await asyncio.wait([begun], timeout=1.0)
            print(json.dumps({"begun": len(self._agents)}), flush=True)
        begun.result()
        while await asyncio.to_thread(sys.stdin.readline):
            print(msgspec.json.encode(self._counter.taken()).decode(), flush=True)
        held_up.cancel()

    async def _begin_all(self) -> None:
        creator = Creator(self._issuer.credential("admin", "system:masters").access())
        turns = asyncio.Semaphore(STARTING)

        async def one(number: int) -> None:
            async with turns:
                self._agents.append(await self._begun(number, creator))

        async with asyncio.TaskGroup() as group:
            for number in range(self._plan.nodes):
                group.create_task(one(number))

    async def _begun(self, number: int, creator: Creator) -> Agent:
        name, clock = f"node{number}", NodeClock()
        credential = self._issuer.credential(f"system:node:{name}", "system:nodes", name)
        client = ApiClient(credential, clock, self._rng)
        agent = Agent(name, client, self._loads[number], clock=clock, rng=self._rng, counter=self._counter)
        status = await agent.live(PAST_S + MEAN_S * self._rng.random())
        await asyncio.to_thread(creator.create, agent.body(number, status))
        await agent.begin()
        return agent

    async def _hold_up(self) -> None:
        while True:
            due_s = time.monotonic() + 0.1
            await asyncio.sleep(0.1)
            self._counter.held_up_s.append(time.monotonic() - due_s)


def courses(plan: Plan) -> tuple[list[Course], list[Course]]:
    """Of CPU and of memory."""
    if not plan.cpu:
        return [course(one, "cpu", 1.0) for one in example()], [_memory_of(one) for one in example()]
    cpu, memory = load(plan.cpu, "32", None)[0], load(plan.memory, "128", None)[0]
    return [course(one, "cpu", 1.0) for one in cpu], [course(one, "memory", 2.0**30) for one in memory]


def _memory_of(cpu: Trace) -> Course:
    """As the example has no memory: most of it stands still, some follows the CPU, at 4 GiB a core."""
    usages = array("d", (0.3 * cpu.capacity + 0.4 * usage for usage in cpu.usages))
    return course(Trace(cpu.id, cpu.family, cpu.capacity, cpu.times_s, usages), "memory", 2.0**32)


def main() -> None:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    print("ready", flush=True)
    asyncio.run(Fleet(plan).run())


if __name__ == "__main__":
    main()
