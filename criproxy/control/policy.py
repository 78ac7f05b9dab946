"""The policy: what the box may use, decided from one snapshot, one prediction and the guard, and why.

limit = capacity x watermark - what online is expected to use - reserve, within floor and ceiling, in whole steps.
Of memory, what kubelet must find free is never given, whatever the watermark says: limit <= capacity - kept - expected.
Lowered at once; raised only by more than a threshold, or when the last change is old enough, and in bounded strides.
What is not known leaves the floor, which grows while pods start. The guard's ceiling then takes off what it says, at
once and for as long as it says.
"""

import math
from collections.abc import Callable
from typing import Final

from msgspec import Struct, structs

from criproxy.model import (
    CPU,
    MEMORY,
    UNLIMITED,
    Bounds,
    Decision,
    GuardCeiling,
    Limits,
    Prediction,
    Snapshot,
    type_unlimited,
)

CPU_STEP_CORES: Final = 0.01
"""The smallest quota that the kernel takes, and what an operator is shown."""

MEMORY_STEP_BYTES: Final = 1 << 20
"""Memory comes and goes by pages: without steps, the limit would be written each second for a few KiB."""

START_CORES: Final = 0.1
START_MOST_CORES: Final = 1.0
"""What the floor grows by for each pod that is starting, and at most: runtime and init run within the box's quota, and
take about a twentieth of a second of CPU time per pod (`python -m benchmarks.starts`).
"""

_STATIC_STEP_RATIO: Final = 0.01

_LEAST: Final = 1e-8
"""As a share of a step: what a sum of floats may lack to a whole one."""

_MOST_STEPS: Final = 2**50
"""Beyond, a float has no such steps."""


class DynamicSettings(Struct, frozen=True):
    """The law for one resource; `floor`, `ceiling` and `reserve` in its unit (cores or bytes), the rest of capacity.

    The reserve is never given, but for the floor. A raise by more than `raise_threshold_ratio` of capacity is made at
    once, a smaller one `raise_after_s` seconds after the last change, and none by more than `max_raise_ratio` per tick
    (None: no such bound).
    """

    floor: float
    watermark_ratio: float = 0.9
    ceiling: float | None = None
    reserve: float = 0.0
    raise_threshold_ratio: float = 0.05
    raise_after_s: float = 60.0
    max_raise_ratio: float | None = None

    def __post_init__(self) -> None:
        top = math.inf if self.ceiling is None else self.ceiling
        if not (0.0 < self.floor <= top and self.floor < math.inf):
            raise ValueError(f"floor {self.floor} must be above 0 and not above the ceiling {self.ceiling}")
        if not 0.0 < self.watermark_ratio <= 1.0:
            raise ValueError(f"watermark_ratio {self.watermark_ratio} must be above 0 and at most 1")
        if not 0.0 <= self.reserve < math.inf:
            raise ValueError(f"reserve {self.reserve} must be 0 or above")

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.floor, self.ceiling, self.reserve, self.watermark_ratio)


class StaticSettings(Struct, frozen=True):
    """A limit that only the node's capacity less `reserve`, and the guard, can lower; all in the resource's unit.

    `floor` is what neither takes away; `why` is its reason, in words.
    """

    limit: float | type_unlimited
    floor: float = 0.0
    reserve: float = 0.0
    why: str = "static, as configured"

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.floor, None, self.reserve, None)


ResourceSettings = DynamicSettings | StaticSettings


class PolicySettings(Struct, frozen=True):
    """The policy of each resource, CPU in cores and memory in bytes. `window`: the schedule's, in words, or ""."""

    cpu: ResourceSettings
    memory: ResourceSettings
    window: str = ""


class ResourceState(Struct, frozen=True):
    """The law's limit and since when; None: nothing was decided yet. `squeezed`: what the guard left of it, if less."""

    limit: float | None = None
    changed_s: float = -math.inf
    squeezed: float | None = None

    @property
    def given(self) -> float | None:
        """What the last decision gave."""
        return self.limit if self.squeezed is None else self.squeezed


class PolicyState(Struct, frozen=True):
    """What `decide` has to remember from one tick to the next. `before`: the limits that it gave last."""

    cpu: ResourceState = ResourceState()
    memory: ResourceState = ResourceState()
    before: Limits | None = None


class _Facts(Struct, frozen=True):
    """One resource at one moment. `amount` writes a quantity as an operator reads it; a limit moves in whole steps."""

    t_s: float
    capacity: float
    online: float
    predicted: float | None
    note: str
    guard: GuardCeiling | None
    step: float
    amount: Callable[[float], str]
    starting: int = 0
    kept: float = 0.0
    """What must stay free of the capacity."""


def decide(
    snapshot: Snapshot,
    prediction: Prediction,
    state: PolicyState,
    settings: PolicySettings,
    guard: GuardCeiling | None = None,
    *,
    starting: int = 0,
    kept_bytes: float = 0.0,
) -> tuple[Decision, PolicyState]:
    """The limits from `snapshot.t_s` on, and why. Never raises: what is not a sane number counts as not known.

    `guard` is the guard's ceiling for the CPU limit, None while it is at rest. So many pods of the box are `starting`.
    `kept_bytes` of memory must stay free, lest kubelet evict pods. Time must not go back from call to call.
    """
    cpu_facts = _Facts(
        t_s=snapshot.t_s,
        capacity=snapshot.capacity_cores,
        online=snapshot.online_cores,
        predicted=prediction.cpu_cores,
        note=prediction.cpu_note,
        guard=guard,
        step=CPU_STEP_CORES,
        amount=cores_in_words,
        starting=starting,
    )
    memory_facts = _Facts(
        t_s=snapshot.t_s,
        capacity=snapshot.capacity_bytes,
        online=snapshot.online_bytes,
        predicted=prediction.memory_bytes,
        note=prediction.memory_note,
        guard=None,
        step=MEMORY_STEP_BYTES,
        amount=bytes_in_words,
        kept=kept_bytes,
    )
    cpu, cpu_reason, cpu_state = _resource(cpu_facts, state.cpu, settings.cpu)
    memory, memory_reason, memory_state = _resource(memory_facts, state.memory, settings.memory)
    limits = {CPU: cpu, MEMORY: memory if memory is UNLIMITED else int(memory)}
    decision = Decision(
        t_s=snapshot.t_s,
        limits=limits,
        prediction=prediction,
        cpu_reason=cpu_reason,
        memory_reason=memory_reason,
        cpu_bounds=settings.cpu.bounds,
        memory_bounds=structs.replace(settings.memory.bounds, kept=kept_bytes),
        before=state.before,
        guard=guard,
        window=settings.window,
        starting=starting,
    )
    return decision, PolicyState(cpu_state, memory_state, limits)


def safe_limits(settings: PolicySettings) -> Limits:
    """What the box may have while nothing is known: the floors, or the static limits."""
    cpu, memory = _safe(settings.cpu), _safe(settings.memory)
    return {CPU: cpu, MEMORY: memory if memory is UNLIMITED else int(memory)}


def _safe(settings: ResourceSettings) -> float | type_unlimited:
    return settings.limit if isinstance(settings, StaticSettings) else settings.floor


def _resource(
    facts: _Facts, state: ResourceState, settings: ResourceSettings
) -> tuple[float | type_unlimited, str, ResourceState]:
    delay = ""
    if isinstance(settings, StaticSettings):
        target, why = _fixed(facts, settings)
        law, delay = _stepped(facts, target, state, settings)
    else:
        grown, floor_words = _floor(facts, settings)
        target, why = _target(facts, grown, floor_words)
        law, delay = _approach(facts, target, state, grown)
    changed_s = state.changed_s if law == state.limit else facts.t_s
    limit, guarded = _guarded(facts, law, settings.floor)
    after = ResourceState(law, changed_s, limit if limit < law else None)
    words = f"{guarded}{why}{delay}"
    if limit == math.inf:
        return UNLIMITED, words, ResourceState()
    if isinstance(settings, StaticSettings) and state.given in (None, limit) and not guarded:
        return limit, words, after
    return limit, f"{_move(state.given, limit, facts.amount)}: {words}", after


def _stepped(facts: _Facts, target: float, state: ResourceState, settings: StaticSettings) -> tuple[float, str]:
    """A static limit that gives way to online comes back by steps, as online's use moves all the time."""
    step = _STATIC_STEP_RATIO * facts.capacity
    if state.limit is None or target == settings.limit or not state.limit < target < state.limit + step:
        return target, ""
    return state.limit, f", as a raise by less than {facts.amount(step)} waits"


def _move(before: float | None, limit: float, amount: Callable[[float], str]) -> str:
    if before is None:
        return f"set to {amount(limit)}"
    if limit == before:
        return f"held at {amount(limit)}"
    verb, by = ("lowered", before - limit) if limit < before else ("raised", limit - before)
    if amount(before) == amount(limit):
        return f"{verb} by {amount(by)} to {amount(limit)}"
    return f"{verb} {amount(before)} -> {amount(limit)}"


def _guarded(facts: _Facts, law: float, floor: float) -> tuple[float, str]:
    """The law's limit, or what the guard leaves of it: never below the floor, and never above the law."""
    guard = facts.guard
    if guard is None or math.isnan(guard.cores):
        return law, ""
    ceiling = min(max(guard.cores, floor), law)
    if ceiling >= law:
        return law, ""
    return ceiling, f"the guard's ceiling ({guard.reason}), below what the policy gives, {_words(law, facts)}: "


def _words(limit: float, facts: _Facts) -> str:
    return "no limit" if limit == math.inf else facts.amount(limit)


def _fixed(facts: _Facts, settings: StaticSettings) -> tuple[float, str]:
    """The configured limit, or what the node has less the reserve.

    Less what online uses now, where something must stay free: a prediction says little yet after a start, and a limit
    that was given on purpose is not to depend on it.
    """
    limit = math.inf if settings.limit is UNLIMITED else settings.limit
    why = f"{settings.why}: {'unlimited' if limit == math.inf else facts.amount(limit)}"
    if not 0.0 < facts.capacity < math.inf:
        return limit, why
    most, words = facts.capacity - settings.reserve, f"all of {facts.amount(facts.capacity)}"
    words += _less(facts, settings.reserve)
    online, note = _expected(structs.replace(facts, predicted=None))
    if facts.kept and most > facts.capacity - facts.kept - online:
        most, words = _in_steps(facts, facts.capacity - facts.kept - online), f"{_free(facts)} - {note}"
    most = max(settings.floor, most)
    if limit <= most or (limit == math.inf and not settings.reserve and not facts.kept):
        return limit, why
    return most, f"{words}, below {why}"


def _floor(facts: _Facts, settings: DynamicSettings) -> tuple[DynamicSettings, str]:
    """The settings with a floor that lets pods start, and the floor's name: within what online leaves of the node now.

    floor + START_CORES per pod that starts, at most START_MOST_CORES, the ceiling, and capacity - reserve - online
    """
    left = facts.capacity - settings.reserve - max(facts.online, 0.0)
    if not facts.starting or not 0.0 < facts.capacity < math.inf or not math.isfinite(left):
        return settings, "the floor"
    most = min(left, math.inf if settings.ceiling is None else settings.ceiling)
    floor = min(settings.floor + min(facts.starting * START_CORES, START_MOST_CORES), most)
    if floor <= settings.floor:
        return settings, "the floor"
    pods = "1 pod that starts" if facts.starting == 1 else f"{facts.starting} pods that start"
    return structs.replace(settings, floor=floor), f"the floor for {pods}"


def _target(facts: _Facts, settings: DynamicSettings, floor: str) -> tuple[float, str]:
    """capacity x watermark - expected online usage - reserve, within floor and ceiling; the floor where not known."""
    amount = facts.amount
    if not 0.0 < facts.capacity < math.inf:
        return settings.floor, f"{floor}, as the capacity is not known ({facts.capacity})"
    if facts.predicted is None or not 0.0 <= facts.predicted < math.inf or not math.isfinite(facts.online):
        return settings.floor, f"{floor}, as online usage can't be predicted{_in_brackets(facts.note)}"
    expected, words = _expected(facts)
    target = facts.capacity * settings.watermark_ratio - settings.reserve
    why = f"{amount(facts.capacity)} x {settings.watermark_ratio:.2f} - {words}{_less(facts, settings.reserve)}"
    if facts.kept and target > facts.capacity - facts.kept:
        target, why = facts.capacity - facts.kept, f"{_free(facts)} - {words}"
    why += _in_brackets(facts.note)
    target = _in_steps(facts, target - expected)
    if target <= settings.floor:
        return settings.floor, f"{floor}, above {why}"
    if settings.ceiling is not None and target > settings.ceiling:
        return settings.ceiling, f"the ceiling, below {why}"
    return target, why


def _expected(facts: _Facts) -> tuple[float, str]:
    """What online is expected to use, within the capacity, and that in words: never less than what it uses now."""
    online = min(facts.online, facts.capacity) if math.isfinite(facts.online) else facts.capacity
    if facts.predicted is None or not 0.0 <= facts.predicted < math.inf:
        return online, f"online's present use {facts.amount(online)}"
    expected = min(facts.predicted, facts.capacity)
    words = f"predicted {facts.amount(expected)}"
    if online > expected:
        return online, f"{facts.amount(online)} that online uses now, more than the {words}"
    return expected, words


def _free(facts: _Facts) -> str:
    return f"{facts.amount(facts.capacity)} - {facts.amount(facts.kept)} kept free, lest kubelet evict pods"


def _in_steps(facts: _Facts, target: float) -> float:
    if abs(target) < facts.step * _MOST_STEPS:
        return math.floor(target / facts.step + _LEAST) * facts.step
    return target


def _less(facts: _Facts, reserve: float) -> str:
    return f" - reserve {facts.amount(reserve)}" if reserve else ""


def _approach(facts: _Facts, target: float, state: ResourceState, settings: DynamicSettings) -> tuple[float, str]:
    """How far towards the target this tick goes; the delay, in words, when it stops short of it."""
    if state.limit is None or target <= state.limit:
        return target, ""
    by, since_s = target - state.limit, facts.t_s - state.changed_s
    threshold = settings.raise_threshold_ratio * facts.capacity
    if not (by > threshold or since_s >= settings.raise_after_s or state.limit < settings.floor):
        amount = facts.amount
        return state.limit, (
            f", as the raise by {amount(by)} is not more than {amount(threshold)} and the last change "
            f"{since_s:.0f} s old, not {settings.raise_after_s:.0f}"
        )
    if settings.max_raise_ratio is not None:
        stride = max(facts.step, settings.max_raise_ratio * facts.capacity)
        reach = max(settings.floor, state.limit + stride)
        if reach < target:
            return reach, f", at most {facts.amount(reach - state.limit)} at a time"
    return target, ""


def _in_brackets(note: str) -> str:
    return f" ({note})" if note else ""


def cores_in_words(cores: float) -> str:
    return f"{cores:.2f} cores"


def bytes_in_words(size_bytes: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if abs(size_bytes) >= size:
            return f"{size_bytes / size:.2f} {unit}"
    return f"{size_bytes / 2**10:.0f} KiB"
