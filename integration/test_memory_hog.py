"""Memory of the box that can't be taken back goes with a pod, before online that grows is hurt; with and without swap.

An offline pod holds memory, which is nobody's harm as long as there is enough. Then an online pod needs it. The memory
that ends is all of the node's: on a slow node the kernel may kill the hog before it is stopped, but never anyone of
online's. The box may not swap, so with swap online's pages are swapped out until the hog has gone: how much is printed.
"""

import datetime
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.lab.cgroups import version
from integration.lab.criproxy import QUICK
from integration.lab.harm import HarmedNode
from integration.lab.kubelet import available_bytes
from integration.lab.process import LabError, wait_until
from integration.lab.swap import swap_on
from integration.lab.throwaway import is_throwaway

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not is_throwaway(), reason="uses up the machine's memory"),
    pytest.mark.skipif(version() == 1, reason="reads what is swapped, and killed, in files of cgroup v2"),
]

Say = Callable[[str], object]

MIB = 1 << 20
KEPT_BYTES = 200 * MIB
"""What the box's limit leaves free: kubelet's default threshold and the margin above it."""
HOG_MIB, STEP_MIB = 600, 25
FIRST_LEFT_MIB, OVER_MIB = 400, 100
"""What online leaves free with its first allocation, and how much more than there is it takes in all."""
WAIT_S = 240.0
CURED_S = 60.0
"""On an emulated node, whose Python is some fifteen times slower, and the pod's stop takes most of it."""
POLL_S = 0.05


def holding(mib: int) -> str:
    return f"dd if=/dev/zero bs={mib}M count=1 2>/dev/null | sleep 2147483647"


def growing(first_mib: int, steps: int) -> tuple[str, ...]:
    """Some memory at once, and a step each second."""
    loop = f"i=0; while [ $i -lt {steps} ]; do sleep 1; ({holding(STEP_MIB)}) & i=$((i+1)); done; wait"
    return ("sh", "-c", f"({holding(first_mib)}) & {loop}")


@pytest.fixture(params=[False, True], ids=["without-swap", "with-swap"])
def swap(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the node has swap."""
    if not request.param:
        yield False
        return
    with swap_on():
        yield True


@pytest.fixture
def node(swap: bool, lab: Path) -> Iterator[HarmedNode]:
    with HarmedNode.before(lab, starts=False) as node:
        yield node


def swapped_mib(node: HarmedNode) -> float:
    """Of online's memory."""
    return int(node.kubepods.file("memory", "memory.swap.current").read_text()) / MIB


def held_mib(node: HarmedNode) -> float:
    """By online, in memory."""
    return int(node.kubepods.file("memory", "memory.current").read_text()) / MIB


def kills(node: HarmedNode) -> dict[str, int]:
    """By the kernel, for want of memory."""
    texts = {one.path: one.file("memory", "memory.events").read_text() for one in (node.box, node.kubepods)}
    return {path: int(text.partition("oom_kill ")[2].split()[0]) for path, text in texts.items()}


def unix_s(event: dict[str, Any]) -> float:
    return datetime.datetime.fromisoformat(event["ts"]).timestamp()


def test_hog_goes_before_online_is_hurt_and_offline_may_come_back_afterwards(
    node: HarmedNode, swap: bool, say: Say
) -> None:
    node.configure({
        "control": {**QUICK, "raise_threshold_ratio": 0.0, "raise_after_s": 1.0},
        "guard": {"enabled": False},
        "interference": {"open_after_s": 5.0},
    })  # fmt: skip
    node.start_pod("online-small")
    node.start_pod("offline-small")
    wait_until(lambda: node.box.memory_limit_bytes() > (HOG_MIB + 100) * MIB, WAIT_S, "room", node.proxy.log)
    node.start_pod("offline-hog", ("sh", "-c", holding(HOG_MIB)))
    box = node.box.file("memory", "memory.current")
    wait_until(lambda: int(box.read_text()) > (HOG_MIB - 10) * MIB, WAIT_S, "the hog's memory", node.proxy.log)

    free_mib = available_bytes() // MIB
    steps = math.ceil((FIRST_LEFT_MIB + OVER_MIB) / STEP_MIB)
    wanted_mib = free_mib - FIRST_LEFT_MIB + steps * STEP_MIB
    online = node.start_pod("online", growing(free_mib - FIRST_LEFT_MIB, steps))
    wait_until(lambda: available_bytes() < KEPT_BYTES, WAIT_S, "the shortage", node.proxy.log, POLL_S)
    short_s = time.time()
    wait_until(lambda: node.proxy.events("stop"), WAIT_S, "a pod to go", poll_s=POLL_S)
    wait_until(lambda: available_bytes() > KEPT_BYTES, WAIT_S, "enough memory", node.proxy.log, POLL_S)
    cured_s = time.time()
    try:
        wait_until(lambda: held_mib(node) + swapped_mib(node) >= 0.97 * wanted_mib, WAIT_S, "online's memory")
    except LabError:
        pytest.fail(
            f"online has {held_mib(node):.0f} MiB, and {swapped_mib(node):.0f} swapped, of {wanted_mib}; killed by the "
            f"kernel {kills(node)}; {node.moves()}"
        )
    events = node.proxy.events()
    seen = next(one for one in events if one["event"] == "ladder" and one["resource"] == "memory")
    gone = [one for one in events if one["event"] == "stop"]
    say(
        f"{'with' if swap else 'without'} swap: online takes {wanted_mib} MiB where {free_mib} are free; less than "
        f"{KEPT_BYTES // MIB} MiB left, then seen after {unix_s(seen) - short_s:.1f} s ({seen['new']}: "
        f"{seen['reason']}), {gone[0]['pod']} named after {unix_s(gone[0]) - short_s:.1f} s, enough after "
        f"{cured_s - short_s:.1f} s; {available_bytes() // MIB} MiB available in the end, {swapped_mib(node):.0f} "
        f"MiB of online's swapped; killed by the kernel {kills(node)}; {node.moves()}"
    )
    killed = next(count for path, count in kills(node).items() if path.endswith("/kubepods"))

    node.client.stop_and_remove(online)
    calm_s = time.monotonic()
    wait_until(lambda: node.rung("memory") == "open" and not node.harm()["closed"], WAIT_S, "calm", node.proxy.log)
    node.start_pod("offline-next")
    say(
        f"{time.monotonic() - calm_s:.0f} s after online has gone another offline pod runs; the box's "
        f"limit rises as what was predicted is forgotten: {node.box.memory_limit_bytes() // MIB} MiB now"
    )

    assert [one["pod"] for one in gone] == ["default/offline-hog"], "the small one gives nothing back"
    assert killed == 0
    assert cured_s - short_s < CURED_S
