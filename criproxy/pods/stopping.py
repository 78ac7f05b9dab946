"""Stopping pods at the runtime, and keeping those out for a while that were stopped."""

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy.control.clock import Clock
from criproxy.model import PodRef, Sandbox
from criproxy.pods.hold_offs import HoldOffs
from criproxy.pods.runtime import Runtime

ON_UNBOUNDED: Final = "colocation.on_unbounded"
ON_RUNTIME_OVERLOAD: Final = "colocation.on_runtime_overload"
ON_OVER_LIMIT: Final = "memory.on_over_limit"
"""The settings by which single pods are stopped."""

HOLD_S: Final = 300.0
"""For so long a pod that was stopped may not start again: kubelet would start it at once, to do or land as it did."""


class StopsPods(Protocol):
    """Whoever stops single pods of the box, and tries again until they have stopped."""

    def stop(self, sandbox: Sandbox, why: str) -> None: ...


class PodStopper(Struct):
    """Stops sandboxes at the runtime, each once, and those again that did not stop."""

    runtime: Runtime
    log: FilteringBoundLogger
    _stopped: set[str] = set()

    @property
    def stopped(self) -> frozenset[str]:
        """The sandboxes that were stopped, of those that were last to be."""
        return frozenset(self._stopped)

    async def stop_all(self, wanted: Mapping[str, tuple[PodRef, str]]) -> None:
        """Stop these, by sandbox id, for these reasons. Raises what `Runtime.stop` does, after all were tried."""
        self._stopped &= wanted.keys()
        # At once: one that will not stop must not keep the others.
        stops = [self._stop(one, pod, why) for one, (pod, why) in wanted.items() if one not in self._stopped]
        failures = [error for error in await asyncio.gather(*stops, return_exceptions=True) if error is not None]
        if failures:
            raise failures[0]

    async def _stop(self, sandbox_id: str, pod: PodRef, why: str) -> None:
        self.log.warning("evict", pod=str(pod), pod_uid=pod.uid, reason=why)
        await self.runtime.stop(sandbox_id)
        self._stopped.add(sandbox_id)


class Holds(Struct):
    """By which settings single pods are stopped now (`stops_by`), and which pods may not start in the box for now.

    Kubelet starts a pod again at once that was stopped, and it would do the same again. A hold names the `setting` by
    which the pod was stopped, and ends with it. A pod that an operator holds criproxy off is not stopped.
    """

    clock: Clock
    hold_offs: HoldOffs
    stops_by: frozenset[str] = frozenset()
    _held: dict[tuple[str, str], tuple[float, str]] = {}
    _everybody: str = ""
    _resting: bool = False

    def stops(self, setting: str, pod: PodRef) -> bool:
        """Whether this pod is stopped by that setting now."""
        return setting in self.stops_by and not self.hold_offs.covers(pod)

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
