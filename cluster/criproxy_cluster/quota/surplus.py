"""Which Workloads go where nodes carry less than is in use for long, and which come back. Pure.

A Workload that is suspended is as one that Kueue has preempted: its pods end, and it waits in its queue again. Kueue
keeps one with `spec.active: false` out of its queue, so it is made active again as soon as Kueue has taken its quota
back. From then on it is admitted as any other, once the pool has room.

    admitted ── carried < used for `OVER_S`, it is the newest, the budget has room ──▶ suspended, and marked
       ▲                                                                                   │
       └── Kueue admits it ── waits in its queue ◀── active again, mark gone ◀── has no quota ┘

One that somebody else has made inactive has no mark, and is left alone.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct

from criproxy_cluster.budget import Budget
from criproxy_cluster.quota.pool import NOTHING, Amounts

OVER_S: Final = 300.0


class Workload(Struct, frozen=True):
    """`used`: of each flavor, while it has quota. `since`: when it got it, RFC 3339. `marked`: it bears our mark."""

    namespace: str
    name: str
    version: str
    active: bool
    marked: bool
    reserved: bool
    since: str
    used: Mapping[str, Amounts]

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


class Surplus:
    """`budget`: over all flavors."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._over_s: dict[str, float] = {}

    def chosen(
        self,
        workloads: Iterable[Workload],
        carried: Mapping[str, Amounts],
        now_s: float,
        refused: Callable[[Workload], bool] = lambda _: False,
    ) -> list[Workload]:
        """Those to suspend now, the newest first, without those that are `refused`. Ask each second: see `OVER_S`.

        Spend of the budget for each that is, or may be.
        """
        holding = [one for one in workloads if one.reserved and one.active]
        found: dict[tuple[str, str], Workload] = {}
        for flavor, pool in carried.items():
            used = sum((one.used.get(flavor, NOTHING) for one in holding if one.key not in found), NOTHING)
            if not used.exceeds(pool):
                self._over_s.pop(flavor, None)
                continue
            if now_s - self._over_s.setdefault(flavor, now_s) < OVER_S:
                continue
            for one in sorted(holding, key=lambda each: (each.since, each.key), reverse=True):
                if not used.exceeds(pool) or len(found) >= self._budget.left(now_s):
                    break
                part = one.used.get(flavor, NOTHING)
                if one.key not in found and _helps(part, used, pool) and not refused(one):
                    found[one.key] = one
                    used -= part
        return list(found.values())


def _helps(part: Amounts, used: Amounts, pool: Amounts) -> bool:
    """Whether it has some of what there is too little of."""
    return bool((part.millicores and used.millicores > pool.millicores) or (part.bytes and used.bytes > pool.bytes))


def to_resume(workloads: Iterable[Workload]) -> list[Workload]:
    """Those that we have suspended and whose quota Kueue has taken back, or that somebody has made active again."""
    return [one for one in workloads if one.marked and (one.active or not one.reserved)]
