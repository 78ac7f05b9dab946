"""What the nodes of each flavor lend, as a running sum. Pure."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from msgspec import Struct

from criproxy_cluster.objects import FlavorSpec, NodeObject, Taint, Toleration, published
from criproxy_cluster.vocabulary.names import FOR_OFFLINE
from criproxy_cluster.vocabulary.presets import ExtendedNames
from criproxy_cluster.vocabulary.quantities import MOST, amount

MILLICORES: Final = 1000


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
    lends: Amounts
    flavor: str | None


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
    """`lent` has a sum for each flavor. A node counts for the first flavor that it `fits`."""

    def __init__(self, names: ExtendedNames) -> None:
        self._names = names
        self._nodes: dict[str, _Node] = {}
        self._flavors: dict[str, FlavorSpec] = {}
        self.lent: dict[str, Amounts] = {}

    def set_flavors(self, flavors: Mapping[str, FlavorSpec]) -> None:
        """By name, in their order."""
        if flavors == self._flavors and list(flavors) == list(self._flavors):
            return
        self._flavors = dict(flavors)
        self.lent = dict.fromkeys(flavors, NOTHING)
        for node in self._nodes.values():
            node.flavor = self._flavor_of(node.labels, node.taints)
            self._count(node.flavor, node.lends)

    def see(self, node: NodeObject, labels: Mapping[str, str]) -> None:
        """`labels` are the node's, as others keep them, too."""
        name = node.metadata.name
        self.forget(name)
        taints = _taints(node)
        found = _Node(labels, taints, lendable(node, self._names), self._flavor_of(labels, taints))
        self._nodes[name] = found
        self._count(found.flavor, found.lends)

    def forget(self, name: str) -> None:
        if (before := self._nodes.pop(name, None)) is not None:
            self._count(before.flavor, NOTHING - before.lends)

    def forget_all_but(self, names: set[str]) -> None:
        """After a list of all nodes."""
        for name in self._nodes.keys() - names:
            self.forget(name)

    def _flavor_of(self, labels: Mapping[str, str], taints: tuple[Taint, ...]) -> str | None:
        return next((name for name, flavor in self._flavors.items() if fits(flavor, labels, taints)), None)

    def _count(self, flavor: str | None, lends: Amounts) -> None:
        if flavor is not None:
            self.lent[flavor] += lends


def lendable(node: NodeObject, names: ExtendedNames) -> Amounts:
    """What new pods find there: nothing on a node that is cordoned or not ready."""
    ready = next((one.status for one in node.status.conditions or () if one.type == "Ready"), "")
    if node.spec.unschedulable or ready != "True":
        return NOTHING
    found = published(node)
    cores, memory = found.get(names.cpu, 0), found.get(names.memory, 0)
    return Amounts(max(int(cores * MILLICORES / names.per_core), 0), max(int(memory), 0))


def fits(flavor: FlavorSpec, labels: Mapping[str, str], taints: tuple[Taint, ...]) -> bool:
    """Whether pods of the flavor may run on a node: it has the flavor's labels, and they tolerate all `taints`."""
    return (flavor.node_labels or {}).items() <= labels.items() and all(
        any(_same(taint, known) for known in flavor.node_taints or ())
        or any(_tolerates(one, taint) for one in flavor.tolerations or ())
        for taint in taints
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
