"""What no cgroup bounds is kept from offline containers, at a real runtime: keys, capabilities, the node's folders."""

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.lab.client import Container, CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import LETS_THE_LAB, Config, static
from integration.lab.node import CLASS, Node
from integration.lab.process import wait_until

WAIT_S = 60
SOURCE = Path(__file__).parent / "lab" / "keys-probe.c"
NUMBERS = {"NET_RAW": 13, "SYS_ADMIN": 21, "SYS_NICE": 23}
"""Source: capabilities(7); include/uapi/linux/capability.h."""


def config(**hardening: Any) -> Config:
    return static(0.5, hardening={"refuse_host_namespaces": LETS_THE_LAB["refuse_host_namespaces"], **hardening})


class Hardened(Node):
    """Containers of both classes; what they ask for is CriClient.create_container's."""

    def start(self, kind: str, *, privileged: bool = False, **asked: Any) -> Container:
        return self.run(kind, privileged=privileged, container={"privileged": privileged, **asked})

    def configure(self, **hardening: Any) -> None:
        before = len(self.proxy.events("config_taken"))
        self.proxy.configure(config(**hardening))
        self.proxy.reload()
        taken = lambda: len(self.proxy.events("config_taken")) > before  # noqa: E731
        wait_until(taken, WAIT_S, "the config to be taken", self.proxy.log)

    def refusal(self, **asked: Any) -> str:
        """What kubelet is answered, and so the pod's events say."""
        with pytest.raises(grpc.RpcError) as raised:
            self.start("offline", **asked)
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


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe")
    subprocess.run(["cc", "-static", "-o", folder / "keys-probe", SOURCE], check=True)
    return folder


@pytest.fixture
def node(containerd: Containerd, client: CriClient) -> Iterator[Hardened]:
    with Hardened.before(containerd, config()) as node:
        yield node


def test_offline_container_can_not_fill_the_kernel_s_keys(node: Hardened, probe: Path) -> None:
    """As one of ordinary root could, which has no seccomp profile: then no container of the node's starts any more."""
    mounts = {Path("/probe"): probe}
    assert node.add_key(node.start("online", mounts=mounts)) == 0
    assert node.add_key(node.start("offline", mounts=mounts)) == errno.EPERM
    node.configure(seccomp=False)
    assert node.add_key(node.start("offline", mounts=mounts)) == 0


@pytest.mark.parametrize(
    ("asked", "had"),
    [
        pytest.param(("SYS_NICE",), {"NET_RAW"}, id="real-time"),
        pytest.param(("SYS_ADMIN", "NET_RAW"), {"NET_RAW"}, id="some"),
        pytest.param(("ALL",), {"NET_RAW"}, id="all"),
    ],
)
def test_offline_container_has_the_capabilities_of_the_list(
    node: Hardened, asked: tuple[str, ...], had: set[str]
) -> None:
    assert node.capabilities(node.start("offline", capabilities=asked)) == had
    assert node.capabilities(node.start("online", capabilities=asked)) > had


def test_offline_container_that_could_leave_the_box_is_refused_with_the_reason(node: Hardened, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/sys/fs/cgroup")
    for paths, said in (
        ("/sys/fs/cgroup", "a hostPath volume of /sys/fs/cgroup, which leads to /sys"),
        ("/", "a hostPath volume of /, which leads to /sys"),
        (str(tmp_path / "link"), f"a hostPath volume of {tmp_path}/link, which leads to /sys"),
    ):
        assert said in node.refusal(mounts={Path("/host"): Path(paths)})
    assert "an offline pod may not have privileged" in node.refusal(privileged=True)
    node.configure(writable_host_paths=[str(tmp_path / "lent")])
    (tmp_path / "lent").mkdir()
    node.start("offline", mounts={Path("/host"): tmp_path / "lent"})
    assert f"a writable hostPath volume of {tmp_path}, as" in node.refusal(mounts={Path("/host"): tmp_path})
    node.start("online", mounts={Path("/host"): Path("/sys/fs/cgroup")}, privileged=True)


def test_offline_pod_with_a_port_of_the_node_s_is_refused(node: Hardened) -> None:
    with pytest.raises(grpc.RpcError, match="an offline pod may not have hostPort 10250"):
        node.run_pod("offline", host_port=10250)
    node.run_pod("online", host_port=10250)


def test_offline_container_that_sees_all_of_proc_can_not_write_the_node_s_settings(node: Hardened) -> None:
    """As procMount: Unmasked, the lab masks nothing."""
    settings = ["sh", "-c", ": >> /proc/sys/kernel/core_pattern"]
    keys = ["grep", "-q", ".", "/proc/keys"]
    for kind, written in (("online", 0), ("offline", 1)):
        container = node.start(kind)
        assert node.client.exec_sync(container, settings).exit_code == written, "opened, and nothing written"
        assert node.client.exec_sync(container, keys).exit_code == written
    node.configure(proc_mount=False)
    assert node.client.exec_sync(node.start("offline"), settings).exit_code == 0


def test_bind_mount_of_a_refused_folder_is_refused(node: Hardened, tmp_path: Path) -> None:
    """As kubelet makes one of a volume's subPath."""
    seen = tmp_path / "seen"
    seen.mkdir()
    subprocess.run(["mount", "--bind", "/proc/sys", seen], check=True)
    try:
        assert "a file system of the kernel's, proc" in node.refusal(mounts={Path("/host"): seen})
    finally:
        subprocess.run(["umount", seen], check=True)


def test_pod_that_the_node_s_file_allows_has_it(node: Hardened) -> None:
    node.configure(allow=[{"label": CLASS, "equals": "offline"}])
    allowed = node.start("offline", mounts={Path("/host"): Path("/sys/fs/cgroup")}, privileged=True)
    assert node.capabilities(allowed) == set(NUMBERS)
