"""Where kubelet does not call criproxy, nothing more is lent; where that is not known, nothing changes."""

import asyncio
from itertools import product
from pathlib import Path

import pytest
import structlog

from criproxy.concurrency.worker import Worker
from criproxy.daemon.attachment_watch import AttachmentWatch
from criproxy.model import AttachStatus, Counters
from criproxy.model.modes import Mode
from criproxy.observe.metrics import Metrics
from tests.fakes.counters import FakeCounters
from tests.fakes.node import LISTEN, FakeNode
from tests.fakes.part import look, node_settings

PUBLISHES = "kubernetes.enabled = true"


def watch(node: FakeNode, text: str = PUBLISHES, counters: Counters | None = None) -> AttachmentWatch:
    made = AttachmentWatch(LISTEN, Worker("kubelets-config", 5.0), counters or FakeCounters(), root=node.root)
    made.configure(node_settings(text))
    return made


def look_twice(part: AttachmentWatch) -> None:
    """So that calls were counted from one to the other."""
    for _ in range(2):
        look(part, structlog.get_logger())


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "root").kubeadm()


def test_node_whose_kubelet_uses_another_endpoint_lends_nothing_more(node: FakeNode) -> None:
    part = watch(node)
    look_twice(part)
    assert list(part.modes()) == [Mode.NOT_CALLED]
    assert "kubelet uses unix:///run/containerd/containerd.sock" in part.modes()[Mode.NOT_CALLED]
    part.reader.close()


def test_kubelet_that_does_not_run_for_a_while_changes_nothing(node: FakeNode, tmp_path: Path) -> None:
    part = watch(node)
    look_twice(part)
    part.root = tmp_path / "nothing runs here"
    look(part, structlog.get_logger())
    assert list(part.modes()) == [Mode.NOT_CALLED]
    part.reader.close()


@pytest.mark.parametrize("text", ["", PUBLISHES + '\nproxy.front = "nri"'], ids=["nothing is published", "nri"])
def test_who_publishes_nothing_or_is_called_by_the_runtime_asks_nobody(node: FakeNode, text: str) -> None:
    part = watch(node, text)
    assert part.knows_modes()
    asyncio.run(part.look())
    assert part.modes() == {}


def test_kubelet_that_is_attached_is_known_at_the_first_look(node: FakeNode) -> None:
    node.kubeadm(f"--container-runtime-endpoint=unix://{LISTEN}")
    part = watch(node)
    assert not part.knows_modes()
    look(part, structlog.get_logger())
    assert (part.knows_modes(), part.modes()) == (True, {})
    part.reader.close()


@pytest.mark.parametrize("runs", [True, False], ids=["it uses another endpoint", "it does not run yet"])
def test_kubelet_whose_files_do_not_say_yes_is_known_once_its_calls_were_counted(
    runs: bool, node: FakeNode, tmp_path: Path
) -> None:
    part = watch(node)
    part.root = node.root if runs else tmp_path / "nothing runs here"
    look(part, structlog.get_logger())
    assert (part.knows_modes(), part.modes()) == (False, {}), "it may run below a wrapper, or start soon"
    look(part, structlog.get_logger())
    assert (part.knows_modes(), list(part.modes())) == (True, [Mode.NOT_CALLED] if runs else [])
    part.reader.close()


def test_hand_over_that_fails_changes_nothing_of_a_kubelet_that_calls(node: FakeNode) -> None:
    part = watch(node)
    look(part, structlog.get_logger())
    part.counters.status_calls = 100
    look(part, structlog.get_logger())
    part.cease()
    look(part, structlog.get_logger())
    assert (part.knows_modes(), part.modes()) == (True, {}), "it has had no time to call"
    look(part, structlog.get_logger())
    assert list(part.modes()) == [Mode.NOT_CALLED]
    part.reader.close()


def test_kubelet_whose_calls_arrive_uses_criproxy_whatever_its_files_say(node: FakeNode) -> None:
    part, log = watch(node), structlog.get_logger()
    look_twice(part)
    assert list(part.modes()) == [Mode.NOT_CALLED]
    part.counters.status_calls = 100
    look(part, log)
    assert part.modes() == {}
    part.counters.status_calls = 102  # somebody's, by hand
    look(part, log)
    assert list(part.modes()) == [Mode.NOT_CALLED]
    part.reader.close()


def test_whoever_lists_containers_is_not_taken_for_kubelet(node: FakeNode) -> None:
    counters = Metrics("1")
    part = watch(node, counters=counters)
    look(part, structlog.get_logger())
    for method, code in product(("Version", "ListContainers", "ListPodSandbox", "ImageStatus"), ("OK", "UNKNOWN")):
        for _ in range(30):
            counters.on_call(method, code, 0.001, False)
    look(part, structlog.get_logger())
    assert list(part.modes()) == [Mode.NOT_CALLED]
    for _ in range(6):
        counters.on_call("Status", "OK", 0.001, False)
    look(part, structlog.get_logger())
    assert part.modes() == {}
    part.reader.close()


def test_status_believes_calls_before_kubelet_s_files(node: FakeNode) -> None:
    part = watch(node, "")
    asyncio.run(part.look())
    assert part.told().state == "no"
    part.counters.status_calls = 100
    asyncio.run(part.look())
    told = part.told()
    assert (told.state, told.problem) == ("yes", "")
    assert told.where.startswith("it calls, whatever is found of its settings: kubelet uses unix:///run/containerd/")
    part.reader.close()


def test_on_a_node_of_nri_s_it_is_not_asked_for(node: FakeNode) -> None:
    part = watch(node, 'proxy.front = "nri"')
    assert part.told() == AttachStatus("unknown", 'kubelet need not use criproxy: proxy.front = "nri"')
    part.reader.close()


def test_kubelet_that_calls_on_a_node_of_nri_s_is_a_problem_with_its_remedy(node: FakeNode) -> None:
    part = watch(node, 'proxy.front = "nri"')
    look_twice(part)
    assert list(part.problems()) == []
    part.counters.status_calls = 100
    look(part, structlog.get_logger())
    (problem,) = part.problems()
    assert "a node has one front: `criproxy detach`" in problem
    assert (part.told().state, part.modes()) == ("yes", {})
    look(part, structlog.get_logger())
    assert list(part.problems()) == [], "it calls no more"
    part.reader.close()


def test_link_to_the_socket_is_the_socket(node: FakeNode) -> None:
    (node.root / "var").mkdir(exist_ok=True)
    (node.root / "var/run").symlink_to("../run")
    node.served.add(f"/var{LISTEN}")
    node.kubeadm(f"--container-runtime-endpoint=unix:///var{LISTEN}")
    part = watch(node)
    assert part.told().state == "yes"
    part.reader.close()


def test_settings_that_wait_for_a_restart_change_nothing(node: FakeNode) -> None:
    part = watch(node)
    look_twice(part)
    for text in ("", PUBLISHES + '\nproxy.front = "nri"'):
        part.configure(node_settings(text))
        assert list(part.modes()) == [Mode.NOT_CALLED]
    part.reader.close()
