"""What `criproxy top` shows, and what a key changes of it. Pure: a status and a view in, lines out."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct, convert
from msgspec.structs import replace

from criproxy.control.resources import RESOURCES
from criproxy.model import Limit
from criproxy.model.modes import Mode, in_words
from criproxy.observe.status import OfflinePod, ResourceStatus, Status
from criproxy.observe.status_text import printable
from criproxy.pods.words import duration


class PodColumn(Struct, frozen=True):
    """A column of the table. `key` sorts by it, the largest first but for names; "": none does."""

    head: str
    width: int
    cell: Callable[[OfflinePod], str]
    value: Callable[[OfflinePod], float | str | None] = lambda _: None
    key: str = ""
    word: str = ""
    """What it is sorted by, in words."""


class View(Struct, frozen=True):
    """What a person has chosen: `sort` is a column's key, `first` the first pod that is shown."""

    sort: str = "c"
    backwards: bool = False
    paused: bool = False
    first: int = 0
    helps: bool = False


class Line(Struct, frozen=True):
    """`style`: head, bad or "" (plain)."""

    text: str
    style: str = ""


UNKNOWN: Final = "-"
CUT: Final = "~"
HEADER: Final = 6
"""Lines above the first pod."""

POD: Final = 22
"""So much room is left for a pod's name on 80 columns."""


# --- cells -----------------------------------------------------------------------------------------------------------


def _number(form: str, value: float | None) -> str:
    return UNKNOWN if value is None else form.format(value)


def size(size_bytes: float | None) -> str:
    """At most 6 characters: `12M`, `1.5G`."""
    if size_bytes is None:
        return UNKNOWN
    for unit in ("", "K", "M", "G"):
        if abs(size_bytes) < 999.5:  # which three digits show as 1e+03
            return f"{size_bytes:.3g}{unit}"
        size_bytes /= 1024
    return f"{size_bytes:.3g}T"


def age(seconds: float | None) -> str:
    """At most 6 characters: `45s`, `12m`, `3h05m`, `12d`."""
    if seconds is None:
        return UNKNOWN
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if minutes < 1:
        return f"{seconds:.0f}s"
    if hours < 1:
        return f"{minutes}m"
    return f"{hours}h{minutes % 60:02}m" if hours < 24 else f"{hours // 24}d"


COLUMNS: Final = (
    PodColumn("CPU", 6, lambda p: _number("{:.2f}", p.cpu_cores), lambda p: p.cpu_cores, "c", "CPU in use"),
    PodColumn("ASKS", 6, lambda p: _number("{:.2f}", p.cpu_asked_cores), lambda p: p.cpu_asked_cores),
    PodColumn(
        "WAIT", 5, lambda p: _number("{:.0%}", p.cpu_waiting_ratio), lambda p: p.cpu_waiting_ratio, "w", "waiting"
    ),
    PodColumn("MEM", 6, lambda p: size(p.memory_bytes), lambda p: p.memory_bytes, "m", "memory"),
    PodColumn("LIMIT", 6, lambda p: size(p.memory_asked_bytes), lambda p: p.memory_asked_bytes),
    PodColumn("AGE", 6, lambda p: age(p.age_s), lambda p: p.age_s, "a", "age"),
    PodColumn("CPUS", 6, lambda p: p.cpus or "all"),
    PodColumn("TIER", 4, lambda p: p.tier or UNKNOWN),
    PodColumn("NOTE", 4, lambda p: f"{p.notice_s}s" if p.notice_s else UNKNOWN),
)
NAME: Final = PodColumn("POD", POD, str, str, "n", "name")
SORTS: Final = {column.key: column for column in (*COLUMNS, NAME) if column.key}

KEYS: Final = "q quit  c CPU  w wait  m memory  a age  n name  r reverse  space pause  h help"
HELP: Final = (
    "CPU    cores in use, the mean of the last seconds",
    "ASKS   the CPU request, in cores; -: it asks for none",
    "WAIT   the part of the time in which a thread of it waited for CPU",
    "MEM    working set        LIMIT  the memory limit",
    "CPUS   those that the pod stays on      NOTE   notice that it has before a stop",
    "",
    "Sort by: c CPU, w waiting, m memory, a age, n name; r the other way round.",
    "Arrows, Page Up, Page Down, Home, End: scroll. Space: pause. q: quit.",
)


# --- keys ------------------------------------------------------------------------------------------------------------


def pressed(view: View, key: str, pods: int, height: int) -> View:
    """What a key makes of the view; one that means nothing closes the help. `key`: a character, or up, down, page up,
    page down, home, end. `height`: of the screen, in lines.
    """
    page = max(1, height - HEADER - 1)
    last = max(0, pods - page)
    moves = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -pods, "end": pods}
    if key in moves:
        return replace(view, first=min(last, max(0, view.first + moves[key])))
    if key in SORTS:
        return replace(view, sort=key, backwards=False, first=0, helps=False)
    if key == "r":
        return replace(view, backwards=not view.backwards, first=0)
    if key in (" ", "p"):
        return replace(view, paused=not view.paused)
    return replace(view, helps=key in ("h", "?") and not view.helps)


def ordered(pods: Sequence[OfflinePod], view: View) -> list[OfflinePod]:
    """What is not known comes last."""
    column = SORTS[view.sort]
    if column is NAME:
        return sorted(pods, key=str, reverse=view.backwards)
    known = [pod for pod in pods if column.value(pod) is not None]
    unknown = sorted((pod for pod in pods if column.value(pod) is None), key=str)
    named = sorted(known, key=str)
    return sorted(named, key=lambda pod: column.value(pod) or 0, reverse=not view.backwards) + unknown


# --- the screen ------------------------------------------------------------------------------------------------------


def drawn(status: Status, view: View, width: int, height: int, failure: str = "") -> list[Line]:
    """As many lines as there are, none longer than `width`. `failure`: why the status is not of now; "": it is."""
    pods = ordered(status.pods, view)
    room = max(0, height - HEADER - 1)
    lines = [*_header(status, view, failure, width)]
    if view.helps:
        lines += map(Line, HELP[:room])
    else:
        lines += (Line(_row(pod, width)) for pod in pods[view.first : view.first + room])
    lines = lines[: max(0, height - 1)]
    lines += [Line("")] * (height - 1 - len(lines))
    lines.append(Line(KEYS, "head"))
    return [replace(line, text=cut(printable(line.text), width)) for line in lines[:height]]


def whole(status: Status, width: int = 80) -> list[str]:
    """All pods, for who reads no live screen."""
    lines = [*_header(status, View(), "", width), *(Line(_row(pod, width)) for pod in ordered(status.pods, View()))]
    return [printable(line.text).rstrip() for line in lines]


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + CUT[:width]


def _header(status: Status, view: View, failure: str, width: int) -> Iterator[Line]:
    state = ", paused" if view.paused else ""
    yield Line(
        f"criproxy {status.version}, up {duration(status.uptime_s)}, {len(status.pods)} offline pods, by "
        f"{SORTS[view.sort].word}{state}"
    )
    for name, row in RESOURCES.items():
        shown = status.box.resources.get(name)
        amount = size if row.unit == "bytes" else "{:.2f}".format
        yield Line(f"{row.title:<7}{'no sample yet' if shown is None else _resource(shown, amount)}")
    yield _state(status, failure)
    yield Line(_sizes(status))
    heads = " ".join(f"{column.head:>{column.width}}" for column in COLUMNS)
    yield Line(f"{NAME.head:<{_room(width)}} {heads}", "head")


def _resource(shown: ResourceStatus, amount: Callable[[float], str]) -> str:
    free = None
    if shown.capacity is not None and shown.online is not None and shown.box is not None:
        free = max(0.0, shown.capacity - shown.online - shown.box)

    def words(value: Limit | None) -> str:
        return UNKNOWN if value is None else value if isinstance(value, str) else amount(value)

    return (
        f"{words(shown.capacity)}: online {words(shown.online)}, box {words(shown.box)}, free {words(free)}, "
        f"limit {words(shown.limit)}"
    )


def _state(status: Status, failure: str) -> Line:
    if failure:
        return Line(f"no answer: {failure}", "bad")
    if status.problems:
        return Line(f"not well: {_first(status.problems)}", "bad")
    modes = {mode: in_words(mode) for mode in Mode if mode.value in status.modes}
    if status.schedule.closed:
        modes[Mode.CLOSED] = f"closed: {status.schedule.closed}"
    return Line(_first([*modes.values()]) if modes else f"colocation {status.colocation}")


def _first(words: Sequence[str]) -> str:
    """Of those that there are, and how many there are beside."""
    more = f" (and {len(words) - 1} more: `criproxy status`)" if len(words) > 1 else ""
    return f"{words[0]}{more}"


class _Missized(Struct, frozen=True):
    """What is read here of the section; see `criproxy.pods.pod_use`."""

    uid: str


def _sizes(status: Status) -> str:
    pods = {one.uid for one in convert(status.sections.get("missized", ()), tuple[_Missized, ...])}
    return f"{len(pods)} pods have not used what they ask for, for an hour: `criproxy status`" if pods else ""


def _room(width: int) -> int:
    """For a pod's name."""
    return max(8, width - sum(column.width + 1 for column in COLUMNS))


def _row(pod: OfflinePod, width: int) -> str:
    room = _room(width)
    cells = " ".join(f"{cut(column.cell(pod), column.width):>{column.width}}" for column in COLUMNS)
    return f"{cut(printable(str(pod)), room):<{room}} {cells}"
