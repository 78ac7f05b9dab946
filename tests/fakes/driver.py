"""A `CgroupDriver` in memory: keeps what was asked in order, fails or blocks when told to."""

import contextlib
import errno
import threading
from collections.abc import Collection, Mapping

from criproxy.cgroup.counter import CpuTimes
from criproxy.cgroup.driver import CgroupError, ContainerLimits, CpuUse, HeldLimit, PodLimits, Reclaimable
from criproxy.cgroup.naming import parse_box, parse_placement
from criproxy.model import UNLIMITED, LimitChange, Limits, Unlimited, Usage
from criproxy.model.cpulist import Cpus, format_cpus
from criproxy.model.signals import DiskRate, Missing


class FakeDriver:
    """`fail_on` names methods that raise; while `gate` is clear, `write` blocks as in the kernel.

    While `reclaim_gate` is clear, so does `reclaim`. What `in_use` says can't be brought below by `write`.
    """

    version = 2

    def __init__(self) -> None:
        self.log: list[tuple[str, ...]] = []
        self.boxes: dict[str, Limits] = {}
        self.pods_in: dict[str, dict[str, PodLimits]] = {}
        self.containers: dict[str, ContainerLimits] = {}
        self.unsettled: set[str] = set()
        self.stubborn: set[str] = set()
        self.caches: dict[str, int] = {}
        self.kubelets: dict[str, PodLimits] = {}
        self.limits: dict[tuple[str, str], float | Unlimited] = {}
        self.cpus: dict[str, Cpus | Unlimited] = {}
        self.pins: dict[str, Cpus | None] = {}
        self.idle_s: dict[int, float] = {}
        self.used_s: dict[str, float] = {}
        self.busy: set[str] = set()
        self.fail_on: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.writing = threading.Event()
        self.reclaim_gate = threading.Event()
        self.reclaim_gate.set()
        self.reclaiming = threading.Event()
        self.in_use = 0
        self.disk_bytes: dict[str, int] = {}
        self.threads: dict[str, set[str]] = {}
        self.drifted = False
        self.anchors: tuple[str, ...] = ()
        self.counters = "/nowhere"
        self.counts_the_node = False
        self.root_cpuset: str | None = None

    def _call(self, name: str, *arguments: str) -> None:
        self.threads.setdefault(name, set()).add(threading.current_thread().name)
        if name in self.fail_on:
            raise CgroupError(f"cannot {name}: EIO")
        self.log.append((name, *arguments))

    def node_usage(self) -> Usage:
        self._call("node_usage")
        return Usage(10.0, 1000)

    def usage(self, path: str) -> Usage | None:
        self._call("usage", path)
        return Usage(1.0, 100, memory_bytes=self.in_use) if path in self.boxes else None

    def hold_disks(self, box: str, wanted: Mapping[str, DiskRate]) -> tuple[LimitChange, ...]:
        self._call("hold_disks", box, *wanted)
        return ()

    def disk_use(self, path: str) -> int | None:
        self._call("disk_use", path)
        return self.disk_bytes.get(path)

    def exists(self, path: str) -> bool:
        if path in self.boxes or path in self.kubelets:
            return True
        with contextlib.suppress(ValueError):
            place = parse_placement(path)
            return place.name in self.pods_in.get(place.box.path, {})
        return False

    def ensure(self, box: str) -> None:
        self._call("ensure", box)
        self.boxes.setdefault(box, {"cpu": UNLIMITED, "memory": UNLIMITED})
        self.pods_in.setdefault(box, {})

    def read(self, box: str) -> Limits:
        if box not in self.boxes:
            raise CgroupError(f"cannot read {box}: ENOENT", errno.ENOENT)
        return self.boxes[box]

    def write(self, box: str, limits: Limits) -> tuple[LimitChange, ...]:
        self._call("write", box)
        self.writing.set()
        self.gate.wait()
        old, size = self.boxes[box], limits["memory"]
        if size is not UNLIMITED and size < self.in_use:
            limits = {"cpu": limits["cpu"], "memory": self.in_use}
        self.boxes[box] = limits
        return () if old == limits else (LimitChange("cpu.max", str(old), str(limits), self.drifted),)

    def confine(self, box: str, cpus: Cpus | Unlimited) -> tuple[LimitChange, ...]:
        """What is asked for is kept in `cpus`."""
        if cpus is UNLIMITED and box not in self.cpus:
            return ()
        self._call("confine", box, str(cpus) if cpus is UNLIMITED else format_cpus(cpus))
        self.cpus[box] = cpus
        return ()

    def pin(self, pod: str, cpus: Cpus | None) -> tuple[LimitChange, ...]:
        old = self.pins.get(pod)
        if old == cpus:
            return ()
        self._call("pin", pod, "all" if cpus is None else format_cpus(cpus))
        self.pins[pod] = cpus
        return (LimitChange("cpuset.cpus", str(old), str(cpus), drift=False),)

    def cpu_use(self, box: str, pods: Collection[str]) -> CpuUse:
        self._call("cpu_use", box)
        return CpuUse(frozenset(self.idle_s), dict(self.idle_s), {pod: self.used_s.get(pod, 0.0) for pod in pods})

    def cpu_limit(self, path: str) -> float | Unlimited | None:
        self._call("cpu_limit", path)
        held = self.kubelets.get(path)
        return None if held is None else UNLIMITED if held.cpu_cores is None else held.cpu_cores

    def squeeze(self, box: str, cores: float) -> tuple[LimitChange, ...]:
        self._call("squeeze", box, str(cores))
        old = self.boxes[box]
        self.boxes[box] = {"cpu": cores, "memory": old["memory"]}
        return (LimitChange("cpu.max", str(old["cpu"]), str(cores), self.drifted),)

    def reclaim(self, path: str, size_bytes: int) -> bool:
        self._call("reclaim", path, str(size_bytes))
        self.reclaiming.set()
        self.reclaim_gate.wait()
        self.in_use = min(self.in_use, size_bytes)
        return False

    def reclaimable(self, box: str) -> Reclaimable | Missing:
        return Missing("it is a fake")

    def take_back(self, box: str, size_bytes: int) -> int:
        self._call("take_back", box, str(size_bytes))
        return size_bytes

    def drop_cache(self, pod: str) -> int | None:
        """A unit of what `caches` has for the pod, by name, each time."""
        self._call("drop_cache", pod)
        self.reclaim_gate.wait()
        name = parse_placement(pod).name
        if name in self.busy or not self.caches.get(name):
            return None
        self.caches[name] -= 1
        return 1

    def cpu_times(self, box: str) -> CpuTimes:
        node = "" if self.counts_the_node else parse_box(box).online
        files = (f"{self.counters}{path}/cpu.stat" for path in (node, box))
        return CpuTimes(*files, whole=self.counts_the_node)

    def pressure_file(self, path: str) -> str | None:
        return f"{path}/cpu.pressure"

    def capacity(self, box: str, name: str) -> int | None:
        return 1000

    def write_limit(self, box: str, name: str, limit: float | Unlimited) -> tuple[LimitChange, ...]:
        self._call("write_limit", box, name)
        old, self.limits[box, name] = self.limits.get((box, name)), limit
        return () if old == limit else (LimitChange(f"{name}.max", str(old), str(limit), self.drifted),)

    def read_limit(self, path: str, name: str) -> HeldLimit | None:
        return HeldLimit(self.limits.get((path, name), 1000), 7)

    def ensure_pod(self, pod: str, limits: PodLimits) -> None:
        self._call("ensure_pod", pod)
        if pod in self.stubborn:
            raise CgroupError(f"cannot write {pod}: EBUSY")
        place = parse_placement(pod)
        self.pods_in[place.box.path][place.name] = limits

    def settle_container(self, pod: str, container_id: str, limits: ContainerLimits) -> tuple[LimitChange, ...]:
        self._call("settle_container", pod, container_id)
        if container_id in self.unsettled:
            raise CgroupError(f"{container_id}: EIO")
        if self.containers.get(container_id) == limits:
            return ()
        self.containers[container_id] = limits
        return (LimitChange(f"{pod}/{container_id}", "", str(limits), drift=False),)

    def pod_limits(self, path: str) -> PodLimits:
        if path in self.kubelets:
            return self.kubelets[path]
        place = parse_placement(path)
        return self.pods_in[place.box.path][place.name]

    def keep_anchors(self, box: str) -> tuple[str, ...]:
        self._call("keep_anchors", box)
        return self.anchors

    def pods(self, box: str) -> tuple[str, ...]:
        return tuple(sorted(self.pods_in.get(box, {})))

    def remove_pod(self, pod: str) -> bool:
        self._call("remove_pod", pod)
        place = parse_placement(pod)
        if place.name in self.busy:
            return False
        del self.pods_in[place.box.path][place.name]
        return True

    def kill_pod(self, pod: str) -> None:
        self._call("kill_pod", pod)
        self.busy -= {parse_placement(pod).name}

    def processes(self, path: str) -> tuple[int, ...]:
        return ()
