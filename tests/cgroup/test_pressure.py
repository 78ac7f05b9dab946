"""The pressure listener where the kernel reports nothing, and on a file that is no trigger."""

import asyncio
from pathlib import Path

import pytest

from criproxy.cgroup.pressure import PressureListener, online_pressure
from tests.fakes.driver import FakeDriver


def follow(listener: PressureListener, now_s: float = 0.0) -> None:
    async def once() -> None:
        listener.follow(now_s, lambda: None)

    asyncio.run(once())


def test_listener_without_a_file_says_that_the_guard_goes_by_usage() -> None:
    listener = PressureListener(lambda: None)
    follow(listener)
    assert "usage alone" in listener.note
    assert not listener.take()


def test_listener_on_a_kernel_without_psi_names_file_and_error(tmp_path: Path) -> None:
    listener = PressureListener(lambda: str(tmp_path / "cpu.pressure"))
    follow(listener)
    assert "cpu.pressure: ENOENT" in listener.note
    assert "usage alone" in listener.note


def test_listener_looks_for_the_file_again_after_a_while_only(tmp_path: Path) -> None:
    asked: list[float] = []

    def file() -> str | None:
        asked.append(now_s)
        return None

    listener = PressureListener(file)
    for now_s in (0.0, 1.0, 4.9, 5.0, 6.0):
        follow(listener, now_s)
    assert asked == [0.0, 5.0]


@pytest.mark.parametrize("times", [1, 2])
def test_listener_closes_as_often_as_asked(times: int) -> None:
    listener = PressureListener(lambda: None)
    follow(listener)
    for _ in range(times):
        listener.close()
    assert listener.note == "not listening"


def test_pressure_of_online_is_that_of_kubelets_own_cgroup() -> None:
    driver = FakeDriver()
    assert online_pressure(driver, None) is None
    assert online_pressure(driver, "/kubelet/offline") == "/nowhere/kubelet/kubepods/cpu.pressure"
