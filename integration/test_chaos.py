"""kill -9 of containerd and of criproxy, again and again, while pods come and go.

At no moment is an offline process outside the box, no pod is lost track of, and no call fails but with UNAVAILABLE
while something is down. CHAOS_SEED repeats a run's order and moments, KILLS says how many kills of each.
"""

import contextlib
import os
import random
import signal
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from integration.lab import cri_client_pb2 as cri
from integration.lab.cgroups import Tree, hierarchies, of_process
from integration.lab.churn import Churn, Failure, RecordingClient, Spec, bring_up, is_offline, place_of
from integration.lab.client import CriClient, Pod
from integration.lab.containerd import Containerd
from integration.lab.criproxy import QUICK, Config, Criproxy
from integration.lab.cut import ECHOES, RECOVERING, is_echo, is_leftover
from integration.lab.directory import cgroup_root
from integration.lab.images import BUSYBOX
from integration.lab.lookout import Lookout
from integration.lab.naming import placement
from integration.lab.node import Node
from integration.lab.process import LabError, tail, wait_until

pytestmark = pytest.mark.timeout(900)

Say = Callable[[str], object]

KILLS = int(os.environ.get("KILLS", "5"))
TRIES = 20
"""To see what containerd does now and then."""
WORKERS = 3
WELL_S = 300.0
PLACEMENT = "colocation.criproxy.io/placement"
VICTIMS = ("containerd", "criproxy")
PODS_TO_RECOVER = 5
REMOVALS = 20
CONFIG: Config = {"colocation": {"enabled": True}, "control": QUICK, "cpu": {"min_cores": 0.5}}


@dataclass(frozen=True, slots=True)
class Outage:
    """One kill; the times are CLOCK_MONOTONIC, `recovered_s` that of the first OK answer."""

    victim: str
    killed_s: float
    restarted_s: float
    recovered_s: float

    def explains(self, failure: Failure) -> bool:
        """A call that was cut, or made while the victim was away."""
        during = failure.began_s <= self.recovered_s and failure.ended_s >= self.killed_s
        recovering = self.victim == "containerd" and (failure.code, failure.details) == ("UNKNOWN", RECOVERING)
        return during and (failure.code == "UNAVAILABLE" or recovering)


def unexplained(failures: Sequence[Failure], outages: Sequence[Outage]) -> list[Failure]:
    """The failures that neither an outage explains nor a call of the same client that an outage has cut."""
    cut: dict[str, set[str]] = {}
    found = []
    for failure in failures:
        if any(outage.explains(failure) for outage in outages):
            cut.setdefault(failure.thread, set()).add(failure.method)
        elif not (
            is_echo(failure, cut.get(failure.thread, ())) or (is_leftover(failure) and _killed_before(failure, outages))
        ):
            found.append(failure)
    return found


def _killed_before(failure: Failure, outages: Sequence[Outage]) -> bool:
    return any(outage.victim == "containerd" and outage.killed_s < failure.began_s for outage in outages)


class Prober(threading.Thread):
    """Calls Version all the time."""

    def __init__(self, client: RecordingClient) -> None:
        super().__init__(name="prober", daemon=True)
        self._client = client
        self._since_s = time.monotonic()
        self._ok_s: float | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def reset(self) -> None:
        """From now on, look for an OK answer anew."""
        with self._lock:
            self._since_s, self._ok_s = time.monotonic(), None

    def ok_s(self) -> float | None:
        """When the first OK answer came to a call that began after `reset`."""
        with self._lock:
            return self._ok_s

    def end(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(0.01):
            began_s = time.monotonic()
            if self._client.probe():
                with self._lock:
                    if self._ok_s is None and began_s > self._since_s:
                        self._ok_s = time.monotonic()


@dataclass(frozen=True, slots=True)
class Stage:
    """What the chaos plays on."""

    containerd: Containerd
    criproxy: Criproxy
    root: str

    def spec(self, kind: str, name: str) -> Spec:
        return Spec.of(self.root, kind, name)

    def place(self, uid: str) -> str:
        return place_of(self.root, uid)

    def strike(self, victim: str, down_s: float, prober: Prober) -> Outage:
        """Kill, wait, start, and wait for the first OK answer."""
        process = self.containerd if victim == "containerd" else self.criproxy
        killed_s = time.monotonic()
        process.kill()
        prober.reset()
        time.sleep(down_s)
        restarted_s = time.monotonic()
        process.start()
        recovered_s = wait_until(prober.ok_s, WELL_S, "an OK answer", self.criproxy.log)
        assert recovered_s is not None
        return Outage(victim, killed_s, restarted_s, recovered_s)

    def stand(self, client: CriClient, direct: CriClient) -> dict[int, dict[str, str]]:
        """Start the pods that live through it all; returns their processes and where those are."""
        found = {}
        for kind in ("offline", "online"):
            for number in (1, 2):
                spec = self.spec(kind, f"standing-{number}")
                Tree(spec.cgroup_parent).make()
                container = bring_up(client, spec)
                for pid in (direct.pid(container), direct.pid(container.pod)):
                    found[pid] = of_process(pid)
        return found

    def pods_in_box(self) -> list[Path]:
        """The pods' directories in the box, in all hierarchies."""
        boxes = [hierarchy.directory(f"{self.root}/offline") for hierarchy in hierarchies()]
        return [pod for box in boxes for pod in box.glob("*/")]

    def placed_in_runtime(self, direct: CriClient) -> list[tuple[str, str]]:
        """Uid and placement of the offline sandboxes that run; of the others, offline ones are placed and no more."""
        pods = direct.list_pods()
        placed = sorted((pod.metadata.uid, pod.annotations[PLACEMENT]) for pod in pods if PLACEMENT in pod.annotations)
        offline = [pod.metadata.uid for pod in pods if is_offline(pod.metadata.uid)]
        assert placed == sorted((uid, placement(self.place(uid))) for uid in offline), "the runtime's annotations"
        ready = {pod.metadata.uid for pod in pods if pod.state == cri.SANDBOX_READY}
        return [(uid, place) for uid, place in placed if uid in ready]

    def placed_in_status(self) -> list[tuple[str, str]]:
        return sorted((pod["uid"], pod["placement"]) for pod in self.criproxy.status()["pods"])

    def check(self, direct: CriClient, lookout: Lookout, standing: dict[int, dict[str, str]]) -> None:
        """All is where it should be, and all who keep a list agree.

        Nothing is under way now but what the runtime still does of calls that were cut: that may change the lists.
        """
        try:
            wait_until(lambda: self.placed_in_status() == self.placed_in_runtime(direct), WELL_S, "the status to agree")
        except LabError as error:
            lists = f"status: {self.placed_in_status()}\nruntime: {self.placed_in_runtime(direct)}"
            raise LabError(f"{error}\n{lists}{tail(self.criproxy.log)}") from error
        assert lookout.look() == []
        assert {pid: of_process(pid) for pid in standing} == standing, "the standing pods"


@pytest.fixture
def stage(lab: Path) -> Iterator[Stage]:
    with Node.before(lab, CONFIG) as node:
        Tree(f"{node.root}/kubepods/besteffort").make()
        yield Stage(node.containerd, node.proxy, node.root)


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays: clients in kubelet's place, and those who look on."""

    client: RecordingClient
    churns: Sequence[Churn]
    prober: Prober
    lookout: Lookout

    @contextlib.contextmanager
    def playing(self) -> Iterator[None]:
        """Within this, pods come and go; at its end, those have gone."""
        threads: Sequence[Lookout | Prober | Churn] = (self.lookout, self.prober, *self.churns)
        for thread in threads:
            thread.start()
        try:
            yield
            for churn in self.churns:
                churn.finish()
        finally:
            for thread in threads:
                thread.end()

    def progress(self) -> str:
        failed = dict(Counter(failure.code for failure in self.client.failures))
        return (
            f"{self.client.calls} calls, failed {failed}; {sum(churn.pods for churn in self.churns)} pods; "
            f"{len(self.lookout.seen)} processes in {self.lookout.looks} looks, {len(self.lookout.wrong)} misplaced"
        )

    def summary(self, outages: Sequence[Outage]) -> str:
        lines = [self.progress()]
        for victim in VICTIMS:
            for since, times in (
                ("kill", sorted(o.recovered_s - o.killed_s for o in outages if o.victim == victim)),
                ("restart", sorted(o.recovered_s - o.restarted_s for o in outages if o.victim == victim)),
            ):
                middle, listed = statistics.median(times), " ".join(f"{time:.2f}" for time in times)
                lines.append(f"{victim}: first OK answer after its {since}: median {middle:.2f} s of {listed}")
        kinds = Counter(f"{f.code} {f.method}: {f.details[:100]}" for f in self.client.failures)
        return "\n    ".join([*lines, *(f"{count:4} {kind}" for kind, count in kinds.most_common())])


def cast(stage: Stage, client: RecordingClient, seed: int) -> Cast:
    def churn(worker: int) -> Churn:
        kinds = random.Random(f"{seed}/kinds/{worker}")

        def make(number: int) -> Spec:
            return stage.spec(kinds.choice(("offline", "offline", "online")), f"{worker}-{number}")

        return Churn(f"churn-{worker}", client, make, f"{seed}/{worker}")

    lookout = Lookout(stage.containerd.directory, stage.containerd.socket, stage.place)
    return Cast(client, [churn(worker) for worker in range(WORKERS)], Prober(client), lookout)


def test_pods_through_kills_of_containerd_and_criproxy_stay_bounded_and_known(stage: Stage, say: Say) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))
    say(f"CHAOS_SEED={seed}")
    chance = random.Random(seed)
    victims = list(VICTIMS) * KILLS
    chance.shuffle(victims)
    outages: list[Outage] = []
    with RecordingClient(stage.criproxy.socket) as client, CriClient(stage.containerd.socket) as direct:
        standing = stage.stand(client, direct)
        actors = cast(stage, client, seed)
        with actors.playing():
            for victim in victims:
                time.sleep(chance.uniform(0.2, 2.0))
                outages.append(outage := stage.strike(victim, chance.uniform(0.0, 1.0), actors.prober))
                time.sleep(chance.uniform(0.0, 1.0))
                with client.held():
                    stage.check(direct, actors.lookout, standing)
                took_s = outage.recovered_s - outage.killed_s
                say(f"{len(outages)}/{len(victims)} {victim}: OK {took_s:.2f} s after the kill; {actors.progress()}")
        client.remove_all_pods()
        assert direct.list_pods() == []
        wait_until(lambda: stage.pods_in_box() == [], WELL_S, "the box to be empty", stage.criproxy.log)
    say(actors.summary(outages))
    assert actors.lookout.wrong == []
    assert not (errors := [str(churn.error) for churn in actors.churns if churn.error]), "\n".join(errors)
    assert not (left := unexplained(client.failures, outages)), "\n".join(map(str, left))
    assert min(churn.pods for churn in actors.churns) > 0


def test_containerd_that_recovers_says_so_with_unknown_directly_too(lab: Path, say: Say) -> None:
    """What `Outage.explains` lets pass beside UNAVAILABLE is containerd's own."""
    containerd = Containerd(lab)
    containerd.start()
    with CriClient(containerd.socket) as client:
        for number in range(PODS_TO_RECOVER):
            parent = f"{cgroup_root(lab)}/kubepods/besteffort/pod{number}"
            Tree(parent).make()
            client.run_pod("web", uid=str(number), cgroup_parent=parent)
    answers: Counter[tuple[str, str]] = Counter()
    for _ in range(TRIES):
        containerd.kill()
        listener = threading.Thread(target=_first_answers, args=(containerd.socket, answers))
        listener.start()
        containerd.start()
        listener.join()
        if ("UNKNOWN", RECOVERING) in answers:
            break
    say(f"directly: {dict(answers)}")
    assert ("UNKNOWN", RECOVERING) in answers


def _first_answers(socket_path: Path, answers: Counter[tuple[str, str]]) -> None:
    """Count what a containerd that is about to start answers, from its first moment to its first OK."""
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(socket_path)) == 0:
                break
    with CriClient(socket_path) as client:
        while True:
            try:
                client.list_pods()
            except grpc.RpcError as error:
                answers[error.code().name, error.details() or ""] += 1
            else:
                return


def test_containerd_that_still_works_on_a_cut_call_says_so_with_unknown_directly_too(lab: Path) -> None:
    """What `unexplained` lets pass is containerd's own.

    A cut call may have ended before the next one comes: then another is cut.
    """
    containerd = Containerd(lab)
    containerd.start()
    parent = f"{cgroup_root(lab)}/kubepods/besteffort/podu1"
    Tree(parent).make()
    spec = Spec("u1", parent, {})
    with CriClient(containerd.socket) as client:
        runs = [cri.RunPodSandboxRequest(config=spec.config(attempt)) for attempt in range(TRIES)]
        assert ECHOES["RunPodSandbox"].search(_echo(client, containerd.log, "RunPodSandbox", runs))

        config = spec.config(attempt=TRIES)
        pod = Pod(client.call("RunPodSandbox", cri.RunPodSandboxRequest(config=config)).pod_sandbox_id, config)
        creates = [_create(pod, attempt) for attempt in range(TRIES)]
        assert ECHOES["CreateContainer"].search(_echo(client, containerd.log, "CreateContainer", creates))

        container = client.create_container(pod, "other")
        remove = cri.RemoveContainerRequest(container_id=container.id)
        shim = int(Path(f"/proc/{client.pid(pod)}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(shim, signal.SIGSTOP)
        try:
            start = cri.StartContainerRequest(container_id=container.id)
            _cut(client, containerd.log, "StartContainer", start)
            assert ECHOES["StartContainer"].search(_failure(client.unary("RemoveContainer").future(remove)))
        finally:
            os.kill(shim, signal.SIGCONT)

        for attempt in range(TRIES):
            other = client.create_container(pod, "other", attempt=1 + attempt)
            remove = cri.RemoveContainerRequest(container_id=other.id)
            removals = [client.unary("RemoveContainer").future(remove) for _ in range(REMOVALS)]
            found = [_failure(removal) for removal in removals]
            if any(found):
                break
        assert all(ECHOES["RemoveContainer"].search(text) for text in found if text)
        assert any(found)


def _create(pod: Pod, attempt: int) -> Message:
    return cri.CreateContainerRequest(
        pod_sandbox_id=pod.id,
        config=cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="main", attempt=attempt),
            image=cri.ImageSpec(image=BUSYBOX),
            command=["true"],
        ),
        sandbox_config=pod.config,
    )


def _echo(client: CriClient, log: Path, method: str, requests: Iterable[Message]) -> str:
    """Cut calls, one after the other, until the same call anew fails, and say how; "": none has."""
    for request in requests:
        _cut(client, log, method, request)
        if said := _failure(client.unary(method).future(request)):
            return said
    return ""


def _cut(client: CriClient, log: Path, method: str, request: Message) -> None:
    """Give a call up in the middle, as a client does that is killed: after the log of containerd has named it."""
    before = log.read_text().count(f"{method} ")
    call = client.unary(method).future(request)
    wait_until(lambda: log.read_text().count(f"{method} ") > before, WELL_S, f"{method} to begin", log)
    time.sleep(0.05)
    call.cancel()


def _failure(call: grpc.Future) -> str:
    """The details of a call that fails as calls do that meet another; "": it has succeeded."""
    error = call.exception()
    if error is None:
        return ""
    assert error.code() in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.NOT_FOUND), error
    return str(error.details())
