"""Keeps a pod's weight in the box to what the scheduler was told of the pod, where Kubernetes says what that is.

What a pod asks for of what nodes lend stands in an annotation (`hooks.batch`), as kubelet does not tell the runtime.
Where no webhook has written it, its author may have: then it is a claim that nobody has counted. The pod's spec is what
the scheduler has counted, and the API server shows this node the specs of its own pods. A pod whose annotation claims
more has the weight of its spec, for the box and for all that goes by what pods ask for.

While the API server does not answer, a pod that it has not shown keeps what it claims, as an honest one must not lose
its share for that. Each pod is asked about once: what a spec requests of what nodes lend can't change.
"""

import math
from collections.abc import Collection
from typing import Final

from msgspec import Struct, field

from criproxy.cgroup.box import Box
from criproxy.cgroup.naming import parse_placement
from criproxy.concurrency.clock import Wake
from criproxy.model import LOWEST_SHARES, SHARES_OF_CORE, Sandbox
from criproxy.pods.inventory import PodObserver
from criproxy.pods.part import Part, Ports
from criproxy.pods.runtime import Running
from criproxy.pods.shared import PodsShared

ANSWER_S: Final = 5.0
GAP_S: Final = 10.0
"""From one request to the next: pods that start meanwhile are asked about together."""


class ToldWeights(PodObserver, Part, Struct, eq=False):
    """It looks after each listing, and soon after a pod has started that asks for a weight."""

    NAME = "keeping weights to what the scheduler was told"

    shared: PodsShared
    box: Box
    _told: dict[str, int] = {}
    """The CPU shares of what the scheduler has counted, by the pod's uid."""
    _asked_s: float = -math.inf
    _waits: bool = False
    """Whether there are pods to be asked about as soon as `GAP_S` is over."""
    _wake: Wake = field(default_factory=Wake)

    def __post_init__(self) -> None:
        self.shared.inventory.watch(self)

    @classmethod
    def made(cls, ports: Ports) -> "ToldWeights":
        return cls(ports.shared, ports.box)

    def pods_listed(self) -> None:
        self._wake.set()

    def pod_started(self, running: Running) -> None:
        if running.sandbox.cpu_shares:
            self._wake.set()

    @property
    def wake(self) -> Wake:
        return self._wake

    @property
    def pause_s(self) -> float | None:
        return max(0.0, self._asked_s + GAP_S - self.shared.clock.monotonic_s()) if self._waits else None

    async def look(self) -> None:
        """Ask about pods that are not known yet, and lower those that claim more."""
        hold_offs = self.shared.holds.hold_offs
        if hold_offs.of_box() is not None:
            return
        running = self.shared.inventory.running_pods  # what has ended is not among the pods that Kubernetes tells of
        claiming = [one for one in running if one.cpu_shares and not hold_offs.covers(one.pod)]
        await self._ask({one.pod.uid for one in claiming})
        await self._lower([one for one in claiming if self._claims_more(one)])

    async def _ask(self, uids: Collection[str]) -> None:
        evicts, now_s = self.shared.evicts, self.shared.clock.monotonic_s()
        self._told = {uid: told for uid, told in self._told.items() if uid in uids}
        asks = evicts is not None and self._told.keys() != uids
        self._waits = asks and now_s < self._asked_s + GAP_S
        if evicts is None or not asks or self._waits:
            return
        self._asked_s = now_s
        known = await evicts.known(within_s=ANSWER_S)
        self._told |= {uid: one.cpu_shares for uid, one in known.items() if uid in uids and one.cpu_shares is not None}

    def _claims_more(self, one: Sandbox) -> bool:
        """By more than the shares that a container without a request counts for."""
        told = self._told.get(one.pod.uid)
        return told is not None and one.cpu_shares > told + LOWEST_SHARES * len(one.containers)

    async def _lower(self, pods: Collection[Sandbox]) -> None:
        if not pods:
            return
        for one in pods:
            told = self._told[one.pod.uid]
            self.shared.inventory.lower_shares(one.id, told)
            self.shared.log.warning(
                "pod_weight_lowered",
                pod=str(one.pod),
                pod_uid=one.pod.uid,
                asked_cores=one.cpu_shares / SHARES_OF_CORE,
                told_cores=told / SHARES_OF_CORE,
                reason="its annotation asks for more CPU than its spec: no webhook has written it",
            )
        places = {one.pod.uid: parse_placement(one.placement) for one in pods if one.placement}
        self.box.pods.lower_shares({place.name: self._told[uid] for uid, place in places.items()})
        await self.box.pods.carry(tuple(places.values()))
