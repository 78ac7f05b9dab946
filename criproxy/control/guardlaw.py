"""The guard's law: how far the box's CPU limit must sink within milliseconds, decided from one quick look at the node.

How it works
------------
`expected` is what online may use beside the box as it is bounded now:

    room     = watermark * capacity - reserve
    expected = max(room - limit in force, prediction)
    excess   = online's usage - expected            of the last look, and of an average over `SLOW_S`

An excess above the noise is an *alarm*: the box is squeezed to `room - expected - excess`. A report of the kernel's
that online waits for CPU, while the node is full, halves what the box uses. The ceiling that this leaves

- holds for `hold_s` after the last alarm, then rises by `RECOVER_RATIO_PER_S` of capacity each second, but not above
  what fits beside what online uses;
- goes as soon as it is no lower than the limit of the control loop.

Looks are noisy, so each alarm is judged after `JUDGED_AFTER_S`. When online's mean since then is as expected, it was a
pulse and no step: a *false alarm*. Its ceiling need not be held, and its excess times `LEARNED` becomes the threshold
of the next alarm. Half of a threshold is forgotten each `FORGET_HALF_LIFE_S`. While an alarm is not judged yet, only
the noise counts, so that a step that goes on rising is followed.
"""

import math
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from criproxy.model import GuardCeiling

SLOW_S: Final = 0.15
"""Online is judged by the last look alone and, for loads that pulse, by an average over this time."""

NOISE_RATIO: Final = 0.05
NOISE_CORES: Final = 0.1
"""Excess that is none: of capacity, and at least. The kernel counts a running task by its ticks."""

FULL_RATIO: Final = 0.95
"""Of capacity. Who waits on a node that is less full does not wait for the box."""

JUDGED_AFTER_S: Final = 0.4
LEARNED: Final = 2.0
FORGET_HALF_LIFE_S: Final = 600.0
RECOVER_RATIO_PER_S: Final = 0.2

STEP_CORES: Final = 0.01

_BACK: Final = "giving back, "
_WAITS: Final = "online waits for CPU on a full node"


class GuardLaw(Struct, frozen=True):
    """The law's parameters. `floor_cores`: the box is never squeezed below it.

    Of `watermark_ratio` of the node's CPUs, the box gets what online and `reserve_cores` leave.
    """

    floor_cores: float
    watermark_ratio: float
    reserve_cores: float = 0.0
    hold_s: float = 2.0


class Outlook(Struct, frozen=True):
    """What the control loop's last decision was made from. `limit_cores`: its limit, the guard aside; infinite: none.

    `predicted_cores`: of online's usage; None: not known.
    """

    capacity_cores: float
    limit_cores: float
    predicted_cores: float | None

    @property
    def expects_all(self) -> bool:
        """Whether online may use all of the node at any time, so that nothing but its waiting is an alarm."""
        return self.predicted_cores is not None and self.predicted_cores >= self.capacity_cores


class UsageSample(Struct, frozen=True):
    """CPU in use over the `seconds` up to `t_s`."""

    t_s: float
    seconds: float
    online_cores: float
    box_cores: float


class PendingAlarm(Struct, frozen=True):
    """An alarm that is not judged yet: what was expected of online, and what has come in the `seconds` since.

    `online_s` is CPU time; `peak` and `slow_peak` are the greatest excess of a look and of the average.
    """

    expected_cores: float
    seconds: float = 0.0
    online_s: float = 0.0
    peak: float = 0.0
    slow_peak: float = 0.0


class GuardState(Struct, frozen=True):
    """What has to be remembered from look to look.

    `slow_online` and `slow_box` are cores, averaged over `SLOW_S`. `threshold` and `slow_threshold` are the excess, of
    one look and of the average, up to which there is no alarm.
    """

    ceiling: GuardCeiling | None = None
    alarmed_s: float = -math.inf
    slow_online: float = 0.0
    slow_box: float = 0.0
    threshold: float = 0.0
    slow_threshold: float = 0.0
    pending: PendingAlarm | None = None
    squeezes: int = 0
    false_alarms: int = 0

    @property
    def is_holding(self) -> bool:
        """Whether the box is restricted, or an alarm is yet to be judged."""
        return self.ceiling is not None or self.pending is not None


class GuardStatus(Struct, frozen=True):
    """The guard for people. `ceiling_cores` and `reason`: None and "" while it is at rest.

    `pressure` says whether the kernel reports that online waits, or why not.
    """

    enabled: bool
    ceiling_cores: float | None
    reason: str
    squeezes: int
    false_alarms: int
    failures: int
    pressure: str


def watch(sample: UsageSample, pressure: bool, outlook: Outlook, state: GuardState, law: GuardLaw) -> GuardState:
    """The state after a look; its ceiling is None, or below the policy's limit and not below the floor.

    `pressure`: the kernel has reported that online waits for CPU. Time must not go back from look to look.
    """
    capacity = outlook.capacity_cores
    limit = min(outlook.limit_cores, capacity)
    held = limit if state.ceiling is None else min(limit, state.ceiling.cores)
    room = capacity * law.watermark_ratio - law.reserve_cores
    expected = max(room - held, outlook.predicted_cores or 0.0)
    # Half of what the watermark keeps free is there to be used, before anybody has to give way.
    noise = max(NOISE_CORES, NOISE_RATIO * capacity, (1.0 - law.watermark_ratio) * capacity / 2)
    seen = _averaged(sample, state)
    excess = _excess(sample, seen, expected, noise)
    if excess <= 0.0 and not pressure and not state.is_holding:
        return seen

    floor = min(law.floor_cores, limit)
    step = _fit(room - expected - excess, floor) if excess > 0.0 else math.inf
    eased = _eased(seen, held, capacity, floor) if pressure else math.inf
    after, ceiling = seen, state.ceiling
    if min(step, eased) < held:
        ceiling = GuardCeiling(min(step, eased), _why(step, eased, expected + excess, expected))
        pending = state.pending or (PendingAlarm(expected) if step < held else None)
        after = replace(seen, alarmed_s=sample.t_s, pending=pending, squeezes=state.squeezes + 1)
    elif ceiling is not None and sample.t_s - state.alarmed_s > law.hold_s:
        ceiling = _recovered(ceiling, sample, outlook, room)
    if ceiling is not None and ceiling.cores >= limit:
        ceiling = None
    return _judged(sample, noise, replace(after, ceiling=ceiling))


def acquitted(state: GuardState) -> GuardState:
    """The box is not what online waits for: a ceiling that was set for it proves needless, and goes."""
    if state.ceiling is None or state.ceiling.reason.removeprefix(_BACK) != _WAITS:
        return state
    return replace(state, ceiling=None, alarmed_s=-math.inf, false_alarms=state.false_alarms + 1)


def _averaged(sample: UsageSample, state: GuardState) -> GuardState:
    weight = -math.expm1(-sample.seconds / SLOW_S)
    keep = math.exp2(-sample.seconds / FORGET_HALF_LIFE_S)
    return replace(
        state,
        slow_online=state.slow_online + weight * (sample.online_cores - state.slow_online),
        slow_box=state.slow_box + weight * (sample.box_cores - state.slow_box),
        threshold=state.threshold * keep,
        slow_threshold=state.slow_threshold * keep,
    )


def _excess(sample: UsageSample, seen: GuardState, expected: float, noise: float) -> float:
    """By how much online exceeds what is expected, when that is an alarm; else 0."""
    now, slow = sample.online_cores - expected, seen.slow_online - expected
    threshold, slow_threshold = (0.0, 0.0) if seen.pending else (seen.threshold, seen.slow_threshold)
    return max(now if now > max(noise, threshold) else 0.0, slow if slow > max(noise, slow_threshold) else 0.0)


def _eased(seen: GuardState, held: float, capacity: float, floor: float) -> float:
    """Half of what the box uses, when online waits on a full node; infinite otherwise."""
    if seen.slow_online + seen.slow_box < FULL_RATIO * capacity:
        return math.inf
    return _fit(min(held, seen.slow_box) / 2, floor)


def _fit(cores: float, floor: float) -> float:
    return max(floor, math.floor(cores / STEP_CORES) * STEP_CORES)


def _why(step: float, eased: float, online: float, expected: float) -> str:
    if eased < step:
        return _WAITS
    return f"online stepped up to {online:.2f} cores, {expected:.2f} were expected"


def _recovered(ceiling: GuardCeiling, sample: UsageSample, outlook: Outlook, room: float) -> GuardCeiling:
    """A little higher, but not above what fits beside what online uses beyond the prediction."""
    cores = ceiling.cores + RECOVER_RATIO_PER_S * outlook.capacity_cores * sample.seconds
    if sample.online_cores > (outlook.predicted_cores or 0.0):
        cores = min(cores, room - sample.online_cores)
    return GuardCeiling(max(ceiling.cores, cores), f"{_BACK}{ceiling.reason.removeprefix(_BACK)}")


def _judged(sample: UsageSample, noise: float, state: GuardState) -> GuardState:
    """Go on with a pending alarm; when it is time to judge it, learn from one that was false, and hold it no longer."""
    alarm = state.pending
    if alarm is None:
        return state
    alarm = replace(
        alarm,
        seconds=alarm.seconds + sample.seconds,
        online_s=alarm.online_s + sample.online_cores * sample.seconds,
        peak=max(alarm.peak, sample.online_cores - alarm.expected_cores),
        slow_peak=max(alarm.slow_peak, state.slow_online - alarm.expected_cores),
    )
    if alarm.seconds < JUDGED_AFTER_S:
        return replace(state, pending=alarm)
    if alarm.online_s / alarm.seconds > alarm.expected_cores + noise:
        return replace(state, pending=None)
    return replace(
        state,
        pending=None,
        alarmed_s=-math.inf,
        threshold=max(state.threshold, LEARNED * alarm.peak),
        slow_threshold=max(state.slow_threshold, LEARNED * alarm.slow_peak if alarm.slow_peak > noise else 0.0),
        false_alarms=state.false_alarms + 1,
    )
