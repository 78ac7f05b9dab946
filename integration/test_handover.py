"""Upgrades of a criproxy that works: no call fails, no pod escapes, and whatever dies in between, the node is served.

UPGRADES, RESTARTS and CHANGES (hand-overs amid which something changes) say how many:
`UPGRADES=100 ./test integration integration/test_handover.py -k under_load`, `CHANGES=100 … -k amid_a`.
"""

import contextlib
import json
import os
import random
import re
import signal
import socket
import statistics
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.lab import cri_client_pb2 as cri
from integration.lab.cgroups import Tree
from integration.lab.churn import Churn, RecordingClient, Spec, place_of
from integration.lab.client import Container, CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import QUICK, UNJUDGED, Config, Criproxy, python_path, static
from integration.lab.cut import strange
from integration.lab.directory import cgroup_root
from integration.lab.kubelet import static_pod
from integration.lab.load import Call, Job, Load
from integration.lab.lookout import Lookout
from integration.lab.naming import placement
from integration.lab.node import CLASS, KubeletNode, Node
from integration.lab.process import Process, is_running, wait_until
from integration.lab.upgrades import Code, ask, command, pids, serving, stop_all, upgrade
from integration.lab.watch import Watch
from integration.test_daemon import criproxy

pytestmark = pytest.mark.timeout(1200)

Say = Callable[[str], object]

UPGRADES = int(os.environ.get("UPGRADES", "6"))
RESTARTS = int(os.environ.get("RESTARTS", "5"))
CHANGES = int(os.environ.get("CHANGES", "8"))
WAIT_S = 240.0
"""What an event missed is found by the next listing, and an unfinished start is kept for two minutes."""
RETIRED_S = 120.0
"""A process that was replaced ends within 11 s when no call lasts longer; more for a busy machine."""

CONFIG: Config = {
    "proxy": {"engine": "relay"},  # the one that can drain
    "colocation": {"enabled": True},
    "control": {**QUICK, "interval_s": 0.2},
    "cpu": {"min_cores": 0.3},
    "guard": {"enabled": False},  # others use this machine, too
}

STATIC = {**CONFIG, **static(0.5, control={"interval_s": 0.2})}


@pytest.fixture
def node(lab: Path, containerd: Containerd, client: CriClient) -> Iterator[Node]:
    with Node.before(containerd, CONFIG, directory=lab, starts=False) as node:
        yield node
        stop_all(node.proxy)


def sockets(proxy: Criproxy) -> set[str]:
    return {path.name for path in proxy.directory.glob("criproxy.sock*")}


def wait_alone(proxy: Criproxy) -> None:
    """Wait until only the one that serves is left, and nothing of the others."""

    def alone() -> bool:
        pid = serving(proxy)
        return (pids(proxy), sockets(proxy)) == ([pid], {"criproxy.sock", f"criproxy.sock.{pid}"})

    wait_until(lambda: pids(proxy) == [serving(proxy)], RETIRED_S, "the others to end", proxy.log)
    wait_until(alone, WAIT_S, f"its socket alone, but there are {sockets(proxy)}", proxy.log)


def complaints(proxy: Criproxy) -> list[dict[str, Any]]:
    """What it warned of, but for what is so in this lab: no kubelet runs here."""
    warned = [event for event in proxy.events() if event["level"] in ("warning", "error", "critical")]
    return [event for event in warned if event["event"] != "eviction_threshold_unknown"]


def exec_job(container: Container, script: str, answer: bytes) -> Job:
    def job(client: CriClient) -> None:
        got = client.exec_sync(container, ["sh", "-c", script])
        assert (got.stdout, got.exit_code) == (answer, 0)

    return job


def load_jobs(container: Container) -> dict[str, Job]:
    return {
        "Version": lambda client: client.call("Version", cri.VersionRequest()),
        "Version again": lambda client: client.call("Version", cri.VersionRequest()),
        "lists": lambda client: (client.list_pods(), client.call("ListContainers", cri.ListContainersRequest())),
        "exec": exec_job(container, "echo x", b"x\n"),
        "exec of 3 s": exec_job(container, "sleep 3; echo x", b"x\n"),
        "exec of 200 KB": exec_job(container, "head -c 200000 /dev/zero", bytes(200_000)),
    }


# --- under load -----------------------------------------------------------------------------------------------------


def test_upgrades_under_load_fail_no_call(node: Node, say: Say) -> None:
    proxy = node.proxy
    proxy.configure({**CONFIG, "interference": UNJUDGED})
    proxy.start()
    container, standing = node.run("online"), node.run("offline", "offline-standing")
    lookout = Lookout(node.containerd.directory, node.containerd.socket, lambda uid: place_of(node.root, uid))
    times, first = [], serving(proxy)
    with RecordingClient(proxy.socket) as pods:
        churns = [
            Churn(f"{kind} pods", pods, lambda n, kind=kind: Spec.of(node.root, kind, f"churn-{n}"), f"upgrades/{kind}")  # type: ignore[misc]
            for kind in ("offline", "online")
        ]
        lookout.start()
        with Load(proxy.socket, load_jobs(container), pause_s=0.005) as load:
            for churn in churns:
                churn.start()
            time.sleep(3)
            before = {job: max(load.seconds(job), default=0.0) for job in ("Version", "lists")}
            for _ in range(UPGRADES):
                times.append(upgrade(proxy))
                time.sleep(0.2)
            for churn in churns:
                churn.finish()
            wait_alone(proxy)
        lookout.end()
        say(
            f"{UPGRADES} upgrades, s until the new one serves: median {statistics.median(times):.2f}, max "
            f"{max(times):.2f}; {pods.calls} calls about {sum(churn.pods for churn in churns)} pods, failed: "
            f"{Counter(failure.code for failure in pods.failures)}; slowest calls before the first, s: {before}"
            f"\n    {load.summary()}"
        )
    assert load.failures == []
    assert pods.failures == []
    assert [churn.error for churn in churns] == [None, None]
    assert min(churn.pods for churn in churns) > 0
    assert lookout.wrong == []
    assert node.is_in_box(standing)
    assert serving(proxy) != first
    assert complaints(proxy) == []
    wait_until(lambda: node.pods_in_box() == {f"pod{standing.pod.config.metadata.uid}"}, WAIT_S, "the box to be swept")


def test_restarts_under_load_fail_calls_with_unavailable_alone_and_lose_no_pod(node: Node, say: Say) -> None:
    proxy = node.proxy
    proxy.start()
    container = node.run("online")
    with RecordingClient(proxy.socket) as pods:
        churns = [
            Churn(f"{kind} pods", pods, lambda n, kind=kind: Spec.of(node.root, kind, f"churn-{n}"), f"restarts/{kind}")  # type: ignore[misc]
            for kind in ("offline", "online")
        ]
        with Load(proxy.socket, load_jobs(container), pause_s=0.005) as load:
            for churn in churns:
                churn.start()
            for _ in range(RESTARTS):
                time.sleep(1)
                proxy.restart()
            for churn in churns:
                churn.finish()
        failed = Counter(failure.code for failure in pods.failures)
        say(f"{RESTARTS} restarts; pods' calls that failed: {failed}\n    {load.summary()}")
    assert {call.code for call in load.failures} == {"UNAVAILABLE"}
    assert strange(pods.failures) == []  # a busy machine does not end all within the grace of a stop
    assert [churn.error for churn in churns] == [None, None]
    assert [pod.id for pod in node.direct.list_pods()] == [container.pod.id]
    wait_until(lambda: node.pods_in_box() == set(), WAIT_S, "the box to be empty", proxy.log)


# --- calls that last ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slow:
    """A criproxy before a runtime whose calls take long."""

    proxy: Criproxy
    runtime: Process
    root: str

    def start_sandbox(self, client: CriClient, uid: str) -> str:
        spec = Spec(uid, f"{self.root}/kubepods/besteffort/pod{uid}", {CLASS: "offline"})
        request = cri.RunPodSandboxRequest(config=spec.config(0))
        return str(client.call("RunPodSandbox", request).pod_sandbox_id)


@pytest.fixture
def slow(lab: Path) -> Iterator[Slow]:
    path = lab / "runtime.sock"
    runtime = Process("runtime", [sys.executable, "-m", "integration.lab.slow_runtime", path], lab / "runtime.log")
    with CriClient(path) as client:
        wait_until(client.is_ready, WAIT_S, "the runtime to answer", lab / "runtime.log")
    root = cgroup_root(lab)
    Tree(f"{root}/kubepods/besteffort").make()
    proxy = Criproxy(lab, path, CONFIG)
    yield Slow(proxy, runtime, root)
    stop_all(proxy)
    runtime.stop()


def follow_events(client: CriClient, begun: list[float]) -> None:
    """Until the stream ends; that it never ends by itself makes each end a failure. `begun`: when one has."""
    stream = client.stream("GetContainerEvents", cri.GetEventsRequest())
    next(stream)
    begun.append(time.monotonic())
    for _ in stream:
        pass
    raise AssertionError("the stream has ended with OK")


def test_calls_that_last_are_finished_and_event_streams_end_last(slow: Slow, say: Say) -> None:
    proxy, upgrades = slow.proxy, 2
    uids: list[str] = []
    begun: list[float] = []
    proxy.start()

    def sandbox(client: CriClient) -> None:
        uids.append(uid := f"offline-{len(uids)}")
        slow.start_sandbox(client, uid)

    def pull(seconds: float) -> Job:
        request = cri.PullImageRequest(image=cri.ImageSpec(image=str(seconds)))
        return lambda client: client.call("PullImage", request)

    def ended(load: Load) -> list[Call]:
        return [call for call in load.failures if call.job == "events"]

    jobs: Mapping[str, Job] = {
        "events": lambda client: follow_events(client, begun),
        "pulls of 4 s": pull(4),
        "200 KB": lambda client: client.call("ListImages", cri.ListImagesRequest()),
        "sandboxes": sandbox,
    }
    with Load(proxy.socket, jobs, pause_s=0.005) as load:
        long = threading.Thread(target=_once, args=(proxy.socket, pull(15)))
        time.sleep(1)
        long.start()
        for number in range(1, upgrades + 1):
            old = serving(proxy)
            wait_until(lambda number=number: len(begun) == number, WAIT_S, "a stream through it", proxy.log)  # type: ignore[misc]
            upgrade(proxy)
            wait_until(lambda old=old: not is_running(old), RETIRED_S, "the old one to end", proxy.log)  # type: ignore[misc]
            wait_until(lambda number=number: len(ended(load)) == number, WAIT_S, "its stream's client to see the end")  # type: ignore[misc]
        long.join()
        time.sleep(1)
        others = [call for call in load.failures if call.job != "events"]
        say(load.summary())
        assert others == []
        assert [call.code for call in ended(load)] == ["UNAVAILABLE"] * upgrades
    started = {sandbox["uid"] for sandbox in proxy.status()["pods"]}
    wait_until(lambda: {pod["uid"] for pod in proxy.status()["pods"]} >= set(uids), WAIT_S, f"{uids}, not {started}")
    assert complaints(proxy) == []


def _once(path: Path, job: Job) -> None:
    with CriClient(path) as client:
        job(client)


def test_pod_let_in_by_way_of_the_old_process_is_bounded_and_known_to_the_new_one(slow: Slow) -> None:
    """The first offline pod of all comes on a connection to the old process: the box is made by the new one."""
    proxy = slow.proxy
    proxy.start()
    with CriClient(proxy.socket) as client:
        wait_until(client.is_ready, WAIT_S, "the client's connection", proxy.log)
        upgrade(proxy)
        wait_until(lambda: proxy.http("/healthz")[0] == 200, WAIT_S, "the new one's address", proxy.log)
        assert proxy.status()["box"]["path"] is None
        slow.start_sandbox(client, "offline-late")
        assert proxy.status()["pid"] == serving(proxy)
        assert proxy.status()["box"]["path"] == placement(f"{slow.root}/offline")
        wait_until(lambda: [p["uid"] for p in proxy.status()["pods"]] == ["offline-late"], WAIT_S, "the pod", proxy.log)
    refused = [event for event in proxy.events() if event["event"] == "refused"]
    assert refused == []


# --- what goes wrong ------------------------------------------------------------------------------------------------


REFUSED = 6
BROKEN: Mapping[str, tuple[str | None, Config | None, str]] = {
    "crashes": ("raise SystemExit(3)", None, "ended before it was ready"),
    "does-not-parse": ("(", None, "ended before it was ready"),
    "has-a-bad-config": (None, {**CONFIG, "control": {"interval_s": -1}}, "the config has errors: "),
}


@pytest.mark.parametrize(("main", "config", "reason"), BROKEN.values(), ids=BROKEN)
def test_new_process_that_fails_is_ended_and_the_old_one_goes_on(
    slow: Slow, lab: Path, main: str | None, config: Config | None, reason: str
) -> None:
    proxy, code = slow.proxy, Code(lab)
    proxy.start(env=code.env)
    old = serving(proxy)
    code.install(main)
    if config is not None:
        proxy.configure(config)
    with Load(proxy.socket, {"Version": lambda client: client.call("Version", cri.VersionRequest())}) as load:
        outcome = command(proxy)
        assert (outcome.returncode, outcome.stdout) == (1 if config is None else REFUSED, "")
        assert reason in outcome.stderr
        assert serving(proxy) == old
        assert pids(proxy) == [old]
        status = proxy.status()["upgrade"]
        assert (status["failed"], reason in status["problem"]) == (1, True)
        assert status["refused"] is (config is not None)
        assert "criproxy_upgrade_failures_total 1.0" in proxy.http("/metrics")[1]
        assert "upgrade_failed" in [event["event"] for event in proxy.events()]
        ticks = proxy.status()["box"]["cpu"], time.monotonic()
        wait_until(lambda: proxy.status()["box"]["cpu"] != ticks[0], WAIT_S, "a tick after it", proxy.log)
        code.install()
        proxy.configure(CONFIG)
        outcome = command(proxy)
        assert (outcome.returncode, outcome.stderr) == (0, "")
        assert f"pid {old} -> " in outcome.stdout
        assert serving(proxy) != old
    assert load.failures == []


def test_new_process_that_would_listen_elsewhere_does_not_take_over(slow: Slow) -> None:
    proxy = slow.proxy
    proxy.start()
    proxy.configure({**CONFIG, "proxy": {"engine": "relay", "listen": str(proxy.directory / "elsewhere.sock")}})
    outcome = command(proxy)
    assert outcome.returncode == 1
    assert "where proxy.listen has changed since it started, restart it" in outcome.stderr
    assert ask(proxy) == proxy.pid
    wait_until(lambda: proxy.status()["upgrade"]["failed"] == 1, WAIT_S, "the upgrade to fail", proxy.log)
    assert proxy.status()["upgrade"]["problem"].startswith("proxy.listen is ")
    assert proxy.status()["upgrade"]["refused"] is True
    assert pids(proxy) == [serving(proxy)] == [proxy.pid]
    assert not (proxy.directory / "elsewhere.sock").exists()


MOMENTS_S = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.3, 2.0, 3.0]


@pytest.mark.parametrize("victim", ["old", "new"])
def test_kill_at_any_moment_leaves_the_node_served_and_nothing_stale(slow: Slow, victim: str, say: Say) -> None:
    """A service manager stands by, as systemd does: when the main process has ended, it ends all and starts one."""
    proxy = slow.proxy
    proxy.start()
    outcomes: Counter[str] = Counter()
    for moment_s in MOMENTS_S:
        old = ask(proxy)
        time.sleep(moment_s)
        victims = [old] if victim == "old" else [pid for pid in pids(proxy) if pid != old]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):  # the shell that starts the new one ends at once
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)
        if is_running(serving(proxy)):
            outcomes["old goes on" if serving(proxy) == old else "new goes on"] += 1

        def is_ready() -> bool:
            """The new one may have given up a moment later, too."""
            if not is_running(serving(proxy)):
                stop_all(proxy)
                outcomes["restarted"] += 1
                proxy.start()
            return proxy.is_ready()

        wait_until(is_ready, WAIT_S, "readiness", proxy.log)
        wait_alone(proxy)
        with CriClient(proxy.socket) as client:
            wait_until(client.is_ready, WAIT_S, "an answer", proxy.log)
    say(f"{victim} one killed: {dict(outcomes)}")


def test_termination_at_any_moment_ends_both(slow: Slow) -> None:
    proxy = slow.proxy
    for moment_s in MOMENTS_S[::2]:
        proxy.start()
        old = ask(proxy)
        time.sleep(moment_s)
        os.kill(old, signal.SIGTERM)
        wait_until(lambda old=old: not is_running(old), WAIT_S, "the old one to end", proxy.log)  # type: ignore[misc]
        stop_all(proxy)
        assert sockets(proxy) == set(), proxy.log.read_text()[-3000:]


def test_upgrade_during_an_upgrade_is_refused_and_the_next_one_done(slow: Slow) -> None:
    proxy = slow.proxy
    proxy.start()
    old = ask(proxy)
    wait_until(lambda: "upgrade" in [event["event"] for event in proxy.events()], WAIT_S, "it to begin", proxy.log)
    assert ask(proxy) == old
    wait_until(lambda: serving(proxy) not in (0, old), WAIT_S, "another to serve", proxy.log)
    assert [event["event"] for event in complaints(proxy)] == ["upgrade_refused"]
    upgrade(proxy)
    upgrade(proxy)
    wait_alone(proxy)


# --- with the code replaced -----------------------------------------------------------------------------------------


def test_old_process_finishes_its_calls_when_its_code_is_gone(slow: Slow, lab: Path) -> None:
    proxy, code = slow.proxy, Code(lab)
    proxy.start(env=code.env)
    old = serving(proxy)
    with CriClient(proxy.socket) as client, CriClient(proxy.socket) as events:
        stream = events.stream("GetContainerEvents", cri.GetEventsRequest())
        next(stream)
        pull = client.unary("PullImage").future(cri.PullImageRequest(image=cri.ImageSpec(image="8")))
        time.sleep(0.2)
        code.install()  # removes the copy that the old one runs
        upgrade(proxy)
        slow.start_sandbox(client, "offline-late")
        with pytest.raises(grpc.RpcError) as refused:
            client.call(
                "RunPodSandbox", cri.RunPodSandboxRequest(config=Spec("x", "/nowhere", {CLASS: "offline"}).config(0))
            )
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert pull.result().image_ref == "8"
        with pytest.raises(grpc.RpcError) as ended:
            for _ in stream:
                pass
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
    wait_until(lambda: not is_running(old), RETIRED_S, "the old one to end", proxy.log)
    assert "Traceback" not in proxy.log.read_text()
    wait_until(lambda: proxy.exit_status is not None, WAIT_S, "its exit status")
    assert proxy.exit_status == 0


# --- the service manager --------------------------------------------------------------------------------------------


class Manager(threading.Thread):
    """Receives what processes tell their service manager: by pid, in order. Source: sd_notify(3), unix(7).

    Without what they say by themselves every few seconds, a status alone.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(name="manager", daemon=True)
        self.told: list[tuple[int, list[str]]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(str(path))

    def run(self) -> None:
        while True:
            data, extra, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(12))
            lines = data.decode().splitlines()
            if not lines[0].startswith("STATUS="):
                self.told.append((struct.unpack("3i", extra[0][2][:12])[0], lines))


def test_service_manager_hears_of_the_new_process_from_the_old_one_and_is_fed_by_the_main_one(
    slow: Slow, lab: Path
) -> None:
    proxy, manager = slow.proxy, Manager(lab / "notify")
    manager.start()
    proxy.start(env={"NOTIFY_SOCKET": str(lab / "notify"), "WATCHDOG_USEC": "400000"})
    old = serving(proxy)
    upgrade(proxy)
    new = serving(proxy)
    wait_alone(proxy)
    wait_until(lambda: (new, ["WATCHDOG=1"]) in manager.told, WAIT_S, "the new one to feed the watchdog", proxy.log)
    handed = manager.told.index((old, [f"MAINPID={new}"]))
    after = manager.told[handed + 1 :]
    assert {pid for pid, _ in after} == {new}, "the old one has nothing more to say"
    assert after[0] == (new, ["READY=1", "STATUS=colocation on, runtime ready, 0 offline pods"])
    assert new not in {pid for pid, _ in manager.told[:handed]}
    stop_all(proxy)
    wait_until(lambda: manager.told[-1] == (new, ["STOPPING=1"]), WAIT_S, "its end to be told", proxy.log)


# --- the box --------------------------------------------------------------------------------------------------------


SLOW_DISK = """
import os, time
def fsync(descriptor, _fsync=os.fsync):
    time.sleep(90)
    _fsync(descriptor)
os.fsync = fsync
"""
"""For Python's sitecustomize. Longer than an upgrade and an end are waited for."""


def test_disk_that_hangs_in_fsync_delays_no_hand_over_and_no_end_and_costs_no_memory(node: Node, lab: Path) -> None:
    def ticks() -> float:
        lines = proxy.http("/metrics")[1].splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("criproxy_tick_duration_seconds_count")))

    proxy = node.proxy
    (lab / "slow").mkdir()
    (lab / "slow" / "sitecustomize.py").write_text(SLOW_DISK)
    proxy.start(env={"PYTHONPATH": f"{lab / 'slow'}:{python_path()}"})
    node.run("offline")
    wait_until(lambda: ticks() >= 50, WAIT_S, "something to remember", proxy.log)
    before = ticks()
    took_s = upgrade(proxy)
    assert took_s < 60, "the new process was to wait for no disk"
    assert node.is_in_box(node.run("offline"))
    wait_until(proxy.is_ready, WAIT_S, "readiness", proxy.log)
    own = ticks()
    stop_all(proxy, 60)
    saved = json.loads((lab / "criproxy.checkpoint").read_text())
    assert saved["predictors"]["cpu"]["samples"] >= before + own - 5, "the first tick of each has no sample"
    assert complaints(proxy) == []


def test_limits_are_in_force_at_every_moment_and_one_process_writes_them(node: Node) -> None:
    proxy = node.proxy
    proxy.configure(STATIC)
    proxy.start()
    container = node.run("offline")
    quota = node.box.either("cpu.cfs_quota_us", "cpu.max")
    held = quota.read_text()
    seen: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.001):
            seen.add(quota.read_text())

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(3):
        upgrade(proxy)
    wait_alone(proxy)
    ended.set()
    looking.join()
    assert seen == {held}
    assert proxy.status()["box"]["drift"] == 0
    assert node.is_in_box(container)


# --- what changes amid a hand-over ----------------------------------------------------------------------------------


class Operator:
    """Changes one thing after the other; says whether criproxy goes by the latest of each."""

    def __init__(self, node: Node, chance: random.Random) -> None:
        self._node, self._chance = node, chance
        self.cores, self.enabled, self.held_off = 0.5, True, False
        self.change = ""

    def changes(self) -> None:
        """One thing, chosen at random."""
        self.change = self._chance.choice(["limit", "limit", "switch", "hold-off"])
        if self.change == "hold-off":
            self.held_off = not self.held_off
            words = ["hold-off", "1h", "--reason", "a test"] if self.held_off else ["release"]
            done = criproxy(*words, "--config", self._node.proxy.config_file)
            self.change = f"{' '.join(words)}: {done.stdout.strip()}{done.stderr.strip()}"
            assert done.returncode == 0, self.change
            return
        if self.change == "switch":
            self.enabled = not self.enabled
        else:
            self.cores = round(self._chance.uniform(0.3, 1.0), 2)
        colocation = {"enabled": self.enabled, "on_disable": "release"}
        self._node.proxy.configure(
            {**CONFIG, **static(self.cores, control={"interval_s": 0.2}), "colocation": colocation}
        )

    def is_obeyed(self) -> bool:
        modes = self._node.proxy.status()["modes"]
        quota = self._node.box.either("cpu.cfs_quota_us", "cpu.max").read_text().split()[0]
        if self.held_off or not self.enabled:
            return ("held off" in modes) == self.held_off and ("disabled" in modes) == (not self.enabled)
        return modes == [] and quota == str(round(self.cores * 100_000))


def test_what_changes_amid_a_hand_over_is_what_the_new_process_goes_by(node: Node, say: Say) -> None:
    """Before, while and after the new process reads its files, and before and after it takes over."""
    chance = random.Random(int(os.environ.get("SEED", "1")))
    proxy, operator = node.proxy, Operator(node, random.Random(chance.random()))
    proxy.configure({**CONFIG, **STATIC})
    proxy.start()
    container = node.run("offline")
    first_pid, waited, done = node.client.pid(container), [], Counter[str]()
    for number in range(CHANGES):
        old, began_s = serving(proxy), time.monotonic()
        upgrade_s, change_s = (0.0, chance.uniform(0.0, 1.5)) if number % 2 else (chance.uniform(0.0, 1.5), 0.0)
        acts: list[tuple[float, Callable[[], object]]] = [
            (upgrade_s, partial(ask, proxy)),
            (change_s, operator.changes),
        ]
        for at_s, act in sorted(acts, key=lambda one: one[0]):
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            act()
        wait_until(lambda old=old: serving(proxy) not in (0, old), WAIT_S, "another criproxy to serve", proxy.log, 0.01)  # type: ignore[misc]
        served_s = time.monotonic()
        words = f"hand-over {number} to obey {operator.change!r}: {operator.__dict__}"
        wait_until(operator.is_obeyed, 30, words, proxy.log)
        waited.append(time.monotonic() - served_s)
        done[operator.change.split(" ")[0]] += 1
    assert is_running(first_pid), "no pod was stopped"
    say(
        f"{CHANGES} hand-overs, {dict(done)}: obeyed after {statistics.median(waited):.1f} s, {max(waited):.1f} at most"
    )


# --- kubelet --------------------------------------------------------------------------------------------------------

COMPLAINT = re.compile(r"^[EW]\d{4} .*(rpc error|remote_runtime|remote_image|transport|Unavailable|PLEG)", re.MULTILINE)
KUBELET_UPGRADES = 5


@pytest.fixture
def kubelet_node() -> Iterator[KubeletNode]:
    with KubeletNode.up(CONFIG) as node:
        yield node


def test_kubelet_through_upgrades_restarts_no_pod_and_complains_of_nothing(kubelet_node: KubeletNode, say: Say) -> None:
    proxy, kubelet = kubelet_node.proxy, kubelet_node.kubelet
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 1}
    for kind in ("online", "offline"):
        manifest = static_pod(kind, labels={CLASS: kind})
        manifest["spec"]["containers"][0]["livenessProbe"] = probe
        kubelet.add_pod(manifest)
    uids = {kubelet.wait_running(kind).uid: kind for kind in ("online", "offline")}
    watch = Watch(kubelet_node.client, uids, {}, say)
    watch.start()
    seen = len(kubelet.log.read_text(errors="replace"))
    for number in range(KUBELET_UPGRADES):
        upgrade(proxy)
        kubelet.add_pod(static_pod(f"amid-{number}", labels={CLASS: "offline"}))
        time.sleep(2)
    for number in range(KUBELET_UPGRADES):
        assert kubelet.wait_running(f"amid-{number}").restarts == 0
    wait_alone(proxy)
    watch.end()

    def complained() -> list[str]:
        return [match[0] for match in COMPLAINT.finditer(kubelet.log.read_text(errors="replace")[seen:])]

    say(f"{KUBELET_UPGRADES} upgrades under kubelet: {len(complained())} complaints")
    assert complained() == []
    assert watch.changes == []
    assert {pod.name: pod.restarts for pod in kubelet.pods().values()} == dict.fromkeys(
        ("online", "offline", *(f"amid-{number}" for number in range(KUBELET_UPGRADES))), 0
    )
    assert complaints(proxy) == []
    wait_until(lambda: len(proxy.status()["pods"]) == KUBELET_UPGRADES + 1, WAIT_S, "all offline pods to be known")
    stop_all(proxy)
    wait_until(complained, WAIT_S, "kubelet to complain, or the above says nothing", kubelet.log)
