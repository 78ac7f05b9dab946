"""The law of YARN's size on one node, as single steps."""

import pytest

from criproxy_cluster.yarn.law import (
    AGAIN_S,
    LEAST_GRACE_MS,
    MOST_GRACE_MS,
    MOST_MIB,
    RISE_S,
    SETTLE_S,
    Lent,
    NodeLaw,
    NodeNote,
    Seen,
    Send,
    Size,
    wanted,
)

GRACE_S = 30.0
GIB = 1 << 30


def seen(size, used=(0, 0)):
    return Seen(Size(*size), Size(*used))


def law_of(size, used=(0, 0), now_s=0.0):
    law = NodeLaw()
    law.see(seen(size, used), now_s)
    return law


@pytest.mark.parametrize(
    ("lent", "pods", "share", "size"),
    [
        pytest.param((8 * GIB, 8000), (0, 0), 0.5, (4096, 4), id="Kubernetes' part stays, also while it is idle"),
        pytest.param((8 * GIB, 8000), (2 * GIB, 1000), 0.5, (4096, 4), id="pods within their part cost YARN nothing"),
        pytest.param((8 * GIB, 8000), (6 * GIB, 7000), 0.5, (2048, 1), id="pods beyond their part"),
        pytest.param((8 * GIB, 8000), (2 * GIB, 1000), 1.0, (6144, 7), id="all that pods do not ask for"),
        pytest.param((8 * GIB, 8000), (9 * GIB, 9000), 1.0, (0, 0), id="never below 0"),
        pytest.param((8 * GIB, 8000), (0, 0), 0.0, (0, 0), id="no part at all"),
        pytest.param((10**9, 1999), (0, 0), 1.0, (953, 1), id="MiB are MiB, and all is rounded down"),
        pytest.param((1 << 60, 10**15), (0, 0), 1.0, (MOST_MIB, MOST_MIB), id="no more than an int holds"),
        pytest.param((0, 0), (0, 0), 0.5, (0, 0), id="nothing is lent"),
    ],
)
def test_wanted(lent, pods, share, size):
    assert wanted(Lent(*lent), Lent(*pods), share) == Size(*size)


def test_nothing_is_sent_of_what_is_not_known_and_nothing_of_what_is_right():
    assert NodeLaw().step(Size(1, 1), GRACE_S, 0.0) is None
    assert NodeLaw().held is None
    assert law_of((4096, 4)).step(Size(4096, 4), GRACE_S, 0.0) is None


def test_a_shrink_below_what_is_used_has_the_grace_and_is_held_until_it_is_given_back():
    law = law_of((4096, 4), (4096, 4))
    assert law.step(Size(1024, 1), GRACE_S, 0.0) == Send(Size(1024, 1), 30_000)
    law.see(seen((1024, 1), (4096, 4)), 0.5)
    assert law.is_giving_back and law.held == Size(4096, 1), "memory is YARN's still, and CPU is not"
    law.see(seen((1024, 1), (3072, 3)), 10.0)
    assert law.held == Size(3072, 1)
    law.see(seen((1024, 1), (1024, 1)), 20.0)
    assert not law.is_giving_back and law.held == Size(1024, 1)


def test_a_shrink_has_a_grace_even_where_nothing_is_used():
    """Containers may have begun since YARN was asked."""
    assert law_of((4096, 4)).step(Size(1024, 1), GRACE_S, 0.0) == Send(Size(1024, 1), 30_000)


def test_what_falls_on_during_a_grace_waits_for_its_end_and_then_has_a_grace_of_its_own():
    law = law_of((4096, 4), (4096, 4))
    law.step(Size(3072, 4), GRACE_S, 0.0)
    law.see(seen((3072, 4), (4096, 4)), 1.0)
    assert law.step(Size(1024, 4), GRACE_S, 1.0) is None
    law.see(seen((3072, 4), (3072, 4)), 31.0)
    assert law.step(Size(1024, 4), GRACE_S, 31.0) == Send(Size(1024, 4), 30_000)


def test_cpu_shrinks_during_a_grace_which_ends_no_later():
    law = law_of((4096, 4), (4096, 4))
    law.step(Size(3072, 4), GRACE_S, 0.0)
    law.see(seen((3072, 4), (4096, 4)), 12.0)
    assert law.step(Size(1024, 2), GRACE_S, 12.0) == Send(Size(3072, 2), 18_000)


def test_what_rises_again_during_a_grace_is_sent_at_once():
    law = law_of((2048, 2), (2048, 2))
    law.step(Size(4096, 4), GRACE_S, 0.0)
    law.see(seen((4096, 4), (4096, 4)), 1.0)
    law.step(Size(3072, 4), GRACE_S, 1.0)
    law.see(seen((3072, 4), (4096, 4)), 2.0)
    assert law.step(Size(4096, 4), GRACE_S, 2.0) == Send(Size(4096, 4), 30_000), "it does not wait after the last rise"
    law.see(seen((4096, 4), (4096, 4)), 3.0)
    assert not law.is_giving_back


def test_a_nodemanager_that_came_back_larger_during_a_grace_is_shrunk_with_a_whole_grace():
    law = law_of((4096, 4), (4096, 4))
    law.step(Size(3072, 4), GRACE_S, 0.0)
    law.see(seen((3072, 4), (4096, 4)), 15.0)
    law.step(Size(3072, 2), GRACE_S, 15.0)
    law.see(seen((8192, 8), (4096, 4)), 26.0)
    assert law.step(Size(3072, 2), GRACE_S, 26.0) == Send(Size(3072, 2), 30_000)


def test_a_rise_that_spares_some_alone_leaves_the_others_their_deadline():
    law = law_of((4096, 4), (4096, 4))
    law.step(Size(1024, 4), GRACE_S, 0.0)
    law.see(seen((1024, 4), (4096, 4)), 10.0)
    assert law.step(Size(3072, 4), GRACE_S, 10.0) == Send(Size(3072, 4), 20_000)


def test_rises_are_held_before_they_are_sent_and_are_rare():
    law = law_of((1024, 1))
    assert law.step(Size(2048, 1), GRACE_S, 0.0) == Send(Size(2048, 1), 30_000)
    assert law.held == Size(2048, 1)
    law.see(seen((2048, 1)), 0.5)
    assert law.step(Size(4096, 4), GRACE_S, RISE_S - 0.1) is None
    assert law.step(Size(4096, 4), GRACE_S, RISE_S) == Send(Size(4096, 4), 30_000)


def test_a_shrink_does_not_wait_for_a_rise():
    law = law_of((1024, 1))
    law.step(Size(2048, 2), GRACE_S, 0.0)
    law.see(seen((2048, 2)), 0.5)
    assert law.step(Size(1024, 4), GRACE_S, 1.0) == Send(Size(1024, 2), 30_000)


def test_a_nodemanager_that_is_back_with_another_size_gets_its_own_again():
    law = law_of((4096, 4))
    law.step(Size(1024, 1), GRACE_S, 0.0)
    law.see(seen((1024, 1)), 1.0)
    law.see(seen((8192, 8)), 60.0)
    assert law.held == Size(8192, 8)
    assert law.step(Size(1024, 1), GRACE_S, 60.0) == Send(Size(1024, 1), 30_000)


def test_what_was_sent_and_does_not_show_is_held_and_is_not_sent_again_at_each_look():
    law = law_of((1024, 1))
    law.step(Size(4096, 4), GRACE_S, 0.0)
    law.see(seen((1024, 1)), 1.0)
    assert law.held == Size(4096, 4)
    assert law.step(Size(4096, 4), GRACE_S, 1.0) is None
    assert law.step(Size(4096, 4), GRACE_S, AGAIN_S) == Send(Size(4096, 4), 30_000)


def test_what_is_not_given_back_in_time_is_held_no_longer_and_is_asked_for_by_another_size():
    law = law_of((4096, 4), (4096, 4))
    law.step(Size(1024, 1), GRACE_S, 0.0)
    law.see(seen((1024, 1), (4096, 4)), GRACE_S + SETTLE_S)
    assert not law.overdue and law.held == Size(4096, 1)
    law.see(seen((1024, 1), (4096, 4)), GRACE_S + SETTLE_S + 0.1)
    assert law.overdue and law.held == Size(1024, 1)
    assert law.step(Size(1024, 1), GRACE_S, 33.1) == Send(Size(1025, 1), 30_000), "the same would change no deadline"
    law.see(seen((1025, 1), (1024, 1)), 40.0)
    assert not law.overdue
    assert law.step(Size(1024, 1), GRACE_S, 44.0) == Send(Size(1024, 1), 30_000)


def test_who_takes_over_gives_what_is_under_way_a_grace_of_its_own():
    """When the one before sent what it sent is not known; nor whether the ResourceManager still knows it."""
    assert law_of((3072, 4), (4096, 4)).step(Size(3072, 4), GRACE_S, 0.0) == Send(Size(3073, 4), 30_000)


def test_a_deadline_is_never_changed_by_a_smaller_size_than_wanted():
    """A container that just fits must not go for it."""
    assert law_of((0, 0), (1024, 1)).step(Size(), GRACE_S, 0.0) == Send(Size(1, 0), 30_000)
    assert law_of((2048, 2), (3072, 3)).step(Size(1024, 1), GRACE_S, 0.0) == Send(Size(1024, 1), 30_000)


def told(law, note, now_s):
    """What the node is told now; None: nothing."""
    found = note.due(law, now_s)
    if found is not None:
        note.told(found, now_s)
    return found


def squeezed_law():
    """One whose YARN has been sent a quarter of what it has, of which all but an eighth is in use; and its note."""
    law, note = law_of((4096, 4), (3584, 4)), NodeNote()
    assert told(law, note, 0.0) == 4096 << 20
    law.step(Size(1024, 1), GRACE_S, 0.0)
    note.shrinks(0.0)
    return law, note


def test_node_is_told_what_is_to_be_given_back_before_the_resource_manager_has_the_size():
    law, note = squeezed_law()
    assert told(law, note, 1.0) == (3584 - 1024) << 20
    law.see(seen((1024, 1), (3584, 4)), 2.0)
    assert told(law, note, 2.0) is None


def test_node_is_told_0_once_yarn_has_given_back_however_long_that_took():
    law, note = squeezed_law()
    law.see(seen((1024, 1), (3584, 4)), 1.0)
    told(law, note, 1.0)
    law.see(seen((1024, 1), (3584, 4)), 28.0)
    assert told(law, note, 28.0) is None
    law.see(seen((1024, 1), (1024, 1)), 29.0)
    assert note.due(law, 29.0) == note.due(law, 29.0 + 2 * RISE_S) == 0, "until it was told"
    assert told(law, note, 29.0) == 0
    assert told(law, note, 30.0) is None
    assert told(law, note, 29.0 + RISE_S) == 1024 << 20


def test_node_is_told_0_where_yarn_has_not_given_back_in_time():
    law, note = squeezed_law()
    for now_s in (1.0, GRACE_S + SETTLE_S):
        law.see(seen((1024, 1), (3584, 4)), now_s)
        told(law, note, now_s)
    law.see(seen((1024, 1), (3584, 4)), GRACE_S + SETTLE_S + 0.1)
    assert told(law, note, GRACE_S + SETTLE_S + 0.1) == 0


@pytest.mark.parametrize(("grace_s", "ms"), [(0.0, LEAST_GRACE_MS), (-1.0, LEAST_GRACE_MS), (1e9, MOST_GRACE_MS)])
def test_a_grace_is_always_positive_and_always_an_int(grace_s, ms):
    assert law_of((4096, 4), (4096, 4)).step(Size(), grace_s, 0.0) == Send(Size(), ms)
