"""`criproxy simulate`: its options, and what it does: read, replay on all CPUs, and tell the results."""

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, get_args

from msgspec import Struct

from criproxy.commands.simulate import SimulateError, plot, report, signals_command
from criproxy.commands.simulate.cells import CPU_UNITS, UNITS
from criproxy.commands.simulate.cluster import command as cluster_command
from criproxy.commands.simulate.parallel import Bar, available_cpus, spread
from criproxy.commands.simulate.readers import load
from criproxy.commands.simulate.replay import Plan, Replayed, Trial, run
from criproxy.commands.simulate.score import summarise
from criproxy.commands.simulate.sweep import Point, Sweep, advice, parse_sweep, recommended
from criproxy.commands.simulate.trace import Findings, Flaw, Trace, example
from criproxy.config.settings import Config
from criproxy.control.resources import RESOURCES
from criproxy.control.series import PredictorKind, PredictorSettings

ADVERTISED_FROM_S: Final = 3600.0
"""Horizons from here on are those of a resource that the node advertises: they may be violated more often."""

ADVERTISED_ALPHA: Final = 0.05
ADVERTISED_COLD_START_PROBES: Final = 288
"""A day of them at a horizon of an hour."""

SIGNALS: Final = "--signals"
"""With it, the other options are those of `signals_command`."""

CLUSTER: Final = "--cluster"
"""With it, the other options are those of `cluster.command`."""

_EPILOG: Final = """\
FILE is CSV, plain or gzip, or the JSON answer of a Prometheus range query; - reads standard input. CSV has the columns
id, t (unix seconds or a date) and u, in any order, or just these three without a header; or a time and a column for
each node, as Grafana has it; or it is what sadf -d writes. Values may have units (26.6%, 1.5 GiB). Usage is that of the
online pods alone; on a node without offline pods yet, that is the node's. Ask Prometheus for, say,
  sum by (instance) (rate(node_cpu_seconds_total{mode!~"idle|iowait|steal"}[1m]))
  node_memory_MemTotal_bytes - node_memory_MemAvailable_bytes
through /api/v1/query_range.
"""


class Options(Struct, frozen=True):
    """What the command line asks for; `capacity` is a number or a file, None for the example."""

    files: tuple[str, ...]
    capacity: str | None
    family: str | None
    unit: str
    plan: Plan
    brief: bool
    sweep: Sweep | None
    json: str | None
    predictions: str | None
    plot: str | None


def parse(arguments: Sequence[str]) -> Options:
    """Raises SystemExit on a wrong command line, as argparse does, and SimulateError on a sweep that makes no sense."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.example == bool(given.files):
        parser.error("give either files or --example")
    if given.example and (given.resource != "cpu" or given.unit or given.capacity or given.family):
        parser.error(
            "--example is CPU usage of nodes with 16 cores: it takes no --resource, --unit, --capacity, --family"
        )
    if not given.example and given.capacity is None:
        parser.error("give --capacity: what each node has, or a file of id,capacity")
    if given.files.count("-") + (given.capacity == "-") > 1:
        parser.error("standard input can be read only once")
    own = RESOURCES[given.resource].unit
    unit = given.unit or own
    if (unit in CPU_UNITS) != (own in CPU_UNITS):
        parser.error(f"--unit {unit} is none of {given.resource}")
    as_given = {name: getattr(given, name) for name in ("capacity", "family", "brief", "json", "predictions", "plot")}
    sweep = parse_sweep(given.sweep) if given.sweep else None
    return Options(files=tuple(given.files), unit=unit, plan=_plan(given, unit), sweep=sweep, **as_given)


def _plan(given: argparse.Namespace, unit: str) -> Plan:
    row = RESOURCES[given.resource]
    section = getattr(Config(), row.name)
    advertised = given.horizon is not None and given.horizon >= ADVERTISED_FROM_S
    usual = PredictorSettings()
    alpha_ratio = ADVERTISED_ALPHA if advertised else usual.alpha_ratio
    return Plan(
        resource=row.name,
        floor=float(getattr(section, f"min_{row.unit}")),
        watermark_ratio=section.watermark_ratio if given.watermark is None else given.watermark,
        kind=given.predictor,
        alpha_ratio=alpha_ratio if given.alpha is None else given.alpha,
        horizon_s=given.horizon,
        cold_start_probes=ADVERTISED_COLD_START_PROBES if advertised else usual.cold_start_probes,
        unit=UNITS[unit],
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="criproxy simulate",
        description="Replays recorded usage of nodes through the daemon's predictor and policy, and shows what offline "
        "pods would have got and what online pods would have risked.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("files", metavar="FILE", nargs="*", help="recorded usage, see below")
    add(SIGNALS, action="store_true", help="FILE is a record of signals of harm: replay it through the interference "
        "ladder; `--signals --help` says more")  # fmt: skip
    add(CLUSTER, action="store_true", help="FILE is a folder of nodes and jobs: replay what they would have been lent, "
        "by criproxy and by its peers; `--cluster --help` says more")  # fmt: skip
    add("--example", action="store_true", help="use two days of three made-up nodes instead of files")
    add("--resource", choices=tuple(RESOURCES), default="cpu", help="what the usage is of (%(default)s)")
    add("--capacity", metavar="N|FILE", help="what each node has, in the unit of the usage; or a CSV or JSON file with "
        "id and capacity (and family)")  # fmt: skip
    add("--unit", choices=tuple(UNITS), help="the unit of usage and capacity (cores or bytes)")
    add("--family", metavar="NAME", help="the column or label that groups nodes into families (`family`, or else what "
        "comes before the first - of the id)")  # fmt: skip
    add("--watermark", metavar="R", type=_watermark, help="the share of a node that online and offline may fill "
        f"({Config().cpu.watermark_ratio:g})")  # fmt: skip
    add("--horizon", metavar="next|S", type=_horizon, help="predict until the next sample, or for S seconds (next)")
    add("--alpha", metavar="R", type=_ratio, help="how often a prediction may be exceeded "
        f"({PredictorSettings().alpha_ratio:g}; from a horizon of an hour on {ADVERTISED_ALPHA:g})")  # fmt: skip
    add("--predictor", choices=get_args(PredictorKind), default="calibrated", help="the predictor (%(default)s)")
    add("--sweep", metavar="WHAT=LOW..HIGH", help="try watermark or alpha from low to high, and recommend a value")
    add("--brief", action="store_true", help="no row per series")
    add("--json", metavar="F", help="write all numbers to this file")
    add("--predictions", metavar="F", help="write id,t,usage,prediction,limit to this CSV file")
    add("--plot", metavar="F", help="draw up to three nodes, or the sweep, into this .png or .svg (needs matplotlib)")
    return parser


def _horizon(text: str) -> float | None:
    if text == "next":
        return None
    horizon_s = float(text)
    if not 0.0 < horizon_s < math.inf:
        raise argparse.ArgumentTypeError("must be above 0")
    return horizon_s


def _watermark(text: str) -> float:
    return 1.0 if float(text) == 1.0 else _ratio(text)


def _ratio(text: str) -> float:
    ratio = float(text)
    if not 0.0 < ratio < 1.0:
        raise argparse.ArgumentTypeError("must be between 0 and 1")
    return ratio


# --- what it does -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """See `carry_out`."""
    if SIGNALS in arguments:
        return carry_out(lambda: signals_command.simulate([one for one in arguments if one != SIGNALS]))
    if CLUSTER in arguments:
        others = [one for one in arguments if one != CLUSTER]
        return carry_out(lambda: cluster_command.simulate(others, Bar(sys.stderr)))
    return carry_out(lambda: simulate(parse(arguments), Bar(sys.stderr)))


def carry_out(command: Callable[[], None]) -> int:
    """Carry out a command that may raise SimulateError. Returns the exit status.

    The results go to stdout, what was wrong with the input and the progress to stderr.
    """
    try:
        command()
    except SimulateError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def simulate(chosen: Options, bar: Bar) -> None:
    """Raises SimulateError."""
    if chosen.plot:
        plot.require()
    traces, findings = read(chosen)
    keep = bool(chosen.predictions or (chosen.plot and not chosen.sweep))
    replayed = replay(traces, (chosen.plan,), bar, keep=keep)
    scores = [one.scores[0] for one in replayed]
    summary = summarise(traces, scores, chosen.plan.alpha_ratio)
    for trace, score in zip(traces, scores, strict=True):
        if score is None:
            findings.note(Flaw.TOO_SHORT, trace.id)
    sys.stderr.writelines(f"note: {line}\n" for line in findings.lines())
    tell(report.scores(traces, scores, summary, brief=chosen.brief), [report.LEGEND])
    tell(report.words(traces, summary, chosen.plan, chosen.unit))
    content = report.result(chosen.plan, traces, scores, summary, findings)
    if chosen.sweep:
        content["swept"] = _sweep(traces, chosen, chosen.sweep, bar)
    elif chosen.plot:
        panels = [plot.Panel(traces[i], replayed[i].courses[0], scores[i]) for i in plot.pick(scores)]
        plot.draw_courses(chosen.plot, panels, chosen.plan, chosen.unit)
    if chosen.json:
        report.write_json(chosen.json, content)
    if chosen.predictions:
        report.write_predictions(chosen.predictions, traces, [one.courses[0] for one in replayed])


def read(chosen: Options) -> tuple[list[Trace], Findings]:
    """The traces of the files, or the example's. Raises SimulateError."""
    if chosen.capacity is None:
        return example(), Findings()
    return load(chosen.files, chosen.capacity, chosen.family, chosen.unit)


def replay(traces: Sequence[Trace], plans: tuple[Plan, ...], bar: Bar, *, keep: bool = False) -> list[Replayed]:
    trials = [Trial(trace, plans, keep) for trace in traces]
    return spread("replaying", run, trials, available_cpus(), bar)


def _sweep(traces: Sequence[Trace], chosen: Options, sweep: Sweep, bar: Bar) -> list[dict[str, Any]]:
    plans = sweep.plans(chosen.plan)
    replayed = replay(traces, plans, bar)
    points = [
        Point(value, summarise(traces, [one.scores[i] for one in replayed], plan.alpha_ratio))
        for i, (value, plan) in enumerate(zip(sweep.values, plans, strict=True))
    ]
    best = recommended(points, chosen.plan)
    tell(report.swept(sweep, points), [""], advice(sweep, points, chosen.plan))
    if chosen.plot:
        plot.draw_sweep(chosen.plot, sweep, points, best, chosen.plan)
    return [{"value": one.value, "recommended": one is best, **report.summed(one.summary)} for one in points]


def tell(*blocks: Iterable[str]) -> None:
    """Paragraphs on stdout, an empty line after them."""
    sys.stdout.writelines(f"{line}\n" for block in blocks for line in block)
    sys.stdout.write("\n")
