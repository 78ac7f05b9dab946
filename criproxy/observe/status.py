"""What `criproxy status` shows, as data: /status answers with it in JSON, whose keys stay as they are."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from criproxy.cgroup.driver import HeldLimit
from criproxy.control.history import DecisionRecord
from criproxy.control.resources import RESOURCES, SHARES
from criproxy.model import CPU, UNLIMITED, AttachStatus, Decision, Limit, Limits, PodRef, Snapshot
from criproxy.observe.client import read_json


class ResourceStatus(Struct, frozen=True):
    """A resource at the last tick, in its unit; what is not known, or not sampled, is None.

    `prediction` is for the next moments, `hour` for an hour ahead. `limit` is what is wanted, `in_force` what the
    kernel holds (None: there is no box). CPU alone has a `throttled_ratio`. Memory alone has `used`: all that its limit
    bounds, page cache included, while `box` is the box's working set.
    """

    capacity: float | None
    node: float | None
    online: float | None
    box: float | None
    prediction: float | None
    hour: float | None
    limit: Limit
    reason: str
    in_force: Limit | None = None
    throttled_ratio: float | UnsetType = UNSET
    used: float | UnsetType | None = UNSET


_AMOUNTS: Final = ("capacity", "node", "online", "box", "prediction", "hour", "limit", "in_force", "used")
"""Keys that end with the resource's unit in JSON."""


class BoxStatus(Struct, frozen=True):
    """The box. `path` is below the cgroup root, None before the first offline pod. No `resources`: no sample yet.

    `drift` counts files that somebody else had changed. `cpus`: the CPUs that kubelet's static CPU manager leaves to
    offline pods ("0-3,8"), "" when it bounds nobody. `shares` lacks what is not bounded: there was no box yet, or the
    kernel can't. `cores`: how many whole cores the CPUs are, or why they are not, or which siblings are left out; "":
    neither. `tiers`: what there is of two tiers of pods, "": `colocation.tiers` is off.
    """

    path: str | None
    drift: int
    swept: int
    tick_failures: int
    resources: Mapping[str, ResourceStatus]
    cpus: str = ""
    shares: Mapping[str, HeldLimit] = {}
    cores: str = ""
    tiers: str = ""


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

    `closed`: why no new offline pod is let in, "" when they are.
    """

    holds: str
    closed: str


class OfflinePod(PodRef, frozen=True):
    """A pod in the box. `cpus`: those that it stays on ("0-3,8"); "": on all of the box's.

    What it uses is of the last pass over all pods (`pods.pod_use`); None: not known yet, or not at all. It asks for
    nothing where that is None; of memory, its limit counts. `tier`: mid or low, "": there are no tiers.
    `speed_ratio`: how much it got of the CPU that it wanted since the last look; None: it wants none, or none is lent.
    """

    placement: str
    cpus: str = ""
    cpu_cores: float | None = None
    cpu_asked_cores: float | None = None
    cpu_waiting_ratio: float | None = None
    memory_bytes: int | None = None
    memory_asked_bytes: int | None = None
    age_s: float | None = None
    tier: str = ""
    notice_s: int = 0
    speed_ratio: float | None = None


class CgroupStatus(Struct, frozen=True):
    """`version`: 1 or 2, 0: there is no usable hierarchy. `driver`: kubelet's, None before any pod runs."""

    version: int
    driver: Literal["cgroupfs", "systemd"] | None


class DecisionStatus(Struct, frozen=True):
    """A decision that changed a limit: the limits, and why, by resource.

    `decided_s` is UTC; `applied` False: it was not put in force.
    """

    decided_s: float
    applied: bool
    limits: Limits
    reasons: Mapping[str, str]


class UpgradeStatus(Struct, frozen=True):
    """`failed` counts new processes that could not take over from this one; `problem` says why the last one could not.

    `refused`: it must not, and a restart would harm the node. `predecessor`: the one that this has taken over from is
    still finishing its calls.
    """

    failed: int = 0
    problem: str = ""
    refused: bool = False
    predecessor: bool = False


class Status(Struct, frozen=True):
    """The state of the daemon. `problems`: why it is not well, in words; empty: it is.

    `colocation`: on, off, or pass-through (a bad config at the start). `decisions`: the latest, the last one first.
    `modes`: the names of those in force; see `criproxy.model.modes`. `sections`: what others show of themselves, each
    under its own key of the JSON; `rows`: the same for people (`Shows.rows`).
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
    problems: tuple[str, ...] = ()
    engine: str = ""
    cgroup: CgroupStatus = CgroupStatus(0, None)
    decisions: tuple[DecisionStatus, ...] = ()
    upgrade: UpgradeStatus = UpgradeStatus()
    attached: AttachStatus = AttachStatus("unknown", "")
    modes: tuple[str, ...] = ()
    sections: Mapping[str, Any] = {}
    rows: tuple[tuple[str, ...], ...] = ()


def resource_status(
    snapshot: Snapshot, decision: Decision, held: Limits | None = None, used: Mapping[str, float | None] | None = None
) -> dict[str, ResourceStatus]:
    """`held`: what the kernel holds, None: there is no box. `used`: all that the limit of a resource bounds."""
    return {
        name: ResourceStatus(
            **{key: getattr(snapshot.of.get(name), key, None) for key in ("capacity", "node", "online", "box")},
            prediction=decided.prediction.level,
            hour=decided.prediction.hour,
            limit=decided.limit,
            reason=decided.reason,
            in_force=(held or {}).get(name),
            throttled_ratio=snapshot.throttled_ratio if name == CPU else UNSET,
            used=(used or {}).get(name, UNSET),
        )
        for name, decided in decision.resources.items()
    }


def latest_decisions(records: Sequence[DecisionRecord], count: int) -> tuple[DecisionStatus, ...]:
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


def _shown(record: DecisionRecord) -> tuple[dict[str, str], bool]:
    limits = record.decision.limits.items()
    shown = {name: limit if limit is UNLIMITED else RESOURCES[name].words(limit) for name, limit in limits}
    return shown, record.applied


def _decision(record: DecisionRecord) -> DecisionStatus:
    reasons = {name: decided.reason for name, decided in record.decision.resources.items()}
    return DecisionStatus(record.wall_s, record.applied, record.decision.limits, reasons)


def to_json(status: Status) -> str:
    """ASCII only: names come from requests and may hold anything.

    A resource is a key of the box, and its amounts have its unit at the end: `box.cpu.limit_cores`.
    """
    data = msgspec.to_builtins(status)
    data |= data.pop("sections")
    box, decisions = data["box"], data["decisions"]
    resources, shares = box.pop("resources"), box.pop("shares")
    box.update({name: shares.get(name) for name in SHARES})
    for name, row in RESOURCES.items():
        shown = resources.get(name)
        box[name] = shown and {f"{key}_{row.unit}" if key in _AMOUNTS else key: shown[key] for key in shown}
    for decision in decisions:
        limits, reasons = decision.pop("limits"), decision.pop("reasons")
        decision.update({f"limit_{RESOURCES[name].unit}": limit for name, limit in limits.items()})
        decision.update({f"{name}_reason": reason for name, reason in reasons.items()})
    return json.dumps(data)


def from_json(text: str) -> Status:
    """Raises ValueError when `text` is no status."""
    data = read_json(text)
    try:
        box, resources = data["box"], {}
        for name, row in RESOURCES.items():
            if shown := box.pop(name, None):
                resources[name] = {key.removesuffix(f"_{row.unit}"): value for key, value in shown.items()}
        box["resources"] = resources
        box["shares"] = {name: share for name in SHARES if (share := box.pop(name, None))}
        for decision in data.get("decisions", ()):
            decision["limits"] = {
                name: decision[key] for name, row in RESOURCES.items() if (key := f"limit_{row.unit}") in decision
            }
            decision["reasons"] = {name: decision[f"{name}_reason"] for name in decision["limits"]}
        data["sections"] = {key: value for key, value in data.items() if key not in Status.__struct_fields__}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is no status of criproxy: {error!r}") from error
    return msgspec.convert(data, Status)
