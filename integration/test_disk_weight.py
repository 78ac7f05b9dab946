"""The box's lowest disk weight is set in the kernel, and status says of each disk whether it is in force there."""

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.lab import cgroups
from integration.lab.cgroups import Tree
from integration.lab.client import CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Config, Criproxy
from integration.lab.directory import cgroup_root
from integration.lab.process import wait_until
from integration.lab.throwaway import is_throwaway
from integration.lab.usage import Cgroup

WAIT_S = 240
CONFIG: Config = {
    "colocation": {"enabled": True},
    "control": {"policy": "static", "interval_s": 0.2},
    "cpu": {"static_cores": 0.5},
    "memory": {"static_bytes": 256 << 20},
    "guard": {"enabled": False},
}
LOWEST = {"blkio.bfq.weight": "1", "io.bfq.weight": "default 1", "io.weight": "default 1"}
BLOCKS = Path("/sys/block")


@pytest.fixture
def proxy(containerd: Containerd, client: CriClient) -> Iterator[Criproxy]:
    """Not started yet."""
    proxy = Criproxy(containerd.directory, containerd.socket, CONFIG)
    proxy.log.unlink(missing_ok=True)
    yield proxy
    proxy.stop()


def run_pod(proxy: Criproxy, root: str) -> Cgroup:
    """An offline pod; returns the box."""
    uid = str(uuid.uuid4())
    Tree(parent := f"{root}/kubepods/besteffort/pod{uid}").make()
    with CriClient(proxy.socket) as through:
        through.run_pod("p", uid=uid, labels={"colocation.criproxy.io/class": "offline"}, cgroup_parent=parent)
    return Cgroup(f"{root}/offline")


def disks(proxy: Criproxy) -> dict[str, dict[str, Any]]:
    return {disk["name"]: disk for disk in proxy.status()["disks"]}


def scheduler(disk: str) -> str:
    """Of one that has any, between brackets."""
    return (BLOCKS / disk / "queue/scheduler").read_text().strip()


def test_weight_is_the_lowest_in_the_kernel(containerd: Containerd, proxy: Criproxy) -> None:
    proxy.start()
    box = run_pod(proxy, f"{cgroup_root(containerd.directory)}/disk-weight")
    files = [box.file("blkio" if cgroups.version() == 1 else "io", name) for name in LOWEST]
    there = [file for file in files if file.exists()]
    wanted = {file.name: LOWEST[file.name] for file in there}
    if not there:
        pytest.skip("this kernel has no disk weights")
    wait_until(
        lambda: {file.name: file.read_text().partition("\n")[0] for file in there} == wanted,
        WAIT_S,
        f"{wanted}",
        proxy.log,
    )


def test_status_says_of_each_disk_what_its_scheduler_does(proxy: Criproxy) -> None:
    proxy.start()
    wait_until(lambda: bool(disks(proxy)), WAIT_S, "the disks", proxy.log)
    for name, disk in disks(proxy).items():
        assert (disk["kept_by"] == "bfq") == ("[bfq]" in scheduler(name))
        assert bool(disk["why"]) != bool(disk["kept_by"])


@pytest.mark.skipif(not is_throwaway(), reason="chooses a disk's scheduler, for the whole machine")
def test_disk_whose_scheduler_becomes_bfq_is_said_to_keep_the_weight(containerd: Containerd, proxy: Criproxy) -> None:
    proxy.start()
    wait_until(lambda: bool(disks(proxy)), WAIT_S, "the disks", proxy.log)
    name, disk = next(iter(disks(proxy).items()))
    assert "keeps to no weight" in disk["why"]
    run_pod(proxy, f"{cgroup_root(containerd.directory)}/disk-weight")
    subprocess.run(["modprobe", "bfq"], check=True)
    (BLOCKS / name / "queue/scheduler").write_text("bfq")
    wait_until(lambda: disks(proxy)[name]["kept_by"] == "bfq", WAIT_S, f"{name} to be told as one with bfq", proxy.log)
    (BLOCKS / name / "queue/scheduler").write_text("none")
    wait_until(lambda: disks(proxy)[name]["kept_by"] == "", WAIT_S, f"{name} to be told as one without", proxy.log)
