"""What a daemon has recorded, as nodes to advise on: its last day (`/history`), or days that were saved as pages.

A daemon computes from its first second on, whether colocation is on or not. So its record is a dry run: beside online's
use it has what was forecast for each hour, from samples of each second. The same minutes are replayed here by their
means, and what the law would lend by either forecast is compared.
"""

import json
import math
import re
from array import array
from collections.abc import Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from criproxy.commands.advise.questions import GIB
from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.cluster.forecast import HARD, OPEN_BOX, NodeOnGrid, foresee
from criproxy.commands.simulate.cluster.record import RecordedNode, grid_of, on_grid
from criproxy.commands.simulate.readers import pieces
from criproxy.commands.simulate.trace import Findings, Trace
from criproxy.config.settings import Config
from criproxy.control.memory_pressure import kept_free_bytes
from criproxy.control.publication import RecentMean, by_forecast, by_open_box, within

SAME_RATIO: Final = 0.1
"""What a dry run lends and what the advice says are alike within this."""

LEAST_HOURS: Final = 6.0
"""A record of fewer says nothing; nor are fewer compared after the warm-up, as the replay begins without knowledge."""

_DATA: Final = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
_TITLE: Final = re.compile(r"<title>(?:criproxy on )?(.{0,300}?)</title>", re.DOTALL)
_RESOURCES: Final = ("cpu", "memory")


class Comparison(Struct, frozen=True):
    """What the law would have lent on average by the daemon's own forecasts, and by the replay's, in the resource's
    unit, over the hours that both know.
    """

    node: str
    resource: str
    said: float
    advised: float
    hours: float

    @property
    def off_ratio(self) -> float:
        """Of what the daemon said; 0 where both lend nothing."""
        return (self.advised - self.said) / self.said if self.said else float(self.advised > 0.0)


class DryRun(Struct, frozen=True):
    """One node's record, and the hour's forecasts of the daemon at the same moments, by resource; NaN: none."""

    node: RecordedNode
    forecasts: Mapping[str, "array[float]"]


def is_saved(path: str) -> bool:
    """Whether it is called as a page that was saved."""
    return path.endswith((".html", ".htm"))


def of_pages(paths: Sequence[str]) -> list[DryRun]:
    """Of saved pages, several days a node. Raises SimulateError."""
    by_node: dict[str, list[Mapping[str, Any]]] = {}
    for path in paths:
        text = "".join(pieces(path, Findings()))
        found, title = _DATA.search(text), _TITLE.search(text)
        try:
            history = json.loads(found[1])["history"] if found else None
        except (ValueError, KeyError, TypeError, RecursionError):
            history = None
        if not isinstance(history, dict):
            raise SimulateError(f"{path}: holds no record; save it on the node with criproxy page --save FILE")
        name = unescape(title[1]).strip() if title else Path(path).stem
        by_node.setdefault(name, []).append(history)
    return [of_histories(name, several) for name, several in by_node.items()]


def of_histories(name: str, histories: Sequence[Mapping[str, Any]]) -> DryRun:
    """Of a node's days, in any order, which may overlap. Raises SimulateError where it is no record of criproxy's."""
    rows: dict[str, dict[int, tuple[float, float, float]]] = {of: {} for of in _RESOURCES}
    try:
        for history in histories:
            minutes, scales = history["minutes"], history["scales"]
            for of, scale in zip(_RESOURCES, (scales["cores"], scales["bytes"]), strict=True):
                found = minutes[of]
                means, sizes = found["online"]["mean"], found["capacity"]["mean"]
                hours = found.get("hour") or [None] * len(means)
                for i, (mean, size, hour) in enumerate(zip(means, sizes, hours, strict=True)):
                    if mean is not None and size:
                        t_s = round(float(minutes["first_s"]) + float(minutes["step_s"]) * (i + 1))
                        values = (mean * scale, size * scale, math.nan if hour is None else hour * scale)
                        rows[of][t_s // 60] = values
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SimulateError(f"{name}: its record is not understood ({error!r}); is that an older criproxy?") from error
    hours = len(rows["cpu"]) / 60
    if hours <= LEAST_HOURS:
        raise SimulateError(
            f"{name}: has {hours:.1f} hours on record; ask again in {math.ceil(LEAST_HOURS + 1 - hours)} hours, "
            "and after a day for a comparison of some worth"
        )
    cores = max(size for _, size, _ in rows["cpu"].values())
    total = max((size for _, size, _ in rows["memory"].values()), default=0.0)
    family = f"{cores:g} cores, {total / GIB:.0f} GiB"
    both = sorted(rows["cpu"].keys() & rows["memory"].keys()) if total else sorted(rows["cpu"])
    traces = {
        of: Trace(
            name,
            family,
            size,
            array("d", (minute * 60.0 for minute in both)),
            array("d", (min(rows[of][minute][0], size) for minute in both)),
        )
        for of, size in (("cpu", cores), ("memory", total))
        if size
    }
    forecasts = {of: array("d", (rows[of][minute][2] for minute in both)) for of in traces}
    return DryRun(RecordedNode(traces["cpu"], traces.get("memory")), forecasts)


def compared(run: DryRun) -> list[Comparison]:
    """By resource; none of what the daemon has no forecasts of for `LEAST_HOURS` after the warm-up."""
    grid = grid_of([run.node])
    replayed = foresee(NodeOnGrid(run.node, grid))
    found = []
    for of, law in (("cpu", replayed.lent_cpu), ("memory", replayed.lent_memory)):
        trace = run.node.cpu if of == "cpu" else run.node.memory
        if trace is None:
            continue
        said = on_grid(trace.times_s, _lent_by(trace, run.forecasts[of], of), grid, last=True)
        both = [
            (mine, theirs)
            for mine, theirs in zip(said[grid.warm_cells :], law["criproxy"][grid.warm_cells :], strict=True)
            if not math.isnan(mine + theirs)
        ]
        hours = len(both) * grid.cell_s / 3600
        if hours >= LEAST_HOURS:
            mine, theirs = (sum(column) / len(both) for column in zip(*both, strict=True))
            found.append(Comparison(run.node.id, of, mine, theirs, hours))
    return found


def _lent_by(trace: Trace, forecasts: Sequence[float], resource: str) -> "array[float]":
    """What the law lends by these forecasts, with the settings' defaults, as `forecast.foresee` has it."""
    recent, lent = RecentMean(), array("d")
    cpu, memory = Config().cpu, Config().memory
    for t_s, used, hour in zip(trace.times_s, trace.usages, forecasts, strict=True):
        recent.observe(t_s, used)
        mean = recent.value()
        if math.isnan(hour) or mean is None:
            lent.append(math.nan)
        elif resource == "cpu":
            amount = by_open_box(
                trace.capacity, mean, hour, watermark_ratio=OPEN_BOX.watermark_ratio,
                factor=1.0 / OPEN_BOX.speed_ratio, reserve=cpu.reserve_cores,
            )  # fmt: skip
            lent.append(within(amount, trace.capacity, cpu.min_cores, cpu.max_cores))
        else:
            amount = by_forecast(
                trace.capacity, hour, watermark_ratio=memory.watermark_ratio, reserve=memory.reserve_bytes,
                kept=kept_free_bytes(HARD, trace.capacity),
            )  # fmt: skip
            lent.append(within(amount, trace.capacity, memory.min_bytes, memory.max_bytes))
    return lent
