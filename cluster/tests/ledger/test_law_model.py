"""Two schedulers, two nodes, a ledger, in every order of steps: never is more let through than fits, nothing leaks.

The model has the law's own functions. A bind that was let through is stored at any later moment, or never; the watch
shows what was stored at any later moment, in order; a read shows what is stored when it is sent, and is taken in at any
later moment (there is one read at a time). Whoever stops stops for good, so a crash of a scheduler between any two
steps is among the orders. The ledger's own crash is a step: the next one knows what is stored, and lets all through
unchecked until what the one before let through is stored or never will be, and shown.

Only two things are assumed of time: no bind is stored after the time of its reservation is over, nor after a new ledger
has begun to decide.
"""

import pickle
from collections import deque

import pytest
from msgspec.structs import replace

from criproxy_cluster.ledger import law
from criproxy_cluster.ledger.law import Ledger, Pod, Wish

CPU = "kubernetes.io/batch-cpu"
NODES = ("m", "n")
ONE = ((CPU, 1),)
WAITS, GONE = "", "gone"


class World:
    """`binds`: how often each pod is bound, at most. `reserves`: the pods whose scheduler asks first, once."""

    def __init__(self, priorities, crashes, binds, reserves=("p", "q")):
        self.pods = {name: Pod(name, "default", name, ONE, priority) for name, priority in priorities.items()}
        self.stored = dict.fromkeys(self.pods, WAITS)
        self.events = []
        self.flight = []
        """(pod, node, whether the ledger that is there has let it through)"""
        self.reads = []
        self.unchecked: frozenset[str] = frozenset()
        self.abstains = False
        self.crashes = crashes
        self.reserves = {name: int(name in reserves) for name in self.pods}
        self.binds = dict(binds)
        self.begin()

    def begin(self):
        self.ledger = Ledger()
        for name in NODES:
            self.ledger.set_node(name, {CPU: 1})
        for name in self.pods:
            self.show(name, self.stored[name])

    def show(self, name, where):
        if where == GONE:
            self.ledger.forget(name)
        else:
            self.ledger.see(replace(self.pods[name], node=where))

    def key(self):
        ledger = self.ledger
        reserved = sorted(
            (one.pod.uid, one.node, one.bind, one.late) for several in ledger._reserved.values() for one in several
        )
        reads = sorted((one.pod.uid, one.node, where, ledger_has(ledger, one)) for one, where in self.reads)
        order = [one.pod.uid for one in sorted(all_reserved(ledger), key=lambda one: one.number)]
        used = sorted((uid, where) for uid, (where, _) in ledger._used.items())
        return repr((
            self.stored, self.events, sorted(self.flight), self.unchecked, self.abstains, self.crashes, self.reserves,
            self.binds, reserved, order, reads, used, sorted(ledger._waiting),
        ))  # fmt: skip

    # --- what may happen next -----------------------------------------------------------------------------------------

    def steps(self):
        yield from self.steps_of_schedulers()
        for one in sorted(set(self.flight)):
            yield "store", one
            yield "fail", one
        if self.events:
            yield ("hear",)
        for one in all_reserved(self.ledger):
            if not self.reads and self.is_over(one):
                yield "ask", one.pod.uid, one.node
        for number in range(len(self.reads)):
            yield "read", number
        if self.crashes:
            yield ("crash",)
        if self.abstains and not self.events and all(checked for _, _, checked in self.flight):
            yield ("decide",)

    def steps_of_schedulers(self):
        for name, where in self.stored.items():
            if where == WAITS:
                for node in NODES:
                    if self.reserves[name] and not self.abstains:
                        yield "reserve", name, node
                    if self.binds[name]:
                        yield "bind", name, node
            elif where != GONE:
                yield "end", name

    def is_over(self, one):
        return not (one.bind and any((name, node) == (one.pod.uid, one.node) for name, node, _ in self.flight))

    def do(self, what, *told):
        getattr(self, f"do_{what}")(*told)

    def do_reserve(self, name, node):
        self.reserves[name] -= 1
        self.ledger.reserve([Wish(self.pods[name], node)], 0.0)

    def do_bind(self, name, node):
        self.binds[name] -= 1
        if self.abstains:
            self.unchecked |= {name}
            self.flight.append((name, node, False))
        elif self.ledger.bind(Wish(self.pods[name], node), 0.0).allowed:
            self.flight.append((name, node, True))

    def do_store(self, one):
        self.flight.remove(one)
        name, node, _ = one
        if self.stored[name] == WAITS:
            self.stored[name] = node
            self.events.append((name, node))

    def do_fail(self, one):
        self.flight.remove(one)

    def do_end(self, name):
        self.stored[name] = GONE
        self.events.append((name, GONE))

    def do_hear(self):
        self.show(*self.events.pop(0))

    def do_ask(self, name, node):
        (one,) = [one for one in all_reserved(self.ledger) if (one.pod.uid, one.node) == (name, node)]
        self.reads.append((one, self.stored[name]))

    def do_read(self, number):
        one, where = self.reads.pop(number)
        found = None if where == GONE else replace(self.pods[one.pod.uid], node=where)
        self.ledger.read(one, found, 0.0)

    def do_crash(self):
        self.crashes -= 1
        self.flight = [(name, node, False) for name, node, _ in self.flight]
        self.events, self.reads, self.abstains = [], [], True
        self.begin()

    def do_decide(self):
        self.abstains = False

    # --- what must hold -----------------------------------------------------------------------------------------------

    def too_much(self):
        """A node with more than fits, of that which a ledger has let through."""
        for node in NODES:
            there = [name for name, where in self.stored.items() if where == node]
            coming = {name for name, where, _ in self.flight if where == node and self.stored[name] == WAITS}
            if len(there) + len(coming) > 1 and not self.unchecked & {*there, *coming}:
                return f"{node}: {there} and {sorted(coming)}"
        return ""

    def leak(self):
        """What is wrong once all has come to rest, whoever has crashed; and it does."""
        while self.flight:
            self.do_store(self.flight[0])
        while self.events:
            self.do_hear()
        while self.reads:
            self.do_read(0)
        for one in all_reserved(self.ledger):
            self.do_ask(one.pod.uid, one.node)
            self.do_read(0)
        if found := all_reserved(self.ledger):
            return f"{found} stay reserved"
        for node in NODES:
            there = sum(where == node for where in self.stored.values())
            if self.ledger.free(node) != {CPU: 1 - there}:
                return f"{node}: {self.ledger.free(node)} free with {there} pods there"
        return ""


def saved(world):
    """For copies, in which what is the same object in it is so, too."""
    return pickle.dumps(world, pickle.HIGHEST_PROTOCOL)


def all_reserved(ledger):
    return [one for several in ledger._reserved.values() for one in several]


def ledger_has(ledger, one):
    return any(one is other for other in all_reserved(ledger))


def faults(*arguments):
    """Of every state that can be reached from this `World`; ends with how many there are."""
    first = World(*arguments)
    seen, coming = {first.key()}, deque([saved(first)])
    while coming:
        world = coming.popleft()
        for step in pickle.loads(world).steps():
            after = pickle.loads(world)
            after.do(*step)
            if (key := after.key()) in seen:
                continue
            seen.add(key)
            coming.append(saved(after))
            if fault := after.too_much() or after.leak():
                yield fault
    yield len(seen)


EQUAL = {"p": 0, "q": 0}
HIGHER = {"p": 0, "q": 9}


@pytest.mark.parametrize(
    ("priorities", "crashes", "binds", "reserves"),
    [
        pytest.param(EQUAL, 0, {"p": 1, "q": 1}, ("p",), id="one asks first"),
        pytest.param(EQUAL, 0, {"p": 1, "q": 1}, ("p", "q"), id="equal", marks=pytest.mark.slow),
        pytest.param(HIGHER, 0, {"p": 1, "q": 1}, ("p", "q"), id="one is higher", marks=pytest.mark.slow),
        pytest.param(EQUAL, 0, {"p": 2, "q": 1}, ("p", "q"), id="one is bound twice", marks=pytest.mark.slow),
        pytest.param(EQUAL, 1, {"p": 1, "q": 1}, ("p", "q"), id="the ledger crashes", marks=pytest.mark.slow),
    ],
)
def test_never_is_more_let_through_than_fits_and_nothing_leaks(priorities, crashes, binds, reserves):
    *found, states = faults(priorities, crashes, binds, reserves)
    assert not found
    print(f"{states} states")
    assert states > 1_000


# --- the model finds what is wrong ------------------------------------------------------------------------------------


def drops_what_was_let_through(self, reservation, pod, now_s):
    if reservation in self._reserved.get(reservation.pod.uid, ()):
        self._drop(reservation)


def keeps_what_is_not_bound(self, reservation, pod, now_s):
    return None


def takes_a_read_for_the_present(self, reservation, pod, now_s):
    if pod is not None and pod.node:
        self.see(pod)
    elif reservation in self._reserved.get(reservation.pod.uid, ()):
        self._drop(reservation)


def moves_what_was_let_through(self, wish, now_s):
    for one in tuple(self._reserved.get(wish.pod.uid, ())):
        self._drop(one)
    return BIND(self, wish, now_s)


def lets_all_through(self, wish, now_s):
    return law.Verdict()


def displaces_binds(self, node, pod):
    lower = [one for one in node.reserved.values() if one.pod.priority < pod.priority]
    return lower or DISPLACED(self, node, pod)


BIND, DISPLACED = Ledger.bind, Ledger._displaced
WRONG = [
    ("read", drops_what_was_let_through, EQUAL),
    ("read", keeps_what_is_not_bound, EQUAL),
    ("read", takes_a_read_for_the_present, EQUAL),
    ("bind", moves_what_was_let_through, EQUAL),
    ("bind", lets_all_through, EQUAL),
    ("_displaced", displaces_binds, HIGHER),
]


@pytest.mark.parametrize(("name", "wrong", "priorities"), WRONG, ids=lambda one: getattr(one, "__name__", ""))
def test_the_model_finds_what_is_wrong(monkeypatch, name, wrong, priorities):
    monkeypatch.setattr(Ledger, name, wrong)
    found = faults(priorities, 0, {"p": 2, "q": 1})
    assert isinstance(next(found), str)


def test_the_model_finds_a_ledger_that_decides_at_once_after_a_crash(monkeypatch):
    monkeypatch.setattr(World, "do_crash", decides_at_once)
    assert isinstance(next(faults(EQUAL, 1, {"p": 1, "q": 1})), str)


def decides_at_once(self):
    self.crashes -= 1
    self.events, self.reads = [], []
    self.begin()
