"""What owners have met with, as their pods show it, whoever leads."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from criproxy_cluster.overflow.resources import OwnedPodResource
from criproxy_cluster.owners.history import (
    FORGET_S,
    MOST_OWNERS,
    MOST_WAITS,
    SETTLED_S,
    Book,
    History,
    Outcomes,
    Written,
    chosen,
    decoded,
    encoded,
    raised,
)
from criproxy_cluster.owners.pods import OwnedPod, Owner, owned_pod
from criproxy_cluster.owners.rules import DAY_S, LEAST_WAIT_S, MOST_EVICTIONS, OwnersSpec, Past, Raise, Rule, Slo

NOW = 1_000_000.0
JOB = Owner("batch", "Job", "sort", "uid-job")
MOST_BYTES = 1 << 20
"""Of a ConfigMap's data. Source: Kubernetes, core/v1 MaxSecretSize."""

SLO = (Rule("p", OwnersSpec(slo=Slo(times=2.0))),)


def pod(number=0, created_s=NOW, owner=JOB, **fields):
    return OwnedPod(uid=f"{number:08x}-0000-1", name=f"p{number}", owner=owner, created_s=created_s, **fields)


def again(book, now_s, pods=()):
    """The book as another leader has it, who lists these pods."""
    other = Book(decoded(encoded(book.written(SLO, now_s, virtual=True))))
    for one in pods:
        other.see(one, now_s)
    other.listed({one.uid for one in pods}, now_s)
    return other


def test_an_eviction_counts_once_whoever_lists_the_pod():
    book, gone = Book(), pod(1, bound_s=NOW, evicted_s=NOW + 5, leaving=True)
    for _ in range(3):
        book.see(gone, NOW + 6)
    assert book.past(JOB, NOW + 6).evictions == 1
    book = again(book, NOW + 6, [gone])
    assert book.past(JOB, NOW + 6).evictions == 1
    book.forget(gone.uid, NOW + 7)
    assert again(book, NOW + 8).past(JOB, NOW + 8).evictions == 1
    assert book.past(JOB, NOW + 6 + DAY_S).evictions == 0


def test_an_eviction_of_a_node_whose_clock_is_ahead_counts_for_a_day():
    book = Book()
    book.see(pod(1, bound_s=NOW, evicted_s=NOW + 365 * DAY_S), NOW)
    assert book.past(JOB, NOW + 1).evictions == 1 and book.past(JOB, NOW + DAY_S).evictions == 0


def test_a_pod_whose_owner_is_another_one_now_waits_for_that():
    book, other = Book(), Owner("batch", "Pod", "p1", "uid-pod")
    book.see(pod(1), NOW)
    book.see(pod(1, owner=other), NOW + 10)
    assert book.past(JOB, NOW + 9999).waited_s < 60 and book.past(other, NOW + 100).waited_s == 100
    book.forget(pod(1).uid, NOW + 20)
    book.settle((), NOW + 20 + DAY_S)
    assert not book._mine and not book.waiting() and len(book) == 0


def test_evictions_that_are_remembered_are_the_newest():
    book = Book()
    for number in range(MOST_EVICTIONS + 3):
        book.see(pod(number, bound_s=NOW, evicted_s=NOW + number), NOW + number)
    assert book.past(JOB, NOW + 20).evictions == MOST_EVICTIONS
    assert book.past(JOB, NOW + DAY_S + 3.5).evictions == MOST_EVICTIONS - 1


def test_the_longest_wait_counts_while_it_lasts_and_for_a_day():
    book = Book()
    book.see(pod(1), NOW)
    book.see(pod(2, NOW + 50), NOW + 50)
    assert book.past(JOB, NOW + 100).waited_s == 100
    book.see(pod(1, bound_s=NOW + 110), NOW + 111)
    assert book.past(JOB, NOW + 120).waited_s == 110
    book.see(pod(2, NOW + 50, bound_s=NOW + 60), NOW + 121)
    assert book.past(JOB, NOW + 121).waited_s == 110
    assert again(book, NOW + 121, []).past(JOB, NOW + 121).waited_s == 110
    assert book.past(JOB, NOW + 112 + DAY_S).waited_s == 0


@pytest.mark.parametrize("leader_changes", [False, True])
def test_a_shorter_wait_counts_once_the_longer_one_before_it_is_of_old(leader_changes):
    book = Book()
    for number, ended_s, waited_s in ((1, NOW, 3600), (2, NOW + 20 * 3600, 3000), (3, NOW + 21 * 3600, 100)):
        book.see(pod(number, ended_s - waited_s, bound_s=ended_s), ended_s)
    if leader_changes:
        book = again(book, NOW + 22 * 3600)
    assert book.past(JOB, NOW + DAY_S - 1).waited_s == 3600
    assert book.past(JOB, NOW + 25.1 * 3600).waited_s == 3000
    assert book.past(JOB, NOW + 44.5 * 3600).waited_s == 100
    assert book.past(JOB, NOW + 45 * 3600).waited_s == 0


def test_waits_that_are_remembered_are_the_longest_and_the_last():
    book = Book()
    for number in range(MOST_WAITS + 3):
        ended_s = NOW + number
        book.see(pod(number, ended_s - 1000 + number, bound_s=ended_s), ended_s)
    assert book.past(JOB, NOW + 20).waited_s == 1000
    assert book.past(JOB, NOW + DAY_S + MOST_WAITS - 2).waited_s == 990, "the last is remembered"


def test_a_wait_counts_from_its_end_whoever_leads():
    book, longest = Book(), pod(1, NOW - 3600, bound_s=NOW)
    book.see(longest, NOW)
    waited = pod(2, NOW + 7000, bound_s=NOW + 10_000)
    book.see(waited, NOW + 10_000)
    for later_s in (20 * 3600, DAY_S + 1):
        book = again(book, NOW + later_s, [waited, longest])
    assert book.past(JOB, NOW + DAY_S + 1).waited_s == 3000
    assert again(book, NOW + 10_000 + DAY_S, [longest, waited]).past(JOB, NOW + 10_000 + DAY_S) == Past()


def test_a_pod_that_was_placed_at_once_has_not_waited():
    book = Book()
    book.see(pod(1, bound_s=NOW + LEAST_WAIT_S - 1), NOW + 60)
    assert book.past(JOB, NOW + 60) == Past() and book.written((), NOW + 60, virtual=False).histories == []


def test_a_pod_that_goes_while_it_waits_has_waited():
    book = Book()
    book.see(pod(1), NOW)
    book.forget(pod(1).uid, NOW + 40)
    assert book.past(JOB, NOW + 100).waited_s == 40


@pytest.mark.parametrize(
    ("ended_s", "outcome"), [(NOW + 120, Outcomes(kept=1)), (NOW + 121, Outcomes(missed=1, late=["batch/Job/sort"]))]
)
@pytest.mark.parametrize("leader_changes", [False, True])
def test_work_that_has_ended_is_compared_with_what_it_takes_alone(ended_s, outcome, leader_changes):
    book = Book()
    first = pod(1, bound_s=NOW + 3, alone_s=60.0)
    book.see(first, NOW + 4)
    if leader_changes:
        book = again(book, NOW + 5, [first])
    book.see(pod(1, bound_s=NOW + 3, evicted_s=NOW + 9, alone_s=60.0, phase="Failed"), NOW + 9)
    second = pod(2, NOW + 12, bound_s=NOW + 13, alone_s=60.0)
    book.settle(SLO, NOW + 12)
    book.see(second, NOW + 14)
    done = pod(2, NOW + 12, bound_s=NOW + 13, alone_s=60.0, phase="Succeeded", ended_s=ended_s)
    book.see(done, ended_s + 1)
    if leader_changes:
        book = again(book, ended_s + 2, [done])
    book.settle(SLO, ended_s + SETTLED_S)
    assert book.outcomes("p") == Outcomes()
    book.settle(SLO, ended_s + SETTLED_S + 2)
    assert book.outcomes("p") == outcome
    book.settle(SLO, ended_s + 2 * SETTLED_S)
    book = again(book, ended_s + 70, [done])
    book.see(done, ended_s + 71)
    book.settle(SLO, ended_s + 80 + SETTLED_S)
    assert book.outcomes("p") == outcome, "it counts once"


def test_work_that_ends_while_nobody_leads_is_judged_by_its_own_times():
    book = Book()
    book.see(pod(1, bound_s=NOW, alone_s=60.0), NOW + 1)
    done = pod(1, bound_s=NOW, alone_s=60.0, phase="Succeeded", ended_s=NOW + 50)
    book = again(book, NOW + 1000, [done])
    book.settle(SLO, NOW + 1001 + SETTLED_S)
    assert book.outcomes("p").kept == 1


def test_work_of_more_than_a_day_that_is_deleted_as_it_ends_is_judged():
    book = Book()
    book.see(pod(1, bound_s=NOW + 1, alone_s=3 * DAY_S), NOW)
    ended_s = NOW + 2 * DAY_S
    book.see(pod(1, bound_s=NOW + 1, alone_s=3 * DAY_S, phase="Succeeded", ended_s=ended_s), ended_s)
    book.forget(pod(1).uid, ended_s)
    for seconds in range(int(SETTLED_S) + int(FORGET_S)):
        book.settle(SLO, ended_s + seconds)
    assert book.outcomes("p").kept == 1 and len(book) == 0


def test_work_of_more_than_a_day_keeps_its_beginning_when_the_leader_changes():
    book, second = Book(), pod(2, NOW + 3600, bound_s=NOW + 3601, alone_s=DAY_S)
    book.see(pod(1, bound_s=NOW + 1, alone_s=DAY_S), NOW + 1)
    book.see(second, NOW + 3601)
    book.forget(pod(1).uid, NOW + 3602)
    book = again(book, NOW + 3600 + 25 * 3600, [second])
    ended_s = NOW + 2 * DAY_S + 1
    book.see(replace(second, phase="Succeeded", ended_s=ended_s), ended_s)
    book.settle(SLO, ended_s + SETTLED_S)
    assert book.outcomes("p").missed == 1


def test_work_whose_pods_went_while_nobody_led_is_forgotten():
    book = Book()
    book.see(pod(1, bound_s=NOW + 1, alone_s=DAY_S), NOW + 1)
    book = again(book, NOW + 3 * DAY_S)
    book.settle(SLO, NOW + 3 * DAY_S)
    assert len(book) == 0


def test_work_without_its_time_alone_is_not_judged():
    book = Book()
    book.see(pod(1, bound_s=NOW), NOW)
    book.see(pod(1, bound_s=NOW, phase="Succeeded", ended_s=NOW + 9999), NOW + 9999)
    book.settle(SLO, NOW + 9999 + 2 * SETTLED_S)
    assert book.outcomes("p") == Outcomes()


def test_what_is_of_old_is_forgotten():
    book = Book()
    book.see(pod(1, bound_s=NOW, evicted_s=NOW), NOW)
    book.forget(pod(1).uid, NOW + 1)
    book.settle((), NOW + DAY_S - 1)
    assert len(book) == 1
    book.settle((), NOW + DAY_S + FORGET_S)
    assert len(book) == 0


def test_a_namespace_with_many_owners_takes_no_other_s_place():
    many = [Owner("hostile", "Job", f"j{number}", f"u{number}") for number in range(3 * MOST_OWNERS)]
    histories = {one: History(one, waited_s=500, waited_at_s=int(NOW)) for one in many}
    histories[JOB] = History(JOB, evicted={"a": int(NOW) - 5000})
    found = chosen(histories, NOW)
    assert len(found) == MOST_OWNERS and JOB in {one.owner for one in found}


def test_the_book_fits_into_a_config_map_with_the_longest_names():
    long = [Owner("n" * 63, "K" * 63, "o" * 253, f"{number:036}") for number in range(2 * MOST_OWNERS)]
    evicted = {f"{number:013}": int(NOW) for number in range(MOST_EVICTIONS)}
    later = [(86400 - number, int(NOW) + number) for number in range(1, MOST_WAITS)]
    histories = [History(one, evicted, 86400, int(NOW), later, int(NOW), int(NOW), 86400) for one in long]
    book = Book(Written(histories=histories))
    assert len(encoded(book.written((), NOW, virtual=True))) < 400_000


RAISE = (Rule("p", OwnersSpec(raises=Raise(wait_seconds=60, pods=2))),)


def test_the_oldest_are_raised_within_the_bound_of_their_namespace():
    other = Owner("other", "Job", "j", "u")
    pods = [pod(number, NOW + number) for number in range(4)] + [pod(9, NOW + 9, other)]
    assert raised(pods, RAISE, {}, NOW + 59) == []
    assert raised(pods, RAISE, {}, NOW + 100) == [pods[0], pods[1], pods[4]]
    assert raised(pods, RAISE, {"batch": 1}, NOW + 100) == [pods[0], pods[4]]
    assert raised(pods, (), {}, NOW + 100) == []


@pytest.mark.parametrize("field", ["raised", "tiered", "overflowed"])
def test_who_has_a_tier_or_goes_elsewhere_is_not_raised(field):
    assert raised([pod(1, **{field: True})], RAISE, {}, NOW + 100) == []


@pytest.mark.parametrize("text", ["[]", '{"histories": 3}', "x", "[" * 100_000, '{"histories": [{"owner": null}]}'])
def test_a_book_that_can_not_be_read_says_so(text):
    with pytest.raises(ValueError, match="book of owners"):
        decoded(text)


def read(**parts):
    meta = {"uid": "u", "name": "p", "namespace": "n", "creationTimestamp": "2026-01-01T00:00:00Z"}
    body = {"metadata": {**meta, **parts.get("metadata", {})}}
    body |= {name: parts[name] for name in ("spec", "status") if name in parts}
    return owned_pod(msgspec.convert(body, OwnedPodResource))


def condition(kind, at="2026-01-01T00:00:30Z"):
    return {"type": kind, "status": "True", "lastTransitionTime": at}


def test_a_pod_is_read_as_the_api_server_has_it():
    found = read(spec={"nodeName": "n"}, status={"phase": "Running", "conditions": [condition("PodScheduled")]})
    assert found.bound_s == found.created_s + 30 and not found.waits and found.evicted_s is None
    assert found.owner == Owner("n", "Pod", "p", "u")
    assert read().waits
    conditions = [condition("DisruptionTarget", "2026-01-01T00:01:00Z")]
    assert read(spec={"nodeName": "n"}, status={"conditions": conditions}).evicted_s == found.created_s + 60
    assert read(status={"conditions": conditions}).evicted_s is None, "it had no node"
    assert read(spec={"nodeName": "n"}, status={"phase": "Failed", "reason": "Evicted"}).evicted_s is not None
    finished = {"state": {"terminated": {"finishedAt": "2026-01-01T00:02:00Z"}}}
    assert read(status={"phase": "Succeeded", "containerStatuses": [finished]}).ended_s == found.created_s + 120


def owned(kind="Job", name="sort", uid="u1"):
    return read(metadata={"ownerReferences": [{"kind": kind, "name": name, "uid": uid, "controller": True}]})


@pytest.mark.parametrize(("what", "longest"), [("kind", 63), ("name", 253), ("uid", 63)])
def test_a_controller_with_words_that_are_too_long_or_not_printable_is_no_owner(what, longest):
    assert getattr(owned(**{what: "x" * longest}).owner, what) == "x" * longest
    for other in ("x" * (longest + 1), "\0", "ü", "\U0001f40b"):
        assert owned(**{what: other}).owner == Owner("n", "Pod", "p", "u")


@pytest.mark.parametrize(
    "text", ["x" * 1_100_000, '"' * 253, "\1" * 253, "\U0001f40b" * 253], ids=["long", "quotes", "control", "whales"]
)
def test_the_book_fits_into_a_config_map_whatever_pods_say_of_their_owners(text):
    book = Book()
    pods = [owned(), *(owned(text[:63], text, f"{text[:60]}{number:03}") for number in range(MOST_OWNERS))]
    for number, one in enumerate(pods):
        waited = {"created_s": NOW - 700 + number, "bound_s": NOW}
        book.see(replace(one, uid=f"{number:036}", **waited), NOW)
    text = encoded(book.written((), NOW, virtual=True))
    assert len(text.encode()) < MOST_BYTES
    assert pods[0].owner in {one.owner for one in decoded(text).histories}


_STEPS = st.lists(
    st.tuples(
        st.integers(0, 5),  # which pod
        st.sampled_from(["see", "bind", "raise", "evict", "succeed", "fail", "gone", "leader", "settle"]),
        st.integers(0, 3600),  # how much later
    ),
    max_size=40,
)


@given(_STEPS)
def test_whenever_the_leader_changes_nothing_counts_twice_and_nothing_is_lost(steps):
    """Against a plain count of what has happened to each pod. Pods that are gone are others when they come back."""
    now_s, book, lives = NOW, Book(), 0
    pods: dict[int, OwnedPod] = {}
    evicted: dict[str, float] = {}
    for number, what, later_s in steps:
        now_s += later_s
        before = pods.get(number)
        if what == "leader":
            book = again(book, now_s, list(pods.values()))
        elif what == "settle":
            book.settle(SLO, now_s)
        elif what == "gone":
            if before is not None:
                del pods[number]
                book.forget(before.uid, now_s)
        else:
            if before is None:
                lives += 1
                before = pod(lives, now_s, alone_s=60.0)
            fields = msgspec.structs.asdict(before)
            if what in ("bind", "evict", "succeed") and before.bound_s is None:
                fields["bound_s"] = now_s
            if what == "raise":
                fields["raised"] = True
            if what == "evict" and before.evicted_s is None:
                fields["evicted_s"] = evicted[before.uid] = now_s
            if what in ("succeed", "fail") and not before.phase:
                fields |= {"phase": "Succeeded" if what == "succeed" else "Failed", "ended_s": now_s}
            pods[number] = OwnedPod(**fields)
            book.see(pods[number], now_s)
        expected = min(sum(now_s - at_s < DAY_S for at_s in evicted.values()), MOST_EVICTIONS)
        assert book.past(JOB, now_s).evictions == expected
        waiting = [now_s - one.created_s for one in pods.values() if one.waits]
        assert book.past(JOB, now_s).waited_s >= int(max(waiting, default=0.0))
        assert [one.uid for one in book.waiting()] == sorted(
            (one.uid for one in pods.values() if one.waits), key=lambda uid: (book._pods[uid].created_s, uid)
        )
        raised_now = sum(one.raised and not one.phase for one in pods.values())
        assert book.count("raised") == ({"batch": raised_now} if raised_now else {})
        done = book.outcomes("p")
        assert done.kept + done.missed <= lives
