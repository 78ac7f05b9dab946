"""The decisions of the last hour, to answer why a limit was what it was."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from criproxy.model import Decision, Snapshot
from criproxy.model.modes import Mode

SPAN_S: Final = 3600.0
EVERY_S: Final = 10.0
THREE_SPAN_S: Final = 1.8
"""Of three changes in less time, the middle one is forgotten."""

MAX_RECORDS: Final = 4000
"""An hour of two changes each 1.8 s; about 6 MB at most."""


class DecisionRecord(Struct, frozen=True):
    """One decision, the snapshot that it was made from, and when, by wall time (UTC).

    `kept_by`: the mode in which the kernel's limits were left alone; None: they were not.
    """

    wall_s: float
    snapshot: Snapshot
    decision: Decision
    kept_by: Mode | None = None

    @property
    def applied(self) -> bool:
        return self.kept_by is None


class Past(Struct, frozen=True):
    """What held at a moment, and the decisions that its limits date from, by resource; None: from before the record."""

    record: DecisionRecord
    since: Mapping[str, DecisionRecord | None]


class History:
    """Keeps the changes of the box's limits, and of whether they are applied, about one per second, and one
    decision per 10 s; forgets after an hour.

    Other threads than the one that adds may call it.
    """

    def __init__(self) -> None:
        self._records: deque[DecisionRecord] = deque(maxlen=MAX_RECORDS)

    def add(self, record: DecisionRecord) -> None:
        records, t_s = self._records, record.decision.t_s
        if records:
            last, kept_by = records[-1].decision, records[-1].kept_by
            now, before = (record.decision.asked_of_box, record.kept_by), (last.asked_of_box, kept_by)
            if now == before and t_s - last.t_s < EVERY_S:
                return
            if len(records) > 1 and t_s - records[-2].decision.t_s < THREE_SPAN_S:
                records.pop()
        records.append(record)
        while t_s - records[0].decision.t_s > SPAN_S:
            records.popleft()

    def records(self) -> tuple[DecisionRecord, ...]:
        """Oldest first."""
        return tuple(self._records)

    def at(self, wall_s: float) -> Past | None:
        """The decision that held at a moment; None when it is not on record."""
        records = self.records()
        at = next((i for i in range(len(records) - 1, -1, -1) if records[i].wall_s <= wall_s), None)
        if at is None:
            return None
        past = records[: at + 1]
        return Past(
            record=records[at],
            since={name: _since(name, past) for name in records[at].decision.resources},
        )


def _since(name: str, past: Sequence[DecisionRecord]) -> DecisionRecord | None:
    """The record that brought the last limit."""
    limits = [record.decision.resources.get(name) for record in past]
    for record, decided, before in zip(reversed(past), reversed(limits), reversed(limits[:-1]), strict=False):
        if decided is not None and (before is None or decided.limit != before.limit):
            return record
    return past[0] if limits[0] is not None and limits[0].before is None else None
