"""What an operator changes at any moment of a hand-over, and what the new process goes by when it begins to act.

A seeded scheduler decides how long each read of the disk takes, when the other process is started, when it takes over,
and when the operator changes the config or holds criproxy off. SCHEDULES says how many there are:
`SCHEDULES=1000 .venv/bin/python -m pytest tests/daemon/test_handover_changes.py`.
"""

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from criproxy.concurrency.clock import Wake
from criproxy.config import Config, Loaded
from criproxy.config.settings import Colocation, Cpu
from criproxy.daemon.reload import Reload
from criproxy.daemon.settings import Timetable
from criproxy.pods.part import NodeSettings
from tests.fakes.clock import FakeClock

SCHEDULES = int(os.environ.get("SCHEDULES", "100"))
pytestmark = pytest.mark.timeout(300 + SCHEDULES)

T = TypeVar("T")


async def passes(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


class Disk:
    """The config by its revision, of which every other one is off and has all pods evicted; and the hold-offs."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.revision, self.held_off = chance, 0, ""
        self.began = [(0, "")]
        """All that was ever there, in order."""

    def change(self) -> None:
        if self.chance.random() < 0.7:
            self.revision += 1
        else:
            self.held_off = "" if self.held_off else f"repair {self.revision}"
        self.began.append((self.revision, self.held_off))

    def load(self, _: Path = Path()) -> Loaded:
        return Loaded(config_of(self.revision), ())


def config_of(revision: int) -> Config:
    colocation = Colocation(enabled=revision % 2 == 0, on_disable="evict")
    return Config(colocation=colocation, cpu=Cpu(min_cores=revision / 10.0))


class Files:
    """A worker on a disk that takes its time before and after a job."""

    stuck = False

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    async def run(self, _: str, job: Callable[[], T]) -> T:
        await passes(self.chance.randrange(8))
        done = job()
        await passes(self.chance.randrange(8))
        return done


class Watch:
    """As a `FileWatch`: a change is told once it is seen to be at rest."""

    file = Path("config.toml")
    settling = False

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.known = self.seen = disk.revision

    def read(self) -> None:
        self.known = self.seen = self.disk.revision

    def changed(self) -> bool:
        at_rest, self.seen = self.disk.revision == self.seen, self.disk.revision
        if not at_rest or self.seen == self.known:
            return False
        self.known = self.seen
        return True


class HoldOffs:
    """As one process knows them: by the file, or by a command that it was given itself."""

    def __init__(self, disk: Disk) -> None:
        self.disk, self.known = disk, disk.held_off

    def read(self) -> None:
        self.known = self.disk.held_off

    def end_due(self) -> None:
        pass

    def why_box(self) -> str:
        return self.known


class Turns(FakeClock):
    async def sleep(self, seconds: float | None, slack_s: float = 0.0, wake: Wake | None = None) -> None:
        await asyncio.sleep(0)


class Anybody:
    """What is told of it."""

    is_bypassed = False

    def __getattr__(self, _: str) -> Callable[..., str]:
        return lambda *_, **__: ""


def process(disk: Disk) -> Reload:
    """One that has just read the config and the hold-offs. Its socket stands for all else that it has."""
    config, anybody, watch, hold_offs = config_of(disk.revision), Anybody(), Watch(disk), HoldOffs(disk)
    timetable = Timetable(config)
    settings = NodeSettings(config, timetable.stage(0.0), pass_through=False, dry_run=False, held_off=hold_offs.known)
    told: Any = dict.fromkeys(("bypass", "socket", "recorder", "metrics", "notifier", "log"), anybody)
    ports: Any = {"hold_offs": hold_offs, "files": Files(disk.chance), "clock": Turns()}
    apply: Any = lambda _: None  # noqa: E731
    return Reload(watch, settings, timetable, apply, load=disk.load, **told, **ports)  # type: ignore[arg-type]


def goes_by(one: Reload) -> tuple[int, str]:
    return round(one.settings.config.cpu.min_cores * 10), one.settings.held_off


async def hand_over(chance: random.Random) -> None:
    disk = Disk(chance)
    old = process(disk)
    following = asyncio.create_task(old.run())

    async def operate() -> None:
        for _ in range(chance.randrange(1, 6)):
            await passes(chance.randrange(30))
            before = disk.held_off
            disk.change()
            if disk.held_off != before and not following.done():  # its command is carried out by who serves
                old.hold_offs.known = disk.held_off  # type: ignore[attr-defined]

    operating = asyncio.create_task(operate())
    await passes(chance.randrange(40))
    new = process(disk)  # reads the files, long before it takes over
    await passes(chance.randrange(60))
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)

    since = len(disk.began) - 1
    await new.read_again()
    assert goes_by(new) in disk.began[since:], "it acts on what held before it took over"

    taken_up = asyncio.create_task(new.run())
    await operating
    new.hold_offs.known = disk.held_off  # type: ignore[attr-defined] # a command meanwhile is this one's
    await passes(100)
    assert goes_by(new) == disk.began[-1], "what was changed last does not hold in the end"
    taken_up.cancel()
    await asyncio.gather(taken_up, return_exceptions=True)


def test_new_process_never_acts_on_what_its_operator_has_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def apart(_: str, job: Callable[[], T]) -> T:
        return job()

    monkeypatch.setattr("criproxy.daemon.reload.run_apart", apart)
    for seed in range(SCHEDULES):
        try:
            asyncio.run(hand_over(random.Random(seed)))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
