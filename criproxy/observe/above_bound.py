"""Whether the box is above its bounds, and for how long: memory that can't be taken back, a quota not written."""

import math
from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy.cgroup.box import BoxState
from criproxy.control.resources import RESOURCES
from criproxy.model import MEMORY, UNLIMITED

REPORTED_AFTER_S: Final = 5.0
"""A limit that sinks is above its bound for a moment: that is no news."""

_SLACK_STEPS: Final = 1.1
"""A quota is in whole microseconds, and the kernel takes none below 0.01 cores, which is a step."""


class Excess(Struct, frozen=True):
    """What is above its bound since `since_s`: memory in use, or the limit in force of another resource."""

    since_s: float
    amount: float
    bound: float
    reported: bool


def _seen(resource: str, state: BoxState) -> tuple[float, float] | None:
    """What must not be above what; None: there is no bound, or it is not known.

    Memory that is in use can be above a limit that was written; of the others, a limit itself can be above the wanted.
    """
    if resource == MEMORY:
        held = state.memory
        return None if held is None or held.wanted_bytes is UNLIMITED else (held.used_bytes, held.wanted_bytes)
    if state.wanted is None or state.limits is None:
        return None
    wanted, limit = state.wanted[resource], state.limits[resource]
    if wanted is UNLIMITED:
        return None
    in_force = math.inf if limit is UNLIMITED else limit
    is_near = in_force - wanted <= _SLACK_STEPS * RESOURCES[resource].step
    return in_force, max(wanted, in_force) if is_near else wanted


class AboveBound(Struct, eq=False):
    """Follows all resources from tick to tick, and logs when an excess lasts and when it has ended."""

    log: FilteringBoundLogger
    _excesses: dict[str, Excess] = {}

    def look(self, state: BoxState, now_s: float) -> None:
        for resource in RESOURCES:
            before, found = self._excesses.get(resource), _seen(resource, state)
            was_reported = before is not None and before.reported
            if found is None or found[0] <= found[1]:
                self._excesses.pop(resource, None)
                if was_reported:
                    self.log.info("box_within_bound", resource=resource)
                continue
            since_s = before.since_s if before else now_s
            excess = Excess(since_s, found[0], found[1], reported=now_s - since_s >= REPORTED_AFTER_S)
            self._excesses[resource] = excess
            if excess.reported and not was_reported:
                fields = {"resource": resource, "amount": excess.amount, "bound": excess.bound}
                self.log.warning("box_above_bound", **fields, detail=_words(resource, excess))

    def seconds(self, now_s: float) -> dict[str, float]:
        """For how long each resource has been above its bound; 0: it is within."""
        excesses = self._excesses.copy()  # asked from other threads
        return {name: now_s - excesses[name].since_s if name in excesses else 0.0 for name in RESOURCES}

    def problems(self, now_s: float) -> Iterator[str]:
        """What has lasted, in words."""
        for resource in RESOURCES:
            if (excess := self._excesses.get(resource)) and now_s - excess.since_s >= REPORTED_AFTER_S:
                yield f"{_words(resource, excess)}, for {now_s - excess.since_s:.0f} s"


def _words(resource: str, excess: Excess) -> str:
    row = RESOURCES[resource]
    if resource == MEMORY:
        used, above, bound = map(row.words, (excess.amount, excess.amount - excess.bound, excess.bound))
        return f"the box uses {used}, {above} above its bound of {bound}"
    in_force = "unlimited" if excess.amount == math.inf else row.words(excess.amount)
    return f"the box's {row.title} limit in force is {in_force}, above the wanted {row.words(excess.bound)}"
