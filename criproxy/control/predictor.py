"""Predictors: from samples of online usage to the level that it will not exceed, but with probability alpha.

`HistogramPredictor` is the level alone: a decayed area percentile. `CalibratedPredictor` adds a margin that it learns
from its own past errors, so that alpha holds on any node without tuning. Both work in the unit of their buckets (cores
or bytes); time is CLOCK_BOOTTIME, wall time serves the time of day only.
"""

import math
from array import array
from collections import deque
from typing import Final

from msgspec import Struct

from criproxy.control.dayprofile import DayProfile
from criproxy.control.histogram import Buckets, ErrorHistogram
from criproxy.control.series import COLD_SAMPLES, HistogramPredictor, LearnedState, PredictorSettings, PredictorState

CAPACITY_CHANGE_RATIO: Final = 0.05
"""A capacity that changed by more makes errors worthless that are scaled by it."""

ERROR_HALF_LIFE_S: Final = 3 * 86400.0
LOSS_HALF_LIFE_S: Final = 12 * 3600.0
VOLATILITY_HALF_LIFE_S: Final = 1800.0
RELEASE_HALF_LIFE_S: Final = 900.0
PROBES_PER_HORIZON: Final = 12

LEVEL_SCALE_RATIO: Final = 0.05
USAGE_SCALE_RATIO: Final = 0.01
"""Of capacity: the unit of errors of what starts from the level, and the least of what starts from the usage."""

FALLING_RATIO: Final = 0.05
"""The share by which a prediction must be held above the forecast, for its note to say so."""

LEARNED_MAX_AGE_S: Final = 7 * 86400.0


class _Expert(Struct):
    """One way to forecast: base + scale * (quantile of the own past errors, in units of scale).

    `loss`: recent pinball loss at alpha, as a share of capacity: what exceeds the forecast costs most.
    """

    name: str
    errors: ErrorHistogram
    base: float = 0.0
    scale: float = 0.0
    forecast: float = 0.0
    loss: float = 0.0

    def aim(self, base: float, scale: float, capacity: float) -> None:
        margin = self.errors.quantile()
        self.base, self.scale = base, scale
        self.forecast = capacity if margin is None else base + scale * margin


class CalibratedPredictor:
    """The level, and a margin learned from past errors. See `HistogramPredictor`.

    Three experts forecast, and of those that have errors the one with the smallest recent loss speaks: A starts from
    the level, B from the current usage, S from the level and the time of day. Their forecasts are kept as probes until
    the horizon has passed; the highest usage seen meanwhile makes the error. Between risk and loss it falls slowly, and
    never predicts less than the current usage.
    """

    def __init__(self, settings: PredictorSettings, buckets: Buckets) -> None:
        self.series = HistogramPredictor(settings, buckets)
        self._alpha_ratio = settings.alpha_ratio
        self._cold_start_probes = settings.cold_start_probes
        self._experts = tuple(_Expert(name, self._no_errors()) for name in "ABS")
        self.spoke = "A"
        self._probes: deque[array[float]] = deque()
        """Per probe: when issued, highest usage since (-1: none yet), then base, scale and forecast per expert."""
        self._probed_s = -math.inf
        self._matured = 0
        self._loss_s: float | None = None
        self._volatility = 0.0
        self._day = DayProfile()
        self._scale_capacity = math.inf
        self._forecasted = math.inf
        """The last prediction, had it not to fall slowly."""

    def observe(self, t_s: float, wall_s: float, usage: float, capacity: float) -> float:
        series = self.series
        if not series.accepts(t_s, wall_s, usage, capacity):
            return series.current(t_s)
        usage = max(usage, 0.0)
        self._rescale(capacity)
        self._mature(t_s, usage, capacity)
        series.level.add(t_s, usage)
        level = series.level.percentile() or 0.0
        dt_s = 0.0
        if series.last_s is not None:
            dt_s = t_s - series.last_s
            step = abs(usage - series.usage)
            self._volatility += (1.0 - 2.0 ** (-dt_s / VOLATILITY_HALF_LIFE_S)) * (step - self._volatility)
        self._day.add(wall_s, usage)
        prediction = self._forecast(wall_s, usage, level, capacity)
        learning = series.samples < COLD_SAMPLES or self._matured < self._cold_start_probes
        if series.samples < COLD_SAMPLES:
            prediction = capacity
        elif learning:
            prediction = max(prediction, 1.25 * level, usage + 0.1 * capacity)
        prediction = max(prediction, usage)
        self._forecasted = prediction
        if series.last_s is not None:
            falling = series.prediction * 2.0 ** (-dt_s / RELEASE_HALF_LIFE_S)
            learning = learning or (series.learning and falling > prediction)
            prediction = max(prediction, falling)
        if t_s - self._probed_s >= series.horizon_s / PROBES_PER_HORIZON:
            self._issue(t_s, capacity)
        return series.hold(t_s, usage, min(prediction, capacity), learning=learning)

    def _forecast(self, wall_s: float, usage: float, level: float, capacity: float) -> float:
        a, b, s = self._experts
        a.aim(level, LEVEL_SCALE_RATIO * capacity, capacity)
        b.aim(usage, USAGE_SCALE_RATIO * capacity + self._volatility, capacity)
        s.aim(max(level, self._day.peak(wall_s, self.series.horizon_s)), LEVEL_SCALE_RATIO * capacity, capacity)
        best = min(self._experts, key=lambda expert: (expert.errors.decayed.total <= 0.0, expert.loss))
        self.spoke = best.name
        return best.forecast

    def _issue(self, t_s: float, capacity: float) -> None:
        """Their spacing bounds the pending probes: never more than 13."""
        a, b, s = self._experts
        forecasts = (min(a.forecast, capacity), min(b.forecast, capacity), min(s.forecast, capacity))
        row = (t_s, -1.0, a.base, a.scale, forecasts[0], b.base, b.scale, forecasts[1], s.base, s.scale, forecasts[2])
        self._probes.append(array("d", row))
        self._probed_s = t_s

    def _mature(self, t_s: float, usage: float, capacity: float) -> None:
        """Show the sample to the pending probes, and learn from those whose horizon has passed."""
        horizon_s, probes = self.series.horizon_s, self._probes
        for probe in probes:
            if usage > probe[1] and t_s <= probe[0] + horizon_s:
                probe[1] = usage
        while probes and probes[0][0] + horizon_s <= t_s:
            probe = probes.popleft()
            if probe[1] >= 0.0:
                self._learn(t_s, probe, capacity)

    def _learn(self, t_s: float, probe: "array[float]", capacity: float) -> None:
        """loss <- loss * 2^(-dt/half_life) + ((1 - alpha) * over  or  alpha * under) / capacity."""
        kept = 1.0 if self._loss_s is None else 2.0 ** ((self._loss_s - t_s) / LOSS_HALF_LIFE_S)
        alpha_ratio, peak = self._alpha_ratio, probe[1]
        for at, expert in zip((2, 5, 8), self._experts, strict=True):
            expert.errors.add(t_s, (peak - probe[at]) / probe[at + 1])
            over = peak - probe[at + 2]
            cost = (1.0 - alpha_ratio) * over if over > 0.0 else -alpha_ratio * over
            expert.loss = expert.loss * kept + cost / capacity
        self._loss_s = t_s
        self._matured += 1

    def _rescale(self, capacity: float) -> None:
        """A and S measure errors in shares of the capacity, so another capacity makes them start again.

        Until they have errors again B speaks, which keeps its own.
        """
        if self._scale_capacity == math.inf:
            self._scale_capacity = capacity
        elif abs(capacity - self._scale_capacity) > CAPACITY_CHANGE_RATIO * self._scale_capacity:
            self._scale_capacity = capacity
            self._probes.clear()
            for expert in (self._experts[0], self._experts[2]):
                expert.errors = self._no_errors()

    def _no_errors(self) -> ErrorHistogram:
        return ErrorHistogram(ERROR_HALF_LIFE_S, 1.0 - self._alpha_ratio)

    @property
    def learning(self) -> bool:
        return self.series.learning

    @property
    def note(self) -> str:
        if cold := self.series.note:
            return cold
        if self._matured < self._cold_start_probes:
            return f"learning, {self._matured} of {self._cold_start_probes} probes"
        falling = self._forecasted < self.series.prediction * (1.0 - FALLING_RATIO)
        return "falling slowly from an earlier, higher one" if falling else ""

    def checkpoint(self) -> PredictorState:
        if self._scale_capacity == math.inf:
            return self.series.checkpoint()
        learned = LearnedState(
            horizon_s=self.series.horizon_s,
            scale_capacity=self._scale_capacity,
            matured=self._matured,
            losses=[expert.loss for expert in self._experts],
            loss_s=self._loss_s,
            volatility=self._volatility,
            errors=[expert.errors.decayed.state() for expert in self._experts],
            day=self._day.copy(),
        )
        return self.series.checkpoint(learned)

    def restore(self, state: PredictorState, t_s: float, shift_s: float) -> tuple[str, ...]:
        lost = self.series.restore(state, t_s, shift_s)
        if state.learned is None or state.last_s is None:
            return lost
        age_s = t_s - state.last_s - shift_s
        if not 0.0 <= age_s <= LEARNED_MAX_AGE_S:
            return (*lost, f"learned margin: {age_s:.0f} s old")
        try:
            self._restore_learned(state.learned, shift_s)
        except ValueError as error:
            return (*lost, f"learned margin: {error}")
        return lost

    def _restore_learned(self, learned: LearnedState, shift_s: float) -> None:
        if learned.horizon_s != self.series.horizon_s:
            raise ValueError(f"made for a horizon of {learned.horizon_s:g} s, now {self.series.horizon_s:g} s")
        numbers = (*learned.losses, learned.volatility, learned.matured)
        if (
            len(learned.errors) != len(self._experts)
            or len(learned.losses) != len(self._experts)
            or not all(0.0 <= number < math.inf for number in numbers)
            or not 0.0 < learned.scale_capacity < math.inf
            or not math.isfinite((learned.loss_s or 0.0) + shift_s)
        ):
            raise ValueError("its numbers are out of bounds")
        histograms = [self._no_errors() for _ in self._experts]
        for histogram, errors in zip(histograms, learned.errors, strict=True):
            histogram.decayed.load(errors, shift_s)
        day = learned.day.copy()
        for expert, histogram, loss in zip(self._experts, histograms, learned.losses, strict=True):
            expert.errors, expert.loss = histogram, loss
        self._day, self._scale_capacity = day, learned.scale_capacity
        self._matured, self._volatility = learned.matured, learned.volatility
        self._loss_s = None if learned.loss_s is None else learned.loss_s + shift_s


Predictor = HistogramPredictor | CalibratedPredictor


def make_predictor(settings: PredictorSettings, buckets: Buckets) -> Predictor:
    return (CalibratedPredictor if settings.kind == "calibrated" else HistogramPredictor)(settings, buckets)
