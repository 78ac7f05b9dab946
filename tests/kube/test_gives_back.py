"""The annotation that says what the box's memory limit waits for: what of it counts, and for how long."""

import pytest

from criproxy.kube.gives_back import GivesBackFollower
from criproxy.kube.objects import Meta, Node
from criproxy.model import MEMORY, GivingBack
from criproxy.vocabulary.gives_back import MOST_WAIT_S, VALID_S, Note, decoded, encoded
from criproxy.vocabulary.names import GIVES_BACK
from tests.fakes.clock import FakeClock
from tests.fakes.log import FakeLog


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def log():
    return FakeLog()


class Node1:
    """It has published 9 bytes lately, and now 7."""

    def promised(self, resource, within_s):
        assert resource == MEMORY
        self.within_s = within_s
        return 7.0, 9.0


@pytest.fixture
def publisher():
    return Node1()


@pytest.fixture
def follower(publisher, clock, log):
    return GivesBackFollower(publisher, clock, log)


def node(text):
    return Node(Meta("n", annotations={} if text is None else {GIVES_BACK: text}))


def note(serial=1, size_bytes=5, wait_s=33.0):
    return node(encoded(Note(serial, size_bytes, wait_s)))


def test_a_note_counts_until_there_is_another_or_none(follower):
    assert follower.now() is None
    follower.saw(note())
    assert follower.now() == GivingBack(5.0, 7.0, 9.0)
    follower.saw(note(2, 3))
    assert follower.now() == GivingBack(3.0, 7.0, 9.0)
    follower.saw(None)
    assert follower.now() == GivingBack(3.0, 7.0, 9.0), "a Node that is gone says nothing"
    follower.saw(node(None))
    assert follower.now() is None


def test_a_note_of_somebody_who_is_gone_counts_no_longer_by_the_node_s_own_clock(follower, clock):
    follower.saw(note())
    clock.advance(VALID_S - 1.0)
    follower.saw(note())
    follower.saw(note(1, 4))
    assert follower.now() == GivingBack(4.0, 7.0, 9.0)
    clock.advance(1.0)
    assert follower.now() is None, "the same serial is nothing new"
    follower.saw(note(2))
    assert follower.now() == GivingBack(5.0, 7.0, 9.0)


@pytest.mark.parametrize(("said_s", "waits_s"), [(33.0, 33.0), (1e9, MOST_WAIT_S)])
def test_a_wait_is_bounded_whatever_the_note_says(follower, publisher, said_s, waits_s):
    follower.saw(note(wait_s=said_s))
    assert follower.now() is not None
    assert publisher.within_s == waits_s


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "{}", '{"serial":1,"bytes":-1,"wait_s":3.0}', '{"serial":1,"bytes":1,"wait_s":0.0}',
        f'{{"serial":1,"bytes":{10**400},"wait_s":1.0}}', f'{{"serial":1,"bytes":{2**63},"wait_s":1.0}}',
        '{"serial":1,"bytes":1e400,"wait_s":1.0}', '{"serial":1,"bytes":1,"wait_s":1e400}',
        '{"serial":1,"bytes":1,"wait_s":-1.0}', '{"serial":1,"bytes":1,"wait_s":NaN}', "[" * 500, " " * 2000,
        '{"serial":"\ud800","bytes":1,"wait_s":1.0}',
    ],
)  # fmt: skip
def test_what_is_no_note_is_said_once_and_counts_as_none(follower, log, text):
    follower.saw(note())
    follower.saw(node(text))
    follower.saw(node(text))
    assert follower.now() is None
    ((_, event, said),) = log.events
    assert (event, said["annotation"]) == ("gives_back_unreadable", GIVES_BACK)
    with pytest.raises(ValueError, match=r"it |bytes"):
        decoded(text)
