"""What policies would change on which nodes, before they are there. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from criproxy_cluster.conversion import Json
from criproxy_cluster.names import MANAGED
from criproxy_cluster.node_law import is_switched_off
from criproxy_cluster.objects import NodeView
from criproxy_cluster.policies import Policy, annotation, in_order, selecting

_SHOWN: Final = 5
_FILE: Final = "the node's file"


class Change(Struct, frozen=True):
    """The same for all of `nodes`. `keys`: of the settings, before and after; the node's own file says what is None."""

    nodes: tuple[str, ...]
    keys: tuple[tuple[str, Any, Any], ...]
    lending: int
    """How many of them publish something now."""

    @property
    def goes_off(self) -> bool:
        return any(key == "colocation.enabled" and after is False for key, _, after in self.keys)


class Plan(Struct, frozen=True):
    changes: tuple[Change, ...]
    nodes: int
    """All that there are."""
    by_hand: tuple[str, ...]
    """Those that would change, but are managed by people."""


def plan(nodes: Iterable[NodeView], before: Iterable[Policy], after: Iterable[Policy]) -> Plan:
    old, new = in_order(before), in_order(after)
    found: dict[tuple[tuple[str, Any, Any], ...], list[NodeView]] = {}
    by_hand, count = [], 0
    for node in nodes:
        count += 1
        keys = _difference(_told(old, node), _told(new, node))
        if keys and node.labels.get(MANAGED) == "false" and not is_switched_off(node):
            by_hand.append(node.name)
        elif keys:
            found.setdefault(_hashable(keys), []).append(node)
    changes = (
        Change(tuple(sorted(one.name for one in same)), keys, sum(bool(one.lent) for one in same))
        for keys, same in found.items()
    )
    return Plan(tuple(sorted(changes, key=lambda one: one.nodes)), count, tuple(sorted(by_hand)))


def lines(found: Plan) -> Iterator[str]:
    """For people."""
    for change in found.changes:
        shown = ", ".join(change.nodes[:_SHOWN]) + (", …" if len(change.nodes) > _SHOWN else "")
        yield f"{len(change.nodes)} node{'s' * (len(change.nodes) != 1)} ({shown}), {change.lending} lending now:"
        for key, before, after in change.keys:
            yield f"  {key}: {_words(before)} -> {_words(after)}"
        if change.goes_off:
            yield "  running offline pods leave, and nothing is published"
    if found.by_hand:
        yield f'managed by people (label {MANAGED}: "false"), so not changed: {", ".join(found.by_hand)}'
    changed = sum(len(change.nodes) for change in found.changes)
    yield f"{changed} of {found.nodes} nodes would change."


def _told(policies: Sequence[Policy], node: NodeView) -> Json:
    told = annotation(selecting(policies, node.labels), switched_off=is_switched_off(node))
    settings: Json = msgspec.json.decode(told[0])["settings"] if told else {}
    return settings


def _difference(old: Json, new: Json) -> tuple[tuple[str, Any, Any], ...]:
    flat = [
        {f"{section}.{key}": value for section, table in one.items() for key, value in table.items()}
        for one in (old, new)
    ]
    keys = sorted(flat[0].keys() | flat[1].keys())
    return tuple((key, flat[0].get(key), flat[1].get(key)) for key in keys if flat[0].get(key) != flat[1].get(key))


def _hashable(keys: tuple[tuple[str, Any, Any], ...]) -> tuple[tuple[str, Any, Any], ...]:
    """A value may be a list or a table: such a one is compared, and shown, as JSON."""

    def plain(value: Any) -> Any:
        return msgspec.json.encode(value).decode() if isinstance(value, (dict, list)) else value

    return tuple((key, plain(before), plain(after)) for key, before, after in keys)


def _words(value: Any) -> str:
    if value is None:
        return _FILE
    return value if isinstance(value, str) and value[:1] in "[{" else msgspec.json.encode(value).decode()
