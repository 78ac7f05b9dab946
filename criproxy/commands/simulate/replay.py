"""The replay of a trace through the daemon's own predictor and policy, with the trace's times as the clock.

A trial is one trace under one or more plans.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from criproxy.commands.simulate.score import Score, outlook, score
from criproxy.commands.simulate.trace import Trace
from criproxy.control.policy import DynamicSettings, PolicySettings, PolicyState, decide
from criproxy.control.predictor import make_predictor
from criproxy.control.resources import RESOURCES
from criproxy.control.series import PredictorKind, PredictorSettings
from criproxy.model import UNLIMITED, ResourcePrediction, ResourceSample, Snapshot

NEXT_SAMPLE_STEPS: Final = 1.5
"""A horizon of this many steps holds the next sample and no other."""


class Plan(Struct, frozen=True):
    """What to replay with. `floor` is in the resource's unit, `unit` how many of that are 1 in a trace.

    `horizon_s` None reaches until the next sample, whatever the trace's step.
    """

    resource: str
    floor: float
    watermark_ratio: float = 0.9
    kind: PredictorKind = "calibrated"
    alpha_ratio: float = 0.01
    horizon_s: float | None = None
    cold_start_probes: int = 24
    unit: float = 1.0

    def horizon_of(self, trace: Trace) -> float:
        """How far ahead a prediction for this trace reaches, in seconds; for a single sample, anything will do."""
        return NEXT_SAMPLE_STEPS * (trace.step_s or 1.0) if self.horizon_s is None else self.horizon_s


def predict(trace: Trace, plan: Plan) -> "array[float]":
    """The prediction after each sample, in the trace's unit."""
    settings = PredictorSettings(
        kind=plan.kind,
        alpha_ratio=plan.alpha_ratio,
        horizon_s=plan.horizon_of(trace),
        cold_start_probes=plan.cold_start_probes,
    )
    sampling = RESOURCES[plan.resource].sampling
    assert sampling is not None
    predictor = make_predictor(settings, sampling.buckets)
    unit, capacity = plan.unit, trace.capacity * plan.unit
    return array(
        "d",
        (
            predictor.observe(t_s, t_s, usage * unit, capacity) / unit
            for t_s, usage in zip(trace.times_s, trace.usages, strict=True)
        ),
    )


def limit(trace: Trace, predictions: Sequence[float], plan: Plan) -> "array[float]":
    """The box's limit that the policy sets after each sample, in the trace's unit."""
    law = DynamicSettings(floor=plan.floor, watermark_ratio=plan.watermark_ratio)
    name, settings = plan.resource, PolicySettings({plan.resource: law})
    unit, capacity, state = plan.unit, trace.capacity * plan.unit, PolicyState()
    limits = array("d")
    for t_s, used, predicted in zip(trace.times_s, trace.usages, predictions, strict=True):
        snapshot = Snapshot(t_s, {name: ResourceSample(capacity, used * unit, 0.0, used * unit)}, 0.0)
        decision, state = decide(snapshot, {name: ResourcePrediction(predicted * unit)}, state, settings)
        value = decision.resources[name].limit
        limits.append(trace.capacity if value is UNLIMITED else value / unit)
    return limits


class Course(Struct, frozen=True):
    """What was predicted, set and seen at each sample, in the trace's unit. `highest`: see `score.outlook`."""

    predictions: "array[float]"
    limits: "array[float]"
    highest: "array[float]"


class Trial(Struct, frozen=True):
    """A trace and the plans to try on it; they differ in watermark or alpha only. `keep` the courses, too."""

    trace: Trace
    plans: tuple[Plan, ...]
    keep: bool = False

    @property
    def weight(self) -> int:
        return len(self.trace.times_s) * len(self.plans)


class Replayed(Struct, frozen=True):
    """Per plan of a trial: the score, None where there is nothing to score, and the course if it was to be kept."""

    scores: tuple[Score | None, ...]
    courses: tuple[Course, ...]


def run(trial: Trial) -> Replayed:
    trace, scores, courses = trial.trace, [], []
    highest = highest_ahead(trace, trial.plans[0])
    predicted: dict[float, array[float]] = {}
    for plan in trial.plans:
        if plan.alpha_ratio not in predicted:
            predicted = {plan.alpha_ratio: predict(trace, plan)}
        predictions = predicted[plan.alpha_ratio]
        limits = limit(trace, predictions, plan)
        scores.append(score(trace, predictions, limits, highest, plan.watermark_ratio))
        if trial.keep:
            courses.append(Course(predictions, limits, highest))
    return Replayed(tuple(scores), tuple(courses))


def highest_ahead(trace: Trace, plan: Plan) -> "array[float]":
    """`score.outlook`, as far as the plan's predictions reach."""
    return outlook(trace, plan.horizon_of(trace), whole=plan.horizon_s is not None)
