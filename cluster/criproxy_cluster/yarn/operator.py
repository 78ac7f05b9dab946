"""Looks at each node with a NodeManager in its turn: asks, sends, confirms, and holds in the ledger what YARN has."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lightkube.core.async_client import AsyncClient
from lightkube.types import PatchType
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.controller.follower import Follower, Hearing
from criproxy_cluster.ledger.desk import Seen
from criproxy_cluster.ledger.law import Ledger
from criproxy_cluster.requests import FORBIDDEN, Attempts, Trouble, patch
from criproxy_cluster.vocabulary.gives_back import TOLD_S, Note, encoded
from criproxy_cluster.vocabulary.names import GIVES_BACK, SWITCH
from criproxy_cluster.vocabulary.presets import NAMES, ExtendedNames
from criproxy_cluster.vocabulary.watching import Item
from criproxy_cluster.yarn.client import ResourceManager
from criproxy_cluster.yarn.law import SETTLE_S, Lent, NodeLaw, NodeNote, Send, Size, wanted
from criproxy_cluster.yarn.managers import SELECTOR, Manager, Managers
from criproxy_cluster.yarn.resources import ManagerResource, SwitchedResource

HOLDER: Final = "yarn"
NODEMANAGERS: Final = "NodeManagers"
LOOK_S: Final = 1.0
REFRESH_S: Final = 10.0
"""A node of which nothing is wanted is read as often: its NodeManager may have come back with another size."""

MOST_ASKED: Final = 100
"""Nodes a look, and so a second: those that are to shrink first."""

AT_ONCE: Final = 16
CONFIRMS: Final = 10
CONFIRM_S: Final = 0.1
"""From one look to the next at whether the ResourceManager has what was sent."""

LIST_S: Final = 30.0
"""From one list of the ResourceManager's nodes to the next, while one is looked for in it."""

TOLD_RATIO: Final = 0.10
MILLICORES: Final = 1000


class YarnSettings(Struct, frozen=True):
    """`share_ratio`: see `law.wanted`. `drain_grace_s`: where the node is switched off, or
    the NodeManager's pod is being deleted. `cluster_id` "": any. `namespaces` (): NodeManagers' pods are in any."""

    addresses: tuple[str, ...]
    share_ratio: float = 0.5
    grace_s: float = 30.0
    drain_grace_s: float = 600.0
    cluster_id: str = ""
    namespaces: tuple[str, ...] = ()
    names: ExtendedNames = NAMES["batch"]


class YarnState(Struct):
    """What there is to be seen of it; of a replica that does not lead, only what it has counted.

    `problem` "": all is well. Sizes are sums over all nodes.
    """

    nodes: int = 0
    unknown: int = 0
    giving_back: int = 0
    overdue: int = 0
    wanted: Size = Size()
    size: Size = Size()
    used: Size = Size()
    held: Size = Size()
    grown: int = 0
    shrunk: int = 0
    failures: int = 0
    problem: str = ""

    @property
    def amounts(self) -> Mapping[str, Size]:
        return {"wanted": self.wanted, "size": self.size, "used": self.used, "held": self.held}


class _Node:
    """Of one NodeManager."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.node_id = manager.node_id
        self.law = NodeLaw()
        self.note = NodeNote()
        self.wanted = Size()
        self.asked_s = float("-inf")
        self.is_unknown = False
        self.was_overdue = False
        self.untold = False
        """Whether its box could not be told of what YARN gives back."""
        self.told = Size()

    def turn(self) -> tuple[int, float]:
        """Who comes first: the lower."""
        size = self.law.size
        if size is None or self.wanted.mib < size.mib or self.wanted.vcores < size.vcores:
            return 0, self.asked_s
        return (1 if self.law.is_giving_back else 2), self.asked_s

    def is_due(self, now_s: float) -> bool:
        if self.is_unknown or (self.law.size == self.wanted and not self.law.is_giving_back):
            return now_s - self.asked_s >= REFRESH_S
        return True


class YarnOperator:
    """`leads`: whether this replica may act, now. Until the NodeManagers' pods are known, `seen` misses them."""

    def __init__(
        self,
        client: AsyncClient,
        ledger: Ledger,
        settings: YarnSettings,
        seen: Seen,
        *,
        leads: Callable[[], bool],
        log: FilteringBoundLogger,
    ) -> None:
        self.state = YarnState()
        self._client = client
        self._manager = ResourceManager(settings.addresses)
        self._ledger = ledger
        self._settings = settings
        self._seen = seen
        seen.missing.add(NODEMANAGERS)
        self._leads = leads
        self._log = log
        self._managers = Managers(settings.cluster_id, settings.namespaces)
        self._nodes: dict[str, _Node] = {}
        self._switched_off: set[str] = set()
        self._known: list[str] = []
        """The ResourceManager's nodes, as they were at `_known_s`."""
        self._known_s = float("-inf")
        self._attempts = Attempts(self.state, log, "yarn", "sizes stay as they are; tried again")
        self._warned = False

    async def run(self) -> None:
        """Until cancelled."""
        managers = Follower(
            self._client,
            ManagerResource,
            self._manager_changed,
            self._managers_listed,
            hearing=Hearing(),
            log=self._log,
            query={"labelSelector": SELECTOR},
        )
        switched = Follower(
            self._client,
            SwitchedResource,
            self._switched_changed,
            self._switched_off.intersection_update,
            hearing=Hearing(),
            log=self._log,
            query={"labelSelector": f"{SWITCH}=off"},
        )
        async with self._manager, asyncio.TaskGroup() as parts:
            for part in (managers.run(), switched.run(), self._keep()):
                parts.create_task(part)

    def _manager_changed(self, item: Item[ManagerResource]) -> None:
        if item.event == "DELETED":
            self._managers.forget(item.name)
        elif item.value is not None:
            self._managers.see(item.value)

    def _managers_listed(self, uids: set[str]) -> None:
        self._managers.keep(uids)
        self._hold_unknown()
        self._seen.missing.discard(NODEMANAGERS)

    def _switched_changed(self, item: Item[SwitchedResource]) -> None:
        labels = item.value.metadata.labels or {} if item.value is not None else {}
        if item.event != "DELETED" and labels.get(SWITCH) == "off":
            self._switched_off.add(item.name)
        elif item.event == "DELETED" or item.value is not None:
            self._switched_off.discard(item.name)

    # --- what is done -------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            if self._leads():
                await self.look()
            else:
                self._forget_term()
            await asyncio.sleep(LOOK_S)

    def _forget_term(self) -> None:
        """What another replica has sent since is not known here."""
        for one in self._nodes.values():
            one.law, one.note, one.asked_s = NodeLaw(), NodeNote(), float("-inf")
        self._attempts.forget()
        self._sum_up(())

    async def look(self) -> None:
        """All that is due now. A ResourceManager that fails has pauses that grow."""
        self._hold_unknown()
        if not self._attempts.left_s:
            try:
                await self._ask_due(time.monotonic())
            except Exception as error:  # whatever is wrong with YARN, the ledger goes on
                self._attempts.failed(error)
            else:
                self._attempts.done()
        self._sum_up([*self._nodes.values()])

    def _hold_unknown(self) -> None:
        """Of a node of which nothing is known yet YARN holds all that it may have."""
        found = self._managers.by_node()
        for name in [
            one for one, node in self._nodes.items() if one not in found or found[one].uid != node.manager.uid
        ]:
            del self._nodes[name]
            if name not in found:
                self._ledger.hold(name, HOLDER, ())
        for name, manager in found.items():
            node = self._nodes.setdefault(name, _Node(manager))
            node.manager = manager
            node.wanted = self._wanted(manager)
            if node.law.held is None:
                self._hold(name, node.wanted)

    async def _ask_due(self, now_s: float) -> None:
        """Raises Trouble."""
        due = sorted((one for one in self._nodes.values() if one.is_due(now_s)), key=_Node.turn)[:MOST_ASKED]
        if any(not one.node_id for one in due) and now_s - self._known_s >= LIST_S:
            self._known_s = now_s
            try:
                self._known = await self._manager.nodes()
            except Trouble as trouble:  # those that have an id need no list
                self._log.warning(
                    "yarn_not_listed", error=str(trouble), consequence="no NodeManager is looked for by host"
                )
        gate, failed = asyncio.Semaphore(AT_ONCE), False

        async def turn(node: _Node) -> None:
            nonlocal failed
            async with gate:
                if failed:
                    return
                try:
                    await self._take_turn(node)
                except BaseException:
                    failed = True
                    raise

        # No TaskGroup: before Python 3.13 it keeps a cancel to itself by which one of its parts fails.
        for ended in await asyncio.gather(*map(turn, due), return_exceptions=True):
            if ended is not None:
                raise ended

    async def _take_turn(self, node: _Node) -> None:
        """Raises Trouble of the ResourceManager as a whole: what it has against one node holds up no other."""
        try:
            await self._settle(node)
        except Trouble as trouble:
            # The ResourceManager asks nobody for a right to single nodes.
            if trouble.concerns_all or trouble.code == FORBIDDEN:
                raise
            self._leave(node, str(trouble))
        await self._tell_node(node)

    async def _settle(self, node: _Node) -> None:
        """Raises Trouble."""
        node.node_id = node.node_id or self._find(node)
        if await self._see(node):
            node.wanted = self._wanted(node.manager)
            before = node.law.size
            send = node.law.step(node.wanted, self._grace_s(node.manager), time.monotonic())
            self._hold(node.manager.node, node.law.held)
            if send is not None and before is not None and self._leads():
                await self._send(node, before, send)

    def _find(self, node: _Node) -> str:
        """Its id; "": none that is its alone."""
        found = node.manager.find(self._known)
        return "" if any(one.node_id == found for one in self._nodes.values() if one is not node) else found

    async def _see(self, node: _Node) -> bool:
        """Whether it is there still, and the ResourceManager knows it. Raises Trouble."""
        node.asked_s = time.monotonic()
        seen = await self._manager.node(node.node_id) if node.node_id else None
        if self._nodes.get(node.manager.node) is not node:
            return False  # its pod went meanwhile, and holds nothing
        if seen is None:
            node.node_id = node.manager.node_id  # one that is found by its host may have another port by now
            self._leave(node, "the ResourceManager does not know it, or not as alive")
            return False
        node.is_unknown = False
        node.law.see(seen, time.monotonic())
        self._hold(node.manager.node, node.law.held)
        self._tell_overdue(node)
        return True

    async def _send(self, node: _Node, before: Size, send: Send) -> None:
        """Returns when the ResourceManager has it, or does not after a second. Raises Trouble."""
        if send.size.mib < before.mib:
            node.note.shrinks(time.monotonic())
        await self._manager.resize(node.node_id, send)
        if not self._warned:
            self._warned = True
            self._log.warning(
                "yarn_unprotected",
                consequence="whoever reaches the ResourceManager's REST interface can set any node's size",
                remedy="let nobody but this ledger reach it (docs/yarn.md)",
            )
        shrinks = send.size.mib < before.mib or send.size.vcores < before.vcores
        self.state.shrunk += shrinks
        self.state.grown += not shrinks
        if _differ(send.size, node.told):
            node.told = send.size
            size = {"mib": send.size.mib, "vcores": send.size.vcores}
            grace_s = send.grace_ms / 1000
            self._log.info("yarn_size_sent", node=node.manager.node, node_id=node.node_id, **size, grace_s=grace_s)
        for _ in range(CONFIRMS):
            if not await self._see(node) or node.law.size == send.size:
                return
            await asyncio.sleep(CONFIRM_S)

    async def _tell_node(self, node: _Node) -> None:
        """What its box's memory limit may have to wait for. One that can't be told waits for nothing."""
        now_s, name = time.monotonic(), node.manager.node
        size_bytes = node.note.due(node.law, now_s)
        if size_bytes is None or not self._leads():
            return
        note = Note(int(time.time() * 1000), size_bytes, self._settings.grace_s + SETTLE_S + TOLD_S)
        body = {"metadata": {"annotations": {GIVES_BACK: encoded(note)}}}
        try:
            await patch(self._client, SwitchedResource, name, body, PatchType.MERGE, what=f"Node {name}")
        except Trouble as trouble:
            if not node.untold:
                consequence = "its box does not wait for what YARN gives back; tried again"
                self._log.warning("yarn_node_not_told", node=name, error=str(trouble), consequence=consequence)
            node.untold = True
        else:
            node.note.told(size_bytes, now_s)
            node.untold = False

    def _leave(self, node: _Node, why: str) -> None:
        """Its size, until another look. It is said once."""
        if not node.is_unknown:
            consequence = "its size is left alone, and YARN holds what it held"
            self._log.warning(
                "yarn_node_left", node=node.manager.node, node_id=node.node_id, why=why, consequence=consequence
            )
        node.is_unknown = True

    # --- what it goes by ----------------------------------------------------------------------------------------------

    def _drains(self, manager: Manager) -> bool:
        return manager.ends or manager.node in self._switched_off

    def _wanted(self, manager: Manager) -> Size:
        if self._drains(manager):
            return Size()
        name = manager.node
        lent, pods = self._ledger.allocatable(name), self._ledger.taken_beside(name, HOLDER)
        return wanted(self._amounts(lent), self._amounts(pods), self._settings.share_ratio)

    def _amounts(self, found: Mapping[str, int]) -> Lent:
        names = self._settings.names
        return Lent(found.get(names.memory, 0), found.get(names.cpu, 0) * MILLICORES // names.per_core)

    def _hold(self, name: str, held: Size | None) -> None:
        if held is not None:
            names = self._settings.names
            amounts = ((names.cpu, held.vcores * names.per_core), (names.memory, held.mib << 20))
            self._ledger.hold(name, HOLDER, amounts)

    def _grace_s(self, manager: Manager) -> float:
        return self._settings.drain_grace_s if self._drains(manager) else self._settings.grace_s

    # --- what is said -------------------------------------------------------------------------------------------------

    def _tell_overdue(self, node: _Node) -> None:
        if node.law.overdue and not node.was_overdue:
            consequence = "pods may have that memory now; it is asked for again"
            self._log.warning("yarn_not_given_back", node=node.manager.node, consequence=consequence)
        node.was_overdue = node.law.overdue

    def _sum_up(self, nodes: Sequence[_Node]) -> None:
        state = self.state
        state.nodes, state.unknown = len(nodes), sum(one.is_unknown for one in nodes)
        state.giving_back = sum(one.law.is_giving_back for one in nodes)
        state.overdue = sum(one.law.overdue for one in nodes)
        state.wanted = _sum([one.wanted for one in nodes])
        state.size = _sum([one.law.size for one in nodes])
        state.used = _sum([one.law.used for one in nodes])
        state.held = _sum([one.law.held or one.wanted for one in nodes])


def _sum(sizes: Sequence[Size | None]) -> Size:
    known = [one for one in sizes if one is not None]
    return Size(sum(one.mib for one in known), sum(one.vcores for one in known))


def _differ(new: Size, told: Size) -> bool:
    return any(
        abs(now - before) > TOLD_RATIO * before for now, before in ((new.mib, told.mib), (new.vcores, told.vcores))
    )
