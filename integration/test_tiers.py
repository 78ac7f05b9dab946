"""Two tiers in the box: busy mid pods get the CPU before busy low ones, with the setting alone, also while pods run."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.lab.criproxy import Config
from integration.lab.node import FAVOURED, Node
from integration.lab.process import wait_until
from integration.lab.usage import Cgroup
from integration.test_proportion import CONFIG, LARGE, SMALL, busy_pod, used_s

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1200)]

Say = Callable[[str], object]

TIER = "colocation.criproxy.io/tier"
LEAST_MID = 0.95
"""Of what both get. By their weights it is 0.984 where both ask for as much, and 0.99 where both ask for nothing."""
SOON_S = 30.0
"""In which the limits of pods that run are carried once more."""


def config(*, tiers: bool) -> Config:
    return {**CONFIG, "colocation": {"enabled": True, "tiers": tiers}}


@pytest.fixture
def node(lab: Path) -> Iterator[Node]:
    with Node.before(lab, config(tiers=True), shares=FAVOURED) as node:
        yield node


@pytest.mark.parametrize(
    "shares",
    [
        pytest.param(2, id="nothing", marks=pytest.mark.by_command),
        pytest.param(SMALL, id="100m", marks=pytest.mark.by_command),
        pytest.param(LARGE, id="2-cpus"),
    ],
)
def test_busy_mid_pod_leaves_little_to_a_low_one_that_asks_for_as_much(node: Node, say: Say, shares: int) -> None:
    for uid in ("low", "mid"):
        busy_pod(node, uid, shares, labels={TIER: uid})

    low_s, mid_s = used_s(node, "offline/podlow", "offline/podmid")

    share = mid_s / (low_s + mid_s)
    say(f"mid got {share:.1%} of what both got")
    assert share >= LEAST_MID
    assert "1 mid, 1 low" in node.proxy.status()["box"]["tiers"]


def test_tiers_are_switched_on_and_off_while_pods_run_and_outlive_a_restart(node: Node) -> None:
    for uid in ("low", "mid"):
        busy_pod(node, uid, LARGE, labels={TIER: uid})

    def weights() -> tuple[int, ...]:
        files = (Cgroup(f"{node.root}/offline/pod{uid}").either("cpu.shares", "cpu.weight") for uid in ("low", "mid"))
        return tuple(int(file.read_text()) for file in files)

    def protected() -> str:
        file = Cgroup(f"{node.root}/offline/podmid").either("memory.limit_in_bytes", "memory.low")
        return file.read_text().strip() if file.name == "memory.low" else "max"

    low, mid = weights()
    kept = protected()
    node.proxy.restart()
    time.sleep(SOON_S / 2)
    after_restart = weights()
    node.proxy.configure(config(tiers=False))

    wait_until(lambda: len(set(weights())) == 1, SOON_S, "one weight for both", node.proxy.log)
    assert (mid >= 60 * low, kept, after_restart) == (True, "max", (low, mid))
    assert node.proxy.status()["box"]["tiers"] == ""
