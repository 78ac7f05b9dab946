"""Which pod goes when one has to: a table of ranks, from the pods' own marks and what each would give back.

| first | what                                                                                          |
|-------|-----------------------------------------------------------------------------------------------|
| 1     | the lowest eviction priority: annotation `koordinator.sh/eviction-priority`, 0 without one,   |
|       | and at most                                                                                   |
| 2     | the lowest priority: Kubernetes', 0 where it is not known; or that of the annotation          |
|       | `colocation.criproxy.io/priority`, or of the label `koordinator.sh/priority`, if it is lower  |
| 3     | the lower tier, where there are two (`colocation.tiers`): its label is the author's, too      |
| 4     | the most relief of the scarce resource: what it uses above its fair share                     |
| 5     | the youngest                                                                                  |

What an author writes may send a pod sooner, and never spare it at another's cost: the administrator's PriorityClass
says how much a pod matters. No pod goes that would give back next to nothing (see `worth`): not in the stead of one
whose owner is barred for now, nor of one that a disruption budget keeps.

No pod goes that uses nothing of the resource, or whose owner is barred for now; nor, but in an emergency, one that says
so (`koordinator.sh/eviction-enabled`, label or annotation, with another value than "true"). In Koordinator only pods
marked "true" may be evicted; here offline pods without the mark may, as being offline says it.

Source: koordinator, apis/extension/constants.go (LabelPodEvictEnabled, AnnotationPodEvictionPriority, LabelPodPriority)
and evict.go; there, too, an eviction priority that is no 32-bit number counts as 0.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from criproxy.model import Pod, PodRef
from criproxy.vocabulary.names import EVICTION_ENABLED, EVICTION_PRIORITY, KOORDINATOR_PRIORITY, PRIORITY


class Candidate(Struct, frozen=True):
    """An offline pod that may have to go. `use` and `fair_share` are of the scarce resource, in its unit.

    For memory, `use` is what its end gives back: all but page cache and slab. `fair_share` is 0 where pods have no
    share of their own.

    `owners` are the names of what owns it (its Job): the uid, where Kubernetes tells it, and what its labels say. There
    are none where nothing owns it. `started_s` is on any one clock. `mid`: it is of the higher tier.
    """

    pod: PodRef
    owners: tuple[str, ...]
    use: float
    started_s: float
    fair_share: float = 0.0
    evictable: bool = True
    eviction_priority: int = 0
    priority: int = 0
    mid: bool = False

    @property
    def relief(self) -> float:
        return max(0.0, self.use - self.fair_share)


class Victim(Struct, frozen=True):
    """The pod that goes, and why this one."""

    candidate: Candidate
    reason: str


OWNERS: Final = (
    "batch.kubernetes.io/controller-uid", "controller-uid", "batch.kubernetes.io/job-name", "job-name",
    "spark-app-selector", "pod-template-hash",
)  # fmt: skip
"""Labels by which controllers know their pods, as a runtime does not tell who owns one. Source: Kubernetes
documentation, Well-Known Labels; Spark on Kubernetes; the ReplicaSet's hash is its own within a namespace.
"""

WORTH_RATIO: Final = 0.1
"""A pod is worth one of the few evictions that gives back so much of what the box has too much of; see `worth`."""

LONGEST_OWNER: Final = 63
"""Characters of such a label's value. Source: apimachinery, util/validation, LabelValueMaxLength."""


def owner_of(pod: Pod) -> str:
    """What owns the pod, as far as its labels say: `namespace/label=value`; "": nothing does.

    For where Kubernetes' API, which knows it, does not say.
    """
    labels = pod.labels
    named = (key for key in OWNERS if 0 < len(labels.get(key, "")) <= LONGEST_OWNER)
    return next((f"{pod.ref.namespace}/{key}={labels[key]}" for key in named), "")


def candidate(
    pod: Pod,
    owners: tuple[str, ...],
    use: float,
    started_s: float,
    *,
    fair_share: float = 0.0,
    kubernetes_priority: int | None = None,
    mid: bool = False,
) -> Candidate:
    """With what the pod itself says. A mark that can't be read counts as not there, but for one that forbids."""
    labels, annotations = pod.labels, pod.annotations
    own = (_number(annotations, PRIORITY), _number(labels, KOORDINATOR_PRIORITY))
    told = kubernetes_priority or 0
    asked = next((one for one in own if one is not None), told)
    return Candidate(
        pod=pod.ref,
        owners=owners,
        use=use,
        started_s=started_s,
        fair_share=fair_share,
        evictable=all(marks.get(EVICTION_ENABLED, "true") == "true" for marks in (labels, annotations)),
        eviction_priority=min(0, _number(annotations, EVICTION_PRIORITY) or 0),
        priority=min(asked, told),
        mid=mid,
    )


def fair_shares(use: Mapping[str, float], limits: Mapping[str, float]) -> dict[str, float]:
    """Of what all of them use, by the same keys: in proportion to their limits, or equal ones unless all have one."""
    if not use:
        return {}
    limited = all(limits.get(key, 0.0) > 0.0 for key in use)
    weights = {key: limits[key] for key in use} if limited else dict.fromkeys(use, 1.0)
    total, all_of_them = sum(weights.values()), sum(use.values())
    return {key: all_of_them * weight / total for key, weight in weights.items()}


def _number(marks: Mapping[str, str], key: str) -> int | None:
    """A 32-bit number as Go's strconv.ParseInt reads it; None: there is none."""
    text = marks.get(key, "")
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 10:
        return None
    number = int(text)
    return number if -(2**31) <= number < 2**31 else None


def rank(one: Candidate) -> tuple[int, int, bool, float, float, str]:
    """The lowest goes first. The uid makes it certain which, whatever the order in which they come."""
    return one.eviction_priority, one.priority, one.mid, -one.relief, -one.started_s, one.pod.uid


def worth(candidates: Iterable[Candidate], excess: float = 0.0) -> float:
    """What a pod has to give back at least to be worth an eviction, in the unit of the scarce resource.

    It is `WORTH_RATIO` of the excess, or what the largest of them has, where none has as much; without an excess (0),
    `WORTH_RATIO` of what the largest has. Those that may not go now count, too, as no other goes in their stead.
    """
    largest = max((one.use for one in candidates), default=0.0)
    return min(WORTH_RATIO * excess, largest) if excess > 0.0 else WORTH_RATIO * largest


def choose(
    candidates: Iterable[Candidate],
    barred: frozenset[str] = frozenset(),
    *,
    least: float = 0.0,
    emergency: bool = False,
) -> Victim | None:
    """Who goes; None: nobody may. Those stay that give back less than `least`: see `worth`."""
    ranked = sorted((one for one in candidates if _may_go(one, barred, least, emergency=emergency)), key=rank)
    if not ranked:
        return None
    first = ranked[0]
    return Victim(first, _why(first, ranked[1]) if len(ranked) > 1 else "it is the only pod that may go")


def _may_go(one: Candidate, barred: frozenset[str], least: float, *, emergency: bool) -> bool:
    return (one.evictable or emergency) and 0.0 < one.use >= least and barred.isdisjoint(one.owners)


def _why(first: Candidate, second: Candidate) -> str:
    """By which rank it came before the next one."""
    if first.eviction_priority < second.eviction_priority:
        return f"its eviction priority {first.eviction_priority} is the lowest"
    if first.priority < second.priority:
        return f"its priority {first.priority} is the lowest"
    among = f"of those with priority {first.priority}"
    if first.mid < second.mid:
        return f"{among}, the others are of the higher tier"
    if first.relief > second.relief:
        return f"{among}, it gives back most"
    return f"{among} that give back as much, it is the youngest"
