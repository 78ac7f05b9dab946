"""`criproxy simulate`: reads, spreads the work, and tells the results."""

import sys
import time
from array import array
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from criproxy.commands.simulate import SimulateError, options, output, plot, report
from criproxy.commands.simulate.baselines import tuned as tuned_margin
from criproxy.commands.simulate.example import example
from criproxy.commands.simulate.findings import Findings, Flaw
from criproxy.commands.simulate.load import load
from criproxy.commands.simulate.options import Options
from criproxy.commands.simulate.replay import Plan
from criproxy.commands.simulate.report import Tuned
from criproxy.commands.simulate.score import SHORT_TRACE_S, SHORT_WARM_UP_S, WARM_UP_S, Score
from criproxy.commands.simulate.simulation import CANDIDATES, Outcome, Trial, judge, margins, run
from criproxy.commands.simulate.summary import Summary, summarise
from criproxy.commands.simulate.sweep import Point, Sweep, advice, recommended
from criproxy.commands.simulate.trace import Trace
from criproxy.commands.simulate.work import Bar, Progress, available_cpus, spread


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status; the results go to stdout, what was wrong with the input and the progress to stderr."""
    try:
        simulate(options.parse(arguments), Bar(sys.stderr, time.monotonic))
    except SimulateError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def simulate(chosen: Options, progress: Progress) -> None:
    """Raises SimulateError."""
    if chosen.plot:
        plot.require()
    traces, findings = _traces(chosen)
    keep = bool(chosen.predictions or (chosen.plot and not chosen.sweep))
    outcomes = _replay(traces, (chosen.plan,), progress, keep=keep)
    scores = [outcome.scores[0] for outcome in outcomes]
    summary = _summary(traces, scores, chosen.plan.alpha_ratio)
    for trace, score in zip(traces, scores, strict=True):
        if score is None:
            findings.note(Flaw.TOO_SHORT, trace.id)
    sys.stderr.writelines(f"note: {line}\n" for line in findings.lines())
    _tell(report.scores(traces, scores, summary, brief=chosen.brief), [report.LEGEND])
    _tell(report.words(traces, summary, chosen.plan, chosen.unit))
    content = output.result(chosen.plan, traces, scores, summary, findings)
    if chosen.compare:
        content["compared"] = _compare(traces, summary, chosen, progress)
    if chosen.sweep:
        content["swept"] = _sweep(traces, chosen, chosen.sweep, progress)
    elif chosen.plot:
        panels = [plot.Panel(traces[i], outcomes[i].courses[0], scores[i]) for i in plot.pick(scores)]
        plot.draw_courses(chosen.plot, panels, chosen.plan, chosen.unit)
    if chosen.json:
        output.write_json(chosen.json, content)
    if chosen.predictions:
        output.write_predictions(chosen.predictions, traces, [outcome.courses[0] for outcome in outcomes])


def _traces(chosen: Options) -> tuple[list[Trace], Findings]:
    if chosen.capacity is None:
        return example(), Findings()
    return load(chosen.files, chosen.capacity, chosen.family)


def _replay(traces: Sequence[Trace], plans: tuple[Plan, ...], progress: Progress, *, keep: bool) -> list[Outcome]:
    trials = [Trial(trace, plans, keep) for trace in traces]
    return spread("replaying", run, trials, available_cpus(), progress)


def _summary(traces: Sequence[Trace], scores: Sequence[Score | None], alpha_ratio: float) -> Summary:
    scored = [(trace, score) for trace, score in zip(traces, scores, strict=True) if score is not None]
    if not scored:
        raise SimulateError(
            f"nothing to score: no series goes on for longer than the warm-up ({SHORT_WARM_UP_S / 3600:g} h, or "
            f"{WARM_UP_S / 3600:g} h of one longer than {SHORT_TRACE_S / 86400:g} days); give a longer record"
        )
    return summarise(scored, alpha_ratio)


def _compare(traces: Sequence[Trace], ours: Summary, chosen: Options, progress: Progress) -> list[dict[str, Any]]:
    """Each baseline with the margin that does best; as often violated as ours may be, or is if that is more."""
    trials, jobs = [Trial(trace, (chosen.plan,)) for trace in traces], available_cpus()
    allowed_ratio = max(chosen.plan.alpha_ratio, ours.overall.score.violation_ratio)
    needed = spread("tuning baselines", margins, trials, jobs, progress)
    sizes = {
        one: tuned_margin(_by_family(traces, [found[one] for found in needed]), allowed_ratio) for one in CANDIDATES
    }
    del needed
    judged = spread("judging baselines", partial(judge, sizes=sizes), trials, jobs, progress)
    best: dict[str, Tuned] = {}
    for one in CANDIDATES:
        summary = _summary(traces, [scores[one] for scores in judged], chosen.plan.alpha_ratio)
        tried = Tuned(one, sizes[one], summary)
        if one.baseline not in best or best[one.baseline].share_ratio < tried.share_ratio:
            best[one.baseline] = tried
    rows = list(best.values())
    _tell(
        [f"Baselines, each with the one margin that on this very data is violated in {allowed_ratio:.2%} of samples:"],
        report.comparison(ours, rows, chosen.plan),
    )
    return output.compared(rows)


def _by_family(traces: Sequence[Trace], needed: Sequence["array[float]"]) -> dict[str, list["array[float]"]]:
    by_family: dict[str, list[array[float]]] = {}
    for trace, one in zip(traces, needed, strict=True):
        if one:
            by_family.setdefault(trace.family, []).append(one)
    return by_family


def _sweep(traces: Sequence[Trace], chosen: Options, sweep: Sweep, progress: Progress) -> list[dict[str, Any]]:
    plans = sweep.plans(chosen.plan)
    outcomes = _replay(traces, plans, progress, keep=False)
    points = [
        Point(value, _summary(traces, [outcome.scores[i] for outcome in outcomes], plan.alpha_ratio))
        for i, (value, plan) in enumerate(zip(sweep.values, plans, strict=True))
    ]
    best = recommended(points, chosen.plan)
    _tell(report.swept(sweep, points, chosen.plan), [""], advice(sweep, points, chosen.plan))
    if chosen.plot:
        plot.draw_sweep(chosen.plot, sweep, points, best, chosen.plan)
    return output.swept(points, best)


def _tell(*blocks: Iterable[str]) -> None:
    """Paragraphs on stdout, an empty line after them."""
    sys.stdout.writelines(f"{line}\n" for block in blocks for line in block)
    sys.stdout.write("\n")
