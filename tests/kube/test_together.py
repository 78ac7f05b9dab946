"""The watch, the publisher and the policy of one node, all running, at one server."""

import asyncio
import json

import pytest

from criproxy.concurrency.clock import Clock
from criproxy.config import OwnFiles
from criproxy.control.publication import Lendable
from criproxy.kube.client import Timeouts
from criproxy.kube.extended_resources import QUIET_S, Offer, PublishSettings
from criproxy.kube.node_watch import NodeWatch
from criproxy.kube.policy import PolicyFollower
from criproxy.kube.publisher import Publisher
from criproxy.model import CPU, MEMORY
from criproxy.vocabulary.names import POLICY, POLICY_STATUS
from tests.fakes.waiting import until
from tests.kube.conftest import KubeBench


class Hurried(Clock):
    """A second of it takes ten milliseconds, in sleep and by the clock."""

    def boottime_s(self):
        return super().boottime_s() * 100

    async def sleep(self, seconds, slack_s=0.0, wake=None):
        await asyncio.sleep(seconds / 100)


class Node(KubeBench):
    def __init__(self, folder, credential, api):
        super().__init__(credential, Hurried(), api, Timeouts(silence_s=2.0))
        self.cores, self.taken, how = 4.0, 0, self.how
        (folder / "config.toml").write_text("")
        self.publisher = Publisher(self.client, "node1", self, PublishSettings(), **how)
        own = OwnFiles(folder / "config.toml")
        own.load()
        files = (own, folder / "policy.json")
        self.follower = PolicyFollower(self.client, "node1", files, self, **how)
        self.watch = NodeWatch(self.client, "node1", [self.publisher, self.follower], **how)
        self.parts = (self.watch, self.publisher, self.follower)

    def offer(self):
        found = {CPU: Lendable(self.cores, "because"), MEMORY: Lendable(2.0**30, "because")}
        return self.clock.boottime_s(), Offer(found)

    def policy_changed(self):
        self.taken += 1

    def batch_cpu(self):
        return self.node()["status"].get("allocatable", {}).get("kubernetes.io/batch-cpu")

    def report(self):
        text = self.annotation(POLICY_STATUS)
        return json.loads(text) if text else {}

    def order(self, version, **settings):
        policy = {"version": version, "settings": settings}
        self.api.put_node(metadata={"annotations": {POLICY: json.dumps(policy)}})


@pytest.fixture
def node(tmp_path, credential, api):
    return Node(tmp_path, credential, api)


def test_policy_and_numbers_follow_each_other_without_a_loop_of_patches(node, api):
    async def scenario():
        async with node.running(*node.parts):
            await until(lambda: node.batch_cpu() == "4000" and api.watchers)
            node.order("1", cpu={"reserve_cores": 1.0})
            await until(lambda: node.report().get("version") == "1")
            node.order("2", cpu={"reserve_cores": -1.0})
            await until(lambda: node.report().get("version") == "2")
            await asyncio.sleep(1.0)  # 100 s of the node's time

    asyncio.run(scenario())
    assert (node.taken, node.follower.in_force.policy.version) == (1, "1")
    assert node.report()["inForce"] is False
    assert len(api.seen("PATCH", "node1$")) == 2, "a report for each policy"
    first, *others = [fields["reason"] for _, event, fields in node.log.events if event == "published"]
    assert first == "nothing was published since criproxy started"
    assert all(reason.startswith("the last report is") for reason in others), others


def test_api_server_killed_and_back_with_another_certificate_of_the_node(node, api, authority):
    async def scenario():
        async with node.running(*node.parts):
            await until(lambda: node.batch_cpu() == "4000" and api.watchers)
            api.stop()
            node.cores = 8.0
            await asyncio.sleep(0.5)
            authority.rotate("system:node:rotated")
            api.start()
            node.order("1")
            await until(lambda: node.batch_cpu() == "8000" and node.report().get("version") == "1")

    try:
        asyncio.run(scenario())
    finally:
        authority.rotate("system:node:node1")
    assert api.requests[-1].who == "system:node:rotated"


def test_another_writer_of_the_same_names_is_answered_but_not_in_a_race(node, api):
    async def scenario():
        async with node.running(*node.parts):
            await until(lambda: node.batch_cpu() == "4000" and api.watchers)
            started_s = node.clock.boottime_s()
            for _ in range(20):
                api.put_node(status={"allocatable": {"kubernetes.io/batch-cpu": "1"}})
                await asyncio.sleep(0.05)  # 5 s of the node's time
            await until(lambda: node.batch_cpu() == "4000")
            return node.clock.boottime_s() - started_s

    took_s = asyncio.run(scenario())
    assert len(api.seen("PATCH", "/status")) <= 2 + took_s / QUIET_S
