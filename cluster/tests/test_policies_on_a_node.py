"""What the controller writes and what the node makes of it, together: each policy is tried by itself."""

import asyncio
import json
import random
from typing import Any

import msgspec
import pytest

from cluster.tests.controller.test_fleet import WALL, policy
from criproxy.concurrency.clock import Clock
from criproxy.config import Config, OwnFiles
from criproxy.kube.client import ApiAnswer, ApiRequest
from criproxy.kube.objects import Node
from criproxy.kube.policy import PolicyFollower
from criproxy_cluster.controller.fleet import Fleet
from criproxy_cluster.objects import NodeObject, view
from criproxy_cluster.vocabulary.names import POLICY, POLICY_STATUS, SWITCH
from tests.fakes.log import FakeLog

TYPO = policy("a", priority=1, settings={"cpu": {"watermark": 0.5}})
DEFAULT = Config().colocation.rules
OFF = policy("b", priority=1000, enabled=False)


class Together:
    """A fleet of one node, whose criproxy follows what is written there."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "config.toml").write_text("[colocation]\nenabled = true\n")
        self.metadata: dict[str, Any] = {"name": "n1", "labels": {}, "annotations": {}}
        self.fleet = Fleet()
        own = OwnFiles(folder / "config.toml")
        own.load()
        how: dict[str, Any] = {"clock": Clock(), "rng": random.Random(1), "log": FakeLog()}
        self.follower = PolicyFollower(self, "n1", (own, folder / "policy.json"), self, **how)

    def policy_changed(self):
        pass

    async def ask(self, request: ApiRequest) -> ApiAnswer:
        self._patch(json.loads(request.body)["metadata"])
        return ApiAnswer(200, self._node())

    async def ask_again(self, request: ApiRequest, tries: int = 4) -> ApiAnswer:
        return await self.ask(request)

    def _patch(self, metadata):
        for name, text in metadata.get("annotations", {}).items():
            if text is None:
                self.metadata["annotations"].pop(name, None)
            else:
                self.metadata["annotations"][name] = text

    def _node(self):
        return json.dumps({"metadata": self.metadata}).encode()

    def settle(self):
        """Until neither of them writes any more."""
        for _ in range(5):
            before = self._node()
            self.fleet.see(view(msgspec.json.decode(before, type=NodeObject)))
            self._patch((self.fleet.look("n1", 0.0, WALL).patch or {}).get("metadata", {}))
            self.follower.saw(msgspec.json.decode(self._node(), type=Node))
            assert not asyncio.run(self.follower.look())
            if self._node() == before:
                return
        raise AssertionError("they don't come to rest")

    def sets(self, *policies):
        for one in policies:
            self.fleet.set_policy(one.name, one)
        self.settle()

    def figures(self, name):
        status = self.fleet.status(name) or {}
        return {key: status[key] for key in ("nodes", "inForce", "refused", "waiting")}

    @property
    def off(self):
        return "colocation.on_disable" in self.follower.status().keys


@pytest.fixture
def together(tmp_path):
    return Together(tmp_path)


def test_policy_with_a_typo_holds_up_no_other_and_its_author_is_told(together):
    together.sets(TYPO, OFF)
    assert together.off
    assert together.figures("a") == {"nodes": 1, "inForce": 0, "refused": 1, "waiting": 0}
    assert together.figures("b") == {"nodes": 1, "inForce": 1, "refused": 0, "waiting": 0}
    (refused,) = together.fleet.status("a")["refusedBy"]
    assert refused["node"] == "n1" and "cpu.watermark = 0.5: there is no such key" in refused["reason"]
    assert together.fleet.status("b")["off"] == {"nodes": 1, "done": True}


def test_policy_with_a_typo_that_comes_later_changes_nothing_of_the_others(together):
    together.sets(OFF)
    together.sets(policy("a", priority=2000, settings={"cpu": {"watermark": 0.5}}))
    assert together.off
    assert together.figures("b")["inForce"] == together.figures("a")["refused"] == 1


def test_label_switches_a_node_off_though_a_policy_has_a_typo(together):
    together.metadata["labels"] = {SWITCH: "off"}
    together.sets(TYPO)
    assert together.off
    together.metadata["labels"] = {}
    together.settle()
    assert not together.off


def test_switch_that_gets_a_typo_stays_as_it_was_and_says_that_it_is_refused(together):
    together.sets(OFF)
    together.sets(policy("b", priority=1000, generation=2, enabled=False, settings={"cpu": {"watermark": 0.5}}))
    assert together.off
    assert together.figures("b")["refused"] == 1
    assert together.fleet.status("b")["off"]["done"] is False


def test_policy_that_is_put_right_is_in_force(together):
    together.sets(TYPO, OFF)
    together.sets(policy("a", generation=2, settings={"cpu": {"watermark_ratio": 0.5}}))
    assert together.figures("a")["inForce"] == together.figures("b")["inForce"] == 1
    assert "cpu.watermark_ratio" in together.follower.status().keys


def test_policy_of_before_holds_but_for_what_is_the_node_s_own_and_says_so(together):
    rules = [{"namespace": True, "prefix": "kube-"}]
    before = policy(
        "a", settings={"colocation": {"rules": rules, "on_unbounded": "evict"}, "cpu": {"reserve_cores": 2}}
    )
    together.sets(before)
    assert together.figures("a") == {"nodes": 1, "inForce": 1, "refused": 0, "waiting": 0}
    ignored = ["spec.settings.colocation.on_unbounded", "spec.settings.colocation.rules"]
    assert together.fleet.status("a")["ignored"] == ignored
    assert together.follower.in_force.policy.settings == {"colocation": {}, "cpu": {"reserve_cores": 2}}


def test_node_heeds_no_annotation_that_says_who_is_offline(together):
    """As a controller of before writes it, or anybody who may write to Nodes."""
    rules = [{"namespace": True, "prefix": "kube-"}]
    text = json.dumps({"version": "1", "name": "x", "settings": {"colocation": {"rules": rules}}})
    together.metadata["annotations"][POLICY] = text
    together.follower.saw(msgspec.json.decode(together._node(), type=Node))
    assert not asyncio.run(together.follower.look())
    assert together.follower._own.load(together.follower.in_force.overrides).config.colocation.rules == DEFAULT
    assert json.loads(together.metadata["annotations"][POLICY_STATUS])["ignored"] == ["colocation.rules"]
