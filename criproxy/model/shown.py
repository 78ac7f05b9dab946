"""What shows itself: in the status, in its problems, in the metrics."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from msgspec import Struct

from criproxy.model import Sandbox, Unlimited
from criproxy.model.modes import Mode


class Gauge(Struct, frozen=True):
    """A number that is shown: one value, or one for each value of `label`; None: not known.

    It is read of `Shows.now` at each scrape. The metric's name is `criproxy_<name>`, which ends with its unit.
    """

    name: str
    text: str
    read: Callable[[Any], float | Unlimited | Mapping[str, float] | None]
    label: str = ""


class Counter(Struct, frozen=True):
    """What is counted by `Counters.count`; the metric's name is `criproxy_<name>_total`.

    `labels`: the values of each label, by its name; (): they are not known before they are counted. Where all are
    known, each series is 0 from the start, as Prometheus sees no increase in one that begins with 1.
    """

    name: str
    text: str
    labels: Mapping[str, tuple[str, ...]] = {}


SHOWN: Final = 50
"""How many of a long list are printed; the status in JSON has all."""


def listed(lines: Sequence[str]) -> Iterator[str]:
    """The first `SHOWN` of these, and how many there are beside."""
    yield from lines[:SHOWN]
    if len(lines) > SHOWN:
        yield f"and {len(lines) - SHOWN} more (--json lists them all)"


class Shows:
    """Whoever owns a number or a word says it. Any thread may call all of this."""

    GAUGES: ClassVar[tuple[Gauge, ...]] = ()
    COUNTERS: ClassVar[tuple[Counter, ...]] = ()

    def now(self) -> Any:
        """What the gauges are read of: itself, or its state, where that takes work that they share."""
        return self

    def problems(self) -> Iterator[str]:
        """What an operator should look at."""
        yield from ()

    def unready(self) -> str | None:
        """Why criproxy does not do all of its work, so that /readyz says no; None: it does."""
        return None

    def modes(self) -> Mapping[Mode, str]:
        """The modes that it brings about now, each with why, in words."""
        return {}

    def knows_modes(self) -> bool:
        """Whether `modes` can be relied upon. Until then nothing is published: the Node keeps what it had."""
        return True

    def section(self) -> Mapping[str, Any]:
        """The keys of /status that are its own, with data that becomes JSON. A key, once shown, stays."""
        return {}

    def of_pod(self, sandbox: Sandbox) -> Mapping[str, Any]:
        """Keys that a pod of the box has in /status."""
        return {}

    def rows(self) -> Iterator[tuple[str, ...]]:
        """What `criproxy status` prints: a head and its text, and lines that belong to it."""
        yield from ()
