"""What may change in a pod's request: hooks get facts and return adjustments, and the chain merges them.

A hook never mutates, does no I/O and knows no protobuf type, so that any front (CRI, NRI) can use it.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from criproxy.hooks.batch import BatchHook
from criproxy.hooks.rewrites import PlacementHook, RealtimeHook, ResourcesHook
from criproxy.model import Adjustment, PodRequest


class Hook(Protocol):
    """One concern of the rewrite of an offline pod's requests."""

    @property
    def name(self) -> str: ...

    def adjust(self, request: PodRequest) -> Iterable[Adjustment]: ...


class HookConflictError(Exception):
    """Two hooks want different values for one field."""


class Chain(Struct, frozen=True):
    """Hooks in order. Setting one field to one value twice is fine; to two values is an error that names both."""

    hooks: Sequence[Hook]

    def adjust(self, request: PodRequest) -> tuple[Adjustment, ...]:
        merged: dict[tuple[str, str], tuple[Hook, Adjustment]] = {}
        for hook in self.hooks:
            for adjustment in hook.adjust(request):
                place = (adjustment.field, adjustment.key)
                other = merged.setdefault(place, (hook, adjustment))
                if other[1].value != adjustment.value:
                    raise HookConflictError(_conflict(*other, hook, adjustment))
        return tuple(adjustment for _, adjustment in merged.values())


def _conflict(hook: Hook, mine: Adjustment, other: Hook, wanted: Adjustment) -> str:
    return f"hooks {hook.name!r} and {other.name!r} set {mine.place} to {mine.value!r} and {wanted.value!r}"


def offline_chain() -> Chain:
    """The hooks of an offline pod."""
    return Chain((PlacementHook(), ResourcesHook(), BatchHook(), RealtimeHook()))
