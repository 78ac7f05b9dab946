"""The guard's law: what of the box's CPU limit must go within milliseconds, decided from one fast look at the node.

Predictions are of whole seconds, and a burst comes between two of them. A look that finds online above what the limit
leaves to it squeezes the box to what fits, at once, and gives it back slowly. So does a report that online waits for
CPU, while the node is full. Looks are noisy: an alarm after which online's mean turns out as it was reckoned with was
a false one. It is given back without waiting, and the next must be stronger, until that is forgotten.
"""

import math
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from criproxy.model import GuardCeiling

SLOW_S: Final = 0.15
"""Online is judged by the last look alone and, for loads that pulse, by an average over so long."""

NOISE_RATIO: Final = 0.05
NOISE_CORES: Final = 0.1
"""What online may exceed the reckoning by, of capacity and at least: the kernel counts a running task by its ticks."""

FULL_RATIO: Final = 0.95
"""Of capacity. Who waits on a node that is less full does not wait for the box."""

TRIAL_S: Final = 0.4
"""After so long an alarm is judged, by online's mean since: what is over by then was a pulse, and no step."""

LEARNED: Final = 2.0
FORGET_HALF_LIFE_S: Final = 600.0
"""A false alarm raises the bar to so many times its excess, half of which is forgotten after this time."""

RECOVER_RATIO_PER_S: Final = 0.2
"""Of capacity: how fast a ceiling rises once it has been held."""

STEP_CORES: Final = 0.01

_BACK: Final = "giving back, "


class GuardSettings(Struct, frozen=True):
    """`floor_cores`: the box is never squeezed below it. `hold_s`: so long after the last alarm the ceiling stays.

    Of `watermark_ratio` of the node's CPUs, the box gets what online and `reserve_cores` leave.
    """

    floor_cores: float
    watermark_ratio: float
    reserve_cores: float = 0.0
    hold_s: float = 2.0


class Outlook(Struct, frozen=True):
    """What the last tick has reckoned with. `limit_cores`: the policy's limit, the guard aside; infinite: none.

    `predicted_cores` None: not known.
    """

    capacity_cores: float
    limit_cores: float
    predicted_cores: float | None


class Look(Struct, frozen=True):
    """CPU in use over the `seconds` up to `t_s`. `pressure`: the kernel has reported that online waits for CPU."""

    t_s: float
    seconds: float
    online_cores: float
    box_cores: float
    pressure: bool = False


class Trial(Struct, frozen=True):
    """An alarm that is not judged yet: what was reckoned with, and what has come since, in all and at most."""

    reckoned_cores: float
    seconds: float = 0.0
    online_s: float = 0.0
    peak: float = 0.0
    slow_peak: float = 0.0


class GuardState(Struct, frozen=True):
    """What has to be remembered from look to look.

    `slow_online` and `slow_box` are cores, averaged over `SLOW_S`. `bar` and `slow_bar` are the excess, of one look and
    of the average, up to which there is no alarm.
    """

    ceiling: GuardCeiling | None = None
    alarmed_s: float = -math.inf
    slow_online: float = 0.0
    slow_box: float = 0.0
    bar: float = 0.0
    slow_bar: float = 0.0
    trial: Trial | None = None
    squeezes: int = 0
    false_alarms: int = 0


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


GUARD_OFF: Final = GuardStatus(False, None, "", 0, 0, 0, "")


def watch(look: Look, outlook: Outlook, state: GuardState, settings: GuardSettings) -> GuardState:
    """The state after a look; its ceiling is None, or below the policy's limit and not below the floor.

    Time must not go back from look to look.
    """
    capacity = outlook.capacity_cores
    limit = min(outlook.limit_cores, capacity)
    held = limit if state.ceiling is None else min(limit, state.ceiling.cores)
    room = capacity * settings.watermark_ratio - settings.reserve_cores
    reckoned = max(room - held, outlook.predicted_cores or 0.0)
    # Half of what the watermark keeps free is there to be used, before anybody has to give way.
    noise = max(NOISE_CORES, NOISE_RATIO * capacity, (1.0 - settings.watermark_ratio) * capacity / 2)
    seen = _averaged(look, state)
    excess = _excess(look, seen, reckoned, noise)
    if excess <= 0.0 and not look.pressure and state.ceiling is None and state.trial is None:
        return seen

    floor = min(settings.floor_cores, limit)
    step = _fit(room - reckoned - excess, floor) if excess > 0.0 else math.inf
    eased = _eased(seen, held, capacity, floor) if look.pressure else math.inf
    after, ceiling = seen, state.ceiling
    if min(step, eased) < held:
        ceiling = GuardCeiling(min(step, eased), _why(step, eased, reckoned + excess, reckoned))
        trial = state.trial or (Trial(reckoned) if step < held else None)
        after = replace(seen, alarmed_s=look.t_s, trial=trial, squeezes=state.squeezes + 1)
    elif ceiling is not None and look.t_s - state.alarmed_s > settings.hold_s:
        ceiling = _recovered(ceiling, look, outlook, room)
    if ceiling is not None and ceiling.cores >= limit:
        ceiling = None
    return _judged(look, noise, replace(after, ceiling=ceiling))


def _averaged(look: Look, state: GuardState) -> GuardState:
    weight = -math.expm1(-look.seconds / SLOW_S)
    keep = math.exp2(-look.seconds / FORGET_HALF_LIFE_S)
    return GuardState(
        state.ceiling,
        state.alarmed_s,
        state.slow_online + weight * (look.online_cores - state.slow_online),
        state.slow_box + weight * (look.box_cores - state.slow_box),
        state.bar * keep,
        state.slow_bar * keep,
        state.trial,
        state.squeezes,
        state.false_alarms,
    )


def _excess(look: Look, seen: GuardState, reckoned: float, noise: float) -> float:
    """By how much online exceeds the reckoning, when that is an alarm; else 0. In an alarm, no bar but noise holds."""
    now, lately = look.online_cores - reckoned, seen.slow_online - reckoned
    bar, slow_bar = (0.0, 0.0) if seen.trial else (seen.bar, seen.slow_bar)
    return max(now if now > max(noise, bar) else 0.0, lately if lately > max(noise, slow_bar) else 0.0)


def _eased(seen: GuardState, held: float, capacity: float, floor: float) -> float:
    """Half of what the box uses, when online waits on a full node; infinite otherwise."""
    if seen.slow_online + seen.slow_box < FULL_RATIO * capacity:
        return math.inf
    return _fit(min(held, seen.slow_box) / 2, floor)


def _fit(cores: float, floor: float) -> float:
    return max(floor, math.floor(cores / STEP_CORES) * STEP_CORES)


def _why(step: float, eased: float, online: float, reckoned: float) -> str:
    if eased < step:
        return "online waits for CPU on a full node"
    return f"online stepped up to {online:.2f} cores, {reckoned:.2f} were reckoned with"


def _recovered(ceiling: GuardCeiling, look: Look, outlook: Outlook, room: float) -> GuardCeiling:
    """A little higher, but not above what fits beside what online uses beyond the prediction."""
    cores = ceiling.cores + RECOVER_RATIO_PER_S * outlook.capacity_cores * look.seconds
    if look.online_cores > (outlook.predicted_cores or 0.0):
        cores = min(cores, room - look.online_cores)
    return GuardCeiling(max(ceiling.cores, cores), f"{_BACK}{ceiling.reason.removeprefix(_BACK)}")


def _judged(look: Look, noise: float, state: GuardState) -> GuardState:
    """Go on with the trial; at its end, learn from an alarm that was false, and hold its ceiling no longer."""
    trial = state.trial
    if trial is None:
        return state
    trial = Trial(
        reckoned_cores=trial.reckoned_cores,
        seconds=trial.seconds + look.seconds,
        online_s=trial.online_s + look.online_cores * look.seconds,
        peak=max(trial.peak, look.online_cores - trial.reckoned_cores),
        slow_peak=max(trial.slow_peak, state.slow_online - trial.reckoned_cores),
    )
    if trial.seconds < TRIAL_S:
        return replace(state, trial=trial)
    if trial.online_s / trial.seconds > trial.reckoned_cores + noise:
        return replace(state, trial=None)
    return replace(
        state,
        trial=None,
        alarmed_s=-math.inf,
        bar=max(state.bar, LEARNED * trial.peak),
        slow_bar=max(state.slow_bar, LEARNED * trial.slow_peak if trial.slow_peak > noise else 0.0),
        false_alarms=state.false_alarms + 1,
    )
