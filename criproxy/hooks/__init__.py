"""What may change in a request: hooks get facts and return changes; the chain merges them.

A hook never mutates, does no I/O and knows no protobuf type, so another front (NRI) can be put before it.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from criproxy.hooks.placement import PlacementHook
from criproxy.hooks.realtime import RealtimeHook
from criproxy.hooks.resources import ResourcesHook
from criproxy.model import Call, Change


class Hook(Protocol):
    """One concern of the rewrite of an offline pod's requests."""

    @property
    def name(self) -> str: ...

    def adjust(self, call: Call) -> Iterable[Change]: ...


class HookConflictError(Exception):
    """Two hooks want different values for one field."""


class Chain(Struct, frozen=True):
    """Hooks in order. Setting one field to one value twice is fine; to two values is an error that names both."""

    hooks: Sequence[Hook]

    def adjust(self, call: Call) -> tuple[Change, ...]:
        merged: dict[tuple[str, str], tuple[Hook, Change]] = {}
        for hook in self.hooks:
            for change in hook.adjust(call):
                place = (change.field, change.key)
                other = merged.setdefault(place, (hook, change))
                if other[1].value != change.value:
                    raise HookConflictError(_conflict(*other, hook, change))
        return tuple(change for _, change in merged.values())


def _conflict(hook: Hook, change: Change, other: Hook, wanted: Change) -> str:
    where = f"{change.field}[{change.key}]" if change.key else change.field
    return f"hooks {hook.name!r} and {other.name!r} set {where} to {change.value!r} and {wanted.value!r}"


def offline_chain() -> Chain:
    """The hooks of an offline pod."""
    return Chain((PlacementHook(), ResourcesHook(), RealtimeHook()))
