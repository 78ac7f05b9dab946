"""The live picture: each line of the play over time, and what happens in words; without a terminal, plain lines."""

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from integration.demo.sample import Sample, Setting, clock
from integration.demo.spark import columns, spark
from integration.demo.story import cores, happening, line

PLAIN_EVERY_S: Final = 3.0
_STORY_LINES: Final = 4
_TALL_FROM: Final = 28
"""Lines that a terminal needs for sparklines of two lines each."""

Say = Callable[[str], None]
"""Tells the user one line."""

_Value = Callable[[Sample], float | None]
_ROWS: Final[tuple[tuple[str, str, _Value], ...]] = (
    ("node", "white", lambda sample: sample.node_cores),
    ("online wants", "bright_black", lambda sample: sample.wanted_cores),
    ("online uses", "bright_blue", lambda sample: sample.online_cores),
    ("prediction", "yellow", lambda sample: sample.prediction_cores),
    ("box limit", "red", lambda sample: sample.limit_cores),
    ("box uses", "green", lambda sample: sample.box_cores),
)


class Screen(Protocol):
    """Where the play is shown."""

    def say(self, text: str) -> None:
        """A step of the set-up, or a remark."""
        ...

    def show(self, samples: Sequence[Sample]) -> None:
        """The play so far; called once per sample."""
        ...


class PlainScreen:
    """One line every few seconds."""

    def __init__(self, setting: Setting, out: TextIO) -> None:
        self._setting = setting
        self._out = out
        self._due_s = 0.0

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def show(self, samples: Sequence[Sample]) -> None:
        if samples[-1].t_s >= self._due_s:
            self._due_s = samples[-1].t_s + PLAIN_EVERY_S
            self.say(line(samples, self._setting))


class LiveScreen:
    """The picture, redrawn in place; what was said before stays above it."""

    def __init__(self, setting: Setting, live: Live, heading: Sequence[str]) -> None:
        self._setting = setting
        self._live = live
        self._heading = heading
        self._stories: list[tuple[float, str]] = []

    def say(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def show(self, samples: Sequence[Sample]) -> None:
        self._tell(samples)
        size = self._live.console.size
        drawn = picture(samples, self._setting, self._heading, self._stories, width=size.width, height=size.height)
        self._live.update(drawn, refresh=True)

    def _tell(self, samples: Sequence[Sample]) -> None:
        """Keep the last stories; one that only changes its numbers stays one line."""
        now = samples[-1].t_s
        text = happening(samples, self._setting)
        if self._stories and _kind(self._stories[-1][1]) == _kind(text):
            self._stories[-1] = (self._stories[-1][0], text)
        else:
            self._stories = [*self._stories, (now, text)][-_STORY_LINES:]


@contextmanager
def screen(setting: Setting, heading: Sequence[str]) -> Iterator[Screen]:
    """The picture on a terminal, plain lines elsewhere."""
    console = Console()
    if not console.is_terminal or shutil.get_terminal_size().columns < 60:
        plain = PlainScreen(setting, sys.stdout)
        for text in heading:
            plain.say(text)
        yield plain
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield LiveScreen(setting, live, heading)


def picture(
    samples: Sequence[Sample],
    setting: Setting,
    heading: Sequence[str],
    stories: Sequence[tuple[float, str]],
    *,
    width: int,
    height: int,
) -> RenderableType:
    """The whole picture for a terminal of `width` columns and `height` lines."""
    now = samples[-1]
    tall = 2 if height >= _TALL_FROM else 1
    bar_width = max(width - 32, 20)
    table = Table.grid(padding=(0, 1))
    table.add_column(width=12)
    table.add_column(width=bar_width)
    table.add_column(justify="right", width=11)
    for name, colour, value in _ROWS:
        drawn = columns([(sample.t_s, value(sample)) for sample in samples], setting.seconds, bar_width)
        lines = Text("\n".join(spark(drawn, setting.capacity_cores, tall)), style=colour, no_wrap=True)
        above = "\n" * (tall - 1)
        table.add_row(Text(above + name, style=colour), lines, Text(f"{above}{cores(value(now))} cores", style=colour))
    throttled = columns([(sample.t_s, sample.throttled_ratio) for sample in samples], setting.seconds, bar_width)
    table.add_row("throttled", Text(spark(throttled, 1.0)[0], style="magenta"), f"{now.throttled_ratio:4.0%} time")
    table.add_row("", ProgressBar(total=setting.seconds, completed=min(now.t_s, setting.seconds), width=bar_width), "")
    told = [
        Text(f"day {setting.day_clock(t_s)}  {text}", style="bold" if k == len(stories) - 1 else "dim")
        for k, (t_s, text) in enumerate(stories)
    ]
    why = Text(f"criproxy: {now.reason}", style="dim", no_wrap=True, overflow="ellipsis")
    title = (
        f"criproxy demo · cgroup v{setting.cgroup_version} · {setting.capacity_cores:g} cores · "
        f"day {setting.day_clock(now.t_s)} · {clock(now.t_s)} of {clock(setting.seconds)}"
    )
    parts: list[RenderableType] = [*(Text(text, style="dim") for text in heading), table, *told]
    return Panel(Group(*parts, *([why] if now.reason else [])), title=title, border_style="bright_black")


def _kind(story: str) -> str:
    """A story without its numbers."""
    return "".join(character for character in story if not character.isdigit())
