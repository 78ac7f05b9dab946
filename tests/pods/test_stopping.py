"""Who may not start for a while, after having been stopped."""

import asyncio
import gc
import math
from collections.abc import Callable

import pytest
import structlog
from msgspec.structs import replace
from structlog.testing import capture_logs

from criproxy.model import PodRef
from criproxy.pods import stopping as stopping_module
from criproxy.pods.hold_offs import HoldOff
from criproxy.pods.runtime import ListedContainer
from criproxy.pods.stopping import ON_CLOSE, ON_OVER_LIMIT, ON_UNBOUNDED, Holds, KnownPod, Leave, PodStopper
from tests.fakes.clock import FakeClock
from tests.fakes.hold_offs import no_hold_offs

POD, OTHER = PodRef("1", "batch", "job"), PodRef("2", "batch", "other")


def holds() -> tuple[Holds, FakeClock]:
    clock = FakeClock()
    return Holds(clock, no_hold_offs(clock)), clock


def test_pod_is_held_for_its_time_and_no_other_one_is() -> None:
    held, clock = holds()
    held.hold(POD, 60.0, "it printed", ON_UNBOUNDED)
    clock.now += 20.0
    assert held.held(POD) == ("it was stopped, as it printed (colocation.on_unbounded), so it is not let in for 40 s")
    assert held.held(OTHER) == ""
    clock.now += 40.0
    assert held.held(POD) == ""


def test_hold_ends_with_its_setting_and_others_go_on() -> None:
    held, _ = holds()
    held.hold(POD, 60.0, "it printed", ON_UNBOUNDED)
    held.hold(POD, 60.0, "memory ended", ON_OVER_LIMIT)
    held.configure(frozenset([ON_OVER_LIMIT]))
    assert "memory ended" in held.held(POD)
    held.configure(frozenset())
    assert held.held(POD) == ""


def test_everybody_is_held_until_that_is_over() -> None:
    held, _ = holds()
    held.close("the box is over")
    assert (held.held(POD), held.held(OTHER)) == ("the box is over",) * 2
    assert held.held_itself(POD) == "", "what it has already may go on"
    held.close("")
    assert held.held(POD) == ""


@pytest.mark.parametrize("judges_on", [False, True])
def test_nobody_is_held_or_stopped_here_while_another_process_serves(judges_on: bool) -> None:
    """But while it is still asked who may start."""
    held, _ = holds()
    held.configure(frozenset([ON_UNBOUNDED]))
    held.hold(POD, 60.0, "it printed", ON_UNBOUNDED)
    held.close("the box is over")
    held.rest(judges_on=judges_on)
    assert (held.held(POD) != "", held.held(OTHER)) == (judges_on, "the box is over" if judges_on else "")
    assert not held.stops(ON_UNBOUNDED, POD)
    held.resume()
    assert (held.held(POD) != "", held.held(OTHER)) == (True, "the box is over")


def test_hold_is_added_as_a_whole_as_the_status_is_asked_from_a_thread() -> None:
    class Watched(Holds):
        def __setattr__(self, name: str, value: object) -> None:
            seen.append(dict(value) if isinstance(value, dict) else value)
            super().__setattr__(name, value)

    seen: list[object] = []
    clock = FakeClock()
    held = Watched(clock, no_hold_offs(clock))
    held.hold(POD, 60.0, "it printed", ON_UNBOUNDED)
    assert seen[-1] == {(POD.uid, ON_UNBOUNDED): (1060.0, "it printed")}


# --- stops, with and without notice --------------------------------------------------------------------------------


class Pods:
    """The runtime and the inventory: pods with two containers each, which take notice until `ended` is set."""

    def __init__(self, **notice_s: int) -> None:
        self.notices = notice_s
        self.did: list[tuple[object, ...]] = []
        self.ended = asyncio.Event()
        self.broken: set[str] = set()
        self.waited_for: list[str] = []

    def notice_s(self, sandbox_id: str) -> int:
        return self.notices.get(sandbox_id, 0)

    def containers_of(self, sandbox_id: str) -> tuple[ListedContainer, ...]:
        return tuple(ListedContainer(f"{sandbox_id}-{name}", sandbox_id, name, True) for name in ("main", "side"))

    async def give_notice(self, container_id: str, notice_s: int) -> None:
        self.did.append(("notice", container_id, notice_s))
        if container_id in self.broken:
            raise ConnectionError("gone")
        self.waited_for.append(container_id)
        try:
            await self.ended.wait()
        finally:
            self.waited_for.remove(container_id)

    async def stop(self, sandbox_id: str) -> None:
        self.did.append(("stop", sandbox_id))
        if sandbox_id in self.broken:
            raise ConnectionError("it does not stop")


WANTED = {"s1": Leave(POD, "the schedule is off", ON_CLOSE), "s2": Leave(OTHER, "the schedule is off", ON_CLOSE)}


def stopping() -> Holds:
    clock = FakeClock()
    return Holds(clock, no_hold_offs(clock), frozenset([ON_CLOSE]))


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_pod_that_asks_for_notice_has_it_before_it_is_stopped_and_keeps_nobody_waiting() -> None:
    async def test() -> None:
        pods = Pods(s1=30)
        stopper = PodStopper(pods, structlog.get_logger(), pods, stopping())  # type: ignore[arg-type]
        await stopper.stop_all(WANTED)
        await settled()
        await stopper.stop_all(WANTED)
        assert sorted(pods.did) == [("notice", "s1-main", 30), ("notice", "s1-side", 30), ("stop", "s2")]
        assert stopper.stopped == {"s2"}
        pods.ended.set()
        await settled()
        assert pods.did[-1] == ("stop", "s1")
        assert stopper.stopped == {"s1", "s2"}
        await stopper.stop_all(WANTED)
        assert len(pods.did) == 4

    asyncio.run(test())


def test_stop_that_hangs_is_asked_for_once_and_keeps_no_other_pod_until_all_ceases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Hangs(Pods):
        async def stop(self, sandbox_id: str) -> None:
            await super().stop(sandbox_id)
            if sandbox_id == "s1":
                await asyncio.Event().wait()

    async def test() -> None:
        pods = Hangs()
        stopper = PodStopper(pods, structlog.get_logger(), pods, stopping())  # type: ignore[arg-type]
        await stopper.stop_all({"s1": WANTED["s1"]})
        await stopper.stop_all(WANTED)
        assert (pods.did, stopper.stopped) == ([("stop", "s1"), ("stop", "s2")], {"s2"})
        stopper.cease()
        await settled()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    monkeypatch.setattr("criproxy.pods.stopping.STOPS_S", 0.01)
    asyncio.run(test())


def test_stop_that_fails_late_is_raised_by_the_next_call_and_tried_again_by_the_one_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Late(Pods):
        async def stop(self, sandbox_id: str) -> None:
            self.did.append(("stop", sandbox_id))
            await self.ended.wait()
            raise ConnectionError("it does not stop")

    async def test() -> None:
        pods = Late()
        stopper = PodStopper(pods, structlog.get_logger(), pods, stopping())  # type: ignore[arg-type]
        await stopper.stop_all({"s1": WANTED["s1"]})
        pods.ended.set()
        await settled()
        for tries in (1, 2):
            with pytest.raises(ConnectionError):
                await stopper.stop_all({"s1": WANTED["s1"]})
            assert len(pods.did) == tries

    monkeypatch.setattr("criproxy.pods.stopping.STOPS_S", 0.01)
    asyncio.run(test())


class Told:
    """Kubernetes, which lets no pod go, and what it was told of."""

    def __init__(self) -> None:
        self.pods: list[tuple[PodRef, str]] = []

    async def known(self, *, within_s: float) -> dict[str, KnownPod]:
        return {}

    async def evict(
        self, pod: PodRef, why: str, *, within_s: float, grace_s: int | None = None, still: Callable[[], bool] = bool
    ) -> float | None:
        return None

    def promised_cores(self) -> float | None:
        return None

    def stopped(self, pod: PodRef, why: str) -> None:
        self.pods.append((pod, why))


def test_kubernetes_is_told_once_of_a_pod_that_is_stopped_however_often_that_is_tried() -> None:
    async def test() -> None:
        pods, told = Pods(), Told()
        pods.broken = {"s1"}
        stopper = PodStopper(pods, structlog.get_logger(), pods, stopping(), told)  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(ConnectionError):
                await stopper.stop_all({"s1": WANTED["s1"]})
        assert told.pods == [(POD, "the schedule is off")]

    asyncio.run(test())


def test_there_is_no_notice_where_there_is_no_time_for_it() -> None:
    async def test() -> None:
        pods = Pods(s1=30)
        await PodStopper(pods, structlog.get_logger(), pods, stopping()).stop("s1", WANTED["s1"], at_once=True)  # type: ignore[arg-type]
        assert pods.did == [("stop", "s1")]

    asyncio.run(test())


def test_notice_that_cannot_be_given_does_not_keep_the_pod_and_a_stop_that_fails_is_tried_again() -> None:
    async def test() -> None:
        pods = Pods(s1=30)
        pods.ended.set()
        pods.broken = {"s1-main", "s1-side", "s1"}
        stopper = PodStopper(pods, structlog.get_logger(), pods, stopping())  # type: ignore[arg-type]
        with capture_logs() as logs:
            await stopper.stop_all({"s1": WANTED["s1"]})
            await settled()
        assert [entry["event"] for entry in logs] == ["notice", "stop", "not_stopped"]
        pods.broken = set()
        await stopper.stop_all({"s1": WANTED["s1"]})
        await settled()
        assert [what for what in pods.did if what[0] == "stop"] == [("stop", "s1")] * 2
        assert stopper.stopped == {"s1"}

    asyncio.run(test())


# --- asked again ---------------------------------------------------------------------------------------------------

CHANGES = {
    "held-off": lambda holds: holds.hold_offs.__setattr__("_all", {"1": HoldOff("1", "batch/job", math.inf, "repair")}),
    "switched-off": lambda holds: holds.configure(frozenset()),
    "ceased": lambda holds: holds.rest(judges_on=False),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_pod_that_is_not_to_go_any_more_when_its_notice_is_over_stays(change: Callable[[Holds], object]) -> None:
    async def test() -> None:
        pods, holds = Pods(s1=30), stopping()
        stopper = PodStopper(pods, structlog.get_logger(), pods, holds)  # type: ignore[arg-type]
        await stopper.stop_all({"s1": WANTED["s1"]})
        await settled()
        change(holds)
        pods.ended.set()
        await settled()
        assert [what for what, *_ in pods.did] == ["notice", "notice"]
        assert (stopper.stopped, stopper.leaving) == (frozenset(), frozenset())

    asyncio.run(test())


@pytest.mark.parametrize("name", ["held-off", "switched-off"])
def test_pod_that_is_not_to_go_any_more_amid_its_notice_is_not_killed_by_the_runtime_either(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime kills a container at the end of StopContainer's time, unless the call is cancelled before."""
    monkeypatch.setattr(stopping_module, "_CALLED_OFF_S", 0.01)

    async def test() -> None:
        pods, holds = Pods(s1=30), stopping()
        stopper = PodStopper(pods, structlog.get_logger(), pods, holds)  # type: ignore[arg-type]
        await stopper.stop_all({"s1": WANTED["s1"]})
        await settled()
        assert sorted(pods.waited_for) == ["s1-main", "s1-side"]
        CHANGES[name](holds)
        await asyncio.sleep(0.1)
        assert pods.waited_for == []
        assert stopper.leaving == frozenset()

    asyncio.run(test())


@pytest.mark.parametrize(("name", "is_out"), [("held-off", False), ("switched-off", False), ("ceased", True)])
def test_pod_whose_stop_is_called_off_amid_its_notice_is_let_in_again(
    name: str, is_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But where another process goes on with the stop, and this one may come back."""
    monkeypatch.setattr(stopping_module, "_CALLED_OFF_S", 0.01)

    async def test() -> None:
        pods, holds = Pods(s1=30), stopping()
        stopper = PodStopper(pods, structlog.get_logger(), pods, holds)  # type: ignore[arg-type]
        await stopper.stop_all({"s1": replace(WANTED["s1"], held="it has used its disk up")})
        await settled()
        assert holds.held_itself(POD)
        CHANGES[name](holds)
        if name == "ceased":
            pods.ended.set()
        await asyncio.sleep(0.1)
        assert stopper.leaving == frozenset()
        holds.resume()
        assert bool(holds.held_itself(POD)) is is_out

    asyncio.run(test())


def test_notice_that_is_called_off_leaves_no_error_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping_module, "_CALLED_OFF_S", 0.01)
    reported: list[str] = []

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
        pods, holds = Pods(s1=30), stopping()
        pods.broken = {"s1-side"}
        stopper = PodStopper(pods, structlog.get_logger(), pods, holds)  # type: ignore[arg-type]
        await stopper.stop_all({"s1": WANTED["s1"]})
        await settled()
        CHANGES["held-off"](holds)
        await asyncio.sleep(0.1)
        assert (pods.waited_for, stopper.leaving) == ([], frozenset())
        gc.collect()

    asyncio.run(test())
    assert reported == []


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_pod_that_is_not_to_go_any_more_when_no_server_has_answered_stays(
    change: Callable[[Holds], object],
) -> None:
    class Away(Told):
        async def evict(
            self,
            pod: PodRef,
            why: str,
            *,
            within_s: float,
            grace_s: int | None = None,
            still: Callable[[], bool] = bool,
        ) -> float | None:
            before = still()
            change(holds)
            asked.append((before, still()))
            return None

    asked: list[tuple[bool, bool]] = []
    pods, holds, away = Pods(), stopping(), Away()
    stopper = PodStopper(pods, structlog.get_logger(), pods, holds, away)  # type: ignore[arg-type]
    asyncio.run(stopper.stop_all({"s1": WANTED["s1"]}))
    assert (asked, pods.did, away.pods) == ([(True, False)], [], [])


def test_pod_that_is_held_off_goes_where_that_was_decided_so() -> None:
    pods, holds = Pods(), stopping()
    CHANGES["held-off"](holds)
    stopper = PodStopper(pods, structlog.get_logger(), pods, holds)  # type: ignore[arg-type]
    asyncio.run(stopper.stop("s1", Leave(POD, "memory ends", ON_CLOSE, held_off_too=True)))
    assert pods.did == [("stop", "s1")]
