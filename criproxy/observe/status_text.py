"""The status as text, for people."""

import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import UNSET

from criproxy.control.resources import RESOURCES, SHARES, Resource
from criproxy.model.modes import Mode, in_words
from criproxy.model.shown import listed
from criproxy.observe.status import (
    BoxStatus,
    ConfigStatus,
    DecisionStatus,
    Status,
)
from criproxy.pods.words import duration, moment

WIDTH: Final = 100
_HEAD: Final = 14

_COMMAND: Final = re.compile("`[^`]+`")
_KEPT: Final = "\0"
"""A blank at which no line is broken; no text has it, as it is not printable."""


def render(status: Status) -> str:
    """The status as text for a terminal of `WIDTH` columns, newline at the end."""
    return "".join(f"{line}\n" for text in _lines(status) for line in _wrapped(printable(text)))


def printable(text: str) -> str:
    """`text` without what a terminal would obey: names come from requests and may hold anything."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _wrapped(line: str) -> list[str]:
    """What goes on is indented by as much as the line, and by a row's head."""
    if len(line) <= WIDTH:
        return [line.rstrip(" ") or line]
    indent = len(line) - len(line.lstrip()) + 2
    hanging = " " * (indent if line.startswith(" ") else _HEAD)
    # A path that is longer than a line stays whole, to be copied, and so does a command in backquotes.
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent=hanging, break_on_hyphens=False, break_long_words=False)
    whole = _COMMAND.sub(lambda found: found[0].replace(" ", _KEPT), line)
    return [part.replace(_KEPT, " ") for part in wrapper.wrap(whole)] or [line]


def _lines(status: Status) -> Iterator[str]:
    dry = ", dry run: nothing is written" if status.dry_run else ""
    yield f"criproxy {status.version}, pid {status.pid}, up {duration(status.uptime_s)}{dry}"
    for problem in status.problems:
        yield _row("not well", problem)
    if status.upgrade.predecessor:
        yield _row("upgrade", "the criproxy before this one finishes its calls")
    yield _row("colocation", status.colocation)
    yield from (_row("mode", in_words(mode)) for mode in Mode if mode.value in status.modes)
    if status.schedule.holds:
        yield _row("schedule", status.schedule.holds)
    if status.schedule.closed:
        yield f"  no new offline pods: {status.schedule.closed}"
    runtime = status.runtime
    state = f"ready, {runtime.version}" if runtime.ready else f"not ready: {runtime.problem}"
    yield _row("runtime", f"{runtime.socket} ({state})")
    where = f" ({status.attached.where})" if status.attached.where else ""
    yield _row("attached", f"{status.attached.state}{where}")
    yield _row("engine", status.engine)
    yield from _config_lines(status.config)
    driver = status.cgroup.driver or "driver not known before a pod runs"
    yield _row(
        "cgroups", f"v{status.cgroup.version}, {driver}" if status.cgroup.version else "none that could hold a box"
    )
    yield from _box_lines(status.box)
    yield _row("offline pods", str(len(status.pods)))
    pods = [f"{pod}{f' on CPUs {pod.cpus}' if pod.cpus else ''}" for pod in status.pods]
    yield from (f"  {line}" for line in listed(pods))
    for head, text, *lines in status.rows:
        yield _row(head, text)
        yield from (f"  {line}" for line in lines)
    yield from _decision_lines(status.decisions)


def _decision_lines(decisions: Sequence[DecisionStatus]) -> Iterator[str]:
    """With the reason of what changed; of the oldest, nobody knows what did."""
    yield _row("decisions", "" if decisions else "none yet")
    for decision, before in itertools.zip_longest(decisions, decisions[1:]):
        applied = "" if decision.applied else " (not applied)"
        limits = ", ".join(_in_sentence(RESOURCES[name], limit) for name, limit in decision.limits.items())
        yield f"  {moment(decision.decided_s)}  {limits}{applied}"
        both = before is None or before.applied != decision.applied
        for name, limit in decision.limits.items():
            row = RESOURCES[name]
            if both or _cell(row, before.limits.get(name)) != _cell(row, limit):
                yield f"    {row.title}: {decision.reasons[name]}"


def _in_sentence(row: Resource, value: float | str | None) -> str:
    return f"{_cell(row, value)}{row.cell_unit}"


def _config_lines(config: ConfigStatus) -> Iterator[str]:
    yield _row("config", f"{config.file} ({f'{len(config.errors)} errors' if config.errors else 'ok'})")
    for error in config.errors:
        yield f"  {error}"
    if config.needs_restart:
        yield f"  changed, but in force only after a restart: {', '.join(config.needs_restart)}"


def _box_lines(box: BoxStatus) -> Iterator[str]:
    path = "none yet" if box.path is None else box.path
    yield _row("box", f"{path} (drift {box.drift}, pod cgroups swept {box.swept}, ticks failed {box.tick_failures})")
    if box.cpus and not box.cores:
        yield f"  runs on the CPUs {box.cpus}, which kubelet's static CPU manager leaves to it"
    elif box.cores:
        yield f"  runs on {f'the CPUs {box.cpus}' if box.cpus else 'all CPUs'}: {box.cores}"
    if box.tiers:
        yield f"  tiers: {box.tiers}"
    for name, share in SHARES.items() if box.path is not None else ():
        if (found := box.shares.get(name)) is None:
            yield f"  {share.title} are not bounded, as there is no {share.bounded_by}, or not yet"
        else:
            yield f"  {share.title}: {found.used}, limit {found.limit}"
    if not box.resources:
        yield "  no sample yet"
        return
    resources = [(RESOURCES[name], shown) for name, shown in box.resources.items()]
    yield _cells("", "capacity", "node", "online", "predicted", "box", "limit", "in force")
    for row, shown in resources:
        amounts = (shown.capacity, shown.node, shown.online, shown.prediction, shown.box, shown.limit)
        in_force = "no box" if shown.in_force is None else _cell(row, shown.in_force)
        yield _cells(row.head, *(_cell(row, amount) for amount in amounts), in_force)
    hours = [_in_sentence(row, shown.hour) for row, shown in resources if row.sampling is not None]
    yield f"  in the next hour, online should stay below {' and '.join(hours)}"
    for row, shown in resources:
        if shown.used not in (None, UNSET):
            yield f"  the {row.title} limit bounds {_cell(row, shown.used)} of the box, page cache included"
    for _, shown in resources:
        if shown.throttled_ratio is not UNSET:
            yield f"  throttled {shown.throttled_ratio:.1%} of the time"
    yield from (f"  {row.title}: {shown.reason}" for row, shown in resources)


def _cells(head: str, *cells: str) -> str:
    return f"  {head:8}" + "".join(f"{cell:>12}" for cell in cells)


def _row(name: str, text: str) -> str:
    return f"{name:<{_HEAD}}{text}"


def _cell(row: Resource, value: float | str | None) -> str:
    return "not known" if value is None else value if isinstance(value, str) else row.cell(value)
