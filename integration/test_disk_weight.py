"""The box's lowest disk weight is set in the kernel, and status says of each disk whether it is in force there."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.lab import cgroups
from integration.lab.client import CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import static
from integration.lab.node import Node
from integration.lab.process import wait_until
from integration.lab.throwaway import is_throwaway

WAIT_S = 240
CONFIG = static(0.5, control={"interval_s": 0.2})
LOWEST = {"blkio.bfq.weight": "1", "io.bfq.weight": "default 1", "io.weight": "default 1"}
BLOCKS = Path("/sys/block")


@pytest.fixture
def node(containerd: Containerd, client: CriClient) -> Iterator[Node]:
    with Node.before(containerd, CONFIG) as node:
        yield node


def disks(node: Node) -> dict[str, dict[str, Any]]:
    return {disk["name"]: disk for disk in node.proxy.status()["disks"]}


def scheduler(disk: str) -> str:
    """Of one that has any, between brackets."""
    return (BLOCKS / disk / "queue/scheduler").read_text().strip()


def test_weight_is_the_lowest_in_the_kernel(node: Node) -> None:
    node.run_pod("offline")
    files = [node.box.file("blkio" if cgroups.version() == 1 else "io", name) for name in LOWEST]
    there = [file for file in files if file.exists()]
    wanted = {file.name: LOWEST[file.name] for file in there}
    if not there:
        pytest.skip("this kernel has no disk weights")
    wait_until(
        lambda: {file.name: file.read_text().partition("\n")[0] for file in there} == wanted,
        WAIT_S,
        f"{wanted}",
        node.proxy.log,
    )


def test_status_says_of_each_disk_what_its_scheduler_does(node: Node) -> None:
    wait_until(lambda: bool(disks(node)), WAIT_S, "the disks", node.proxy.log)
    for name, disk in disks(node).items():
        assert (disk["kept_by"] == "bfq") == ("[bfq]" in scheduler(name))
        assert bool(disk["why"]) != bool(disk["kept_by"])


@pytest.mark.skipif(not is_throwaway(), reason="chooses a disk's scheduler, for the whole machine")
def test_disk_whose_scheduler_becomes_bfq_is_said_to_keep_the_weight(node: Node) -> None:
    wait_until(lambda: bool(disks(node)), WAIT_S, "the disks", node.proxy.log)
    name, disk = next(iter(disks(node).items()))
    assert "keeps to no weight" in disk["why"]
    node.run_pod("offline")
    subprocess.run(["modprobe", "bfq"], check=True)
    (BLOCKS / name / "queue/scheduler").write_text("bfq")
    wait_until(
        lambda: disks(node)[name]["kept_by"] == "bfq",
        WAIT_S,
        f"{name} to be told as one with bfq",
        node.proxy.log,
    )
    (BLOCKS / name / "queue/scheduler").write_text("none")
    wait_until(lambda: disks(node)[name]["kept_by"] == "", WAIT_S, f"{name} to be told as one without", node.proxy.log)
