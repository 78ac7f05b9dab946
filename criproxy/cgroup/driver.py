"""What the rest of criproxy asks of a cgroup hierarchy.

Every operation is level-triggered and idempotent: read, compare, write, verify. Each may block in the kernel, so all
are called from the threads of `cgroup.box`, never from the event loop. What changes anything is called from one thread,
but for what `memory` does.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct, field

from criproxy.cgroup.naming import directory_of, parse_box, parse_placement
from criproxy.model import LimitChange, Limits, Unlimited, Usage
from criproxy.model.cpulist import Cpus
from criproxy.model.signals import Missing, Stall

if TYPE_CHECKING:
    from criproxy.cgroup.access import FileAccess  # which raises the errors of this module

T = TypeVar("T")


class CgroupError(Exception):
    """A cgroup operation failed; the message names the file, the value and the kernel's errno (also in `errno`)."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


def no_cpus(box: str) -> CgroupError:
    """The error when a box is to run on no CPU at all."""
    return CgroupError(
        f"{box} keeps the CPUs that it has: kubelet's CPU manager has left none that is there to offline pods; leave "
        "some with --reserved-cpus, or run fewer pods with CPUs of their own"
    )


def all_done(jobs: Iterable[Callable[[], Iterable[LimitChange]]]) -> tuple[LimitChange, ...]:
    """What all of these have changed. One that fails keeps no other from being done, and the last failure is raised."""
    changes: list[LimitChange] = []
    failure: CgroupError | None = None
    for job in jobs:
        try:
            changes += job()
        except CgroupError as error:
            failure = error
    if failure is not None:
        raise failure
    return tuple(changes)


class HeldLimit(Struct, frozen=True, rename={"used": "current"}):
    """A limit that the kernel holds, in the unit of its row, and how much is in use (None: the kernel has no file)."""

    limit: int | float | Unlimited
    used: int | None


class PodLimits(Struct, frozen=True):
    """What one pod may have, as kubelet sets it on its own cgroup of the pod; None: leave alone.

    `cpu_weight` is in the unit of the kernel's file (v1: cpu.shares, v2: cpu.weight), and the lowest where it is None.
    `cpu_cores` is None on v1, where no child of the box can have a quota. `hugetlb`: files of that controller, by name.
    `protected`: reclaim within the box takes the others' memory first (v2 alone). `oom_group`: where the kernel kills
    one of the pod's processes for want of memory, it kills all of them (v2 alone).
    """

    memory_bytes: int | None = None
    cpu_weight: int | None = None
    cpu_cores: float | Unlimited | None = None
    pids: int | Unlimited | None = None
    hugetlb: Mapping[str, str] = field(default_factory=dict)
    protected: bool = False
    oom_group: bool = True


class ContainerLimits(Struct, frozen=True):
    """What a container in the box is to have where kubelet has given it nothing; None: leave alone.

    `cpu_weight` is in the unit of the kernel's file, and holds where the container has the lowest. The memory limit is
    in whole pages, and only ever takes away.
    """

    cpu_weight: int | None = None
    memory_bytes: int | None = None


class Reclaimable(Struct, frozen=True):
    """How much of a box's memory could be taken back, and for how long its processes have waited for memory."""

    size_bytes: int
    stall: Stall


class MemoryDriver(Protocol):
    """The kernel's reclaim: for a thread of its own, beside all other methods of a driver, as it may take long."""

    def reclaim(self, path: str, size_bytes: int) -> bool:
        """Lower a memory limit by one step towards `size_bytes`, which may take the kernel long, and kills nobody.

        On v2 it is memory.high.

        The next `write` takes it up. True: another step may help.
        `path`: the box, or a pod in it.
        """

    def reclaimable(self, box: str) -> Reclaimable | Missing:
        """What `take_back` goes by; Missing: the kernel can't take memory back on demand, or tells no pressure."""

    def take_back(self, box: str, size_bytes: int) -> int:
        """Take back so much of the box's memory, in one step, whatever its limits; returns by how much it fell."""

    def drop_cache(self, pod: str) -> int | None:
        """Take back some of the page cache that an ended pod has left; returns how many bytes that was.

        None: there is no more to take, the kernel can't, or a process is in the pod.
        """


class CgroupDriver(Protocol):
    """One hierarchy (cgroup v1 or v2). Paths (`box`, `pod`) are as in a cgroup_parent: below the root, or a slice.

    All methods raise CgroupError, also for a path that is not of the kind named; what "does not exist" means is said
    per method.
    """

    files: "FileAccess"
    """The kernel's files by their rows, for functions that need nothing else of a driver: what a feature reads itself,
    such as `disks.disk_use`. What systemd has a part in is not written through it.
    """

    memory: MemoryDriver
    """What reclaims memory."""

    version: int
    """Of cgroups; 0: the machine has none. On 2 alone, a child may carry a CPU quota of its own, whatever the box
    shrinks to (on 1 it is EINVAL).
    """

    def node_usage(self) -> Usage:
        """Usage of the whole node: the CPU time of all that runs, and the working set from /proc/meminfo."""

    def usage(self, path: str) -> Usage | None:
        """Usage of one cgroup, children included. None when it does not exist."""

    def exists(self, path: str) -> bool: ...

    def ensure(self, box: str, *, hands_off: bool = False) -> None:
        """Make the box in every controller; its priority and its limits are `write`'s matter.

        `hands_off`: one that is there keeps the priority that somebody has given it.
        """

    def read(self, box: str) -> Limits:
        """The limits that the kernel holds now, of the box or of a pod in it.

        MEMORY_HIGH is among them where it is below the limit.
        """

    def write(self, box: str, limits: Limits) -> tuple[LimitChange, ...]:
        """Make the kernel's limits and the lowest priority what they should be; returns what had to be written.

        Priority, CPU and memory are each settled, whatever becomes of the others. A file that this driver wrote before
        and that holds something else by now has drifted. Nothing here waits for memory: a limit below the usage is
        brought to just above the usage, and the rest is `reclaim`'s matter. So is MEMORY_HIGH below the usage, which
        leaves the limit alone; v1 has none.
        """

    def confine(self, path: str, cpus: Cpus | Unlimited) -> tuple[LimitChange, ...]:
        """Let the box, and all in it, run on these CPUs alone; UNLIMITED: on all that its parent has. Or a pod in it.

        What in the box was given CPUs of its own keeps them, as far as they are among these. Raises CgroupError also
        when none of them is there: then the box keeps what it has. A pod with a container that was given other CPUs is
        left on those that it has, on v2 on all that its containers were given. One that has gone is left alone.
        """

    def may_swap(self, box: str) -> bool:
        """Whether a limit on the box's memory sends some to swap, as the kernel does not count swap by cgroup."""

    def can_have(self, box: str, cpus: Cpus) -> Cpus:
        """Without those of these CPUs that are online, and on which the cgroup above the box does not run: a cpuset
        partition beside it has them, or nobody. Raises CgroupError when the box would have none that is online.
        """

    def capacity(self, box: str, name: str) -> int | None:
        """What the box can have of a resource of `kernel_files.LIMITS`; None: the kernel can't bound it.

        It is what the kernel allows the node, or kubelet its pods, or a cgroup above the box what is in it, whichever
        is least.
        """

    def write_limit(self, box: str, name: str, limit: Any) -> tuple[LimitChange, ...]:
        """Bound the box in a resource of `kernel_files.LIMITS`, in the unit of its row.

        Does nothing where the kernel can't. Of CPU, its limit in cores is set at once, and nothing else; the rest of
        `write` follows with the next tick.
        """

    def read_limit(self, path: str, name: str) -> HeldLimit | None:
        """The limit of a cgroup on a resource of `kernel_files.LIMITS`; None: the kernel can't bound it.

        Or that on CPU, in cores; None: the cgroup does not exist.
        """

    def ensure_pod(self, pod: str, limits: PodLimits) -> None:
        """Make a pod's cgroup in the box, with its own limits."""

    def settle_container(self, pod: str, container_id: str, limits: ContainerLimits) -> tuple[LimitChange, ...]:
        """Give a container of a pod in the box these limits; does nothing for one that has no cgroup (any more).

        A memory limit below the usage is brought to just above the usage: asked again, it goes on from there.
        """

    def pod_limits(self, path: str) -> PodLimits:
        """The limits of a pod, in kubelet's tree or in the box; those without a file are as in `PodLimits()`.

        Systemd may have switched off a controller in kubelet's, and what the others hold counts all the same.
        """

    def keep_anchors(self, box: str) -> tuple[str, ...]:
        """Keep what kubelet's own cgroups of the pods in the box need there; returns what was started or stopped.

        Only systemd on v2 needs any (see `anchor`).
        """

    def pods(self, box: str) -> tuple[str, ...]:
        """Names of the pod cgroups in the box, from every controller; empty when there is no box."""

    def remove_pod(self, pod: str) -> bool:
        """Remove a pod's cgroup and its empty children from every controller. False when a process is still in it."""

    def kill_pod(self, pod: str) -> None:
        """SIGKILL to every process in a pod's cgroup; they end in their own time."""


class AbsentDriver:
    """The `CgroupDriver` of a criproxy that can't have cgroups here: every operation fails with `reason`.

    So calls pass, and no offline pod is let in.
    """

    version = 0

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def exists(self, path: str) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        raise CgroupError(self.reason)


# --- paths that a driver may touch: boxes and the pods in them, and nothing else for writing --------------------------


def checked_box(path: str) -> str:
    """The directory of the box that `path` names, below the hierarchy's root. Raises CgroupError for another path."""
    return _checked(lambda: directory_of(parse_box(path).path))


def checked_pod(path: str) -> tuple[str, str]:
    """The directories of the box and of the pod in it that `path` names. Raises CgroupError for another path."""
    place = _checked(lambda: parse_placement(path))
    return directory_of(place.box.path), directory_of(place.in_box)


def is_box(path: str) -> bool:
    """Whether this is the path of a box; otherwise it is a pod's, or none of ours."""
    try:
        parse_box(path)
    except ValueError:
        return False
    return True


def checked_path(path: str) -> str:
    """The directory of any cgroup that does not climb: for reading only. Raises CgroupError otherwise."""
    return _checked(lambda: directory_of(path))


def _checked(parse: Callable[[], T]) -> T:
    try:
        return parse()
    except ValueError as error:
        raise CgroupError(str(error)) from error
