"""Stands in for a hierarchy on a machine where none was found: calls pass, and no offline pod is let in."""

from typing import NoReturn

from criproxy.cgroup.driver import Capabilities, CgroupError, PodLimits
from criproxy.model import LimitChange, Limits, Pids, Usage, type_unlimited
from criproxy.model.cpulist import Cpus


class AbsentDriver:
    """A CgroupDriver whose every operation fails with `reason`."""

    capabilities = Capabilities(version=0, cpu_idle=False, child_quota=False)
    root_cpuset = None

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def exists(self, path: str) -> bool:
        return False

    def node_usage(self) -> Usage:
        self._fail()

    def usage(self, path: str) -> Usage | None:
        self._fail()

    def ensure(self, box: str) -> None:
        self._fail()

    def read(self, box: str) -> Limits:
        self._fail()

    def write(self, box: str, limits: Limits) -> tuple[LimitChange, ...]:
        self._fail()

    def reclaim(self, path: str, size_bytes: int) -> bool:
        self._fail()

    def confine(self, box: str, cpus: Cpus | type_unlimited) -> tuple[LimitChange, ...]:
        self._fail()

    def squeeze(self, box: str, cores: float) -> tuple[LimitChange, ...]:
        self._fail()

    def write_pids(self, box: str, ratio: float) -> tuple[LimitChange, ...]:
        self._fail()

    def read_pids(self, path: str) -> Pids | None:
        self._fail()

    @property
    def node_cpu_counter(self) -> str | None:
        self._fail()

    def cpu_counter(self, path: str) -> str:
        self._fail()

    def pressure_file(self, path: str) -> str | None:
        return None

    def ensure_pod(self, pod: str, limits: PodLimits) -> None:
        self._fail()

    def pod_limits(self, path: str) -> PodLimits:
        self._fail()

    def keep_anchors(self, box: str) -> tuple[str, ...]:
        self._fail()

    def pods(self, box: str) -> tuple[str, ...]:
        self._fail()

    def remove_pod(self, pod: str) -> bool:
        self._fail()

    def kill_pod(self, pod: str) -> None:
        self._fail()

    def processes(self, path: str) -> tuple[int, ...]:
        self._fail()

    def _fail(self) -> NoReturn:
        raise CgroupError(self._reason)
