"""What a hand-over does of the daemon's parts, whatever fails of it."""

import asyncio
from typing import Any

import pytest

from criproxy.daemon.lifecycle import Tasks
from criproxy.daemon.upgrade import upgrades
from criproxy.daemon.upgrade.upgrades import Upgrades
from criproxy.fronts.socket import SocketError
from tests.fakes.log import FakeLog


class Did:
    """Stands for a part: keeps what it was asked for, and fails as often as `fails` says, by method."""

    goes_on = is_published = False

    def __init__(self, did: list[str], **fails: int) -> None:
        self._did, self._fails = did, fails

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> None:
            if self._fails.get(name, 0):
                self._fails[name] -= 1
                raise SocketError("no free descriptor")
            self._did.append(name)

        return call


class Socket(Did):
    def publish(self) -> None:
        self.__getattr__("publish")()
        self.is_published = True


def made(did: list[str], tasks: Tasks, socket: Did) -> Upgrades:
    part: Any = Did(did)
    return Upgrades(
        engine=part,
        socket=socket,  # type: ignore[arg-type]
        admissions=part,
        box=part,
        cpu_manager=part,
        reconciler=part,
        holds=part,
        checkpoint=dict,
        active=part,
        watchdog=part,
        notifier=part,
        recorder=part,
        tasks=tasks,
        command=(),
        predecessor=None,
        log=FakeLog(),
    )


@pytest.mark.parametrize("fails", ["clear_leftovers", "publish"])
def test_parts_work_again_after_a_hand_over_that_failed_whatever_fails_of_that(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrades, "_AGAIN_S", 0.001)
    did: list[str] = []

    async def play() -> Tasks:
        tasks = Tasks(FakeLog())
        socket = Socket(did, **{fails: 2})
        await made(did, tasks, socket).resume()
        async with asyncio.timeout(5.0):
            while not socket.is_published:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await tasks.cancel()
        return tasks

    tasks = asyncio.run(play())
    assert tasks.failure is None
    assert did[:3] == ["resume", "resume", "resume"]
    assert {"begins", "begin", "publish"} <= set(did)
