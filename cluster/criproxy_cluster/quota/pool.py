"""What the nodes of each flavor lend, and what they carry, as running sums. Pure."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from msgspec import Struct

from criproxy_cluster.objects import FlavorSpec, NodeObject, Taint, Toleration, published
from criproxy_cluster.vocabulary.names import FOR_OFFLINE
from criproxy_cluster.vocabulary.presets import ExtendedNames
from criproxy_cluster.vocabulary.quantities import MOST, amount

MILLICORES: Final = 1000

_REMOVES: Final = ("karpenter.sh/disrupted", "ToBeDeletedByClusterAutoscaler")
"""Keys of the taints of nodes that an autoscaler is removing: their pods end, whatever the effect says."""


class Amounts(Struct, frozen=True):
    """Thousandths of a core, and bytes."""

    millicores: int = 0
    bytes: int = 0

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(self.millicores + other.millicores, self.bytes + other.bytes)

    def __sub__(self, other: "Amounts") -> "Amounts":
        return Amounts(self.millicores - other.millicores, self.bytes - other.bytes)

    def exceeds(self, other: "Amounts") -> bool:
        """In any of the two."""
        return self.millicores > other.millicores or self.bytes > other.bytes


NOTHING: Final = Amounts()


class _Node(Struct, gc=False):
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    """Those that keep pods out which don't tolerate them."""
    is_cordoned: bool
    amounts: Amounts
    flavor: str | None = None
    takes_pods: bool = False
    """New ones, of the flavor."""


class QuotaState(Struct):
    """What there is to be seen of it. By flavor: `lent`, `quota`. `problem` "": all is well."""

    lent: dict[str, Amounts] = {}
    quota: dict[str, Amounts] = {}
    problem: str = ""
    writes: int = 0
    failures: int = 0
    suspended: int = 0
    resumed: int = 0


class Pool:
    """Sums for each flavor. `lent`: what new pods find. `carried`: what there is for those that run, too: also on nodes
    that take no new ones, but let theirs go on. A node counts for the flavor whose pods tolerate most of its taints, of
    several the first.
    """

    def __init__(self, names: ExtendedNames) -> None:
        self._names = names
        self._nodes: dict[str, _Node] = {}
        self._flavors: dict[str, FlavorSpec] = {}
        self.lent: dict[str, Amounts] = {}
        self.carried: dict[str, Amounts] = {}

    def set_flavors(self, flavors: Mapping[str, FlavorSpec]) -> None:
        """By name, in their order."""
        if flavors == self._flavors and list(flavors) == list(self._flavors):
            return
        self._flavors = dict(flavors)
        self.lent = dict.fromkeys(flavors, NOTHING)
        self.carried = dict.fromkeys(flavors, NOTHING)
        for node in self._nodes.values():
            self._place(node)

    def see(self, node: NodeObject, labels: Mapping[str, str]) -> None:
        """`labels` are the node's, as others keep them, too."""
        name = node.metadata.name
        self.forget(name)
        is_cordoned = node.spec.unschedulable is True
        self._nodes[name] = _Node(labels, _taints(node), is_cordoned, _amounts(node, self._names))
        self._place(self._nodes[name])

    def forget(self, name: str) -> None:
        if (before := self._nodes.pop(name, None)) is not None:
            self._count(before, NOTHING - before.amounts)

    def forget_all_but(self, names: set[str]) -> None:
        """After a list of all nodes."""
        for name in self._nodes.keys() - names:
            self.forget(name)

    def _place(self, node: _Node) -> None:
        """Find its flavor, and count it."""
        taints = {
            name: refusing for name, one in self._flavors.items() if (refusing := _refusing(one, node)) is not None
        }
        node.flavor = min(taints, key=lambda name: taints[name], default=None)
        node.takes_pods = node.flavor is not None and not taints[node.flavor] and not node.is_cordoned
        self._count(node, node.amounts)

    def _count(self, node: _Node, amounts: Amounts) -> None:
        if node.flavor is not None:
            self.carried[node.flavor] += amounts
            if node.takes_pods:
                self.lent[node.flavor] += amounts


def _amounts(node: NodeObject, names: ExtendedNames) -> Amounts:
    """What is there for offline pods: nothing on a node that is not ready."""
    ready = next((one.status for one in node.status.conditions or () if one.type == "Ready"), "")
    if ready != "True":
        return NOTHING
    found = published(node)
    cores, memory = found.get(names.cpu, 0), found.get(names.memory, 0)
    return Amounts(max(int(cores * MILLICORES / names.per_core), 0), max(int(memory), 0))


def _refusing(flavor: FlavorSpec, node: _Node) -> int | None:
    """How many of the node's taints refuse new pods of the flavor. None: those that run don't go on there, either."""
    if not (flavor.node_labels or {}).items() <= node.labels.items():
        return None
    found = [taint for taint in node.taints if not _is_tolerated(taint, flavor)]
    ends = any(taint.effect == "NoExecute" or taint.key in _REMOVES for taint in found)
    return None if ends else len(found)


def _is_tolerated(taint: Taint, flavor: FlavorSpec) -> bool:
    return any(_same(taint, known) for known in flavor.node_taints or ()) or any(
        _tolerates(one, taint) for one in flavor.tolerations or ()
    )


def _taints(node: NodeObject) -> tuple[Taint, ...]:
    """Those that keep pods out, but for the one that each offline pod tolerates."""
    hard = ("NoSchedule", "NoExecute")
    return tuple(one for one in node.spec.taints or () if one.effect in hard and one.key != FOR_OFFLINE)


def _same(taint: Taint, known: Taint) -> bool:
    return (taint.key, taint.value or "", taint.effect) == (known.key, known.value or "", known.effect)


def _tolerates(one: Toleration, taint: Taint) -> bool:
    """Source: Kubernetes, core/v1 Toleration.ToleratesTaint."""
    if one.effect not in ("", taint.effect) or one.key not in ("", taint.key):
        return False
    return one.operator == "Exists" or one.value == (taint.value or "")


def usage(flavors: Mapping[str, str] | None, used: Mapping[str, str] | None, flavor: str) -> Amounts:
    """What an assignment of Kueue's takes of a flavor. What can't be read is nothing."""
    found = dict[str, int]()
    for what, factor in (("cpu", MILLICORES), ("memory", 1)):
        with suppress(ValueError):
            if (flavors or {}).get(what) == flavor and (used or {}).get(what) is not None:
                found[what] = int(min(amount((used or {})[what]) * factor, MOST))
    return Amounts(found.get("cpu", 0), found.get("memory", 0))
