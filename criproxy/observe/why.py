"""What `criproxy status --why` shows: why the limits were what they were at a moment, from what, and since when."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, time, timedelta
from typing import Final

import msgspec
from msgspec import Struct

from criproxy.control.history import History, Past
from criproxy.control.interference.responder import Move
from criproxy.control.resources import RESOURCES, Resource
from criproxy.model import Bounds, GuardCeiling, Limit, Limits
from criproxy.model.modes import TABLE
from criproxy.observe.client import read_json
from criproxy.observe.status_text import printable

_WIDTH: Final = 11


class ResourceWhy(Struct, frozen=True):
    """One resource, in its unit. `before` is what the decision before gave, None: there was none.

    `since_s` and `since_reason`: when the limit came to hold, and why; None: before the record begins. `in_force` is
    what the kernel holds, `used` what that bounds; None: not known, as for a moment in the past.
    """

    limit: Limit
    before: Limit | None
    reason: str
    since_s: float | None
    since_reason: str | None
    capacity: float | None
    online: float | None
    predicted: float | None
    note: str
    bounds: Bounds
    in_force: Limit | None = None
    used: float | None = None


class DecisionWhy(Struct, frozen=True):
    """The decision that held. `applied` False: it was not put in force, in the mode `kept_by`; "": not known.

    As another version may say it, that may be the name of a mode that this one does not know.
    """

    decided_s: float
    applied: bool
    window: str
    guard: GuardCeiling | None
    resources: Mapping[str, ResourceWhy]
    kept_by: str = ""


class Why(Struct, frozen=True):
    """The answer for `asked_s` (None: for now). Times are UTC. The record begins at `first_s`, None: it is empty.

    `ladder`: the last move before that moment, by resource.
    `published`: what this node publishes as lent, and why; "": nothing, or publishing is off.
    `pods_speed`: what pods get of that, and what follows for what is published; "": nothing, or no pod wants CPU.
    """

    asked_s: float | None
    first_s: float | None
    decision: DecisionWhy | None
    ladder: Mapping[str, Move] = {}
    published: str = ""
    pods_speed: str = ""


def answer(
    history: History,
    asked_s: float | None,
    held: Limits | None = None,
    used: Mapping[str, float | None] | None = None,
    moves: Sequence[Move] = (),
) -> Why:
    """Why the limits are what they are, or were at a moment (UTC).

    `held`: what the kernel holds at that moment, `used` what a limit bounds; None: not known. `moves`: those of the
    ladder, the last one first.
    """
    records = history.records()
    past = history.at(records[-1].wall_s if asked_s is None else asked_s) if records else None
    decision = None if past is None else _decision(past, held or {}, used or {})
    stood: dict[str, Move] = {}
    for one in moves:
        if asked_s is None or one.wall_s <= asked_s:
            stood.setdefault(one.transition.resource, one)
    return Why(asked_s, records[0].wall_s if records else None, decision, stood)


def _decision(past: Past, held: Limits, used: Mapping[str, float | None]) -> DecisionWhy:
    record = past.record
    snapshot, decision = record.snapshot, record.decision
    resources = {}
    for name, decided in decision.resources.items():
        sample, since = snapshot.of.get(name), past.since[name]
        resources[name] = ResourceWhy(
            limit=decided.limit,
            before=decided.before,
            reason=decided.reason,
            since_s=None if since is None else since.wall_s,
            since_reason=None if since is None else since.decision.resources[name].reason,
            capacity=None if sample is None else sample.capacity,
            online=None if sample is None else sample.online,
            predicted=decided.prediction.level,
            note=decided.prediction.note,
            bounds=decided.bounds,
            in_force=held.get(name),
            used=used.get(name),
        )
    kept_by = "" if record.kept_by is None else record.kept_by.value
    return DecisionWhy(record.wall_s, record.applied, decision.window, decision.guard, resources, kept_by)


def to_json(why: Why) -> str:
    """ASCII only. A resource is a key of the decision: `decision.cpu.limit`."""
    data = msgspec.to_builtins(why)
    if data["decision"]:
        data["decision"].update(data["decision"].pop("resources"))
    return json.dumps(data)


def from_json(text: str) -> Why:
    """Raises ValueError when `text` is no such answer."""
    data = read_json(text)
    if isinstance(data, dict) and isinstance(decision := data.get("decision"), dict):
        decision["resources"] = {name: decision.pop(name) for name in RESOURCES if name in decision}
    return msgspec.convert(data, Why)


def parse_moment(text: str, now_s: float) -> float:
    """A moment (UTC) from `14:03` or `14:03:07` (the last such before `now_s`) or ISO 8601; in local time, unless it
    names a zone.

    Raises ValueError.
    """
    try:
        if len(text) > len("14:03:07"):
            return datetime.fromisoformat(text).timestamp()
        face = datetime.combine(datetime.fromtimestamp(now_s).date(), time.fromisoformat(text))
        days = (face, face - timedelta(days=1))
        shown = (day.replace(fold=fold).timestamp() for day in days for fold in (0, 1))  # twice where clocks go back
        return max(moment_s for moment_s in shown if moment_s <= now_s)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is no time: write 14:03, 14:03:07 or 2026-03-09T14:03:07+01:00") from None


# --- as text ---------------------------------------------------------------------------------------------------------


def render(why: Why) -> str:
    """The answer as text for a terminal, in the local time; newline at the end."""
    return "".join(f"{printable(line)}\n" for line in _lines(why))


def _lines(why: Why) -> Iterator[str]:
    decision = why.decision
    if decision is None:
        yield "no decision is on record" + ("" if why.asked_s is None else f" for {_clock(why.asked_s)}")
        yield "nothing was decided yet" if why.first_s is None else f"the record begins at {_clock(why.first_s)}"
        return
    asked = "now" if why.asked_s is None else f"at {_clock(why.asked_s)}"
    yield f"{asked}, by the decision of {_clock(decision.decided_s)}"
    if not decision.applied:
        mode = f" ({decision.kept_by})" if decision.kept_by else ""
        when = next((f": {row.when}" for one, row in TABLE.items() if one.value == decision.kept_by), "")
        yield f"not applied{mode}{when}"
    if decision.window:
        yield _row("schedule", decision.window)
    guard = decision.guard
    for name, resource in decision.resources.items():
        row = RESOURCES[name]
        yield ""
        yield from _resource(row, resource)
        if row.guarded:
            yield _row("guard", "at rest" if guard is None else f"{row.words(guard.cores)} ({guard.reason})")
        if (move := why.ladder.get(name)) is not None:
            moved = move.transition
            yield _row("ladder", f"{moved.after} since {_clock(move.wall_s)}: {moved.reason}")
    if why.published:
        yield ""
        yield "published to Kubernetes"
        yield from (f"  {part}" for part in why.published.split("; "))
    if why.pods_speed:
        yield ""
        yield "what offline pods get of the CPU that is published"
        yield from (f"  {part}" for part in why.pods_speed.split("; "))


def _resource(row: Resource, why: ResourceWhy) -> Iterator[str]:
    amount = row.words

    def words(value: Limit | None, none: str) -> str:
        return none if value is None else value if isinstance(value, str) else amount(value)

    since = "since before the record begins" if why.since_s is None else f"since {_clock(why.since_s)}"
    yield f"{row.title} limit {words(why.limit, '')}, {since}"
    if why.in_force is not None:
        used = "" if why.used is None else f", of which {amount(why.used)} are in use"
        yield _row("in force", f"{words(why.in_force, '')}{used}")
    if why.since_reason not in (None, why.reason):
        yield _row("then", str(why.since_reason))
    yield _row("why", why.reason)
    bounds = why.bounds
    watermark = "" if bounds.watermark_ratio is None else f", watermark {bounds.watermark_ratio:.2f}"
    kept = f", kept free for kubelet {amount(bounds.kept)}" if bounds.kept else ""
    yield _row("capacity", f"{words(why.capacity, 'not known')}{watermark}, reserve {amount(bounds.reserve)}{kept}")
    note = f" ({why.note})" if why.note else ""
    yield _row("online", f"{words(why.online, 'not known')}, predicted {words(why.predicted, 'not known')}{note}")
    yield _row("limits", f"before {words(why.before, 'none')}, after {words(why.limit, '')}")
    yield _row("bounds", f"floor {amount(bounds.floor)}, ceiling {words(bounds.ceiling, 'none')}")


def _row(name: str, text: str) -> str:
    return f"  {name:<{_WIDTH}}{text}"


def _clock(wall_s: float) -> str:
    try:
        return f"{datetime.fromtimestamp(wall_s).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    except (ValueError, OverflowError, OSError):
        return f"{wall_s:g} s after 1970"
