"""What `./bench effect` runs and tells: rounds, a table for people, numbers for machines, and one picture."""

import argparse
import itertools
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.effect.arms import AGAIN, ALONE, QUICK, arms
from benchmarks.effect.claims import MEASURES, Estimate, Row, enough, estimate, mean, quantile, ratios
from benchmarks.effect.offline import MIX, WORKS, Work
from benchmarks.effect.online import servers
from benchmarks.effect.phase import Figures, Node, Past, node
from integration.lab.clean import clean
from integration.lab.directory import claimed

TARGET_RATIO = 1.05
_KNEE_S = 3.0
_KNEE_P99_S = 0.02
"""The knee is the highest rate at which p99 is at most this, and the generator keeps its schedule."""
_KNEE_TRIES = 3
_START_RATE = 50.0
_ALONE_S = 20.0
"""A piece of work takes tenths of a second."""
_RECORD_S = 30.0
"""Of each load alone, which is the past that the predictors know."""
DAY = "day"
EVERY = "all servers and loads"


@dataclass(frozen=True, slots=True)
class Scale:
    """How long a run is. `loads` are percents of the knee, or "day"; the arms are named, alone's aside."""

    phase_s: float
    loads: Sequence[str]
    servers: Sequence[str]
    works: Sequence[str]
    arms: Sequence[str]
    most_s: float


def scale(quick: bool, cores: int) -> Scale:
    every = tuple(name for name in arms(cores) if name not in (ALONE, AGAIN))
    if quick:
        return Scale(6.0, ("50",), ("redis",), ("compress",), QUICK, 600.0)
    return Scale(30.0, ("20", "50", "80", DAY), tuple(servers()), (*WORKS, MIX), every, 4 * 3600.0)


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
    parser.add_argument("--state", metavar="F", type=Path, help="keep each phase in this file, and go on from it")
    parser.add_argument("--plot", metavar="F", type=Path, help="draw effective utilisation against p99 (.svg or .png)")
    parser.add_argument("--json", metavar="F", type=Path, help="write the figures to this file, too")
    options = parser.parse_args(arguments)
    given = {name: getattr(options, name) for name in ("phase_s", "servers", "loads", "works", "arms")}
    wanted = replace(scale(not options.full, cores), **{name: value for name, value in given.items() if value})
    until_s = time.monotonic() + (options.minutes * 60 if options.minutes else wanted.most_s)
    found = list(_kept(options.state))
    for number, name in enumerate(wanted.servers):
        now_s = time.monotonic()
        share_s = (until_s - now_s) / (len(wanted.servers) - number)
        found += Run(name, wanted, now_s + share_s, tuple(found), options.state).rounds()
    figures = {"conditions": _conditions(cores, wanted), "results": [asdict(one) for one in results(found)]}
    print(told(found))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.plot:
        draw(options.plot, found)


# --- running ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """The rounds of one server, until `until_s` (CLOCK_MONOTONIC) or until the rule says that they are enough.

    `found` are the rows of earlier runs; each new one is kept in the file `state` at once.
    """

    server: str
    wanted: Scale
    until_s: float
    found: Sequence[dict[str, Any]]
    state: Path | None

    def rounds(self) -> list[dict[str, Any]]:
        """The new rows. A round is a load, a work and every arm, online alone first and last."""
        added: list[dict[str, Any]] = []
        with claimed() as directory:
            try:
                with node(directory, servers()[self.server]) as on:
                    _say(f"{self.server}: looking for its knee")
                    knee = find_knee(on)
                    rates = {work: on.offline_alone(Work(work, on.cores), _ALONE_S) for work in self.wanted.works}
                    _say(f"{self.server}: knee at {knee:.0f} requests/s; offline alone: {_rates(rates)}")
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
                        segments = _segments(load, knee, self.wanted.phase_s)
                        what = f"{self.server} at {load}, {work}, round {number + 1}"
                        phases = self._phases(on, Work(work, on.cores), segments, what)
                        added += self._keep(phases, (load, work), on.cores, rates[work])
                        number += 1
            finally:
                clean(directory)
        return added

    def _phases(self, on: Node, work: Work, segments: Sequence[tuple[float, float]], what: str) -> dict[str, Figures]:
        known = arms(on.cores)
        order = [ALONE, *random.sample(self.wanted.arms, len(self.wanted.arms)), AGAIN]
        phases: dict[str, Figures] = {}
        seed = random.getrandbits(31)
        left_min: Callable[[], float] = lambda: max(0.0, self.until_s - time.monotonic()) / 60  # noqa: E731
        for place, name in enumerate(order, 1):
            _say(f"{what}, {place}/{len(order)}: {name} ({left_min():.0f} min left)")
            phases[name] = on.run(known[name], work, segments, seed)
        for name in [name for name, figures in phases.items() if figures.void]:
            _say(f"{what}: {name} again, as {phases[name].void} ({left_min():.0f} min left)")
            phases[name] = on.run(known[name], work, segments, seed)
        return phases

    def _keep(
        self, phases: Mapping[str, Figures], combo: tuple[str, str], cores: int, alone_per_s: Mapping[str, float]
    ) -> list[dict[str, Any]]:
        slow_s = quantile(sorted([*phases[ALONE].latencies_s, *phases[AGAIN].latencies_s]), 0.99)
        about = {"round": f"{self.server} {time.time():.0f}", "server": self.server, "load": combo[0], "work": combo[1]}
        rows = []
        for name, figures in phases.items():
            if figures.void:
                _say(f"void: {name}: {figures.void}")
            else:
                rows.append({**about, "arm": name, **_row(figures, slow_s, cores, alone_per_s)})
        if self.state:
            with self.state.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
        return rows


def next_round(rows: Sequence[Mapping[str, Any]], server: str, wanted: Scale) -> tuple[str, str] | None:
    """The load and the work that are known least; None: the rule says that all loads are known well enough.

    The rule, fixed beforehand (see `claims.enough`), is about a load, with each work beside it at least once.
    """
    of: dict[str, list[Mapping[str, Any]]] = {load: [] for load in wanted.loads}
    counts = {(load, work): 0 for load in wanted.loads for work in wanted.works}
    for row in rows:
        if row["server"] == server and (row["load"], row["work"]) in counts:
            of[row["load"]].append(row)
            counts[row["load"], row["work"]] += row["arm"] == ALONE
    known: Callable[[str], bool] = lambda load: (  # noqa: E731
        all(counts[load, work] for work in wanted.works) and enough(_rounds(of[load]), wanted.arms, TARGET_RATIO)
    )
    unknown = [load for load in wanted.loads if not known(load)]
    if not unknown:
        return None
    load = min(unknown, key=lambda one: sum(counts[one, work] for work in wanted.works))
    return load, min(wanted.works, key=lambda work: counts[load, work])


def find_knee(on: Node) -> float:
    """Requests per second. A rate is held when one of some tries holds it: the machine's others may spoil a try."""
    alone = arms(on.cores)[ALONE]

    def held(rate: float) -> bool:
        for _ in range(_KNEE_TRIES):
            figures = on.run(alone, Work(MIX, 0), [(rate, _KNEE_S)], random.getrandbits(31))
            if not figures.void and quantile(sorted(figures.latencies_s), 0.99) <= _KNEE_P99_S:
                return True
        return False

    rate = _START_RATE
    while held(2 * rate):
        rate *= 2
    low, high = rate, 2 * rate
    for _ in range(3):
        middle = (low + high) / 2
        low, high = (middle, high) if held(middle) else (low, middle)
    return low


def _segments(load: str, knee: float, seconds: float) -> list[tuple[float, float]]:
    if load != DAY:
        return [(knee * int(load) / 100, seconds)]
    return [(knee * percent / 100, seconds / 6) for percent in (20, 35, 60, 80, 50, 25)]


def _row(figures: Figures, slow_s: float, cores: int, alone_per_s: Mapping[str, float]) -> dict[str, float]:
    ordered = sorted(figures.latencies_s)
    left = max(0.01, figures.offline_cores + figures.idle_cores)
    done = [figures.work_per_s.get(kind, 0.0) / rate for kind, rate in alone_per_s.items() if rate > 0.0]
    return {
        "cpu_per_request": figures.online_cpu_s_per_request,
        "wait_per_request": figures.online_wait_s_per_request,
        "tail_share": sum(one > slow_s for one in ordered) / max(1, len(ordered)),
        "p50": quantile(ordered, 0.5),
        "p95": quantile(ordered, 0.95),
        "p99": quantile(ordered, 0.99),
        "p999": quantile(ordered, 0.999),
        "node_ratio": 1.0 - figures.idle_cores / cores,
        "left_ratio": figures.offline_cores / left,
        "work_ratio": sum(done) / len(done) if done else 0.0,
        "stolen_ratio": figures.stolen_cores / cores,
        "others_ratio": figures.others_cores / cores,
        "requests": float(len(ordered)),
    }


# --- telling ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    """One arm over all rounds: shares of the node and of what was left, and each claim."""

    server: str
    load: str
    arm: str
    shares: dict[str, Estimate | None]
    claims: dict[str, Estimate | None]


def results(rows: Sequence[Mapping[str, Any]]) -> list[Result]:
    """Per server and load, over all works; and over all of these: each ratio is to alone in its own round."""
    groups: dict[tuple[str, str], Sequence[Mapping[str, Any]]] = {}
    for key in sorted({(row["server"], row["load"]) for row in rows}):
        groups[key] = [row for row in rows if (row["server"], row["load"]) == key]
    if len(groups) > 1:
        groups[EVERY, ""] = rows
    found = []
    for (server, load), here in groups.items():
        rounds = _rounds(here)
        for arm in sorted(dict.fromkeys(row["arm"] for row in here), key=lambda name: name != ALONE):
            of = [row for row in here if row["arm"] == arm]
            claims = {name: estimate(ratios(rounds, arm, name)) if arm != ALONE else None for name in MEASURES}
            shares = {name: mean([row[f"{name}_ratio"] for row in of]) for name in ("node", "left", "work", "stolen")}
            found.append(Result(server, load, arm, shares, claims))
    return found


def told(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table for people: ratios to alone with their 95 % interval; losing arms as well."""
    lines: list[str] = []
    before = None
    for one in results(rows):
        if (one.server, one.load) != before:
            before = one.server, one.load
            lines += ["", _title(one)]
            lines += [
                f"{'arm':32} {'node':>5} {'of left':>7} {'work':>5} {'stolen':>6}  "
                + "  ".join(f"{n:>20}" for n in MEASURES)
            ]
        cells = "  ".join(f"{_cell(one.claims[name]):>20}" for name in MEASURES)
        node, left, work = (_share(one.shares[name], 0) for name in ("node", "left", "work"))
        stolen = _share(one.shares["stolen"], 1)
        lines.append(f"{one.arm:32} {node:>5} {left:>7} {work:>5} {stolen:>6}  {cells}")
    again = [one for one in results(rows) if one.arm == AGAIN]
    for one in again:
        seen = {name: claim.seen for name, claim in one.claims.items() if claim and claim.seen}
        words = ", ".join(f"{name} x{value:.2f}" for name, value in seen.items())
        lines.append(f"\nThe smallest difference that these rounds could have seen ({_title(one)}): {words}")
    others = mean([row["others_ratio"] for row in rows])
    if others:
        lines.append(f"\nWhatever else runs on the machine used {100 * others.mean:.0f} % of its CPU meanwhile")
    legend = "; ".join(f"{name}: {words}" for name, words in MEASURES.items() if name != words)
    shares = "node: CPU used; of left: offline's CPU, of what all else left; work: offline's rate, of its rate alone"
    shares += "; stolen: CPU time that other virtual machines took"
    return "\n".join([*lines, "", f"{shares}; {legend}"])


def _title(one: Result) -> str:
    if one.server == EVERY:
        return one.server
    return f"{one.server}, a day" if one.load == DAY else f"{one.server} at {one.load} % of its knee"


def draw(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Effective utilisation (how much of the node is used) against online's p99, an arm a point with its intervals.

    Over all servers and loads, where there are several.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text: half of the size
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 6))
    axes.set_prop_cycle(color=mpl.colormaps["tab20"](range(20)))
    markers = itertools.cycle("osDv^")
    found = results(rows)
    for one in [one for one in found if one.server == EVERY] or found:
        claim, share = one.claims["p99"], one.shares["node"]
        if claim is None or share is None:
            continue
        x, y = claim.mean, 100 * share.mean
        spread_x = [[x - claim.low], [claim.high - x]]
        spread_y = [[y - 100 * share.low], [100 * share.high - y]]
        axes.errorbar([x], [y], xerr=spread_x, yerr=spread_y, marker=next(markers), capsize=3, label=one.arm)
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
    return "-" if claim is None else f"{claim.mean:.2f} [{claim.low:.2f}, {claim.high:.2f}]"


def _rounds(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Row]]:
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row["round"], {})[row["arm"]] = row
    return list(found.values())


def _kept(state: Path | None) -> Iterator[dict[str, Any]]:
    if state and state.exists():
        yield from (json.loads(line) for line in state.read_text().splitlines())


def _conditions(cores: int, wanted: Scale) -> dict[str, Any]:
    return {
        "cpus": cores,
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%d"),
        "load_average": os.getloadavg(),
        "scale": asdict(wanted),
    }


def _rates(rates: Mapping[str, Mapping[str, float]]) -> str:
    return ", ".join(f"{work} {sum(of.values()):.1f}/s" for work, of in rates.items())


def _say(text: str) -> None:
    print(f"effect: {text}", file=sys.stderr, flush=True)
