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
from integration.lab.client import CriClient, Pod
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Config, python_path, static
from integration.lab.directory import cgroup_root
from integration.lab.node import FOREVER, Node
from integration.lab.process import wait_until

pytestmark = pytest.mark.skipif(
    naming.driver() is not naming.Driver.CGROUPFS, reason="what the runtime is made to do here is cgroupfs' way"
)

WAIT_S = 60
PLACEMENT = "colocation.criproxy.io/placement"

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
    return static(0.5, colocation=colocation)


def placement(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = node.proxy.status()["placement"]
    return found


def wait_misplaced(node: Node, *containers: str) -> list[str]:
    """Wait until these are misplaced and no other ("": a sandbox); returns where, in the same order."""
    where: dict[str, str] = {}

    def are_misplaced() -> bool:
        where.clear()
        where.update({one["container"]: one["detail"] for one in placement(node)["misplaced"]})
        return sorted(where) == sorted(containers)

    wait_until(are_misplaced, WAIT_S, f"{containers} to be misplaced", node.proxy.log)
    return [where[container] for container in containers]


def wait_verified(node: Node, count: int) -> None:
    wait_until(lambda: placement(node)["verified"] == count, WAIT_S, f"{count} verified", node.proxy.log)


def exit_status(node: Node) -> int:
    """Of `criproxy status`."""
    command = [sys.executable, "-m", "criproxy", "status", "--config", str(node.proxy.config_file)]
    env = {**os.environ, "PYTHONPATH": python_path()}
    return subprocess.run(command, env=env, capture_output=True, check=False).returncode


@pytest.fixture
def node(containerd: Containerd, client: CriClient) -> Iterator[Node]:
    """A criproxy before the session's containerd, not started yet; its pods go after the test."""
    with Node.before(containerd, config(), starts=False) as node:
        yield node


@pytest.fixture
def straying(lab: Path) -> Iterator[Node]:
    """A criproxy before a runtime that strays, not started yet."""
    runtime = StrayingContainerd(lab)
    runtime.start()
    with Node.before(runtime, config(), starts=False) as node:
        yield node


def move(pid: int, path: str, controllers: tuple[str, ...]) -> None:
    """Put a process into another cgroup of these controllers."""
    for hierarchy in hierarchies():
        if version() == 2 or set(controllers) & set(hierarchy.controllers):
            (hierarchy.directory(path) / "cgroup.procs").write_text(str(pid))


def test_pods_in_the_box_are_verified_after_their_start_and_again_after_a_restart(node: Node) -> None:
    node.proxy.start()
    node.run("offline")
    wait_verified(node, 2)
    node.run("offline")
    wait_verified(node, 4)
    node.proxy.restart()
    wait_verified(node, 4)
    assert (placement(node)["misplaced"], placement(node)["unknown"], node.proxy.events("misplaced")) == ([], [], [])
    assert node.proxy.metric("criproxy_misplaced_containers") == 0
    assert exit_status(node) == 0
    node.proxy.stop()
    assert exit_status(node) == 3


@pytest.mark.skipif(version() != 1, reason="v2 has one hierarchy")
@pytest.mark.parametrize("controller", ["cpu", "cpuacct", "memory", "pids"])
def test_process_that_somebody_moves_out_of_one_hierarchy_is_found_until_it_is_back(
    node: Node, controller: str
) -> None:
    node.proxy.start()
    container = node.run("offline")
    wait_verified(node, 2)
    pid, outside = node.client.pid(container), f"{node.root}/outside"
    home = of_process(pid)[controller]
    Tree(outside).make()
    move(pid, outside, (controller,))
    node.proxy.reload()  # a look at everything; else it is one each minute
    (where,) = wait_misplaced(node, "main")
    assert outside in where
    assert controller in where
    assert exit_status(node) == 1
    move(pid, home, (controller,))
    node.proxy.reload()
    wait_misplaced(node)
    assert exit_status(node) == 0


def test_child_that_leaves_is_found_within_a_minute_and_its_pod_stopped_if_asked(node: Node) -> None:
    """The container's first process stays."""
    node.proxy.start()
    container = node.run("offline")
    wait_verified(node, 2)
    outside, first = f"{node.root}/outside", node.client.pid(container)
    Tree(outside).make()
    node.client.exec_sync(container, ["sh", "-c", "sleep 1234567 >/dev/null 2>&1 &"])
    children = [pid for pid in Tree(of_process(first)["cpu" if version() == 1 else ""]).pids() if pid != first]
    assert children
    move(children[0], outside, ("cpu",))
    wait_until(lambda: bool(placement(node)["strays"]), 70, "the stray to be found", node.proxy.log)
    (found,) = placement(node)["strays"]
    assert f"its process {children[0]} runs at" in found["detail"]
    assert (node.proxy.metric("criproxy_stray_processes"), node.proxy.metric("criproxy_strays_total")) == (1, 1)
    assert (placement(node)["misplaced"], exit_status(node)) == ([], 1)
    assert [event["pid"] for event in node.proxy.events("stray_process")] == [children[0]]

    node.proxy.configure(config(on_unbounded="evict"))
    node.proxy.reload()
    wait_until(lambda: not Path(f"/proc/{first}").exists(), WAIT_S, "the pod's end", node.proxy.log)
    wait_until(lambda: not Path(f"/proc/{children[0]}").exists(), WAIT_S, "the stray's end", node.proxy.log)


def test_container_of_a_runtime_that_ignores_the_parent_is_found_right_after_its_start(straying: Node) -> None:
    straying.proxy.start()
    straying.run("offline")
    wait_verified(straying, 2)
    stray(straying.containerd).touch()
    container = straying.run("offline")
    assert wait_misplaced(straying, "", "main") == [
        f"{elsewhere(straying.containerd)}/{one.id}" for one in (container.pod, container)
    ]
    wait_until(lambda: straying.proxy.metric("criproxy_misplacements_total") == 2, WAIT_S, "both to be counted")
    told = straying.proxy.events("misplaced")
    assert {(event["pod"], event["level"]) for event in told} == {
        (f"default/{container.pod.config.metadata.name}", "error")
    }
    straying.proxy.restart()
    wait_misplaced(straying, "", "main")
    straying.proxy.reload()
    wait_until(lambda: len(straying.proxy.events("config_taken")) >= 3, WAIT_S, "the reload")
    assert len(straying.proxy.events("misplaced")) == 4, "once for each, in each of two lives"
    assert len([p for p in straying.client.list_pods() if p.state == 0]) == 2, "reported, not stopped"


def test_pod_that_is_misplaced_is_evicted_and_kept_out_for_a_while_when_the_config_says_so(straying: Node) -> None:
    straying.proxy.configure(config(on_unbounded="evict"))
    straying.proxy.start()
    straying.run("offline")
    stray(straying.containerd).touch()
    uid = str(uuid.uuid4())
    with pytest.raises(grpc.RpcError):  # stopped before or while its container starts; or kubelet's next try, below
        pod = straying.run("offline", uid).pod
        wait_until(lambda: _state(straying, pod) == 1, WAIT_S, "the pod's end", straying.proxy.log)
        straying.run("offline", uid)
    wait_until(lambda: straying.proxy.events("stop"), WAIT_S, "the eviction", straying.proxy.log)
    stray(straying.containerd).unlink()
    with pytest.raises(grpc.RpcError, match=r"put it outside the box, at .*/elsewhere/.* kubelet tries again"):
        straying.run("offline", uid)
    straying.run("offline")
    wait_misplaced(straying)
    ready = [pod for pod in straying.client.list_pods() if pod.state == 0]
    assert len(ready) == 2


def _state(node: Node, pod: Pod) -> int:
    return next((int(one.state) for one in node.client.list_pods() if one.id == pod.id), 1)


@pytest.mark.skipif(version() != 1, reason="the box's slices can be made by hand on v1 alone")
def test_slice_that_a_runtime_of_the_other_driver_takes_for_a_path_is_found_with_its_remedy(
    node: Node, client: CriClient
) -> None:
    """As on a node whose kubelet has systemd's driver, and whose runtime has cgroupfs'."""
    uid, prefix = uuid.uuid4().hex, naming.spelled(cgroup_root(node.containerd.directory)).strip("/").replace("-", "_")
    box, placement = f"{prefix}-offline.slice", f"{prefix}-offline-pod{uid}.slice"
    tree = Tree(f"/{prefix}.slice")
    Tree(f"/{prefix}.slice/{box}/{placement}").make()
    try:
        pod = client.run_pod("p", uid=uid, annotations={PLACEMENT: placement}, cgroup_parent=placement)
        client.run_container(pod, "main", FOREVER)
        node.proxy.start(options=["--dry-run"])
        where = wait_misplaced(node, "", "main")
        assert all(f"{placement}:cri-containerd:" in one for one in where)
        assert {event["box"] for event in node.proxy.events("misplaced")} == {box}
        assert all("SystemdCgroup = true" in event["remedy"] for event in node.proxy.events("misplaced"))
        client.remove_all_pods()
    finally:
        tree.remove()
