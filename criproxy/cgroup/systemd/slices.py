"""The box, its pods and the anchors as systemd units: names and properties only, no I/O.

Source: systemd.resource-control(5); systemd.slice(5).
"""

from typing import Final

from criproxy.cgroup import kernel_files as rows
from criproxy.cgroup.driver import PodLimits
from criproxy.cgroup.kernel_files import Properties, properties
from criproxy.model import CPU, MEMORY, UNLIMITED, Limits
from criproxy.model.cpulist import mask_of

_ANCHOR: Final = "criproxy"


def priority_properties(version: int, *, cpu_idle: bool) -> Properties:
    """What the box's slice has besides limits: the lowest priority, and files in every controller.

    `cpu_idle`: the kernel has cpu.idle. Systemd does not know it on v1.
    """
    weight = {rows.CPU_WEIGHT: 2} if version == 1 else {rows.CPU_IDLE: True} if cpu_idle else {rows.CPU_WEIGHT: 1}
    return {**_accounting("CPU", "Memory", "IO", "Tasks"), **properties(version, {**weight, rows.IO_WEIGHT: 1})}


def pod_properties(version: int, limits: PodLimits) -> Properties:
    """What a pod's slice has; systemd knows no limits on huge pages."""
    values = {
        rows.CPU_WEIGHT: limits.cpu_weight or (2 if version == 1 else 1),
        rows.CPU_QUOTA: limits.cpu_cores,
        rows.PIDS_MAX: limits.pids,
        rows.MEMORY_MAX: limits.memory_bytes,
    }
    return {**_accounting("CPU", "Memory", "Tasks"), **properties(version, values)}


def limit_properties(version: int, limits: Limits) -> Properties:
    """The properties that make systemd write these limits.

    MemoryHigh is never below MemoryMax, which the usage never exceeds: so systemd never waits for reclaim.
    """
    cores, size = limits[CPU], limits[MEMORY]
    swap = UNLIMITED if size is UNLIMITED else 0
    return properties(
        version, {rows.CPU_QUOTA: cores, rows.MEMORY_HIGH: size, rows.MEMORY_MAX: size, rows.SWAP_MAX: swap}
    )


def _accounting(*names: str) -> dict[str, bool]:
    return {f"{name}Accounting": True for name in names}


def anchor_of(parent: str) -> str:
    """The slice that keeps the cpuset controller on for the pods of kubelet's slice `parent`."""
    return f"{parent.removesuffix('.slice')}-{_ANCHOR}.slice"


def pod_in(parent: str, pod: str) -> str:
    """Kubelet's own slice of the pod `pod` in its slice `parent`."""
    return f"{parent.removesuffix('.slice')}-{pod}.slice"


def cpu_mask(cpus: str) -> bytes:
    """The first CPU of a list ("2-3,6") as AllowedCPUs= is on the bus.

    Raises ValueError when there is none.
    """
    return mask_of({int(cpus.partition(",")[0].partition("-")[0])})
