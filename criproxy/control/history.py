"""The decisions of the last hour, to answer why a limit was what it was."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from criproxy.model import Decision, Snapshot

SPAN_S: Final = 3600.0
EVERY_S: Final = 10.0
MAX_RECORDS: Final = 4000
"""An hour of a change each second and then some; about 3 MB at most."""


@dataclass(frozen=True, slots=True)
class Record:
    """One decision, the snapshot that it was made from, and when, by wall time (UTC)."""

    wall_s: float
    snapshot: Snapshot
    decision: Decision


class History:
    """Keeps each change of the limits, and one decision per 10 s; forgets after an hour."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque(maxlen=MAX_RECORDS)

    def add(self, record: Record) -> None:
        records, t_s = self._records, record.decision.t_s
        if records:
            last = records[-1].decision
            if record.decision.limits == last.limits and t_s - last.t_s < EVERY_S:
                return
        records.append(record)
        while t_s - records[0].decision.t_s > SPAN_S:
            records.popleft()

    def records(self) -> tuple[Record, ...]:
        """Oldest first."""
        return tuple(self._records)

    def at(self, wall_s: float) -> Record | None:
        """The decision that held at a moment; None when it is not on record."""
        return next((record for record in reversed(self._records) if record.wall_s <= wall_s), None)
