"""What no cgroup bounds is kept from offline containers, at a real runtime: keys, capabilities, the node's folders."""

import contextlib
import errno
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.lab.cgroups import Tree
from integration.lab.client import Container, CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import LETS_THE_LAB, Config, Criproxy
from integration.lab.directory import cgroup_root
from integration.lab.process import wait_until

WAIT_S = 60
CLASS = "colocation.criproxy.io/class"
SOURCE = Path(__file__).parent / "lab" / "keys-probe.c"
NUMBERS = {"NET_RAW": 13, "SYS_ADMIN": 21, "SYS_NICE": 23}
"""Source: capabilities(7); include/uapi/linux/capability.h."""


def config(**hardening: Any) -> Config:
    return {
        "colocation": {"enabled": True},
        "control": {"policy": "static"},
        "cpu": {"static_cores": 0.5},
        "memory": {"static_bytes": 256 << 20},
        "guard": {"enabled": False},
        "hardening": {"refuse_host_namespaces": LETS_THE_LAB["refuse_host_namespaces"], **hardening},
    }


@dataclass(frozen=True, slots=True)
class Node:
    """A criproxy before a runtime, and the test in kubelet's place."""

    root: str
    proxy: Criproxy
    client: CriClient
    folder: Path

    def run(self, kind: str, *, privileged: bool = False, **asked: Any) -> Container:
        uid = str(uuid.uuid4())
        parent = f"{self.root}/kubepods/besteffort/pod{uid}"
        Tree(parent).make()
        labels = {CLASS: kind}
        pod = self.client.run_pod(kind, uid=uid, labels=labels, cgroup_parent=parent, privileged=privileged)
        return self.client.run_container(pod, "main", ["sleep", "2147483647"], privileged=privileged, **asked)

    def configure(self, **hardening: Any) -> None:
        self.proxy.configure(config(**hardening))
        self.proxy.reload()
        taken = lambda: any(event["event"] == "config_taken" for event in self.proxy.events())  # noqa: E731
        wait_until(taken, WAIT_S, "the config to be taken", self.proxy.log)

    def refusal(self, **asked: Any) -> str:
        """What kubelet is answered, and so the pod's events say."""
        with pytest.raises(grpc.RpcError) as raised:
            self.run("offline", **asked)
        return str(raised.value.details())

    def add_key(self, container: Container) -> int:
        """0, or the errno."""
        said = self.client.exec_sync(container, ["/probe/keys-probe"]).stdout.decode()
        return int(said.split()[1])

    def capabilities(self, container: Container) -> set[str]:
        """Those of `NUMBERS` that its processes have."""
        done = self.client.exec_sync(container, ["cat", "/proc/self/status"])
        effective = next(line.split()[1] for line in done.stdout.decode().splitlines() if line.startswith("CapEff:"))
        return {name for name, number in NUMBERS.items() if int(effective, 16) >> number & 1}


@contextlib.contextmanager
def before(runtime: Containerd, config: Config, folder: Path) -> Iterator[Node]:
    proxy = Criproxy(runtime.directory, runtime.socket, config)
    proxy.log.unlink(missing_ok=True)
    proxy.start()
    with CriClient(proxy.socket) as through:
        yield Node(f"{cgroup_root(runtime.directory)}/hardening", proxy, through, folder)
    proxy.stop()


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe")
    subprocess.run(["cc", "-static", "-o", folder / "keys-probe", SOURCE], check=True)
    return folder


@pytest.fixture
def node(containerd: Containerd, client: CriClient, probe: Path) -> Iterator[Node]:
    with before(containerd, config(), probe) as node:
        yield node


def test_offline_container_can_not_fill_the_kernel_s_keys(node: Node) -> None:
    """As one of ordinary root could, which has no seccomp profile: then no container of the node's starts any more."""
    mounts = {Path("/probe"): node.folder}
    assert node.add_key(node.run("online", mounts=mounts)) == 0
    assert node.add_key(node.run("offline", mounts=mounts)) == errno.EPERM
    node.configure(seccomp=False)
    assert node.add_key(node.run("offline", mounts=mounts)) == 0


@pytest.mark.parametrize(
    ("asked", "had"),
    [
        pytest.param(("SYS_NICE",), {"NET_RAW"}, id="real-time"),
        pytest.param(("SYS_ADMIN", "NET_RAW"), {"NET_RAW"}, id="some"),
        pytest.param(("ALL",), {"NET_RAW"}, id="all"),
    ],
)
def test_offline_container_has_the_capabilities_of_the_list(node: Node, asked: tuple[str, ...], had: set[str]) -> None:
    assert node.capabilities(node.run("offline", capabilities=asked)) == had
    assert node.capabilities(node.run("online", capabilities=asked)) > had


def test_offline_container_that_could_leave_the_box_is_refused_with_the_reason(node: Node, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/sys/fs/cgroup")
    for paths, said in (
        ("/sys/fs/cgroup", "a hostPath volume of /sys/fs/cgroup, which leads to /sys"),
        ("/", "a hostPath volume of /, which leads to /sys"),
        (str(tmp_path / "link"), f"a hostPath volume of {tmp_path}/link, which leads to /sys"),
    ):
        assert said in node.refusal(mounts={Path("/host"): Path(paths)})
    assert "an offline pod may not have privileged" in node.refusal(privileged=True)
    node.run("online", mounts={Path("/host"): Path("/sys/fs/cgroup")}, privileged=True)


def test_bind_mount_of_a_refused_folder_is_refused(node: Node, tmp_path: Path) -> None:
    """As kubelet makes one of a volume's subPath."""
    seen = tmp_path / "seen"
    seen.mkdir()
    subprocess.run(["mount", "--bind", "/proc/sys", seen], check=True)
    try:
        assert "a file system of the kernel's, proc" in node.refusal(mounts={Path("/host"): seen})
    finally:
        subprocess.run(["umount", seen], check=True)


def test_pod_that_the_node_s_file_allows_has_it(node: Node) -> None:
    node.configure(allow=[{"label": CLASS, "equals": "offline"}])
    allowed = node.run("offline", mounts={Path("/host"): Path("/sys/fs/cgroup")}, privileged=True)
    assert node.capabilities(allowed) == set(NUMBERS)
