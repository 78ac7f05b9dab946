"""The box on whole physical cores: what runs in it stays there, and as few cores move as its limit needs."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from criproxy.cgroup.topology import Topology
from criproxy.cgroup.tree import Tree as Files
from criproxy.model.cpulist import parse_cpus
from integration.lab.cgroups import Tree
from integration.lab.criproxy import Config, Criproxy, static
from integration.lab.directory import cgroup_root
from integration.lab.node import Node
from integration.lab.process import cpus_of, wait_until
from integration.lab.usage import busy_loops

CORES = set(Topology(Files(), None).cores())

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        len(CORES) < 2 or any(len(core) < 2 for core in CORES),
        reason="needs two cores with hyperthreads: ./test node bookworm-v2-threads integration/test_whole_cores.py",
    ),
]

SOON_S = 60.0
SAMPLES, SAMPLE_S = 200, 0.01


def config(cores: float, *, whole: bool = True) -> Config:
    return static(cores, 1 << 30, cpuset={"whole_cores": whole})


@pytest.fixture
def criproxy(lab: Path) -> Iterator[Criproxy]:
    """With a busy offline pod."""
    with Node.before(lab, config(1.0)) as node:
        node.run("offline", "busy", busy_loops())
        yield node.proxy


def test_box_runs_on_whole_cores_and_moves_as_few_as_its_limit_needs(criproxy: Criproxy, lab: Path) -> None:
    box = Tree(f"{cgroup_root(lab)}/offline")

    def allowed() -> set[frozenset[int]]:
        return {cpus for pid in box.pids() if (cpus := cpus_of(pid))}

    def brought_to(cores: float, count: int) -> frozenset[int]:
        criproxy.configure(config(cores))
        wait_until(
            lambda: (now := allowed()) and len(now) == 1 and sum(core <= next(iter(now)) for core in CORES) == count,
            SOON_S,
            f"{count} cores",
            criproxy.log,
        )
        return next(iter(allowed()))

    one = brought_to(1.0, 1)
    elsewhere = 0
    for _ in range(SAMPLES):
        elsewhere += any(cpus != one for cpus in allowed())
        time.sleep(SAMPLE_S)
    told = criproxy.status()["box"]
    two = brought_to(2.5, 2)
    swayed = brought_to(1.5, 2)
    back = brought_to(1.0, 1)
    criproxy.configure(config(1.0, whole=False))
    wait_until(lambda: allowed() == {frozenset().union(*CORES)}, SOON_S, "all CPUs again", criproxy.log)

    assert one in CORES
    assert elsewhere == 0
    assert parse_cpus(told["cpus"]) == one
    assert told["cores"].startswith(f"1 of {len(CORES)} physical cores")
    assert one < two == swayed
    assert back in CORES
