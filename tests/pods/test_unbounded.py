"""Offline pods outside the box, between an inventory and a runtime that the test scripts."""

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import structlog

from criproxy.concurrency.worker import Worker
from criproxy.hooks.offline import DEFAULT_RULE, OfflineRules, Rule, Subject, Test
from criproxy.model import Pod, PodRef
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import ON_UNBOUNDED, BudgetError, Holds, PodStopper
from criproxy.pods.unbounded import UnboundedPods, WasOnline, WasOnlineFile
from tests.fakes.clock import FakeClock
from tests.fakes.hold_offs import held_off as offs
from tests.fakes.pods import FakePodsRuntime

RULES = OfflineRules((DEFAULT_RULE,))
REPORT, EVICT, OFF = (RULES, set[str]()), (RULES, {ON_UNBOUNDED}), (None, set[str]())
Settings = tuple[OfflineRules | None, set[str]]


def pod(name: str, *, offline: bool) -> Pod:
    return Pod(PodRef(name, "batch", name), {DEFAULT_RULE.key: "offline"} if offline else {})


class NoFile:
    """Where nothing was left, and nothing is."""

    def __init__(self) -> None:
        self.written = WasOnline()

    async def read(self, *_: object) -> WasOnline:
        return self.written

    async def write(self, started: WasOnline) -> None:
        self.written = started


def bench(
    settings: Settings, *names: str, held_off: str = "", file: NoFile | WasOnlineFile | None = None
) -> tuple[UnboundedPods, FakePodsRuntime]:
    outside = {"on": pod("on", offline=False), **{name: pod(name, offline=True) for name in names}}
    runtime = FakePodsRuntime(outside=outside)
    rules, stops_by = settings
    hold_offs = offs(FakeClock(), *([held_off] if held_off else []))
    holds = Holds(None, hold_offs, frozenset(stops_by))  # type: ignore[arg-type]
    shared = PodsShared(runtime, runtime, holds, None, None, structlog.get_logger())  # type: ignore[arg-type]
    stopper = PodStopper(runtime, shared.log, runtime, holds)  # type: ignore[arg-type]
    return UnboundedPods(shared, stopper, file or NoFile(), rules), runtime  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "found", "stopped"),
    [
        pytest.param(REPORT, {"a", "b"}, [], id="report"),
        pytest.param(EVICT, set(), ["a", "b"], id="evict"),
        pytest.param(OFF, set(), [], id="colocation-off"),
    ],
)
def test_look_does_as_the_settings_say(settings: Settings, found: set[str], stopped: list[str]) -> None:
    unbounded, runtime = bench(settings, "a", "b")
    asyncio.run(unbounded.look())
    assert (set(unbounded.pods()), runtime.stopped) == (found, stopped)


def test_look_tells_of_each_pod_once() -> None:
    unbounded, runtime = bench(REPORT, "a")
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            asyncio.run(unbounded.look())
        runtime.outside = {}
        asyncio.run(unbounded.look())
        runtime.outside = {"b": pod("b", offline=True)}
        asyncio.run(unbounded.look())
    assert [(log["event"], log["pod"]) for log in logs] == [
        ("offline_pod_unbounded", "batch/a"),
        ("offline_pod_unbounded", "batch/b"),
    ]


def test_look_stops_a_pod_once_and_the_others_beside_a_stubborn_one() -> None:
    unbounded, runtime = bench(EVICT, "a", "b")
    runtime.stubborn = {"a"}
    with pytest.raises(ConnectionError, match="a does not stop"):
        asyncio.run(unbounded.look())
    assert (set(unbounded.pods()), runtime.stopped) == ({"a"}, ["b"])
    runtime.stubborn = set()
    asyncio.run(unbounded.look())
    asyncio.run(unbounded.look())
    assert runtime.stopped == ["b", "a"]


def test_pod_that_an_operator_holds_criproxy_off_is_told_and_not_stopped() -> None:
    unbounded, runtime = bench(EVICT, "a", "b", held_off="b")
    asyncio.run(unbounded.look())
    assert (set(unbounded.pods()), runtime.stopped) == ({"b"}, ["a"])


def test_pods_go_within_the_budget_and_the_rest_later_by_and_by() -> None:
    unbounded, runtime = bench(EVICT, *(f"p{number:02}" for number in range(20)))
    clock = unbounded.stopper.clock = FakeClock()
    gone, waits = [], []
    with structlog.testing.capture_logs() as logs:
        for _ in range(50):
            asyncio.run(unbounded.look())
            gone.append(len(runtime.stopped))
            waits += [line for line in unbounded.problems() if "wait" in line]
            clock.advance(60.0)
    assert [gone[0], gone[9], gone[10], gone[20], gone[-1]] == [6, 6, 12, 18, 20]
    assert waits[0] == ("14 offline pods wait to be stopped, as at most 6 go in ten minutes (interference.evict_most)")
    assert [(log["pods"], log["most"]) for log in logs if log["event"] == "stops_wait"] == [(14, 6)]


# --- what was online when it started ----------------------------------------------------------------------------------

ALL = OfflineRules((Rule(Subject.NAMESPACE, "", Test.PREFIX, "b"), DEFAULT_RULE))
"""By mistake, or by malice: of the whole node."""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[WasOnlineFile]:
    worker = Worker("test", 5.0)
    yield WasOnlineFile(tmp_path / "criproxy.online", worker, structlog.get_logger())
    worker.close()


def now_all(unbounded: UnboundedPods) -> None:
    unbounded.rules = ALL
    unbounded.shared.holds.stops_by = frozenset({ON_UNBOUNDED})


def test_pod_that_only_a_change_of_the_rules_makes_offline_is_told_and_never_stopped() -> None:
    unbounded, runtime = bench(REPORT, "a")
    asyncio.run(unbounded.look())
    now_all(unbounded)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            asyncio.run(unbounded.look())
    assert (set(unbounded.pods()), runtime.stopped) == ({"on"}, ["a"])
    assert [(log["pod"], log["was_online"]) for log in logs if log["event"] == "offline_pod_unbounded"] == [
        ("batch/on", True)
    ]
    unbounded.rules = RULES
    asyncio.run(unbounded.look())
    now_all(unbounded)
    asyncio.run(unbounded.look())
    assert runtime.stopped == ["a"]


def test_pod_that_starts_past_criproxy_under_the_new_rules_is_stopped() -> None:
    unbounded, runtime = bench(REPORT)
    asyncio.run(unbounded.look())
    now_all(unbounded)
    asyncio.run(unbounded.look())
    runtime.outside = {**runtime.outside, "late": pod("late", offline=False)}
    asyncio.run(unbounded.look())
    assert runtime.stopped == ["late"]


@pytest.mark.parametrize("off_between", [False, True])
def test_who_was_online_is_known_after_a_restart_with_other_rules(file: WasOnlineFile, off_between: bool) -> None:
    async def scenario() -> None:
        before, _ = bench(REPORT, "a", file=file)
        await before.look()
        after, runtime = bench(OFF if off_between else (ALL, {ON_UNBOUNDED}), "a", file=file)
        await after.look()
        now_all(after)
        await after.look()
        assert runtime.stopped == ["a"]

    asyncio.run(scenario())


def test_damaged_file_makes_nobody_offline(file: WasOnlineFile) -> None:
    async def scenario() -> None:
        file.path.write_bytes(b"{")
        unbounded, runtime = bench((ALL, {ON_UNBOUNDED}), "a", file=file)
        await unbounded.look()
        await unbounded.look()
        assert runtime.stopped == []
        again, runtime = bench((ALL, {ON_UNBOUNDED}), "a", file=file)
        await again.look()
        assert runtime.stopped == [], "as it was set right"

    asyncio.run(scenario())


def test_file_is_for_its_own_user_alone(file: WasOnlineFile) -> None:
    asyncio.run(file.write(WasOnline()))
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_file_of_2_mib_is_damaged_and_stops_nobody(file: WasOnlineFile) -> None:
    async def scenario() -> None:
        file.path.write_bytes(msgspec.json.encode(WasOnline()) + b" " * (2 << 20))
        unbounded, runtime = bench((ALL, {ON_UNBOUNDED}), "a", file=file)
        await unbounded.look()
        assert runtime.stopped == []

    asyncio.run(scenario())


def test_file_that_can_t_be_read_stops_nobody(file: WasOnlineFile) -> None:
    file.path.mkdir()
    unbounded, runtime = bench((ALL, {ON_UNBOUNDED}), "a", file=file)
    with pytest.raises(IsADirectoryError):
        asyncio.run(unbounded.look())
    assert runtime.stopped == []


def test_pod_whose_budget_does_not_let_it_go_is_not_stopped() -> None:
    class Holding:
        async def evict(self, *_: object, **__: object) -> float:
            raise BudgetError("no more than this")

    unbounded, runtime = bench(EVICT, "a")
    unbounded.stopper.evicts = Holding()  # type: ignore[assignment]
    asyncio.run(unbounded.look())
    assert (set(unbounded.pods()), runtime.stopped) == ({"a"}, [])


def test_nobody_is_stopped_before_it_is_known_who_is_in_the_box() -> None:
    unbounded, runtime = bench(EVICT, "a")
    runtime.places_known = False
    asyncio.run(unbounded.look())
    assert (set(unbounded.pods()), runtime.stopped) == ({"a"}, [])
    runtime.places_known = True
    asyncio.run(unbounded.look())
    assert runtime.stopped == ["a"]
