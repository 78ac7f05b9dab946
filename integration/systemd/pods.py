"""Offline pods on this node, and the box that they are in, as the systemd driver of kubelet and cgroup v2 name them."""

from pathlib import Path

from integration.lab import cri_client_pb2 as cri
from integration.lab.client import Container, CriClient
from integration.lab.criproxy import Config
from integration.lab.process import LabError, wait_until

CGROUP = Path("/sys/fs/cgroup")
BOX = CGROUP / "offline.slice"
LABELS = {"colocation.criproxy.io/class": "offline"}
CORES, BYTES = 0.5, 256 << 20
"""The box's limits in `STATIC`."""

STATIC: Config = {
    "colocation": {"enabled": True},
    "control": {"policy": "static"},
    "cpu": {"static_cores": CORES},
    "memory": {"static_bytes": BYTES},
    "guard": {"enabled": False},
}


def run_offline(client: CriClient, name: str, *, busy: bool = False) -> Container:
    """A BestEffort pod, as kubelet asks for it, that the default rule calls offline, with one container."""
    uid = f"{name}-uid"
    parent = f"kubepods-besteffort-pod{uid.replace('-', '_')}.slice"
    pod = client.run_pod(name, uid=uid, labels=LABELS, cgroup_parent=parent)
    command = ["sh", "-c", "while :; do :; done"] if busy else ["sleep", "2147483647"]
    resources = cri.LinuxContainerResources(cpu_period=100_000, cpu_shares=2, oom_score_adj=1000)
    container = client.create_container(pod, "main", command, resources=resources)
    client.start(container)
    return container


def cgroup_of(client: CriClient, container: Container) -> str:
    """Below the cgroup root."""
    return Path(f"/proc/{client.pid(container)}/cgroup").read_text().strip().removeprefix("0::")


def is_in_box(client: CriClient, container: Container) -> bool:
    return cgroup_of(client, container).startswith(f"/{BOX.name}/")


def is_bounded() -> bool:
    """Whether the kernel holds the box to `STATIC`."""
    quota, period = (BOX / "cpu.max").read_text().split()
    size = (BOX / "memory.max").read_text().strip()
    return quota != "max" and int(quota) / int(period) <= CORES * 1.01 and size != "max" and int(size) <= BYTES


def wait_bounded(timeout_s: float = 30) -> None:
    """Raises LabError when the box is not bounded in time."""

    def bounded() -> bool:
        try:
            return is_bounded()
        except FileNotFoundError:
            return False

    try:
        wait_until(bounded, timeout_s, "a bounded box", poll_s=0.2)
    except LabError as error:
        values = {name: (BOX / name).read_text().strip() for name in ("cpu.max", "memory.max") if BOX.exists()}
        raise LabError(f"{error}: {values}") from error
