"""All metrics that criproxy and criproxy-cluster show, and whether an expression names only these."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from criproxy.daemon.register import OTHERS, PARTS
from criproxy.observe.metrics import Metrics

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "cluster"))  # criproxy_cluster is a distribution of its own

from criproxy_cluster.metrics import ControllerMetrics, LedgerMetrics, WebhookMetrics  # noqa: E402

TARGETS: Final = frozenset({"cluster", "job", "instance", "node"})
"""Labels that Prometheus gives to whatever it scrapes; `cluster` and `node`: where a relabelling gives them."""

_NAME: Final = re.compile(r"(?<![\w:])(criproxy_[a-z0-9_]+)(\{[^}]*\})?")
_LABEL: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_ENDS: Final = ("_bucket", "_count", "_sum")


class Shown(Protocol):
    """A metric of either side."""

    name: str
    text: str
    kind: str
    labels: tuple[str, ...]

    def samples(self) -> Sequence[object]: ...


def daemons() -> list[Shown]:
    return [*Metrics("", shown=(*OTHERS, *PARTS)).registry.metrics]


def webhooks() -> list[Shown]:
    return [*WebhookMetrics().registry.metrics]


def controllers() -> list[Shown]:
    return [*ControllerMetrics().registry.metrics]


def ledgers() -> list[Shown]:
    return [*LedgerMetrics().registry.metrics]


def labels_by_name(metrics: Iterable[Shown]) -> Mapping[str, frozenset[str]]:
    """The labels of each series, by its name."""
    found: dict[str, frozenset[str]] = {}
    for one in metrics:
        if one.kind == "histogram":
            found |= {f"{one.name}{end}": frozenset(one.labels) for end in _ENDS}
            found[f"{one.name}_bucket"] |= {"le"}
        else:
            found[one.name] = frozenset(one.labels)
    return found


def wrong_names(expression: str, known: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """What in a PromQL expression names no metric, or no label of it."""
    for name, selector in _NAME.findall(expression):
        if name not in known:
            yield f"there is no metric {name}"
            continue
        for label in {*_LABEL.findall(re.sub(r'"[^"]*"', '""', selector))} - known[name] - TARGETS:
            yield f"{name} has no label {label}"
