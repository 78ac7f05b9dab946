"""Offline pods that a real runtime puts outside the box, and processes that somebody moves there: all are found."""

import os
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.lab import naming
from integration.lab.cgroups import Tree, hierarchies, of_process, version
from integration.lab.client import Container, CriClient, Pod
from integration.lab.containerd import Containerd
from integration.lab.criproxy import CHECKOUT, Config, Criproxy
from integration.lab.directory import cgroup_root
from integration.lab.process import wait_until

pytestmark = pytest.mark.skipif(
    naming.driver() is not naming.Driver.CGROUPFS, reason="what the runtime is made to do here is cgroupfs' way"
)

WAIT_S = 60
FOREVER = ["sleep", "2147483647"]
OFFLINE = {"colocation.criproxy.io/class": "offline"}
PLACEMENT = "colocation.criproxy.io/placement"
STATIC: Config = {
    "control": {"policy": "static"},
    "cpu": {"static_cores": 0.5},
    "memory": {"static_bytes": 256 << 20},
    "guard": {"enabled": False},
}

WRAPPER = """\
#!/bin/sh
# runc, but while {flag} is there, it does not honour the cgroup that it is told.
if [ -e {flag} ]; then
  previous=
  for argument; do
    [ "$previous" != --bundle ] || bundle=$argument
    previous=$argument
  done
  [ -z "$bundle" ] || sed -i 's#"cgroupsPath":"[^"]*/#"cgroupsPath":"{elsewhere}/#' "$bundle/config.json"
fi
exec runc "$@"
"""


def elsewhere(runtime: Containerd) -> str:
    return f"{cgroup_root(runtime.directory)}/elsewhere"


def stray(runtime: Containerd) -> Path:
    """While this file is there, a `StrayingContainerd` puts what it creates `elsewhere`."""
    return runtime.directory / "stray"


class StrayingContainerd(Containerd):
    """One whose runtime does not always honour the parent."""

    def _configuration(self) -> str:
        wrapper = self.directory / "runc-that-strays"
        wrapper.write_text(WRAPPER.format(flag=stray(self), elsewhere=elsewhere(self)))
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        option = f'Root = "{self.directory / "runc"}"'
        return super()._configuration().replace(option, f'{option}\n      BinaryName = "{wrapper}"')


def config(**colocation: Any) -> Config:
    return {**STATIC, "colocation": {"enabled": True, **colocation}}


class Node:
    """A criproxy before a runtime, and the test in kubelet's place."""

    def __init__(self, runtime: Containerd, tables: Config) -> None:
        self.runtime = runtime
        self.proxy = Criproxy(runtime.directory, runtime.socket, tables)
        self.prefix = f"{cgroup_root(runtime.directory)}/verify-{uuid.uuid4().hex[:8]}"
        self.client = CriClient(self.proxy.socket)
        self._before = len(self.proxy.events()) if self.proxy.log.exists() else 0

    def start_pod(self, uid: str = "") -> tuple[Pod, Container]:
        uid = uid or str(uuid.uuid4())
        parent = f"{self.prefix}/kubepods/besteffort/pod{uid}"
        Tree(parent).make()
        pod = self.client.run_pod(f"p-{uid}", uid=uid, labels=OFFLINE, cgroup_parent=parent)
        return pod, self.client.run_container(pod, "main", FOREVER)

    def placement(self) -> dict[str, Any]:
        placement: dict[str, Any] = self.proxy.status()["placement"]
        return placement

    def wait_misplaced(self, *containers: str) -> list[str]:
        """Wait until these are misplaced and no other ("": a sandbox); returns where, in the same order."""

        where: dict[str, str] = {}

        def are_misplaced() -> bool:
            where.clear()
            where.update({one["container"]: one["detail"] for one in self.placement()["misplaced"]})
            return sorted(where) == sorted(containers)

        wait_until(are_misplaced, WAIT_S, f"{containers} to be misplaced", self.proxy.log)
        return [where[container] for container in containers]

    def wait_verified(self, count: int) -> None:
        wait_until(lambda: self.placement()["verified"] == count, WAIT_S, f"{count} verified", self.proxy.log)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.proxy.events()[self._before :] if event["event"] == name]

    def metric(self, name: str) -> float:
        lines = self.proxy.http("/metrics")[1].splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def exit_status(self) -> int:
        """Of `criproxy status`."""
        command = [sys.executable, "-m", "criproxy", "status", "--config", str(self.proxy.config_file)]
        env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        return subprocess.run(command, env=env, capture_output=True, check=False).returncode


def _node(runtime: Containerd, tables: Config) -> Iterator[Node]:
    node = Node(runtime, tables)
    try:
        yield node
    finally:
        node.client.close()
        if node.proxy.is_alive():
            node.proxy.stop()


@pytest.fixture
def node(containerd: Containerd, client: CriClient) -> Iterator[Node]:
    """A criproxy before the session's containerd, not started yet; its pods go after the test."""
    yield from _node(containerd, config())


@pytest.fixture
def straying(lab: Path) -> Iterator[Node]:
    """A criproxy before a runtime that strays, not started yet."""
    runtime = StrayingContainerd(lab)
    runtime.start()
    yield from _node(runtime, config())


def move(pid: int, path: str, controllers: tuple[str, ...]) -> None:
    """Put a process into another cgroup of these controllers."""
    for hierarchy in hierarchies():
        if version() == 2 or set(controllers) & set(hierarchy.controllers):
            (hierarchy.directory(path) / "cgroup.procs").write_text(str(pid))


def test_pods_in_the_box_are_verified_after_their_start_and_again_after_a_restart(node: Node) -> None:
    node.proxy.start()
    node.start_pod()
    node.wait_verified(2)
    node.start_pod()
    node.wait_verified(4)
    node.proxy.restart()
    node.wait_verified(4)
    assert (node.placement()["misplaced"], node.placement()["unknown"], node.events("misplaced")) == ([], [], [])
    assert node.metric("criproxy_misplaced_containers") == 0
    assert node.exit_status() == 0
    node.proxy.stop()
    assert node.exit_status() == 3


@pytest.mark.skipif(version() != 1, reason="v2 has one hierarchy")
@pytest.mark.parametrize("controller", ["cpu", "cpuacct", "memory", "pids"])
def test_process_that_somebody_moves_out_of_one_hierarchy_is_found_until_it_is_back(
    node: Node, controller: str
) -> None:
    node.proxy.start()
    _, container = node.start_pod()
    node.wait_verified(2)
    pid, outside = node.client.pid(container), f"{node.prefix}/outside"
    home = of_process(pid)[controller]
    Tree(outside).make()
    move(pid, outside, (controller,))
    node.proxy.reload()  # a look at everything; else it is one each minute
    (where,) = node.wait_misplaced("main")
    assert outside in where
    assert controller in where
    assert node.exit_status() == 1
    move(pid, home, (controller,))
    node.proxy.reload()
    node.wait_misplaced()
    assert node.exit_status() == 0


def test_child_that_leaves_is_found_within_a_minute_and_its_pod_stopped_if_asked(node: Node) -> None:
    """The container's first process stays."""
    node.proxy.start()
    _, container = node.start_pod()
    node.wait_verified(2)
    outside, first = f"{node.prefix}/outside", node.client.pid(container)
    Tree(outside).make()
    node.client.exec_sync(container, ["sh", "-c", "sleep 1234567 >/dev/null 2>&1 &"])
    children = [pid for pid in Tree(of_process(first)["cpu" if version() == 1 else ""]).pids() if pid != first]
    assert children
    move(children[0], outside, ("cpu",))
    wait_until(lambda: bool(node.placement()["strays"]), 70, "the stray to be found", node.proxy.log)
    (found,) = node.placement()["strays"]
    assert f"its process {children[0]} runs at" in found["detail"]
    assert (node.metric("criproxy_stray_processes"), node.metric("criproxy_strays_total")) == (1, 1)
    assert (node.placement()["misplaced"], node.exit_status()) == ([], 1)
    assert [event["pid"] for event in node.events("stray_process")] == [children[0]]

    node.proxy.configure(config(on_unbounded="evict"))
    node.proxy.reload()
    wait_until(lambda: not Path(f"/proc/{first}").exists(), WAIT_S, "the pod's end", node.proxy.log)
    wait_until(lambda: not Path(f"/proc/{children[0]}").exists(), WAIT_S, "the stray's end", node.proxy.log)


def test_container_of_a_runtime_that_ignores_the_parent_is_found_right_after_its_start(straying: Node) -> None:
    straying.proxy.start()
    straying.start_pod()
    straying.wait_verified(2)
    stray(straying.runtime).touch()
    pod, container = straying.start_pod()
    assert straying.wait_misplaced("", "main") == [
        f"{elsewhere(straying.runtime)}/{one.id}" for one in (pod, container)
    ]
    wait_until(lambda: straying.metric("criproxy_misplacements_total") == 2, WAIT_S, "both to be counted")
    told = straying.events("misplaced")
    assert {(event["pod"], event["level"]) for event in told} == {(f"default/{pod.config.metadata.name}", "error")}
    straying.proxy.restart()
    straying.wait_misplaced("", "main")
    straying.proxy.reload()
    wait_until(lambda: len(straying.events("config_taken")) >= 3, WAIT_S, "the reload")
    assert len(straying.events("misplaced")) == 4, "once for each, in each of two lives"
    assert len([p for p in straying.client.list_pods() if p.state == 0]) == 2, "reported, not stopped"


def test_pod_that_is_misplaced_is_evicted_and_kept_out_for_a_while_when_the_config_says_so(straying: Node) -> None:
    straying.proxy.configure(config(on_unbounded="evict"))
    straying.proxy.start()
    straying.start_pod()
    stray(straying.runtime).touch()
    uid = str(uuid.uuid4())
    with pytest.raises(grpc.RpcError):  # stopped before or while its container starts; or kubelet's next try, below
        pod, _ = straying.start_pod(uid)
        wait_until(lambda: _state(straying, pod) == 1, WAIT_S, "the pod's end", straying.proxy.log)
        straying.start_pod(uid)
    wait_until(lambda: straying.events("stop"), WAIT_S, "the eviction", straying.proxy.log)
    stray(straying.runtime).unlink()
    with pytest.raises(grpc.RpcError, match=r"put it outside the box, at .*/elsewhere/.* kubelet tries again"):
        straying.start_pod(uid)
    straying.start_pod()
    straying.wait_misplaced()
    ready = [pod for pod in straying.client.list_pods() if pod.state == 0]
    assert len(ready) == 2


def _state(node: Node, pod: Pod) -> int:
    return next((int(one.state) for one in node.client.list_pods() if one.id == pod.id), 1)


@pytest.mark.skipif(version() != 1, reason="the box's slices can be made by hand on v1 alone")
def test_slice_that_a_runtime_of_the_other_driver_takes_for_a_path_is_found_with_its_remedy(
    node: Node, client: CriClient
) -> None:
    """As on a node whose kubelet has systemd's driver, and whose runtime has cgroupfs'."""
    uid, prefix = uuid.uuid4().hex, naming.spelled(cgroup_root(node.runtime.directory)).strip("/").replace("-", "_")
    box, placement = f"{prefix}-offline.slice", f"{prefix}-offline-pod{uid}.slice"
    tree = Tree(f"/{prefix}.slice")
    Tree(f"/{prefix}.slice/{box}/{placement}").make()
    try:
        pod = client.run_pod("p", uid=uid, annotations={PLACEMENT: placement}, cgroup_parent=placement)
        client.run_container(pod, "main", FOREVER)
        node.proxy.start(options=["--dry-run"])
        where = node.wait_misplaced("", "main")
        assert all(f"{placement}:cri-containerd:" in one for one in where)
        assert {event["box"] for event in node.events("misplaced")} == {box}
        assert all("SystemdCgroup = true" in event["remedy"] for event in node.events("misplaced"))
        client.remove_all_pods()
    finally:
        tree.remove()
