"""What an operator holds criproxy off, before a real containerd: the box's limits, and a pod that others would stop."""

import grpc
import pytest

from integration.lab.process import is_running, wait_until
from integration.lab.upgrades import upgrade
from integration.test_daemon import MEMORY_BYTES, QUOTA_US, WAIT_S, Daemon, config, criproxy, node

__all__ = ["node"]

HAND_US, HAND_BYTES = 70_000, 200 << 20
"""Set by an operator: more CPU than criproxy gave, and less memory (on v1, more takes memory.memsw first)."""


def by_hand(node: Daemon) -> None:
    quota = node.limits.quota
    quota.write_text(f"{HAND_US} 100000" if quota.name == "cpu.max" else str(HAND_US))
    node.limits.memory.write_text(str(HAND_BYTES))


def told(node: Daemon, *words: str) -> str:
    """What an operator's command says; it succeeds."""
    done = criproxy(*words, "--config", node.proxy.config_file)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_left_alone(node: Daemon) -> None:
    node.wait_ticks(5)
    assert node.limits.now() == (HAND_US, HAND_BYTES)
    assert node.limits.has_lowest_priority()
    with pytest.raises(grpc.RpcError, match="an operator holds criproxy off the box: a test; kubelet tries again"):
        node.run_pod("offline")
    assert node.proxy.status()["modes"] == ["held off"]


def test_limits_set_by_hand_stay_through_a_restart_and_an_upgrade_until_the_release(node: Daemon) -> None:
    node.start()
    offline = node.run_pod("offline")
    main = node.add(offline)
    node.limits.wait(QUOTA_US, MEMORY_BYTES)

    told(node, "hold-off", "1h", "--reason", "a test")
    by_hand(node)
    assert_left_alone(node)
    assert node.is_in_box(node.add(offline, "late")), "a pod that is there goes on"
    assert not node.is_in_box(node.run_pod("online"))
    node.proxy.stop()
    node.start()
    assert_left_alone(node)
    upgrade(node.proxy)
    assert_left_alone(node)
    shown = criproxy("status", "--config", node.proxy.config_file)
    assert "hold-off      box until " in shown.stdout

    assert told(node, "release") == "criproxy is no longer held off box\n"
    node.limits.wait(QUOTA_US, MEMORY_BYTES)
    assert node.is_in_box(node.run_pod("offline"))
    assert is_running(node.client.pid(main))
    events = [event["event"] for event in node.proxy.events()]
    assert (events.count("hold_off"), events.count("hold_off_released")) == (1, 1)


def test_hold_off_of_the_box_ends_by_itself(node: Daemon) -> None:
    node.start()
    node.run_pod("offline")
    told(node, "hold-off", "box", "5s", "--reason", "a test")
    by_hand(node)
    node.wait_ticks(3)
    assert node.limits.now() == (HAND_US, HAND_BYTES)
    node.limits.wait(QUOTA_US, MEMORY_BYTES)
    assert node.proxy.status()["hold_offs"] == []
    assert "hold_off_ended" in [event["event"] for event in node.proxy.events()]


def test_pod_that_is_held_off_is_not_stopped_when_all_are_until_its_release(node: Daemon) -> None:
    node.start(config(on_disable="evict"))
    kept, other = node.run_pod("offline"), node.run_pod("offline")
    pids = {pod.id: node.client.pid(pod) for pod in (kept, other)}
    told(node, "hold-off", kept.config.metadata.uid, "1h", "--reason", "a debugger is in it")

    node.switch(config(enabled=False, on_disable="evict"))
    wait_until(lambda: not is_running(pids[other.id]), WAIT_S, "the other pod's end", node.proxy.log)
    node.wait_ticks(10)
    assert is_running(pids[kept.id])
    told(node, "release", kept.config.metadata.name)
    wait_until(lambda: not is_running(pids[kept.id]), WAIT_S, "the pod's end", node.proxy.log)


def test_command_that_is_wrong_says_what_to_do(node: Daemon) -> None:
    node.start()
    nobody = criproxy("hold-off", "batch/nobody", "1h", "--reason", "x", "--config", node.proxy.config_file)
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert "no offline pod of this node is called 'batch/nobody'" in nobody.stderr
    node.proxy.stop()
    gone = criproxy("release", "--config", node.proxy.config_file)
    assert gone.returncode == 3
