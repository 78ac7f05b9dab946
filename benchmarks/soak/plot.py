"""Draws samples as an SVG, a panel per measure, that is readable on light and on dark."""

from collections.abc import Sequence
from html import escape
from typing import Final

from benchmarks.soak.watch import Sample

_WIDTH: Final = 820
_LEFT: Final = 56
_RIGHT: Final = 14
_TOP: Final = 34
_PANEL: Final = 96
_GAP: Final = 34
_STEPS: Final = (1, 2, 2.5, 5, 10)

_STYLE: Final = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.axis { stroke: #d0d7de; fill: none } .line { stroke: #0969da; stroke-width: 1.5; fill: none; stroke-linejoin: round }
.title { font-weight: 600 } .tick { fill: #57606a; font-size: 11px }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .axis { stroke: #3d444d } .line { stroke: #4493f8 } .tick { fill: #9198a1 }
}
"""


def svg(samples: Sequence[Sample], title: str) -> str:
    panels = {
        "RSS, MiB": [sample.rss_mib for sample in samples],
        "open files": [float(sample.open_files) for sample in samples],
        "CPU, % of a core": [sample.cpu_percent for sample in samples],
        "calls/s": [sample.calls_per_s for sample in samples],
    }
    minutes = [sample.at_s / 60 for sample in samples]
    height = _TOP + len(panels) * (_PANEL + _GAP) + 6
    body = [f'<text class="title" x="{_LEFT}" y="16">{escape(title)}</text>']
    for number, (name, values) in enumerate(panels.items()):
        body += _panel(name, minutes, values, _TOP + number * (_PANEL + _GAP))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>\n" + "\n".join(body) + "\n</svg>\n"
    )


def ticks(top: float) -> list[float]:
    """Round numbers from 0 to the first that is not below `top`, in up to five steps."""
    size: float = 10**-3
    while size * 10 * 4 < top:
        size *= 10
    step = next(size * factor for factor in _STEPS if size * factor * 4 >= top)
    return [step * number for number in range(5)]


def _panel(name: str, minutes: Sequence[float], values: Sequence[float], y: float) -> list[str]:
    """From 0 on, so that what looks flat is flat."""
    across, marks, last = _WIDTH - _LEFT - _RIGHT, ticks(max(*values, 0.01)), max(minutes[-1], 0.01)
    top, floor = y + 14, y + _PANEL
    lines = [f'<text x="{_LEFT}" y="{y + 8:g}">{escape(name)}</text>']

    def height(value: float) -> float:
        return floor - (floor - top) * value / marks[-1]

    for mark in marks:
        at = height(mark)
        lines.append(f'<path class="axis" d="M{_LEFT} {at:.1f}h{across}"/>')
        lines.append(f'<text class="tick" x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{mark:g}</text>')
    for mark in (mark for mark in ticks(last) if mark <= last):
        at, label = _LEFT + across * mark / last, f"{mark:g}" + (" min" if mark == 0 else "")
        lines.append(f'<text class="tick" x="{at:.1f}" y="{floor + 14:g}" text-anchor="middle">{label}</text>')
    points = " ".join(
        f"{_LEFT + across * minute / last:.1f},{height(value):.1f}"
        for minute, value in zip(minutes, values, strict=True)
    )
    lines.append(f'<polyline class="line" points="{points}"/>')
    return lines
