"""What `./bench cluster` tells: figures with their targets, and what the API server counts. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.effect.claims import quantile

PATCHES_PER_S: Final = 33.0
REPORT_S: Final = 396.0
"""A report is due after 300 s and up to 30 % more; a publisher looks each 5 s, and up to a second later."""

OFF_S: Final = 30.0
"""A look, and up to 20 s since the last patch; the rest is for the patch. The longest: the regular report mends it."""

LABEL_S: Final = 1.0
WEBHOOK_S: Final = 0.020
REPLICA_MIB: Final = 80.0
DAEMON_MIB: Final = 40.0
DAEMON_PERCENT: Final = 1.0

_COUNT: Final = re.compile(r"^apiserver_request_total\{([^}]*)\} ([0-9.e+]+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Figure:
    """`most`: its target, None: it has none. A figure on it meets it."""

    what: str
    value: float
    unit: str
    most: float | None = None

    @property
    def met(self) -> bool | None:
        return None if self.most is None else self.value <= self.most


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table, for people."""

    what: str
    measured: str
    target: str
    met: str


def line(figure: Figure) -> Line:
    target = "" if figure.most is None else f"at most {figure.most:g} {figure.unit}"
    met = {None: "", True: "met", False: "NOT MET"}[figure.met]
    return Line(figure.what, f"{figure.value:.4g} {figure.unit}", target, met)


def lateness(late_s: Sequence[float]) -> tuple[Figure, Figure]:
    """How long numbers on nodes were too high. A single node may hide behind p99, so the longest has a target, too."""
    ranked = sorted(late_s)
    p99_s, longest_s = (quantile(ranked, 0.99), ranked[-1]) if ranked else (0.0, 0.0)
    what = f"number off by more than 10 %, until mended, p99 of {len(ranked)}"
    return Figure(what, p99_s, "s", OFF_S), Figure("… the longest, or that is off still", longest_s, "s", REPORT_S)


def requests(metrics: str) -> dict[tuple[str, str, str], int]:
    """Of the API server's metrics: how many requests there were, by verb, resource and subresource.

    Source: Kubernetes, apiserver_request_total.
    """
    found: dict[tuple[str, str, str], int] = {}
    for labels, count in _COUNT.findall(metrics):
        named = dict(_LABEL.findall(labels))
        key = named.get("verb", ""), named.get("resource", ""), named.get("subresource", "")
        found[key] = found.get(key, 0) + int(float(count))
    return found


def since(
    before: Mapping[tuple[str, str, str], int], after: Mapping[tuple[str, str, str], int]
) -> dict[tuple[str, str, str], int]:
    """The requests between two looks; those that did not grow are left out."""
    grown = {key: count - before.get(key, 0) for key, count in after.items()}
    return {key: count for key, count in grown.items() if count}
