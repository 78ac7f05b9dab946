"""What may change in a pod's request: hooks get facts and return adjustments, and the chain merges them.

A hook never mutates, does no I/O and knows no protobuf type, so that any front (CRI, NRI) can use it. What it goes by
beside the request is given to it when the chain is built; whatever is set otherwise is a chain built anew.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from criproxy.hooks.bandwidth import Bandwidth, BandwidthHook
from criproxy.hooks.hardening import Hardening, HardeningHook
from criproxy.hooks.rewrites import MachineHook, PlacementHook, RealtimeHook, ResourcesHook
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
                other = merged.setdefault((adjustment.field, adjustment.key), (hook, adjustment))
                if other[1].value != adjustment.value:
                    raise HookConflictError(
                        f"hooks {other[0].name!r} and {hook.name!r} set {adjustment.place} to {other[1].value!r} and "
                        f"{adjustment.value!r}"
                    )
        return tuple(adjustment for _, adjustment in merged.values())


class HookSettings(Struct, frozen=True):
    """What hooks go by beside the request.

    `child_quota` is whether the kernel takes a CPU quota on a child of the box (cgroup v1 does not, reliably), and
    `bandwidth` the most that the node allows an offline pod of the network. `hardening`: what it keeps from one.
    """

    child_quota: bool
    bandwidth: Bandwidth = Bandwidth()
    hardening: Hardening = Hardening()


def offline_chain(settings: HookSettings) -> Chain:
    """The hooks of an offline pod."""
    return Chain(
        (
            PlacementHook(),
            ResourcesHook(settings.child_quota),
            MachineHook(),
            HardeningHook(settings.hardening),
            RealtimeHook(),
            BandwidthHook(settings.bandwidth),
        )
    )
