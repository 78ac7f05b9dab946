"""The box, its pods and the anchors as systemd units: names and properties only, no I/O.

Source: systemd.resource-control(5); systemd.slice(5).
"""

from collections.abc import Mapping
from typing import Final

from criproxy.cgroup.driver import PodLimits
from criproxy.cgroup.files import CFS_PERIOD_US
from criproxy.model import CPU, MEMORY, UNLIMITED, Limits, type_unlimited
from criproxy.model.cpulist import mask_of

Value = bool | int | bytes | str
"""A property's value; its type in Python tells the one on the bus (`b`, `t`, `ay`, `s`)."""

Properties = Mapping[str, Value]

INFINITY: Final = (1 << 64) - 1
"""No limit, in properties that are counts."""

_CPU_IDLE: Final = 0
"""What CPUWeight=idle is on the bus."""

_ANCHOR: Final = "criproxy"


def standing_properties(version: int, *, cpu_idle: bool) -> Properties:
    """What the box's slice has besides limits: the lowest priority, and files in every controller.

    `cpu_idle`: the kernel has cpu.idle. Systemd does not know it on v1.
    """
    weight = _CPU_IDLE if cpu_idle else 1
    cpu = {"CPUShares": 2} if version == 1 else {"CPUWeight": weight}
    return {**_accounting("CPU", "Memory", "IO", "Tasks"), **cpu, "IOWeight": 1}


def pod_properties(version: int, limits: PodLimits) -> Properties:
    """What a pod's slice has; systemd knows no limits on huge pages."""
    weight = {"CPUShares": limits.cpu_weight or 2} if version == 1 else {"CPUWeight": limits.cpu_weight or 1}
    quota = {} if limits.cpu_cores is None else _quota_properties(limits.cpu_cores)
    pids = {} if limits.pids is None else pids_properties(limits.pids)
    memory = {} if limits.memory_bytes is None else {"MemoryMax": limits.memory_bytes}
    return {**_accounting("CPU", "Memory", "Tasks"), **weight, **quota, **pids, **memory}


def pids_properties(limit: int | type_unlimited) -> Properties:
    """The property that makes systemd write this limit on processes and threads."""
    return {"TasksMax": INFINITY if limit is UNLIMITED else limit}


def limit_properties(version: int, limits: Limits) -> Properties:
    """The properties that make systemd write these limits.

    MemoryHigh is never below MemoryMax, which the usage never exceeds: so systemd never waits for reclaim.
    """
    size = INFINITY if limits[MEMORY] is UNLIMITED else int(limits[MEMORY])
    cpu = _quota_properties(limits[CPU])
    if version == 1:
        return {**cpu, "MemoryMax": size}
    return {**cpu, "MemoryHigh": size, "MemoryMax": size, "MemorySwapMax": INFINITY if size == INFINITY else 0}


def _quota_properties(cores: float | type_unlimited) -> dict[str, int]:
    quota = INFINITY if cores is UNLIMITED else round(cores * 1_000_000)
    return {"CPUQuotaPerSecUSec": quota, "CPUQuotaPeriodUSec": CFS_PERIOD_US}


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
