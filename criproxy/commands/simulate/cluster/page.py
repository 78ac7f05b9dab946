"""The figures as one HTML file with plots, which needs no network: SVG by hand, for light and dark."""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from criproxy.commands.simulate.cluster import text
from criproxy.commands.simulate.cluster.laws import BY_NAME, LAWS
from criproxy.commands.simulate.cluster.record import Grid
from criproxy.commands.simulate.report import writing

_CellSums = Sequence[tuple[float, float, float, float]]
"""Per cell, in cores: capacity, online's use, what is published, offline's use."""

_WIDTH: Final = 920
_LEFT, _RIGHT = 170, 20
_BAR, _GAP = 20, 10
_PLOT_HEIGHT: Final = 300
_POINTS: Final = 600
"""More cells are drawn as means of so many."""

_TICKS: Final = 6

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1b1b; --quiet: #6a6a6a; --ground: #ffffff; --line: #d8d8d8;
  --online: #9aa5b1; --l0: #0072b2; --l1: #56b4e9; --l2: #d55e00; --l3: #cc79a7; --l4: #b8860b; --l5: #009e73; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --quiet: #a0a0a0; --ground: #16181b; --line: #3a3d42;
  --online: #66707c; --l0: #4aa8e8; --l1: #9ad4f5; --l2: #f08a4b; --l3: #e0a0c4; --l4: #e0b64a; --l5: #3fc79c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 960px;
  margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.1em; margin-top: 2em; } p.quiet, li { color: var(--quiet); }
div.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; white-space: nowrap; }
th, td { text-align: right; padding: .3em .6em; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg text.quiet { fill: var(--quiet); } .axis { stroke: var(--line); }
.online { fill: var(--online); } path.law { fill: none; stroke-width: 1.8; }
""" + "".join(f".f{i} {{ fill: var(--l{i}); }} .s{i} {{ stroke: var(--l{i}); }}\n" for i in range(len(LAWS)))


def write(path: str, content: dict[str, Any], courses: Mapping[str, _CellSums], grid: Grid) -> None:
    """Raises SimulateError when the file can't be written."""
    with writing("--html", path) as file:
        file.writelines(f"{line}\n" for line in _page(content, courses, grid))


def _page(content: dict[str, Any], courses: Mapping[str, _CellSums], grid: Grid) -> Iterator[str]:
    yield '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>criproxy simulate --cluster</title><style>{_STYLE}</style></head><body>"
    yield "<h1>What this cluster would have lent</h1>"
    yield f"<p>{escape(text.what(content))}</p>"
    yield "<h2>CPU in use: online's, and what offline pods got beside it</h2>"
    yield from _utilisation(content)
    yield "<h2>Pods below half of the speed that they asked for, and below nine tenths (% of their time)</h2>"
    yield from _slow(content)
    yield "<h2>Over time: share of the nodes' CPU in use</h2>"
    yield from _over_time(courses, grid)
    yield "<h2>All figures</h2>"
    yield from _table(content)
    yield f'<p class="quiet">{escape(text.LEGEND)}</p>'
    yield "<h2>What is published</h2><ul>"
    yield from (f"<li>{escape(law.title)}: {escape(law.amount)}</li>" for law in LAWS)
    yield "</ul>"
    if content["notes"]:
        yield "<h2>What was mended in the input</h2><ul>"
        yield from (f"<li>{escape(note)}</li>" for note in content["notes"])
        yield "</ul>"
    machine = content["machine"]
    yield (
        f'<p class="quiet">criproxy {escape(machine["criproxy"])}, Python {escape(machine["python"])} on '
        f"{escape(machine['system'])}, {machine['cpus']} CPUs: {machine['took_s']:.0f} s.</p></body></html>"
    )


def _utilisation(content: dict[str, Any]) -> Iterator[str]:
    rows = []
    for i, law in enumerate(LAWS):
        found = content["laws"][law.name]
        online, all_of_it = found["utilisation_online"] or 0.0, found["utilisation"] or 0.0
        parts = [(online, "online"), (max(0.0, all_of_it - online), f"f{i}")]
        rows.append((law.title, parts, text.cell(all_of_it, "%") + " %"))
    yield from _bars(rows, 1.0)


def _slow(content: dict[str, Any]) -> Iterator[str]:
    rows, most = [], 0.01
    for i, law in enumerate(LAWS):
        found = content["laws"][law.name]
        half, nine = found["below_half"] or 0.0, found["below_09"] or 0.0
        most = max(most, nine)
        parts = [(half, f"f{i}"), (max(0.0, nine - half), "online")]
        rows.append((law.title, parts, f"{text.cell(half, '%%')} / {text.cell(nine, '%%')}"))
    yield from _bars(rows, 1.25 * most)


def _bars(rows: Sequence[tuple[str, Sequence[tuple[float, str]], str]], most: float) -> Iterator[str]:
    height, room = len(rows) * (_BAR + _GAP) + _GAP, _WIDTH - _LEFT - _RIGHT - 90
    yield f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">'
    for i, (title, parts, label) in enumerate(rows):
        top, x = _GAP + i * (_BAR + _GAP), float(_LEFT)
        yield f'<text x="{_LEFT - 8}" y="{top + 15}" text-anchor="end">{escape(title)}</text>'
        for share, kind in parts:
            width = share / most * room
            yield f'<rect class="{kind}" x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}"/>'
            x += width
        yield f'<text x="{x + 6:.1f}" y="{top + 15}">{escape(label)}</text>'
    yield "</svg>"


def _over_time(courses: Mapping[str, _CellSums], grid: Grid) -> Iterator[str]:
    width, height, base = _WIDTH - 60 - _RIGHT, _PLOT_HEIGHT, _PLOT_HEIGHT + 10
    cells = grid.cells
    group = max(1, math.ceil(cells / _POINTS))

    def x_of(cell: float) -> float:
        return 60 + width * cell / cells

    def path(course: _CellSums, *, offline: bool) -> str:
        points = []
        for start in range(0, cells, group):
            some = course[start : start + group]
            capacity = sum(one[0] for one in some)
            if capacity > 0.0:
                share = sum(one[1] + (one[3] if offline else 0.0) for one in some) / capacity
                points.append(f"{x_of(start + len(some) / 2):.1f},{base - share * height:.1f}")
        return " L".join(points)

    yield f'<svg viewBox="0 0 {_WIDTH} {base + 60}" role="img">'
    for i in range(0, 101, 25):
        y = base - i / 100 * height
        yield f'<path class="axis" d="M60,{y:.1f} H{60 + width}"/>'
        yield f'<text class="quiet" x="52" y="{y + 4:.1f}" text-anchor="end">{i} %</text>'
    for i in range(_TICKS + 1):
        cell = cells * i / _TICKS
        moment = datetime.fromtimestamp(grid.start_s + cell * grid.cell_s, UTC)
        anchor = "start" if i == 0 else "end" if i == _TICKS else "middle"
        place = f'x="{x_of(cell):.1f}" y="{base + 18}" text-anchor="{anchor}"'
        yield f'<text class="quiet" {place}>{moment:%d %b %H:%M}</text>'
    course = next(iter(courses.values()))
    if line := path(course, offline=False):
        first, last = line.split(",", 1)[0], line.rsplit("L", 1)[-1].split(",", 1)[0]
        yield f'<path class="online" opacity="0.5" d="M{first},{base} L{line} L{last},{base} Z"/>'
    for i, law in enumerate(LAWS):
        if line := path(courses[law.name], offline=True):
            yield f'<path class="law s{i}" d="M{line}"/>'
        x = 60 + i * (width / len(LAWS))
        yield f'<rect class="f{i}" x="{x:.1f}" y="{base + 36}" width="12" height="12"/>'
        yield f'<text x="{x + 16:.1f}" y="{base + 46}">{escape(law.title)}</text>'
    warm = x_of(grid.warm_cells)
    yield f'<path class="axis" stroke-dasharray="4" d="M{warm:.1f},10 V{base}"/>'
    yield f'<text class="quiet" x="{warm + 4:.1f}" y="22">counted from here; grey: online</text></svg>'


def _table(content: dict[str, Any]) -> Iterator[str]:
    shown = text.columns(content)
    titles = "".join(f"<th>{escape(title)}</th>" for title in ("law", *(title for title, _, _ in shown)))
    yield f'<div class="wide"><table><tr>{titles}</tr>'
    for name, found in content["laws"].items():
        cells = "".join(f"<td>{escape(text.cell(found[key], form))}</td>" for _, key, form in shown)
        yield f"<tr><td>{escape(BY_NAME[name].title)}</td>{cells}</tr>"
    yield "</table></div>"
