"""Keeps the law up to date, and reads single pods."""

import asyncio
import time
from typing import Any, Final

from lightkube.core.async_client import AsyncClient
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.controller.follower import Follower, Hearing
from criproxy_cluster.ledger.desk import Seen
from criproxy_cluster.ledger.law import Ledger, Pod
from criproxy_cluster.ledger.pods import PodObject, lent_by, pod_of
from criproxy_cluster.ledger.resources import OnePodResource, PodResource, UnplacedResource
from criproxy_cluster.memory import settle
from criproxy_cluster.requests import NOT_FOUND, Trouble, trouble_of
from criproxy_cluster.resources import NodeResource
from criproxy_cluster.vocabulary.names import CLASS, OFFLINE
from criproxy_cluster.vocabulary.watching import Item

MARKED: Final = {"labelSelector": f"{CLASS}={OFFLINE}"}
"""The webhook gives this label to all that it converts, whatever else marks them."""

UNPLACED: Final = {"labelSelector": f"{CLASS}!={OFFLINE}", "fieldSelector": "spec.nodeName="}
PAGE: Final = 500


class Watches:
    """Fills `ledger` and `seen`."""

    def __init__(self, client: AsyncClient, ledger: Ledger, seen: Seen, log: FilteringBoundLogger) -> None:
        self._client = client
        self._ledger = ledger
        self._seen = seen
        self._log = log
        self._hearings = [Hearing() for _ in range(3)]
        seen.deaf = lambda: any(one.is_lost for one in self._hearings)

    async def run(self) -> None:
        """Until cancelled."""
        client, log = self._client, self._log
        nodes, pods, unplaced = self._hearings
        async with asyncio.TaskGroup() as parts:
            for follower in (
                Follower(client, NodeResource, self._node, self._nodes_listed, hearing=nodes, log=log),
                Follower(
                    client, PodResource, self._pod, self._pods_listed, hearing=pods, log=log, query=MARKED, page=PAGE
                ),
                Follower(
                    client,
                    UnplacedResource,
                    self._unplaced,
                    self._unplaced_listed,
                    hearing=unplaced,
                    log=log,
                    query=UNPLACED,
                    page=PAGE,
                ),
            ):
                parts.create_task(follower.run())

    def _node(self, item: Item[NodeResource]) -> None:
        if item.event == "DELETED":
            self._ledger.set_node(item.name, None)
        elif item.value is not None:
            self._ledger.set_node(item.name, lent_by(item.value))

    def _nodes_listed(self, names: set[str]) -> None:
        self._ledger.keep_nodes(names)
        self._listed("nodes")

    def _pod(self, item: Item[PodResource]) -> None:
        self._seen.pods_s = time.monotonic()
        if item.event == "DELETED":
            self._ledger.forget(item.name)
        elif item.value is not None:
            self._ledger.see(pod_of(item.value))

    def _pods_listed(self, uids: set[str]) -> None:
        self._seen.pods_s = time.monotonic()
        self._ledger.keep_pods(uids)
        self._listed("pods")

    def _unplaced(self, item: Item[UnplacedResource]) -> None:
        if item.event == "DELETED":
            self._seen.unplaced.discard(item.name)
        elif item.value is not None:
            self._seen.unplaced.add(item.name)

    def _unplaced_listed(self, uids: set[str]) -> None:
        self._seen.unplaced.intersection_update(uids)
        self._listed("unplaced pods")

    def _listed(self, what: str) -> None:
        if what in self._seen.missing:
            self._seen.missing.discard(what)
            settle()


class PodReader:
    """See `desk.Reader`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def read(self, namespace: str, name: str) -> tuple[Pod, bool] | None:
        try:
            with trouble_of(f"the pod {namespace}/{name}"):
                found: PodObject = await self._client.get(OnePodResource, name, namespace=namespace)
        except Trouble as trouble:
            if trouble.code == NOT_FOUND:
                return None
            raise
        labels: dict[str, Any] = found.metadata.labels or {}
        return pod_of(found), labels.get(CLASS) == OFFLINE
