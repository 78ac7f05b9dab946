"""Makes pods leave as Kubernetes does it: through pods/eviction, which keeps to their disruption budgets.

What the answer means
---------------------
| answer | outcome | then |
|---|---|---|
| 2xx | EVICTED | kubelet ends it, within its grace period |
| 2xx, with a Status that says Failure | as its code says | the server answers so to a pod of several budgets |
| 404, or 409 on its uid | GONE | there is no such pod any more: all is well |
| the same, after a try without an answer | EVICTED | that try may have been the one by which it went |
| it has ended, and is not asked to go | GONE | what is left of it stays: its logs, its exit states |
| 429 with the cause DisruptionBudget, 500 for several budgets | BUDGET | the next victim |
| any, where an admission webhook or policy denies it | BUDGET | the same: somebody keeps it for now |
| 429 or 5xx otherwise, 409 | tried again, then UNREACHABLE | |
| not asked for any more | WITHDRAWN | it stays |
| other 4xx | REFUSED | the next victim; if none goes, its sandbox may be stopped |
| none | UNREACHABLE | the caller may stop the sandbox, where the node can't wait; its label stays, as it may go |

How a pod is kept from coming straight back
-------------------------------------------
Whoever owns it makes another one at once, and the scheduler may bind that one to this node while the first still ends.
So, before it is evicted, the Node gets a label that names its controller, and an annotation that says until when. The
cluster's webhook has given the pods of each controller a preference for nodes without its label. When the time is
over, the cluster's controller takes the label away; where there is none, the node does, a minute later. A pod that is
not evicted after all takes its label with it, unless another one of its controller needs that.

So what the Node should have follows from what was evicted and what is under way. It is made into a patch when that is
sent, and one patch is sent after the other: none that is late can undo a newer one.

Clocks differ, and are set. So the annotation has a beginning and an end, of which the cluster's side takes the length
alone; and the node counts that by a clock that only grows (CLOCK_BOOTTIME).

Source: Kubernetes, "API-initiated Eviction"; pkg/registry/core/pod/storage/eviction.go; policy/v1
(policy/v1beta1 before 1.22, whose servers answer 400 to v1).
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from criproxy.concurrency.clock import Clock
from criproxy.kube.bound_pods import bound_pods
from criproxy.kube.client import MERGE_PATCH, ApiAnswer, ApiRequest, Asks, UnreachableError
from criproxy.kube.events import EventWriter
from criproxy.kube.objects import (
    UID,
    BoundPod,
    Involved,
    Node,
    ObjectError,
    decoded,
    eviction,
    path,
    status_of,
)
from criproxy.kube.retry import Meaning, meaning, pause_s
from criproxy.model import PodRef
from criproxy.vocabulary.names import EVICTED, EVICTED_FROM
from criproxy.vocabulary.times import interval, interval_s

MARK_S: Final = 1.0
"""So long is waited for the label to be there; then the pod is evicted without."""

LATER_S: Final = 60.0
"""So much later than the cluster's side the node takes its labels away itself."""

MAX_EVICTED: Final = 32
"""Entries; beyond, those go first that end first."""

TRIES: Final = 3

GRACE_S: Final = 30.0
"""A pod's own grace period when it says none. Source: core/v1 PodSpec, terminationGracePeriodSeconds."""

MOST_GRACE_S: Final = 900
"""Longer than a YARN node drains (docs/yarn.md). With a grace period of years, a pod could evade its end."""

_EVICTED: Final = "EvictedByColocation"
_STOPPED: Final = "StoppedByColocation"
"""The events' reasons."""


class Outcome(Enum):
    """See the table above."""

    EVICTED = "evicted"
    GONE = "gone"
    BUDGET = "its disruption budget or admission does not allow it now"
    REFUSED = "refused"
    UNREACHABLE = "the API server does not answer"
    WITHDRAWN = "it is not to go any more"


class Eviction(Struct, frozen=True):
    """What came of it for one pod. `message` is what the server says."""

    pod: PodRef
    outcome: Outcome
    message: str = ""
    may_go: bool = False
    """Whether an answer was lost, by which it may go all the same."""
    grace_s: float = GRACE_S
    """What it has to end, once evicted."""


class EvictionTarget(Struct, frozen=True):
    """A pod that may be evicted. `controller` is the uid of who makes another one in its place; "": nobody."""

    pod: PodRef
    controller: str = ""
    grace_period_s: int | None = None


# --- the law ---------------------------------------------------------------------------------------------------------


def outcome(answer: ApiAnswer) -> Outcome | None:
    """What an answer means; None: it is to be tried again."""
    status = status_of(answer.body)
    failed_within = answer.meaning is Meaning.DONE and status.status == "Failure"
    code = (status.code or 500) if failed_within else answer.status
    found = meaning(code)
    if found is Meaning.DONE:
        return Outcome.EVICTED
    if status.denied_by_admission:
        return Outcome.BUDGET
    if code == 404 or (code == 409 and "uid" in status.message.lower()):
        return Outcome.GONE
    if code == 429 and (status.caused_by("DisruptionBudget") or "disruption budget" in status.message):
        return Outcome.BUDGET
    if code == 500 and "PodDisruptionBudget" in status.message:  # more than one: never to be evicted so
        return Outcome.BUDGET
    return None if found in (Meaning.AGAIN, Meaning.DENIED) else Outcome.REFUSED


def is_unknown_version(answer: ApiAnswer) -> bool:
    """Whether the server does not know this version of Eviction, rather than the pod."""
    status = status_of(answer.body)
    if status.denied_by_admission or (status.details is not None and status.details.kind == "pods"):
        return False
    return answer.status in (404, 415) or (answer.status == 400 and "policy/v1" in status.message)


class KeptOut(Struct, frozen=True):
    """An entry of the annotation: what it says there, and when it is over (CLOCK_BOOTTIME)."""

    text: str
    ends_s: float


Entries = Mapping[str, KeptOut]


def kept_out(entries: Entries, key: str, one: KeptOut) -> Entries:
    """With one more. Of two with the same key, the one that ends later."""
    joined = dict(entries)
    if key not in joined or joined[key].ends_s < one.ends_s:
        joined[key] = one
    return dict(sorted(joined.items(), key=lambda entry: entry[1].ends_s)[-MAX_EVICTED:])


def kept_out_for(seconds: float, now_s: float, wall_s: float) -> KeptOut:
    """From now on. `wall_s` is the time of day."""
    return KeptOut(interval(wall_s, wall_s + seconds), now_s + seconds)


def not_over(entries: Entries, now_s: float) -> dict[str, KeptOut]:
    return {name: one for name, one in entries.items() if one.ends_s > now_s}


def next_end_s(entries: Entries) -> float | None:
    """When the first is over (CLOCK_BOOTTIME); None: there is none."""
    return min((one.ends_s for one in entries.values()), default=None)


def entries_of(text: str, now_s: float, wall_now_s: float) -> Entries:
    """What an earlier process wrote: by the time of day, but no longer than it was to last.

    What can't be read counts as nothing.
    """
    found = {}
    try:
        for name, times in msgspec.json.decode(text, type=dict[str, str]).items():
            from_s, until_s = interval_s(times)
            left_s = min(until_s - wall_now_s, until_s - from_s)
            found[name] = KeptOut(times, now_s + left_s)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {}
    return found


def change(labelled: Collection[str], entries: Entries) -> bytes:
    """The merge patch of the Node to these entries: the annotation, and the labels. `labelled`: what it may have."""
    wanted = {**dict.fromkeys(key for key in labelled if key not in entries), **dict.fromkeys(entries, "")}
    labels = {f"{EVICTED_FROM}{key}": value for key, value in wanted.items() if UID.fullmatch(key)}
    text = msgspec.json.encode({name: one.text for name, one in entries.items()}).decode()
    return msgspec.json.encode({"metadata": {"annotations": {EVICTED: text}, "labels": labels}})


def _key(victim: EvictionTarget) -> str:
    return victim.controller or victim.pod.uid


# --- the part --------------------------------------------------------------------------------------------------------


class Evictor:
    """Evicts pods of this node, tells why, and keeps them from coming straight back."""

    def __init__(
        self,
        client: Asks,
        events: EventWriter,
        *,
        clock: Clock,
        rng: random.Random,
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._events = events
        self._node = events.node
        self._clock = clock
        self._rng = rng
        self._log = log
        self._version = "v1"
        self._evicted: Entries = {}
        self._under_way: list[tuple[str, KeptOut]] = []
        self._written: Entries | None = {}
        """What the Node has; None: it is not known."""
        self._node_uid = ""
        """Of the Node as it was last seen; "": it was not."""
        self._labelled: set[str] = set()
        """What the Node may have a label for."""
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[object]] = set()
        self._own: dict[str, float] = {}
        """What this process has marked, and when that is over (CLOCK_BOOTTIME): the Node may be seen as it was before
        that was taken away.
        """
        self._some = asyncio.Event()

    async def evict_pod(
        self, pod: PodRef, why: str, *, grace_period_s: int | None = None, still: Callable[[], bool] = lambda: True
    ) -> Eviction:
        """As `evict`, for a pod of which only the runtime has told us: it first reads the pod's owner and grace.

        A grace period of its own above `MOST_GRACE_S` counts as that. A pod that has ended is not evicted: the API
        server would delete it.
        """
        where = path("namespaces", pod.namespace, "pods", pod.name)
        try:
            answer = await self._client.ask(ApiRequest("GET", where))
            found = decoded(answer.body, BoundPod) if answer.meaning is Meaning.DONE else None
        except (UnreachableError, ObjectError) as error:
            return Eviction(pod, Outcome.UNREACHABLE, str(error))
        if answer.status == 404 or (found is not None and found.metadata.uid != pod.uid):
            return Eviction(pod, Outcome.GONE, "the API server knows no such pod")
        if found is not None and found.ended:
            return Eviction(pod, Outcome.GONE, "the pod has ended")
        own_s = found.spec.termination_grace_period_seconds if found else None
        if grace_period_s is None and own_s is not None and own_s > MOST_GRACE_S:
            grace_period_s = MOST_GRACE_S
        controller = found.controller if found else None
        victim = EvictionTarget(pod, controller.uid if controller else "", grace_period_s)
        made = await self.evict(victim, why, still=still)
        grace_s = grace_period_s if grace_period_s is not None else GRACE_S if own_s is None else own_s
        return replace(made, grace_s=float(grace_s))

    async def pods(self) -> tuple[BoundPod, ...]:
        """See `bound_pods`."""
        return await bound_pods(self._client, self._node.name)

    async def evict(
        self, victim: EvictionTarget, why: str, *, keep_out_s: float = 300.0, still: Callable[[], bool] = lambda: True
    ) -> Eviction:
        """Never raises. `why` is for people, `keep_out_s` is how long its like should not be placed here. `still`:
        whether it is to go, asked before each request that has it go.
        """
        now_s = self._clock.boottime_s()
        self._evicted = not_over(self._evicted, now_s)
        mark = _key(victim), kept_out_for(keep_out_s, now_s, self._clock.wall_s())
        self._under_way.append(mark)
        self._own[mark[0]] = mark[1].ends_s
        evicted = kept = False
        try:
            await self._mark()
            made = await self._evict(victim, still)
            evicted = made.outcome is Outcome.EVICTED
            kept = evicted or made.may_go
        finally:  # also when whoever asked waits no longer
            self._under_way.remove(mark)
            if kept:
                self._evicted = kept_out(self._evicted, *mark)
            self._some.set()
        self._log.warning(
            "evicted" if evicted else "not_evicted",
            pod=str(victim.pod),
            pod_uid=victim.pod.uid,
            reason=why,
            outcome=made.outcome.value,
            message=made.message,
        )
        if evicted:
            self._tell(victim.pod, _EVICTED, f"Evicted by criproxy: {why}")
        return made

    async def _evict(self, victim: EvictionTarget, still: Callable[[], bool]) -> Eviction:
        pod, message, unanswered = victim.pod, "", False
        where = path("namespaces", pod.namespace, "pods", pod.name, "eviction")
        for tried in range(1, TRIES + 1):
            named_s = None
            if not still():
                return Eviction(pod, Outcome.WITHDRAWN, message, unanswered)
            try:
                version = self._version
                answer = await self._client.ask(ApiRequest("POST", where, self._body(victim, version)))
                if is_unknown_version(answer):  # an old server; or one that was upgraded since
                    version = "v1beta1" if version == "v1" else "v1"
                    self._version = version  # of several at once, each comes to the same
                    answer = await self._client.ask(ApiRequest("POST", where, self._body(victim, version)))
            except UnreachableError as error:
                message, unanswered = str(error), True
            else:
                message, named_s = status_of(answer.body).message, answer.named_pause_s
                if (found := outcome(answer)) is not None:
                    taken = found is Outcome.GONE and unanswered
                    return Eviction(pod, Outcome.EVICTED if taken else found, message)
            if tried < TRIES:
                await self._clock.sleep(pause_s(tried, self._rng.random(), named_s))
        return Eviction(pod, Outcome.UNREACHABLE, message, unanswered)

    @staticmethod
    def _body(victim: EvictionTarget, version: str) -> bytes:
        return eviction(victim.pod, version, victim.grace_period_s)

    @property
    def _entries(self) -> Entries:
        """What the Node should have."""
        entries = self._evicted
        for key, one in self._under_way:
            entries = kept_out(entries, key, one)
        return entries

    async def _mark(self) -> None:
        """Before a pod goes. What can't be written now is written later: nobody stays for it."""
        writing = asyncio.create_task(self._write())
        self._writes.add(writing)
        writing.add_done_callback(self._writes.discard)
        await asyncio.wait((writing,), timeout=MARK_S)

    async def _write(self) -> ApiAnswer | UnreachableError | None:
        """Have the Node have the entries, with one try, once no other is under way. None: it has them."""
        async with self._writing:
            entries = self._entries
            if entries == self._written:
                return None
            patch = change(self._labelled, entries)
            self._written = None
            self._labelled |= entries.keys()
            try:
                answer = await self._client.ask(ApiRequest("PATCH", path("nodes", self._node.name), patch, MERGE_PATCH))
            except UnreachableError as error:
                return error
            if answer.meaning is not Meaning.DONE:
                return answer
            self._written, self._labelled = entries, set(entries)
            return None

    async def write_again(self) -> None:
        """Never raises. What can't be written after a few tries is left until `run` comes to it again."""
        self._some.clear()
        for failures in range(1, TRIES + 1):
            failed = await self._write()
            if failed is None:
                return
            named_s, reason = None, str(failed)
            if isinstance(failed, ApiAnswer):
                named_s, reason = failed.named_pause_s, f"{failed.status}"
                if failed.meaning not in (Meaning.AGAIN, Meaning.DENIED):
                    break
            if failures < TRIES:
                await self._clock.sleep(pause_s(failures, self._rng.random(), named_s))
        self._log.info("eviction_not_marked", path=path("nodes", self._node.name), reason=reason)

    def tell_stopped(self, pod: PodRef, why: str) -> None:
        """That its sandbox is stopped at the runtime, where Kubernetes has not let it go, or not in time."""
        self._tell(pod, _STOPPED, f"Stopped by criproxy on the node: {why}")

    def _tell(self, pod: PodRef, reason: str, message: str) -> None:
        """Events on the pod and on the node."""
        about = Involved("Pod", pod.name, pod.uid, namespace=pod.namespace)
        self._events.tell(about, reason, message)
        self._events.tell(self._node, reason, f"{pod}: {message}")

    async def run(self) -> None:
        """Have the Node have the entries, until cancelled: whoever evicts does not wait for it."""
        while True:
            ends_s = next_end_s(self._evicted)
            left_s = None if ends_s is None else max(1.0, ends_s + LATER_S - self._clock.boottime_s())
            if self._written != self._entries:  # or the pods of who was marked, and not evicted, stay away for long
                left_s = LATER_S if left_s is None else min(left_s, LATER_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._some.wait()
            self.forget_those_over()
            await self.write_again()

    def forget_those_over(self) -> None:
        """Take away what the cluster's side, where there is one, has taken away `LATER_S` before."""
        self._evicted = not_over(self._evicted, self._clock.boottime_s() - LATER_S)

    def saw(self, node: Node | None) -> None:
        """Take over what other processes of this node have left there: its entries, and labels that no entry is left
        of. A process before this one may write one late, when this one has been at work for a while.

        A Node that was deleted and made anew has none of what was written.
        """
        if node is None:
            return
        if self._node_uid not in ("", node.metadata.uid):
            self._written = None
            self._some.set()
        self._node_uid = node.metadata.uid
        now_s = self._clock.boottime_s()
        self._own = {key: ends_s for key, ends_s in self._own.items() if ends_s + LATER_S > now_s}
        known = self._labelled | self._own.keys()
        found = entries_of(node.annotation(EVICTED) or "{}", now_s, self._clock.wall_s())
        if before := {key: one for key, one in found.items() if key not in known}:
            if self._written == self._evicted == {}:
                self._written = before
            self._evicted = {**before, **self._evicted}
            self._labelled |= before.keys()
            self._some.set()  # some of them may be over
        labels = {one.removeprefix(EVICTED_FROM) for one in node.metadata.labels or {} if one.startswith(EVICTED_FROM)}
        if left := labels - known - found.keys():
            self._labelled |= left
            self._written = None  # which has them taken away, a while from now
            self._some.set()
