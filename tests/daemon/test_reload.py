"""The look at the config file for a change, and reading it beside the event loop."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from criproxy.config import Config, Loaded
from criproxy.daemon import reload as module
from criproxy.daemon.reload import Reload
from criproxy.daemon.watch import FileWatch


class Clock:
    """Time passes in its sleeps alone, and ends with the fifth. `shared`: which of them may end with another's."""

    def __init__(self):
        self.now_s = 0.0
        self.shared = []

    async def sleep(self, seconds, slack_s=0.0):
        if len(self.shared) == 4:
            raise TimeoutError
        self.now_s += seconds
        self.shared.append(slack_s > 0.0)


def test_first_look_at_the_config_comes_as_long_after_a_task_before_as_all_others():
    """A hand-over that failed begins anew with what it had ceased: a file amid a change is no file at rest."""
    clock, looks = Clock(), []
    watch = SimpleNamespace(changed=lambda: looks.append(clock.now_s), settling=False)
    reload = Reload(watch, SimpleNamespace(config=None), None, None, None, clock=clock, log=None)  # type: ignore[arg-type]
    with pytest.raises(TimeoutError):
        asyncio.run(reload.watch_config())
    assert looks == [0.5, 1.0, 1.5, 2.0]


def test_file_amid_a_change_is_looked_at_again_soon_and_at_rest_with_others_wake_ups(tmp_path):
    file, clock = tmp_path / "config.toml", Clock()
    watch = FileWatch(file)
    reload = Reload(watch, SimpleNamespace(config=None), None, None, None, clock=clock, log=None)  # type: ignore[arg-type]
    file.write_text("new")
    with pytest.raises(TimeoutError):
        asyncio.run(reload.watch_config())
    assert reload.asked.is_set()
    assert clock.shared == [True, False, True, True]


class SlowFile:
    """A config whose reading lasts until `done` is set. `taken`: what was taken up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.taken: list[Loaded] = []
        self.read = 0
        watch = SimpleNamespace(file="config.toml", read=lambda: None)
        self.reload = Reload(watch, SimpleNamespace(config=None), None, None, None, clock=Clock(), log=None)  # type: ignore[arg-type]
        monkeypatch.setattr(module, "load", self._load)
        monkeypatch.setattr(self.reload, "_take_up", self.taken.append)
        monkeypatch.setattr(self.reload, "_write_bypass", lambda: None)

    def _load(self, _file: object) -> Loaded:
        self.read += 1
        loaded = Loaded(Config(), ())
        self.begun.release()
        self.done.acquire()
        return loaded


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowFile:
    return SlowFile(monkeypatch)


def test_config_is_read_while_the_loop_goes_on_and_a_wish_meanwhile_reads_it_again(slow: SlowFile) -> None:
    async def main() -> None:
        task = asyncio.create_task(slow.reload.reload_when_asked())
        slow.reload.asked.set()
        await until(lambda: slow.begun.acquire(blocking=False))  # the loop runs: else this would not come back
        slow.reload.asked.set()
        assert slow.taken == []
        slow.done.release(2)
        await until(lambda: len(slow.taken) == 2)
        task.cancel()

    asyncio.run(main())
    assert slow.read == 2


def test_reading_that_a_failed_hand_over_has_cut_off_is_done_again(slow: SlowFile) -> None:
    async def main() -> None:
        first = asyncio.create_task(slow.reload.reload_when_asked())
        slow.reload.asked.set()
        await until(lambda: slow.begun.acquire(blocking=False))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        slow.done.release(2)
        second = asyncio.create_task(slow.reload.reload_when_asked())
        await until(lambda: len(slow.taken) == 1)
        second.cancel()

    asyncio.run(main())
