"""Pods and containers of the box keep what is asked for, whatever kubelet and the runtime write meanwhile."""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from criproxy.cgroup.driver import CgroupError, ContainerLimits
from criproxy.model import Asked, PodRef, Sandbox
from criproxy.pods import pod_limits
from criproxy.pods.pod_limits import AGAIN_S, SOON_S, AskedOfContainer, PodLimitsUpkeep, settle_containers
from criproxy.pods.runtime import ListedContainer, Running
from tests.fakes.box import FakeBox
from tests.fakes.clock import ClockAhead
from tests.fakes.driver import FakeDriver
from tests.fakes.log import FakeLog
from tests.fakes.part import look, round_of
from tests.fakes.pods import FakeInventory

ASKED = Asked(2048, 1 << 20)


def sandbox(uid: str, **containers: Asked) -> Sandbox:
    return Sandbox(f"s-{uid}", PodRef(uid, "batch", uid), f"/offline/pod{uid}", containers=containers)


class Inventory(FakeInventory):
    def containers_of(self, sandbox_id: str) -> tuple[ListedContainer, ...]:
        """Each sandbox has two containers that run."""
        return tuple(ListedContainer(f"{name}-of-{sandbox_id}", sandbox_id, name, True) for name in ("main", "side"))


class Bench:
    def __init__(self, *placed: Sandbox, held_off: tuple[str, ...] = (), box_held_off: bool = False) -> None:
        self.clock, self.log, self.box, self.inventory = ClockAhead(), FakeLog(), FakeBox("/offline"), Inventory(placed)
        hold_offs = SimpleNamespace(
            covers=lambda pod: pod.uid in held_off, of_box=lambda: "an operator" if box_held_off else None
        )
        shared: Any = SimpleNamespace(
            log=self.log, clock=self.clock, inventory=self.inventory, holds=SimpleNamespace(hold_offs=hold_offs)
        )
        self.part = PodLimitsUpkeep(shared, cast(Any, self.box))

    def looks(self) -> list[object]:
        """What one look at what is due asked of the box, for pods and for containers."""
        self.box.orders.clear()
        self.box.driver.containers.clear()
        look(self.part, self.log)
        return self.asked()

    def asked(self) -> list[object]:
        return [*self.box.orders, *([self.box.driver.containers] if self.box.driver.containers else [])]


LOOK_FAILED = (
    "warning",
    "look_failed",
    {"part": "keeping pods and containers to their limits", "error": "poda: EBUSY", "exc_info": None},
)
A, B = sandbox("a", main=ASKED), sandbox("b")
OF_A = {"main-of-s-a": ContainerLimits(79, 1 << 20)}


def test_all_pods_are_looked_at_when_they_are_listed() -> None:
    bench = Bench(A, B)
    assert bench.looks() == []
    bench.part.pods_listed()
    assert bench.looks() == [("carry", {"poda", "podb"}), OF_A]
    assert bench.looks() == []


def carried(orders: list[object]) -> frozenset[str]:
    return frozenset().union(*(order[1] for order in orders if isinstance(order, tuple)))


def test_of_many_pods_each_has_its_turn_and_none_waits_that_could_not_be_given_its_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_limits, "AT_ONCE", 2)
    bench = Bench(*(sandbox(uid) for uid in "abcde"))
    turns = []
    for turn in range(5):
        bench.box.error = "podb: EBUSY" if turn == 3 else ""
        bench.part.pods_listed()
        turns.append("".join(sorted(name[-1] for name in carried(bench.looks()))))
    assert turns == ["abcde", "ab", "cd", "ae", "abce"], "all at first; then two by turns, and those that failed"


def test_pods_that_have_ended_take_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_limits, "AT_ONCE", 2)
    bench = Bench(*(sandbox(uid) for uid in "abcdef"))
    bench.inventory.ended = {f"s-{uid}" for uid in "abde"}
    for _ in range(3):
        bench.part.pods_listed()
        assert carried(bench.looks()) == {"podc", "podf"}


def test_turns_go_on_as_pods_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_limits, "AT_ONCE", 2)
    bench = Bench(*(sandbox(uid) for uid in "abcde"))
    turns = []
    for placed in ("abcde", "abcde", "acefgh", "gh", "abgh", ""):
        bench.inventory.placed = tuple(sandbox(uid) for uid in placed)
        bench.part.pods_listed()
        turns.append("".join(sorted(name[-1] for name in carried(bench.looks()))))
    assert turns == ["abcde", "ab", "ce", "gh", "ab", ""]


def test_container_that_starts_gets_what_its_pod_asks_for_it_and_another_costs_nothing() -> None:
    bench = Bench(A, B)
    bench.part.pod_started(Running(A, "main-of-s-a", "main"))
    assert bench.looks() == [OF_A]
    for running in (Running(A, "s-a", ""), Running(A, "side-of-s-a", "side"), Running(B, "main-of-s-b", "main")):
        bench.part.pod_started(running)
    assert bench.looks() == []


def test_containers_are_looked_at_once_an_update_is_done_and_the_pod_only_once_kubelet_has_written_its_own() -> None:
    bench = Bench(A, B)
    bench.part.resize_asked(A)
    assert bench.looks() == [], "the runtime has not answered"
    bench.part.resize_done(A)
    assert bench.looks() == [OF_A]
    bench.part.pods_listed()
    assert bench.looks() == [("carry", {"podb"}), OF_A], "kubelet may still have the old values"
    for seconds in (SOON_S, AGAIN_S):
        bench.clock.ahead_s = seconds
        assert bench.looks() == [("carry", {"poda"}), OF_A]
        assert bench.looks() == []


def test_what_is_held_off_is_left_alone() -> None:
    for bench, expected in (
        (Bench(A, B, held_off=("a",)), [("carry", {"podb"})]),
        (Bench(A, B, box_held_off=True), []),
    ):
        bench.part.pods_listed()
        assert bench.looks() == expected


def test_pod_that_takes_no_limit_keeps_no_container_from_its_own_and_is_told_once() -> None:
    bench = Bench(A)
    bench.box.error = "poda: EBUSY"
    for _ in range(2):
        bench.part.pods_listed()
        assert bench.looks() == [("carry", {"poda"})]
    assert bench.box.jobs == ["settle containers"] * 2
    assert bench.log.events == [LOOK_FAILED]


def test_each_update_is_followed_by_another_look_as_kubelet_may_have_been_refused() -> None:
    bench = Bench(A)

    async def play() -> None:
        running = asyncio.create_task(round_of(bench.part, bench.log, bench.clock).run())
        bench.part.resize_asked(A)
        await asyncio.sleep(0.01)
        assert bench.box.orders == []
        bench.clock.ahead_s = AGAIN_S
        bench.part.resize_asked(B)  # which wakes it, as its own time-out would
        for _ in range(5000):
            await asyncio.sleep(0.001)
            if bench.box.orders:
                break
        assert bench.asked() == [("carry", {"poda"}), OF_A]
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(play())


@pytest.mark.parametrize("version", [1, 2])
def test_containers_get_what_they_ask_for_and_one_that_fails_keeps_none_from_it(version: int) -> None:
    driver = FakeDriver()
    driver.version = version
    asked = [
        AskedOfContainer("/offline/poda", "c1", Asked(2048, 4096)),
        AskedOfContainer("/offline/poda", "c2", Asked(0, 0, 500)),
        AskedOfContainer("/offline/poda", "c3", Asked(0, 4096)),
    ]

    first, again = settle_containers(driver, asked), settle_containers(driver, asked)

    assert (len(first), len(again)) == (3, 0)
    assert driver.containers == {
        "c1": ContainerLimits(2048 if version == 1 else 79, 4096),
        "c2": ContainerLimits(),
        "c3": ContainerLimits(None, 4096),
    }
    driver.containers.clear()
    driver.unsettled = {"c1"}
    with pytest.raises(CgroupError, match="c1: EIO"):
        settle_containers(driver, asked)
    assert driver.containers.keys() == {"c2", "c3"}
