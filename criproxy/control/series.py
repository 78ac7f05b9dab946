"""The histogram predictor: which samples count, their level, the prediction between two, and what a restart keeps."""

import math
from typing import Final, Literal

from msgspec import Struct

from criproxy.control.dayprofile import DayProfile
from criproxy.control.histogram import Buckets, LevelHistogram, MassState

PredictorKind = Literal["histogram", "calibrated"]

COLD_SAMPLES: Final = 3
"""Samples before which the whole capacity is predicted."""

LEVEL_MAX_AGE_HALF_LIVES: Final = 4
"""A restored level older than this says nothing of now."""


class PredictorSettings(Struct, frozen=True):
    """What a predictor should do.

    `half_life_s` and `percentile_ratio` shape the level. `alpha_ratio` is the probability of online exceeding the
    prediction within `horizon_s` seconds, and `cold_start_probes` how many errors are seen before it is trusted
    (calibrated only). After `horizon_s` without a sample either kind predicts the whole capacity.
    """

    kind: PredictorKind = "calibrated"
    half_life_s: float = 900.0
    percentile_ratio: float = 0.9
    alpha_ratio: float = 0.01
    horizon_s: float = 60.0
    cold_start_probes: int = 24


class LearnedState(Struct, frozen=True):
    """The learned half of a calibrated predictor for a checkpoint; pending probes are left out on purpose."""

    horizon_s: float
    scale_capacity: float
    matured: int
    losses: list[float]
    loss_s: float | None
    volatility: float
    errors: list[MassState]
    day: DayProfile


class PredictorState(Struct, frozen=True):
    """A predictor for a checkpoint; `learned` is None when it learns nothing. `learning`: see `HistogramPredictor`."""

    last_s: float | None
    capacity: float | None
    prediction: float | None
    usage: float
    samples: int
    level: MassState
    learned: LearnedState | None
    learning: bool = False


class HistogramPredictor:
    """One resource of one node: max(area percentile, current usage), at most the capacity.

    `learning`: the prediction says little of online, as too few samples were seen, or it falls from what it was then.
    """

    __slots__ = ("capacity", "horizon_s", "last_s", "learning", "level", "prediction", "samples", "usage")

    def __init__(self, settings: PredictorSettings, buckets: Buckets) -> None:
        self.level = LevelHistogram(buckets, settings.half_life_s, settings.percentile_ratio)
        self.horizon_s = settings.horizon_s
        self.last_s: float | None = None
        self.capacity = self.prediction = math.inf
        self.usage = 0.0
        self.samples = 0
        self.learning = True

    def observe(self, t_s: float, wall_s: float, usage: float, capacity: float) -> float:
        """Take a sample of online usage; returns the prediction, within 0 and capacity.

        A sample that is not finite or not newer than the last one is ignored: the last prediction stays, and past the
        horizon it is the whole capacity. Usage below 0 counts as 0. Before any capacity is known the prediction is inf.
        """
        if not self.accepts(t_s, wall_s, usage, capacity):
            return self.current(t_s)
        usage = max(usage, 0.0)
        self.level.add(t_s, usage)
        cold = self.samples < COLD_SAMPLES
        prediction = capacity if cold else min(max(self.level.percentile() or 0.0, usage), capacity)
        return self.hold(t_s, usage, prediction, learning=cold)

    def accepts(self, t_s: float, wall_s: float, usage: float, capacity: float) -> bool:
        """Whether a sample counts: finite, and newer than the last."""
        if not 0.0 < capacity < math.inf:
            return False
        self.capacity = capacity
        return math.isfinite(t_s + wall_s + usage) and (self.last_s is None or t_s > self.last_s)

    def hold(self, t_s: float, usage: float, prediction: float, *, learning: bool) -> float:
        """Keep what was predicted from the sample until the next one."""
        self.last_s, self.usage, self.prediction, self.learning = t_s, usage, prediction, learning
        self.samples += 1
        return prediction

    def current(self, t_s: float) -> float:
        """The prediction; the whole capacity once the horizon has passed without a sample."""
        expired = self.last_s is not None and t_s - self.last_s > self.horizon_s
        return self.capacity if expired else min(self.prediction, self.capacity)

    @property
    def note(self) -> str:
        """Why it is careful, for people; "" when it is not."""
        return f"cold start, {self.samples} of {COLD_SAMPLES} samples" if self.samples < COLD_SAMPLES else ""

    def checkpoint(self, learned: LearnedState | None = None) -> PredictorState:
        """All that a restart should keep; after `restore` of it, predictions continue bit for bit."""
        return PredictorState(
            last_s=self.last_s,
            capacity=self.capacity if self.capacity < math.inf else None,
            prediction=self.prediction if self.prediction < math.inf else None,
            usage=self.usage,
            samples=self.samples,
            level=self.level.decayed.state(),
            learned=learned,
            learning=self.learning,
        )

    def restore(self, state: PredictorState, t_s: float, shift_s: float) -> tuple[str, ...]:
        """Take over what is still of use of a checkpoint (a level that is recent, sound and of our kind).

        Returns, in words, what was not. `t_s` is now, `shift_s` what has to be added to the checkpoint's times to make
        them ours.
        """
        if state.last_s is None or state.capacity is None or state.prediction is None:
            return ()
        last_s = state.last_s + shift_s
        age_s = t_s - last_s
        if not 0.0 <= age_s <= LEVEL_MAX_AGE_HALF_LIVES * self.level.decayed.half_life_s:
            return (f"level: {age_s:.0f} s old",)
        numbers = (state.usage, state.prediction, state.samples)
        if not all(0.0 <= number < math.inf for number in numbers) or not 0.0 < state.capacity < math.inf:
            return ("level: usage, prediction or capacity out of bounds",)
        try:
            self.level.decayed.load(state.level, shift_s)
        except ValueError as error:
            return (f"level: {error}",)
        self.last_s, self.samples, self.capacity = last_s, state.samples, state.capacity
        self.usage, self.prediction = min(state.usage, state.capacity), min(state.prediction, state.capacity)
        self.learning = state.learning
        return ()
