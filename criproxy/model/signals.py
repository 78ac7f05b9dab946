"""What is read from the kernel about harm to online: counters and states as they are, before any arithmetic.

`cgroup.signals` reads them, `control.interference.signals` makes values of two readings. All counters only grow, but
for one that begins anew, as its cgroup, thread or disk has. Each `read_s` is CLOCK_MONOTONIC, just after that read.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct


class Missing(Struct, frozen=True):
    """What could not be read, and why: a sentence for an operator, without its full stop."""

    why: str


class Stall(Struct, frozen=True):
    """For how long some task waited for a resource (PSI), since the cgroup was made.

    Source: Documentation/accounting/psi.rst.
    """

    read_s: float
    some_s: float


class Throttling(Struct, frozen=True):
    """One cgroup. `throttled_s`: how long its own CPU limit stopped it, added up over the CPUs.

    `usage_s` is its CPU time; None: not read (v1).
    """

    throttled_s: float
    usage_s: float | None = None


class OwnLimits(Struct, frozen=True):
    """`of` each cgroup of online's, by its path. `online_s` is the CPU time of all of them; None: not read (v1).

    `complete`: there were no more cgroups than one reading looks at.
    """

    read_s: float
    of: Mapping[str, Throttling]
    online_s: float | None = None
    complete: bool = True


class PodStall(Struct, frozen=True):
    """An online pod's cgroup, and for how long some thread in it waited for CPU; None: there is no pressure here."""

    path: str
    cpu: Stall | None = None


class ThreadTimes(Struct, frozen=True):
    """A thread of the cgroup `cgroup`: for how long it has run, and has waited on a run queue to be run."""

    cgroup: str
    ran_s: float
    waited_s: float


class PodCpuTimes(Struct, frozen=True):
    """Counters of one pod: CPU seconds that it used, and for how long somebody waited.

    `waited_s`: by thread, of those that were looked at; 0: of some thread or other (PSI), which tells of all of them.
    """

    used_s: float
    waited_s: Mapping[int, float]


class RunQueue(Struct, frozen=True):
    """A sample of online's `threads`, by thread id. Growth is of those that are in two readings that follow."""

    read_s: float
    threads: Mapping[int, ThreadTimes]


class MemoryRoom(Struct, frozen=True):
    """The node's memory in bytes. `available` is the kernel's MemAvailable; None: this kernel does not say.

    `kubelets_available` is what kubelet compares with its thresholds: the capacity less the node's working set.
    """

    capacity: int
    available: int | None
    kubelets_available: int


class PidsRoom(Struct, frozen=True):
    """The node's processes and threads: how many there are, and how many there can be at most."""

    used: int
    most: int


class MemoryStat(Struct, frozen=True):
    """What the `file` memory.stat says of online and all that is in it, by the names of cgroup v2.

    Source: Documentation/admin-guide/cgroup-v2.rst, memory.stat.
    """

    read_s: float
    of: Mapping[str, int]
    file: str = "memory.stat"


class DiskIo(Struct, frozen=True):
    """What was read from and written to a disk. `operations` are counted as asked for, before any are merged."""

    size_bytes: int
    operations: int


class DiskRate(Struct, frozen=True):
    """What a disk does, or may do: of reads and writes together, or of each of them where it is a limit."""

    bytes_per_s: float
    operations_per_s: float

    @property
    def whole(self) -> "DiskRate":
        """As the kernel takes it: at least one of each."""
        return DiskRate(max(1, int(self.bytes_per_s)), max(1, int(self.operations_per_s)))

    def of(self, other: "DiskRate", law: Callable[[float, float], float]) -> "DiskRate":
        """A law of two numbers, for each of the two."""
        return DiskRate(law(self.bytes_per_s, other.bytes_per_s), law(self.operations_per_s, other.operations_per_s))


class DiskCounters(Struct, frozen=True):
    """By the disk's number (`8:0`): all its IO (`node`), and that of the box. `names` are those in /dev."""

    read_s: float
    node: Mapping[str, DiskIo]
    box: Mapping[str, DiskIo]
    names: Mapping[str, str]


class Work(Struct, frozen=True):
    """What a pod's threads have done on all CPUs, while it was counted."""

    cycles: int
    instructions: int


class WorkReading(Struct, frozen=True):
    """`of` each online pod that is counted, by its uid."""

    read_s: float
    of: Mapping[str, Work]


class CpuSpent(Struct, frozen=True):
    """CPU time in s, of all CPUs together: what all have used, what of that the pods of kubelet's cgroup, which are
    online's, and the box; and what the hypervisor has given to other machines (`steal_s`).
    """

    read_s: float
    busy_s: float
    online_s: float
    box_s: float
    steal_s: float
    cpus: int


NOT_READ: Final = Missing("it was not read")


class SignalReading(Struct, frozen=True):
    """One reading of all signals; `NOT_READ` stands for what was not. `cpu`, `memory` and `io` are pressure of
    kubepods, which is online's alone.

    `disk_limits` are those that the kernel holds the box to, by the disk's number; None: one that is not criproxy's.
    `pods`: online's pods, by uid. `own_limits` and `work` None: not asked for. `cpu_idle`: the box has it, so that the
    kernel runs it only while nobody else wants to.
    """

    cpu: Stall | Missing = NOT_READ
    memory: Stall | Missing = NOT_READ
    io: Stall | Missing = NOT_READ
    run_queue: RunQueue | Missing = NOT_READ
    room: MemoryRoom | Missing = NOT_READ
    memory_stat: MemoryStat | Missing = NOT_READ
    disks: DiskCounters | Missing = NOT_READ
    pids: PidsRoom | Missing = NOT_READ
    cpu_use: CpuSpent | Missing = NOT_READ
    own_limits: OwnLimits | Missing | None = None
    pods: Mapping[str, PodStall] | Missing = {}
    cpu_idle: bool = False
    disk_limits: Mapping[str, DiskRate | None] | Missing = NOT_READ
    work: WorkReading | Missing | None = None

    @classmethod
    def without(cls, why: Missing, **known: Any) -> "SignalReading":
        """One in which no signal is known but `known`, and why that is so."""
        unknown = cls.__struct_fields__[: cls.__struct_fields__.index("own_limits")]
        return cls(**{**dict.fromkeys(unknown, why), **known})
