"""What a policy says of owners, and what follows for one pod. Pure.

| `spec.owners` | what happens |
|---|---|
| `overflow.evictions` | new pods of an owner that lost as many to evictions in a day are left for virtual nodes |
| `overflow.waitSeconds` | the same, where a pod of the owner waited as long in that day |
| `overflow.deadlineMarginSeconds` | the same, once the pod's deadline leaves no more than this beside the time alone |
| `raise` | a pod that has waited as long gets the higher tier |
| `slo.times` | the policy's status counts which owners have ended within so many times what their work takes alone |

Of the policies whose namespaces have a pod's, the first has it: by priority, then by name. Deadlines and the time alone
are the author's own words. What they bring him is a node that is billed, up to `overflow.pods` in his namespace.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from criproxy_cluster.vocabulary.times import wall_s

DAY_S: Final = 86400
MOST_EVICTIONS: Final = 8
"""Of one owner that are remembered; a rule can't ask for more."""

LEAST_WAIT_S: Final = 10
"""A wait that is shorter is none, and is not remembered."""

MOST_ALONE_S: Final = 30 * DAY_S

Seconds = Annotated[int, Meta(ge=1, le=DAY_S)]
Pods = Annotated[int, Meta(ge=1, le=1000)]


class Overflow(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`pods`: the most on virtual nodes at once, in each namespace."""

    pods: Pods
    evictions: Annotated[int, Meta(ge=1, le=MOST_EVICTIONS)] | None = None
    wait_seconds: Annotated[int, Meta(ge=LEAST_WAIT_S, le=DAY_S)] | None = None
    deadline_margin_seconds: Annotated[int, Meta(ge=0, le=DAY_S)] | None = None

    def __post_init__(self) -> None:
        if self.evictions is None and self.wait_seconds is None and self.deadline_margin_seconds is None:
            raise ValueError("overflow has no condition: write evictions, waitSeconds or deadlineMarginSeconds")


class Raise(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`pods`: the most that are raised and have not ended, in each namespace."""

    wait_seconds: Seconds
    pods: Pods


class Slo(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    times: Annotated[float, Meta(ge=1, le=1000)]


class OwnersSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """`spec.owners`. An overflow names its namespaces: pods of everybody must not be billed by a mistake."""

    namespaces: tuple[str, ...] = ()
    overflow: Overflow | None = None
    raises: Raise | None = msgspec.field(name="raise", default=None)
    slo: Slo | None = None

    def __post_init__(self) -> None:
        if self.overflow is not None and not self.namespaces:
            raise ValueError("overflow costs: name the namespaces whose pods may overflow")


class Rule(Struct, frozen=True):
    """A policy's, by its name."""

    policy: str
    spec: OwnersSpec

    def has(self, namespace: str) -> bool:
        return not self.spec.namespaces or namespace in self.spec.namespaces


class Asked(Struct, frozen=True):
    """What a pod's author says: his deadline, in seconds since 1970, and how long the owner's work takes alone."""

    deadline_s: float | None = None
    alone_s: float = 0.0


class Past(Struct, frozen=True):
    """What an owner has met with in the last day: how often it lost a pod, and for how long one waited."""

    evictions: int = 0
    waited_s: float = 0.0


NOTHING_YET: Final = Past()


def rule_of(rules: Iterable[Rule], namespace: str) -> Rule | None:
    """The first, of rules in their order, that has this namespace."""
    return next((rule for rule in rules if rule.has(namespace)), None)


def with_those_of_before(rules: Iterable[Rule], before: Sequence[Rule], unusable: Collection[str]) -> tuple[Rule, ...]:
    """`rules`, and those of `before` whose policies can't be used now; where `before` had them in its order."""
    found = list(rules)
    for at, rule in reversed(list(enumerate(before))):
        if rule.policy in unusable:
            after = {one.policy for one in before[at + 1 :]}
            place = next((place for place, one in enumerate(found) if one.policy in after), len(found))
            found.insert(place, rule)
    return tuple(found)


def overflows(rule: Overflow, past: Past, asked: Asked, now_s: float) -> str:
    """Why a pod of an owner with this past is to be made for virtual nodes; "": it is not."""
    if rule.evictions is not None and past.evictions >= rule.evictions:
        return f"its owner lost {past.evictions} pods to evictions within a day"
    if rule.wait_seconds is not None and past.waited_s >= rule.wait_seconds:
        return f"a pod of its owner waited for {past.waited_s:.0f} s"
    if rule.deadline_margin_seconds is not None and asked.deadline_s is not None:
        left_s = asked.deadline_s - now_s
        if left_s <= rule.deadline_margin_seconds + asked.alone_s:
            return f"its deadline is {max(left_s, 0.0):.0f} s away"
    return ""


def deadline_s(text: object) -> float | None:
    """As an author has written it; None: there is none, or it can't be read."""
    try:
        return wall_s(text) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None


def alone_s(text: object) -> float:
    """The same; 0.0: it is not known."""
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 8:
        return 0.0
    return float(min(int(text), MOST_ALONE_S))


def kept(spec: Slo, took_s: float, alone_s: float) -> bool:
    """Whether work that took so long kept to it."""
    return took_s <= spec.times * alone_s
