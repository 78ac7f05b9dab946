"""Offline pods on this node, and the box that they are in, as the systemd driver of kubelet names them."""

from pathlib import Path

from integration.lab import cri_client_pb2 as cri
from integration.lab.cgroups import version
from integration.lab.client import Container, CriClient
from integration.lab.criproxy import LETS_THE_LAB, static
from integration.lab.process import LabError, wait_until

V1 = version() == 1
BOX = "offline.slice"
CPU, MEMORY = (Path("/sys/fs/cgroup", controller if V1 else "", BOX) for controller in ("cpu", "memory"))
"""The box's directories."""

_MEMORY = "memory" if V1 else ""

LABELS = {"colocation.criproxy.io/class": "offline"}
CORES, BYTES = 0.5, 256 << 20
"""The box's limits in `STATIC`."""

STATIC = static(CORES, BYTES, hardening=LETS_THE_LAB)


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
    """Below the cgroup root, or that of v1's memory hierarchy."""
    lines = Path(f"/proc/{client.pid(container)}/cgroup").read_text().splitlines()
    return next(path for _, controllers, path in (line.split(":", 2) for line in lines) if controllers == _MEMORY)


def is_in_box(client: CriClient, container: Container) -> bool:
    return cgroup_of(client, container).startswith(f"/{BOX}/")


def is_bounded() -> bool:
    """Whether the kernel holds the box to `STATIC`."""
    if V1:
        quota, period = ((CPU / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        size = (MEMORY / "memory.limit_in_bytes").read_text()
    else:
        quota, period = (CPU / "cpu.max").read_text().split()
        size = (MEMORY / "memory.max").read_text().strip()
    if quota.strip() in ("max", "-1") or size == "max":
        return False
    return int(quota) / int(period) <= CORES * 1.01 and int(size) <= BYTES


def lift_quota() -> None:
    """As somebody else would: past criproxy and systemd."""
    if V1:
        (CPU / "cpu.cfs_quota_us").write_text("-1")
    else:
        (CPU / "cpu.max").write_text("max 100000")


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
        files = [
            *CPU.glob("cpu.max"),
            *CPU.glob("cpu.cfs_*"),
            *MEMORY.glob("memory.max"),
            *MEMORY.glob("memory.limit*"),
        ]
        raise LabError(f"{error}: { ({file.name: file.read_text().strip() for file in files}) }") from error
