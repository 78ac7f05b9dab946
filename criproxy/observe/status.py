"""What `criproxy status` shows, as data: /status answers with it in JSON, whose keys stay as they are."""

import itertools
import json
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from criproxy.control.guardlaw import GUARD_OFF, GuardStatus
from criproxy.control.history import Record
from criproxy.control.memory_pressure import EvictionStatus
from criproxy.control.policy import bytes_in_words, cores_in_words
from criproxy.model import CPU, MEMORY, UNLIMITED, Decision, Limits, Pids, Sandbox, Snapshot
from criproxy.model.attachment import AttachStatus


class BypassStatus(Struct, frozen=True):
    """`after_s`: how long criproxy is away before it opens; None: never. Times are wall clock, in s.

    `open_since_s`: None: it is shut. `uses` since the machine's start, the last of which began at `last_s`.
    """

    after_s: float | None
    open_since_s: float | None
    uses: int
    last_s: float | None


class CpuStatus(Struct, frozen=True):
    """CPU at the last tick. `prediction_cores`, and `hour_cores` for an hour ahead, None: not known.

    `limit_cores` is what is wanted, `in_force_cores` what the kernel holds (None: there is no box).
    """

    capacity_cores: float
    node_cores: float
    online_cores: float
    box_cores: float
    prediction_cores: float | None
    hour_cores: float | None
    limit_cores: float | Literal["unlimited"]
    throttled_ratio: float
    reason: str
    in_force_cores: float | Literal["unlimited"] | None = None


class MemoryStatus(Struct, frozen=True):
    """Memory at the last tick. `prediction_bytes`, and `hour_bytes` for an hour ahead, None: not known.

    `limit_bytes` is what is wanted, `in_force_bytes` what the kernel holds (None: there is no box). `box_bytes` is the
    box's working set, `used_bytes` all that its limit bounds, page cache included (None: not known).
    """

    capacity_bytes: int
    node_bytes: int
    online_bytes: int
    box_bytes: int
    prediction_bytes: float | None
    hour_bytes: float | None
    limit_bytes: int | Literal["unlimited"]
    reason: str
    in_force_bytes: int | Literal["unlimited"] | None = None
    used_bytes: int | None = None


class PidsStatus(Struct, frozen=True):
    """Processes and threads in the box, and how many may be there."""

    current: int
    limit: int | Literal["unlimited"]


class BoxStatus(Struct, frozen=True):
    """The box. `path` is below the cgroup root, None before the first offline pod.

    `drift` counts files that somebody else had changed. `cpus`: the CPUs that kubelet's static CPU manager leaves to
    offline pods ("0-3,8"), "": it bounds nobody. `pids` None: there was no box to bound yet, or the kernel has no pids
    controller.
    """

    path: str | None
    drift: int
    swept: int
    tick_failures: int
    cpu: CpuStatus | None
    memory: MemoryStatus | None
    cpus: str = ""
    pids: PidsStatus | None = None


class RuntimeStatus(Struct, frozen=True):
    """The runtime; `version` as it names itself, `problem` why it is not ready ("" when it is)."""

    socket: str
    ready: bool
    version: str
    problem: str


class ConfigStatus(Struct, frozen=True):
    """The config file, with its errors, and the changed keys that wait for a restart."""

    file: str
    errors: tuple[str, ...]
    needs_restart: tuple[str, ...]


class ScheduleStatus(Struct, frozen=True):
    """Which window holds and what comes next; "": there is no schedule.

    `closed`: why no new offline pod is let in; "": it is.
    """

    holds: str
    closed: str


class OfflinePod(Struct, frozen=True):
    """A pod in the box."""

    namespace: str
    name: str
    uid: str
    placement: str


class CgroupStatus(Struct, frozen=True):
    """`version`: 1 or 2, 0: there is no usable hierarchy. `driver`: kubelet's, None before any pod runs."""

    version: int
    driver: Literal["cgroupfs", "systemd"] | None


class StrayContainer(Struct, frozen=True):
    """A container of the box, or a pod's sandbox (`container` ""), that runs elsewhere, or where nobody can tell.

    `detail` says where, or why that is not known.
    """

    namespace: str
    name: str
    uid: str
    container: str
    detail: str


class PlacementStatus(Struct, frozen=True):
    """Where the runtime put what it was told to start in the box: `verified` containers and sandboxes are there."""

    verified: int
    misplaced: tuple[StrayContainer, ...]
    unknown: tuple[StrayContainer, ...]


class PodOverhead(Struct, frozen=True):
    """What is done outside the box for one pod: its shim's CPU, and what its logs grow by."""

    namespace: str
    name: str
    uid: str
    shim_cores: float
    log_bytes_per_s: float


class OverheadStatus(Struct, frozen=True):
    """What the runtime and the shims of offline pods did of late, outside the box.

    `runtime_cores` is the runtime's own CPU, whatever it did; None: not known. `pods`: the loudest, the first one most.
    """

    runtime_cores: float | None = None
    shim_cores: float = 0.0
    log_bytes_per_s: float = 0.0
    pods: tuple[PodOverhead, ...] = ()


class DiskStatus(Struct, frozen=True):
    """A disk. `kept_by`: what keeps the box's lowest weight there (bfq, cfq, io.cost); "": nothing does, and `why`."""

    name: str
    kept_by: str
    why: str


class DecisionStatus(Struct, frozen=True):
    """A decision that changed a limit, and why. `decided_s` is UTC; `applied` False: it was not put in force."""

    decided_s: float
    applied: bool
    limit_cores: float | Literal["unlimited"]
    limit_bytes: int | Literal["unlimited"]
    cpu_reason: str
    memory_reason: str


class UpgradeStatus(Struct, frozen=True):
    """`failed` counts new processes that could not take over from this one, for the last of which `problem` says why.

    `predecessor`: the one that this has taken over from is still finishing its calls.
    """

    failed: int = 0
    problem: str = ""
    predecessor: bool = False


class Status(Struct, frozen=True):
    """The state of the daemon. `problems`: why it is not well, in words; empty: it is.

    `colocation`: on, off, or pass-through (a bad config at the start). `decisions`: the latest, the last one first.
    `bypass`: None: there is none. `unbounded`: the offline pods that run outside the box (namespace/name).
    `modes`: the names of those in force; see `criproxy.model.modes`.
    """

    version: str
    pid: int
    uptime_s: float
    dry_run: bool
    colocation: Literal["on", "off", "pass-through"]
    runtime: RuntimeStatus
    config: ConfigStatus
    box: BoxStatus
    pods: tuple[OfflinePod, ...]
    schedule: ScheduleStatus = ScheduleStatus("", "")
    guard: GuardStatus = GUARD_OFF
    bypass: BypassStatus | None = None
    unbounded: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    engine: str = ""
    cgroup: CgroupStatus = CgroupStatus(0, None)
    placement: PlacementStatus = PlacementStatus(0, (), ())
    decisions: tuple[DecisionStatus, ...] = ()
    upgrade: UpgradeStatus = UpgradeStatus()
    attached: AttachStatus = AttachStatus("unknown", "")
    overhead: OverheadStatus = OverheadStatus()
    disks: tuple[DiskStatus, ...] = ()
    eviction: EvictionStatus | None = None
    modes: tuple[str, ...] = ()


def cpu_status(snapshot: Snapshot, decision: Decision, held: Limits | None = None) -> CpuStatus:
    """`held`: what the kernel holds, None: there is no box."""
    return CpuStatus(
        capacity_cores=snapshot.capacity_cores,
        node_cores=snapshot.node_cores,
        online_cores=snapshot.online_cores,
        box_cores=snapshot.box_cores,
        prediction_cores=decision.prediction.cpu_cores,
        hour_cores=decision.prediction.hour_cores,
        limit_cores="unlimited" if decision.limits[CPU] is UNLIMITED else decision.limits[CPU],
        throttled_ratio=snapshot.throttled_ratio,
        reason=decision.cpu_reason,
        in_force_cores=None if held is None else "unlimited" if held[CPU] is UNLIMITED else held[CPU],
    )


def memory_status(
    snapshot: Snapshot, decision: Decision, held: Limits | None = None, used_bytes: int | None = None
) -> MemoryStatus:
    """`held`: what the kernel holds, None: there is no box. `used_bytes`: see `MemoryStatus`."""
    return MemoryStatus(
        capacity_bytes=snapshot.capacity_bytes,
        node_bytes=snapshot.node_bytes,
        online_bytes=snapshot.online_bytes,
        box_bytes=snapshot.box_bytes,
        prediction_bytes=decision.prediction.memory_bytes,
        hour_bytes=decision.prediction.hour_bytes,
        limit_bytes="unlimited" if decision.limits[MEMORY] is UNLIMITED else int(decision.limits[MEMORY]),
        reason=decision.memory_reason,
        in_force_bytes=None if held is None else "unlimited" if held[MEMORY] is UNLIMITED else int(held[MEMORY]),
        used_bytes=used_bytes,
    )


def pids_status(pids: Pids) -> PidsStatus:
    return PidsStatus(pids.current, "unlimited" if pids.limit is UNLIMITED else pids.limit)


def offline_pod(sandbox: Sandbox) -> OfflinePod:
    """A placed sandbox, for the list."""
    return OfflinePod(sandbox.pod.namespace, sandbox.pod.name, sandbox.pod.uid, sandbox.placement or "")


def latest_decisions(records: Sequence[Record], count: int) -> tuple[DecisionStatus, ...]:
    """The last `count` changes of the limits in a history (oldest first), the last one first.

    A change that is too small to be seen in print is none here, and one to whether the limits are applied is one.
    """
    latest = itertools.pairwise([*reversed(records), None])
    changes = (
        _decision(record)
        for record, before in latest
        if record is not None and (before is None or _shown(record) != _shown(before))
    )
    return tuple(itertools.islice(changes, count))


def _shown(record: Record) -> tuple[str, str, bool]:
    limits = record.decision.limits
    cores = "unlimited" if limits[CPU] is UNLIMITED else cores_in_words(limits[CPU])
    size = "unlimited" if limits[MEMORY] is UNLIMITED else bytes_in_words(limits[MEMORY])
    return cores, size, record.applied


def _decision(record: Record) -> DecisionStatus:
    decision = record.decision
    limits = decision.limits
    return DecisionStatus(
        decided_s=record.wall_s,
        applied=record.applied,
        limit_cores="unlimited" if limits[CPU] is UNLIMITED else limits[CPU],
        limit_bytes="unlimited" if limits[MEMORY] is UNLIMITED else int(limits[MEMORY]),
        cpu_reason=decision.cpu_reason,
        memory_reason=decision.memory_reason,
    )


def to_json(status: Status) -> str:
    """ASCII only: names come from requests and may hold anything."""
    return json.dumps(msgspec.to_builtins(status))


def from_json(text: str) -> Status:
    """Raises ValueError when `text` is no status."""
    return msgspec.convert(json.loads(text), Status)
