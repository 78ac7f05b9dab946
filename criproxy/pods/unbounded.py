"""Finds the offline pods that run outside the box, tells of them, and stops them when the config says so.

They started past criproxy (in a bypass, or before it was there) or while colocation was off. What such a pod runs
stays where it is until the pod starts anew.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import structlog
from msgspec import Struct

from criproxy.hooks.offline import OfflineRules
from criproxy.model import Pod, PodRef
from criproxy.pods.stopping import Evictions

_WHY: Final = "it is offline and runs outside the box"


class Inventory(Protocol):
    """What is asked of the inventory (`criproxy.pods.inventory`)."""

    @property
    def elsewhere(self) -> Mapping[str, Pod]: ...


class Settings(Struct, frozen=True):
    """`rules` tell which pods are offline; None: none is sought, since none is bounded now."""

    rules: OfflineRules | None
    evict: bool = False


class Unbounded:
    """The offline pods outside the box. `stop_sandbox` stops one at the runtime and raises ConnectionError."""

    def __init__(
        self, settings: Settings, inventory: Inventory, stop_sandbox: Callable[[str], Awaitable[None]]
    ) -> None:
        self.settings = settings
        self._inventory = inventory
        self._evictions = Evictions(stop_sandbox)
        self._told: frozenset[str] = frozenset()
        self._log = structlog.get_logger()

    def pods(self) -> dict[str, PodRef]:
        """Who they are, by sandbox id. May be asked for from any thread."""
        stopped = self._evictions.done
        return {sandbox_id: ref for sandbox_id, (ref, _) in self._found().items() if sandbox_id not in stopped}

    async def look(self) -> None:
        """Tell of those that were not told of yet, and evict. Raises what `stop_sandbox` does, after all were tried."""
        found = self._found()
        for sandbox_id, (pod, why) in found.items():
            if sandbox_id not in self._told:
                self._log.warning("offline_pod_unbounded", pod=str(pod), pod_uid=pod.uid, offline_because=why)
        self._told = frozenset(found)
        if self.settings.evict:
            await self._evictions.carry_out({one: (pod, _WHY) for one, (pod, _) in found.items()})

    def _found(self) -> dict[str, tuple[PodRef, str]]:
        rules = self.settings.rules
        if rules is None:
            return {}
        judged = ((sandbox_id, pod.ref, rules.why(pod)) for sandbox_id, pod in self._inventory.elsewhere.items())
        return {sandbox_id: (ref, why) for sandbox_id, ref, why in judged if why is not None}
