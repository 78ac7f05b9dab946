"""A box with more anonymous memory than its limit, which no reclaim brings back: one pod goes, who has the most."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.lab.cgroups import version
from integration.lab.criproxy import Config, static
from integration.lab.harm import HarmedNode
from integration.lab.process import wait_until

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]

MIB = 1 << 20
WAIT_S = 240.0
BEFORE_MIB, AFTER_MIB, HOG_MIB, SMALL_MIB = 700, 200, 250, 20
"""The box's limit, before and after, and what its pods hold."""


def holding(mib: int) -> tuple[str, ...]:
    return ("sh", "-c", f"dd if=/dev/zero bs={mib}M count=1 2>/dev/null | sleep 2147483647")


@pytest.fixture
def node(lab: Path) -> Iterator[HarmedNode]:
    with HarmedNode.before(lab, starts=False) as node:
        yield node


def limited_to(mib: int) -> Config:
    return static(1.0, mib * MIB, memory={"min_bytes": 64 * MIB}, guard={"enabled": True})


def test_box_above_a_lower_limit_by_anonymous_memory_loses_the_pod_that_has_most(
    node: HarmedNode, say: Callable[[str], object]
) -> None:
    node.configure(limited_to(BEFORE_MIB))
    node.start_pod("online")
    node.start_pod("offline-small", holding(SMALL_MIB))
    node.start_pod("offline-hog", holding(HOG_MIB))
    used = node.box.file("memory", "memory.usage_in_bytes" if version() == 1 else "memory.current")
    held_mib = HOG_MIB + SMALL_MIB
    wait_until(lambda: int(used.read_text()) > held_mib * MIB, WAIT_S, "what they hold", node.proxy.log)
    node.configure(limited_to(AFTER_MIB))
    wait_until(lambda: node.proxy.events("stop"), WAIT_S, "a pod to go", node.proxy.log)

    (gone,) = node.proxy.events("stop")
    say(f"{gone['pod']}: {gone['reason']}")
    assert "offline-hog" in gone["pod"]
    assert "anonymous memory alone" in gone["reason"]
    wait_until(lambda: node.box.memory_limit_bytes() == AFTER_MIB * MIB, WAIT_S, "the limit", node.proxy.log)
