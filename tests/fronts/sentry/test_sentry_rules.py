"""The part that keeps the sentry's orders: the rules of the config in force, and who started before they held."""

import os
from pathlib import Path

import msgspec
import pytest

from criproxy.concurrency.worker import Worker
from criproxy.fronts.sentry.rules import NAMES, SentryOrders, SentryRules
from criproxy.model import Pod, PodRef
from criproxy.pods.shared import PodsShared
from criproxy.vocabulary.names import CLASS, OFFLINE
from tests.fakes.clock import FakeClock
from tests.fakes.counters import FakeCounters
from tests.fakes.log import FakeLog
from tests.fakes.part import look, node_settings
from tests.fakes.pods import FakeInventory

NRI = 'proxy.front = "nri"\n'
ALSO_KOORDINATOR = f'{NRI}colocation.presets = ["koordinator"]'
STALE = b"orders of nobody"


RUNTIME_PID = 70


class Ready:
    ready = True
    pid = RUNTIME_PID


def pod(uid: str, labels: dict[str, str]) -> Pod:
    return Pod(PodRef(uid, "default", uid), labels)


class OrderedNode:
    """A part, and the pods of its node that run outside the box."""

    def __init__(self, directory: Path) -> None:
        self.pods, self.runtime = FakeInventory(), Ready()
        shared = PodsShared(self.pods, self.runtime, None, FakeCounters(), FakeClock(), FakeLog())  # type: ignore[arg-type]
        self.part = SentryRules(directory / "rules", Worker("sentry-rules", 5.0), shared)
        self.part.proc = directory / "proc"
        self.part.plugins = directory
        self.part.file.write_bytes(STALE)

    def children(self, **commands: str) -> None:
        """Of the runtime, by the number of their pids."""
        (task := self.part.proc / f"{RUNTIME_PID}/task/{RUNTIME_PID}").mkdir(parents=True, exist_ok=True)
        (task / "children").write_text(" ".join(name[1:] for name in commands) + " ")
        for name, command in commands.items():
            (of := self.part.proc / name[1:]).mkdir(exist_ok=True)
            (of / "cmdline").write_text(command.replace(" ", "\0") + "\0")

    def run(self, **labels: dict[str, str]) -> None:
        self.pods.outside = {uid: pod(uid, of) for uid, of in labels.items()}

    def look(self, text: str = NRI, **changed: object) -> SentryOrders:
        self.part.configure(node_settings(text, **changed))  # type: ignore[arg-type]
        look(self.part, FakeLog())
        return msgspec.json.decode(self.part.file.read_bytes(), type=SentryOrders)


@pytest.fixture
def node(tmp_path: Path) -> OrderedNode:
    return OrderedNode(tmp_path)


CASES = {
    "on": (NRI, {}, True),
    "off": (NRI, {"enabled": False}, False),
    "a dry run": (NRI, {"dry_run": True}, False),
    "held off": (NRI, {"held_off": "repair"}, True),
    "the other front": ("", {}, False),
    "the other front, after a restart": ("", {"front": "nri"}, True),
    "this front, after a restart": (NRI, {"front": "cri"}, False),
}


@pytest.mark.parametrize(("text", "changed", "some"), CASES.values(), ids=CASES.keys())
def test_there_are_rules_while_pods_are_placed(node: OrderedNode, text: str, changed: dict, some: bool) -> None:
    assert bool(node.look(text, **changed).rules) == some
    assert node.part.failure == ""


def test_a_changed_config_is_written_before_its_time(node: OrderedNode) -> None:
    before = node.look()
    node.part.configure(node_settings(ALSO_KOORDINATOR))

    assert node.part.wake.is_set
    assert {rule.key for rule in node.look(ALSO_KOORDINATOR).rules} - {rule.key for rule in before.rules} == {
        "koordinator.sh/qosClass"
    }


OFFLINE_ONE, BEST_EFFORT = {CLASS: OFFLINE}, {"koordinator.sh/qosClass": "BE"}


def test_who_was_online_until_the_rules_changed_is_let_by_as_long_as_it_runs(node: OrderedNode) -> None:
    node.look()
    node.run(a=BEST_EFFORT, shop={})
    assert node.look().let_by == ()

    assert node.look(ALSO_KOORDINATOR).let_by == ("a",)

    node.run(a=BEST_EFFORT, later=BEST_EFFORT, shop={})
    assert node.look(ALSO_KOORDINATOR).let_by == ("a",), "the later one was offline from its start on"
    node.run(later=BEST_EFFORT, shop={})
    assert node.look(ALSO_KOORDINATOR).let_by == ()


def test_who_started_while_colocation_was_off_is_let_by(node: OrderedNode) -> None:
    node.look(enabled=False)
    node.run(a=OFFLINE_ONE)

    assert node.look(enabled=False).let_by == ()
    assert node.look().let_by == ("a",)


def test_another_process_goes_on_with_the_same_orders(node: OrderedNode) -> None:
    node.look()
    node.run(a=OFFLINE_ONE)
    node.part = SentryRules(node.part.file, node.part.worker, node.part.shared)

    assert node.look().let_by == (), "it got by while nobody was there"


def test_while_the_runtime_is_away_nothing_is_known_of_pods(node: OrderedNode) -> None:
    node.look(enabled=False)
    node.run(a=OFFLINE_ONE)
    node.runtime.ready = False

    assert node.look() == SentryOrders()


def test_without_a_sentry_there_is_no_file(node: OrderedNode) -> None:
    node.part.file.unlink()
    node.part.configure(node_settings(NRI))
    look(node.part, FakeLog())

    assert not node.part.file.exists()


def test_a_full_disk_is_a_problem_and_keeps_the_orders(node: OrderedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    node.part.configure(node_settings(NRI))
    look(node.part, FakeLog())

    assert node.part.file.read_bytes() == STALE
    assert "No space left" in node.part.failure
    assert not node.part.file.with_suffix(".new").exists()


def test_an_unchanged_file_is_left_alone(node: OrderedNode) -> None:
    node.look()
    before = node.part.file.stat()
    node.look()

    assert (node.part.file.stat().st_ino, node.part.file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


LAUNCHER = "/usr/bin/python3 -IS /opt/nri/plugins/95-criproxy"
SENTRY = "/usr/bin/python3 -IS /opt/nri/plugins/99-criproxy-sentry"


def test_the_runtime_has_a_sentry(node: OrderedNode) -> None:
    node.children(p71=LAUNCHER, p72=SENTRY)
    node.look()

    assert list(node.part.rows()) == [("sentry", "on")]
    assert list(node.part.problems()) == []


def test_the_runtime_starts_what_is_in_its_directory_of_plugins(node: OrderedNode) -> None:
    node.look()
    assert not node.part.starts
    for name in NAMES:
        (node.part.plugins / name).write_text("")
    node.look()
    assert node.part.starts
    node.part.file.unlink()
    look(node.part, FakeLog())
    assert not node.part.starts, "without rules it lets all by"


def test_a_sentry_that_the_runtime_does_not_have_is_a_problem(node: OrderedNode) -> None:
    node.children(p71=LAUNCHER)
    node.look()

    assert node.part.section() == {"sentry": "not started"}
    assert "restart the runtime" in "".join(node.part.problems())


def test_where_children_are_not_known_nobody_is_alarmed(node: OrderedNode) -> None:
    node.look()

    assert list(node.part.problems()) == []
    assert list(node.part.rows()) == [("sentry", "not known")], "it promises nothing"


def test_a_sentry_that_is_off_is_not_missed(node: OrderedNode) -> None:
    node.children(p71=LAUNCHER)
    node.part.file.unlink()
    node.part.configure(node_settings(NRI))
    look(node.part, FakeLog())

    assert node.part.section() == {"sentry": "off"}
    assert (list(node.part.rows()), list(node.part.problems())) == ([], [])


def test_no_orders_are_written_before_it_is_known_who_is_in_the_box(node: OrderedNode) -> None:
    node.pods.places_known = False
    node.part.configure(node_settings(NRI))
    look(node.part, FakeLog())
    assert node.part.file.read_bytes() == STALE
