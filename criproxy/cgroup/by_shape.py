"""Chooses by the shape of a path how it is driven: `a-b.slice` through systemd, `/a/b` through files alone.

The shape is kubelet's, so that the choice is no option of ours; the kernel's version is `detect`'s matter.
"""

from criproxy.cgroup.driver import Capabilities, PodLimits
from criproxy.cgroup.places import is_slice
from criproxy.cgroup.systemd.anchor import Anchors
from criproxy.cgroup.systemd.driver import Files, SystemdDriver
from criproxy.model import LimitChange, Limits, Pids, Usage, type_unlimited
from criproxy.model.cpulist import Cpus


class ByShape:
    """A `CgroupDriver` for both shapes. `anchors` None: there is no need of any (v1)."""

    def __init__(self, kernel: Files, systemd: SystemdDriver, anchors: Anchors | None) -> None:
        self._kernel = kernel
        self._systemd = systemd
        self._anchors = anchors

    # --- where the shape decides -----------------------------------------------------------------------------------

    def ensure(self, box: str) -> None:
        (self._systemd if is_slice(box) else self._kernel).ensure(box)

    def write(self, box: str, limits: Limits) -> tuple[LimitChange, ...]:
        return (self._systemd if is_slice(box) else self._kernel).write(box, limits)

    def confine(self, box: str, cpus: Cpus | type_unlimited) -> tuple[LimitChange, ...]:
        return (self._systemd if is_slice(box) else self._kernel).confine(box, cpus)

    def squeeze(self, box: str, cores: float) -> tuple[LimitChange, ...]:
        return (self._systemd if is_slice(box) else self._kernel).squeeze(box, cores)

    def write_pids(self, box: str, ratio: float) -> tuple[LimitChange, ...]:
        return (self._systemd if is_slice(box) else self._kernel).write_pids(box, ratio)

    def ensure_pod(self, pod: str, limits: PodLimits) -> None:
        (self._systemd if is_slice(pod) else self._kernel).ensure_pod(pod, limits)

    def remove_pod(self, pod: str) -> bool:
        return (self._systemd if is_slice(pod) else self._kernel).remove_pod(pod)

    def keep_anchors(self, box: str) -> tuple[str, ...]:
        if self._anchors is None or not is_slice(box):
            return ()
        return self._anchors.keep(box, self._kernel.pods(box))

    # --- where it is the kernel's files, in either -----------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        return self._kernel.capabilities

    @property
    def root_cpuset(self) -> str | None:
        return self._kernel.root_cpuset

    @property
    def node_cpu_counter(self) -> str | None:
        return self._kernel.node_cpu_counter

    def node_usage(self) -> Usage:
        return self._kernel.node_usage()

    def usage(self, path: str) -> Usage | None:
        return self._kernel.usage(path)

    def exists(self, path: str) -> bool:
        return self._kernel.exists(path)

    def read(self, box: str) -> Limits:
        return self._kernel.read(box)

    def reclaim(self, path: str, size_bytes: int) -> bool:
        return self._kernel.reclaim(path, size_bytes)

    def read_pids(self, path: str) -> Pids | None:
        return self._kernel.read_pids(path)

    def pod_limits(self, path: str) -> PodLimits:
        return self._kernel.pod_limits(path)

    def cpu_counter(self, path: str) -> str:
        return self._kernel.cpu_counter(path)

    def pressure_file(self, path: str) -> str | None:
        return self._kernel.pressure_file(path)

    def pods(self, box: str) -> tuple[str, ...]:
        return self._kernel.pods(box)

    def kill_pod(self, pod: str) -> None:
        self._kernel.kill_pod(pod)

    def processes(self, path: str) -> tuple[int, ...]:
        return self._kernel.processes(path)
