"""What is done to one trace: replayed and judged, under one or more plans or under the baselines."""

from array import array
from collections.abc import Mapping

from msgspec import Struct

from criproxy.commands.simulate.baselines import BASELINES, Margin, needed_margins, with_margin
from criproxy.commands.simulate.replay import Plan, limit, predict
from criproxy.commands.simulate.score import Score, outlook, score
from criproxy.commands.simulate.trace import Trace


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


class Outcome(Struct, frozen=True):
    """Per plan of a trial: the score, None where there is nothing to score, and the course if it was to be kept."""

    scores: tuple[Score | None, ...]
    courses: tuple[Course, ...]


def run(trial: Trial) -> Outcome:
    """Raises ValueError on a plan out of bounds."""
    trace, scores, courses = trial.trace, [], []
    highest = _outlook(trace, trial.plans[0])
    predicted: dict[float, array[float]] = {}
    for plan in trial.plans:
        if plan.alpha_ratio not in predicted:
            predicted = {plan.alpha_ratio: predict(trace, plan)}
        predictions = predicted[plan.alpha_ratio]
        limits = limit(trace, predictions, plan)
        scores.append(score(trace, predictions, limits, highest, plan.watermark_ratio))
        if trial.keep:
            courses.append(Course(predictions, limits, highest))
    return Outcome(tuple(scores), tuple(courses))


class Candidate(Struct, frozen=True):
    """A baseline, by its name, and its margin; the margin's size is found by tuning."""

    baseline: str
    margin: Margin


CANDIDATES: tuple[Candidate, ...] = tuple(
    Candidate(baseline.name, margin) for baseline in BASELINES for margin in baseline.margins
)


def margins(trial: Trial) -> dict[Candidate, "array[float]"]:
    """Per candidate, the margins that the trace's samples needed (`baselines.needed_margins`)."""
    trace, plan = trial.trace, trial.plans[0]
    highest, found = _outlook(trace, plan), {}
    for baseline in BASELINES:
        forecast = baseline.forecast(trace, plan)
        for margin in baseline.margins:
            found[Candidate(baseline.name, margin)] = needed_margins(forecast, trace, margin, highest)
    return found


def judge(trial: Trial, sizes: Mapping[Candidate, float]) -> dict[Candidate, Score | None]:
    """The score of each candidate on the trace, with its margin of the given size."""
    trace, plan = trial.trace, trial.plans[0]
    highest, found = _outlook(trace, plan), {}
    for baseline in BASELINES:
        forecast = baseline.forecast(trace, plan)
        for margin in baseline.margins:
            candidate = Candidate(baseline.name, margin)
            predictions = with_margin(forecast, trace.capacity, margin, sizes[candidate])
            found[candidate] = score(trace, predictions, None, highest, plan.watermark_ratio)
    return found


def _outlook(trace: Trace, plan: Plan) -> "array[float]":
    return outlook(trace, plan.horizon_of(trace), whole=plan.horizon_s is not None)
