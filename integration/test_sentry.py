"""Launcher and sentry before a real containerd of today: no offline container gets by, and no fault of theirs harms it.

By command: `./test integration integration/test_sentry.py`, seven minutes; RESTARTS=5 makes it two. CONTAINERD=2.1 or
1.7 before it: of an older containerd.
"""

import contextlib
import dataclasses
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import grpc
import pytest

from criproxy.commands.attach.host import Machine
from criproxy.commands.sentry import FIRST, plugin_text, run
from criproxy.fronts.sentry.rules import NAMES, PLUGINS, SentryOrders
from criproxy.hooks.offline import DEFAULT_RULE
from integration.lab.client import Container, CriClient, Pod
from integration.lab.containerd import FIRST_VALIDATOR, Containerd, containerd_version, programs
from integration.lab.criproxy import LETS_THE_LAB, UNJUDGED, static
from integration.lab.node import Node
from integration.lab.process import argv_of, descendants, timed, wait_until
from integration.lab.throwaway import SLOWER, is_throwaway

RESTARTS = int(os.environ.get("RESTARTS", "50"))

pytestmark = [pytest.mark.by_command, pytest.mark.timeout(3600)]

LAUNCHER, SENTRY = NAMES
NOT_PLACED = "criproxy has not placed this container"
WAIT_S = 300.0 if is_throwaway() else 60.0
PLUGIN_S = 2.0
"""How long the runtime waits for a plugin's answer."""
Say = Callable[[str], object]


class SentryNode:
    """A containerd with what is in its directory of plugins, and a criproxy of the NRI front."""

    def __init__(self, directory: Path) -> None:
        self.runtime = Containerd(directory, programs=programs(), nri_timeout=f"{PLUGIN_S:g}s")
        self.rules, self.handed = directory / "rules", directory / "nri-launcher.sock"
        self.rules.write_bytes(SentryOrders((DEFAULT_RULE,)).encode())
        self.runtime.plugins.mkdir(parents=True)

    def install(self, *names: str) -> None:
        for name in names:
            self.write(name, plugin_text(rules=str(self.rules), handed=str(self.handed)))

    def write(self, name: str, text: str) -> None:
        if containerd_version() < FIRST["containerd"]:
            pytest.skip(f"containerd {words(containerd_version())} could end with a plugin that it starts itself")
        file = self.runtime.plugins / name
        file.write_text(text)
        file.chmod(0o755)

    @contextlib.contextmanager
    def runs(self, *, criproxy: bool = True) -> Iterator[Node]:
        self.runtime.start()
        front = {"front": "nri", "nri": str(self.runtime.nri)}
        config = static(1.0, proxy=front, hardening=LETS_THE_LAB, interference=UNJUDGED)
        with Node.before(self.runtime, config, starts=criproxy) as node:
            yield node

    def plugin_pids(self, name: str) -> list[int]:
        file = str(self.runtime.plugins / name)
        return [pid for pid in descendants({self.runtime.pid}) if file in argv_of(pid)]


@pytest.fixture
def place(lab: Path) -> SentryNode:
    return SentryNode(lab)


class Creates:
    """Creates containers of a pod without end, in a thread, and counts what became of them."""

    def __init__(self, runtime: Path, of: Pod) -> None:
        self.outcomes: Counter[str] = Counter()
        self._runtime, self._pod = runtime, of
        self._unseen: list[Container] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Creates":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        with CriClient(self._runtime) as client:  # those that were made as the runtime ended
            for container in self._unseen:
                with contextlib.suppress(grpc.RpcError):
                    self.outcomes[_where(client, container)] += 1

    def _run(self) -> None:
        with CriClient(self._runtime) as client:
            number = 0
            while not self._ended.is_set():
                number += 1
                self.outcomes[self._create(client, f"c{number}")] += 1

    def _create(self, client: CriClient, name: str) -> str:
        try:
            container = client.create_container(self._pod, name)
        except grpc.RpcError as error:
            if "criproxy: " in str(error.details()):
                return "refused"
            time.sleep(0.01)
            return "no runtime"
        try:
            return _where(client, container)
        except grpc.RpcError:
            self._unseen.append(container)
            return "seen later"


def _where(client: CriClient, container: Container) -> str:
    """Raises grpc.RpcError."""
    return "OUTSIDE" if "kubepods" in client.cgroup_of_spec(container) else "inside"


def words(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def creates_s(client: CriClient, pod: Pod, times: int) -> list[float]:
    """How long so many containers took to be created."""
    names = [f"{time.monotonic_ns()}" for _ in range(times)]
    return [timed(lambda name=name: client.create_container(pod, f"c{name}")) for name in names]  # type: ignore[misc]


def waits(took_s: list[float], before_s: list[float]) -> float:
    """How many times the runtime waited for a plugin in the slowest create, by what this node's creates took before."""
    return (max(took_s) - max(before_s)) / PLUGIN_S


def in_words(seconds: list[float]) -> str:
    return f"{', '.join(f'{one:.3f}' for one in seconds)} s"


@pytest.mark.parametrize(
    ("names", "share"),
    [((), 5), ((LAUNCHER,), 5), ((SENTRY,), 2), ((LAUNCHER, SENTRY), 1)],
    ids=["without", "launcher", "sentry", "both"],
)
def test_no_restart_lets_an_offline_container_by(
    place: SentryNode, names: tuple[str, ...], share: int, say: Say
) -> None:
    restarts = max(1, RESTARTS // share)
    place.install(*names)
    with place.runs() as node:
        with Creates(place.runtime.socket, run_pod(node, "offline")) as creates:
            for number in range(restarts):
                time.sleep(0.3)
                (place.runtime.kill if number % 2 else place.runtime.stop)()
                place.runtime.start()
            time.sleep(0.5)
        by = Counter(event["by"] for event in node.proxy.events("nri_registered"))

    say(f"{restarts} restarts with {names or 'neither'}: {dict(creates.outcomes)}, registered by {dict(by)}")
    assert creates.outcomes["inside"], "else it was no test"
    if names:
        assert creates.outcomes["OUTSIDE"] == 0


def run_pod(node: Node, kind: str) -> Pod:
    """Kubelet's part, which speaks to the runtime itself."""
    return dataclasses.replace(node, client=node.direct).run_pod(kind)


def test_while_criproxy_is_away_offline_containers_alone_are_refused(place: SentryNode) -> None:
    place.install(*NAMES)
    with place.runs(criproxy=False) as node:
        client, online, offline = node.direct, run_pod(node, "online"), run_pod(node, "offline")
        client.run_container(online, "main", ["sleep", "1000"])
        with pytest.raises(grpc.RpcError, match=NOT_PLACED):
            client.create_container(offline, "main")

        node.proxy.start()
        wait_until(lambda: created(client, offline), WAIT_S, "the container that kubelet tries again", node.proxy.log)
        assert _where(client, client.create_container(offline, "second")) == "inside"
        node.proxy.kill()

        with pytest.raises(grpc.RpcError, match=NOT_PLACED):
            client.create_container(offline, "third")
        client.run_container(online, "second", ["sleep", "1000"])


def created(client: CriClient, pod: Pod) -> bool:
    try:
        return _where(client, client.create_container(pod, "main")) == "inside"
    except grpc.RpcError as error:
        assert NOT_PLACED in str(error.details()) or "criproxy" in str(error.details())
        return False


def test_a_criproxy_that_hangs_lets_no_offline_container_by(place: SentryNode, say: Say) -> None:
    place.install(*NAMES)
    with place.runs() as node:
        client, online, offline = node.direct, run_pod(node, "online"), run_pod(node, "offline")
        client.create_container(offline, "before")
        before_s = creates_s(client, online, 5)
        os.kill(node.proxy.pid, signal.SIGSTOP)
        with pytest.raises(grpc.RpcError, match=NOT_PLACED):
            client.create_container(offline, "main")
        took_s = creates_s(client, online, 5)
        os.kill(node.proxy.pid, signal.SIGCONT)

    say(f"online creates once the runtime has thrown a frozen criproxy out: {in_words(took_s)}")
    assert max(took_s) < 1.0 * SLOWER
    assert waits(took_s, before_s) < 1


def test_a_runtime_starts_beside_a_criproxy_that_hangs(place: SentryNode, say: Say) -> None:
    place.install(*NAMES)
    with place.runs() as node:
        os.kill(node.proxy.pid, signal.SIGSTOP)
        place.runtime.stop()
        starts_s = timed(place.runtime.start)
        client, online, offline = node.direct, run_pod(node, "online"), run_pod(node, "offline")
        took_s = creates_s(client, online, 5)
        with pytest.raises(grpc.RpcError, match=NOT_PLACED):
            client.create_container(offline, "main")
        os.kill(node.proxy.pid, signal.SIGCONT)

    say(f"beside a frozen criproxy containerd starts in {starts_s:.2f} s; online creates {in_words(took_s)}")
    assert starts_s < 5.0 * SLOWER
    assert max(took_s) < 1.0 * SLOWER


@pytest.mark.parametrize("of_today", [False, True], ids=["Debian's", "2.4"])
def test_the_verb_goes_by_what_the_runtime_says_of_itself(lab: Path, of_today: bool, say: Say) -> None:
    if of_today and is_throwaway():
        pytest.skip("this node has one containerd")
    runtime = Containerd(lab, programs=programs() if of_today else None)
    runtime.start()
    config = lab / "criproxy.toml"
    config.write_text(f'[proxy]\nfront = "nri"\nruntime = "{runtime.socket}"\n')
    says = Machine().version(str(runtime.socket))
    say(says)
    may = tuple(map(int, re.findall(r"\d+", says)[:3])) >= FIRST["containerd"]

    assert run("on", config, root=lab / "host") == (0 if may else 1)
    there = sorted(path.name for path in (lab / "host" / PLUGINS.lstrip("/")).glob("*"))
    assert there == (sorted(NAMES) if may else [])


REQUIRED = {"required-plugins.noderesource.dev": '["criproxy"]'}


def test_with_criproxy_and_sentry_gone_the_validator_keeps_offline_alone_out(place: SentryNode) -> None:
    if containerd_version() < FIRST_VALIDATOR:
        pytest.skip(f"containerd {words(containerd_version())} has no such validator")
    place.install(*NAMES)
    with place.runs() as node:
        client, kubelet = node.direct, dataclasses.replace(node, client=node.direct)
        online, offline = kubelet.run_pod("online"), kubelet.run_pod("offline", annotations=REQUIRED)
        assert _where(client, client.create_container(offline, "first")) == "inside"
        node.proxy.kill()
        with pytest.raises(grpc.RpcError, match="criproxy"):
            client.create_container(offline, "second")
        (sentry,) = place.plugin_pids(SENTRY)
        os.kill(sentry, signal.SIGKILL)

        for number in range(3):
            client.create_container(online, f"c{number}")
            with pytest.raises(grpc.RpcError, match='required plugin "criproxy" not present'):
                client.create_container(offline, f"c{number}")


SHELL = "#!/bin/sh\n"
AT_THE_START = {
    "none": "",
    "ends at once": SHELL + "exit 1\n",
    "hangs": SHELL + "exec sleep 1000\n",
    "no such interpreter": "#!/nonexistent/python3\n",
    "no program": "\x7fELF",
    "says nonsense": SHELL + "head -c 100000 /dev/urandom >&3\nexec sleep 1000\n",
    "killed as it starts": SHELL + "kill -9 $$\n",
}


@pytest.mark.parametrize("text", AT_THE_START.values(), ids=AT_THE_START.keys())
def test_whatever_a_plugin_does_at_its_start_the_runtime_serves(place: SentryNode, text: str, say: Say) -> None:
    for name in NAMES if text else ():
        place.write(name, text)
    with place.runs(criproxy=False) as node:
        place.runtime.stop()
        starts_s = timed(place.runtime.start)
        online = run_pod(node, "online")
        took_s = creates_s(node.direct, online, 5)
        node.direct.run_container(online, "main", ["sleep", "1000"])

    say(f"containerd starts in {starts_s:.2f} s, online creates {in_words(took_s)}")
    assert starts_s < 2 * 5.0 + 5.0 * SLOWER, "each has 5 s to register"
    assert max(took_s) < 2.0 * SLOWER


@pytest.mark.parametrize("fault", ["none", "killed", "frozen", "no disk"])
def test_whatever_becomes_of_the_sentry_online_containers_start(place: SentryNode, fault: str, say: Say) -> None:
    place.install(*NAMES)
    with place.runs(criproxy=False) as node:
        online = run_pod(node, "online")
        (sentry,) = place.plugin_pids(SENTRY)
        before_s = creates_s(node.direct, online, 5)
        if fault == "no disk":
            place.rules.unlink()
            place.rules.symlink_to(place.rules)
        elif fault != "none":
            os.kill(sentry, signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
        took_s = creates_s(node.direct, online, 30)
        node.direct.run_container(online, "main", ["sleep", "1000"])

    slowest = in_words(sorted(took_s)[-3:])
    say(f"{fault}: online creates before {median(before_s):.3f}, then {median(took_s):.3f}, the slowest {slowest}")
    assert max(took_s) < PLUGIN_S + 0.5 * SLOWER
    assert waits(took_s, before_s) < 2, "the runtime waits for a plugin once"
    assert median(took_s) < 0.5 * SLOWER
    assert median(took_s) - median(before_s) < 0.5 * PLUGIN_S, "and no more afterwards"
