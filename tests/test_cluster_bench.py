"""The pure parts of `./bench cluster`."""

import asyncio
import random
from typing import cast

import pytest

from benchmarks.cluster.agents import Agent, Counter, NodeClock, Plan, courses
from benchmarks.cluster.figures import Figure, line, requests, since
from benchmarks.cluster.load import SIZES, NodeLoad
from criproxy.kube.client import ApiClient
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
    rng, counter = random.Random(1), Counter()
    load, client = NodeLoad(*courses(Plan("", 0, 1)), rng), cast("ApiClient", None)  # the past has a server of its own
    agent = Agent("node0", client, load, clock=NodeClock(), rng=rng, counter=counter)
    status = asyncio.run(agent.live(600.0))
    assert counter.troubles == []
    assert int(status["capacity"]["kubernetes.io/batch-cpu"]) > 0
