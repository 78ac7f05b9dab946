"""What was wrong with the input: counted, and named by its first places."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

_SHOWN: Final = 3


class Flaw(StrEnum):
    """What can be wrong without being fatal, in words that follow a count."""

    NOT_A_ROW = "rows left out: too few fields"
    NOT_A_NUMBER = "rows left out: time or usage is not a finite number"
    FINER_TIME = "times too large for seconds, taken as milli-, micro- or nanoseconds"
    DUPLICATE = "rows left out: a second usage for the same id and time"
    NEGATIVE = "usages below 0 counted as 0, as the daemon does"
    ABOVE_CAPACITY = "usages above the capacity cut down to it: if they are many, is it too small?"
    UNSORTED = "rows out of order in time, sorted"
    GAP = "gaps of more than 3 steps, in which nothing is scored"
    CUT_OFF = "files end too early; what came before is used"
    OTHER_COLUMN = "columns ignored"
    NO_CAPACITY = "series left out: no capacity is given for them"
    TOO_SHORT = "series not scored: nothing is left after the warm-up"


class Findings(Struct):
    """Collects flaws; each has a place, such as `nodes.csv:12`, of which the first few are kept."""

    counts: dict[Flaw, int] = field(default_factory=dict)
    places: dict[Flaw, list[str]] = field(default_factory=dict)

    def note(self, flaw: Flaw, place: str) -> None:
        self.counts[flaw] = self.counts.get(flaw, 0) + 1
        shown = self.places.setdefault(flaw, [])
        if len(shown) < _SHOWN:
            shown.append(place)

    def lines(self) -> Iterator[str]:
        """One line per flaw, in the order of `Flaw`."""
        for flaw in Flaw:
            if count := self.counts.get(flaw):
                more = ", ..." if count > len(self.places[flaw]) else ""
                yield f"{count} {flaw} ({', '.join(self.places[flaw])}{more})"
