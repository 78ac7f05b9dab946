"""Offline pods outside the box, between an inventory and a runtime that the test scripts."""

import asyncio

import pytest
import structlog

from criproxy.hooks.offline import DEFAULT_RULE, OfflineRules
from criproxy.model import Pod, PodRef
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import ON_UNBOUNDED, Holds, PodStopper
from criproxy.pods.unbounded import UnboundedPods
from tests.fakes.clock import FakeClock
from tests.fakes.hold_offs import held_off as offs
from tests.fakes.pods import FakePodsRuntime

RULES = OfflineRules((DEFAULT_RULE,))
REPORT, EVICT, OFF = (RULES, set[str]()), (RULES, {ON_UNBOUNDED}), (None, set[str]())
Settings = tuple[OfflineRules | None, set[str]]


def pod(name: str, *, offline: bool) -> Pod:
    return Pod(PodRef(name, "batch", name), {DEFAULT_RULE.key: "offline"} if offline else {})


def bench(settings: Settings, *names: str, held_off: str = "") -> tuple[UnboundedPods, FakePodsRuntime]:
    outside = {"on": pod("on", offline=False), **{name: pod(name, offline=True) for name in names}}
    runtime = FakePodsRuntime(outside=outside)
    rules, stops_by = settings
    hold_offs = offs(FakeClock(), *([held_off] if held_off else []))
    holds = Holds(None, hold_offs, frozenset(stops_by))  # type: ignore[arg-type]
    shared = PodsShared(runtime, runtime, holds, None, None, structlog.get_logger())  # type: ignore[arg-type]
    return UnboundedPods(shared, PodStopper(runtime, shared.log, runtime, holds), rules), runtime  # type: ignore[arg-type]


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
