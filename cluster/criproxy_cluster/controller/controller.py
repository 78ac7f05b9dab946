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
of its own, and no list has more than `PAGE` of them at once.

What fails is tried again with growing pauses; a conflict is tried again after what came in between. A watch that breaks
goes on from the last version, one that is too old (410) begins with a list, and so does one that has said nothing for
`SILENCE_S`, as a connection may be dead without a word. One that ends before `EARLY_S`, as some proxies do to all,
begins with a list too, after a pause that grows: what it says may never come, so all is heard by lists, and a node that
says nothing in them is away. Nothing is written before policies and nodes were listed; while their kind is not there,
as the CRD was removed, nodes keep what they have.

A controller is run once: another replica may have led when this one leads again, and what was known is of old. So while
the leader changes more often than each `node_law.TRUST_S` (8 minutes), no node is found to be away.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from enum import Enum
from typing import Any, Final, TypeVar

import httpx2
from lightkube.core.async_client import AsyncClient
from lightkube.core.generic_client import WatchDriver
from lightkube.types import PatchType
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.controller.fleet import Fleet
from criproxy_cluster.controller.node_law import Judgement
from criproxy_cluster.controller.policies import PolicyError, parsed
from criproxy_cluster.memory import settle
from criproxy_cluster.objects import Json, NodeObject, PolicyObject, view
from criproxy_cluster.requests import Trouble, pause_s, trouble_of
from criproxy_cluster.resources import NodeResource, NodeStatusResource, PolicyResource, PolicyStatusResource

PROMPT_WRITERS: Final = 4
BACKGROUND_WRITERS: Final = 4
WRITES_PER_S: Final = 100.0
"""In the background."""

MOST_REST_S: Final = 2.0
STATUS_S: Final = 1.0
SILENCE_S: Final = 330.0
WATCH_S: Final = 280
EARLY_S: Final = 5.0
CONNECT_S: Final = 10.0
PAGE: Final = 100
LISTED: Final = "LISTED"
"""Beside the events of a watch: the object was in a list."""

T = TypeVar("T", NodeResource, PolicyResource)


class Urgency(Enum):
    """Why a node is to be written."""

    CHANGED = "it has changed"
    DUE = "its time has come"
    ROLL_OUT = "a policy concerns it"


class Queue:
    """Names, each at most once, with its highest urgency; of one urgency, those first that came first."""

    def __init__(self) -> None:
        self._names = {urgency: OrderedDict[str, None]() for urgency in Urgency}
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._names.values()))

    def put(self, name: str, urgency: Urgency) -> None:
        for one, names in self._names.items():
            if one is urgency:
                names[name] = None
                break
            if name in names:
                return
        for less in list(Urgency)[list(Urgency).index(urgency) + 1 :]:
            self._names[less].pop(name, None)
        self._some.set()

    async def get(self, *urgencies: Urgency) -> tuple[str, Urgency]:
        """The next one of the first of these that has any."""
        while True:
            for urgency in urgencies:
                if names := self._names[urgency]:
                    return names.popitem(last=False)[0], urgency
            self._some.clear()
            await self._some.wait()


class _Silence(Exception):
    """A watch has said nothing for `SILENCE_S`."""


class Hearing:
    """For how long something could not be heard of, in all. Times are of a clock that only grows."""

    def __init__(self) -> None:
        self._before_s = 0.0
        self._lost_s: float | None = None

    def heard(self, now_s: float) -> None:
        self._before_s, self._lost_s = self.deaf_s(now_s), None

    def lost(self, now_s: float) -> None:
        """Found to be lost now: a connection may have been dead for `SILENCE_S` before, which a node's time bears."""
        if self._lost_s is None:
            self._lost_s = now_s

    def deaf_s(self, now_s: float) -> float:
        return self._before_s + (0.0 if self._lost_s is None else now_s - self._lost_s)


def _is_long(began_s: float) -> bool:
    """Whether a watch that began then has lasted as watches do."""
    return time.monotonic() - began_s >= EARLY_S


class Controller:
    """See `run`."""

    def __init__(self, client: AsyncClient, log: FilteringBoundLogger) -> None:
        self._client = client
        self._log = log
        self._fleet = Fleet()
        self._nodes = Hearing()
        self._queue = Queue()
        self._failures: dict[str, int] = {}
        self._problems: dict[str, tuple[int, str]] = {}
        self._written: dict[str, Json] = {}
        self._listed = asyncio.Event()
        self._nodes_seen = asyncio.Event()
        self._next_write_s = 0.0

    async def run(self) -> None:
        """Until cancelled, and once."""
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self._follow(PolicyResource, self._policies_listed, self._policy_changed, Hearing()))
            await self._listed.wait()
            parts.create_task(self._follow(NodeResource, self._nodes_listed, self._node_changed, self._nodes))
            parts.create_task(self._wake())
            parts.create_task(self._tell())
            for _ in range(PROMPT_WRITERS):
                parts.create_task(self._write_promptly())
            for _ in range(BACKGROUND_WRITERS):
                parts.create_task(self._write_in_background())

    # --- what is seen -------------------------------------------------------------------------------------------------

    async def _follow(
        self,
        kind: type[T],
        listed: Callable[[set[str]], None],
        changed: Callable[[str, T], None],
        hearing: Hearing,
    ) -> None:
        """An unbroken view of all objects of a kind, for ever."""
        failures, version = 0, ""
        while True:
            try:
                if not version:
                    version = await self._list(kind, listed, changed)
                began_s = time.monotonic()
                async for event, item in self._changes(kind, version, hearing):
                    version = item.metadata.resourceVersion
                    failures = 0 if _is_long(began_s) else failures
                    changed(event, item)
                    await asyncio.sleep(0)  # what has come at once is not worked off at once
            except _Silence:
                version = ""
                continue
            except Trouble as trouble:
                why = str(trouble)
                if trouble.code in (404, 410):
                    version = ""
                else:
                    hearing.lost(time.monotonic())
            else:
                if _is_long(began_s):
                    failures = 0
                    continue
                version, why = "", f"watch of {kind.__name__}: it ended within {EARLY_S:.0f} s"
            failures += 1
            if failures == 2:
                self._log.warning("watch_trouble", kind=kind.__name__, error=why, consequence="tried again")
            await asyncio.sleep(pause_s(failures))

    async def _list(self, kind: type[T], listed: Callable[[set[str]], None], changed: Callable[[str, T], None]) -> str:
        """Items are handed on as they come: not all of them are there at once."""
        names = set[str]()
        with trouble_of(f"list of {kind.__name__}"):
            found = self._client.list(kind, chunk_size=PAGE)
            async for item in found:
                names.add(item.metadata.name)
                changed(LISTED, item)
                await asyncio.sleep(0)
            version = found.resourceVersion
        listed(names)
        return version

    async def _changes(self, kind: type[T], version: str, hearing: Hearing) -> AsyncIterator[tuple[str, T]]:
        """Events since `version`, until the API server ends its answer. Raises Trouble and _Silence.

        lightkube's own watch asks again at once when an answer ends, for ever, and nobody learns of it.
        """
        client: Any = self._client._client
        params = {"resourceVersion": version, "timeoutSeconds": str(WATCH_S)}
        request = client.prepare_request("list", res=kind, watch=True, params=params)
        request.timeout = httpx2.Timeout(CONNECT_S, read=None)
        driver: Any = WatchDriver(request, client.build_adapter_request)
        with trouble_of(f"watch of {kind.__name__}"):
            async with asyncio.timeout(SILENCE_S):
                response = await client.send(client.build_adapter_request(request), stream=True)
            async with aclosing(response):
                if response.is_error:
                    async with asyncio.timeout(SILENCE_S):
                        await response.aread()
                    client.raise_for_status(response)  # with the words of the API server
                hearing.heard(time.monotonic())
                lines = response.aiter_lines()
                while True:
                    try:
                        async with asyncio.timeout(SILENCE_S):
                            line = await anext(lines)
                    except StopAsyncIteration:
                        return
                    except TimeoutError:
                        raise _Silence from None
                    yield driver.process_one_line(line)

    def _policies_listed(self, names: set[str]) -> None:
        for gone in (self._fleet.policy_names() | self._problems.keys()) - names:
            self._forget_policy(gone)
        self._listed.set()

    def _policy_changed(self, event: str, item: PolicyObject) -> None:
        name = item.metadata.name
        if event == "DELETED":
            self._forget_policy(name)
            return
        if event == "BOOKMARK":
            return
        try:
            policy = parsed(name, item.metadata.generation, item.spec)
        except PolicyError as error:  # the old one holds
            self._problems[name] = (item.metadata.generation, str(error))
            self._fleet.set_unusable(frozenset(self._problems))
            self._fleet.touch(name)
            return
        self._set_right(name)
        for node in self._fleet.set_policy(name, policy):
            self._queue.put(node, Urgency.ROLL_OUT)

    def _set_right(self, name: str) -> None:
        if self._problems.pop(name, None) is not None:
            for node in self._fleet.set_unusable(frozenset(self._problems)):
                self._queue.put(node, Urgency.ROLL_OUT)

    def _forget_policy(self, name: str) -> None:
        self._set_right(name)
        self._written.pop(name, None)
        for node in self._fleet.set_policy(name, None):
            self._queue.put(node, Urgency.ROLL_OUT)

    def _nodes_listed(self, names: set[str]) -> None:
        self._fleet.forget_all_but(names)
        settle()
        self._nodes_seen.set()

    def _node_changed(self, event: str, item: NodeObject) -> None:
        name = item.metadata.name
        if event == "DELETED":
            self._fleet.forget(name)
            self._failures.pop(name, None)
        elif event == LISTED:
            self._fleet.see(view(item))
            self._queue.put(name, Urgency.ROLL_OUT)
        elif event != "BOOKMARK":
            changed = self._fleet.see(view(item))
            if self._is_to_be_written(name):  # if all that is new is its report, it may wait for its turn in a roll-out
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
            return
        try:
            with trouble_of(f"node {name}"):
                if judgement.patch:
                    await self._client.patch(NodeResource, name, judgement.patch, patch_type=PatchType.MERGE)
                if judgement.status:
                    status = judgement.status
                    await self._client.patch(NodeStatusResource, name, status, patch_type=PatchType.STRATEGIC)
        except Trouble as trouble:
            self._failed(name, urgency, trouble)
        else:
            self._failures.pop(name, None)
            self._log.info("node_written", node=name, what=judgement.why)

    async def _take_turn(self) -> None:
        """Waits, so that no more than `WRITES_PER_S` begin."""
        now_s = time.monotonic()
        self._next_write_s = max(self._next_write_s, now_s) + 1.0 / WRITES_PER_S
        await asyncio.sleep(self._next_write_s - now_s)

    def _failed(self, name: str, urgency: Urgency, trouble: Trouble) -> None:
        if trouble.code == 404:
            self._failures.pop(name, None)
            return
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        if failures == 3:
            self._log.warning("node_not_written", node=name, error=str(trouble), consequence="tried again")
        asyncio.get_running_loop().call_later(pause_s(failures), lambda: self._queue.put(name, urgency))

    async def _tell(self) -> None:
        """The status of policies, which says nothing true before all nodes were seen."""
        await self._nodes_seen.wait()
        while True:
            for name in self._fleet.changed_policies():
                status = self._status(name)
                if status is None or self._written.get(name) == status:
                    continue
                try:
                    with trouble_of(f"status of {name}"):
                        # As a whole: a merge patch leaves what is no more, and 1.20 refuses an empty text in one.
                        patch = [{"op": "add", "path": "/status", "value": status}]
                        await self._client.patch(PolicyStatusResource, name, patch, patch_type=PatchType.JSON)
                    self._written[name] = status
                except Trouble as trouble:
                    if trouble.code != 404:
                        self._log.info("status_not_written", policy=name, error=str(trouble))
                        self._fleet.touch(name)
            await asyncio.sleep(STATUS_S)

    def _status(self, name: str) -> Json | None:
        generation, problem = self._problems.get(name, (0, ""))
        status = self._fleet.status(name)
        if problem:
            nothing = {"nodes": 0, "inForce": 0, "refused": 0, "waiting": 0, "refusedBy": []}
            status = {**(status or nothing), "observedGeneration": generation, "problem": problem}
        return status
