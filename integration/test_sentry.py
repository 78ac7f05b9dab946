"""Launcher and sentry before a real containerd of today: no offline container gets by, and no fault of theirs harms it.

What takes minutes runs by command: `RESTARTS=50 ./test integration integration/test_sentry.py`, once
`python -m integration.programs.build containerd-2.4` has built containerd.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import grpc
import pytest

from criproxy.commands.sentry import NAMES, plugin_text
from criproxy.fronts.sentry.rules import rules_file
from criproxy.hooks.offline import DEFAULT_RULE, OfflineRules
from integration.lab.cgroups import Tree
from integration.lab.client import Container, CriClient, Pod
from integration.lab.containerd import Containerd
from integration.lab.directory import cgroup_root
from integration.lab.naming import Driver, driver
from integration.lab.placer import BOX, KUBELETS, MARK
from integration.lab.process import Process, argv_of, descendants
from integration.programs import build

RESTARTS = int(os.environ.get("RESTARTS", "0"))
BY_COMMAND = "takes minutes: RESTARTS=50 ./test integration integration/test_sentry.py"

pytestmark = [
    pytest.mark.skipif(not RESTARTS, reason=BY_COMMAND),
    pytest.mark.skipif(driver() is Driver.SYSTEMD, reason="the stand-in for criproxy knows paths, no slices"),
]

LAUNCHER, SENTRY = NAMES
Say = Callable[[str], object]


class SentryNode:
    """A containerd 2.4 with its plugins, and the stand-in for criproxy."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        programs = build.find("containerd").parent
        self.runtime = Containerd(directory, programs=programs, plugins_have="2s")
        self.rules, self.handed = directory / "rules", directory / "handed.sock"
        self.parent = f"{cgroup_root(directory)}{KUBELETS}"
        self.placer: Process | None = None
        self.rules.write_bytes(rules_file(OfflineRules((DEFAULT_RULE,))))
        self.runtime.plugins.mkdir(parents=True)

    def install(self, *names: str) -> None:
        text = plugin_text(rules=str(self.rules), handed=str(self.handed))
        for name in names:
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        file = self.runtime.plugins / name
        file.write_text(text)
        file.chmod(0o755)

    def start_placer(self, *, takes_over: bool = True) -> None:
        handed = str(self.handed) if takes_over else ""
        command = [sys.executable, "-m", "integration.lab.placer", str(self.runtime.nri), handed, "0.02"]
        self.placer = Process("placer", command, self.directory / "placer.log")

    def plugin_pids(self, name: str) -> list[int]:
        file = str(self.runtime.plugins / name)
        return [pid for pid in descendants({self.runtime.pid}) if file in argv_of(pid)]

    def close(self) -> None:
        if self.placer:
            self.placer.kill()


@pytest.fixture
def node(lab: Path) -> Iterator[SentryNode]:
    made = SentryNode(lab)
    yield made
    made.close()


def pod(client: CriClient, node: SentryNode, *, offline: bool) -> Pod:
    uid = str(uuid.uuid4())
    parent = f"{node.parent}pod{uid}"
    Tree(parent).make()
    return client.run_pod(uid, uid=uid, labels=MARK if offline else {}, cgroup_parent=parent)


class Creates:
    """Creates containers of a pod without end, in a thread, and counts what became of them."""

    def __init__(self, node: SentryNode, of: Pod) -> None:
        self.outcomes: Counter[str] = Counter()
        self._unseen: list[Container] = []
        self._node, self._pod = node, of
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Creates":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        with CriClient(self._node.runtime.socket) as client:  # those that were made as the runtime ended
            for container in self._unseen:
                with contextlib.suppress(grpc.RpcError):
                    self.outcomes[_where(client, container)] += 1

    def _run(self) -> None:
        with CriClient(self._node.runtime.socket) as client:
            number = 0
            while not self._ended.is_set():
                number += 1
                self.outcomes[self._create(client, f"c{number}")] += 1

    def _create(self, client: CriClient, name: str) -> str:
        try:
            container = client.create_container(self._pod, name)
        except grpc.RpcError as error:
            if "criproxy has not placed this container" in str(error.details()):
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
    return "inside" if BOX in client.cgroup_of_spec(container) else "OUTSIDE"


def restarted(node: SentryNode, times: int) -> Counter[str]:
    """What became of the containers of an offline pod while containerd was restarted so often."""
    with CriClient(node.runtime.socket) as client:
        offline = pod(client, node, offline=True)
    with Creates(node, offline) as creates:
        for number in range(times):
            time.sleep(0.3)
            (node.runtime.kill if number % 2 else node.runtime.stop)()
            node.runtime.start()
        time.sleep(0.5)
    return creates.outcomes


@pytest.mark.parametrize(
    ("names", "share"),
    [((), 5), ((LAUNCHER,), 5), ((SENTRY,), 1), ((LAUNCHER, SENTRY), 1)],
    ids=["without", "launcher", "sentry", "both"],
)
def test_no_restart_lets_an_offline_container_by(
    node: SentryNode, names: tuple[str, ...], share: int, say: Say
) -> None:
    node.install(*names)
    node.runtime.start()
    node.start_placer()
    time.sleep(0.5)

    outcomes = restarted(node, max(1, RESTARTS // share))

    say(f"{RESTARTS // share} restarts with {names or 'neither'}: {dict(outcomes)}")
    assert outcomes["inside"], "else it was no test"
    if SENTRY in names:
        assert outcomes["OUTSIDE"] == 0


def test_while_criproxy_is_away_offline_containers_alone_are_refused(node: SentryNode, say: Say) -> None:
    node.install(*NAMES)
    node.runtime.start()
    with CriClient(node.runtime.socket) as client:
        online, offline = pod(client, node, offline=False), pod(client, node, offline=True)
        client.start(client.create_container(online, "main"))
        with pytest.raises(grpc.RpcError, match="criproxy has not placed this container"):
            client.create_container(offline, "main")
        node.start_placer()
        time.sleep(1.0)
        placed = client.create_container(offline, "main")
        client.start(placed)
        assert BOX in client.cgroup_of_spec(placed)
        assert node.placer is not None
        node.placer.kill()
        with pytest.raises(grpc.RpcError, match="criproxy has not placed this container"):
            client.create_container(offline, "second")
        client.create_container(online, "second")
        client.remove_all_pods()
    say("refused, placed, refused again; online always")


def test_a_criproxy_that_hangs_delays_online_once_and_lets_no_offline_container_by(node: SentryNode, say: Say) -> None:
    node.install(*NAMES)
    node.runtime.start()
    node.start_placer(takes_over=False)
    time.sleep(1.0)
    assert node.placer is not None
    with CriClient(node.runtime.socket) as client:
        online, offline = pod(client, node, offline=False), pod(client, node, offline=True)
        client.create_container(offline, "before")
        os.kill(node.placer.pid, signal.SIGSTOP)
        with pytest.raises(grpc.RpcError, match="criproxy has not placed this container"):
            client.create_container(offline, "main")
        took = [timed(lambda n=n: client.create_container(online, f"c{n}")) for n in range(5)]  # type: ignore[misc]
        os.kill(node.placer.pid, signal.SIGCONT)
        client.remove_all_pods()
    say(f"online beside a criproxy that hangs: {', '.join(f'{s:.2f}' for s in took)} s")
    assert max(took) < 2.5
    assert median(took) < 1.0


def timed(job: Callable[[], object]) -> float:
    began_s = time.monotonic()
    job()
    return time.monotonic() - began_s


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
def test_whatever_a_plugin_does_at_its_start_the_runtime_serves(node: SentryNode, text: str, say: Say) -> None:
    for name in NAMES if text else ():
        node.write(name, text)
    node.runtime.start()
    node.runtime.stop()
    starts_s = timed(node.runtime.start)
    with CriClient(node.runtime.socket) as client:
        online = pod(client, node, offline=False)
        took = [timed(lambda n=n: client.create_container(online, f"c{n}")) for n in range(5)]  # type: ignore[misc]
        client.start(client.create_container(online, "main"))
        client.remove_all_pods()
    say(f"start {starts_s:.2f} s, online creates {', '.join(f'{s:.3f}' for s in took)} s")
    assert starts_s < 2 * 5.0 + 5.0, "each has 5 s to register"
    assert max(took) < 2.0


@pytest.mark.parametrize("fault", ["none", "killed", "stopped", "no disk", "daemon half-open"])
def test_whatever_becomes_of_the_sentry_online_containers_start(node: SentryNode, fault: str, say: Say) -> None:
    node.install(*NAMES)
    if fault == "daemon half-open":
        node.start_placer()
        assert node.placer is not None
        time.sleep(0.5)
        os.kill(node.placer.pid, signal.SIGSTOP)
    starts_s = timed(node.runtime.start)
    (sentry,) = node.plugin_pids(SENTRY)
    with CriClient(node.runtime.socket) as client:
        online = pod(client, node, offline=False)
        before = [timed(lambda n=n: client.create_container(online, f"b{n}")) for n in range(5)]  # type: ignore[misc]
        if fault == "killed":
            os.kill(sentry, signal.SIGKILL)
        elif fault == "stopped":
            os.kill(sentry, signal.SIGSTOP)
        elif fault == "no disk":
            node.rules.unlink()
            node.rules.symlink_to(node.rules)
        took = [timed(lambda n=n: client.create_container(online, f"c{n}")) for n in range(8)]  # type: ignore[misc]
        client.start(client.create_container(online, "main"))
        client.remove_all_pods()
    times = f"before {median(before):.3f}, then {', '.join(f'{s:.3f}' for s in took)} s"
    say(f"{fault}: containerd's first start with images {starts_s:.1f} s; online creates {times}")
    assert max(took) < 2.5, "the runtime waits 2 s for a plugin, once"
    assert median(took) < 0.5
