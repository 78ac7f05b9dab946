"""Two replicas and a Lease, in every order of their steps: never two of them may act.

The model has the law's own functions, and time in whole units. Between two units anything may happen, in any order and
any number of times, or nothing: so a replica that is stopped, suspended or slow, a request that lies there, one that is
done after its sender has given it up, and an answer that comes late or never, are all among the orders. All states that
can be reached are looked at, without an end in time: times are kept as ages, up to where more makes no difference.
"""

import pytest
from msgspec import Struct
from msgspec.structs import replace

from criproxy_cluster.controller import lease_law
from criproxy_cluster.controller.lease_law import (
    Ask,
    Known,
    Lease,
    asks,
    begun,
    given_up,
    leads,
    not_written,
    read,
    wrote,
)

NOW, OLD = "now", "old"
"""Versions: the Lease's, any before it."""


class Request(Struct, frozen=True, gc=False):
    """`names` is the version that a write names. `answer` None: it is under way; "": it was refused."""

    kind: Ask
    sent_s: float
    names: str = OLD
    holder: str = ""
    answer: Lease | str | None = None


class Replica(Struct, frozen=True, gc=False):
    """`late`: a write of which it waits no more may still be done, and names the Lease's version."""

    known: Known = Known()
    request: Request | None = None
    late: str | None = None


class World(Struct, frozen=True, gc=False):
    """Now is 0."""

    lease: Lease
    replicas: tuple[Replica, Replica]


NAMES = ("a", "b")
OTHER = {"a": "b", "b": "a", "": ""}


def aged(version):
    return OLD if version == NOW else version


def with_new_version(world, holder):
    """Whatever anybody knows or asks is of a version before."""

    def lease(found):
        return replace(found, version=OLD) if isinstance(found, Lease) else found

    def replica(one):
        request = one.request and replace(one.request, names=OLD, answer=lease(one.request.answer))
        return Replica(replace(one.known, lease=lease(one.known.lease)), request, None)

    return World(Lease(holder, NOW, lease_law.DURATION_S), tuple(replica(one) for one in world.replicas))


def put(world, number, replica):
    return replace(world, replicas=tuple(replica if one == number else old for one, old in enumerate(world.replicas)))


def later(world):
    """One unit later."""

    def replica(one):
        known = one.known
        since_s = max(known.since_s - 1.0, -lease_law.DURATION_S) if known.lease else 0.0
        known = replace(known, since_s=since_s, until_s=max(known.until_s - 1.0, 0.0))
        request = one.request and replace(one.request, sent_s=max(one.request.sent_s - 1.0, -lease_law.RENEW_WITHIN_S))
        return Replica(known, request, one.late)

    return replace(world, replicas=tuple(map(replica, world.replicas)))


def after(world, number):
    """The worlds after one step of a replica, of its request, or of one that it has given up."""
    one = world.replicas[number]
    if one.late is not None:
        yield with_new_version(world, one.late)
    steps = begins if one.request is None else goes_on
    yield from steps(world, number, one)


def begins(world, number, one):
    me = NAMES[number]
    yield put(world, number, Replica(late=one.late))  # it dies, and begins anew under its name
    yield put(world, number, replace(one, known=given_up(one.known)))
    for known in {one.known, begun(one.known, me)}:
        kind = asks(known, me, 0.0)
        if kind is Ask.READ:
            yield put(world, number, Replica(known, Request(kind, 0.0), one.late))
        elif kind is Ask.WRITE:
            for holder in (me, ""):  # to give it back it is written, too, once nothing more may be written
                law = not_written(known if holder else given_up(known))
                yield put(world, number, Replica(law, Request(kind, 0.0, known.lease.version, holder), one.late))


def goes_on(world, number, one):
    me, request = NAMES[number], one.request
    writes = request.kind is Ask.WRITE
    without = not_written(one.known) if writes else one.known
    late = request.holder if request.answer is None and request.names == NOW else one.late
    yield put(world, number, Replica(without, None, late))  # its limit, or its end
    yield put(world, number, Replica(Known(), None, late))
    if request.answer is not None:
        known = without
        if not writes:
            known = read(one.known, request.answer, me, 0.0)
        elif request.answer and request.holder == me:
            known = wrote(request.answer.version, me, request.sent_s, 0.0)
        yield put(world, number, Replica(known, None, one.late))
    elif writes and request.names == NOW:
        changed = with_new_version(world, request.holder)
        answered = replace(changed.replicas[number].request, answer=changed.lease)
        yield put(changed, number, replace(changed.replicas[number], request=answered))
    else:
        yield put(world, number, replace(one, request=replace(request, answer="" if writes else world.lease)))


def swapped(world):
    """The same with the other's name for each."""

    def lease(found):
        return replace(found, holder=OTHER[found.holder]) if isinstance(found, Lease) else found

    def replica(one):
        request = one.request and replace(
            one.request, holder=OTHER[one.request.holder], answer=lease(one.request.answer)
        )
        late = one.late if one.late is None else OTHER[one.late]
        return Replica(replace(one.known, lease=lease(one.known.lease)), request, late)

    first, second = world.replicas
    return World(lease(world.lease), (replica(second), replica(first)))


def worlds():
    """All that can be reached, up to the first in which both lead; of two that are each other's `swapped` one."""
    first = World(Lease("", NOW, lease_law.DURATION_S), (Replica(), Replica()))
    seen, coming = {first}, [first]
    while coming:
        world = coming.pop()
        yield world
        if both_lead(world):
            return
        for next_one in (later(world), *after(world, 0), *after(world, 1)):
            if next_one not in seen:
                seen |= {next_one, swapped(next_one)}
                coming.append(next_one)


def both_lead(world):
    return all(leads(one.known, 0.0) for one in world.replicas)


@pytest.fixture
def units(monkeypatch):
    """So short that all can be looked at."""

    def use(duration_s, renew_within_s):
        monkeypatch.setattr(lease_law, "DURATION_S", duration_s)
        monkeypatch.setattr(lease_law, "RENEW_WITHIN_S", renew_within_s)

    return use


@pytest.mark.parametrize("times", [(2.0, 1.0), pytest.param((3.0, 2.0), marks=pytest.mark.slow)], ids=str)
def test_never_do_two_lead(units, times):
    units(*times)
    count, led = 0, set()
    for world in worlds():
        assert not both_lead(world), world
        count += 1
        led |= {number for number in (0, 1) if leads(world.replicas[number].known, 0.0)}
    assert led == {0, 1}
    print(f"{count} worlds")


def holder_counts_from_the_answer(version, me, _sent_s, now_s):
    return lease_law.wrote(version, me, now_s, now_s)


def others_count_from_before(known, lease, me, now_s):
    found = lease_law.read(known, lease, me, now_s)
    return replace(found, since_s=now_s - 2.0) if found.since_s == now_s else found


def unanswered_is_taken_for_written(known):
    return replace(known, until_s=lease_law.RENEW_WITHIN_S)


@pytest.mark.parametrize(
    ("times", "function", "other"),
    [
        pytest.param((2.0, 3.0), None, None, id="renewed within longer than it holds"),
        pytest.param((3.0, 2.0), "wrote", holder_counts_from_the_answer, id="the holder counts from the answer"),
        pytest.param((3.0, 2.0), "read", others_count_from_before, id="the others count from before"),
        pytest.param((3.0, 2.0), "not_written", unanswered_is_taken_for_written, id="no answer is taken for one"),
    ],
)
def test_the_model_finds_what_is_wrong(units, monkeypatch, times, function, other):
    units(*times)
    if function:
        monkeypatch.setitem(globals(), function, other)
    assert any(both_lead(world) for world in worlds())


# --- single steps -----------------------------------------------------------------------------------------------------


KNOWN = {
    "nothing": (Known(), 0.0, Ask.READ),
    "nobody's": (Known(Lease("", "1"), 0.0, current=True), 0.0, Ask.WRITE),
    "mine": (Known(Lease("me", "1"), 0.0, current=True), 100.0, Ask.WRITE),
    "mine, a write was not answered": (Known(Lease("me", "1"), 0.0, current=False), 1.0, Ask.READ),
    "another's": (Known(Lease("you", "1"), 0.0, current=True), 14.9, Ask.WAIT),
    "a silent one's": (Known(Lease("you", "1"), 0.0, current=True), 15.0, Ask.WRITE),
    "one's that says it holds for longer": (Known(Lease("you", "1", 30.0), 0.0, current=True), 29.0, Ask.WAIT),
}


@pytest.mark.parametrize(("known", "now_s", "wanted"), KNOWN.values(), ids=KNOWN)
def test_the_lease_is_taken_from_who_is_silent_only(known, now_s, wanted):
    assert asks(known, "me", now_s) is wanted


def test_a_turn_begins_with_a_look_unless_the_lease_is_ours():
    mine, another = (Known(Lease(name, "1"), 0.0, current=True) for name in ("me", "you"))
    assert asks(begun(mine, "me"), "me", 1.0) is Ask.WRITE
    assert asks(begun(another, "me"), "me", 1.0) is Ask.READ


def test_silence_is_counted_from_after_the_answer_that_showed_the_last_change():
    first = read(Known(), Lease("you", "1"), "me", 100.0)
    assert read(first, Lease("you", "1"), "me", 110.0).since_s == 100.0
    assert read(first, Lease("you", "2"), "me", 110.0).since_s == 110.0


def test_a_holder_that_reads_another_s_name_leads_no_more():
    holds = wrote("1", "me", 0.0, 1.0)
    assert leads(read(holds, Lease("me", "2"), "me", 2.0), 2.0)
    assert not leads(read(holds, Lease("you", "2"), "me", 2.0), 2.0)


@pytest.mark.parametrize("answered_s", [0.0, 4.0])
def test_a_holder_counts_from_before_its_write_was_sent(answered_s):
    sent_s = 3.0
    holds = wrote("1", "me", sent_s, sent_s + answered_s)
    assert leads(holds, sent_s + lease_law.RENEW_WITHIN_S - 0.1)
    assert not leads(holds, sent_s + lease_law.RENEW_WITHIN_S)
    assert not leads(given_up(holds), sent_s)
    assert leads(not_written(holds), sent_s), "what was written before holds on"


def test_the_times_leave_a_holder_one_slow_request_and_the_others_a_gap():
    law = lease_law
    assert law.REQUEST_S + law.RETRY_S + law.REQUEST_S <= law.RENEW_WITHIN_S < law.DURATION_S
