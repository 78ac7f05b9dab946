"""Events, at a server that forgets them, refuses them, or is away."""

import asyncio

import pytest

from criproxy.control.interference.ladder import Rung, Transition
from criproxy.kube.events import BURST, EVERY_S, MAX_UNTOLD, EventWriter, of_ladder
from criproxy.kube.objects import MAX_MESSAGE, Involved
from tests.fakes.waiting import until
from tests.kube.conftest import KubeBench

POD = Involved("Pod", "a", "uid-a", namespace="jobs")


class Bench(KubeBench):
    def __init__(self, credential, clock, api):
        super().__init__(credential, clock, api)
        self.writer = EventWriter(self.client, Involved("Node", "node1", "node1"), **self.how)

    def step(self, before=Rung.OPEN, after=Rung.SQUEEZED, reason="online waits", resource="cpu"):
        self.writer.transition(Transition(0.0, resource, before, after, "cpu_pressure", reason))
        asyncio.run(self.writer.tell_all())

    def told(self):
        return [(one["reason"], one["message"], one["count"]) for one in self.api.events]


@pytest.fixture
def bench(credential, clock, api):
    return Bench(credential, clock, api)


@pytest.mark.parametrize(
    ("before", "after", "reason", "well"),
    [
        pytest.param(Rung.OPEN, Rung.TRIED, None, False, id="an experiment"),
        pytest.param(Rung.TRIED, Rung.OPEN, None, False, id="an experiment that has shown nothing"),
        pytest.param(Rung.TRIED, Rung.SQUEEZED, "ColocationSqueezed", False, id="squeezed"),
        pytest.param(Rung.SQUEEZED, Rung.CLOSED, "ColocationClosed", False, id="closed"),
        pytest.param(Rung.CLOSED, Rung.EVICTING, "ColocationEvicting", False, id="evicting"),
        pytest.param(Rung.EVICTING, Rung.CLOSED, "ColocationClosed", True, id="closed, after evicting"),
        pytest.param(Rung.CLOSED, Rung.SQUEEZED, "ColocationSqueezed", True, id="squeezed, after closed"),
        pytest.param(Rung.SQUEEZED, Rung.OPEN, "ColocationCalm", True, id="calm again"),
    ],
)
def test_step_of_the_ladder(before, after, reason, well):
    told = of_ladder(Transition(0.0, "cpu", before, after, "cpu_pressure", "so"))
    assert (told and (told.reason, told.message, told.well)) == (
        reason and (reason, f"cpu: {before} -> {after}: so", well)
    )


def test_steps_are_told_on_the_node_as_warnings_until_it_is_calm_again(bench, api):
    bench.step()
    bench.step(Rung.SQUEEZED, Rung.OPEN, "calm for 300 s")
    assert bench.told() == [
        ("ColocationSqueezed", "cpu: open -> squeezed: online waits", 1),
        ("ColocationCalm", "cpu: squeezed -> open: calm for 300 s", 1),
    ]
    assert [one["type"] for one in api.events] == ["Warning", "Normal"]
    assert {(one["involvedObject"]["kind"], one["involvedObject"]["name"]) for one in api.events} == {("Node", "node1")}


def test_same_step_again_is_counted_by_the_event_that_is_there(bench, api, clock):
    bench.step(reason="online waits 30 %")
    first = api.events[0]
    clock.advance(60)
    clock.wall += 60
    bench.step(reason="online waits 50 %")
    bench.step(resource="memory")
    assert bench.told() == [
        ("ColocationSqueezed", "cpu: open -> squeezed: online waits 50 %", 2),
        ("ColocationSqueezed", "memory: open -> squeezed: online waits", 1),
    ]
    assert api.events[0]["firstTimestamp"] == first["firstTimestamp"] < api.events[0]["lastTimestamp"]


def test_message_of_a_step_that_comes_again_is_bounded_too(bench, api):
    bench.step()
    bench.step(reason="x" * 5000)
    assert len(api.events[0]["message"]) == MAX_MESSAGE


def test_event_that_the_server_has_forgotten_is_made_anew(bench, api):
    bench.step()
    api.events.clear()
    bench.step()
    assert bench.told() == [("ColocationSqueezed", "cpu: open -> squeezed: online waits", 2)]


def test_steps_to_and_fro_are_bounded(bench, api, clock):
    for _ in range(20):
        bench.step()
        bench.step(Rung.SQUEEZED, Rung.OPEN)
    assert len(api.seen("POST", "/events")) == 2
    assert sum(one["count"] for one in api.events) == BURST
    clock.advance(EVERY_S)
    bench.step()
    bench.step()
    assert sum(one["count"] for one in api.events) == BURST + 1


def test_what_was_done_to_a_pod_is_told_each_time(bench, api):
    for _ in range(int(BURST) + 5):
        bench.writer.tell(POD, "EvictedByColocation", "why")
    asyncio.run(bench.writer.tell_all())
    assert len(api.events) == BURST + 5
    assert {one["metadata"]["namespace"] for one in api.events} == {"jobs"}


@pytest.mark.parametrize("how", [{"status": 403}, {"raw": b""}], ids=str)
def test_event_that_cannot_be_told_is_left(bench, api, how):
    for number in range(MAX_UNTOLD + 1):
        bench.writer.tell(POD, "EvictedByColocation", f"{number}")
    api.fail("events", times=4, **how)
    asyncio.run(bench.writer.tell_all())
    assert bench.log.names() == ["event_not_told"] * (4 if "status" in how else 1)
    assert len(api.events) == MAX_UNTOLD - len(bench.log.names())
    assert api.events[-1]["message"] == f"{MAX_UNTOLD}"


def test_run_tells_until_it_is_cancelled(bench, api):
    async def scenario():
        telling = asyncio.create_task(bench.writer.run())
        bench.writer.tell(POD, "EvictedByColocation", "why")
        await until(lambda: api.events)
        telling.cancel()

    asyncio.run(scenario())
