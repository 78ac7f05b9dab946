"""The values that both streams speak: frozen, pure, units in their names.

`None` means "leave alone" or "not known"; no bound at all is `UNLIMITED`. The kernel's and CRI's own spellings
(-1, 0, "max") exist only inside drivers and the codec.
"""

import enum
from collections.abc import Mapping
from typing import Final, Literal, Protocol

from msgspec import Struct, field

from criproxy.vocabulary.names import PLACEMENT

PLACEMENT_ANNOTATION: Final = PLACEMENT
"""Set on the sandbox of a placed pod; its value is the pod's cgroup_parent in the box."""


class Unlimited(enum.StrEnum):
    """The type of `UNLIMITED`, which people and JSON read as its value."""

    UNLIMITED = "unlimited"


UNLIMITED: Final = Unlimited.UNLIMITED

NO_LIMIT_BYTES: Final = 1 << 62
"""A limit on memory from here on is none: v1's kernel shows none as the most whole pages that it counts, and kubelet
sends that number on. Source: Linux, include/linux/page_counter.h, PAGE_COUNTER_MAX.
"""


# --- pods and requests ---------------------------------------------------------------------------------------------


class PodRef(Struct, frozen=True):
    """Who a pod is. Source: CRI PodSandboxMetadata."""

    uid: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Pod(Struct, frozen=True):
    """What kubelet says of a pod when it starts it. Source: CRI PodSandboxConfig."""

    ref: PodRef
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str = ""


class Resources(Struct, frozen=True):
    """What hooks look at of the resources of a sandbox or a container; 0, "" and {} mean "not set".

    Source: CRI LinuxContainerResources.
    """

    cpu_period_us: int = 0
    cpu_quota_us: int = 0
    cpu_shares: int = 0
    memory_limit_bytes: int = 0
    oom_score_adj: int = 0
    cpuset_cpus: str = ""
    unified: Mapping[str, str] = field(default_factory=dict)


LOWEST_SHARES: Final = 2
"""CPU shares of who asked for nothing. Source: kubelet, MinShares."""

SHARES_OF_CORE: Final = 1024
"""Source: kubelet, MilliCPUToShares."""

HIGHEST_SHARES: Final = 262144
"""Source: Linux, kernel/sched/sched.h, MAX_SHARES."""


class ContainerKind(enum.StrEnum):
    """When a container runs: with the others; before them, alone but for sidecars; or all the time, started before."""

    MAIN = "container"
    INIT = "init container"
    SIDECAR = "sidecar"


class Asked(Struct, frozen=True):
    """What a container or a pod asks for beside kubelet's knowledge (see `hooks.batch`); 0: nothing.

    `kind` is a container's.
    """

    cpu_shares: int = 0
    memory_bytes: int = 0
    cpu_limit_millicores: int = 0
    kind: ContainerKind = ContainerKind.MAIN

    @property
    def cores(self) -> float | None:
        """Of the CPU request; None: nothing, as the lowest shares are those of who asks for nothing."""
        return self.cpu_shares / SHARES_OF_CORE if self.cpu_shares > LOWEST_SHARES else None


class AdmissionError(Exception):
    """The box can't take a pod now; the message says why, for an operator."""


class Operation(enum.StrEnum):
    """The calls that hooks may rewrite, by their CRI method name."""

    RUN_POD_SANDBOX = "RunPodSandbox"
    CREATE_CONTAINER = "CreateContainer"
    UPDATE_CONTAINER_RESOURCES = "UpdateContainerResources"
    UPDATE_POD_SANDBOX_RESOURCES = "UpdatePodSandboxResources"
    RESTORE_POD = "RestorePod"


STARTS: Final = frozenset({Operation.RUN_POD_SANDBOX, Operation.RESTORE_POD})
"""The operations that start a pod: the one moment at which it can be placed."""

UPDATES: Final = frozenset({Operation.UPDATE_CONTAINER_RESOURCES, Operation.UPDATE_POD_SANDBOX_RESOURCES})
"""Kubelet resizes its own cgroup of a pod before or after either, and does not always tell of the pod."""


class Target(enum.StrEnum):
    """What a `PodRequest` is about."""

    SANDBOX = "sandbox"
    CONTAINER = "container"


class HostMount(Struct, frozen=True):
    """A file or folder of the node's that a container mounts, with what is mounted in it on the node.

    `readonly`: it can't be written; what is mounted in it can, unless `recursive_read_only`, which does nothing by
    itself. Source: CRI Mount.
    """

    path: str
    readonly: bool = False
    recursive_read_only: bool = False


class Security(Struct, frozen=True):
    """What a sandbox or a container asks for that no cgroup bounds. Source: CRI LinuxContainerSecurityContext, Mount.

    `host_namespaces` are those of the node that it shares: `network`, `pid`, `ipc`. `unconfined`: no seccomp profile is
    set for it. `added_capabilities` are as CRI has them (`SYS_NICE`, `ALL`). `host_mounts` are what it mounts of
    the node's, kubelet's own files for it among them. `host_ports` are those of the node that lead to it.
    `unmasked`: it sees the kernel's settings in /proc, and may write them, as users of the node's own.
    """

    privileged: bool = False
    host_namespaces: tuple[str, ...] = ()
    unconfined: bool = False
    added_capabilities: tuple[str, ...] = ()
    host_mounts: tuple[HostMount, ...] = ()
    host_ports: tuple[int, ...] = ()
    unmasked: bool = False


class PodRequest(Struct, frozen=True):
    """The facts of one rewrite: one sandbox or one container of one of kubelet's requests.

    `placement` is the pod's cgroup_parent in the box. `container` is the container's name, "" for a sandbox.
    `cpus` are those that the box may run on, as far as a requested CPU set needs them.
    `pod` is None where the request does not carry the pod.
    """

    operation: Operation
    target: Target
    placement: str
    resources: Resources
    container: str = ""
    security: Security = Security()
    cpus: frozenset[int] | Unlimited = UNLIMITED
    pod: Pod | None = None

    @property
    def annotations(self) -> Mapping[str, str]:
        """The pod's, {} where it is not known."""
        return {} if self.pod is None else self.pod.annotations


EVERY: Final = "*"
"""At the end of an adjustment's key: all entries that begin with what is before."""


class Adjustment(Struct, frozen=True):
    """One field to set (or, with None, to clear) and why.

    `field` is the CRI field's name: `cgroup_parent`, `annotations`, `drop_capabilities` (one is added to them),
    `add_capabilities` (all of them, with commas), `seccomp`, `proc_mount` (Kubernetes' name for the masks of /proc), or
    one of LinuxContainerResources. `key` is the entry of a map field (`annotations`, `unified`); where annotations are
    cleared, it may end with `EVERY`.
    """

    field: str
    value: str | int | None
    reason: str
    key: str = ""

    @property
    def place(self) -> str:
        """Field and key, in words: `annotations[a/b]`."""
        return f"{self.field}[{self.key}]" if self.key else self.field


class Sandbox(Struct, frozen=True):
    """A pod sandbox that the runtime knows. `placement` is its cgroup_parent in the box, or None: left as it came.

    `cpu_shares`, `cpu_limit_millicores` (0: none) and the notice before it is stopped are what its annotations ask for,
    and `containers` what they ask for for each container, by name. `mid`: its labels put it into the higher tier.
    """

    id: str
    pod: PodRef
    placement: str | None
    cpu_shares: int = 0
    notice_s: int = 0
    mid: bool = False
    cpu_limit_millicores: int = 0
    containers: Mapping[str, Asked] = field(default_factory=dict)


class Finding(PodRef, frozen=True):
    """A pod's container, or its sandbox (`container` ""): where it is outside the box, or why that is not known."""

    container: str
    detail: str


# --- samples and limits --------------------------------------------------------------------------------------------


class Usage(Struct, frozen=True):
    """Counters of one cgroup at one moment.

    `working_set_bytes` is usage less inactive page cache, as kubelet counts it; `memory_bytes` is all that a limit
    bounds, `anon_bytes` what of it nothing but swap takes back: anonymous memory, tmpfs, and huge pages that count; and
    `reclaimable_bytes` page cache and slab, which stay when the cgroup goes (all 0: not known, as for the node).
    """

    cpu_usage_s: float
    working_set_bytes: int
    throttled_s: float = 0.0
    memory_bytes: int = 0
    anon_bytes: int = 0
    reclaimable_bytes: int = 0

    @property
    def given_back_bytes(self) -> int:
        """What is free once all of the cgroup's processes have ended: buffers of sockets, too."""
        return max(0, self.memory_bytes - self.reclaimable_bytes)


class UsageReading(Struct, frozen=True):
    """One reading of the node and of the box (None: there is no box), and when it was made (CLOCK_MONOTONIC)."""

    node: Usage
    box: Usage | None
    read_s: float


class Capacity(Struct, frozen=True):
    """What online and offline share.

    `outside_cores`: CPUs that are online, but not in the root cpuset (isolated). What they run counts as the node's.
    `for_box_cores`: those of `cores` that the box may run on; None: all.
    """

    cores: float
    memory_bytes: int
    outside_cores: float = 0.0
    for_box_cores: float | None = None


class ResourceSample(Struct, frozen=True):
    """One resource at one tick, in its unit; a rate is the mean since the last tick.

    `online` is the node's total less the box's, never below 0. `for_box`: what of the capacity the box can ever have,
    however little online uses; None: all.
    """

    capacity: float
    node: float
    box: float
    online: float
    for_box: float | None = None


class Snapshot(Struct, frozen=True):
    """One tick's view of the node: `of` each resource that is sampled. `t_s` is CLOCK_BOOTTIME.

    `throttled_ratio` is the share of time for which the box's CPU limit held it back; `box_anon_bytes`: see `Usage`.
    `read_s`: when it was measured, by CLOCK_MONOTONIC, as rates are.
    """

    t_s: float
    of: Mapping[str, ResourceSample]
    throttled_ratio: float
    box_anon_bytes: int = 0
    read_s: float = 0.0


CPU: Final = "cpu"
MEMORY: Final = "memory"
PIDS: Final = "pids"

MEMORY_HIGH: Final = "memory_high"
"""In `Limits`: what the box's memory is brought down to by reclaim, below its limit. Above it nobody is killed, only
slowed down. Where it is missing, it is the limit itself. Source: cgroup-v2.rst, memory.high.
"""

Limit = float | Unlimited

Limits = Mapping[str, Limit]
"""What bounds the box, by the name of the resource and in its unit (cores, bytes). Its priority (lowest weight,
cpu.idle) is not a limit: it always holds.
"""


class ResourcePrediction(Struct, frozen=True):
    """The `level` that online's use of a resource should not exceed before the next decisions; None: not known yet.

    The note says, for people, why it is careful (a cold start); "" when it is not. `hour` looks an hour ahead: what a
    node may promise, rather than what the box may have now. `recent` is online's mean use of the last five minutes.
    """

    level: float | None
    note: str = ""
    hour: float | None = None
    recent: float | None = None


Prediction = Mapping[str, ResourcePrediction]
"""By the name of the resource; one that is not in it is not known."""


class GuardCeiling(Struct, frozen=True):
    """What the guard leaves to the box for now, whatever is predicted; `reason` in words an operator reads."""

    cores: float
    reason: str


class GivingBack(Struct, frozen=True):
    """What somebody in the box (YARN) has been lent of memory, who has to tell its own work before it gives any back.

    The box's limit waits for `size_bytes` of what the node has published: `published_bytes` is what it says of memory
    now, and has not taken back from anybody; `published_lately_bytes` the most that it said so lately that some of it
    may still be given back.
    """

    size_bytes: float
    published_bytes: float
    published_lately_bytes: float


class Bounds(Struct, frozen=True):
    """Between what a resource's limit had to stay, in its unit.

    `watermark_ratio` None: the limit was not computed (static, or no window is open). `ceiling` None: none. `kept` must
    stay free on the node, lest kubelet evict pods.
    """

    floor: float
    ceiling: float | None
    reserve: float
    watermark_ratio: float | None
    kept: float = 0.0


class ResourceDecision(Struct, frozen=True):
    """A resource's limit, why it is so, in words an operator reads, and what it was decided from.

    `before` is what the last decision gave; None: this is the first. `high`: what the box is brought down to below the
    limit, while the limit stays where it is, as who hits it is killed; None: nothing. `open`: the box has all that
    online leaves, whatever is predicted, as nothing tells of harm. `waits`: what of the limit goes as soon as it is
    given back (`GivingBack`).
    """

    limit: Limit
    reason: str
    bounds: Bounds
    prediction: ResourcePrediction
    before: Limit | None = None
    high: float | None = None
    open: bool = False
    waits: float = 0.0


class Decision(Struct, frozen=True):
    """The limits that hold from `t_s` on, by resource. With the snapshot, this is all that they were decided from.

    `guard` None: the guard was at rest, `window` the schedule's, in words ("": there is no schedule), and `starting`
    how many pods of the box were starting.
    """

    t_s: float
    resources: Mapping[str, ResourceDecision]
    guard: GuardCeiling | None = None
    window: str = ""
    starting: int = 0

    @property
    def limits(self) -> Limits:
        return {name: decided.limit for name, decided in self.resources.items()}

    @property
    def asked_of_box(self) -> Limits:
        """The limits, and what the box is brought down to below one."""
        memory = self.resources.get(MEMORY)
        high = None if memory is None else memory.high
        return self.limits if high is None else {**self.limits, MEMORY_HIGH: high}


class Counters(Protocol):
    """Where events are counted. `name` and `labels` are those of docs/metrics.md. `status_calls`: calls of CRI's
    Status that ended.
    """

    status_calls: int

    def count(self, name: str, *labels: str, by: float = 1) -> None: ...


class AttachStatus(Struct, frozen=True):
    """Whether kubelet's endpoint is criproxy; `where` says by what it is, or why it is not, or not known.

    `problem`: why it should be and is not, with the remedy; "": all is as `criproxy attach` and `detach` left it.
    """

    state: Literal["yes", "no", "unknown"]
    where: str
    problem: str = ""


class LimitChange(Struct, frozen=True):
    """A file of the box that was written. `drift` says that somebody else had changed it."""

    file: str
    old: str
    new: str
    drift: bool
