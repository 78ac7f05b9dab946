"""When disks are switched: once at the start, at a change of the setting, each minute while they are to be kept."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from criproxy.cgroup.disk_keepers import Keeper, Kept
from criproxy.pods.disk_keeping import DiskKeeping
from tests.fakes.log import FakeLog

FAILED = Kept(failures={"sda": "it takes cgroup v2"})


class Keepers:
    """`has_changed_some`: as the record says."""

    def __init__(self) -> None:
        self.asked: list[Keeper] = []
        self.answers: list[Kept | Exception] = []
        self.has_changed_some = False

    def keep(self, keeper: Keeper) -> Kept:
        self.asked.append(keeper)
        answer = self.answers.pop(0) if self.answers else Kept()
        if isinstance(answer, Exception):
            raise answer
        return answer


class Bench:
    def __init__(self, keeper: Keeper | None) -> None:
        self.keepers, self.log = Keepers(), FakeLog()
        shared: Any = SimpleNamespace(log=self.log)
        keepers: Any = self.keepers
        self.part = DiskKeeping(keeper, shared, keepers)

    def looks(self, number: int = 1) -> list[str]:
        """The events."""

        async def looks() -> None:
            for _ in range(number):
                await self.part.look()

        asyncio.run(looks())
        self.part.close()
        return [event for _, event, _ in self.log.events]


@pytest.mark.parametrize(
    ("keeper", "has_changed_some", "asked"),
    [
        pytest.param(None, True, [], id="not-ours"),
        pytest.param("leave", False, [], id="nothing-asked-for"),
        pytest.param("leave", True, ["leave"], id="to-be-put-back"),
        pytest.param("io.cost", False, ["io.cost"], id="io.cost"),
    ],
)
def test_disks_are_touched_where_that_is_asked_for(
    keeper: Keeper | None, has_changed_some: bool, asked: list[str]
) -> None:
    bench = Bench(keeper)
    bench.keepers.has_changed_some = has_changed_some
    bench.looks()

    assert bench.keepers.asked == asked
    assert (bench.part._worker is None) == (not asked), "no thread without need"


def test_what_was_done_is_logged_and_what_could_not_be_once() -> None:
    bench = Bench("io.cost")
    bench.keepers.answers = [FAILED, FAILED, Kept({"sda": "io.cost on"}), OSError("full")]

    assert bench.looks(4) == ["disk_weight_not_switched", "disk_weight_switched", "disk_weight_not_switched"]


def test_failures_are_forgotten_with_the_setting() -> None:
    bench = Bench("io.cost")
    bench.keepers.answers = [FAILED]
    bench.looks()
    bench.part.configure("leave")
    bench.looks()

    assert bench.part.kept == Kept()


def test_change_of_the_setting_is_followed_at_once_and_nothing_else_wakes_up() -> None:
    bench = Bench("leave")

    async def course() -> list[list[Keeper]]:
        running, seen = asyncio.create_task(bench.part.run()), []
        for keeper in ("leave", "bfq"):
            bench.part.configure(keeper)
            await asyncio.sleep(0.1)
            seen.append(list(bench.keepers.asked))
        running.cancel()
        return seen

    assert asyncio.run(course()) == [[], ["bfq"]]
    bench.part.close()
