"""The policy: what the box may use, decided from one snapshot, one prediction and the guard, and why.

limit = capacity x watermark - what online is expected to use - reserve, within floor and ceiling, in whole steps.
Of memory, what kubelet must find free is never given, whatever the watermark says: limit <= capacity - kept - expected.
Lowered at once; raised only by more than a threshold, or when the last change is old enough, and in bounded strides.
What is not known leaves the floor, which grows while pods start. The guard's ceiling then takes off what it says, at
once and for as long as it says.

A limit that kills who hits it waits, where somebody in the box has to give back what it was lent (`GivingBack`):

    limit <= the more of this law and what the node has published lately, and <= what it was
          <= this law with what online uses now for what it will

So nothing waits that online uses, only what it is expected to, nor what nobody was promised; and the box keeps CPU
meanwhile to give back with.

While too little is known of online, as after a long absence, such a limit stays what it is, within what online leaves
by its present use: what is expected then is a guess, and must not kill pods that run.
"""

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field, structs

from criproxy.control.resources import RESOURCES, Resource
from criproxy.model import (
    MEMORY,
    UNLIMITED,
    Bounds,
    Decision,
    GivingBack,
    GuardCeiling,
    Limit,
    Limits,
    Prediction,
    ResourceDecision,
    ResourcePrediction,
    ResourceSample,
    Snapshot,
)

_STATIC_STEP_RATIO: Final = 0.01

_LEAST: Final = 1e-8
"""As a share of a step: what a sum of floats may lack to a whole one."""

_MOST_STEPS: Final = 2**50
"""Beyond, a float has no such steps."""


class DynamicSettings(Struct, frozen=True):
    """The law for one resource; `floor`, `ceiling` and `reserve` in its unit, the rest of capacity.

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

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.floor, self.ceiling, self.reserve, self.watermark_ratio)


class StaticSettings(Struct, frozen=True):
    """A limit that only the node's capacity less `reserve`, and the guard, can lower; all in the resource's unit.

    `floor` is what neither takes away; `why` is its reason, in words.
    """

    limit: Limit
    floor: float = 0.0
    reserve: float = 0.0
    why: str = "static, as configured"

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.floor, None, self.reserve, None)


ResourceSettings = DynamicSettings | StaticSettings


class PolicySettings(Struct, frozen=True):
    """The policy of each resource, by its name. `window`: the schedule's, in words, or ""."""

    resources: Mapping[str, ResourceSettings]
    window: str = ""


class ResourceState(Struct, frozen=True):
    """The law's limit and since when; None: nothing was decided yet. `squeezed`: what the guard left of it, if less.

    `waits`: what of it is more than the law's, as it is to be given back first.
    """

    limit: float | None = None
    changed_s: float = -math.inf
    squeezed: float | None = None
    waits: float = 0.0

    @property
    def given(self) -> float | None:
        """What the last decision gave."""
        return self.limit if self.squeezed is None else self.squeezed


_NOTHING_YET: Final = ResourceState()


class PolicyState(Struct, frozen=True):
    """What `decide` has to remember from one tick to the next. `before`: the limits that it gave last."""

    resources: Mapping[str, ResourceState] = field(default_factory=dict)
    before: Limits = field(default_factory=dict)


_UNKNOWN: Final = ResourceSample(0.0, 0.0, 0.0, 0.0)
_UNPREDICTED: Final = ResourcePrediction(None)


class _RowFacts(Struct, frozen=True):
    """One resource at one moment. `guard` None: it is at rest, or not about this resource."""

    t_s: float
    row: Resource
    capacity: float
    online: float
    predicted: float | None
    note: str
    guard: GuardCeiling | None
    starting: int = 0
    kept: float = 0.0
    """What must stay free of the capacity."""
    giving_back: GivingBack | None = None
    held: float | None = None
    box_waits: bool = False
    """Whether the last decision waited for what is to be given back."""


def decide(
    snapshot: Snapshot,
    prediction: Prediction,
    state: PolicyState,
    settings: PolicySettings,
    guard: GuardCeiling | None = None,
    *,
    starting: int = 0,
    kept: Mapping[str, float] | None = None,
    giving_back: GivingBack | None = None,
    held: float | None = None,
) -> tuple[Decision, PolicyState]:
    """The limits from `snapshot.t_s` on, and why. Never raises: what is not a sane number counts as not known.

    `guard` is the guard's ceiling for the CPU limit, None while it is at rest. `starting` counts the pods of
    the box that start. `kept` is what must stay free of a resource, lest kubelet evict pods. `held` is what the box has
    of memory, while too little is known of online to take any of it for what is expected; None: enough is. Time must
    not go back from call to call.
    """
    decided, states = {}, {}
    waits = state.resources.get(MEMORY, _NOTHING_YET).waits > 0.0
    for name, law in settings.resources.items():
        row, predicted = RESOURCES[name], prediction.get(name, _UNPREDICTED)
        free = 0.0 if kept is None else kept.get(name, 0.0)
        facts = _facts(row, snapshot, predicted, guard, starting=starting, kept=free)
        facts = structs.replace(facts, box_waits=waits)
        if row.kills:
            facts = structs.replace(facts, giving_back=giving_back, held=held)
        limit, reason, states[name] = _resource(facts, state.resources.get(name, _NOTHING_YET), law)
        decided[name] = ResourceDecision(
            limit=row.whole(limit),
            reason=reason,
            bounds=structs.replace(law.bounds, kept=facts.kept),
            prediction=predicted,
            before=state.before.get(name),
            waits=states[name].waits,
        )
    decision = Decision(snapshot.t_s, decided, guard, settings.window, starting)
    return decision, PolicyState(states, decision.limits)


def left_by_online(
    name: str,
    snapshot: Snapshot,
    prediction: ResourcePrediction,
    settings: PolicySettings,
    *,
    starting: int = 0,
    kept: float = 0.0,
) -> Limit:
    """What the policy would give of one resource by this prediction, whatever it gave before. Never raises."""
    row = RESOURCES[name]
    facts = _facts(row, snapshot, prediction, starting=starting, kept=kept)
    return row.whole(_resource(facts, _NOTHING_YET, settings.resources[name])[0])


def _facts(
    row: Resource,
    snapshot: Snapshot,
    predicted: ResourcePrediction,
    guard: GuardCeiling | None = None,
    *,
    starting: int,
    kept: float,
) -> _RowFacts:
    sample = snapshot.of.get(row.name, _UNKNOWN)
    return _RowFacts(
        t_s=snapshot.t_s,
        row=row,
        capacity=sample.capacity,
        online=sample.online,
        predicted=predicted.level,
        note=predicted.note,
        guard=guard if row.guarded else None,
        starting=starting,
        kept=kept,
    )


def safe_limits(settings: PolicySettings) -> Limits:
    """What the box may have while nothing is known: the floors, or the static limits."""
    laws = settings.resources.items()
    limits = {name: law.limit if isinstance(law, StaticSettings) else law.floor for name, law in laws}
    return {name: RESOURCES[name].whole(limit) for name, limit in limits.items()}


def _resource(facts: _RowFacts, state: ResourceState, settings: ResourceSettings) -> tuple[Limit, str, ResourceState]:
    delay, waits = "", 0.0
    floor = _given_way(facts, settings.floor)
    name = "the floor" if floor == settings.floor else "what online leaves of the floor"
    settings = structs.replace(settings, floor=floor)
    if isinstance(settings, StaticSettings):
        target, why = _fixed(facts, settings)
        law, delay = _stepped(facts, target, state, settings)
    else:
        grown, floor_words = _floor(facts, settings, name)
        target, why = _target(facts, grown, floor_words)
        law, delay, waits = _approach(facts, target, state, grown)
        if law < (kept := _kept(facts, grown)):
            delay = f", and {facts.row.words(kept - law)} more that it has, until more is known of online"
            law, waits = kept, 0.0
    changed_s = state.changed_s if law == state.limit else facts.t_s
    limit, guarded = _guarded(facts, law, settings.floor)
    after = ResourceState(law, changed_s, limit if limit < law else None, waits)
    words = f"{guarded}{why}{delay}"
    if limit == math.inf:
        return UNLIMITED, words, ResourceState()
    if isinstance(settings, StaticSettings) and state.given in (None, limit) and not guarded:
        return limit, words, after
    return limit, f"{change_in_words(state.given, limit, facts.row)}: {words}", after


def _stepped(facts: _RowFacts, target: float, state: ResourceState, settings: StaticSettings) -> tuple[float, str]:
    """A static limit that gives way to online comes back by steps, as online's use moves all the time."""
    step = _STATIC_STEP_RATIO * facts.capacity
    if state.limit is None or target == settings.limit or not state.limit < target < state.limit + step:
        return target, ""
    return state.limit, f", as a raise by less than {facts.row.words(step)} waits"


def change_in_words(before: float | None, limit: float, row: Resource) -> str:
    """How a limit comes to what it is, in words: `lowered 2.00 cores -> 1.00 cores`."""
    amount = row.words
    if before is None:
        return f"set to {amount(limit)}"
    if limit == before:
        return f"held at {amount(limit)}"
    verb, by = ("lowered", before - limit) if limit < before else ("raised", limit - before)
    if amount(before) == amount(limit):
        return f"{verb} by {amount(by)} to {amount(limit)}"
    return f"{verb} {amount(before)} -> {amount(limit)}"


def _guarded(facts: _RowFacts, law: float, floor: float) -> tuple[float, str]:
    """The law's limit, or what the guard leaves of it: never below the floor, and never above the law."""
    guard = facts.guard
    if guard is None or math.isnan(guard.cores):
        return law, ""
    ceiling = min(max(guard.cores, floor), law)
    if ceiling >= law:
        return law, ""
    gives = "no limit" if law == math.inf else facts.row.words(law)
    return ceiling, f"the guard's ceiling ({guard.reason}), below what the policy gives, {gives}: "


def _fixed(facts: _RowFacts, settings: StaticSettings) -> tuple[float, str]:
    """The configured limit, or what the node has less the reserve.

    Less what online uses now, where something must stay free: a prediction says little yet after a start, and a limit
    that was given on purpose is not to depend on it.
    """
    limit = math.inf if settings.limit is UNLIMITED else settings.limit
    why = f"{settings.why}: {'unlimited' if limit == math.inf else facts.row.words(limit)}"
    if not 0.0 < facts.capacity < math.inf:
        return limit, why
    most, words = facts.capacity - settings.reserve, f"all of {facts.row.words(facts.capacity)}"
    words += _less(facts, settings.reserve)
    online, note = _expected(structs.replace(facts, predicted=None))
    if facts.kept and most > facts.capacity - facts.kept - online:
        most, words = in_steps(facts.row, facts.capacity - facts.kept - online), f"{_free(facts)} - {note}"
    most = max(settings.floor, most)
    if limit <= most or (limit == math.inf and not settings.reserve and not facts.kept):
        return limit, why
    return most, f"{words}, below {why}"


def _given_way(facts: _RowFacts, floor: float) -> float:
    """The floor, or what of it online leaves now beside what must stay free: kubelet evicts online pods first."""
    left = facts.capacity - facts.kept - max(facts.online, 0.0)
    if not facts.kept or not math.isfinite(left) or left >= floor:
        return floor
    return max(min(floor, facts.row.firm_floor), in_steps(facts.row, left))


def _floor(facts: _RowFacts, settings: DynamicSettings, name: str) -> tuple[DynamicSettings, str]:
    """The settings with a floor that lets pods start, and what it is then: within what online leaves of the node now.

    floor + the row's `start` per pod that starts, at most `start_most`, the ceiling, and capacity - reserve - online;
    `start_most` where the box's memory waits, as who is to give back has to run for it.
    """
    left = facts.capacity - settings.reserve - max(facts.online, 0.0)
    by = facts.row.start_most if facts.box_waits else min(facts.starting * facts.row.start, facts.row.start_most)
    if not by or not 0.0 < facts.capacity < math.inf or not math.isfinite(left):
        return settings, name
    most = min(left, math.inf if settings.ceiling is None else settings.ceiling)
    floor = min(settings.floor + by, most)
    if floor <= settings.floor:
        return settings, name
    if facts.box_waits:
        return structs.replace(settings, floor=floor), "the floor while memory is given back"
    pods = "1 pod that starts" if facts.starting == 1 else f"{facts.starting} pods that start"
    return structs.replace(settings, floor=floor), f"the floor for {pods}"


def _target(facts: _RowFacts, settings: DynamicSettings, floor: str) -> tuple[float, str]:
    """capacity x watermark - expected online usage - reserve, within floor and ceiling; the floor where not known."""
    amount = facts.row.words
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
    target = in_steps(facts.row, target - expected)
    if target <= settings.floor:
        return settings.floor, f"{floor}, above {why}"
    if settings.ceiling is not None and target > settings.ceiling:
        return settings.ceiling, f"the ceiling, below {why}"
    return target, why


def _expected(facts: _RowFacts) -> tuple[float, str]:
    """What online is expected to use, within the capacity, and that in words: never less than what it uses now."""
    online = min(facts.online, facts.capacity) if math.isfinite(facts.online) else facts.capacity
    if facts.predicted is None or not 0.0 <= facts.predicted < math.inf:
        return online, f"online's present use {facts.row.words(online)}"
    expected = min(facts.predicted, facts.capacity)
    words = f"predicted {facts.row.words(expected)}"
    if online > expected:
        return online, f"{facts.row.words(online)} that online uses now, more than the {words}"
    return expected, words


def _free(facts: _RowFacts) -> str:
    return f"{facts.row.words(facts.capacity)} - {facts.row.words(facts.kept)} kept free, lest kubelet evict pods"


def in_steps(row: Resource, target: float) -> float:
    """The limit in whole steps of its row that is not above the target."""
    if abs(target) < row.step * _MOST_STEPS:
        return math.floor(target / row.step + _LEAST) * row.step
    return target


def _less(facts: _RowFacts, reserve: float) -> str:
    return f" - reserve {facts.row.words(reserve)}" if reserve else ""


def _approach(
    facts: _RowFacts, target: float, state: ResourceState, settings: DynamicSettings
) -> tuple[float, str, float]:
    """How far towards the target this tick goes; the delay, in words, when it stops short of it; and how much of that
    waits for what is to be given back."""
    if state.limit is None:  # of a process that has just begun: what was promised before stands
        return _waited(facts, target, math.inf, settings)
    if target == state.limit:
        return target, "", 0.0
    if target < state.limit:
        return _waited(facts, target, state.limit, settings)
    by, since_s = target - state.limit, facts.t_s - state.changed_s
    threshold = settings.raise_threshold_ratio * facts.capacity
    if not (by > threshold or since_s >= settings.raise_after_s or state.limit < settings.floor):
        amount = facts.row.words
        return (
            state.limit,
            f", as the raise by {amount(by)} is not more than {amount(threshold)} and the last change "
            f"{since_s:.0f} s old, not {settings.raise_after_s:.0f}",
            0.0,
        )
    if settings.max_raise_ratio is not None:
        stride = max(facts.row.step, settings.max_raise_ratio * facts.capacity)
        reach = max(settings.floor, state.limit + stride)
        if reach < target:
            return reach, f", at most {facts.row.words(reach - state.limit)} at a time", 0.0
    return target, "", 0.0


def _waited(facts: _RowFacts, target: float, limit: float, settings: DynamicSettings) -> tuple[float, str, float]:
    """The target and what was promised above it, until that is given back, and within what online leaves now."""
    lent = facts.giving_back
    if lent is None:
        return target, "", 0.0
    promised = min(lent.published_lately_bytes, max(target, lent.published_bytes) + lent.size_bytes)
    reach = in_steps(facts.row, min(limit, promised, _left_now(facts, settings)))
    if not target < reach:
        return target, "", 0.0
    return reach, f", and {facts.row.words(reach - target)} more, as it is to be given back first", reach - target


def _kept(facts: _RowFacts, settings: DynamicSettings) -> float:
    """What the box keeps of what it has, while too little is known of online; 0: nothing."""
    if facts.held is None:
        return 0.0
    ceiling = math.inf if settings.ceiling is None else settings.ceiling
    return in_steps(facts.row, min(facts.held, ceiling, _left_now(facts, settings)))


def _left_now(facts: _RowFacts, settings: DynamicSettings) -> float:
    """What online leaves by its present use; 0: that is not known, or nothing is predicted."""
    if facts.predicted is None or not math.isfinite(facts.predicted + facts.online + facts.capacity):
        return 0.0
    most = min(facts.capacity * settings.watermark_ratio - settings.reserve, facts.capacity - facts.kept)
    return most - max(facts.online, 0.0)


def _in_brackets(note: str) -> str:
    return f" ({note})" if note else ""
