"""What the ladder's share of IO means for each disk: learned from what it does while online is calm."""

from collections.abc import Sequence

import pytest

from criproxy.control.interference.disks import FLOOR, HEADROOM, DisksOrder, DisksState, step, suspected
from criproxy.model.signals import DiskCounters, DiskIo, DiskRate

MIB = 1 << 20
SDA = "8:0"
CALM, HARM = DisksOrder(None, calm=True), DisksOrder(None, calm=False)


class Disk:
    """One disk, of which online and the box do so many MiB and operations in each second."""

    def __init__(self) -> None:
        self.t_s, self.node, self.box, self.state = 100.0, [0, 0], [0, 0], DisksState()
        self._last: DiskCounters | None = None

    def second(
        self, online: Sequence[float], box: Sequence[float], order: DisksOrder, seconds: float = 1.0
    ) -> DiskRate | None:
        """`online` and `box`: MiB and operations; returns the bound that holds after it."""
        self.t_s += seconds
        for of, done in ((self.node, online), (self.node, box), (self.box, box)):
            of[0], of[1] = of[0] + int(done[0] * MIB), of[1] + int(done[1])
        node, its = DiskIo(*self.node), DiskIo(*self.box)
        counters = DiskCounters(self.t_s, {SDA: node}, {SDA: its}, {SDA: "sda"})
        self.state, self._last = step(self._last, counters, self.state, order), counters
        return self.state.bounds.get(SDA)

    def seconds(self, count: int, online: Sequence[float], box: Sequence[float], order: DisksOrder) -> DiskRate | None:
        bound = None
        for _ in range(count):
            bound = self.second(online, box, order)
        return bound

    @property
    def calm(self) -> DiskRate:
        return self.state.of[SDA].calm


def with_share(share: float | None, *, calm: bool = False) -> DisksOrder:
    return DisksOrder(share, calm=calm)


def test_nothing_is_bounded_while_nobody_is_found_guilty() -> None:
    disk = Disk()
    assert disk.seconds(60, (10, 100), (90, 900), CALM) is None
    assert disk.seconds(60, (10, 100), (90, 900), HARM) is None


def test_what_a_disk_does_is_learned_while_online_is_calm_alone() -> None:
    disk = Disk()
    disk.seconds(20, (10, 100), (30, 300), CALM)
    learned = disk.calm
    disk.seconds(20, (10, 100), (300, 3000), HARM)
    unlearned = disk.calm
    disk.second((0, 0), (900, 9000), CALM)
    burst = disk.calm

    assert learned.bytes_per_s == pytest.approx(40 * MIB, rel=0.01)
    assert learned.operations_per_s == pytest.approx(400, rel=0.01)
    assert unlearned == learned
    assert burst.bytes_per_s < 0.4 * 900 * MIB, "one second is not the disk's measure"


def test_share_leads_from_the_floor_to_what_online_leaves_of_it() -> None:
    disk = Disk()
    disk.seconds(30, (10, 100), (30, 300), CALM)
    floor = disk.second((10, 100), (80, 800), with_share(0.0))
    half = disk.second((10, 100), (1, 10), with_share(0.5))
    whole = disk.second((10, 100), (1, 10), with_share(1.0))

    top = DiskRate((40 * HEADROOM - 10) * MIB, 400 * HEADROOM - 100)
    assert floor == FLOOR
    assert whole is not None and half is not None
    assert whole.bytes_per_s == pytest.approx(top.bytes_per_s, rel=0.05)
    assert whole.operations_per_s == pytest.approx(top.operations_per_s, rel=0.05)
    assert half.bytes_per_s == pytest.approx((top.bytes_per_s + FLOOR.bytes_per_s) / 2, rel=0.05)


def test_disk_that_was_never_seen_calm_leaves_the_floor() -> None:
    disk = Disk()
    disk.seconds(5, (10, 100), (90, 900), HARM)
    assert disk.second((10, 100), (90, 900), with_share(1.0)) == FLOOR


def test_disk_that_the_box_hardly_uses_is_left_alone_until_it_does() -> None:
    disk = Disk()
    disk.second((90, 900), (1, 5), HARM)
    little = disk.seconds(5, (90, 900), (1, 5), with_share(0.0))
    much = disk.second((90, 900), (90, 900), with_share(0.0))
    held = disk.seconds(5, (90, 900), (1, 5), with_share(0.0))

    assert (little, much, held) == (None, FLOOR, FLOOR)


def test_after_a_verdict_the_bound_grows_while_online_is_calm_and_stops_where_it_is_not() -> None:
    disk = Disk()
    disk.seconds(5, (2, 50), (90, 900), HARM)
    disk.second((2, 50), (90, 900), with_share(0.0))
    grown = [disk.second((2, 50), (1, 20), with_share(1.0, calm=True))]
    for _ in range(120):
        bound = grown[-1]
        assert bound is not None, "a box that presses against its bound is not free"
        mib = bound.bytes_per_s / MIB
        grown.append(disk.second((2, 50), (mib, bound.operations_per_s), with_share(None, calm=mib < 40)))
    last = [one.bytes_per_s / MIB for one in grown[-30:] if one is not None]

    assert max(last) == pytest.approx(min(last)), "it stands still"
    assert 30 < last[-1] < 60, "where online begins to wait"


def test_bound_that_nobody_needs_ends_and_one_of_an_innocent_box_at_once() -> None:
    disk = Disk()
    disk.seconds(20, (10, 100), (30, 300), CALM)
    disk.second((10, 100), (80, 800), with_share(0.0))
    disk.second((10, 100), (1, 10), with_share(1.0, calm=True))
    needless = [disk.second((10, 100), (1, 10), CALM) is None for _ in range(12)]
    disk.second((10, 100), (80, 800), with_share(0.0))
    innocent = disk.second((10, 100), (1, 10), DisksOrder(None, calm=False, innocent=True))

    assert needless[0] is False and needless[-1] is True
    assert innocent is None


def test_what_a_process_before_left_is_taken_over_while_it_is_held_and_lifted_else() -> None:
    taken, lifted = Disk(), Disk()
    held = DisksOrder(0.0, calm=False, held=(SDA,))
    assert taken.second((10, 100), (1, 10), held) == FLOOR
    assert lifted.second((10, 100), (1, 10), DisksOrder(None, calm=False, held=(SDA,))) is None


def test_disk_with_somebody_elses_limit_is_left_alone() -> None:
    disk = Disk()
    order = DisksOrder(0.0, calm=False, others=(SDA,))
    disk.second((10, 100), (90, 900), order)
    assert disk.second((10, 100), (90, 900), order) is None
    last = DiskCounters(1.0, {SDA: DiskIo(0, 0)}, {SDA: DiskIo(0, 0)}, {})
    this = DiskCounters(2.0, {SDA: DiskIo(90 * MIB, 900)}, {SDA: DiskIo(80 * MIB, 800)}, {})
    assert (suspected(last, this), suspected(last, this, (SDA,))) == ({SDA}, frozenset())


def test_gap_in_the_readings_or_a_counter_that_went_back_teaches_nothing() -> None:
    disk = Disk()
    disk.seconds(20, (10, 100), (30, 300), CALM)
    learned = disk.calm
    disk.second((0, 0), (90000, 900000), CALM, seconds=60.0)
    disk.node, disk.box = [0, 0], [0, 0]
    disk.second((0, 0), (1, 1), CALM)

    assert disk.calm == learned
    assert step(None, None, disk.state, CALM) == disk.state


def test_disk_that_has_gone_is_forgotten_with_its_bound() -> None:
    """Volumes come and go for weeks, and another one may have its number."""
    disk = Disk()
    disk.seconds(10, (10, 100), (80, 800), CALM)
    disk.seconds(3, (10, 100), (80, 800), with_share(0.0))
    bounded = disk.state.bounds
    gone = DiskCounters(disk.t_s + 1.0, {}, {}, {})
    state = step(disk._last, gone, disk.state, HARM)

    assert bounded == {SDA: FLOOR}
    assert state == DisksState()
    assert step(disk._last, None, disk.state, HARM).of.keys() == {SDA}, "what was not read says nothing"
