"""Cleaning up: all of it, whatever fails; and a cancel comes through."""

import asyncio

import pytest

from criproxy.concurrency.closing import STRAY, done_all
from tests.fakes.log import FakeLog


class Cleaning:
    def __init__(self) -> None:
        self.did: list[str] = []
        self.log = FakeLog()

    def well(self) -> None:
        self.did.append("well")

    def fail(self) -> None:
        self.did.append("fail")
        raise OSError("no free descriptor")

    async def wait(self) -> None:
        self.did.append("wait")
        await asyncio.sleep(3600.0)

    async def stray(self) -> None:
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        await cancelled

    @property
    def errors(self) -> list[tuple[str, str]]:
        return [(fields["step"], fields["error"]) for _, _, fields in self.log.events]


def test_step_that_fails_is_logged_and_keeps_no_other_from_being_done() -> None:
    one = Cleaning()
    asyncio.run(done_all(one.log, ("first", one.fail), ("second", one.stray), ("third", one.well)))

    assert one.did == ["fail", "well"]
    assert one.errors == [("first", "no free descriptor"), ("second", STRAY)]


@pytest.mark.parametrize("within", [True, False], ids=["cancelled-while-a-step-waits", "on-the-way-of-a-cancel"])
def test_cancel_is_raised_once_all_is_done(within: bool) -> None:
    one = Cleaning()

    async def clean() -> None:
        if within:
            await done_all(one.log, ("wait", one.wait), ("fail", one.fail), ("last", one.well))
            return
        try:
            await one.wait()
        finally:
            await done_all(one.log, ("fail", one.fail), ("last", one.well))

    async def play() -> None:
        task = asyncio.create_task(clean())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())
    assert one.did == ["wait", "fail", "well"]
    assert one.errors == [("fail", "no free descriptor")]
