"""Hyperthreads of one core slow each other down, and no weight keeps one from it: whole cores, and online's own word.

The node's four hyperthreads are emulated on two CPUs of the host's, so that they slow each other down as real ones do,
and, like there, nothing in the node's own accounts tells of it: online runs whenever it wants to, and takes longer.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest

from criproxy.control.interference.service_checks import ANNOTATION
from integration.lab.cgroups import version
from integration.lab.criproxy import static
from integration.lab.harm import HarmedNode, own_word
from integration.lab.process import wait_until
from integration.lab.usage import CPUS, busy_loops
from integration.test_exclusive_cpus import SAMPLES, SOON_S, STATIC, Node, exclusive_cpu, samples_on
from integration.test_whole_cores import CORES

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        len(CORES) < 2 or any(len(core) < 2 for core in CORES),
        reason="needs two cores with hyperthreads: ./test node bookworm-v2-threads integration/test_siblings.py",
    ),
]

Say = Callable[[str], object]

WAIT_S = 300.0
LATELY = 5
HARM_RATIO = 1.5
"""So much longer than alone online's work may take."""
CALM_S, HELD_S = 20.0, 40.0
WORK = """
while :; do
  read from _ </proc/uptime
  i=0; while [ $i -lt 10000 ]; do i=$((i+1)); done
  read to _ </proc/uptime
  echo $(( (1${to%.*}${to#*.} - 1${from%.*}${from#*.}) * 10 )) >>/out/works
  usleep 50000
done
"""
"""Writes how long each of its works took, in ms."""


# --- CPUs that online has alone --------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["by-itself", "whole-cores"])
def static_node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """With kubelet's static CPU manager; and with whole cores, of which the box's limit needs all."""
    with Node.up(static(CPUS - 0.5, cpuset={"whole_cores": request.param}), settings=STATIC) as node:
        yield node


def test_box_is_neither_on_an_exclusive_cpu_nor_on_its_sibling(static_node: Node, say: Say) -> None:
    node = static_node
    node.run("busy")
    whole = frozenset().union(*CORES)
    wait_until(lambda: whole in node.allowed().values(), SOON_S, "the box to have all cores", node.proxy.log)
    online = node.run("online", exclusive=True, offline=False)
    cpu = exclusive_cpu(node, online)
    core = next(core for core in CORES if cpu in core)
    began_s = time.monotonic()
    wait_until(lambda: not any(core & cpus for cpus in node.allowed().values()), SOON_S, "the core to be left")
    left_s = time.monotonic() - began_s
    seen = {one: samples_on(node, one) for one in core}
    cpus = node.proxy.status()["box"]["cpus"]
    node.kubelet.end(online)
    began_s = time.monotonic()
    wait_until(lambda: any(core & cpus for cpus in node.allowed().values()), SOON_S, "the core to be the box's again")
    say(
        f"online has CPU {cpu} alone, of the core {sorted(core)}: left {left_s:.1f} s after that was seen, box on "
        f"{cpus}; on the core's CPUs in {seen} of {SAMPLES} samples; back {time.monotonic() - began_s:.0f} s later"
    )

    assert set(seen.values()) == {0}


# --- CPUs that online shares -----------------------------------------------------------------------------------------


@pytest.fixture
def node(lab: Path) -> Iterator[HarmedNode]:
    """Containers see a directory of the host's in /out."""
    (out := lab / "out").mkdir()
    with HarmedNode.before(lab, starts=False, mounts={Path("/out"): out}) as node:
        yield node


@pytest.mark.skipif(version() == 1, reason="the node that it is for has cgroup v2")
def test_box_that_slows_online_down_on_the_siblings_is_named_by_online_squeezed_and_open_again_later(
    node: HarmedNode, say: Say
) -> None:
    harm = {"trial_s": 6.0, "evict_after_s": 3600.0}
    node.configure(static(CPUS, cpu={"watermark_ratio": 1.0}, interference=harm))
    works = node.mounts[Path("/out")] / "works"

    def took_ms(last: int) -> list[float]:
        """Of the last works; 0: of all."""
        return [float(line) for line in works.read_text().split()[-last:]]

    def lately_ms() -> float:
        return sum(took_ms(LATELY)) / LATELY

    with own_word(lately_ms) as port:
        node.start_pod("offline")
        works.write_text("0\n" * LATELY)
        first = node.start_pod("online-first", ("sh", "-c", WORK))
        time.sleep(CALM_S)
        alone = took_ms(20)
        node.client.stop_and_remove(first)
        threshold = HARM_RATIO * median(alone)
        check = {"http": {"port": port}, "threshold": round(threshold), "every_s": 1, "timeout_s": 5}
        online = node.start_pod("online", ("sh", "-c", WORK), annotations={ANNOTATION: json.dumps(check)})
        node.proxy.restart()  # it lists the runtime's pods at its start, and each minute
        wait_until(node.is_well, WAIT_S, "the service's word", node.proxy.log, 0.5)
        time.sleep(CALM_S / 2)

        node.start_pod("offline-burst", busy_loops())
        began_s = time.monotonic()
        wait_until(lambda: not node.is_well(), WAIT_S, "harm", node.proxy.log, 0.5)
        harmed_s, hurt, pressure = time.monotonic(), took_ms(LATELY), node.value("cpu_pressure")
        wait_until(lambda: ("cpu", "squeezed") in node.moves(), WAIT_S, "the conviction", node.proxy.log, 0.5)
        named_s, why = time.monotonic(), node.last_reason()
        wait_until(lambda: node.is_below_the_prediction("cpu") and node.is_well(), WAIT_S, "the cure", poll_s=0.5)
        cured_s = time.monotonic()
        count, used_s = len(works.read_text().split()), node.box.cpu_s()
        time.sleep(HELD_S)
        held, left = took_ms(0)[count:], (node.box.cpu_s() - used_s) / HELD_S
        say(
            f"online's work takes {median(alone):.0f} ms alone, {median(hurt):.0f} beside a burst on all {CPUS} "
            f"hyperthreads (cpu_pressure {pressure:.0f} %); seen after {harmed_s - began_s:.0f} s, named "
            f"{named_s - harmed_s:.0f} s later ({why}), cured {cured_s - harmed_s:.0f} s after it was seen; then "
            f"{median(held):.0f} ms, and the box uses {left:.1f} cores; {node.moves()}"
        )
        node.client.stop_and_remove(online)
        gone_s = time.monotonic()
        wait_until(lambda: node.rung("cpu") == "open", WAIT_S, "the box to be open", node.proxy.log, 0.5)
        say(f"open again {time.monotonic() - gone_s:.0f} s after online has gone: {node.box.quota_cores()} cores")

    assert median(hurt) > threshold
    assert median(held) < threshold
    assert node.moves()[0] == ("cpu", "tried")
    assert node.proxy.events("stop") == []
