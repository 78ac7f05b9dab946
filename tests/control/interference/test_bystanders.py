"""Who uses the CPUs while online is harmed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.control.interference.bystanders import Bystanders, CpuSeen
from criproxy.model.signals import CpuSpent


class Node:
    """Counters that go on at what each uses, in cores, of four CPUs."""

    def __init__(self) -> None:
        self.spent = CpuSpent(0.0, 100.0, 40.0, 20.0, 5.0, 4)
        self.bystanders = Bystanders()
        self.look()

    def look(
        self,
        seconds: float = 1.0,
        online: float = 1.0,
        box: float = 2.0,
        others: float = 0.3,
        steal: float = 0.0,
        *,
        calm: bool = True,
    ) -> CpuSeen | None:
        last = self.spent
        self.spent = CpuSpent(
            last.read_s + seconds,
            last.busy_s + seconds * (online + box + others),
            last.online_s + seconds * online,
            last.box_s + seconds * box,
            last.steal_s + seconds * steal,
            4,
        )
        return self.bystanders.seen(self.spent, calm=calm)

    def looks(self, count: int, **uses: Any) -> CpuSeen:
        for _ in range(count):
            seen = self.look(**uses)
        assert seen is not None
        return seen


def test_each_is_told_from_the_others() -> None:
    seen = Node().looks(3)
    assert (seen.online.cores, seen.online.cpus) == (pytest.approx(1.0), 4)
    assert (seen.box_cores, seen.others_cores) == (pytest.approx(2.0), pytest.approx(0.3))
    assert (seen.others_rose, seen.box_is_idle) == (False, False)


@pytest.mark.parametrize("more", [{"others": 0.8}, {"steal": 0.5}], ids=["outside", "another-machine"])
def test_others_that_take_more_than_usual_are_seen(more: dict[str, float]) -> None:
    node = Node()
    node.looks(60)
    assert node.looks(1, **more, calm=False).others_rose
    assert not node.looks(1, calm=False).others_rose


@pytest.mark.parametrize("who", [{"online": 1.6}, {"box": 3.0}])
def test_online_and_the_box_are_no_others(who: dict[str, float]) -> None:
    node = Node()
    node.looks(60)
    assert not node.looks(1, **who).others_rose


def test_what_others_do_while_something_is_high_is_not_taken_for_usual() -> None:
    node = Node()
    node.looks(60)
    for _ in range(600):
        seen = node.look(others=0.9, calm=False)
    assert seen is not None
    assert seen.others_rose
    assert not node.looks(600, others=0.9).others_rose, "while all was calm it became usual"


def test_box_that_uses_next_to_nothing_is_idle() -> None:
    node = Node()
    assert node.looks(2, box=0.03).box_is_idle
    assert not node.looks(2, box=0.05).box_is_idle


def test_readings_that_can_not_be_compared_say_nothing_and_the_next_one_does() -> None:
    node = Node()
    node.looks(2)
    first = node.look(0.05)
    node.spent = CpuSpent(node.spent.read_s + 1.0, 0.0, 0.0, 0.0, 0.0, 4)  # after a machine has moved
    back = node.bystanders.seen(node.spent, calm=True)
    assert (first, back) == (None, None)
    assert node.looks(1).online.cores == pytest.approx(1.0)


@given(st.lists(st.tuples(*[st.floats(0.0, 1e12)] * 5), max_size=20))
def test_whatever_is_read_it_is_finite_and_nobody_uses_less_than_nothing(readings: list[tuple[float, ...]]) -> None:
    bystanders = Bystanders()
    for reading in readings:
        read_s, busy_s, online_s, box_s, steal_s = reading
        seen = bystanders.seen(CpuSpent(read_s, busy_s, online_s, box_s, steal_s, 4), calm=True)
        if seen is not None:
            assert 0.0 <= seen.others_cores < 1e15
            assert 0.0 <= seen.online.ratio <= 1.0
