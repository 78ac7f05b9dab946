"""The leader's controller: watches policies and nodes, and writes what `node_law` says.

How it works
------------
    watch of nodes ─────▶ Fleet ──▶ this node ─────────────────▶ CHANGED ──▶ PROMPT_WRITERS tasks ──────┐
    the heap of times ──▶ this node ───────────────────────────▶ DUE ──┐                                ├──▶ patches
    watch of policies ──▶ Fleet ──▶ the nodes that it concerns ──▶ ROLL_OUT ──▶ BACKGROUND_WRITERS tasks ┘
    each STATUS_S: the status of policies whose figures have changed

A node that has changed has writers of its own: a label takes effect within a second while 10,000 nodes get another
policy. Those get it in the background: no more than `WRITES_PER_S` of them, and each writer rests as long as its last
write took. So where the API server is slow, or this process is, which has the webhook to answer too, a policy takes
longer to reach its last node, and nobody else waits for it.

Nothing here is long at work without letting the webhook answer: each node that is listed, seen or looked at is a step
of its own, and a list comes in pages.

What is seen comes by `Follower`, what is to be written is in a `Queue` with one owner for each. Nothing is written
before policies and nodes were listed; while their kind is not there, as the CRD was removed, nodes keep what they have.
A policy that can't be read has its problem in its status, and the one before it holds; so does what was last read of a
node that can't be read.

A controller is run once: another replica may have led when this one leads again, and what was known is of old. So while
the leader changes more often than each `node_law.TRUST_S` (8 minutes), no node is found to be away.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from lightkube.core.async_client import AsyncClient
from lightkube.types import PatchType
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.controller.fleet import Fleet
from criproxy_cluster.controller.follower import Follower, Hearing
from criproxy_cluster.controller.node_law import Judgement
from criproxy_cluster.controller.policies import Policy, PolicyError, parsed
from criproxy_cluster.controller.queue import Queue, Urgency
from criproxy_cluster.memory import settle
from criproxy_cluster.metrics import ControllerMetrics
from criproxy_cluster.objects import Json, NodeObject, view
from criproxy_cluster.requests import NOT_FOUND, Trouble, patch
from criproxy_cluster.resources import NodeResource, NodeStatusResource, PolicyResource, PolicyStatusResource
from criproxy_cluster.vocabulary.watching import Item

PROMPT_WRITERS: Final = 4
BACKGROUND_WRITERS: Final = 4
WRITES_PER_S: Final = 100.0
"""In the background."""

MOST_REST_S: Final = 2.0
STATUS_S: Final = 1.0


class Listener(Protocol):
    """Who else hears of nodes, and works while this controller does. None of it may block or raise."""

    def see(self, node: NodeObject, labels: Mapping[str, str]) -> None:
        """It is there, or has changed. `labels` are its own, as they are kept in any case."""

    def forget(self, name: str) -> None: ...

    def forget_all_but(self, names: set[str]) -> None:
        """All nodes were listed."""

    async def run(self) -> None:
        """From the first list on, until cancelled."""


class Owners(Listener, Protocol):
    """Who looks after pods' owners. It hears of policies, too, and has a part in their status."""

    def set_policies(self, policies: Sequence[Policy], unusable: frozenset[str]) -> None:
        """All that can be used, the one that wins last, and the names of the others, whose last good content nobody
        knows.
        """

    def status(self, policy: str) -> Json | None: ...

    def changed(self) -> list[str]:
        """The policies whose status may be another one since the last call."""


class Controller:
    """See `run`."""

    def __init__(
        self,
        client: AsyncClient,
        log: FilteringBoundLogger,
        metrics: ControllerMetrics | None = None,
        listener: Listener | None = None,
        owners: Owners | None = None,
    ) -> None:
        self._client = client
        self._owners = owners
        self._listeners = tuple(one for one in (listener, owners) if one is not None)
        self._log = log
        self._metrics = metrics or ControllerMetrics()
        self._fleet = Fleet()
        self._nodes = Hearing()
        self._queue = Queue()
        self._statuses = Queue()
        self._problems: dict[str, tuple[int, str]] = {}
        self._written: dict[str, Json] = {}
        self._listed = asyncio.Event()
        self._nodes_seen = asyncio.Event()
        self._next_write_s = 0.0

    async def run(self) -> None:
        """Until cancelled, and once."""
        client, log = self._client, self._log
        policies = Follower(
            client, PolicyResource, self._policy_changed, self._policies_listed, hearing=Hearing(), log=log
        )
        nodes = Follower(client, NodeResource, self._node_changed, self._nodes_listed, hearing=self._nodes, log=log)
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(policies.run())
                await self._listed.wait()
                parts.create_task(nodes.run())
                parts.create_task(self._wake())
                parts.create_task(self._tell())
                parts.create_task(self._write_statuses())
                for listener in self._listeners:
                    parts.create_task(self._listen(listener))
                for _ in range(PROMPT_WRITERS):
                    parts.create_task(self._write_promptly())
                for _ in range(BACKGROUND_WRITERS):
                    parts.create_task(self._write_in_background())
        finally:
            self._queue.close()
            self._statuses.close()

    # --- what is shown ------------------------------------------------------------------------------------------------

    def lengths(self) -> dict[str, int]:
        return {"nodes": len(self._queue), "policies": len(self._statuses)}

    def known(self) -> tuple[int, int, int]:
        return len(self._fleet), len(self._fleet.policy_names() | self._problems.keys()), len(self._problems)

    def unheard_s(self) -> float:
        return self._nodes.deaf_s(time.monotonic())

    # --- what is seen -------------------------------------------------------------------------------------------------

    def _policies_listed(self, names: set[str]) -> None:
        for gone in (self._fleet.policy_names() | self._problems.keys()) - names:
            self._forget_policy(gone)
        self._listed.set()

    def _policy_changed(self, item: Item[PolicyResource]) -> None:
        name = item.name
        if item.event == "DELETED":
            self._forget_policy(name)
        elif item.problem:
            self._set_wrong(name, item.generation, item.problem)
        elif item.value is not None:
            if name in self._written and item.value.status != self._written[name]:
                del self._written[name]  # somebody else has written it, or made the policy anew
            try:
                policy = parsed(name, item.value.metadata.generation, item.value.spec)
            except PolicyError as error:
                self._set_wrong(name, item.value.metadata.generation, str(error))
                return
            self._set_right(name)
            self._set_policy(name, policy)

    def _set_wrong(self, name: str, generation: int, problem: str) -> None:
        """The old one holds. One whose name can't be read is nobody's to tell of, but for the log."""
        if name:
            self._problems[name] = (generation, problem)
            self._fleet.set_unusable(frozenset(self._problems))
            self._fleet.touch(name)
            self._tell_owners()

    def _set_right(self, name: str) -> None:
        if self._problems.pop(name, None) is not None:
            for node in self._fleet.set_unusable(frozenset(self._problems)):
                self._queue.put(node, Urgency.ROLL_OUT)

    def _forget_policy(self, name: str) -> None:
        self._set_right(name)
        self._statuses.forget(name)
        self._written.pop(name, None)
        self._set_policy(name, None)

    def _set_policy(self, name: str, policy: Policy | None) -> None:
        for node in self._fleet.set_policy(name, policy):
            self._queue.put(node, Urgency.ROLL_OUT)
        self._tell_owners()

    def _tell_owners(self) -> None:
        if self._owners is not None:
            unusable = frozenset(self._problems) - self._fleet.policy_names()
            self._owners.set_policies(self._fleet.policies, unusable)

    async def _listen(self, listener: Listener) -> None:
        await self._nodes_seen.wait()
        await listener.run()

    def _nodes_listed(self, names: set[str]) -> None:
        self._fleet.forget_all_but(names)
        for listener in self._listeners:
            listener.forget_all_but(names)
        settle()
        self._nodes_seen.set()

    def _node_changed(self, item: Item[NodeResource]) -> None:
        name = item.name
        if item.event == "DELETED":
            self._fleet.forget(name)
            self._queue.forget(name)
            for listener in self._listeners:
                listener.forget(name)
            return
        if item.value is None:
            return
        seen = view(item.value)
        changed = self._fleet.see(seen)
        for listener in self._listeners:
            listener.see(item.value, seen.labels)
        if item.event == "LISTED":
            self._queue.put(name, Urgency.ROLL_OUT)
        elif self._is_to_be_written(name):  # if all that is new is its report, it may wait for its turn in a roll-out
            self._queue.put(name, Urgency.CHANGED if changed else Urgency.ROLL_OUT)

    async def _wake(self) -> None:
        """Look at nodes whose time has come."""
        while True:
            for name in self._fleet.due(time.monotonic()):
                self._queue.put(name, Urgency.DUE)
            await asyncio.sleep(1.0)

    # --- what is written ----------------------------------------------------------------------------------------------

    async def _write_promptly(self) -> None:
        while True:
            name, urgency = await self._queue.get(Urgency.CHANGED)
            await self._write(name, urgency)

    async def _write_in_background(self) -> None:
        while True:
            name, urgency = await self._queue.get(Urgency.DUE, Urgency.ROLL_OUT)
            if not self._is_to_be_written(name):
                self._queue.done(name)
                await asyncio.sleep(0)
                continue
            await self._take_turn()
            began_s = time.monotonic()
            await self._write(name, urgency)
            await asyncio.sleep(min(time.monotonic() - began_s, MOST_REST_S))

    def _look(self, name: str) -> Judgement | None:
        now_s = time.monotonic()
        return self._fleet.look(name, now_s, time.time(), self._nodes.deaf_s(now_s))

    def _is_to_be_written(self, name: str) -> bool:
        judgement = self._look(name)
        return judgement is not None and judgement.writes

    async def _write(self, name: str, urgency: Urgency) -> None:
        judgement = self._look(name)
        if judgement is None or not judgement.writes:
            self._queue.done(name)
            return
        what = f"node {name}"
        try:
            if judgement.patch:
                await patch(self._client, NodeResource, name, judgement.patch, PatchType.MERGE, what=what)
            if judgement.status:
                await patch(self._client, NodeStatusResource, name, judgement.status, PatchType.STRATEGIC, what=what)
        except Trouble as trouble:
            self._metrics.wrote("nodes", ok=False)
            if trouble.code == NOT_FOUND:
                self._queue.done(name)
            elif self._queue.failed(name, urgency) == 3:
                self._log.warning("node_not_written", node=name, error=str(trouble), consequence="tried again")
        else:
            self._metrics.wrote("nodes", ok=True)
            self._queue.done(name)
            self._log.info("node_written", node=name, what=judgement.why)

    async def _take_turn(self) -> None:
        """Waits, so that no more than `WRITES_PER_S` begin."""
        now_s = time.monotonic()
        self._next_write_s = max(self._next_write_s, now_s) + 1.0 / WRITES_PER_S
        await asyncio.sleep(self._next_write_s - now_s)

    async def _tell(self) -> None:
        """The status of policies, which says nothing true before all nodes were seen."""
        await self._nodes_seen.wait()
        while True:
            of_owners = self._owners.changed() if self._owners is not None else []
            for name in dict.fromkeys([*self._fleet.changed_policies(), *of_owners]):
                self._statuses.put(name, Urgency.CHANGED)
            await asyncio.sleep(STATUS_S)

    async def _write_statuses(self) -> None:
        while True:
            name, urgency = await self._statuses.get(Urgency.CHANGED)
            status = self._status(name)
            if status is None or self._written.get(name) == status:
                self._statuses.done(name)
                continue
            # As a whole: a merge patch leaves what is no more, and 1.20 refuses an empty text in one.
            whole = [{"op": "add", "path": "/status", "value": status}]
            self._written.pop(name, None)  # whether it is done is known by its answer alone
            try:
                await patch(self._client, PolicyStatusResource, name, whole, PatchType.JSON, what=f"status of {name}")
            except Trouble as trouble:
                self._metrics.wrote("policies", ok=False)
                if self._statuses.failed(name, urgency) == 3:
                    self._log.warning("status_not_written", policy=name, error=str(trouble), consequence="tried again")
            else:
                self._metrics.wrote("policies", ok=True)
                self._statuses.done(name)
                self._written[name] = status

    def _status(self, name: str) -> Json | None:
        generation, problem = self._problems.get(name, (0, ""))
        status = self._fleet.status(name)
        of_owners = self._owners.status(name) if self._owners is not None else None
        if problem:
            nothing = {"nodes": 0, "inForce": 0, "refused": 0, "waiting": 0, "refusedBy": []}
            status = {**(status or nothing), "observedGeneration": generation, "problem": problem}
        if status is not None and of_owners is not None:
            status = {**status, "owners": of_owners}
        return status
