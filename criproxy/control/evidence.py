"""What is seen of harm, joined to what the policy decides: the box has the least that any of these rows leaves it.

    row         what it leaves
    policy      the prediction's law, or a configured limit; `cpu.bound = "evidence"`: all CPUs but the reserve
    guard       its ceiling, for CPU
    ladder      of each restricted resource: floor + share x (what the policy decides - floor)

Who hits the limit of memory is killed, and an experiment must not kill: the box may be innocent, and growing. So what
the ladder leaves of memory is `high`, to which the box is brought down by reclaim, and above which it is slowed down;
the limit stays where the policy has it.

**`cpu.bound = "evidence"`** means the box's CPU limit by what is seen, and not by what is predicted.

The kernel's cpu.idle already lets online run before the box, whenever online wants to. So while nothing tells of harm,
a limit below the node only leaves CPU unused. The prediction, which is what the policy decides, is the next step down:

    state of the ladder       the box's CPU limit
    open (no share)           capacity - reserve, at most the ceiling             "all that online leaves"
    share 1                   what the policy decides from the prediction
    share s                   floor + s x (what the policy decides - floor)
    share 0                   the floor

It is the prediction's law alone that counts, as with `cpu.bound = "prediction"`,

- where the kernel has no cpu.idle: then a quota is what protects online;
- where no signal for CPU has had a value for `LOST_S`: without eyes, nobody may promise that nothing is hurt;
- where the limit is configured (static), as somebody has decided it; and where the capacity is not known.

Always: within floor and ceiling, never above what is open, and never above the guard's ceiling while there is one. The
limit is lowered at once, and raised by `max_raise_ratio` of capacity per decision, where that is set; but what the
ladder gives back is there at once. It gives all back only for the seconds of a return or a probe, to see what that does
to online, and they must not pass before the box has it: else a harmful box looks harmless, and goes free. The
prediction that a share is part of rises in strides itself. How fast the share comes back is the ladder's matter.
"""

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from criproxy.control.policy import DynamicSettings, ResourceSettings, change_in_words, in_steps
from criproxy.control.resources import RESOURCES, Resource
from criproxy.model import CPU, UNLIMITED, Decision, GuardCeiling, ResourceDecision

LOST_S: Final = 30.0
"""How long signals for CPU may have no value, as when a reading has failed, before they count as gone."""

_ROW: Final = RESOURCES[CPU]


class CpuEvidence(Struct, frozen=True):
    """What is known at one decision.

    `seen_s`: how long ago a signal for CPU had a value last; None: never. `share`: how far between the floor (0) and
    the prediction (1) the ladder holds the box; None: it is not held. `guard` None: the guard is at rest.
    `given_back`: at the last decision the ladder held the box, and has let go of it since.
    """

    capacity_cores: float
    cpu_idle: bool
    seen_s: float | None
    share: float | None = None
    guard: GuardCeiling | None = None
    given_back: bool = False


class HarmSeen(Struct, frozen=True):
    """What the ladder's part says. `shares`: see `LadderDecision.shares`.

    `cpu_seen_s`: when a signal for CPU had a value last (CLOCK_BOOTTIME); None: never. `cpu_idle`: the kernel runs the
    box only while nobody else wants to.
    """

    shares: Mapping[str, float] = {}
    cpu_seen_s: float | None = None
    cpu_idle: bool = False


NOTHING_SEEN: Final = HarmSeen()


def joined(
    decision: Decision, laws: Mapping[str, ResourceSettings], seen: HarmSeen, cpu: CpuEvidence | None = None
) -> Decision:
    """The policy's decision, made with `laws`, and what is seen joined to it.

    `cpu`: for `cpu.bound = "evidence"`, None: the prediction bounds CPU. Never raises.
    """
    resources = dict(decision.resources)
    for name, decided in decision.resources.items():
        if name == CPU and cpu is not None and counts(laws[name], cpu):
            resources[name] = bound_by_evidence(decided, laws[name], cpu)
        elif name in seen.shares:
            resources[name] = _held(decided, RESOURCES[name], seen.shares[name], laws[name].bounds.floor)
        elif name == CPU and cpu is not None:
            resources[name] = bound_by_evidence(decided, laws[name], cpu)
    return replace(decision, resources=resources)


def counts(law: ResourceSettings, evidence: CpuEvidence) -> bool:
    """Whether the evidence bounds CPU, and not the prediction."""
    return isinstance(law, DynamicSettings) and not _why_not(evidence)


def _held(decided: ResourceDecision, row: Resource, share: float, floor: float) -> ResourceDecision:
    """What the ladder leaves of a decision: `share` of the way from `floor` to it."""
    if decided.limit is UNLIMITED:
        return decided
    if share >= 1.0:
        return replace(decided, reason=f"{decided.reason}; given no more than the prediction, as online is harmed")
    limit, why = _squeezed(decided.limit, share, row, floor)
    if row.kills:
        words = f"{decided.reason}; reclaimed down to {row.words(limit)}: {why}, as online is harmed"
        return replace(decided, high=limit, reason=words)
    before = None if decided.before is UNLIMITED else decided.before
    words = f"{change_in_words(before, limit, row)}: {why}, as online is harmed ({decided.reason})"
    return replace(decided, limit=row.whole(limit), reason=words)


def bound_by_evidence(decided: ResourceDecision, law: ResourceSettings, evidence: CpuEvidence) -> ResourceDecision:
    """The decision on CPU with the evidence in place of the prediction, as far as it may be.

    `decided`: the policy's, made with the same `law` and the same guard; its `before` is what the last decision gave,
    by evidence or not. Never raises.
    """
    if not isinstance(law, DynamicSettings) or decided.limit is UNLIMITED:
        return decided
    why_not = _why_not(evidence)
    if why_not:
        return replace(decided, reason=f"{decided.reason}; not by evidence, as {why_not}")
    predicted = min(decided.limit, _open(law, evidence))
    if evidence.share is None:
        target, why = _open(law, evidence), _open_in_words(law, evidence)
    else:
        target, why = _squeezed(predicted, evidence.share, _ROW, law.floor)
        why = f"{why} ({decided.reason})"
    limit, guarded = _guarded(target, law, evidence)
    limit, delay = _approached(limit, decided, law, evidence)
    before = None if decided.before is UNLIMITED else decided.before
    reason = f"{change_in_words(before, limit, _ROW)}: {guarded}{why}{delay}"
    return replace(decided, limit=limit, reason=reason, open=evidence.share is None and not guarded)


def _why_not(evidence: CpuEvidence) -> str:
    """Why the prediction's law alone counts, in words; "": the evidence counts."""
    if not 0.0 < evidence.capacity_cores < math.inf:
        return f"the capacity is not known ({evidence.capacity_cores})"
    if evidence.seen_s is None:  # first, as whether the kernel has cpu.idle is read with the signals
        return "no signal for CPU has had a value yet"
    if not evidence.cpu_idle:
        return "the kernel has no cpu.idle, which would let online run first"
    if not evidence.seen_s <= LOST_S:
        return f"no signal for CPU has had a value for {evidence.seen_s:.0f} s"
    return ""


def _open(law: DynamicSettings, evidence: CpuEvidence) -> float:
    """capacity - reserve, within floor and ceiling, in whole steps."""
    most = in_steps(_ROW, evidence.capacity_cores - law.reserve)
    return max(law.floor, most if law.ceiling is None else min(most, law.ceiling))


def _open_in_words(law: DynamicSettings, evidence: CpuEvidence) -> str:
    words = f"open, as nothing tells of harm: all of {_ROW.words(evidence.capacity_cores)}"
    if law.reserve:
        words += f" - reserve {_ROW.words(law.reserve)}"
    limit = _open(law, evidence)
    if limit == law.floor:
        return f"{words}, at least the floor"
    return f"{words}, at most the ceiling" if limit == law.ceiling else words


def _squeezed(predicted: float, share: float, row: Resource, floor: float) -> tuple[float, str]:
    """A share that is no number is none: the floor."""
    if share >= 1.0:
        return predicted, "squeezed to the prediction"
    if not share > 0.0 or predicted <= floor:
        return min(floor, predicted), "squeezed to the floor"
    limit = max(floor, in_steps(row, floor + share * (predicted - floor)))
    return limit, f"squeezed to {100.0 * share:.0f} % of the way from the floor to the prediction"


def _guarded(target: float, law: DynamicSettings, evidence: CpuEvidence) -> tuple[float, str]:
    """What the guard leaves of it: never below the floor, and never more."""
    guard = evidence.guard
    if guard is None or math.isnan(guard.cores):
        return target, ""
    ceiling = min(max(guard.cores, law.floor), target)
    if ceiling >= target:
        return target, ""
    return ceiling, f"the guard's ceiling ({guard.reason}), below what is {_ROW.words(target)}: "


def _approached(
    target: float, decided: ResourceDecision, law: DynamicSettings, evidence: CpuEvidence
) -> tuple[float, str]:
    """How far towards the target this decision goes; the delay, in words, when it stops short of it."""
    before = decided.before
    if law.max_raise_ratio is None or before is None or before is UNLIMITED or target <= before:
        return target, ""
    if evidence.share is not None or evidence.given_back:
        return target, ""
    stride = max(_ROW.step, law.max_raise_ratio * evidence.capacity_cores)
    reach = max(law.floor, before + stride)
    if reach >= target:
        return target, ""
    return reach, f", at most {_ROW.words(reach - before)} at a time"
