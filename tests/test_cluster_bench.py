"""The pure parts of `./bench cluster`."""

import asyncio
import random
from array import array
from typing import cast

import pytest

from benchmarks.cluster.agents import Agent, Counter, NodeClock, Plan, courses
from benchmarks.cluster.figures import Figure, lateness, line, requests, since
from benchmarks.cluster.load import SIZES, Course, NodeLoad
from criproxy.kube.client import ApiAnswer, ApiClient, ApiRequest, UnreachableError
from criproxy.kube.extended_resources import PublishSettings, wanted

METRICS = """\
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="apiserver",resource="nodes",scope="cluster",subresource="",verb="PATCH"} 3
apiserver_request_total{code="409",component="apiserver",resource="nodes",scope="cluster",subresource="",verb="PATCH"} 1
apiserver_request_total{code="200",resource="nodes",subresource="status",verb="PATCH"} 1.2e+01
apiserver_request_duration_seconds_count{resource="nodes",subresource="",verb="PATCH"} 99
"""


def test_requests_are_counted_by_what_they_do_whatever_came_of_them():
    assert requests(METRICS) == {("PATCH", "nodes", ""): 4, ("PATCH", "nodes", "status"): 12}


def test_requests_since_a_look_leave_out_what_did_not_grow():
    before = {("GET", "nodes", ""): 2, ("PATCH", "nodes", ""): 1}
    assert since(before, {**before, ("PATCH", "nodes", ""): 5, ("LIST", "pods", ""): 1}) == {
        ("PATCH", "nodes", ""): 4,
        ("LIST", "pods", ""): 1,
    }


@pytest.mark.parametrize(
    ("most", "target", "met"), [(None, "", ""), (33.0, "at most 33 /s", "met"), (32.0, "at most 32 /s", "NOT MET")]
)
def test_a_figure_meets_its_target_up_to_it(most, target, met):
    found = line(Figure("patches", 33.0, "/s", most))
    assert (found.measured, found.target, found.met) == ("33 /s", target, met)


def test_simulated_nodes_lend_by_the_publishers_law():
    cpu, memory = courses(Plan("", 0, 1))
    source = random.Random(1)
    found = set()
    for _ in range(30):
        load = NodeLoad(cpu, memory, source)
        assert (load.cores, load.memory_bytes >> 30) in SIZES
        first = load.offer(0.0)
        assert load.offer(0.001) is first
        want = wanted(first, PublishSettings())
        assert 0 < want["kubernetes.io/batch-cpu"] < 900 * load.cores
        assert 0 < want["kubernetes.io/batch-memory"] < 0.9 * load.memory_bytes
        found.add(want["kubernetes.io/batch-cpu"])
    assert len(found) > 20


def test_simulated_node_has_published_by_the_time_that_it_is_there():
    clock = NodeClock()
    counter = Counter(clock)
    agent = simulated(counter, clock, NodeLoad(*courses(Plan("", 0, 1)), random.Random(1)))
    status = asyncio.run(agent.live(600.0))
    assert counter.troubles == []
    assert int(status["capacity"]["kubernetes.io/batch-cpu"]) > 0


class _Gone:
    """An API server that does not answer."""

    async def ask(self, request: ApiRequest) -> ApiAnswer:
        raise UnreachableError("gone")


class _Taker:
    """An API server that takes everything."""

    async def ask(self, request: ApiRequest) -> ApiAnswer:
        return ApiAnswer(200, b"{}")


STEP_S = 300.0


def risen() -> NodeLoad:
    """Online uses ever more of the node from its second sample on."""
    cpu = Course(STEP_S, array("d", (0.1, *(0.8,) * 100)), array("d", (0.1, *(0.8,) * 100)))
    memory = Course(STEP_S, array("d", (0.1,) * 100), array("d", (0.1,) * 100))
    load = NodeLoad([cpu], [memory], random.Random(1))
    load._begins_s = dict.fromkeys(load._begins_s, 0.0)
    return load


def simulated(counter, clock, load, client=None):
    return Agent("node0", cast("ApiClient", client), load, clock=clock, rng=random.Random(1), counter=counter)


@pytest.mark.parametrize("seen_after_s", [0.0, 5.0])
def test_number_that_falls_is_off_from_its_sample_on_until_it_is_published(seen_after_s):
    clock = NodeClock()
    counter = Counter(clock)
    agent = simulated(counter, clock, risen(), _Taker())

    async def lived():
        await agent.live(STEP_S - 60.0)
        clock.back_s = -60.0 - seen_after_s
        agent.offer()
        assert counter.taken().late_s == [pytest.approx(seen_after_s, abs=1.0)]
        clock.back_s -= 2.0
        await agent.ask(ApiRequest("PATCH", "/api/v1/nodes/node0/status", b"", ""))

    asyncio.run(lived())
    assert counter.taken().late_s == [pytest.approx(seen_after_s + 2.0, abs=1.0)]
    assert counter.taken().late_s == []


def test_node_that_is_never_mended_is_late_for_as_long_and_misses_the_target():
    clock = NodeClock()
    counter = Counter(clock)
    agent = simulated(counter, clock, risen(), _Gone())

    async def lived():
        await agent.live(STEP_S - 60.0)
        clock.back_s = -70.0
        await agent._publisher.look()
        clock.back_s = -3670.0
        await agent._publisher.look()

    asyncio.run(lived())
    figures = counter.taken()
    assert figures.failed > 0
    (late_s,) = figures.late_s
    assert late_s >= 3600.0
    assert [one.met for one in lateness([*(1.0,) * 1000, late_s])] == [True, False]
    assert [one.met for one in lateness([late_s])] == [False, False]


def test_lateness_is_told_where_no_number_was_off():
    assert [(one.value, one.met) for one in lateness([])] == [(0.0, True), (0.0, True)]
