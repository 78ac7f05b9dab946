"""Publishes what the node can lend, in its own status, by the law of `extended_resources`."""

import asyncio
import contextlib
import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from criproxy.concurrency.clock import Clock
from criproxy.config.settings import Kubernetes
from criproxy.kube.bound_pods import bound_pods
from criproxy.kube.client import STRATEGIC_MERGE_PATCH, ApiRequest, Asks, RejectedError, UnreachableError
from criproxy.kube.extended_resources import (
    LATEST_S,
    ExtendedResource,
    Offer,
    OnNode,
    Promises,
    Publication,
    Published,
    PublishSettings,
    amount_of,
    counts,
    due,
    ended,
    needs_allocated,
    publication,
    published,
    resources_called,
    undone,
    why,
)
from criproxy.kube.objects import (
    MAX_MESSAGE,
    BoundPod,
    Condition,
    Node,
    ObjectError,
    allocated,
    decoded,
    path,
    status_of,
    status_patch,
)
from criproxy.kube.retry import Meaning, pause_s
from criproxy.vocabulary.names import CONDITION, HELD, LENDING, OCCUPIED, PUBLISHES, WITHHELD
from criproxy.vocabulary.published import names_of
from criproxy.vocabulary.quantities import amount
from criproxy.vocabulary.times import rfc3339

LOOK_S: Final = 5.0
SHED_LOOK_S: Final = 1.0
"""While a pod's end is to be written before the scheduler knows of it."""

STALE_S: Final = 900.0

MOST_UNDONE: Final = 3
"""After so many publications that another program has undone, each soon after the other, none is repeated at once."""

_MAY_BE_TAKEN: Final = 500
"""From this status on, a write may have been done all the same."""


def resources_of(settings: Kubernetes) -> tuple[ExtendedResource, ...]:
    """The names that a config says."""
    own = tuple(ExtendedResource(one.name, one.of, one.per_unit) for one in settings.resources)
    return own or resources_called(settings.names)


def reason(offered: Offer) -> str:
    """The condition's."""
    if offered.withheld:
        return OCCUPIED if offered.occupied else WITHHELD
    return HELD if offered.held else LENDING


class OfferSource(Protocol):
    """Whoever knows what the node can lend: the daemon's control loop."""

    def offer(self) -> tuple[float, Offer] | None:
        """The last one, and when it was made (CLOCK_BOOTTIME). None: there is none yet."""


class PublisherStatus(Struct, frozen=True):
    """For people. `trouble`, why nothing can be published, and `contested`, who undoes it: all is well with "".

    `quantities` are those of the Node, where it is contested, else those published last. `age_s` None: nothing was
    published yet.
    """

    quantities: dict[str, int]
    why: str
    trouble: str
    contested: str
    age_s: float | None


class Publisher:
    """See `run`. It hears of the node by `saw` (`criproxy.kube.node_watch`)."""

    def __init__(
        self,
        client: Asks,
        node: str,
        source: OfferSource,
        settings: PublishSettings,
        *,
        clock: Clock,
        rng: random.Random,
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._node = node
        self._source = source
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._log = log
        self._looks = asyncio.Lock()
        self._seen: OnNode | None = None
        self._last: Published | None = None
        self._promises = Promises()
        self._unreadable: set[str] = set()
        """The uids of the pods of which it can't be told what they were promised."""
        self._not_before_s = 0.0
        self._failures = 0
        self._trouble = ""
        self._unanswered = False
        """Whether a write of ours may have been taken whose answer is not there."""
        self._lent = False
        """Whether the node's status says that it lends, by whichever process."""
        self._undone = 0
        """How many publications another program has undone, until none was for `LATEST_S`."""
        self._others: dict[str, str] = {}
        """What it wrote last, by name."""
        self._others_s = self._undone_at_s = -math.inf
        """When that was seen, and when the last publication was made that it has undone (CLOCK_BOOTTIME)."""
        self._ready: tuple[str, str] = ("", "")
        """The condition's status, and since when (RFC 3339)."""

    def configure(self, settings: PublishSettings) -> None:
        self._settings = settings

    def saw(self, node: Node | None) -> None:
        self._seen = None if node is None else OnNode(self._amounts(node), node.annotation(PUBLISHES))
        conditions = (node.status.conditions if node else None) or ()
        self._lent = any(one.type == CONDITION and one.status == "True" for one in conditions)

    @property
    def ceased(self) -> bool:
        """Nothing on the Node is ours, as was last seen, and nothing is to be."""
        return bool(self._settings.off) and self._seen is not None and self._left_to_others()

    def status(self) -> PublisherStatus:
        last, offered, seen = self._last, self._offer(), self._seen
        contested = self._contested()
        shown = seen if contested and seen is not None else last
        return PublisherStatus(
            quantities=dict(shown.quantities) if shown else {},
            why=why(offered, last, self._settings) if offered else "it is not known yet what can be lent",
            trouble=self._trouble,
            contested=contested,
            age_s=self._clock.boottime_s() - last.at_s if last else None,
        )

    def published_of(self, resource: str) -> float | None:
        """What was published last of a resource, in its unit, by whichever of its names; None: nothing was."""
        return amount_of(self._called(resource), self._last.quantities if self._last else {})

    def promised(self, resource: str, within_s: float) -> tuple[float, float]:
        """See `criproxy.kube.gives_back.Publishes`."""
        return self._promises.promised(self._last, self._called(resource), within_s, self._clock.boottime_s())

    def _called(self, resource: str) -> list[ExtendedResource]:
        return [one for one in self._settings.resources if one.of == resource]

    async def run(self) -> None:
        """Until cancelled."""
        await self._clock.sleep(LOOK_S * self._rng.random())  # nodes whose policy changes at once go one by one
        while True:
            await self.look()
            every_s = SHED_LOOK_S if self._last is not None and self._last.raised else LOOK_S
            await self._clock.sleep(every_s, every_s / 5)

    async def withhold(self, within_s: float) -> None:
        """Where nothing is lent, have that published by now, and wait for it that long at most. Never raises.

        For before pods are evicted: by the number that stood, the scheduler would place their successors here.
        """
        offered = self._offer()
        if offered is not None and offered.withheld:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self.look()

    async def look(self) -> None:
        """Publish if it is time. Never raises: what fails is tried again, ever more rarely."""
        async with self._looks:
            await self._look()

    async def _look(self) -> None:
        offered, now_s = self._offer(), self._clock.boottime_s()
        if offered is None or now_s < self._not_before_s:
            return
        try:
            if self._settings.off and self._unanswered:
                await self._see()
            if self._settings.off and self._left_to_others():
                return
            self._look_for_others(now_s)
            seen = None if self._contested() else self._seen  # then the next report is soon enough
            if not (why_now := due(offered, seen, self._last, self._settings, now_s)):
                return
            await self._publish(offered, why_now)
        except (UnreachableError, ObjectError) as error:
            self._failed(str(error), None)
        except RejectedError as error:
            answer = error.answer
            self._failed(f"{answer.status} {status_of(answer.body).message}", answer.named_pause_s)
        else:
            if self._trouble:
                self._log.info("publishing_again", node=self._node)
            self._failures, self._trouble = 0, ""

    def _look_for_others(self, now_s: float) -> None:
        last = self._last
        if last is None or now_s < last.quiet_until_s:
            return
        if others := undone(self._seen, last):
            self._undone += last.at_s != self._undone_at_s
            self._others, self._others_s, self._undone_at_s = others, now_s, last.at_s
        elif now_s >= self._others_s + LATEST_S:
            self._undone = 0

    def _contested(self) -> str:
        """Who undoes what is published, in words; "": nobody does again and again."""
        if self._undone < MOST_UNDONE:
            return ""
        said = " and ".join(f"{name} (to {amount})" for name, amount in sorted(self._others.items()))
        return (
            f"another program sets {said} on this Node: stop its node-resource controller, or set "
            "kubernetes.publish = false"
        )

    def _offer(self) -> Offer | None:
        if self._settings.off:
            return Offer({}, withheld=self._settings.off)
        found = self._source.offer()
        if found is None:
            return None
        made_s, offered = found
        age_s = self._clock.boottime_s() - made_s
        if age_s > STALE_S and not offered.withheld:
            return replace(offered, withheld=f"nothing was decided for {age_s:.0f} s")
        return offered

    def _left_to_others(self) -> bool:
        """What was seen may be older than what we wrote last."""
        if self._unanswered or (self._last is not None and self._last.publishes is not None):
            return False
        return not self._lent and (self._seen is None or self._seen.publishes is None)

    async def _see(self) -> None:
        self.saw(decoded(await self._ask(ApiRequest("GET", path("nodes", self._node))), Node))
        self._unanswered = False

    async def _left(self) -> tuple[str, ...]:
        """The names that the annotation has: of an earlier process, which may have had another config."""
        if self._seen is None:  # the watch has not begun yet
            await self._see()
        return names_of(self._seen.publishes if self._seen else None)

    async def _publish(self, offered: Offer, why_now: str) -> None:
        settings, last = self._settings, self._last
        left = await self._left() if last is None or last.publishes is None else ()
        promised: dict[str, int] = {}
        left_out, counted = frozenset() if last is None else last.left_out, None
        if needs_allocated(offered, last, settings):
            before = left_out if last is not None and last.held and offered.held else frozenset()
            found = await bound_pods(self._client, self._node)
            promised_to = [pod for pod in found if counts(offered, last, pod.metadata.uid)]
            counted = frozenset(pod.metadata.uid for pod in promised_to)
            left_out = (before | ended(offered, last)) - counted
            promised = self._allocated(promised_to)
            self._unreadable &= {one.metadata.uid for one in found}
        made = publication(offered, promised, last, settings, why_now, left=left)
        patch = status_patch(made.quantities, self._condition(made, offered), {PUBLISHES: made.publishes})
        unanswered, self._unanswered = self._unanswered, True
        try:
            request = ApiRequest("PATCH", path("nodes", self._node, "status"), patch, STRATEGIC_MERGE_PATCH)
            answer = await self._ask(request)
        except RejectedError as error:  # which says nothing of a write before this one
            self._unanswered = unanswered or error.answer.status >= _MAY_BE_TAKEN
            raise
        self._unanswered = False
        now_s = self._clock.boottime_s()
        if last is not None:
            self._promises.followed(last, now_s)
        self._last = published(made, offered, now_s, self._rng.random(), left_out=left_out, counted=counted)
        self.saw(decoded(answer, Node))
        self._log.info(
            "published", node=self._node, quantities=dict(self._last.quantities), reason=why_now, withheld=made.withheld
        )

    def _allocated(self, pods: Sequence[BoundPod]) -> dict[str, int]:
        """What these pods were promised."""
        promised = Counter({resource.name: 0 for resource in self._settings.resources})
        for pod in pods:
            promised.update(self._allocated_to(pod, list(promised)))
        return promised

    def _allocated_to(self, pod: BoundPod, names: Sequence[str]) -> dict[str, int]:
        """{}: it can't be told. One pod is not to keep the node from publishing."""
        try:
            return allocated([pod], names)
        except ObjectError as error:
            if pod.metadata.uid not in self._unreadable:
                self._unreadable.add(pod.metadata.uid)
                self._log.warning(
                    "pod_unreadable", pod=str(pod.ref), reason=str(error), consequence="its promise counts as nothing"
                )
            return {}

    async def _ask(self, request: ApiRequest) -> bytes:
        answer = await self._client.ask(request)
        if answer.meaning is not Meaning.DONE:
            raise RejectedError(answer)
        return answer.body

    def _condition(self, made: Publication, offered: Offer) -> Condition:
        now = rfc3339(self._clock.wall_s())
        status = "False" if made.withheld else "True"
        if self._ready[0] != status:
            self._ready = (status, now)
        preview = Published(
            {name: amount for name, amount in made.quantities.items() if amount is not None}, made.wanted, 0.0, 0.0, 0.0
        )
        return Condition(
            type=CONDITION,
            status=status,
            reason=reason(offered),
            message=why(offered, preview, self._settings)[:MAX_MESSAGE],
            last_heartbeat_time=now,
            last_transition_time=self._ready[1],
        )

    def _amounts(self, node: Node) -> dict[str, int]:
        """Our names in the status. What capacity and allocatable do not both have is left out, to be written."""
        found: dict[str, int] = {}
        for resource in self._settings.resources:
            with contextlib.suppress(ValueError):
                one, other = (
                    amount((place or {}).get(resource.name, ""))
                    for place in (node.status.capacity, node.status.allocatable)
                )
                if one == other and one.denominator == 1:
                    found[resource.name] = int(one)
        return found

    def _failed(self, reason: str, named_s: float | None) -> None:
        self._failures += 1
        wait_s = pause_s(self._failures, self._rng.random(), named_s)
        self._not_before_s = self._clock.boottime_s() + wait_s
        if not self._trouble:
            self._log.warning(
                "publishing_failed",
                node=self._node,
                reason=reason,
                consequence="the last numbers stand" if self._last else "the node's numbers are not ours",
            )
        self._trouble = reason
