"""What an operator holds criproxy off, before a real containerd: the box's limits, and a pod that others would stop."""

import grpc
import pytest

from integration.lab.process import is_running, wait_until
from integration.lab.upgrades import upgrade
from integration.test_daemon import MEMORY_BYTES, QUOTA_US, WAIT_S, Node, config, criproxy, node

__all__ = ["node"]

HAND_US, HAND_BYTES = 70_000, 200 << 20
"""Set by an operator: more CPU than criproxy gave, and less memory (on v1, more takes memory.memsw first)."""


def by_hand(node: Node) -> None:
    quota = node.box.quota
    quota.write_text(f"{HAND_US} 100000" if quota.name == "cpu.max" else str(HAND_US))
    node.box.memory.write_text(str(HAND_BYTES))


def told(node: Node, *words: str) -> str:
    """What an operator's command says; it succeeds."""
    done = criproxy(*words, "--config", node.proxy.config_file)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_left_alone(node: Node) -> None:
    node.wait_ticks(5)
    assert node.box.limits() == (HAND_US, HAND_BYTES)
    assert node.box.has_lowest_priority()
    with pytest.raises(grpc.RpcError, match="an operator holds criproxy off the box: a test; kubelet tries again"):
        node.run("offline")
    assert node.proxy.status()["modes"] == ["held off"]


def test_limits_set_by_hand_stay_through_a_restart_and_an_upgrade_until_the_release(node: Node) -> None:
    node.start()
    offline = node.run("offline")
    main = node.add(offline)
    node.box.wait_limits(QUOTA_US, MEMORY_BYTES)

    told(node, "hold-off", "1h", "--reason", "a test")
    by_hand(node)
    assert_left_alone(node)
    assert node.is_in_box(node.add(offline, "late")), "a pod that is there goes on"
    assert not node.is_in_box(node.run("online"))
    node.proxy.stop()
    node.start()
    assert_left_alone(node)
    upgrade(node.proxy)
    assert_left_alone(node)
    shown = criproxy("status", "--config", node.proxy.config_file)
    assert "hold-off      box until " in shown.stdout

    assert told(node, "release") == "criproxy is no longer held off box\n"
    node.box.wait_limits(QUOTA_US, MEMORY_BYTES)
    assert node.is_in_box(node.run("offline"))
    assert is_running(node.client.pid(main))
    events = [event["event"] for event in node.proxy.events()]
    assert (events.count("hold_off"), events.count("hold_off_released")) == (1, 1)


def test_hold_off_of_the_box_ends_by_itself(node: Node) -> None:
    node.start()
    node.run("offline")
    told(node, "hold-off", "box", "5s", "--reason", "a test")
    by_hand(node)
    node.wait_ticks(3)
    assert node.box.limits() == (HAND_US, HAND_BYTES)
    node.box.wait_limits(QUOTA_US, MEMORY_BYTES)
    assert node.proxy.status()["hold_offs"] == []
    assert "hold_off_ended" in [event["event"] for event in node.proxy.events()]


def test_pod_that_is_held_off_is_not_stopped_when_all_are_until_its_release(node: Node) -> None:
    node.start(config(on_disable="evict"))
    kept, other = node.run("offline"), node.run("offline")
    pids = {pod.id: node.client.pid(pod) for pod in (kept, other)}
    told(node, "hold-off", kept.config.metadata.uid, "1h", "--reason", "a debugger is in it")

    node.switch(config(enabled=False, on_disable="evict"))
    wait_until(lambda: not is_running(pids[other.id]), WAIT_S, "the other pod's end", node.proxy.log)
    node.wait_ticks(10)
    assert is_running(pids[kept.id])
    told(node, "release", kept.config.metadata.name)
    wait_until(lambda: not is_running(pids[kept.id]), WAIT_S, "the pod's end", node.proxy.log)


def test_command_that_is_wrong_says_what_to_do(node: Node) -> None:
    node.start()
    nobody = criproxy("hold-off", "batch/nobody", "1h", "--reason", "x", "--config", node.proxy.config_file)
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert "no offline pod of this node is called 'batch/nobody'" in nobody.stderr
    node.proxy.stop()
    gone = criproxy("release", "--config", node.proxy.config_file)
    assert gone.returncode == 3
