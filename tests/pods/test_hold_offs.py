"""What an operator holds criproxy off, for how long, and through restarts."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import structlog
from structlog.testing import capture_logs

from criproxy.model import PodRef
from criproxy.pods.hold_offs import BOX, MOST, MOST_S, HoldOffs
from tests.fakes.clock import FakeClock

T = TypeVar("T")
POD, OTHER = PodRef("u1", "batch", "job"), PodRef("u2", "batch", "other")


class Inline:
    """A worker that works at once."""

    async def run(self, what: str, job: Callable[[], T]) -> T:
        return job()


def started(file: Path, clock: FakeClock) -> HoldOffs:
    """As a criproxy that starts has them."""
    found = HoldOffs(file, Inline(), clock, structlog.get_logger())  # type: ignore[arg-type]
    found.read()
    return found


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "c.hold-offs"


def test_hold_off_holds_for_its_time_and_ends_by_itself_whatever_the_wall_clock_does(
    file: Path, clock: FakeClock
) -> None:
    offs = started(file, clock)
    asyncio.run(offs.hold(BOX, "", 60.0, "a  disk\nis full"))
    assert offs.why_box() == "an operator holds criproxy off the box: a disk is full"
    clock.wall += 1e6
    assert offs.until_wall_s(offs.in_force()[0]) == clock.wall + 60.0
    clock.advance(59.0)
    assert offs.why_box() != ""
    clock.advance(1.0)
    with capture_logs() as logs:
        offs.end_due()
        offs.end_due()
    assert (offs.why_box(), offs.in_force()) == ("", ())
    assert [(entry["event"], entry["of"]) for entry in logs] == [("hold_off_ended", BOX)]


def test_pod_is_covered_alone_and_the_box_covers_no_pod(file: Path, clock: FakeClock) -> None:
    offs = started(file, clock)
    asyncio.run(offs.hold(str(POD), POD.uid, 60.0, "x"))
    assert (offs.covers(POD), offs.covers(OTHER), offs.of_box()) == (True, False, None)
    asyncio.run(offs.hold(BOX, "", 60.0, "x"))
    assert (offs.covers(OTHER), offs.of_box() is None) == (False, False)


def test_hold_off_is_known_after_a_restart_and_not_after_its_end(file: Path, clock: FakeClock) -> None:
    before = started(file, clock)
    asyncio.run(before.hold(BOX, "", 60.0, "x"))
    asyncio.run(before.hold(str(POD), POD.uid, 600.0, "y"))
    clock.advance(59.0)
    after = started(file, clock)
    assert after.in_force() == before.in_force()
    clock.advance(1.0)
    later = started(file, clock)
    assert (later.of_box(), later.covers(POD)) == (None, True)


def test_the_last_word_of_one_holds_and_a_release_ends_it_for_good(file: Path, clock: FakeClock) -> None:
    offs = started(file, clock)
    asyncio.run(offs.hold(BOX, "", 6000.0, "x"))
    asyncio.run(offs.hold(BOX, "", 60.0, "y"))
    assert [(one.reason, one.until_s) for one in offs.in_force()] == [("y", clock.now + 60.0)]
    assert asyncio.run(offs.release("")) is not None
    assert asyncio.run(offs.release("")) is None
    assert (offs.in_force(), started(file, clock).in_force()) == ((), ())


def test_what_cannot_be_written_does_not_hold_as_a_restart_would_forget_it(tmp_path: Path, clock: FakeClock) -> None:
    offs = started(tmp_path / "gone" / "c.hold-offs", clock)
    with pytest.raises(FileNotFoundError):
        asyncio.run(offs.hold(BOX, "", 60.0, "x"))
    assert offs.in_force() == ()


@pytest.mark.parametrize(
    ("seconds", "reason", "words"),
    [
        pytest.param(0.0, "x", "not within 1 s and 7 days", id="no-time"),
        pytest.param(MOST_S + 1.0, "x", "not within", id="for-ever"),
        pytest.param(float("nan"), "x", "not within", id="no-number"),
        pytest.param(60.0, " \n", "say why", id="no-reason"),
        pytest.param(60.0, "x" * 501, "501 characters", id="a-book"),
    ],
)
def test_hold_off_that_makes_no_sense_is_refused(
    file: Path, clock: FakeClock, seconds: float, reason: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        asyncio.run(started(file, clock).hold(BOX, "", seconds, reason))
    assert not file.exists()


def test_there_are_at_most_so_many_and_one_of_them_can_be_renewed(file: Path, clock: FakeClock) -> None:
    offs = started(file, clock)
    for number in range(MOST):
        asyncio.run(offs.hold(f"batch/{number}", str(number), 60.0, "x"))
    with pytest.raises(ValueError, match="100 hold-offs"):
        asyncio.run(offs.hold(BOX, "", 60.0, "x"))
    asyncio.run(offs.hold("batch/7", "7", 90.0, "x"))
    clock.advance(60.0)
    asyncio.run(offs.hold(BOX, "", 60.0, "x"))
    assert [one.name for one in offs.in_force()] == ["batch/7", BOX]


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"uid": ""}]', "\ud83d"], ids=str)
def test_file_that_makes_no_sense_holds_nothing_and_is_told(file: Path, clock: FakeClock, text: str) -> None:
    file.write_text(text if text.isascii() else json.dumps(text))
    with capture_logs() as logs:
        assert started(file, clock).in_force() == ()
    assert [(entry["event"], entry["file"]) for entry in logs] == [("hold_offs_not_read", str(file))]


# --- at a hand-over ------------------------------------------------------------------------------------------------


class Slow(Inline):
    """A worker whose job is done once `done` is set."""

    def __init__(self) -> None:
        self.done = asyncio.Event()

    async def run(self, what: str, job: Callable[[], T]) -> T:
        await self.done.wait()
        return job()


def test_hold_off_under_way_is_in_the_file_once_another_process_may_answer(file: Path, clock: FakeClock) -> None:
    async def play() -> None:
        slow = Slow()
        offs = HoldOffs(file, slow, clock, structlog.get_logger())  # type: ignore[arg-type]
        asked = asyncio.create_task(offs.hold("batch/job", "u1", 60.0, "x"))
        await asyncio.sleep(0)
        rests = asyncio.create_task(offs.rest())
        await asyncio.sleep(0)
        assert not rests.done()
        slow.done.set()
        await rests
        assert asked.done()
        assert started(file, clock).covers(POD)

    asyncio.run(play())


def test_hold_off_that_comes_later_is_refused_until_this_process_answers_again(file: Path, clock: FakeClock) -> None:
    async def play() -> None:
        offs = started(file, clock)
        await offs.rest()
        with pytest.raises(OSError, match="say it again"):
            await offs.hold("batch/job", "u1", 60.0, "x")
        assert not offs.covers(POD)
        offs.resume()
        await offs.hold("batch/job", "u1", 60.0, "x")
        assert offs.covers(POD)

    asyncio.run(play())
