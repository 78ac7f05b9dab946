"""A `CgroupDriver` in memory: keeps what was asked in order, fails or blocks when told to."""

import contextlib
import errno
import threading
from typing import Any

from criproxy.cgroup import kernel_files as rows
from criproxy.cgroup.driver import CgroupError, ContainerLimits, HeldLimit, MemoryDriver, PodLimits, Reclaimable, is_box
from criproxy.cgroup.kernel_files import KernelFile
from criproxy.cgroup.naming import parse_placement
from criproxy.cgroup.tree import TICKS_PER_S
from criproxy.model import CPU, UNLIMITED, LimitChange, Limits, Unlimited, Usage
from criproxy.model.cpulist import Cpus, format_cpus
from criproxy.model.signals import Missing


class FakeFiles:
    """Of the kernel's files, those that are read without any other help of the driver."""

    def __init__(self, driver: "FakeDriver") -> None:
        self._driver = driver
        self.tree = self

    @property
    def version(self) -> int:
        return 1 if self._driver.counts_the_node else self._driver.version

    def file(self, row: KernelFile, path: str) -> str:
        return f"{self._driver.counters}{path}/{'cpu.stat' if row is rows.CPU_USAGE else 'cpu.pressure'}"

    def read(self, row: KernelFile, path: str) -> Any:
        if row is rows.EFFECTIVE_CPUS:
            return frozenset(self._driver.idle_s)
        if row is rows.CPU_PRESSURE:
            return {"some": self._driver.waited_s.get(path, 0.0)}
        if row is rows.MEMORY_PARTS:
            return 0, 0, 0
        if row is rows.MEMORY_USAGE:
            return self._driver.memory_bytes.get(path, 0)
        used_s = self._driver.used_s.get(path, 0.0)
        return used_s * 1e9 if self.version == 1 else {"usage_usec": used_s * 1e6}

    def read_often(self, file: str) -> str:
        """/proc/stat."""
        return "".join(
            f"cpu{cpu} 0 0 0 {idle_s * TICKS_PER_S:.0f} 0 0\n" for cpu, idle_s in self._driver.idle_s.items()
        )

    def read_if_there(self, row: KernelFile, path: str) -> Any:
        """cpu.idle; io.stat: of one disk."""
        if row is rows.CPU_IDLE:
            return self._driver.idle
        size_bytes = self._driver.disk_bytes.get(path)
        return None if size_bytes is None else {"8:0": {"rbytes": str(size_bytes)}}


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
        self.waited_s: dict[str, float] = {}
        self.busy: set[str] = set()
        self.fail_on: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.writing = threading.Event()
        self.reclaim_gate = threading.Event()
        self.reclaim_gate.set()
        self.reclaiming = threading.Event()
        self.in_use = 0
        self.memory_bytes: dict[str, int] = {}
        self.disk_bytes: dict[str, int] = {}
        self.threads: dict[str, set[str]] = {}
        self.drifted = False
        self.anchors: tuple[str, ...] = ()
        self.counters = "/nowhere"
        self.counts_the_node = False
        self.memory: MemoryDriver = self
        self.idle: bool | None = True
        self.swaps = False
        self.files: Any = FakeFiles(self)

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

    def exists(self, path: str) -> bool:
        if path in self.boxes or path in self.kubelets:
            return True
        with contextlib.suppress(ValueError):
            place = parse_placement(path)
            return place.name in self.pods_in.get(place.box.path, {})
        return False

    def ensure(self, box: str, *, hands_off: bool = False) -> None:
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

    def may_swap(self, box: str) -> bool:
        return self.swaps

    def can_have(self, box: str, cpus: Cpus) -> Cpus:
        return cpus

    def confine(self, path: str, cpus: Cpus | Unlimited) -> tuple[LimitChange, ...]:
        """What is asked for is kept in `cpus`, and of pods in `pins`."""
        if not is_box(path):
            return self._pin(path, None if cpus is UNLIMITED else cpus)
        box = path
        if cpus is UNLIMITED and box not in self.cpus:
            return ()
        self._call("confine", box, str(cpus) if cpus is UNLIMITED else format_cpus(cpus))
        self.cpus[box] = cpus
        return ()

    def _pin(self, pod: str, cpus: Cpus | None) -> tuple[LimitChange, ...]:
        old = self.pins.get(pod)
        if old == cpus:
            return ()
        self._call("pin", pod, "all" if cpus is None else format_cpus(cpus))
        self.pins[pod] = cpus
        return (LimitChange("cpuset.cpus", str(old), str(cpus), drift=False),)

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

    def capacity(self, box: str, name: str) -> int | None:
        return 1000

    def write_limit(self, box: str, name: str, limit: float | Unlimited) -> tuple[LimitChange, ...]:
        if name == CPU:
            return self._squeeze(box, limit)
        self._call("write_limit", box, name)
        old, self.limits[box, name] = self.limits.get((box, name)), limit
        return () if old == limit else (LimitChange(f"{name}.max", str(old), str(limit), self.drifted),)

    def _squeeze(self, box: str, cores: float | Unlimited) -> tuple[LimitChange, ...]:
        self._call("squeeze", box, str(cores))
        old = self.boxes[box]
        self.boxes[box] = {"cpu": cores, "memory": old["memory"]}
        return (LimitChange("cpu.max", str(old["cpu"]), str(cores), self.drifted),)

    def read_limit(self, path: str, name: str) -> HeldLimit | None:
        if name == CPU:
            self._call("cpu_limit", path)
            held = self.kubelets.get(path)
            return None if held is None else HeldLimit(UNLIMITED if held.cpu_cores is None else held.cpu_cores, None)
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
