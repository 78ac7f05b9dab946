"""Finds the offline pods that started outside the box, reports them, and stops them when the config says so.

They started past criproxy (in a bypass, or before it was there) or while colocation was off. What such a pod runs
stays where it is until the pod starts anew. The reconciler looks for them in each of its rounds.
"""

from typing import Final

from msgspec import Struct

from criproxy.hooks.offline import OfflineRules
from criproxy.model import PodRef
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import ON_UNBOUNDED, PodStopper

_WHY: Final = "it is offline and runs outside the box"


class UnboundedPods(Struct):
    """The offline pods that started outside the box.

    `rules` tell which pods are offline; None: none is sought, since none is bounded now.
    """

    rules: OfflineRules | None
    shared: PodsShared
    stopper: PodStopper
    _logged: frozenset[str] = frozenset()

    def configure(self, rules: OfflineRules | None) -> None:
        self.rules = rules

    def pods(self) -> dict[str, PodRef]:
        """Who they are, by sandbox id. May be asked for from any thread."""
        stopped = self.stopper.stopped
        return {sandbox_id: ref for sandbox_id, (ref, _) in self._found().items() if sandbox_id not in stopped}

    async def look(self) -> None:
        """Log those that are new, and stop them. Raises what `Runtime.stop` does, after all were tried."""
        found = self._found()
        for sandbox_id, (pod, why) in found.items():
            if sandbox_id not in self._logged:
                self.shared.log.warning("offline_pod_unbounded", pod=str(pod), pod_uid=pod.uid, offline_because=why)
        self._logged = frozenset(found)
        stops = self.shared.holds.stops
        await self.stopper.stop_all({one: (pod, _WHY) for one, (pod, _) in found.items() if stops(ON_UNBOUNDED, pod)})

    def _found(self) -> dict[str, tuple[PodRef, str]]:
        if (rules := self.rules) is None:
            return {}
        judged = ((sandbox_id, pod.ref, rules.why(pod)) for sandbox_id, pod in self.shared.inventory.outside.items())
        return {sandbox_id: (ref, why) for sandbox_id, ref, why in judged if why is not None}
