"""The box on whole physical cores: what runs in it stays there, and as few cores move as its limit needs."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from criproxy.cgroup.topology import Topology
from criproxy.cgroup.tree import Tree as Files
from criproxy.model.cpulist import parse_cpus
from integration.lab.cgroups import Tree
from integration.lab.client import CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Config, Criproxy
from integration.lab.directory import cgroup_root
from integration.lab.process import wait_until
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

OFFLINE = {"colocation.criproxy.io/class": "offline"}
SOON_S = 60.0
SAMPLES, SAMPLE_S = 200, 0.01


def config(cores: float, *, whole: bool = True) -> Config:
    return {
        "colocation": {"enabled": True},
        "control": {"policy": "static"},
        "guard": {"enabled": False},
        "cpu": {"static_cores": cores},
        "memory": {"static_bytes": 1 << 30},
        "cpuset": {"whole_cores": whole},
    }


@pytest.fixture
def criproxy(lab: Path) -> Iterator[Criproxy]:
    """With a busy offline pod."""
    containerd = Containerd(lab)
    containerd.start()
    criproxy = Criproxy(lab, containerd.socket, config(1.0))
    criproxy.start()
    with CriClient(criproxy.socket) as client:
        parent = f"{cgroup_root(lab)}/kubepods/besteffort/podbusy"
        pod = client.run_pod("busy", uid="busy", labels=OFFLINE, cgroup_parent=parent)
        client.run_container(pod, "main", busy_loops())
        yield criproxy


def test_box_runs_on_whole_cores_and_moves_as_few_as_its_limit_needs(criproxy: Criproxy, lab: Path) -> None:
    box = Tree(f"{cgroup_root(lab)}/offline")

    def allowed() -> set[frozenset[int]]:
        found = set()
        for pid in box.pids():
            try:
                found.add(frozenset(os.sched_getaffinity(pid)))
            except ProcessLookupError:
                continue
        return found

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
