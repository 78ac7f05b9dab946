"""Having pods leave, and keeping those out for a while that were stopped.

Where Kubernetes is switched on, a pod is evicted by its API: its budget is kept to, and it does not come straight back.
Where that can't be had, its sandbox is stopped at the runtime, and kubelet starts it anew. What must not wait (a pod
that no limit holds, a node that is short of memory) is stopped whatever its budget says, as kubelet itself would do.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct, field
from structlog.typing import FilteringBoundLogger

from criproxy.control.clock import Clock
from criproxy.model import PodRef, Sandbox
from criproxy.pods.runtime import Runtime

ON_UNBOUNDED: Final = "colocation.on_unbounded"
ON_RUNTIME_OVERLOAD: Final = "colocation.on_runtime_overload"
ON_OVER_LIMIT: Final = "memory.on_over_limit"
"""The settings by which single pods are stopped."""

HOLD_S: Final = 300.0
"""For so long a pod that was stopped may not start again: kubelet would start it at once, to do or land as it did."""


EVICT_S: Final = 10.0
"""So long an eviction may take to be accepted, before the pod's sandbox is stopped instead."""


class BudgetError(Exception):
    """The pod's disruption budget lets it not go now."""


class Evicts(Protocol):
    """Whoever has pods leave as Kubernetes does it."""

    async def evict(self, pod: PodRef, why: str, *, within_s: float, grace_s: int | None = None) -> float | None:
        """Have it leave, in its own grace period (or `grace_s`); returns within how many seconds it will have ended.

        None: it can't be evicted, or nobody has answered `within_s`. Raises BudgetError, and nothing else.
        """
        ...


class StopsPods(Protocol):
    """Whoever stops single pods of the box, and tries again until they have stopped."""

    def stop(self, sandbox: Sandbox, why: str) -> None: ...


class PodStopper(Struct):
    """Has pods leave, each once, and those again that did not. `evicts`: None: all are stopped at the runtime."""

    runtime: Runtime
    log: FilteringBoundLogger
    evicts: Evicts | None = None
    clock: Clock = field(default_factory=Clock)
    _stopped: set[str] = set()
    _evicted: dict[str, float] = {}
    """Until when each will have ended that was evicted (CLOCK_BOOTTIME)."""
    _waiting: set[str] = set()
    """Those whose budget did not let them go, for the log."""

    @property
    def stopped(self) -> frozenset[str]:
        """The sandboxes that were stopped, or evicted, of those that were last to be."""
        return frozenset(self._stopped) | frozenset(self._evicted)

    async def stop_all(self, wanted: Mapping[str, tuple[PodRef, str]], patient: Collection[str] = ()) -> None:
        """Stop these, by sandbox id, for these reasons. Raises what `Runtime.stop` does, after all were tried.

        Those that are `patient` wait until their disruption budget lets them go: the next call tries again.
        """
        self._stopped &= wanted.keys()
        self._waiting &= wanted.keys()
        now_s = self.clock.boottime_s()
        self._evicted = {one: end_s for one, end_s in self._evicted.items() if one in wanted}
        leaving = self._stopped | {one for one, end_s in self._evicted.items() if now_s < end_s}
        # At once: one that will not stop must not keep the others.
        stops = [
            self._leave(one, pod, why, patient=one in patient)
            for one, (pod, why) in wanted.items()
            if one not in leaving
        ]
        failures = [error for error in await asyncio.gather(*stops, return_exceptions=True) if error is not None]
        if failures:
            raise failures[0]

    async def evict_first(
        self, victims: Sequence[tuple[str, PodRef, str]], *, within_s: float, grace_s: int
    ) -> int | None:
        """Evict the first of these whose budget lets it go: (sandbox id, pod, why), in their order; returns which.

        None: none is let go, or nobody has answered in time. Then one is to be stopped.
        """
        if self.evicts is None:
            return None
        end_s = self.clock.boottime_s() + within_s
        for at, (sandbox_id, pod, why) in enumerate(victims):
            left_s = max(0.0, end_s - self.clock.boottime_s())
            try:
                ends_s = await self.evicts.evict(pod, why, within_s=left_s, grace_s=grace_s)
            except BudgetError:
                continue
            if ends_s is None:
                break
            self._evicted[sandbox_id] = self.clock.boottime_s() + ends_s
            return at
        return None

    async def _leave(self, sandbox_id: str, pod: PodRef, why: str, *, patient: bool) -> None:
        """One that was evicted and has not ended is stopped: kubelet may be away."""
        if self.evicts is not None and sandbox_id not in self._evicted:
            try:
                ends_s = await self.evicts.evict(pod, why, within_s=EVICT_S)
            except BudgetError as error:
                if patient:
                    if sandbox_id not in self._waiting:
                        self.log.info("eviction_waits", pod=str(pod), pod_uid=pod.uid, reason=why, budget=str(error))
                    self._waiting.add(sandbox_id)
                    return
                ends_s = None
            if ends_s is not None:
                self._evicted[sandbox_id] = self.clock.boottime_s() + ends_s
                return
        await self.stop_now(sandbox_id, pod, why)

    async def stop_now(self, sandbox_id: str, pod: PodRef, why: str) -> None:
        """At the runtime, whatever its budget says. Raises what `Runtime.stop` does."""
        self.log.warning("evict", pod=str(pod), pod_uid=pod.uid, reason=why)
        await self.runtime.stop(sandbox_id)
        self._stopped.add(sandbox_id)


class Holds(Struct):
    """By which settings single pods are stopped now (`stops_by`), and which pods may not start in the box for now.

    Kubelet starts a pod again at once that was stopped, and it would do the same again. A hold names the `setting` by
    which the pod was stopped, and ends with it.
    """

    clock: Clock
    stops_by: frozenset[str] = frozenset()
    _held: dict[tuple[str, str], tuple[float, str]] = {}
    _everybody: str = ""
    _resting: bool = False

    def hold(self, pod: PodRef, seconds: float, why: str, setting: str) -> None:
        """Keep the pod out for so long; `why` follows "it was stopped, as"."""
        now_s = self.clock.boottime_s()
        others = {key: held for key, held in self._held.items() if held[0] > now_s}
        self._held = {**others, (pod.uid, setting): (now_s + seconds, why)}  # as a whole: the status reads it meanwhile

    def hold_everybody(self, why: str) -> None:
        """Keep all pods out, or with "" none of those that are not held by themselves."""
        self._everybody = why

    def configure(self, stops_by: frozenset[str]) -> None:
        """Pods are stopped by these settings from now on."""
        self.stops_by = stops_by
        self._held = {key: held for key, held in self._held.items() if key[1] in stops_by}

    def held(self, pod: PodRef) -> str:
        """Why the pod may not start in the box now; "" when it may. May be asked for from any thread."""
        if self._resting:
            return ""
        for (uid, setting), (until_s, why) in self._held.items():
            if uid == pod.uid and (left_s := until_s - self.clock.boottime_s()) > 0.0:
                return f"it was stopped, as {why} ({setting}), so it is not let in for {left_s:.0f} s"
        return self._everybody

    def rest(self) -> None:
        """Another process serves from now on, and judges for itself."""
        self._resting = True

    def resume(self) -> None:
        """This process serves, as no other does."""
        self._resting = False
