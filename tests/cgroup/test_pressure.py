"""The pressure listener where the kernel reports nothing, and on a file that is no trigger."""

import asyncio
from pathlib import Path

import pytest

from criproxy.cgroup.pressure import PressureListener


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def follow(listener: PressureListener) -> None:
    async def once() -> None:
        listener.follow()

    asyncio.run(once())


def test_listener_without_a_file_says_that_the_guard_goes_by_usage() -> None:
    listener = PressureListener(lambda: None, Clock())
    follow(listener)
    assert "usage alone" in listener.note
    assert not listener.take()


def test_listener_on_a_kernel_without_psi_names_file_and_error(tmp_path: Path) -> None:
    listener = PressureListener(lambda: str(tmp_path / "cpu.pressure"), Clock())
    follow(listener)
    assert "cpu.pressure: ENOENT" in listener.note
    assert "usage alone" in listener.note


def test_listener_looks_for_the_file_again_after_a_while_only(tmp_path: Path) -> None:
    asked: list[float] = []
    clock = Clock()

    def file() -> str | None:
        asked.append(clock.now_s)
        return None

    listener = PressureListener(file, clock)
    for clock.now_s in (0.0, 1.0, 4.9, 5.0, 6.0):
        follow(listener)
    assert asked == [0.0, 5.0]


@pytest.mark.parametrize("times", [1, 2])
def test_listener_closes_as_often_as_asked(times: int) -> None:
    listener = PressureListener(lambda: None, Clock())
    follow(listener)
    for _ in range(times):
        listener.close()
    assert listener.note == "not listening"
