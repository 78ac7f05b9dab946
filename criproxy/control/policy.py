"""The policy: what the box may use, decided from one snapshot and one prediction, and why.

limit = capacity x watermark - what online is expected to use, within floor and ceiling. Lowered at once; raised only by
more than a threshold, or when the last change is old enough. What is not known leaves the floor.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from criproxy.model import UNLIMITED, Decision, Limits, Prediction, Snapshot, type_unlimited

Action = Literal["set to", "lowered", "raised", "held at"]


@dataclass(frozen=True, slots=True)
class DynamicSettings:
    """The law for one resource; `floor` and `ceiling` in its unit (cores or bytes), the other ratios of capacity.

    A raise by more than `raise_threshold_ratio` of capacity is made at once, a smaller one `raise_after_s` seconds
    after the last change, and none by more than `max_raise_ratio` per tick (None: no such bound).
    """

    floor: float
    watermark_ratio: float = 0.9
    ceiling: float | None = None
    raise_threshold_ratio: float = 0.05
    raise_after_s: float = 60.0
    max_raise_ratio: float | None = None

    def __post_init__(self) -> None:
        top = math.inf if self.ceiling is None else self.ceiling
        if not (0.0 < self.floor <= top and self.floor < math.inf):
            raise ValueError(f"floor {self.floor} must be above 0 and not above the ceiling {self.ceiling}")
        if not 0.0 < self.watermark_ratio <= 1.0:
            raise ValueError(f"watermark_ratio {self.watermark_ratio} must be above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class StaticSettings:
    """A limit that never moves, in the resource's unit."""

    limit: float | type_unlimited


ResourceSettings = DynamicSettings | StaticSettings


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The policy of each resource, CPU in cores and memory in bytes."""

    cpu: ResourceSettings
    memory: ResourceSettings


@dataclass(frozen=True, slots=True)
class ResourceState:
    """The limit that holds and since when; None: nothing was decided yet."""

    limit: float | None = None
    changed_s: float = -math.inf


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What `decide` has to remember from one tick to the next."""

    cpu: ResourceState = ResourceState()
    memory: ResourceState = ResourceState()


@dataclass(frozen=True, slots=True)
class _Facts:
    """One resource at one moment. `amount` writes a quantity as an operator reads it."""

    t_s: float
    capacity: float
    online: float
    predicted: float | None
    note: str
    amount: Callable[[float], str]


def decide(
    snapshot: Snapshot, prediction: Prediction, state: PolicyState, settings: PolicySettings
) -> tuple[Decision, PolicyState]:
    """The limits from `snapshot.t_s` on, and why. Never raises: what is not a sane number counts as not known."""
    cpu_facts = _Facts(
        snapshot.t_s, snapshot.capacity_cores, snapshot.online_cores, prediction.cpu_cores, prediction.cpu_note, _cores
    )
    memory_facts = _Facts(
        snapshot.t_s,
        snapshot.capacity_bytes,
        snapshot.online_bytes,
        prediction.memory_bytes,
        prediction.memory_note,
        _size,
    )
    cpu, cpu_reason, cpu_state = _resource(cpu_facts, state.cpu, settings.cpu)
    memory, memory_reason, memory_state = _resource(memory_facts, state.memory, settings.memory)
    limits = Limits(cpu_cores=cpu, memory_bytes=memory if memory is UNLIMITED else int(memory))
    decision = Decision(snapshot.t_s, limits, prediction, cpu_reason, memory_reason)
    return decision, PolicyState(cpu_state, memory_state)


def safe_limits(settings: PolicySettings) -> Limits:
    """What the box may have while nothing is known: the floors, or the static limits."""
    cpu, memory = _safe(settings.cpu), _safe(settings.memory)
    return Limits(cpu_cores=cpu, memory_bytes=memory if memory is UNLIMITED else int(memory))


def _safe(settings: ResourceSettings) -> float | type_unlimited:
    return settings.limit if isinstance(settings, StaticSettings) else settings.floor


def _resource(
    facts: _Facts, state: ResourceState, settings: ResourceSettings
) -> tuple[float | type_unlimited, str, ResourceState]:
    if isinstance(settings, StaticSettings):
        words = "unlimited" if settings.limit is UNLIMITED else facts.amount(settings.limit)
        return settings.limit, f"static, as configured: {words}", ResourceState()
    target, why = _target(facts, settings)
    limit, action, delay = _approach(facts, target, state, settings)
    changed_s = state.changed_s if limit == state.limit else facts.t_s
    move = facts.amount(limit)
    if action in ("lowered", "raised") and state.limit is not None:
        move = f"{facts.amount(state.limit)} -> {move}"
    return limit, f"{action} {move}: {why}{delay}", ResourceState(limit, changed_s)


def _target(facts: _Facts, settings: DynamicSettings) -> tuple[float, str]:
    """capacity x watermark - expected online usage, within floor and ceiling; the floor where one is not known."""
    amount = facts.amount
    if not 0.0 < facts.capacity < math.inf:
        return settings.floor, f"the floor, as the capacity is not known ({facts.capacity})"
    if facts.predicted is None or not 0.0 <= facts.predicted < math.inf or not math.isfinite(facts.online):
        return settings.floor, f"the floor, as online usage can't be predicted{_in_brackets(facts.note)}"
    expected, words = facts.predicted, "predicted"
    if facts.online > expected:
        expected, words = facts.online, "online's present use, above the predicted"
    why = f"{amount(facts.capacity)} x {settings.watermark_ratio:.2f} - {words} {amount(expected)}"
    why += _in_brackets(facts.note)
    target = facts.capacity * settings.watermark_ratio - expected
    if target <= settings.floor:
        return settings.floor, f"the floor, above {why}"
    if settings.ceiling is not None and target > settings.ceiling:
        return settings.ceiling, f"the ceiling, below {why}"
    return target, why


def _approach(
    facts: _Facts, target: float, state: ResourceState, settings: DynamicSettings
) -> tuple[float, Action, str]:
    """How far towards the target this tick goes; the delay, in words, when it stops short of it."""
    if state.limit is None:
        return target, "set to", ""
    if target <= state.limit:
        return target, "lowered" if target < state.limit else "held at", ""
    by, since_s = target - state.limit, facts.t_s - state.changed_s
    threshold = settings.raise_threshold_ratio * facts.capacity
    if not (by > threshold or since_s >= settings.raise_after_s or state.limit < settings.floor):
        amount = facts.amount
        return (
            state.limit,
            "held at",
            f", as the raise by {amount(by)} is not more than {amount(threshold)} and the last change "
            f"{since_s:.0f} s old, not {settings.raise_after_s:.0f}",
        )
    if settings.max_raise_ratio is not None:
        reach = max(settings.floor, state.limit + settings.max_raise_ratio * facts.capacity)
        if reach < target:
            return reach, "raised", f", at most {facts.amount(reach - state.limit)} at a time"
    return target, "raised", ""


def _in_brackets(note: str) -> str:
    return f" ({note})" if note else ""


def _cores(cores: float) -> str:
    return f"{cores:.2f} cores"


def _size(size_bytes: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if abs(size_bytes) >= size:
            return f"{size_bytes / size:.2f} {unit}"
    return f"{size_bytes / 2**10:.0f} KiB"
