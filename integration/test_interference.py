"""Harm on the real kernel: who is innocent stays free, who is guilty is found, squeezed, and cured of it.

An online pod that waits for its own CPU limit is harmed by nobody. A box that floods the page cache is found to be the
cause of what online itself calls harm, and that ends when the box has its floor of memory, to which it is reclaimed:
the limit, at which the kernel kills, stays. A kill -9 in an experiment, or after a pod was ordered to go, changes
nothing of what is held.

What online reads again and again is not flooded away on an emulated node: the kernel keeps pages that are in use,
unless many times the free memory is read between two uses.
"""

import contextlib
import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from criproxy.cgroup.files import memory_bytes
from criproxy.control.interference.service_checks import ANNOTATION
from integration.lab.cgroups import version
from integration.lab.criproxy import static
from integration.lab.harm import HarmedNode, own_word
from integration.lab.process import wait_until
from integration.lab.throwaway import is_throwaway
from integration.lab.usage import CPUS, Cgroup

pytestmark = [pytest.mark.alone, pytest.mark.timeout(2400)]

Say = Callable[[str], object]

CPU_SIGNAL = "run_queue_delay" if version() == 1 else "cpu_pressure"
MIB = 1 << 20
WAIT_S = 300.0
WATCHED_S = 60.0
AGAIN_S = 20.0
"""An emulated node takes seconds for what a real one does in parts of one."""
FLOOR_CORES = 0.1
BURN = ("sh", "-c", "for i in 1 2 3 4; do while :; do :; done & done; wait")
LOOP = ("sh", "-c", "while :; do :; done")
FLOOD = ("sh", "-c", "while :; do dd if=/data/flood of=/dev/null bs=1M; done")
FLOOD_MIB, LIMIT_MIB, FLOOR_MIB, HARM_MIB = 4096, 1200, 64, 300
"""Of page cache: what an offline pod reads, the box's limit and floor, and how much more of it online calls harm."""


@pytest.fixture
def node(lab: Path) -> Iterator[HarmedNode]:
    """Containers see an empty directory of the host's in /data."""
    (data := lab / "data").mkdir()
    with HarmedNode.before(lab, starts=False, mounts={Path("/data"): data}) as node:
        yield node


def data_of(node: HarmedNode) -> Path:
    return node.mounts[Path("/data")]


def is_squeezed(box: Cgroup) -> bool:
    high = box.memory_high_bytes()
    return high is not None and high < box.memory_limit_bytes()


@pytest.mark.parametrize(
    "enabled",
    [pytest.param(True, id="ladder"), pytest.param(False, id="guard-alone", marks=pytest.mark.by_command)],
)
def test_online_pod_that_waits_for_its_own_limit_costs_the_box_nothing(
    node: HarmedNode, say: Say, enabled: bool
) -> None:
    """At a watermark of 1.0, where the guard alone takes such waiting for harm as long as the node is full."""
    ladder = {"enabled": enabled}
    cpu = {"watermark_ratio": 1.0}
    node.configure(static(CPUS, 512 * MIB, cpu=cpu, guard={"enabled": True}, interference=ladder))
    node.start_pod("online", BURN, cores=0.3)
    node.start_pod("offline", BURN)
    wait_until(lambda: (node.box.quota_cores() or 0.0) >= 0.1 * CPUS, WAIT_S, "the box to open")
    quotas, ceilings = [], []
    until_s = time.monotonic() + WATCHED_S
    while time.monotonic() < until_s:
        quotas.append(node.box.quota_cores() or float(CPUS))
        ceilings.append(node.proxy.status()["guard"])
        time.sleep(0.5)

    mean, guard, signal = sum(quotas) / len(quotas), ceilings[-1], node.signal(CPU_SIGNAL)
    waits = [one["ceiling_cores"] is not None and "online waits" in one["reason"] for one in ceilings]
    later = waits[len(waits) // 3 :]
    say(
        f"box {mean:.2f} cores on average, {min(quotas):.2f} at least, of {CPUS}; by the guard, as online waits, "
        f"in {sum(later)} of {len(later)} looks; squeezes {guard['squeezes']}, needless {guard['false_alarms']}; moves "
        f"{node.moves()}; {signal}"
    )
    assert ("cpu", "squeezed") not in node.moves()
    if enabled:
        assert signal["here"]
        assert sum(later) <= 0.2 * len(later), "what the guard takes for harm is given back"


def make_disk(at: Path) -> None:
    """A file system with a page cache, which those of an emulated node, in memory, have not. Its file is a hole."""
    image = at.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    for command in (("mkfs.ext4", "-q", "-F", "-O", "^has_journal", image), ("mount", "-o", "loop", image, at)):
        subprocess.run(command, check=True, timeout=60)
    with (at / "flood").open("wb") as file:
        file.truncate(FLOOD_MIB * MIB)


def page_cache_mib() -> float:
    size = memory_bytes(Path("/proc/meminfo").read_text(), "Cached")
    assert size is not None
    return size / MIB


@pytest.mark.skipif(version() == 1, reason="without memory.high no experiment is made of memory, as it could kill")
@pytest.mark.skipif(not is_throwaway(), reason="it mounts a disk of its own")
def test_box_that_floods_the_page_cache_is_guilty_squeezed_and_cured_and_stays_so_after_a_kill(
    node: HarmedNode, say: Say
) -> None:
    """Harm is what online itself calls so: the page cache that has come since. CPU is suspected first, and innocent."""
    make_disk(data_of(node))
    harm = {"trial_s": 10.0, "evict_after_s": 600.0, "evict_after_memory_s": 600.0}
    node.configure(static(1.0, LIMIT_MIB * MIB, memory={"min_bytes": FLOOR_MIB * MIB}, interference=harm))
    at_rest_mib = page_cache_mib()
    with own_word(lambda: max(0.0, page_cache_mib() - at_rest_mib)) as port:
        check = {"http": {"port": port}, "threshold": HARM_MIB, "every_s": 1, "timeout_s": 5}
        node.start_pod("online", annotations={ANNOTATION: json.dumps(check)})
        node.start_pod("offline")
        node.proxy.restart()  # it lists the runtime's pods at its start, and each minute
        wait_until(node.is_well, WAIT_S, "the service's word", node.proxy.log)
        node.start_pod("offline-flood", FLOOD)
        began_s = time.monotonic()
        wait_until(lambda: not node.is_well(), WAIT_S, "harm", node.proxy.log)
        harmed_s = time.monotonic()
        wait_until(lambda: ("memory", "squeezed") in node.moves(), WAIT_S, "the conviction", node.proxy.log)
        say(
            f"harm {harmed_s - began_s:.0f} s after the flood began, its cause named "
            f"{time.monotonic() - harmed_s:.0f} s later: {node.moves()}; {node.harm()['moves'][0]}"
        )
        wait_until(
            lambda: node.is_below_the_prediction("memory") and is_squeezed(node.box),
            WAIT_S,
            "the harm to go on, so that it is squeezed further",
        )
        limit = node.box.memory_limit_bytes()
        wait_until(node.is_well, WAIT_S, "the cure", node.proxy.log)
        say(f"cured {time.monotonic() - harmed_s:.0f} s after the harm began")
        node.proxy.kill()
        before = node.box.memory_high_bytes()
        node.proxy.start()
        started_s = time.monotonic()
        wait_until(lambda: is_squeezed(node.box), AGAIN_S, "the squeeze, which systemd undoes for a moment")
        rung, after, again_s = node.rung("memory"), node.box.memory_high_bytes(), time.monotonic() - started_s
        say(f"after kill -9: {rung}, the box is reclaimed to {before} -> {after} after {again_s:.1f} s, limit {limit}")
        words = []
        for _ in range(30):
            words.append(max(0.0, page_cache_mib() - at_rest_mib))
            time.sleep(1.0)
        say(f"page cache more than at rest, in MiB: {[round(one) for one in words]}; {node.moves()}")

    assert ("cpu", "squeezed") not in node.moves()
    assert rung in ("squeezed", "closed")
    assert after is not None
    assert after < limit, "nothing is lifted for long"
    assert sorted(words)[len(words) // 2] < HARM_MIB
    assert node.proxy.events("stop") == []


@contextlib.contextmanager
def harmed_by_cpu(node: HarmedNode, **interference: float) -> Iterator[None]:
    """Online says itself that it is harmed: badly while the box has its CPU, and a little at the box's floor."""
    harmed = threading.Event()

    def word() -> float:
        return 40.0 if not harmed.is_set() else 150.0 if cores(node) == FLOOR_CORES else 400.0

    node.configure(static(1.0, 512 * MIB, cpu={"min_cores": FLOOR_CORES}, interference=interference))
    with own_word(word) as port:
        check = {"http": {"port": port}, "threshold": 100, "every_s": 1, "timeout_s": 5}
        node.start_pod("online", annotations={ANNOTATION: json.dumps(check)})
        for name in ("offline-1", "offline-2"):
            node.start_pod(name, LOOP)
        node.proxy.restart()  # it lists the runtime's pods at its start, and each minute
        wait_until(node.is_well, WAIT_S, "the service's word", node.proxy.log)
        harmed.set()
        yield


def cores(node: HarmedNode) -> float:
    """What the box may use."""
    return node.box.quota_cores() or float(CPUS)


def kill_and_watch(node: HarmedNode, seconds: float) -> tuple[list[str], list[float]]:
    """kill -9 once the rung is on the disk, a start, and the rungs and limits of the box's CPU since then."""
    checkpoint, words = node.proxy.directory / "criproxy.checkpoint", f'"rung":"{node.rung("cpu")}"'
    wait_until(lambda: checkpoint.exists() and words in checkpoint.read_text(), WAIT_S, "the rung to be saved")
    node.proxy.kill()
    limits = [cores(node)]
    node.proxy.start()
    rungs, until_s = [node.rung("cpu")], time.monotonic() + seconds
    while time.monotonic() < until_s:
        limits.append(cores(node))
        rungs.append(node.rung("cpu"))
        time.sleep(0.1)
    return rungs, limits


def test_kill_in_an_experiment_leaves_the_box_at_its_floor_in_the_experiment(node: HarmedNode, say: Say) -> None:
    with harmed_by_cpu(node, trial_s=10.0):
        wait_until(lambda: ("cpu", "tried") in node.moves(), WAIT_S, "the experiment", node.proxy.log)
        wait_until(lambda: cores(node) == FLOOR_CORES, WAIT_S, "the floor", node.proxy.log)
        rungs, limits = kill_and_watch(node, 4.0)
        say(f"after kill -9: {dict(Counter(rungs))}, {dict(Counter(limits))} cores; {node.moves()}")

    assert set(rungs) == {"tried"}
    assert set(limits) == {FLOOR_CORES}


def test_kill_while_the_box_is_closed_lifts_nothing_and_a_service_s_word_stops_no_pod(
    node: HarmedNode, say: Say
) -> None:
    """Now and then all is given back for a phase, to see whether the box is the cause still."""
    with harmed_by_cpu(node, trial_s=3.0, close_after_s=1.0, evict_after_s=1.0):
        wait_until(lambda: ("cpu", "closed") in node.moves(), WAIT_S, "the box to be closed", node.proxy.log)
        wait_until(lambda: cores(node) == FLOOR_CORES, WAIT_S, "the floor", node.proxy.log)
        rungs, limits = kill_and_watch(node, 6.0)
        say(f"after kill -9: {dict(Counter(rungs))}, {dict(Counter(limits))} cores; {node.moves()}")

    assert set(rungs) == {"closed"}
    assert limits[:2] == [FLOOR_CORES] * 2
    assert evicted(node) == []


def evicted(node: HarmedNode) -> list[str]:
    return [one["pod"] for one in node.proxy.events("stop")]
