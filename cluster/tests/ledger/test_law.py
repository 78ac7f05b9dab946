"""What is let through, step by step; and a state machine: whatever happens, never is more let through than fits."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from criproxy_cluster.ledger.law import BIND_S, MOST_BINDS, RESERVE_S, Ledger, Pod, Wish

CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"


def pod(uid, cpu=1000, priority=0, **more):
    return Pod(uid, "default", f"pod-{uid}", ((CPU, cpu),), priority, **more)


@pytest.fixture
def ledger():
    made = Ledger()
    made.set_node("n", {CPU: 2000})
    return made


def bind(ledger, one, node="n", now_s=0.0):
    return ledger.bind(Wish(one, node), now_s)


def reserve(ledger, *pods, node="n", now_s=0.0, **more):
    return [one.allowed for one in ledger.reserve([Wish(one, node) for one in pods], now_s, **more)]


def free(ledger, node="n"):
    return ledger.free(node)[CPU]


def test_binds_are_let_through_as_long_as_there_is_room_and_the_refusal_says_what_is_free(ledger):
    assert bind(ledger, pod("a")).allowed
    assert bind(ledger, pod("b", 500)).allowed
    refused = bind(ledger, pod("c"))
    assert refused.why == f"node n has 500 of {CPU} free (of 2000), and the pod asks for 1000"
    assert refused.free == {CPU: 500}
    assert bind(ledger, pod("d", 500)).allowed


def test_what_the_watch_shows_counts_once_also_when_it_was_reserved(ledger):
    bind(ledger, pod("a"))
    ledger.see(pod("a", node="n"))
    ledger.see(pod("a", node="n"))
    assert (free(ledger), ledger.reservations) == (1000, 0)
    ledger.see(pod("a", node="n", ended=True))
    ledger.forget("a")
    assert free(ledger) == 2000


def test_a_bind_that_is_tried_again_takes_its_room_once(ledger):
    assert bind(ledger, pod("a", 2000)).allowed and bind(ledger, pod("a", 2000)).allowed
    assert free(ledger) == 0


def test_binds_of_one_pod_to_many_nodes_are_remembered_within_bounds(ledger):
    assert all(bind(ledger, pod("a"), f"x{index}").allowed for index in range(1000))
    assert ledger.reservations == MOST_BINDS
    assert bind(ledger, pod("a"), "x0").allowed and ledger.reservations == MOST_BINDS
    assert not bind(ledger, pod("b", 3000)).allowed


def test_a_bind_elsewhere_leaves_the_first_one_s_room_taken_until_the_watch_shows_which(ledger):
    ledger.set_node("m", {CPU: 1000})
    bind(ledger, pod("a"))
    bind(ledger, pod("a"), "m")
    assert (free(ledger), free(ledger, "m")) == (1000, 0)
    ledger.see(pod("a", node="m"))
    assert (free(ledger), free(ledger, "m")) == (2000, 0)


def test_what_was_merely_reserved_moves_with_the_next_request(ledger):
    ledger.set_node("m", {CPU: 1000})
    assert reserve(ledger, pod("a")) == [True]
    assert reserve(ledger, pod("a"), node="m") == [True]
    assert (free(ledger), free(ledger, "m")) == (2000, 0)
    assert bind(ledger, pod("a")).allowed
    assert (free(ledger), free(ledger, "m")) == (1000, 1000)


def test_a_higher_priority_displaces_the_lowest_that_is_not_bound_yet_and_no_more_than_it_needs(ledger):
    reserve(ledger, pod("low", priority=1), pod("lowest", priority=0))
    assert not bind(ledger, pod("same", priority=0)).allowed
    assert bind(ledger, pod("high", priority=5)).allowed
    assert bind(ledger, pod("low", priority=1)).allowed, "it has its room still"
    assert not bind(ledger, pod("lowest")).allowed


def test_what_was_let_through_is_never_displaced(ledger):
    bind(ledger, pod("a", 2000))
    assert not bind(ledger, pod("high", priority=5)).allowed
    assert reserve(ledger, pod("high", priority=5)) == [False]


def test_of_a_batch_that_is_all_or_nothing_nothing_is_left_when_one_is_refused(ledger):
    reserve(ledger, pod("low", priority=-1))
    wanted = [pod("a"), pod("b"), pod("c")]
    assert reserve(ledger, *wanted, all_or_nothing=True) == [False] * 3
    assert (free(ledger), ledger.reservations) == (1000, 1)
    assert reserve(ledger, *wanted) == [True, True, False]
    assert free(ledger) == 0


def test_a_batch_that_names_a_pod_twice_leaves_nothing_behind(ledger):
    ledger.set_node("m", {CPU: 1000})
    reserve(ledger, pod("a"))
    wishes = [Wish(pod("a"), "m"), Wish(pod("a"), "n"), Wish(pod("b", 9000), "n")]
    assert not any(one.allowed for one in ledger.reserve(wishes, 0.0, all_or_nothing=True))
    assert (free(ledger), free(ledger, "m"), ledger.reservations) == (1000, 1000, 1)


def test_a_release_frees_what_was_reserved_and_not_what_was_let_through(ledger):
    reserve(ledger, pod("a"))
    bind(ledger, pod("b"))
    assert ledger.release("a") and not ledger.release("a") and not ledger.release("b")
    assert free(ledger) == 1000


def test_a_reservation_ends_only_after_the_pod_was_read(ledger):
    reserve(ledger, pod("a"))
    bind(ledger, pod("b"))
    assert ledger.due(BIND_S - 0.1) == []
    (bound,) = ledger.due(BIND_S)
    ledger.read(bound, pod("b", node="n"), BIND_S)
    assert ledger.late and free(ledger) == 0
    (reserved,) = [one for one in ledger.due(RESERVE_S) if not one.bind]
    ledger.read(reserved, pod("a"), RESERVE_S)
    assert free(ledger) == 1000
    ledger.see(pod("b", node="n"))
    assert not ledger.late


READ = {"gone": None, "not bound": pod("a"), "ended": pod("a", node="n", ended=True), "elsewhere": pod("a", node="m")}


@pytest.mark.parametrize("found", READ.values(), ids=READ)
def test_what_is_read_to_be_elsewhere_or_nowhere_is_free(ledger, found):
    bind(ledger, pod("a"))
    ledger.read(*ledger.due(BIND_S), found, BIND_S)
    assert (free(ledger), ledger.reservations) == (2000, 0)


def test_a_read_that_comes_after_the_watch_has_shown_the_end_changes_nothing(ledger):
    bind(ledger, pod("a"))
    (due,) = ledger.due(BIND_S)
    ledger.forget("a")
    ledger.read(due, pod("a", node="n"), BIND_S)
    assert (free(ledger), ledger.reservations) == (2000, 0)


def test_a_list_ends_what_it_does_not_have_and_leaves_what_is_reserved(ledger):
    ledger.see(pod("a", node="n"))
    ledger.see(pod("w"))
    bind(ledger, pod("b"))
    ledger.keep_pods(set())
    assert free(ledger) == 1000 and ledger.pod("w") is None and not ledger.is_bound("a")


def test_a_node_that_lends_less_than_is_taken_takes_nobody_and_says_zero(ledger):
    bind(ledger, pod("a"))
    ledger.set_node("n", {CPU: 500})
    assert "has 0 of" in bind(ledger, pod("b", 100)).why
    assert free(ledger) == -500


def test_a_node_that_lends_none_of_it_takes_nobody_and_other_names_are_not_the_ledger_s(ledger):
    ledger.set_node("n", {})
    assert not bind(ledger, pod("a")).allowed
    gpu = Pod("g", "default", "g", (("nvidia.com/gpu", 8),))
    assert bind(ledger, gpu).allowed


def test_a_node_that_is_not_known_is_not_full_and_what_was_bound_there_counts_later(ledger):
    assert bind(ledger, pod("a"), "new").allowed
    assert reserve(ledger, pod("b"), node="new") == [False]
    ledger.set_node("new", {CPU: 1000})
    assert not bind(ledger, pod("c"), "new").allowed
    ledger.keep_nodes({"n"})
    assert ledger.free("new") is None and set(ledger.nodes()) == {"n"}
    ledger.forget("a")
    assert "new" not in ledger._nodes


def test_what_a_holder_holds_is_not_free(ledger):
    ledger.hold("n", "yarn", ((CPU, 1500),))
    assert not bind(ledger, pod("a")).allowed
    ledger.hold("n", "yarn", ((CPU, 1000),))
    assert free(ledger) == 1000
    ledger.hold("n", "yarn", ())
    assert free(ledger) == 2000


def test_a_holder_finds_what_is_there_and_what_all_others_have(ledger):
    assert ledger.allocatable("n") == {CPU: 2000} and ledger.taken_beside("n", "yarn") == {}
    ledger.hold("n", "yarn", ((CPU, 500),))
    bind(ledger, pod("a"))
    assert ledger.taken_beside("n", "yarn") == {CPU: 1000}
    assert ledger.allocatable("gone") == ledger.taken_beside("gone", "yarn") == {}


def test_changed_has_the_nodes_whose_room_has_changed(ledger):
    ledger.changed.clear()
    ledger.set_node("n", {CPU: 2000})
    bind(ledger, pod("a", 9000))
    assert ledger.changed == set()
    bind(ledger, pod("a"))
    assert ledger.changed == {"n"}


def test_another_term_begins_with_what_the_watch_shows(ledger):
    reserve(ledger, pod("a"))
    bind(ledger, pod("b"))
    ledger.see(pod("c", 500, node="n"))
    ledger.release_all()
    assert (free(ledger), ledger.reservations) == (1500, 0)


# --- whatever happens -------------------------------------------------------------------------------------------------

NODES = st.sampled_from(["m", "n", "o"])
UIDS = st.sampled_from("abcdefgh")
AMOUNTS = {CPU: 3, MEMORY: 2}


class Cluster(RuleBasedStateMachine):
    """What is stored, and a ledger that hears of it later. Nodes keep their size, so nothing may ever be too much."""

    def __init__(self):
        super().__init__()
        self.ledger, self.now_s = Ledger(), 0.0
        for name in ("m", "n", "o"):
            self.ledger.set_node(name, AMOUNTS)
        self.made, self.stored, self.events, self.flight = {}, {}, [], []

    def pod(self, uid, cpu, memory, priority):
        if uid not in self.made:
            self.made[uid] = Pod(uid, "default", uid, ((CPU, cpu), (MEMORY, memory)), priority)
            self.stored[uid] = ""
        return self.made[uid]

    @rule(uid=UIDS, node=NODES, cpu=st.integers(0, 3), memory=st.integers(0, 2), priority=st.integers(0, 2))
    def bind(self, uid, node, cpu, memory, priority):
        if self.ledger.bind(Wish(self.pod(uid, cpu, memory, priority), node), self.now_s).allowed:
            self.flight.append((uid, node, self.now_s))

    @rule(
        wishes=st.lists(st.tuples(UIDS, NODES, st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), max_size=4),
        whole=st.booleans(),
    )
    def reserve(self, wishes, whole):
        asked = [Wish(self.pod(uid, *more), node) for uid, node, *more in wishes]
        before = {name: self.ledger.free(name) for name in ("m", "n", "o")}
        verdicts = self.ledger.reserve(asked, self.now_s, all_or_nothing=whole)
        if whole and not all(one.allowed for one in verdicts):
            assert not any(one.allowed for one in verdicts)
            assert before == {name: self.ledger.free(name) for name in ("m", "n", "o")}

    @rule(uid=UIDS)
    def release(self, uid):
        self.ledger.release(uid)

    @precondition(lambda self: self.flight)
    @rule(data=st.data(), stored=st.booleans())
    def land(self, data, stored):
        uid, node, _ = self.flight.pop(data.draw(st.integers(0, len(self.flight) - 1)))
        if stored and self.stored[uid] == "":
            self.stored[uid] = node
            self.events.append((uid, node))

    @rule(uid=UIDS)
    def end(self, uid):
        if self.stored.get(uid):
            self.stored[uid] = "gone"
            self.events.append((uid, "gone"))

    @precondition(lambda self: self.events)
    @rule()
    def hear(self):
        uid, where = self.events.pop(0)
        if where == "gone":
            self.ledger.forget(uid)
        else:
            self.ledger.see(replace(self.made[uid], node=where))

    @rule(seconds=st.sampled_from([1.0, BIND_S, RESERVE_S]))
    def wait(self, seconds):
        self.now_s += seconds
        self.flight = [one for one in self.flight if one[2] + BIND_S > self.now_s]
        for one in self.ledger.due(self.now_s):
            where = self.stored[one.pod.uid]
            found = None if where == "gone" else replace(self.made[one.pod.uid], node=where)
            self.ledger.read(one, found, self.now_s)

    @invariant()
    def fits(self):
        for name in ("m", "n", "o"):
            there = {uid for uid, where in self.stored.items() if where == name}
            there |= {uid for uid, where, _ in self.flight if where == name and self.stored[uid] == ""}
            for resource, most in AMOUNTS.items():
                assert sum(dict(self.made[uid].amounts)[resource] for uid in there) <= most
            assert min(self.ledger.free(name).values()) >= 0

    def teardown(self):
        for uid, node, _ in self.flight:
            if self.stored[uid] == "":
                self.stored[uid] = node
                self.events.append((uid, node))
        self.flight = []
        while self.events:
            self.hear()
        self.wait(RESERVE_S)
        assert self.ledger.reservations == 0
        for name in ("m", "n", "o"):
            there = [self.made[uid] for uid, where in self.stored.items() if where == name]
            left = {one: most - sum(dict(pod.amounts)[one] for pod in there) for one, most in AMOUNTS.items()}
            assert self.ledger.free(name) == left


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=60, stateful_step_count=40)
