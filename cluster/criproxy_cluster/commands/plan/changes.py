"""What policies would change on which nodes, before they are there. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import msgspec
from msgspec import Struct

from criproxy_cluster.controller.node_law import is_switched_off
from criproxy_cluster.controller.policies import Policy, in_order, selecting, told_by
from criproxy_cluster.objects import Json, NodeView
from criproxy_cluster.vocabulary.names import MANAGED
from criproxy_cluster.vocabulary.presets import NAMES

_SHOWN: Final = 5
_SHOWN_AMOUNTS: Final = 20
_FILE: Final = "the node's file"
_MEMORY: Final = frozenset(name for preset in NAMES.values() for name, what, _ in preset.rows if what == "memory")


class Change(Struct, frozen=True):
    """The same for all of `nodes`. `keys`: of the settings, before and after; the node's own file says what is None."""

    nodes: tuple[str, ...]
    keys: tuple[tuple[str, Any, Any], ...]
    lending: int
    """How many of them publish something now."""
    taken_away: Mapping[str, Mapping[str, Fraction]]
    """Of each node that publishes nothing then, what it does now. What others publish then, they alone can compute."""

    @property
    def goes_off(self) -> bool:
        return any(key == "colocation.enabled" and after is False for key, _, after in self.keys)


class Plan(Struct, frozen=True):
    changes: tuple[Change, ...]
    nodes: int
    """All that there are."""
    by_hand: tuple[str, ...]
    """Those that would change, but are managed by people."""


def plan(
    nodes: Iterable[tuple[NodeView, Mapping[str, Fraction]]], before: Iterable[Policy], after: Iterable[Policy]
) -> Plan:
    old, new = in_order(before), in_order(after)
    found: dict[tuple[tuple[str, Any, Any], ...], list[tuple[NodeView, Mapping[str, Fraction]]]] = {}
    by_hand, count = [], 0
    for node, published in nodes:
        count += 1
        was, is_to_be = _told(old, node), _told(new, node)
        keys = _difference(was, is_to_be)
        if keys and node.labels.get(MANAGED) == "false" and not is_switched_off(node):
            by_hand.append(node.name)
        elif keys:
            found.setdefault(_hashable(keys), []).append((node, _taken_away(published, is_to_be)))
    changes = (
        Change(
            tuple(sorted(node.name for node, _ in same)),
            keys,
            sum(bool(node.lent) for node, _ in same),
            {node.name: amounts for node, amounts in same if amounts},
        )
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
        yield from _amounts(change)
    if found.by_hand:
        yield f'managed by people (label {MANAGED}: "false"), so not changed: {", ".join(found.by_hand)}'
    changed = sum(len(change.nodes) for change in found.changes)
    yield f"{changed} of {found.nodes} nodes would change."


def _amounts(change: Change) -> Iterator[str]:
    several = change.taken_away
    for name in sorted({name for amounts in several.values() for name in amounts}) if len(several) > 1 else ():
        in_all = sum((amounts.get(name, Fraction(0)) for amounts in several.values()), Fraction(0))
        yield f"  in all, {_quantity(name, in_all)} -> 0"
    for node in sorted(several)[:_SHOWN_AMOUNTS]:
        yield f"  {node}: " + ", ".join(f"{_quantity(*one)} -> 0" for one in sorted(several[node].items()))
    if len(several) > _SHOWN_AMOUNTS:
        yield f"  … and {len(several) - _SHOWN_AMOUNTS} more nodes"


def _quantity(name: str, amount: Fraction) -> str:
    return f"{name} {float(amount) / (1 << 30):.1f}Gi" if name in _MEMORY else f"{name} {float(amount):.15g}"


def _taken_away(published: Mapping[str, Fraction], settings: Json) -> Mapping[str, Fraction]:
    """What is published now, if nothing is with these settings."""
    if settings.get("colocation.enabled") is False or settings.get("kubernetes.publish") is False:
        return {name: amount for name, amount in published.items() if amount}
    return {}


def _told(policies: Sequence[Policy], node: NodeView) -> Json:
    """By "section.key"."""
    told = told_by(selecting(policies, node.labels), switched_off=is_switched_off(node))
    settings: Json = msgspec.json.decode(told.policy)["settings"] if told else {}
    return {f"{section}.{key}": value for section, table in settings.items() for key, value in table.items()}


def _difference(old: Json, new: Json) -> tuple[tuple[str, Any, Any], ...]:
    keys = sorted(old.keys() | new.keys())
    return tuple((key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key))


def _hashable(keys: tuple[tuple[str, Any, Any], ...]) -> tuple[tuple[str, Any, Any], ...]:
    """A value may be a list or a table: such a one is compared, and shown, as JSON."""

    def plain(value: Any) -> Any:
        return msgspec.json.encode(value).decode() if isinstance(value, (dict, list)) else value

    return tuple((key, plain(before), plain(after)) for key, before, after in keys)


def _words(value: Any) -> str:
    if value is None:
        return _FILE
    return value if isinstance(value, str) and value[:1] in "[{" else msgspec.json.encode(value).decode()
