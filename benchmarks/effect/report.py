"""What `./bench effect` runs and tells: rounds, a table for people, numbers for machines, and one picture."""

import argparse
import itertools
import json
import math
import os
import platform
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.effect.arms import AGAIN, ALONE, DEFAULT, OFFLINE, QUICK, arms
from benchmarks.effect.claims import MEASURES, Estimate, Round, cells_of, enough, estimate, mean, quantile, ratios
from benchmarks.effect.offline import MIX, WORKS, Work
from benchmarks.effect.online import servers
from benchmarks.effect.phase import Figures, Node, Past, is_by_evidence, node
from integration.lab.clean import clean
from integration.lab.criproxy import CHECKOUT
from integration.lab.directory import claimed
from integration.lab.process import LabError

TARGET_RATIO = 1.05
_KNEE_S = 3.0
_KNEE_P99_S = 0.02
"""The knee is the highest rate at which p99 is at most this and the generator, which has a CPU alone, uses
`_KNEE_GENERATOR_CORES` at most, so that it is no queue of its own."""
_KNEE_GENERATOR_CORES = 0.6
_KNEE_TRIES = 3
_KNEE_SETTLE_S = 0.5
_START_RATE = 50.0
_TRIES = 2
"""Of a phase, as long as it is void."""
_RECORD_S = 30.0
"""Of each load alone, which is the past that the predictors know."""
DAY = "day"
EVERY = "all servers and loads"

SHARES = ("node", "left", "work", "slow", "stolen")


@dataclass(frozen=True, slots=True)
class Scale:
    """How long a run is. `loads` are percents of the knee, or "day"; `arms` are beside those that each round has.

    `pods`: of offline, each of which may use one CPU; a mix has one of each kind at least.
    """

    phase_s: float
    loads: Sequence[str]
    servers: Sequence[str]
    works: Sequence[str]
    arms: Sequence[str]
    most_s: float
    pods: int


def scale(quick: bool, cores: int) -> Scale:
    every = tuple(name for name in arms(cores) if name not in (ALONE, AGAIN, OFFLINE))
    if quick:
        return Scale(6.0, ("50",), ("redis",), ("compress",), QUICK, 600.0, cores)
    return Scale(30.0, ("20", "50", "80", DAY), tuple(servers()), (*WORKS, MIX), every, 4 * 3600.0, cores)


def main(arguments: Sequence[str]) -> None:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(prog="./bench effect", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="one server, load and work, in ten minutes (the default)")
    size.add_argument("--full", action="store_true", help="all of them, in hours; --state goes on where it stopped")
    parser.add_argument("--minutes", type=float, help="the time box (10, with --full 240)")
    parser.add_argument("--phase-s", type=float, help="how long each arm is loaded in a round (6, with --full 30)")
    full = scale(False, cores)
    parser.add_argument("--servers", nargs="+", choices=full.servers, help="these alone")
    parser.add_argument("--loads", nargs="+", choices=full.loads, help="these alone, in percent of the server's knee")
    parser.add_argument("--works", nargs="+", choices=full.works, help="this offline work alone")
    named = ", ".join(f'"{name}"'.replace("%", "%%") for name in full.arms)
    parser.add_argument(
        "--arms", metavar="ARM", nargs="+", choices=full.arms, help=f"these alone, beside online alone, out of {named}"
    )
    parser.add_argument("--pods", type=int, help="how many offline pods of one CPU each (as many as there are CPUs)")
    parser.add_argument("--state", metavar="F", type=Path, help="keep each round in this file, and go on from it")
    parser.add_argument("--plot", metavar="F", type=Path, help="draw effective utilisation against p99 (.png or .svg)")
    parser.add_argument("--json", metavar="F", type=Path, help="write the figures to this file, too")
    options = parser.parse_args(arguments)
    given = {name: getattr(options, name) for name in ("phase_s", "servers", "loads", "works", "arms", "pods")}
    wanted = replace(scale(not options.full, cores), **{name: value for name, value in given.items() if value})
    until_s = time.monotonic() + (options.minutes * 60 if options.minutes else wanted.most_s)
    conditions = _conditions(cores, wanted)
    found = list(kept(options.state, conditions))
    for number, name in enumerate(wanted.servers):
        now_s = time.monotonic()
        share_s = (until_s - now_s) / (len(wanted.servers) - number)
        found += Run(name, wanted, conditions, now_s + share_s, tuple(found), options.state).rounds()
    print(told(found))
    if options.json:
        figures = {**conditions, "date": time.strftime("%Y-%m-%d"), "results": [asdict(one) for one in results(found)]}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.plot:
        draw(options.plot, found)


# --- running ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """The rounds of one server, until `until_s` (CLOCK_MONOTONIC) or until the rule says that they are enough.

    `conditions` are of each row. `found` are the rows of earlier runs; those of a round are kept in `state` at once.
    """

    server: str
    wanted: Scale
    conditions: Mapping[str, Any]
    until_s: float
    found: Sequence[dict[str, Any]]
    state: Path | None

    def rounds(self) -> list[dict[str, Any]]:
        """The new rows. A round is a load, a work and every arm, online alone first and last."""
        added: list[dict[str, Any]] = []
        with claimed() as directory:
            try:
                with node(directory, servers()[self.server]) as on:
                    known = next((row for row in self.found if row["server"] == self.server), None)
                    if known is None:
                        _say(f"{self.server}: looking for its knee")
                        knee, beyond = find_knee(on)
                    else:
                        knee, beyond = known["knee"], known["beyond_knee"]
                    _say(f"{self.server}: knee at {knee:.0f} requests/s")
                    number = 0
                    pasts: dict[str, Past] = {}
                    while time.monotonic() < self.until_s:
                        combo = next_round([*self.found, *added], self.server, self.wanted)
                        if combo is None:
                            break
                        load, work = combo
                        if load not in pasts:
                            _say(f"{self.server} at {load}: recording it alone, {_RECORD_S:.0f} s")
                            pasts[load] = on.record(_segments(load, knee, _RECORD_S))
                        on.past = pasts[load]
                        number += 1
                        about = {"round": f"{self.server} {time.time():.0f}", "server": self.server, "load": load}
                        of_load = {"work": work, "knee": knee, "beyond_knee": beyond}
                        added += self._round(on, {**about, **of_load, **self.conditions}, number)
            finally:
                clean(directory)
        return added

    def _round(self, on: Node, about: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
        """The rows of one, those of void phases among them. It ends where its first phase alone is void."""
        known, work = arms(on.cores), Work(about["work"], self.wanted.pods)
        order = [ALONE, *random.sample([*self.wanted.arms, OFFLINE], len(self.wanted.arms) + 1), AGAIN]
        segments, seed = _segments(about["load"], about["knee"], self.wanted.phase_s), random.getrandbits(31)
        phases: list[tuple[str, Figures]] = []
        for place, name in enumerate(order, 1):
            for _ in range(_TRIES):
                left_min = max(0.0, self.until_s - time.monotonic()) / 60
                where = f"{self.server} at {about['load']}, {work.name}, round {number}, {place}/{len(order)}"
                _say(f"{where}: {name} ({left_min:.0f} min left)")
                phases.append((name, on.run(known[name], work, segments, seed)))
                if not (void := phases[-1][1].void):
                    break
                _say(f"void: {name}: {void}")
            if name == ALONE and phases[-1][1].void:
                break
        rows = [{**about, "arm": name, **row} for name, row in rows_of(phases, on.cores)]
        if self.state:
            with self.state.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
        return rows


def next_round(rows: Sequence[Mapping[str, Any]], server: str, wanted: Scale) -> tuple[str, str] | None:
    """The load and the work that were tried least; None: the rule says that all loads are known well enough.

    The rule, fixed beforehand (see `claims.enough`), is about a load, with each work beside it at least once.
    """
    combos = list(itertools.product(wanted.loads, wanted.works))
    own = [row for row in rows if row["server"] == server and (row["load"], row["work"]) in combos]
    tried = Counter((load, work) for load, work, _ in {(row["load"], row["work"], row["round"]) for row in own})

    def is_known(load: str) -> bool:
        rounds = whole_rounds([row for row in own if row["load"] == load])
        works = {one[ALONE]["work"] for one in rounds}
        return works == set(wanted.works) and enough(rounds, wanted.arms, TARGET_RATIO)

    unknown = [load for load in wanted.loads if not is_known(load)]
    if not unknown:
        return None
    load = min(unknown, key=lambda one: sum(tried[one, work] for work in wanted.works))
    return load, min(wanted.works, key=lambda work: tried[load, work])


def find_knee(on: Node) -> tuple[float, str]:
    """Requests per second, and why no more. Raises LabError.

    A rate is held when one of some tries holds it: the machine's others may spoil a try.
    """
    alone, beyond = arms(on.cores)[ALONE], ""

    def why_not(rate: float) -> str:
        p99_s = math.inf
        for _ in range(_KNEE_TRIES):
            seed = random.getrandbits(31)
            figures = on.run(alone, Work(MIX, 0), [(rate, _KNEE_S)], seed, settle_s=_KNEE_SETTLE_S)
            if figures.generator_cores > _KNEE_GENERATOR_CORES:
                return f"the generator uses {figures.generator_cores:.2f} of its CPU"
            p99_s = min(p99_s, quantile(sorted(figures.latencies_s), 0.99))
            if p99_s <= _KNEE_P99_S:
                return ""
        return f"p99 is {1000 * p99_s:.0f} ms"

    def is_held(rate: float) -> bool:
        nonlocal beyond
        if why := why_not(rate):
            beyond = f"at {rate:.0f} requests/s {why}"
            _say(f"too much: {beyond}")
        return not why

    rate = _START_RATE
    if not is_held(rate):
        raise LabError(f"online alone can't be loaded: {beyond}")
    while is_held(2 * rate):
        rate *= 2
    low, high = rate, 2 * rate
    for _ in range(3):
        middle = (low + high) / 2
        low, high = (middle, high) if is_held(middle) else (low, middle)
    return low, beyond


def _segments(load: str, knee: float, seconds: float) -> list[tuple[float, float]]:
    if load != DAY:
        return [(knee * int(load) / 100, seconds)]
    return [(knee * percent / 100, seconds / 6) for percent in (20, 35, 60, 80, 50, 25)]


def rows_of(phases: Sequence[tuple[str, Figures]], cores: int) -> list[tuple[str, dict[str, Any]]]:
    """A round's phases in numbers, each with its arm. What needs a phase that is void is None."""
    counted = {name: figures for name, figures in phases if not figures.void}
    slow_s = None
    if ALONE in counted and AGAIN in counted:
        slow_s = quantile(sorted([*counted[ALONE].latencies_s, *counted[AGAIN].latencies_s]), 0.99)
    per_s = counted[OFFLINE].work_per_s if OFFLINE in counted else None
    return [(name, _row(figures, slow_s, cores, per_s or {})) for name, figures in phases]


def _row(figures: Figures, slow_s: float | None, cores: int, alone_per_s: Mapping[str, float]) -> dict[str, Any]:
    ordered, work_per_s, others_cores = sorted(figures.latencies_s), figures.work_per_s, figures.others_cores
    used_cores = figures.online_cores + figures.offline_cores
    left_cores = max(0.01, figures.offline_cores + figures.agent_cores + figures.idle_cores)
    left_ratio = work_ratio = None
    if work_per_s is not None:
        left_ratio = figures.offline_cores / left_cores
        done = [work_per_s.get(kind, 0.0) / rate for kind, rate in alone_per_s.items() if rate > 0.0]
        work_ratio = fmean(done) if done else None
    return {
        "cpu_per_request": figures.online_cpu_s_per_request,
        "wait_per_request": figures.online_wait_s_per_request,
        **{name: _tail(ordered, ratio) for name, ratio in _TAILS.items()},
        "node_ratio": used_cores / (cores - figures.generator_cores),
        "left_ratio": left_ratio,
        "work_ratio": work_ratio,
        "slow_ratio": None if slow_s is None or not ordered else sum(one > slow_s for one in ordered) / len(ordered),
        "stolen_ratio": figures.stolen_cores / cores,
        "others_ratio": None if others_cores is None else others_cores / cores,
        "generator_cores": figures.generator_cores,
        "agent_cores": figures.agent_cores,
        "late_s": figures.late_s,
        "settled_s": figures.settled_s,
        "unanswered": figures.unanswered,
        "requests": len(ordered),
        "bound": figures.bound,
        "void": figures.void,
    }


_TAILS = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_FEWEST_SLOWER = 10


def _tail(ordered: Sequence[float], ratio: float) -> float | None:
    """The quantile, where some requests were slower."""
    return quantile(ordered, ratio) if len(ordered) * (1.0 - ratio) >= _FEWEST_SLOWER else None


# --- telling ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    """One arm over all rounds: shares of the node and of what was left, and each claim.

    `to_first`: p99 as ratio to the first phase alone of the round only. `over_other`: what the default has for what
    this arm has, in offline's rate and in latencies.
    """

    server: str
    load: str
    arm: str
    shares: dict[str, Estimate | None]
    claims: dict[str, Estimate | None]
    to_first: Estimate | None
    over_other: dict[str, Estimate | None]
    voids: int


def results(rows: Sequence[Mapping[str, Any]]) -> list[Result]:
    """Per server and load, over all works; and over all of these: each ratio is to alone in its own round.

    A round without online alone, first and last, does not count; nor does, over all, a server, load and work that an
    arm was not measured beside.
    """
    groups: dict[tuple[str, str], Sequence[Mapping[str, Any]]] = {}
    for key in sorted({(row["server"], row["load"]) for row in rows}):
        groups[key] = [row for row in rows if (row["server"], row["load"]) == key]
    if len(groups) > 1:
        groups[EVERY, ""] = rows
    found = []
    for (server, load), here in groups.items():
        rounds, names = whole_rounds(here), dict.fromkeys(row["arm"] for row in here)
        if server == EVERY:
            common = [cell for cell in cells_of(rounds) if names.keys() <= {arm for one in cell for arm in one}]
            rounds = [one for cell in common for one in cell]
            if not rounds:
                continue
        for arm in sorted(names, key=lambda name: name != ALONE):
            with_latency = arm not in (ALONE, OFFLINE)
            claims = {name: estimate(ratios(rounds, arm, name)) for name in MEASURES} if with_latency else {}
            compared = ("work_ratio", "p50", "p95", "p99") if with_latency and arm not in (AGAIN, DEFAULT) else ()
            found.append(
                Result(
                    server,
                    load,
                    arm,
                    shares={name: mean(_values(rounds, arm, f"{name}_ratio")) for name in SHARES},
                    claims=claims,
                    to_first=estimate(ratios(rounds, arm, "p99", (ALONE,))) if with_latency else None,
                    over_other={name: estimate(ratios(rounds, DEFAULT, name, (arm,))) for name in compared},
                    voids=sum(bool(row["void"]) for row in here if row["arm"] == arm),
                )
            )
    return found


def told(rows: Sequence[Mapping[str, Any]]) -> str:
    """The tables for people: ratios to alone with their 95 % interval; losing arms as well."""
    found = results(rows)
    titles = list(dict.fromkeys(_title(one) for one in found))
    lines = [line for title in titles for line in _table([one for one in found if _title(one) == title])]
    counted = [row for row in rows if not row["void"]]
    if others := [row["others_ratio"] for row in counted if row["others_ratio"] is not None]:
        lines.append(f"\nWhatever else runs on the machine used {100 * fmean(others):.0f} % of its CPU meanwhile.")
    for server in dict.fromkeys(row["server"] for row in counted):
        lines.append(_generator([row for row in counted if row["server"] == server]))
    if agents := [row["agent_cores"] for row in counted if row["bound"]]:
        lines.append(
            f'criproxy itself used {100 * fmean(agents):.1f} % of a CPU; in "of left", that is not offline\'s.'
        )
    for name in [name for name, arm in arms(1).items() if arm.by_evidence]:
        of = [row for row in counted if row["arm"] == name]
        if unlike := [row["bound"] for row in of if not is_by_evidence(row["bound"])]:
            lines.append(f"{name}: {len(unlike)} of {len(of)} phases did not end by evidence: {unlike[0]}")
    for row in (row for row in rows if row["void"]):
        again = any((row["round"], row["arm"]) == (one["round"], one["arm"]) for one in counted)
        where = f"{row['server']} at {row['load']}, {row['work']}, {row['arm']}"
        lines.append(f"void: {where}: {row['void']} ({'it was measured again' if again else 'again, too'})")
    legend = "; ".join(f"{name}: {words}" for name, words in MEASURES.items() if name != words)
    shares = (
        "node: CPU that online and offline used, of all but the generator's; of left: offline's CPU, of what all else "
        "left; work: offline's rate, of its rate alone; slow: requests slower than 99 % of those alone; stolen: CPU "
        "time that other virtual machines took; p99 to first: to the first phase alone only; could see: the smallest "
        "ratio of p99 that these rounds would have told from 1 four times of five; all intervals: 95 %"
    )
    return "\n".join([*lines, "", f"{shares}; {legend}"])


def _generator(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of one server: its knee, and how well it was loaded."""
    late_s = [row["late_s"] for row in rows if row["late_s"] is not None]
    late = "does not say how late it was"
    if late_s:
        late = f"was late by {1000 * max(late_s):.2f} ms at most (99 of 100 requests)"
    first = rows[0]
    return (
        f"{first['server']}: its knee is {first['knee']:.0f} requests/s, as {first['beyond_knee']}. Over a phase, "
        f"the generator used {max(row['generator_cores'] for row in rows):.2f} of its CPU at most and {late}; "
        f"{sum(row['unanswered'] for row in rows)} requests were not answered."
    )


def _table(of: Sequence[Result]) -> list[str]:
    heads = (*MEASURES, "p99 to first")
    lines = [
        "",
        _title(of[0]),
        f"{'arm':32} {'rounds':>6} {'node':>5} {'of left':>7} {'work':>20} {'slow':>6} {'stolen':>6}  "
        + "  ".join(f"{name:>20}" for name in heads)
        + f"  {'could see':>9}",
    ]
    for one in of:
        share, p99 = one.shares, one.claims.get("p99")
        counted = 0 if share["node"] is None else share["node"].rounds
        cells = (*(one.claims.get(name) for name in MEASURES), one.to_first)
        lines.append(
            f"{one.arm:32} {counted:>6} {_share(share['node'], 0):>5} {_share(share['left'], 0):>7} "
            f"{_cell(share['work']):>20} {_share(share['slow'], 1):>6} {_share(share['stolen'], 1):>6}  "
            + "  ".join(f"{_cell(cell):>20}" for cell in cells)
            + f"  {'-' if p99 is None or p99.seen is None else f'x{p99.seen:.2f}':>9}"
        )
    for one in of:
        words = [f"{name} {_cell(claim)}" for name, claim in one.over_other.items() if claim]
        if words:
            lines.append(f'"{DEFAULT}" as ratio to "{one.arm}": {", ".join(words)}'.replace("work_ratio", "work"))
    return lines


def _title(one: Result) -> str:
    if one.server == EVERY:
        return one.server
    return f"{one.server}, a day" if one.load == DAY else f"{one.server} at {one.load} % of its knee"


def draw(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Effective utilisation (how much of the node is used) against online's p99, an arm a point with its intervals.

    Over all servers and loads, where there are several that each arm was measured beside.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text: half of the size
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 6))
    axes.set_prop_cycle(color=mpl.colormaps["tab20"](range(20)))
    markers = itertools.cycle("osDv^")
    found = results(rows)
    drawn = [one for one in found if one.server == EVERY] or found
    are_alike = len({_title(one) for one in drawn}) == 1
    for one in drawn:
        claim, share = one.claims.get("p99"), one.shares["node"]
        if claim is None or share is None:
            continue
        x, y = claim.mean, 100 * share.mean
        spread_x = [[x - (claim.low or x)], [(claim.high or x) - x]]
        spread_y = [[y - 100 * (share.low or share.mean)], [100 * (share.high or share.mean) - y]]
        label = one.arm if are_alike else f"{_title(one)}: {one.arm}"
        axes.errorbar([x], [y], xerr=spread_x, yerr=spread_y, marker=next(markers), capsize=3, label=label)
    axes.axvline(TARGET_RATIO, linestyle=":", color="grey")
    axes.axhline(95, linestyle=":", color="grey")
    axes.set(
        xlabel="online's p99, as ratio to online alone (95 % interval)",
        ylabel="CPU of the node in use, %",
        xscale="log",
    )
    for ticks in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        ticks("{x:.2f}")
    axes.set_title(", ".join(dict.fromkeys(f"{row['server']} at {row['load']}" for row in rows)), fontsize="small")
    axes.legend(fontsize="x-small")
    figure.tight_layout()
    figure.savefig(file)


def _share(share: Estimate | None, digits: int) -> str:
    return f"{100 * share.mean:.{digits}f} %" if share else "-"


def _cell(claim: Estimate | None) -> str:
    if claim is None or claim.low is None:
        return "-" if claim is None else f"{claim.mean:.2f}"
    return f"{claim.mean:.2f} [{claim.low:.2f}, {claim.high:.2f}]"


def _values(rounds: Sequence[Round], arm: str, measure: str) -> list[list[float]]:
    cells = [[one[arm][measure] for one in cell if arm in one] for cell in cells_of(rounds)]
    return [known for cell in cells if (known := [value for value in cell if value is not None])]


def whole_rounds(rows: Sequence[Mapping[str, Any]]) -> list[Round]:
    """Those with online alone, first and last, without the void phases."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if not row["void"]:
            found.setdefault(row["round"], {})[row["arm"]] = row
    return [one for one in found.values() if {ALONE, AGAIN} <= one.keys()]


def kept(state: Path | None, conditions: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of earlier runs. Exits where they were measured otherwise, or can't be known to have been."""
    if state is None:
        return
    if conditions["commit"].endswith("-dirty"):
        sys.exit(
            "--state: this checkout has changes that are not committed, so its rows could not be told from others'"
        )
    for number, line in enumerate(state.read_text().splitlines() if state.exists() else (), 1):
        where = f"{state}, line {number}"
        try:
            row: dict[str, Any] = json.loads(line)
        except ValueError:
            sys.exit(f"{where}: no row, but {line[:40]!r}: remove the line, and go on")
        if unlike := [name for name, value in conditions.items() if row.get(name) != value]:
            name = unlike[0]
            why = f"{name} is {row.get(name)!r} there, and {conditions[name]!r} now"
            sys.exit(f"{where}: {why}. Such rows can't be told as one: name another file.")
        yield row


def _conditions(cores: int, wanted: Scale) -> dict[str, Any]:
    """What rows must have in common to be told together."""
    commit = subprocess.run(
        ["git", "-C", CHECKOUT, "describe", "--always", "--dirty"], check=False, capture_output=True, text=True
    )
    return {
        "cpus": cores,
        "kernel": platform.release(),
        "commit": commit.stdout.strip() or "unknown",
        "phase_s": wanted.phase_s,
        "pods": wanted.pods,
    }


def _say(text: str) -> None:
    print(f"effect: {text}", file=sys.stderr, flush=True)
