"""Finds the offline pods that started outside the box, reports them, and stops them when the config says so.

They started past criproxy (in a bypass, or before it was there) or while colocation was off. What such a pod runs
stays where it is until the pod starts anew. It is looked for with each listing of the runtime.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field

from criproxy.concurrency.clock import Wake
from criproxy.hooks.offline import OfflineRules
from criproxy.model import PodRef
from criproxy.model.shown import Gauge, listed
from criproxy.pods.inventory import PodObserver
from criproxy.pods.part import NodeSettings, Part, Ports
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import ON_UNBOUNDED, PodStopper

_WHY: Final = "it is offline and runs outside the box"


class UnboundedPods(PodObserver, Part, Struct, eq=False):
    """The offline pods that started outside the box.

    `rules` tell which pods are offline; None: none is sought, since none is bounded now.
    """

    NAME = "stopping offline pods that run outside the box"
    GAUGES = (Gauge("unbounded_pods", "Offline pods that run outside the box", lambda part: len(part.pods())),)

    shared: PodsShared
    stopper: PodStopper
    rules: OfflineRules | None = None
    _logged: frozenset[str] = frozenset()
    _wake: Wake = field(default_factory=Wake)

    def __post_init__(self) -> None:
        self.shared.inventory.watch(self)

    @classmethod
    def made(cls, ports: Ports) -> "UnboundedPods":
        return cls(ports.shared, ports.shared.stopper())

    def configure(self, now: NodeSettings) -> None:
        self.rules = now.config.colocation.offline_rules() if now.relieves else None
        self._wake.set()

    def pods_listed(self) -> None:
        self._wake.set()

    @property
    def wake(self) -> Wake:
        return self._wake

    def pods(self) -> dict[str, PodRef]:
        """Who they are, by sandbox id. May be asked for from any thread."""
        stopped = self.stopper.stopped
        return {sandbox_id: ref for sandbox_id, (ref, _) in self._found().items() if sandbox_id not in stopped}

    async def look(self) -> None:
        """Log those that are new, and stop them. Raises what `Runtime.stop` does, after all were tried."""
        if not self.shared.runtime.ready:
            return
        found = self._found()
        for sandbox_id, (pod, why) in found.items():
            if sandbox_id not in self._logged:
                self.shared.log.warning("offline_pod_unbounded", pod=str(pod), pod_uid=pod.uid, offline_because=why)
        self._logged = frozenset(found)
        stops = self.shared.holds.stops
        await self.stopper.stop_all({one: (pod, _WHY) for one, (pod, _) in found.items() if stops(ON_UNBOUNDED, pod)})

    def section(self) -> Mapping[str, Any]:
        return {"unbounded": tuple(str(pod) for pod in self.pods().values())}

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if unbounded := len(self.pods()):
            yield f"{unbounded} offline pods run outside the box"

    def rows(self) -> Iterator[tuple[str, ...]]:
        if pods := [str(pod) for pod in self.pods().values()]:
            yield "unbounded", f"{len(pods)} offline pods run outside the box (colocation.on_unbounded)", *listed(pods)

    def _found(self) -> dict[str, tuple[PodRef, str]]:
        if (rules := self.rules) is None:
            return {}
        judged = ((sandbox_id, pod.ref, rules.why(pod)) for sandbox_id, pod in self.shared.inventory.outside.items())
        return {sandbox_id: (ref, why) for sandbox_id, ref, why in judged if why is not None}
