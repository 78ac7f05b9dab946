"""What owners have met with, as their pods show it. Pure.

How it works
------------
`see` takes each pod as it is now, whatever was missed before; all that follows is found by comparing, and what is in
the book already is not counted again: an eviction goes by its pod, a wait by its length, an end by the pod's own times.

- A pod was evicted when the API server says so of one that had a node: by its condition DisruptionTarget, which names
  any disruption (Kubernetes 1.26), or by the reason "Evicted" of kubelet's own. One without a node was moved by nobody.
- A pod waits from its creation until it has a node, or goes. Of an owner, the longest wait of a day counts, and then
  the longest of those that ended later.
- An owner's work begins with the first pod that is seen of it, and has ended when its last pod has succeeded and no
  other came for `SETTLED_S`. What failed is tried again by its owner, or is no end that a promise was for.

What is older than a day is forgotten. The book has `MOST_OWNERS` at most, those with the newest news of each namespace
in turn: a namespace that makes thousands of owners takes no other's place.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from criproxy_cluster.owners.pods import OwnedPod, Owner
from criproxy_cluster.owners.rules import (
    DAY_S,
    LEAST_WAIT_S,
    MOST_EVICTIONS,
    NOTHING_YET,
    OwnersSpec,
    Past,
    Rule,
    kept,
    rule_of,
)

SETTLED_S: Final = 30.0
FORGET_S: Final = 60.0
"""From one look for what is of old to the next."""

MOST_OWNERS: Final = 400
MOST_SHOWN: Final = 10
MOST_WAITS: Final = 8
"""Of one owner that are remembered: the longest ones, and the last."""

_SHORT: Final = 13
"""Characters of a uid that tell an owner's pods apart."""


class History(Struct, omit_defaults=True):
    """Times are in seconds since 1970. `evicted`: pods, by the beginning of their uids, and when."""

    owner: Owner
    evicted: dict[str, int] = {}
    waited_s: int = 0
    """The longest wait that is over."""
    waited_at_s: int = 0
    """When it was over."""
    later_waits: list[tuple[int, int]] = []
    """Of waits that were over later, how long each was, and when it was over; each is longer than all after it."""
    waits_since_s: int = 0
    """Since when the pod waits that has waited longest; 0: none does."""
    began_s: int = 0
    """When the work began that has not ended yet; 0: there is none whose time alone is known."""
    alone_s: int = 0

    def past(self, now_s: float) -> Past:
        waited_s = float(max((waited_s for waited_s, at_s in self._waits() if now_s - at_s < DAY_S), default=0))
        if self.waits_since_s:
            waited_s = max(waited_s, now_s - self.waits_since_s)
        return Past(sum(now_s - at_s < DAY_S for at_s in self.evicted.values()), waited_s)

    def newest_s(self, now_s: float) -> float:
        if self.waits_since_s:
            return now_s
        return max(self.began_s, *self.evicted.values(), *(at_s for _, at_s in self._waits()))

    def has_news(self, now_s: float) -> bool:
        """Work that has not ended is news, however long ago it began."""
        return bool(self.began_s) or now_s - self.newest_s(now_s) < DAY_S

    def add_wait(self, waited_s: int, at_s: int, now_s: float) -> None:
        """One that is over since `at_s`; it may be here already."""
        falling: list[tuple[int, int]] = []
        for one in sorted({*self._waits(), (waited_s, at_s)}, reverse=True):
            if now_s - one[1] < DAY_S and (not falling or one[1] > falling[-1][1]):
                falling.append(one)
        del falling[MOST_WAITS - 1 : -1]
        (self.waited_s, self.waited_at_s), *self.later_waits = falling or [(0, 0)]

    def _waits(self) -> list[tuple[int, int]]:
        return [(self.waited_s, self.waited_at_s), *self.later_waits]


class Outcomes(Struct, omit_defaults=True):
    """Of a policy's SLO: how often it was kept and missed, and some of those that missed it, the newest last."""

    kept: int = 0
    missed: int = 0
    late: list[str] = []


class Written(Struct, omit_defaults=True):
    """The book as it is kept. `virtual`: whether there are virtual nodes to overflow to."""

    rules: list[Rule] = []
    virtual: bool = False
    overflowed: dict[str, int] = {}
    """By namespace, the pods on virtual nodes, or on their way there."""
    histories: list[History] = []
    outcomes: dict[str, Outcomes] = {}
    remade: list[int] = []
    """When pods were made anew within the hour."""


def encoded(book: Written) -> str:
    return msgspec.json.encode(book, order="deterministic").decode()


def decoded(text: str) -> Written:
    """Raises ValueError."""
    try:
        return msgspec.json.decode(text, type=Written)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise ValueError(f"it is no book of owners: {str(error)[:200]}") from error


class _Mine(Struct):
    """An owner's pods: how many there are, how many have not ended, and those that wait, with when they were made."""

    pods: int = 0
    unfinished: int = 0
    waiting: dict[str, float] = {}


class Book:
    """Of all owners that have pods or news. `now_s` is the time of day everywhere."""

    def __init__(self, before: Written | None = None) -> None:
        before = before or Written()
        self._histories = {one.owner: one for one in before.histories}
        self._outcomes = before.outcomes
        self._pods: dict[str, OwnedPod] = {}
        self._mine: dict[Owner, _Mine] = {}
        self._waiting: dict[str, OwnedPod] = {}
        self._counts: dict[str, Counter[str]] = {"raised": Counter(), "overflowed": Counter()}
        """By namespace, of pods that have not ended."""
        self._forgot_s = float("-inf")
        self._settling: dict[Owner, tuple[float, float]] = {}
        """Of owners without an unfinished pod: since when, and when the last one ended."""

    def __len__(self) -> int:
        return len(self._histories)

    # --- what is seen -------------------------------------------------------------------------------------------------

    def see(self, pod: OwnedPod, now_s: float) -> None:
        before = self._pods.get(pod.uid)
        if before is not None and before.owner != pod.owner:
            self.forget(pod.uid, now_s)
            before = None
        self._pods[pod.uid] = pod
        if before is not None:
            self._count(before, -1)
        self._count(pod, 1)
        mine = self._mine.setdefault(pod.owner, _Mine())
        mine.pods += before is None
        mine.unfinished += (not pod.phase) - (before is not None and not before.phase)
        history = self._histories.setdefault(pod.owner, History(pod.owner))
        if pod.evicted_s is not None:
            _evicted(history, pod.uid, int(min(pod.evicted_s, now_s)))  # it is its node's clock that says so
        if pod.waits:
            mine.waiting[pod.uid] = pod.created_s
            history.waits_since_s = int(min(history.waits_since_s or pod.created_s, pod.created_s))
        elif before is None or before.waits:
            self._waits_no_more(history, mine, pod, now_s if pod.bound_s is None else pod.bound_s, now_s)
        self._work(history, mine, pod, now_s)

    def forget(self, uid: str, now_s: float) -> None:
        """The pod is gone."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        self._count(pod, -1)
        mine, history = self._mine[pod.owner], self._histories[pod.owner]
        mine.pods -= 1
        mine.unfinished -= not pod.phase
        if pod.waits:
            self._waits_no_more(history, mine, pod, now_s, now_s)
        if not mine.pods:
            del self._mine[pod.owner]
            if pod.owner not in self._settling:
                history.began_s = history.alone_s = 0  # nothing of it is left, and it has not come to an end
            if pod.owner.kind == "Pod" and pod.owner not in self._settling:
                del self._histories[pod.owner]

    def listed(self, uids: set[str], now_s: float) -> None:
        """These are all pods that there are."""
        for gone in self._pods.keys() - uids:
            self.forget(gone, now_s)
        for owner, history in self._histories.items():
            mine = self._mine.get(owner)
            history.waits_since_s = int(min(mine.waiting.values(), default=0)) if mine else 0
            if mine is None and owner not in self._settling:
                history.began_s = history.alone_s = 0  # its pods went while nobody led

    def _count(self, pod: OwnedPod, by: int) -> None:
        for field, is_so in (("raised", pod.raised), ("overflowed", pod.overflowed)):
            if is_so and not pod.phase:
                self._counts[field][pod.owner.namespace] += by
        if pod.waits and by > 0:
            self._waiting[pod.uid] = pod
        else:
            self._waiting.pop(pod.uid, None)

    def _waits_no_more(self, history: History, mine: "_Mine", pod: OwnedPod, ended_s: float, now_s: float) -> None:
        waited_s = ended_s - pod.created_s
        if waited_s >= LEAST_WAIT_S:
            history.add_wait(int(waited_s), int(min(ended_s, now_s)), now_s)
        created_s = mine.waiting.pop(pod.uid, None)
        if created_s is not None and int(created_s) <= history.waits_since_s:
            history.waits_since_s = int(min(mine.waiting.values(), default=0))

    def _work(self, history: History, mine: "_Mine", pod: OwnedPod, now_s: float) -> None:
        if mine.unfinished:
            self._settling.pop(pod.owner, None)
            if not pod.phase and pod.alone_s:
                history.began_s = int(min(history.began_s or pod.created_s, pod.created_s))
                history.alone_s = max(history.alone_s, int(pod.alone_s))
        elif history.began_s and pod.phase == "Succeeded":
            since_s, ended_s = self._settling.get(pod.owner, (now_s, 0.0))
            self._settling[pod.owner] = since_s, max(ended_s, pod.ended_s or now_s)

    # --- what follows -------------------------------------------------------------------------------------------------

    def settle(self, rules: Iterable[Rule], now_s: float) -> None:
        """Work that has ended is compared with its policy's SLO, and what is of old is forgotten."""
        rules = tuple(rules)
        for owner, (since_s, ended_s) in list(self._settling.items()):
            if now_s - since_s >= SETTLED_S:
                del self._settling[owner]
                history = self._histories[owner]
                self._judge(rule_of(rules, owner.namespace), history, ended_s)
                history.began_s = history.alone_s = 0
        if now_s - self._forgot_s >= FORGET_S:
            self._forgot_s = now_s
            for owner in [one for one, past in self._histories.items() if not past.has_news(now_s)]:
                if owner not in self._mine and owner not in self._settling:
                    del self._histories[owner]
        names = {rule.policy for rule in rules}
        self._outcomes = {name: one for name, one in self._outcomes.items() if name in names}

    def _judge(self, rule: Rule | None, history: History, ended_s: float) -> None:
        if rule is None or rule.spec.slo is None or not history.alone_s:
            return
        found = self._outcomes.setdefault(rule.policy, Outcomes())
        if kept(rule.spec.slo, ended_s - history.began_s, history.alone_s):
            found.kept += 1
        else:
            found.missed += 1
            owner = history.owner
            words = f"{owner.namespace}/{owner.kind}/{owner.name}"
            found.late = [*(one for one in found.late if one != words), words][-MOST_SHOWN:]

    def outcomes(self, policy: str) -> Outcomes:
        return self._outcomes.get(policy, Outcomes())

    def past(self, owner: Owner, now_s: float) -> Past:
        history = self._histories.get(owner)
        return history.past(now_s) if history else NOTHING_YET

    def waiting(self) -> list[OwnedPod]:
        """Pods that wait for a node, the oldest first."""
        return sorted(self._waiting.values(), key=lambda pod: (pod.created_s, pod.uid))

    def count(self, field: str) -> dict[str, int]:
        """By namespace, the pods that have not ended and are "raised", or "overflowed"."""
        return {namespace: count for namespace, count in sorted(self._counts[field].items()) if count}

    def written(self, rules: Iterable[Rule], now_s: float, *, virtual: bool, remade: Sequence[int] = ()) -> Written:
        return Written(
            list(rules),
            virtual,
            self.count("overflowed"),
            chosen(self._histories, now_s),
            dict(self._outcomes),
            list(remade),
        )

    def worst(self, now_s: float, most: int) -> list[tuple[Owner, Past]]:
        """Those with the longest waits, and then the most evictions."""
        some = [one for one in self._histories.values() if one.evicted or one.waited_s or one.waits_since_s]
        pasts = [(one.owner, one.past(now_s)) for one in some]
        found = [(owner, past) for owner, past in pasts if past != NOTHING_YET]
        return sorted(found, key=lambda one: (-one[1].waited_s, -one[1].evictions, one[0]))[:most]


def _evicted(history: History, uid: str, at_s: int) -> None:
    if (key := uid[:_SHORT]) not in history.evicted:
        newest = sorted([*history.evicted.items(), (key, at_s)], key=lambda one: one[1])
        history.evicted = dict(newest[-MOST_EVICTIONS:])


def chosen(histories: Mapping[Owner, History], now_s: float, most: int = MOST_OWNERS) -> list[History]:
    """Those with news, the newest of each namespace in turn until there are so many; in the order of their owners."""
    by_namespace: dict[str, list[History]] = {}
    for owner, one in histories.items():
        if one.has_news(now_s):
            by_namespace.setdefault(owner.namespace, []).append(one)
    for several in by_namespace.values():
        several.sort(key=lambda one: (one.newest_s(now_s), one.owner))
    found: list[History] = []
    while by_namespace and len(found) < most:
        for namespace in sorted(by_namespace):
            found.append(by_namespace[namespace].pop())
            if not by_namespace[namespace]:
                del by_namespace[namespace]
    return sorted(found[:most], key=lambda one: one.owner)


def raised(pods: Iterable[OwnedPod], rules: Iterable[Rule], counts: Mapping[str, int], now_s: float) -> list[OwnedPod]:
    """Of waiting pods, the oldest first, those to raise now. `counts`: how many are raised in each namespace."""
    rules, counts = tuple(rules), dict(counts)
    found = []
    for pod in pods:
        spec = _spec(rules, pod).raises
        if spec is None or pod.raised or pod.tiered or pod.overflowed or now_s - pod.created_s < spec.wait_seconds:
            continue
        namespace = pod.owner.namespace
        if counts.get(namespace, 0) < spec.pods:
            counts[namespace] = counts.get(namespace, 0) + 1
            found.append(pod)
    return found


def _spec(rules: Iterable[Rule], pod: OwnedPod) -> OwnersSpec:
    rule = rule_of(rules, pod.owner.namespace)
    return rule.spec if rule else OwnersSpec()
