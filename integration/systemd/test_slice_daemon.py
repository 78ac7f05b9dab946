"""criproxy between a client in kubelet's place and this node's containerd, whose cgroup driver is systemd."""

import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.lab import cri_client_pb2 as cri
from integration.lab.client import Container, CriClient, Pod
from integration.lab.criproxy import Criproxy, static
from integration.lab.process import wait_until
from integration.systemd.slice_lab import BOX, V1, directory, shown, systemctl, text

RUNTIME = Path("/run/containerd/containerd.sock")
LABELS = {"colocation.criproxy.io/class": "offline"}
ANCHOR = "kubepods-besteffort-criproxy.slice"
ON = static(0.5)
IMAGE = "localhost/busybox:1"
"""The node's own."""

TICK_S = 1.0
SLOW = 8
"""Python is so much slower here, and a tick with it; what is asserted is ticks, counted by criproxy itself."""

WAIT_S = 60


@pytest.fixture(scope="module")
def criproxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Criproxy]:
    proxy = Criproxy(tmp_path_factory.mktemp("criproxy"), RUNTIME, ON)
    proxy.start()
    yield proxy
    proxy.stop()


@pytest.fixture
def client(criproxy: Criproxy) -> Iterator[CriClient]:
    criproxy.configure(ON)
    with CriClient(criproxy.socket) as client:
        wait_until(client.is_ready, WAIT_S, "the runtime through criproxy")
        yield client
        client.remove_all_pods()


class Offline:
    """An offline pod as kubelet starts it: with a slice of its own among kubelet's, which stays empty."""

    def __init__(self, client: CriClient, memory_bytes: int = 0) -> None:
        self.uid = str(uuid.uuid4())
        name = f"pod{self.uid.replace('-', '_')}"
        self.slice, self.own = f"kubepods-besteffort-{name}.slice", f"offline-{name}.slice"
        systemctl("start", self.slice)
        if memory_bytes:
            systemctl("set-property", "--runtime", self.slice, f"MemoryMax={memory_bytes}")
        resources = cri.LinuxContainerResources(cpu_period=100_000, cpu_shares=2, memory_limit_in_bytes=memory_bytes)
        self.pod: Pod = client.run_pod(
            f"job-{name[:8]}", uid=self.uid, labels=LABELS, cgroup_parent=self.slice, resources=resources
        )
        self.container: Container = client.create_container(self.pod, "main", ["sleep", "2147483647"], image=IMAGE)
        client.start(self.container)

    def kubelet_forgets(self) -> None:
        systemctl("stop", self.slice)


def drift(criproxy: Criproxy) -> int:
    return int(criproxy.status()["box"]["drift"])


def drift_logged(criproxy: Criproxy) -> int:
    return sum(event.get("event") == "box_drifted" for event in criproxy.events())


def bounded() -> bool:
    if V1:
        quota, size = text(BOX, "cpu.cfs_quota_us", "cpu"), text(BOX, "memory.limit_in_bytes")
    else:
        quota, size = text(BOX, "cpu.max").split()[0], text(BOX, "memory.max")
    return (quota, size) == ("50000", str(256 << 20))


def test_pod_runs_in_a_slice_of_the_box_with_its_own_limit(client: CriClient) -> None:
    offline = Offline(client, memory_bytes=64 << 20)

    cgroup = Path(f"/proc/{client.pid(offline.container)}/cgroup").read_text()
    limit = "memory.limit_in_bytes" if V1 else "memory.max"

    assert f"/offline.slice/{offline.own}/" in cgroup
    assert bounded()
    assert text(offline.own, limit) == str(64 << 20)
    if not V1:
        assert shown(ANCHOR, "ActiveState") == "active"
        assert "cpuset" in text(offline.slice, "cgroup.controllers").split()


def test_limits_are_back_within_a_tick_and_drift_is_logged_once(client: CriClient, criproxy: Criproxy) -> None:
    Offline(client)
    counted, logged = drift(criproxy), drift_logged(criproxy)

    systemctl("set-property", "--runtime", BOX, "CPUQuota=150%")
    started_s = time.monotonic()
    wait_until(bounded, WAIT_S, "the quota to be back")
    took_s = time.monotonic() - started_s
    wait_until(lambda: drift(criproxy) > counted, WAIT_S, "drift to be counted")

    assert took_s < TICK_S * SLOW
    wait_until(lambda: drift_logged(criproxy) > logged, WAIT_S, "drift to be logged")
    assert drift_logged(criproxy) == logged + 1


def test_quota_holds_through_reload_reexec_and_a_restart_of_containerd(client: CriClient, criproxy: Criproxy) -> None:
    Offline(client)
    wait_until(bounded, WAIT_S, "the box to be bounded")
    logged = drift_logged(criproxy)

    for command in (["daemon-reload"], ["daemon-reexec"], ["restart", "containerd"]):
        systemctl(*command)
        assert V1 or bounded(), command
        wait_until(bounded, TICK_S * SLOW, f"the quota to be back after {command}")

    assert V1 or drift_logged(criproxy) == logged
    wait_until(client.is_ready, WAIT_S, "containerd to be back")


def test_slice_of_a_removed_pod_goes_and_that_of_a_running_one_stays(client: CriClient) -> None:
    gone, stays = Offline(client), Offline(client)

    client.stop_and_remove(gone.pod)
    wait_until(lambda: not directory(gone.own).exists(), WAIT_S, "the slice to be removed")
    left = subprocess.run(["find", "/sys/fs/cgroup", "-name", gone.own], capture_output=True, text=True, check=True)

    assert left.stdout == ""
    assert directory(stays.own).exists()
    assert client.pid(stays.container) > 0


@pytest.mark.skipif(V1, reason="anchors are for cgroup v2")
def test_anchor_is_kept_while_colocation_is_off_and_goes_with_the_last_pod(
    client: CriClient, criproxy: Criproxy
) -> None:
    offline = Offline(client)
    criproxy.configure({**ON, "colocation": {"enabled": False, "on_disable": "release"}})
    wait_until(lambda: text(BOX, "cpu.max").startswith("max"), WAIT_S, "the limits to be lifted")

    systemctl("stop", ANCHOR)
    wait_until(lambda: directory(ANCHOR).exists(), TICK_S * SLOW, "the anchor to be back")

    wait_until(
        lambda: "cpuset" in text(offline.slice, "cgroup.controllers").split(),
        TICK_S * SLOW,
        "its controllers to be back",
    )
    client.stop_and_remove(offline.pod)
    offline.kubelet_forgets()
    wait_until(lambda: not directory(ANCHOR).exists(), WAIT_S, "the anchor to go")
