"""What each node has, who has it, and whether one more may. Pure.

How it works
------------
    free  =  allocatable  -  used  -  reserved  -  what holders hold

| what | from | until |
|---|---|---|
| used | the watch shows a pod with a node | it ends, or is gone |
| reserved by `reserve` | a scheduler asks first | it is bound, released or gone; a higher priority takes it; 30 s |
| reserved by `bind` | a bind is let through | the watch shows it; the pod is gone; 10 s |
| held | a holder, as YARN is one, says so | it says something else |

Amounts are compared, never versions: what has changed meanwhile does not matter if there is room. Decisions are made
one after another, each with all that is known by then.

A bind that was let through may be stored at any moment, and nobody can take it back. So it is never displaced, and it
stays when the same pod is bound to another node: the watch shows which of the two it was. What a scheduler has merely
reserved moves with its next request, and gives way to a higher priority, as its bind can still be refused.

A reservation whose time is over is not dropped: the pod is read first (`due`, `read`). One that is found bound stays
until the watch shows it, as only the watch shows its end, too: what a read says may be older than that.

A node that is not known can't be full: a bind to it is let through, and counts. To reserve there is refused.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final

from msgspec import Struct

from criproxy_cluster.objects import LENT

RESERVE_S: Final = 30.0
BIND_S: Final = 10.0
MOST_RESERVED: Final = 1 << 17
"""Of reservations in all: a client that never binds takes this much of the memory, and no more."""

MOST_BINDS: Final = 8
"""Of one pod, to different nodes, before the watch shows one. What comes beyond is let through, and does not count."""

Amounts = tuple[tuple[str, int], ...]
"""Each resource's name with how much of it, in its own unit, whole numbers. Many pods share one."""


class Pod(Struct, frozen=True, gc=False):
    """What counts of one. `node` "": it is not bound. `ended`: nothing of it runs any more."""

    uid: str
    namespace: str
    name: str
    amounts: Amounts
    priority: int = 0
    node: str = ""
    ended: bool = False


class Reservation(Struct, gc=False, eq=False):
    """`bind`: its bind was let through. `until_s`: then the pod is read, see `Ledger.due`."""

    pod: Pod
    node: str
    until_s: float
    number: int
    bind: bool = False
    late: bool = False
    """Whether it was found bound before the watch has shown it."""


class Wish(Struct, frozen=True, gc=False):
    pod: Pod
    node: str


class Verdict(Struct, frozen=True, gc=False):
    """`why` "": it may. `free`: what the node has left now, for this answer's reader to decide anew."""

    why: str = ""
    free: Mapping[str, int] = {}

    @property
    def allowed(self) -> bool:
        return not self.why


class _Node:
    __slots__ = ("allocatable", "held", "reserved", "taken")

    def __init__(self) -> None:
        self.allocatable: Mapping[str, int] | None = None
        """None: it is not known."""
        self.taken: dict[str, int] = {}
        """By all together. A name of which nothing is taken is not there."""
        self.reserved: dict[str, Reservation] = {}
        """By the pods' uids."""
        self.held: dict[str, Amounts] = {}
        """By the holders' names."""

    def take(self, amounts: Amounts, sign: int = 1) -> None:
        for name, amount in amounts:
            now = self.taken.get(name, 0) + sign * amount
            if now:
                self.taken[name] = now
            else:
                self.taken.pop(name, None)

    @property
    def free(self) -> dict[str, int]:
        taken = self.taken
        return {name: amount - taken.get(name, 0) for name, amount in (self.allocatable or {}).items()}


class Ledger:
    """Of all nodes. `changed` has the names of those whose free amounts may have changed; who tells of them clears it.

    Times are of one clock that only grows.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._used: dict[str, tuple[str, Amounts]] = {}
        """By uid: the node, and what it takes there."""
        self._waiting: dict[str, Pod] = {}
        """By uid: those without a node."""
        self._reserved: dict[str, list[Reservation]] = {}
        """By uid; of one pod seldom more than one."""
        self._numbers = count()
        self._count = 0
        self.changed: set[str] = set()

    # --- what is seen -------------------------------------------------------------------------------------------------

    def set_node(self, name: str, allocatable: Mapping[str, int] | None) -> None:
        """`None`: it is no more."""
        node = self._nodes.get(name) or self._nodes.setdefault(name, _Node())
        if node.allocatable != allocatable:
            node.allocatable = allocatable
            self.changed.add(name)
        self._tidy(name)

    def keep_nodes(self, names: set[str]) -> None:
        """There are these alone."""
        for name in [one for one, node in self._nodes.items() if node.allocatable is not None and one not in names]:
            self.set_node(name, None)

    def see(self, pod: Pod) -> None:
        """The watch shows it so."""
        if pod.ended:
            self.forget(pod.uid)
        elif pod.node:
            self._waiting.pop(pod.uid, None)
            if self._used.get(pod.uid) != (pod.node, pod.amounts):
                self._unuse(pod.uid)
                self._take(pod.node, pod.amounts)
                self._used[pod.uid] = pod.node, pod.amounts
            for one in tuple(self._reserved.get(pod.uid, ())):
                self._drop(one)
        else:
            self._waiting[pod.uid] = pod

    def forget(self, uid: str) -> None:
        """The pod has ended, or is gone."""
        self._waiting.pop(uid, None)
        self._unuse(uid)
        for one in tuple(self._reserved.get(uid, ())):
            self._drop(one)

    def keep_pods(self, uids: set[str]) -> None:
        """A list has these alone. What is reserved stays: its pod may be younger than the list."""
        for uid in self._used.keys() - uids:
            self._unuse(uid)
        for uid in self._waiting.keys() - uids:
            del self._waiting[uid]

    def hold(self, node: str, holder: str, amounts: Amounts) -> None:
        """All that this holder holds there from now on; (): nothing."""
        held = (self._nodes.get(node) or self._nodes.setdefault(node, _Node())).held
        self._give(node, held.pop(holder, ()))
        if amounts:
            self._take(node, amounts)
            self._nodes[node].held[holder] = amounts

    # --- requests -----------------------------------------------------------------------------------------------------

    def pod(self, uid: str) -> Pod | None:
        """One that the watch has shown to wait."""
        return self._waiting.get(uid)

    def is_bound(self, uid: str) -> bool:
        return uid in self._used

    def free(self, node: str) -> dict[str, int] | None:
        """None: it is not known."""
        found = self._nodes.get(node)
        return None if found is None or found.allocatable is None else found.free

    def allocatable(self, node: str) -> Mapping[str, int]:
        """{}: it is not known."""
        found = self._nodes.get(node)
        return {} if found is None or found.allocatable is None else found.allocatable

    def taken_beside(self, node: str, holder: str) -> Mapping[str, int]:
        """By all but this holder."""
        found = self._nodes.get(node)
        if found is None:
            return {}
        held = dict(found.held.get(holder, ()))
        return {name: amount - held.get(name, 0) for name, amount in found.taken.items()}

    def nodes(self) -> Iterator[str]:
        """Those that are known."""
        return (name for name, node in self._nodes.items() if node.allocatable is not None)

    def bind(self, wish: Wish, now_s: float) -> Verdict:
        """May this pod be bound there? If so, its room is taken from now on."""
        pod, name = wish.pod, wish.node
        if pod.uid in self._used or not pod.amounts:
            return Verdict()  # the API server refuses the one, and the other takes nothing
        node = self._nodes.get(name)
        displaced = [] if node is None else self._displaced(node, pod)
        if displaced is None:
            return self._refusal(name, pod)
        for one in displaced:
            self._drop(one)
        for one in tuple(self._reserved.get(pod.uid, ())):
            if not one.bind or one.node == name:
                self._drop(one)
        if self._count >= MOST_RESERVED or len(self._reserved.get(pod.uid, ())) >= MOST_BINDS:
            return Verdict()
        self._add(Reservation(pod, name, now_s + BIND_S, next(self._numbers), bind=True))
        return Verdict()

    def reserve(self, wishes: Sequence[Wish], now_s: float, *, all_or_nothing: bool = False) -> list[Verdict]:
        """A verdict for each. `all_or_nothing`: if one is refused, nothing is reserved, and nothing displaced."""
        added: list[Reservation] = []
        dropped: list[Reservation] = []
        verdicts = [self._reserve(wish, now_s, added, dropped) for wish in wishes]
        if all_or_nothing and not all(one.allowed for one in verdicts):
            for one in reversed(added):
                if one in self._reserved.get(one.pod.uid, ()):
                    self._drop(one)
            for one in dropped:
                if one not in added:
                    self._add(one)
            nothing = Verdict("another of the batch has no room")
            verdicts = [nothing if one.allowed else one for one in verdicts]
        return verdicts

    def could(self, pod: Pod, node: str) -> Verdict:
        """Whether it would be let through now; nothing is taken."""
        found = self._nodes.get(node)
        if pod.uid in self._used or found is None or self._displaced(found, pod) is not None:
            return Verdict()
        return self._refusal(node, pod)

    def release(self, uid: str) -> bool:
        """What was reserved for it is free; but what was bound, or let through, is not. Whether there was anything."""
        found = [one for one in self._reserved.get(uid, ()) if not one.bind]
        for one in found:
            self._drop(one)
        return bool(found)

    def release_all(self) -> None:
        """Another has decided since: what was reserved before is void, and what is bound the watch shows."""
        for one in [one for several in self._reserved.values() for one in several]:
            self._drop(one)

    # --- reservations whose time is over ------------------------------------------------------------------------------

    def due(self, now_s: float) -> list[Reservation]:
        """Those whose pod is to be read, for `read`."""
        return [one for several in self._reserved.values() for one in several if one.until_s <= now_s]

    def read(self, reservation: Reservation, pod: Pod | None, now_s: float) -> None:
        """The pod was read after its time was over. `None`: it is not there, or has another uid."""
        if reservation not in self._reserved.get(reservation.pod.uid, ()):
            return  # the watch was faster
        if pod is None or pod.ended or pod.node != reservation.node:
            self._drop(reservation)
        else:
            reservation.bind = reservation.late = True
            reservation.until_s = now_s + BIND_S

    @property
    def late(self) -> bool:
        """Whether a bind has been stored for long, and the watch does not show it: what it shows is of old."""
        return any(one.late for several in self._reserved.values() for one in several)

    @property
    def reservations(self) -> int:
        return self._count

    # ------------------------------------------------------------------------------------------------------------------

    def _reserve(self, wish: Wish, now_s: float, added: list[Reservation], dropped: list[Reservation]) -> Verdict:
        pod, name = wish.pod, wish.node
        node = self._nodes.get(name)
        if node is None or node.allocatable is None:
            return Verdict(f"no node {name} is known")
        if (used := self._used.get(pod.uid)) is not None:
            return Verdict(f"the pod is bound to {used[0]}")
        mine = self._reserved.get(pod.uid, ())
        if any(one.bind and one.node == name for one in mine):
            return Verdict(free=node.free)  # it has its room already
        if self._count >= MOST_RESERVED:
            return Verdict(f"there are {MOST_RESERVED} reservations", node.free)
        displaced = self._displaced(node, pod)
        if displaced is None:
            return self._refusal(name, pod)
        for one in (*displaced, *(one for one in mine if not one.bind)):
            self._drop(one)
            dropped.append(one)
        new = Reservation(pod, name, now_s + RESERVE_S, next(self._numbers))
        self._add(new)
        added.append(new)
        return Verdict(free=node.free)

    def _displaced(self, node: _Node, pod: Pod) -> list[Reservation] | None:
        """Whose room it takes, none as a rule. None: there is no room for it. Its own counts as free."""
        if node.allocatable is None:
            return []
        own = node.reserved.get(pod.uid)
        short: dict[str, int] = {}
        for name, amount in pod.amounts:
            if (allocatable := node.allocatable.get(name, 0 if name in LENT else None)) is not None:
                missing = amount + node.taken.get(name, 0) - allocatable
                if own is not None:
                    missing -= dict(own.pod.amounts).get(name, 0)
                if amount and missing > 0:
                    short[name] = missing
        if not short:
            return []
        lower = [one for one in node.reserved.values() if not one.bind and one.pod.priority < pod.priority]
        taken = []
        for one in sorted(lower, key=lambda one: (one.pod.priority, -one.number)):
            if one is own or not any(name in short for name, _ in one.pod.amounts):
                continue
            taken.append(one)
            for name, amount in one.pod.amounts:
                if name in short:
                    short[name] -= amount
                    if short[name] <= 0:
                        del short[name]
            if not short:
                return taken
        return None

    def _refusal(self, name: str, pod: Pod) -> Verdict:
        node = self._nodes[name]
        free, allocatable = node.free, node.allocatable or {}
        has = [
            f"{max(free.get(one, 0), 0)} of {one} free (of {allocatable.get(one, 0)}), and the pod asks for {asked}"
            for one, asked in pod.amounts
            if one in allocatable or one in LENT
        ]
        return Verdict(f"node {name} has {', '.join(has)}", free)

    def _add(self, reservation: Reservation) -> None:
        self._take(reservation.node, reservation.pod.amounts)
        self._nodes[reservation.node].reserved[reservation.pod.uid] = reservation
        self._reserved.setdefault(reservation.pod.uid, []).append(reservation)
        self._count += 1

    def _drop(self, reservation: Reservation) -> None:
        uid = reservation.pod.uid
        several = self._reserved[uid]
        several.remove(reservation)
        if not several:
            del self._reserved[uid]
        del self._nodes[reservation.node].reserved[uid]
        self._count -= 1
        self._give(reservation.node, reservation.pod.amounts)

    def _unuse(self, uid: str) -> None:
        if (before := self._used.pop(uid, None)) is not None:
            self._give(*before)

    def _take(self, name: str, amounts: Amounts) -> None:
        node = self._nodes.get(name) or self._nodes.setdefault(name, _Node())
        node.take(amounts)
        self.changed.add(name)

    def _give(self, name: str, amounts: Amounts) -> None:
        self._nodes[name].take(amounts, -1)
        self.changed.add(name)
        self._tidy(name)

    def _tidy(self, name: str) -> None:
        """One that is not there, and of which nothing is taken, is nothing."""
        node = self._nodes[name]
        if node.allocatable is None and not (node.taken or node.reserved or node.held):
            del self._nodes[name]


def total(several: Iterable[Amounts]) -> Amounts:
    """The sum, in the order of the names."""
    sums: dict[str, int] = {}
    for amounts in several:
        for name, amount in amounts:
            sums[name] = sums.get(name, 0) + amount
    return tuple(sorted(sums.items()))
