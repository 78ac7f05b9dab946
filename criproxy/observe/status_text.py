"""The status as text, for people."""

import itertools
import re
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import UNSET

from criproxy.control.guardlaw import GuardStatus
from criproxy.control.interference.responder import InterferenceStatus
from criproxy.control.memory_pressure import EvictionStatus
from criproxy.control.resources import RESOURCES, SHARES, Resource
from criproxy.model import MEMORY
from criproxy.model.modes import Mode, in_words
from criproxy.observe.status import (
    BoxStatus,
    BypassStatus,
    ConfigStatus,
    DecisionStatus,
    KubernetesStatus,
    Status,
)
from criproxy.pods.part import listed

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
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _wrapped(line: str) -> list[str]:
    """What goes on is indented by as much as the line, and by a row's head."""
    indent = len(line) - len(line.lstrip()) + 2
    hanging = " " * (indent if line.startswith(" ") else _HEAD)
    # A path that is longer than a line stays whole, to be copied, and so does a command in backquotes.
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent=hanging, break_on_hyphens=False, break_long_words=False)
    whole = _COMMAND.sub(lambda found: found[0].replace(" ", _KEPT), line)
    return [part.replace(_KEPT, " ") for part in wrapper.wrap(whole)] or [line]


def _lines(status: Status) -> Iterator[str]:
    dry = ", dry run: nothing is written" if status.dry_run else ""
    yield f"criproxy {status.version}, pid {status.pid}, up {_duration(status.uptime_s)}{dry}"
    for problem in status.problems:
        yield _row("not well", problem)
    if status.upgrade.predecessor:
        yield _row("upgrade", "the criproxy before this one finishes its calls")
    yield _row("colocation", status.colocation)
    yield from (_row("mode", in_words(mode)) for mode in Mode if mode.value in status.modes)
    for one in status.hold_offs:
        yield _row("hold-off", f"{one.of} until {_moment(one.until_s)}: {one.reason}")
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
    if status.bypass is not None:
        yield _row("bypass", _bypass(status.bypass))
    yield from _config_lines(status.config)
    driver = status.cgroup.driver or "driver not known before a pod runs"
    yield _row(
        "cgroups", f"v{status.cgroup.version}, {driver}" if status.cgroup.version else "none that could hold a box"
    )
    yield from _box_lines(status.box)
    if status.eviction is not None:
        yield from _eviction_lines(status.eviction)
    yield from _guard_lines(status.guard)
    if status.interference is not None:
        yield from interference_lines(status.interference)
    yield _row("offline pods", str(len(status.pods)))
    pods = [f"{pod}{f' on CPUs {pod.cpus}' if pod.cpus else ''}" for pod in status.pods]
    yield from (f"  {line}" for line in listed(pods))
    for head, text, *lines in status.rows:
        yield _row(head, text)
        yield from (f"  {line}" for line in lines)
    yield from _kubernetes_lines(status.kubernetes)
    yield from _decision_lines(status.decisions)


def _kubernetes_lines(kubernetes: KubernetesStatus | None) -> Iterator[str]:
    if kubernetes is None:
        yield _row("kubernetes", "off")
        return
    yield _row("kubernetes", kubernetes.trouble or f"node {kubernetes.node}, by {kubernetes.kubeconfig}")
    if kubernetes.age_s is not None:
        amounts = ", ".join(f"{name} {amount}" for name, amount in kubernetes.published.items())
        yield f"  published {_duration(kubernetes.age_s)} ago: {amounts or 'nothing'}"
    policy = kubernetes.policy
    if policy.keys:
        yield f"  policy {policy.name} ({policy.version}) sets {', '.join(policy.keys)}"
    yield from (f"  policy refused: {problem}" for problem in policy.problems)


def _decision_lines(decisions: Sequence[DecisionStatus]) -> Iterator[str]:
    """With the reason of what changed; of the oldest, nobody knows what did."""
    yield _row("decisions", "" if decisions else "none yet")
    for decision, before in itertools.zip_longest(decisions, decisions[1:]):
        applied = "" if decision.applied else " (not applied)"
        limits = ", ".join(_in_sentence(RESOURCES[name], limit) for name, limit in decision.limits.items())
        yield f"  {_moment(decision.decided_s)}  {limits}{applied}"
        both = before is None or before.applied != decision.applied
        for name, limit in decision.limits.items():
            row = RESOURCES[name]
            if both or _cell(row, before.limits.get(name)) != _cell(row, limit):
                yield f"    {row.title}: {decision.reasons[name]}"


def _in_sentence(row: Resource, value: float | str | None) -> str:
    return f"{_cell(row, value)}{row.cell_unit}"


def _bypass(bypass: BypassStatus) -> str:
    after = "never opens" if bypass.after_s is None else f"opens after {bypass.after_s:g} s without criproxy"
    if bypass.open_since_s is not None:
        after = f"open since {_moment(bypass.open_since_s)}"
    used = f"; opened {bypass.uses} times, last at {_moment(bypass.last_s)}" if bypass.last_s is not None else ""
    return after + used


def _moment(wall_s: float) -> str:
    """In local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_s))


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


def _eviction_lines(eviction: EvictionStatus) -> Iterator[str]:
    if eviction.hard_bytes == 0:
        yield _row("eviction", f"kubelet evicts no pod for memory ({eviction.source})")
        return
    why = f"assumed, as {eviction.problem}" if eviction.problem else eviction.source
    amounts = (eviction.hard_bytes, eviction.available_bytes, eviction.halfway_bytes)
    hard, available, halfway = (_cell(RESOURCES[MEMORY], amount) for amount in amounts)
    yield _row("eviction", f"kubelet evicts pods below {hard} of memory.available ({why})")
    yield f"  memory.available is {available}; below {halfway}, a pod goes while the box is above its memory limit"
    if eviction.last:
        yield f"  stopped last: {eviction.last}"


def _guard_lines(guard: GuardStatus) -> Iterator[str]:
    if not guard.enabled:
        yield _row("guard", "off")
        return
    state = "at rest" if guard.ceiling_cores is None else f"{guard.ceiling_cores:.2f} cores at most ({guard.reason})"
    counts = f"squeezes {guard.squeezes}, needless {guard.false_alarms}, failures {guard.failures}"
    yield _row("guard", f"{state} ({counts})")
    yield f"  pressure: {guard.pressure}"


def interference_lines(harm: InterferenceStatus) -> Iterator[str]:
    """What is known of harm to online pods: the signals, where each resource stands, and why."""
    if harm.resting:
        yield _row("signals", f"none is looked at: {harm.resting}")
    else:
        here = [one for one in harm.signals if one.here]
        yield _row("signals", f"{len(here)} here, {len(harm.signals) - len(here)} not")
    for one in harm.signals:
        value = "" if one.value is None else f"{one.value:.4g} {one.unit}, harm above {one.bar:.4g}"
        words = "; ".join(filter(None, (value, one.note, one.why)))
        yield f"  {one.name}: {'here' if one.here else 'not here'}, {words}"
    yield _row("ladder", harm.closed or ", ".join(f"{one.resource} {one.rung}" for one in harm.rungs))
    for rung in harm.rungs:
        if rung.untried:
            yield f"  {rung.resource}: {rung.untried}"
        if rung.since_s is not None:
            share = "" if rung.share is None else f", {rung.share:.0%} of the way from its floor"
            yield f"  {rung.resource}: {rung.rung}{share}, since {_moment(rung.since_s)}: {rung.reason}"
    for disk in harm.disks:
        if disk.bytes_per_s is None or disk.operations_per_s is None:
            continue
        calm = f"{_megabytes(disk.calm_bytes_per_s)}, {disk.calm_operations_per_s:.0f} operations/s"
        bound = f"{_megabytes(disk.bytes_per_s)} and {disk.operations_per_s:.0f} operations/s"
        yield f"  disk {disk.name}: reads and writes are held to {bound} each; while online was calm it did {calm}"
    if harm.evictions:
        kept = f", {harm.kept} of them in an emergency only" if harm.kept else ""
        yield f"  {harm.evictions} pods were stopped in ten minutes, of {harm.most} at most{kept}"


def _megabytes(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.2f} MB/s"


def _row(name: str, text: str) -> str:
    return f"{name:<{_HEAD}}{text}"


def _cell(row: Resource, value: float | str | None) -> str:
    return "not known" if value is None else value if isinstance(value, str) else row.cell(value)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join([f"{count} {unit}" for count, unit in parts if count][:2]) or "0 s"
