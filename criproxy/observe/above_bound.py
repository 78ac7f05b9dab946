"""Whether the box is above its bounds, and for how long: memory that can't be taken back, a quota not written."""

import math
from collections.abc import Iterator
from typing import Final

import structlog
from msgspec import Struct, field

from criproxy.cgroup.box import BoxState
from criproxy.control.resources import bytes_in_words, cores_in_words
from criproxy.model import CPU, MEMORY, UNLIMITED

REPORTED_AFTER_S: Final = 5.0
"""A limit that sinks is above its bound for a moment: that is no news."""

_SLACK_CORES: Final = 0.011
"""A quota is in whole microseconds, and the kernel takes none below 0.01 cores."""


class Excess(Struct, frozen=True):
    """What is above its bound since `since_s`: memory in use in bytes, or the CPU limit in force in cores."""

    since_s: float
    amount: float
    bound: float
    reported: bool


def memory_seen(state: BoxState) -> tuple[float, float] | None:
    """Memory in use and what was wanted when it was read; None: there is no bound, or nothing was read."""
    held = state.memory
    return None if held is None or held.wanted_bytes is UNLIMITED else (held.used_bytes, held.wanted_bytes)


def cpu_seen(state: BoxState) -> tuple[float, float] | None:
    """The CPU limit in force and the wanted one; None: there is none, or nothing was written."""
    wanted, held = state.wanted, state.limits
    if wanted is None or held is None or wanted[CPU] is UNLIMITED:
        return None
    in_force = math.inf if held[CPU] is UNLIMITED else held[CPU]
    return in_force, max(wanted[CPU], in_force if in_force - wanted[CPU] <= _SLACK_CORES else 0.0)


_SEEN: Final = {CPU: cpu_seen, MEMORY: memory_seen}


class AboveBound(Struct, eq=False):
    """Follows both resources from tick to tick, and logs when an excess lasts and when it has ended."""

    _excesses: dict[str, Excess] = {}
    _log: structlog.typing.FilteringBoundLogger = field(default_factory=structlog.get_logger)

    def look(self, state: BoxState, now_s: float) -> None:
        for resource, seen in _SEEN.items():
            before, found = self._excesses.get(resource), seen(state)
            was_reported = before is not None and before.reported
            if found is None or found[0] <= found[1]:
                self._excesses.pop(resource, None)
                if was_reported:
                    self._log.info("box_within_bound", resource=resource)
                continue
            since_s = before.since_s if before else now_s
            excess = Excess(since_s, found[0], found[1], reported=now_s - since_s >= REPORTED_AFTER_S)
            self._excesses[resource] = excess
            if excess.reported and not was_reported:
                fields = {"resource": resource, "amount": excess.amount, "bound": excess.bound}
                self._log.warning("box_above_bound", **fields, detail=_words(resource, excess))

    def seconds(self, now_s: float) -> dict[str, float]:
        """For how long each resource has been above its bound; 0: it is within."""
        excesses = self._excesses.copy()  # asked from other threads
        return {name: now_s - excesses[name].since_s if name in excesses else 0.0 for name in _SEEN}

    def problems(self, now_s: float) -> Iterator[str]:
        """What has lasted, in words."""
        for resource in _SEEN:
            if (excess := self._excesses.get(resource)) and now_s - excess.since_s >= REPORTED_AFTER_S:
                yield f"{_words(resource, excess)}, for {now_s - excess.since_s:.0f} s"


def _words(resource: str, excess: Excess) -> str:
    if resource == MEMORY:
        used, above, bound = map(bytes_in_words, (excess.amount, excess.amount - excess.bound, excess.bound))
        return f"the box uses {used}, {above} above its bound of {bound}"
    held = "unlimited" if excess.amount == math.inf else cores_in_words(excess.amount)
    return f"the box's CPU limit in force is {held}, above the wanted {cores_in_words(excess.bound)}"
