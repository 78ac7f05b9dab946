"""The guard's law: what of the box's CPU limit must go within milliseconds, decided from one fast look at the node.

Predictions are of whole seconds, and a burst comes between two of them. A look that finds online above what the limit
leaves to it squeezes the box to what fits, at once, and gives it back slowly. So does a report that online waits for
CPU, while the node is full. Looks are noisy: an alarm after which online's mean turns out as it was reckoned with was
a false one. It is given back without waiting, and the next must be stronger, until that is forgotten.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from criproxy.model import GuardCeiling

WINDOWS_S: Final = (0.0, 0.2)
"""Over how long online is judged: the last look alone, and for loads that pulse faster than that, some of them."""

NOISE_RATIO: Final = 0.05
NOISE_CORES: Final = 0.1
"""What online may exceed the reckoning by, of capacity and at least: the kernel counts a running task by its ticks."""

FULL_RATIO: Final = 0.95
"""Of capacity. Who waits on a node that is less full does not wait for the box."""

TRIAL_S: Final = 1.0
"""After so long an alarm is judged, by online's mean since."""

LEARNED: Final = 2.0
FORGET_HALF_LIFE_S: Final = 600.0
"""A false alarm raises the bar to so many times its excess, half of which is forgotten after this time."""

RECOVER_RATIO_PER_S: Final = 0.1
"""Of capacity: how fast a ceiling rises once it has been held."""

STEP_CORES: Final = 0.01


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """`floor_cores`: the box is never squeezed below it. `hold_s`: so long after the last alarm the ceiling stays.

    Of `watermark_ratio` of the node's CPUs, the box gets what online and `reserve_cores` leave.
    """

    floor_cores: float
    watermark_ratio: float
    reserve_cores: float = 0.0
    hold_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the last tick has reckoned with. `limit_cores`: the policy's limit, the guard aside; infinite: none.

    `predicted_cores` None: not known.
    """

    capacity_cores: float
    limit_cores: float
    predicted_cores: float | None


@dataclass(frozen=True, slots=True)
class Look:
    """CPU in use over the `seconds` up to `t_s`. `pressure`: the kernel has reported that online waits for CPU."""

    t_s: float
    seconds: float
    online_cores: float
    box_cores: float
    pressure: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """An alarm that is not judged yet: what was reckoned with, and what has come since, in all and by window."""

    reckoned_cores: float
    seconds: float = 0.0
    online_s: float = 0.0
    peaks: tuple[float, ...] = (0.0,) * len(WINDOWS_S)


@dataclass(frozen=True, slots=True)
class GuardState:
    """What has to be remembered from look to look. `bars`: the excess, by window, up to which there is no alarm."""

    ceiling: GuardCeiling | None = None
    alarmed_s: float = -math.inf
    recent: tuple[Look, ...] = ()
    bars: tuple[float, ...] = (0.0,) * len(WINDOWS_S)
    trial: Trial | None = None
    squeezes: int = 0
    false_alarms: int = 0


@dataclass(frozen=True, slots=True)
class GuardStatus:
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
    held = min(outlook.limit_cores, outlook.capacity_cores, _cores(state.ceiling))
    floor = min(settings.floor_cores, outlook.limit_cores)
    room = outlook.capacity_cores * settings.watermark_ratio - settings.reserve_cores
    reckoned = max(room - held, outlook.predicted_cores or 0.0)
    noise = _noise(outlook, settings)
    recent = _recent(look, state.recent)
    means = tuple(_mean_online(recent, window_s) for window_s in WINDOWS_S)
    bars = tuple(max(noise, 0.0 if state.trial else bar) for bar in state.bars)

    alarmed = [mean for mean, bar in zip(means, bars, strict=True) if mean - reckoned > bar]
    step = _fit(room - max(alarmed), floor) if alarmed else math.inf
    waiting = _eased(recent, outlook, held, floor) if look.pressure else math.inf
    after = replace(state, recent=recent, bars=_forgotten(state.bars, look.seconds))
    if min(step, waiting) < held:
        ceiling = GuardCeiling(min(step, waiting), _why(step, waiting, max(means), reckoned))
        trial = state.trial or (Trial(reckoned) if step < held else None)
        after = replace(after, ceiling=ceiling, alarmed_s=look.t_s, trial=trial, squeezes=state.squeezes + 1)
    elif state.ceiling is not None and look.t_s - state.alarmed_s > settings.hold_s:
        after = replace(after, ceiling=_recovered(state.ceiling, look, outlook, room))
    if after.ceiling is not None and after.ceiling.cores >= min(outlook.limit_cores, outlook.capacity_cores):
        after = replace(after, ceiling=None)
    return _judged(look, means, noise, after)


def _noise(outlook: Outlook, settings: GuardSettings) -> float:
    """Half of what the watermark keeps free is there to be used, before anybody has to give way."""
    slack = (1.0 - settings.watermark_ratio) * outlook.capacity_cores
    return max(NOISE_CORES, NOISE_RATIO * outlook.capacity_cores, slack / 2)


def _recent(look: Look, before: tuple[Look, ...]) -> tuple[Look, ...]:
    """The looks that the longest window still reaches into, the last one first."""
    kept, seconds = [look], look.seconds
    for earlier in before:
        if seconds >= WINDOWS_S[-1]:
            break
        kept.append(earlier)
        seconds += earlier.seconds
    return tuple(kept)


def _mean_online(recent: tuple[Look, ...], window_s: float) -> float:
    used = seconds = 0.0
    for look in recent:
        used += look.online_cores * look.seconds
        seconds += look.seconds
        if seconds >= window_s:
            break
    # What has not been seen counts as nothing, so that a window is no shorter than it says.
    return used / max(seconds, window_s)


def _eased(recent: tuple[Look, ...], outlook: Outlook, held: float, floor: float) -> float:
    """Half of what the box uses, when online waits on a full node; infinite otherwise."""
    seconds = sum(look.seconds for look in recent)
    box = sum(look.box_cores * look.seconds for look in recent) / seconds
    online = sum(look.online_cores * look.seconds for look in recent) / seconds
    if online + box < FULL_RATIO * outlook.capacity_cores:
        return math.inf
    return _fit(min(held, box) / 2, floor)


def _fit(cores: float, floor: float) -> float:
    return max(floor, math.floor(cores / STEP_CORES) * STEP_CORES)


def _why(step: float, waiting: float, online: float, reckoned: float) -> str:
    if waiting < step:
        return "online waits for CPU on a full node"
    return f"online stepped up to {online:.2f} cores, {reckoned:.2f} were reckoned with"


def _recovered(ceiling: GuardCeiling, look: Look, outlook: Outlook, room: float) -> GuardCeiling:
    """A little higher, but not above what fits beside what online uses beyond the prediction."""
    cores = ceiling.cores + RECOVER_RATIO_PER_S * outlook.capacity_cores * look.seconds
    if look.online_cores > (outlook.predicted_cores or 0.0):
        cores = min(cores, room - look.online_cores)
    return GuardCeiling(max(ceiling.cores, cores), f"giving back, {ceiling.reason.removeprefix('giving back, ')}")


def _forgotten(bars: tuple[float, ...], seconds: float) -> tuple[float, ...]:
    keep = math.exp2(-seconds / FORGET_HALF_LIFE_S)
    return tuple(bar * keep for bar in bars)


def _judged(look: Look, means: tuple[float, ...], noise: float, state: GuardState) -> GuardState:
    """Go on with the trial; at its end, learn from an alarm that was false, and hold its ceiling no longer."""
    trial = state.trial
    if trial is None:
        return state
    trial = replace(
        trial,
        seconds=trial.seconds + look.seconds,
        online_s=trial.online_s + look.online_cores * look.seconds,
        peaks=tuple(max(peak, mean - trial.reckoned_cores) for peak, mean in zip(trial.peaks, means, strict=True)),
    )
    if trial.seconds < TRIAL_S:
        return replace(state, trial=trial)
    if trial.online_s / trial.seconds > trial.reckoned_cores + noise:
        return replace(state, trial=None)
    bars = tuple(
        max(bar, LEARNED * peak) if peak > noise else bar for bar, peak in zip(state.bars, trial.peaks, strict=True)
    )
    return replace(state, trial=None, bars=bars, alarmed_s=-math.inf, false_alarms=state.false_alarms + 1)


def _cores(ceiling: GuardCeiling | None) -> float:
    return math.inf if ceiling is None else ceiling.cores
