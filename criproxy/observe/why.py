"""What `criproxy status --why` shows: why the limits were what they were at a moment, from what, and since when."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime, time, timedelta
from typing import Final, Literal

import msgspec
from msgspec import Struct

from criproxy.control.history import History, Past, Record
from criproxy.control.policy import bytes_in_words, cores_in_words
from criproxy.model import CPU, MEMORY, UNLIMITED, Bounds, GuardCeiling, Limits, type_unlimited
from criproxy.observe.status_text import printable

Limit = float | Literal["unlimited"]

_WIDTH: Final = 11


class ResourceWhy(Struct, frozen=True):
    """One resource, in its unit (cores or bytes). `before` is what the decision before gave, None: there was none.

    `since_s` and `since_reason`: when the limit came to hold, and why; None: before the record begins. `in_force` is
    what the kernel holds, `used` what that bounds; None: not known, as for a moment in the past.
    """

    limit: Limit
    before: Limit | None
    reason: str
    since_s: float | None
    since_reason: str | None
    capacity: float
    online: float
    predicted: float | None
    note: str
    bounds: Bounds
    in_force: Limit | None = None
    used: float | None = None


class DecisionWhy(Struct, frozen=True):
    """The decision that held. `applied` False: it was not put in force (a dry run, or colocation is off)."""

    decided_s: float
    applied: bool
    window: str
    guard: GuardCeiling | None
    cpu: ResourceWhy
    memory: ResourceWhy


class Why(Struct, frozen=True):
    """The answer for `asked_s` (None: for now). Times are UTC. The record begins at `first_s`, None: it is empty."""

    asked_s: float | None
    first_s: float | None
    decision: DecisionWhy | None


def answer(history: History, asked_s: float | None, held: Limits | None = None, used_bytes: int | None = None) -> Why:
    """Why the limits are what they are, or were at a moment (UTC).

    `held`: what the kernel holds at that moment, `used_bytes` the memory that it bounds; None: not known.
    """
    records = history.records()
    past = history.at(records[-1].wall_s if asked_s is None else asked_s) if records else None
    return Why(
        asked_s, records[0].wall_s if records else None, None if past is None else _decision(past, held, used_bytes)
    )


def _decision(past: Past, held: Limits | None, used_bytes: int | None) -> DecisionWhy:
    record = past.record
    snapshot, decision = record.snapshot, record.decision
    before = decision.before
    cpu_since, memory_since = past.cpu_since, past.memory_since
    return DecisionWhy(
        decided_s=record.wall_s,
        applied=record.applied,
        window=decision.window,
        guard=decision.guard,
        cpu=ResourceWhy(
            limit=_limit(decision.limits[CPU]),
            before=None if before is None else _limit(before[CPU]),
            reason=decision.cpu_reason,
            since_s=_wall_s(cpu_since),
            since_reason=None if cpu_since is None else cpu_since.decision.cpu_reason,
            capacity=snapshot.capacity_cores,
            online=snapshot.online_cores,
            predicted=decision.prediction.cpu_cores,
            note=decision.prediction.cpu_note,
            bounds=decision.cpu_bounds,
            in_force=None if held is None else _limit(held[CPU]),
        ),
        memory=ResourceWhy(
            limit=_limit(decision.limits[MEMORY]),
            before=None if before is None else _limit(before[MEMORY]),
            reason=decision.memory_reason,
            since_s=_wall_s(memory_since),
            since_reason=None if memory_since is None else memory_since.decision.memory_reason,
            capacity=snapshot.capacity_bytes,
            online=snapshot.online_bytes,
            predicted=decision.prediction.memory_bytes,
            note=decision.prediction.memory_note,
            bounds=decision.memory_bounds,
            in_force=None if held is None else _limit(held[MEMORY]),
            used=used_bytes,
        ),
    )


def _limit(limit: float | type_unlimited) -> Limit:
    return "unlimited" if limit is UNLIMITED else limit


def _wall_s(record: Record | None) -> float | None:
    return None if record is None else record.wall_s


def to_json(why: Why) -> str:
    """ASCII only."""
    return json.dumps(msgspec.to_builtins(why))


def from_json(text: str) -> Why:
    """Raises ValueError when `text` is no such answer."""
    return msgspec.convert(json.loads(text), Why)


def parse_moment(text: str, now_s: float) -> float:
    """A moment (UTC) from `14:03` or `14:03:07` (the last such before `now_s`) or ISO 8601; in local time, unless told.

    Raises ValueError.
    """
    try:
        if len(text) > len("14:03:07"):
            return datetime.fromisoformat(text).timestamp()
        face = datetime.combine(datetime.fromtimestamp(now_s).date(), time.fromisoformat(text))
        return (face if face.timestamp() <= now_s else face - timedelta(days=1)).timestamp()
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
        yield "not applied: this is a dry run, or colocation is off"
    if decision.window:
        yield _row("schedule", decision.window)
    guard = decision.guard
    ceiling = "at rest" if guard is None else f"{cores_in_words(guard.cores)} ({guard.reason})"
    yield ""
    yield from _resource("CPU", decision.cpu, cores_in_words)
    yield _row("guard", ceiling)
    yield ""
    yield from _resource("memory", decision.memory, bytes_in_words)


def _resource(name: str, why: ResourceWhy, amount: Callable[[float], str]) -> Iterator[str]:
    def words(value: Limit | None, none: str) -> str:
        return none if value is None else value if isinstance(value, str) else amount(value)

    since = "since before the record begins" if why.since_s is None else f"since {_clock(why.since_s)}"
    yield f"{name} limit {words(why.limit, '')}, {since}"
    if why.in_force is not None:
        used = "" if why.used is None else f", of which {amount(why.used)} are in use"
        yield _row("in force", f"{words(why.in_force, '')}{used}")
    if why.since_reason not in (None, why.reason):
        yield _row("then", str(why.since_reason))
    yield _row("why", why.reason)
    bounds = why.bounds
    watermark = "" if bounds.watermark_ratio is None else f", watermark {bounds.watermark_ratio:.2f}"
    kept = f", kept free for kubelet {amount(bounds.kept)}" if bounds.kept else ""
    yield _row("capacity", f"{amount(why.capacity)}{watermark}, reserve {amount(bounds.reserve)}{kept}")
    note = f" ({why.note})" if why.note else ""
    yield _row("online", f"{amount(why.online)}, predicted {words(why.predicted, 'not known')}{note}")
    yield _row("limits", f"before {words(why.before, 'none')}, after {words(why.limit, '')}")
    yield _row("bounds", f"floor {amount(bounds.floor)}, ceiling {words(bounds.ceiling, 'none')}")


def _row(name: str, text: str) -> str:
    return f"  {name:<{_WIDTH}}{text}"


def _clock(wall_s: float) -> str:
    return f"{datetime.fromtimestamp(wall_s).astimezone():%Y-%m-%d %H:%M:%S %Z}"
