"""Keeps the book of owners while this replica leads, raises pods that wait, and has pods made anew that overflow.

A pod is made anew by an eviction: its owner makes another one, which the webhook then leaves for virtual nodes. Only a
pod that has no node yet, and whose owner the webhooks have had the book of for `HEARD_S`; never more than the settings
say in an hour, and never one without an owner, which nobody would make again.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final

from lightkube.core.async_client import AsyncClient
from lightkube.types import PatchType
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.budget import Budget
from criproxy_cluster.controller.follower import Follower, Hearing
from criproxy_cluster.controller.policies import Policy
from criproxy_cluster.objects import Json, Meta, NodeObject
from criproxy_cluster.overflow.resources import (
    BOOK,
    KEY,
    WRITTEN,
    BookResource,
    OwnedPodResource,
    PodEvictionResource,
    PodStatusResource,
)
from criproxy_cluster.owners import history
from criproxy_cluster.owners.history import Book, Written, raised
from criproxy_cluster.owners.pods import OwnedPod, Owner, owned_pod
from criproxy_cluster.owners.rules import Asked, Rule, overflows, rule_of, with_those_of_before
from criproxy_cluster.owners.state import OwnersState
from criproxy_cluster.requests import CONFLICT, FORBIDDEN, NOT_FOUND, Attempts, Refusals, Trouble, patch, trouble_of
from criproxy_cluster.vocabulary.names import CLASS, OFFLINE, RAISED, TIER
from criproxy_cluster.vocabulary.times import rfc3339
from criproxy_cluster.vocabulary.watching import Item

LOOK_S: Final = 1.0
WRITE_S: Final = 5.0
AGAIN_S: Final = 60.0
"""The book is written anew, so that the webhooks know that somebody keeps it."""

HEARD_S: Final = 5.0
MOST_TRIED: Final = 20
"""Raises, and evictions, in one look: the webhooks want a book of now."""

MOST_SHOWN: Final = 20
PAGE: Final = 500
MARKED: Final = {"labelSelector": f"{CLASS}={OFFLINE}"}
VIRTUAL: Final = ("type", "virtual-kubelet")
"""The label of virtual nodes, whoever provides them."""

RAISE, EVICTION = "raise", "eviction"


class OwnersSettings(Struct, frozen=True):
    """`remakes_per_hour` 0: no pod is made anew."""

    remakes_per_hour: int = 0


class OwnersKeeper:
    """A `Listener` of the controller's, of one term."""

    def __init__(self, client: AsyncClient, settings: OwnersSettings, log: FilteringBoundLogger) -> None:
        self.state = OwnersState()
        self._client = client
        self._settings = settings
        self._log = log
        self._rules: tuple[Rule, ...] = ()
        self._unusable: frozenset[str] = frozenset()
        self._virtual: set[str] = set()
        self._book = Book()
        self._pods = Hearing()
        self._listed = False
        self._written: tuple[str, float] | None = None
        """The book without its time, and when it was written."""
        self._refusals = Refusals()
        self._heard: dict[Owner, float] = {}
        """Since when the book that is written has an owner's past."""
        self._budget = Budget(settings.remakes_per_hour)
        self._statuses: dict[str, Json] = {}
        self._changed: set[str] = set()
        consequence = "without the book, pods are converted as ever; one pod stays as it is; tried again"
        self._attempts = Attempts(self.state, log, "owners", consequence)

    # --- what is seen -------------------------------------------------------------------------------------------------

    def set_policies(self, policies: Sequence[Policy], unusable: frozenset[str]) -> None:
        """In their order: the one that wins comes last. The rules of unusable ones stay as they were, and so does what
        came of them: a mistake in a policy must not take them away, also when another replica begins to lead.
        """
        self._unusable = unusable
        self._set_rules(
            with_those_of_before(
                (Rule(one.name, one.owners) for one in reversed(policies) if one.owners is not None),
                self._rules,
                unusable,
            )
        )

    def _set_rules(self, rules: tuple[Rule, ...]) -> None:
        self._changed |= {one.policy for one in (*rules, *self._rules)}
        self._rules = rules

    def see(self, node: NodeObject, labels: Mapping[str, str]) -> None:
        ready = any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or ())
        if labels.get(VIRTUAL[0]) == VIRTUAL[1] and ready and not node.spec.unschedulable:
            self._virtual.add(node.metadata.name)
        else:
            self._virtual.discard(node.metadata.name)

    def forget(self, name: str) -> None:
        self._virtual.discard(name)

    def forget_all_but(self, names: set[str]) -> None:
        self._virtual &= names

    def _pod_changed(self, item: Item[OwnedPodResource]) -> None:
        if item.event == "DELETED":
            self._book.forget(item.name, time.time())
        elif item.value is not None:
            self._book.see(owned_pod(item.value), time.time())

    def _pods_listed(self, uids: set[str]) -> None:
        self._book.listed(uids, time.time())
        self._listed = True

    # --- what is shown ------------------------------------------------------------------------------------------------

    def status(self, policy: str) -> Json | None:
        """Of a policy that speaks of owners; None: it does not, or nothing is known yet."""
        return self._statuses.get(policy)

    def changed(self) -> list[str]:
        """The policies whose status may be another one since the last call."""
        changed, self._changed = sorted(self._changed), set()
        return changed

    # --- what is done -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. What was known before is read before anything is seen, or it would count twice."""
        while not await self._begins():  # noqa: ASYNC110  # it asks each time
            await asyncio.sleep(self._attempts.left_s)
        pods = Follower(
            self._client,
            OwnedPodResource,
            self._pod_changed,
            self._pods_listed,
            hearing=self._pods,
            log=self._log,
            query=MARKED,
            page=PAGE,
        )
        async with asyncio.TaskGroup() as parts:
            parts.create_task(pods.run())
            while True:
                await self._look()
                await asyncio.sleep(LOOK_S)

    async def _begins(self) -> bool:
        try:
            with trouble_of(f"ConfigMap {BOOK}"):
                found: BookResource = await self._client.get(BookResource, BOOK)
            text = (found.data or {}).get(KEY, "")
        except Trouble as trouble:
            self._attempts.failed(_in_words(trouble))
            return False
        try:
            before = history.decoded(text) if text else Written()
        except ValueError as error:
            self._log.warning("owners_unreadable", error=str(error), consequence="their history begins anew")
        else:
            self._book = Book(before)
            self._set_rules(with_those_of_before(self._rules, before.rules, self._unusable))
            self._budget.restore(before.remade, time.monotonic(), time.time())
        return True

    async def _look(self) -> None:
        """All that is due now. Whatever is wrong here, nodes and policies go on.

        While nothing is heard of pods, nothing is done, and the webhooks' book becomes old: who waited may run since.
        """
        if not self._listed or self._pods.is_lost or self._attempts.left_s:
            return
        try:
            await self._act(time.monotonic(), time.time())
        except Exception as error:
            self._attempts.failed(_in_words(error) if isinstance(error, Trouble) else error)
        else:
            self._attempts.done(self._refusals.problem)

    async def _act(self, now_s: float, wall_s: float) -> None:
        """Raises Trouble."""
        self._book.settle(self._rules, wall_s)
        counts = {"raised": self._book.count("raised"), "overflowed": self._book.count("overflowed")}
        waiting = self._book.waiting()
        self._show(waiting, counts)
        await self._write(now_s, wall_s)
        to_raise = raised(self._not_refused(RAISE, waiting), self._rules, counts["raised"], wall_s)
        for pod in to_raise[:MOST_TRIED]:
            await self._raise(pod, wall_s)
        if self._settings.remakes_per_hour and self._virtual:
            await self._remake(self._not_refused(EVICTION, waiting), counts["overflowed"], now_s, wall_s)

    def _not_refused(self, what: str, pods: Sequence[OwnedPod]) -> list[OwnedPod]:
        return [pod for pod in pods if (what, pod.uid) not in self._refusals]

    def _show(self, waiting: Sequence[OwnedPod], counts: Mapping[str, Mapping[str, int]]) -> None:
        self.state.owners, self.state.waiting = len(self._book), len(waiting)
        self.state.raised, self.state.overflowed = (sum(counts[what].values()) for what in ("raised", "overflowed"))

    async def _write(self, now_s: float, wall_s: float, *, remade: bool = False) -> None:
        """`remade`: a pod was made anew. That is written at once, as this may be the end of the term; what the webhooks
        have of its owner is so again with the next book. Raises Trouble.
        """
        since_s = float("inf") if self._written is None else now_s - self._written[1]
        if since_s < WRITE_S and not remade:
            return
        self.state.worst = self._book.worst(wall_s, MOST_SHOWN)
        await asyncio.sleep(0)  # either takes its time where there are many owners
        virtual = bool(self._virtual)
        book = self._book.written(self._rules, wall_s, virtual=virtual, remade=self._budget.times(now_s))
        text = history.encoded(book)
        if self._written is not None and self._written[0] == text and since_s < AGAIN_S:
            return
        body = {"metadata": {"annotations": {WRITTEN: rfc3339(wall_s)}}, "data": {KEY: text}}
        self._written = None  # whether it is done is known by its answer alone
        await patch(self._client, BookResource, BOOK, body, PatchType.MERGE, what=f"ConfigMap {BOOK}")
        self._written = "" if remade else text, now_s
        if not remade:
            self._heard = {one.owner: self._heard.get(one.owner, now_s) for one in book.histories}
        self._set_statuses()

    def _set_statuses(self) -> None:
        statuses = {}
        counts: dict[str, Mapping[str, int]] = {
            "waiting": Counter(pod.owner.namespace for pod in self._book.waiting()),
            "raised": self._book.count("raised"),
            "overflowed": self._book.count("overflowed"),
        }
        for rule in self._rules:
            outcomes = self._book.outcomes(rule.policy)
            statuses[rule.policy] = {
                **{name: self._of(rule, count) for name, count in counts.items()},
                "kept": outcomes.kept,
                "missed": outcomes.missed,
                "late": list(outcomes.late),
            }
        self._changed |= {name for name, one in statuses.items() if self._statuses.get(name) != one}
        self._statuses = statuses

    def _of(self, rule: Rule, count: Mapping[str, int]) -> int:
        """What is counted in the namespaces that this rule has."""
        return sum(number for namespace, number in count.items() if rule_of(self._rules, namespace) is rule)

    async def _raise(self, pod: OwnedPod, wall_s: float) -> None:
        """Its labels are all that is changed: by pods/status, which can't change what a pod runs. Raises Trouble.

        One that has a node meanwhile stays as it is: the request names the pod's version.
        """
        meta = {
            "uid": pod.uid,
            "resourceVersion": pod.version,
            "labels": {TIER: "mid"},
            "annotations": {RAISED: rfc3339(wall_s)},
        }
        what, namespace, body = f"pod {pod.owner.namespace}/{pod.name}", pod.owner.namespace, {"metadata": meta}
        write = patch(self._client, PodStatusResource, pod.name, body, PatchType.MERGE, what=what, namespace=namespace)
        if await self._done((RAISE, pod.uid), write):
            self.state.raises += 1
            self._log.info("pod_raised", namespace=namespace, pod=pod.name, waited_s=round(wall_s - pod.created_s))

    async def _remake(
        self, waiting: Sequence[OwnedPod], overflowed: Mapping[str, int], now_s: float, wall_s: float
    ) -> None:
        """Raises Trouble."""
        tries = 0
        for pod in waiting:
            if self._budget.left(now_s) <= 0 or tries >= MOST_TRIED:
                return
            why = self._is_to_be_remade(pod, overflowed, now_s, wall_s)
            if not why:
                continue
            tries += 1
            try:
                if not await self._evict(pod):
                    continue
            except Trouble as trouble:
                if trouble.may_be_done:
                    self._remade(pod, now_s, wall_s)
                raise
            self._remade(pod, now_s, wall_s)
            self.state.remakes += 1
            self._log.info("pod_made_anew", namespace=pod.owner.namespace, pod=pod.name, why=why)
            await self._write(now_s, wall_s, remade=True)

    def _remade(self, pod: OwnedPod, now_s: float, wall_s: float) -> None:
        """The next of the same owner when this one's successor was seen."""
        self._budget.spend(now_s, wall_s)
        self._heard.pop(pod.owner, None)

    def _is_to_be_remade(self, pod: OwnedPod, overflowed: Mapping[str, int], now_s: float, wall_s: float) -> str:
        rule = rule_of(self._rules, pod.owner.namespace)
        heard_s = self._heard.get(pod.owner)
        if rule is None or rule.spec.overflow is None or pod.overflowed or pod.owner.kind == "Pod":
            return ""
        if heard_s is None or now_s - heard_s < HEARD_S:
            return ""
        if overflowed.get(pod.owner.namespace, 0) >= rule.spec.overflow.pods:
            return ""
        return overflows(rule.spec.overflow, self._book.past(pod.owner, wall_s), Asked(), wall_s)

    async def _evict(self, pod: OwnedPod) -> bool:
        """Whether it goes. One that has a node meanwhile stays: the request names the pod's version. Raises Trouble."""
        precondition = {"uid": pod.uid, "resourceVersion": pod.version}
        meta = Meta(name=pod.name, namespace=pod.owner.namespace)
        eviction = PodEvictionResource(metadata=meta, deleteOptions={"preconditions": precondition})
        return await self._done((EVICTION, pod.uid), self._post(eviction))

    async def _post(self, eviction: PodEvictionResource) -> None:
        """Raises Trouble."""
        meta = eviction.metadata
        with trouble_of(f"eviction of {meta.namespace}/{meta.name}"):
            await self._client.create(eviction, meta.name)

    async def _done(self, key: tuple[str, str], write: Awaitable[None]) -> bool:
        """Whether a write was done. A pod that has changed, or is gone, is seen again first, one that is refused is
        left alone for a while. Raises Trouble.
        """
        try:
            await write
        except Trouble as trouble:
            if trouble.code not in (NOT_FOUND, CONFLICT):
                self._refusals.add(key, trouble)
            return False
        self._refusals.done(key)
        return True


def _in_words(trouble: Trouble) -> Trouble:
    if trouble.code in (FORBIDDEN, NOT_FOUND):
        return Trouble(f"{trouble}: have the component cluster/manifests/overflow (docs/overflow.md)", trouble.code)
    return trouble
