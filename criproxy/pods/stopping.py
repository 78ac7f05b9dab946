"""Stopping pods at the runtime, and keeping those out for a while that were stopped."""

import asyncio
from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy.control.clock import Clock
from criproxy.model import PodRef
from criproxy.pods.hold_offs import HoldOffs
from criproxy.pods.inventory import Inventory
from criproxy.pods.runtime import Runtime

ON_UNBOUNDED: Final = "colocation.on_unbounded"
ON_RUNTIME_OVERLOAD: Final = "colocation.on_runtime_overload"
ON_OVER_LIMIT: Final = "memory.on_over_limit"
ON_HARM: Final = "interference.on_harm"
"""The settings by which single pods are stopped."""

HOLD_S: Final = 300.0
"""For so long a pod that was stopped may not start again: kubelet would start it at once, to do or land as it did."""


class PodStopper(Struct):
    """Stops sandboxes at the runtime, each once, and those again that did not stop.

    A pod that asks for notice has its containers' stop signal sent first, and as many seconds to end by itself; nobody
    waits for that. To stop the sandbox alone would kill them at once.
    """

    runtime: Runtime
    log: FilteringBoundLogger
    pods: Inventory
    _stopped: set[str] = set()
    _noticed: dict[str, asyncio.Task[None]] = {}

    @property
    def stopped(self) -> frozenset[str]:
        """The sandboxes that were stopped, of those that were last to be."""
        return frozenset(self._stopped)

    async def stop_all(self, wanted: Mapping[str, tuple[PodRef, str]], *, at_once: bool = False) -> None:
        """Stop these, by sandbox id, for these reasons. `at_once`: there is no time for notice.

        Raises what `Runtime.stop` does, after all were tried; of a stop after notice, that is logged.
        """
        self._stopped &= wanted.keys()
        due = {one: stop for one, stop in wanted.items() if one not in self._stopped}
        if not at_once:
            due = {one: stop for one, stop in due.items() if not self._notices(one, *stop)}
        # At once: one that will not stop must not keep the others.
        stops = [self._stop(one, pod, why) for one, (pod, why) in due.items()]
        failures = [error for error in await asyncio.gather(*stops, return_exceptions=True) if error is not None]
        if failures:
            raise failures[0]

    async def _stop(self, sandbox_id: str, pod: PodRef, why: str) -> None:
        self.log.warning("evict", pod=str(pod), pod_uid=pod.uid, reason=why)
        await self.runtime.stop(sandbox_id)
        self._stopped.add(sandbox_id)

    def _notices(self, sandbox_id: str, pod: PodRef, why: str) -> bool:
        """Whether it has had notice, or has it from now on, and is stopped then."""
        if sandbox_id in self._noticed:
            return True
        if not (notice_s := self.pods.notice_s(sandbox_id)):
            return False
        self.log.info("notice", pod=str(pod), pod_uid=pod.uid, seconds=notice_s, reason=why)
        self._noticed[sandbox_id] = task = asyncio.create_task(self._stop_after(notice_s, sandbox_id, pod, why))
        task.add_done_callback(lambda _: self._noticed.pop(sandbox_id, None))
        return True

    async def _stop_after(self, notice_s: int, sandbox_id: str, pod: PodRef, why: str) -> None:
        containers = [one.id for one in self.pods.containers_of(sandbox_id)]
        notices = (self.runtime.give_notice(one, notice_s) for one in containers)
        await asyncio.gather(*notices, return_exceptions=True)  # whatever failed of it: they are stopped now
        try:
            await self._stop(sandbox_id, pod, why)
        except Exception as error:  # the next time, it is tried again
            self.log.warning("not_stopped", pod=str(pod), pod_uid=pod.uid, error=str(error))


class Holds(Struct):
    """By which settings single pods are stopped now (`stops_by`), and which pods may not start in the box for now.

    `closed`: why no pod at all may; "": they may. Kubelet starts a pod again at once that was stopped, and it would do
    the same again. A hold names the `setting` by which the pod was stopped, and ends with it. A pod that an operator
    holds criproxy off is not stopped. `resting`: another process serves by now, and judges for itself.
    """

    clock: Clock
    hold_offs: HoldOffs
    stops_by: frozenset[str] = frozenset()
    closed: str = ""
    resting: bool = False
    _held: dict[tuple[str, str], tuple[float, str]] = {}

    def stops(self, setting: str, pod: PodRef) -> bool:
        """Whether this pod is stopped by that setting now."""
        return setting in self.stops_by and not self.hold_offs.covers(pod)

    def hold(self, pod: PodRef, seconds: float, why: str, setting: str) -> None:
        """Keep the pod out for so long; `why` follows "it was stopped, as"."""
        now_s = self.clock.boottime_s()
        others = {key: held for key, held in self._held.items() if held[0] > now_s}
        self._held = {**others, (pod.uid, setting): (now_s + seconds, why)}  # as a whole: the status reads it meanwhile

    def close(self, why: str) -> None:
        """Let no pod in, as the box harms online ones; with "" those are that are not held by themselves."""
        self.closed = why

    def configure(self, stops_by: frozenset[str]) -> None:
        """Pods are stopped by these settings from now on."""
        self.stops_by = stops_by
        self._held = {key: held for key, held in self._held.items() if key[1] in stops_by}

    def held(self, pod: PodRef) -> str:
        """Why the pod may not start in the box now; "" when it may. May be asked for from any thread."""
        if self.resting:
            return ""
        for (uid, setting), (until_s, why) in self._held.items():
            if uid == pod.uid and (left_s := until_s - self.clock.boottime_s()) > 0.0:
                return f"it was stopped, as {why} ({setting}), so it is not let in for {left_s:.0f} s"
        return self.closed
