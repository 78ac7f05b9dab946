"""What pods of the box use of CPU and memory, how long they wait for CPU, and what kubelet has set for them."""

import math
from collections.abc import Collection

from msgspec import Struct

from criproxy.cgroup import kernel_files as rows
from criproxy.cgroup.access import FileAccess
from criproxy.cgroup.driver import CgroupDriver, checked_path
from criproxy.cgroup.kernel_files import weight_of
from criproxy.cgroup.naming import PodParent
from criproxy.cgroup.pod_waiting import pods_cpu
from criproxy.cgroup.tree import if_there
from criproxy.model import LOWEST_SHARES, SHARES_OF_CORE
from criproxy.model.signals import PodCpuTimes


class PodCounters(Struct, frozen=True):
    """One pod at one moment. `memory_bytes`: its working set."""

    cpu: PodCpuTimes
    memory_bytes: int


class PodAsks(Struct, frozen=True):
    """What kubelet has set on its own cgroup of a pod; None: nothing.

    `cores`: the CPU request. On v2 it is known to 0.03 cores, as a weight is coarser than shares. `memory_bytes`: the
    memory limit, as no cgroup knows of a memory request.
    """

    cores: float | None = None
    memory_bytes: int | None = None


def pod_counters(files: FileAccess, pods: Collection[str]) -> dict[str, PodCounters]:
    """Of those of these pods (paths) that are there. Raises CgroupError."""
    found = {}
    for pod, cpu in pods_cpu(files, pods).items():
        with if_there():
            path = checked_path(pod)
            inactive_bytes, *_ = files.read(rows.MEMORY_PARTS, path)
            memory_bytes: int = files.read(rows.MEMORY_USAGE, path)
            found[pod] = PodCounters(cpu, max(0, memory_bytes - inactive_bytes))
    return found


def pod_asks(driver: CgroupDriver, places: Collection[PodParent]) -> dict[str, PodAsks]:
    """By the pods' paths in the box. Raises CgroupError."""
    return {place.in_box: _asks(driver, place) for place in places}


def _asks(driver: CgroupDriver, place: PodParent) -> PodAsks:
    for path in place.at_kubelet:
        with if_there():
            if driver.exists(path):
                limits = driver.pod_limits(path)
                return PodAsks(_cores(limits.cpu_weight, driver.version), limits.memory_bytes)
    return PodAsks()


def _cores(weight: int | None, version: int) -> float | None:
    """The CPU request of which kubelet made this weight; None: there is none.

    Source: kubelet, getCPUWeight, of which this is the inverse: the least shares that give the weight.
    """
    if weight is None or weight <= weight_of(LOWEST_SHARES, version):
        return None
    shares = weight if version == 1 else math.ceil((weight - 1) * 262142 / 9999) + 2
    return shares / SHARES_OF_CORE
