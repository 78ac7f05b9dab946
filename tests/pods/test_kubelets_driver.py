"""Kubelet's driver, told by the pods that run at the start."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
import structlog

from criproxy.cgroup.naming import Driver, driver_of_process
from criproxy.concurrency.worker import StuckError
from criproxy.model import Pod, PodRef
from criproxy.pods.kubelets_driver import ASKED_MOST, KubeletsDriver
from criproxy.pods.runtime import Process, Running

CGROUPFS = "0::/kubepods/besteffort/podu1/c1\n"
SYSTEMD = "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podu1.slice/cri-containerd-c1.scope\n"


@dataclass
class Node:
    """What the runtime says of each pod's process (an exception is raised), and where the processes are."""

    processes: dict[str, Process | Exception]
    cgroups: dict[int, str] = field(default_factory=dict)
    unreadable: OSError | None = None
    asked: list[str] = field(default_factory=list)

    @property
    def outside(self) -> dict[str, Pod]:
        return {one: Pod(PodRef(one, "shop", one)) for one in self.processes}

    async def process_of(self, running: Running) -> Process:
        self.asked.append(running.id)
        told = self.processes[running.id]
        if isinstance(told, Exception):
            raise told
        return told

    async def read(self, pids: Collection[int]) -> dict[int, str]:
        if self.unreadable is not None:
            raise self.unreadable
        return {pid: self.cgroups[pid] for pid in pids if pid in self.cgroups}

    def find(self) -> Driver | None:
        kubelets = KubeletsDriver(self, self, self, log=structlog.get_logger())  # type: ignore[arg-type]
        asyncio.run(kubelets.find())
        return kubelets.driver


@pytest.mark.parametrize(
    ("cgroups", "driver"),
    [
        pytest.param(CGROUPFS, Driver.CGROUPFS, id="cgroupfs"),
        pytest.param(SYSTEMD, Driver.SYSTEMD, id="systemd"),
        pytest.param(f"9:pids:/\n4:cpu,cpuacct:{CGROUPFS[3:]}0::/\n", Driver.CGROUPFS, id="v1"),
        pytest.param("0::/kubelet/kubepods/podu1/c1/init\n", Driver.CGROUPFS, id="nested"),
        pytest.param(
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podu1.slice/x", Driver.SYSTEMD, id="kind"
        ),
        pytest.param("0::/system.slice/kubepods-podu1.slice:cri-containerd:c1\n", None, id="runtime-of-other-driver"),
        pytest.param("0::/system.slice/ssh.service\n", None, id="no-pod"),
        pytest.param("", None, id="empty"),
    ],
)
def test_driver_of_process(cgroups: str, driver: Driver | None) -> None:
    assert driver_of_process(cgroups) == driver


def test_find_driver_asks_on_until_a_pod_tells() -> None:
    node = Node(
        {
            "gone": ConnectionError("no such pod"),
            "vm": Process(None),
            "over": Process(0),
            "a": Process(7),
            "b": Process(8),
        },
        {7: SYSTEMD, 8: CGROUPFS},
    )
    assert node.find() is Driver.SYSTEMD
    assert node.asked == ["gone", "vm", "over", "a"]


@pytest.mark.parametrize(
    "node",
    [
        Node({}),
        Node({"a": Process(7)}),
        Node({"a": Process(7)}, {7: "0::/init\n"}),
        Node({"a": Process(7)}, {7: SYSTEMD}, unreadable=StuckError("the kernel does not answer")),
        Node({"a": Process(7)}, {7: SYSTEMD}, unreadable=OSError(24, "too many open files")),
    ],
    ids=["no-pod", "ended", "not-kubelets", "stuck", "no-descriptor"],
)
def test_find_driver_that_nobody_tells_is_none(node: Node) -> None:
    assert node.find() is None


def test_find_driver_asks_a_few_pods_only() -> None:
    node = Node({f"p{number}": Process(None) for number in range(100)})
    assert node.find() is None
    assert len(node.asked) == ASKED_MOST
