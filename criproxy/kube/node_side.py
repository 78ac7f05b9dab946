"""The parts of the node's side of Kubernetes, put together: one client, one watch on the own Node, who hears of it."""

import asyncio
import random
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from criproxy.concurrency.clock import Clock
from criproxy.config import OwnFiles
from criproxy.kube.client import ApiClient
from criproxy.kube.credential import Credential
from criproxy.kube.events import EventWriter
from criproxy.kube.evictions import Evictor
from criproxy.kube.extended_resources import PublishSettings
from criproxy.kube.gives_back import GivesBackFollower
from criproxy.kube.node_watch import NodeWatch
from criproxy.kube.objects import Involved
from criproxy.kube.policy import PolicyFollower, TakesPolicy
from criproxy.kube.publisher import OfferSource, Publisher


class NodeSide:
    """What one node has to do with its API server, as the Node `name`. All parts go on whatever fails."""

    def __init__(
        self,
        credential: Credential,
        name: str,
        source: OfferSource,
        settings: PublishSettings,
        *,
        files: tuple[OwnFiles, Path],
        taker: TakesPolicy,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        """`files`: see `PolicyFollower`."""
        rng = random.Random()
        client = ApiClient(credential, clock, rng)
        self.name = name
        self.publisher = Publisher(client, name, source, settings, clock=clock, rng=rng, log=log)
        # Kubelet's own events name the Node by its name in the uid's place, and `kubectl describe node` finds both so.
        self.events = EventWriter(client, Involved("Node", name, name), clock=clock, rng=rng, log=log)
        self.evictor = Evictor(client, self.events, clock=clock, rng=rng, log=log)
        self.follower = PolicyFollower(client, name, files, taker, clock=clock, rng=rng, log=log)
        self.gives_back = GivesBackFollower(self.publisher, clock, log)
        observers = (self.publisher, self.evictor, self.follower, self.gives_back)
        self.watch = NodeWatch(client, name, observers, clock=clock, rng=rng, log=log)

    async def run(self) -> None:
        """Until cancelled. The follower is to have remembered its policy before."""
        async with asyncio.TaskGroup() as tasks:
            for part in (self.watch, self.publisher, self.evictor, self.events, self.follower):
                tasks.create_task(part.run())
