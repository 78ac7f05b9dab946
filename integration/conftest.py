"""A lab for the session: one containerd for all tests, pods of each test's own, and proof that nothing is left."""

import contextlib
import hashlib
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.lab import containerd as containerd_lab
from integration.lab.cgroups import Tree
from integration.lab.clean import clean, clean_abandoned, leftovers
from integration.lab.client import CriClient
from integration.lab.containerd import Containerd
from integration.lab.directory import cgroup_root, claimed, mounts_below
from integration.lab.process import END_S, LabError, wait_until
from integration.lab.throwaway import is_throwaway
from integration.node import table

HERE = Path(__file__).parent
LEFT_OUT = pytest.StashKey[Counter[str]]()
BY_COMMAND = pytest.StashKey[Counter[str]]()


# integration/systemd changes a whole machine, and needs systemd as its init: it runs on throwaway nodes alone.
collect_ignore = [] if is_throwaway() else ["systemd"]


LONGEST = ("test_handover.py", "test_chaos.py", "test_critest.py")
"""The files that last longest come first: else some processes wait at the end for the one that has such a file."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
    leave_out(config, items)
    leave_to_commands(config, items)
    if os.geteuid() != 0:
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.skip(reason="needs root"))


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what can't run on this node ($CRIPROXY_NODE); `pytest_terminal_summary` says so."""
    node = os.environ.get("CRIPROXY_NODE", table.HOST)
    for item in list(items):
        if entry := table.left_out(node, item.nodeid):
            items.remove(item)
            config.stash.setdefault(LEFT_OUT, Counter())[entry.reason] += 1


def leave_to_commands(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is marked by_command, unless the arguments name its file; `pytest_terminal_summary` says so."""
    named = {Path(argument.partition("::")[0]).resolve() for argument in config.args}
    for item in list(items):
        if item.get_closest_marker("by_command") and item.path not in named:
            items.remove(item)
            config.stash.setdefault(BY_COMMAND, Counter())[item.nodeid.partition("::")[0]] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for reason, count in config.stash.get(LEFT_OUT, Counter()).items():
        terminalreporter.write_line(f"LEFT OUT ON THIS NODE: {count} tests: {reason}", yellow=True)
    for file, count in config.stash.get(BY_COMMAND, Counter()).items():
        terminalreporter.write_line(f"LEFT OUT: {count} tests: by command: ./test integration {file}", yellow=True)


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Iterator[Callable[[str], object]]:
    """Writes a line past pytest's capture, from any thread."""
    capture = pytestconfig.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        terminal = os.dup(1)
    began_s = time.monotonic()
    yield lambda text: os.write(terminal, f"\n  [{time.monotonic() - began_s:3.0f} s] {text}\n".encode())
    os.close(terminal)


@pytest.fixture
def lab() -> Iterator[Path]:
    """A directory for a lab of the test's own; whatever is started in it is gone after the test, or the test fails."""
    with claimed() as directory:
        try:
            yield directory
        finally:
            clean(directory)
    assert leftovers(directory) == []


def of_pods(directory: Path) -> list[str]:
    """What is there of pods in the lab."""
    return [
        *(f"mount {point}" for point in mounts_below(directory)),
        *(f"shim socket {path}" for path in containerd_lab.shim_sockets(directory)),
        *(f"process {pid} in {cgroup_root(directory)}" for pid in Tree(cgroup_root(directory)).pids()),
    ]


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    """The session's containerd; after the last test it holds no pod, or the session fails."""
    clean_abandoned()
    with claimed() as directory:
        runtime = Containerd(directory)
        try:
            runtime.start()
            yield runtime
            with contextlib.suppress(LabError):
                wait_until(lambda: not of_pods(directory), END_S, "the last pod to go")
            unclean = of_pods(directory)
        finally:
            clean(directory)
    assert unclean + leftovers(directory) == []


@pytest.fixture
def client(containerd: Containerd) -> Iterator[CriClient]:
    """A client of the session's containerd, which runs, whatever the last test did; the pods go after the test."""
    if not containerd.is_alive():
        containerd.start()
    with CriClient(containerd.socket) as client:
        yield client
        client.remove_all_pods()


@pytest.fixture
def cgroup_parent(containerd: Containerd, request: pytest.FixtureRequest) -> str:
    """A cgroup of the test's own in every hierarchy, as kubelet names a BestEffort pod's; the session removes it."""
    test = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:8]
    pod = f"{cgroup_root(containerd.directory)}/{test}/kubepods/besteffort/pod{uuid.uuid4()}"
    Tree(pod).make()
    return pod
