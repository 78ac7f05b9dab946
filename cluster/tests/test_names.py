"""What both sides write into Kubernetes' objects has one name and one format."""

import pytest

from criproxy.hooks import offline
from criproxy.kube import evictions, extended_resources, policy, publisher
from criproxy_cluster import names


@pytest.mark.parametrize(
    ("node_s", "ours"),
    [
        pytest.param(policy.POLICY, names.POLICY, id="policy"),
        pytest.param(policy.POLICY_STATUS, names.POLICY_STATUS, id="policy-status"),
        pytest.param(evictions.EVICTED, names.EVICTED, id="evicted"),
        pytest.param(publisher.CONDITION, names.CONDITION, id="condition"),
    ],
)
def test_a_name_is_the_node_s(node_s: str, ours: str) -> None:
    assert ours == node_s


def test_presets_are_the_node_s() -> None:
    node = extended_resources.PRESETS
    theirs = {preset: (cpu.name, cpu.per_unit, memory.name, memory.per_unit) for preset, (cpu, memory) in node.items()}
    ours = {preset: (one.cpu, one.per_core, one.memory, 1) for preset, one in names.PRESETS.items()}
    assert ours == theirs


def test_the_class_is_the_node_s() -> None:
    marks = {(mark.key, mark.value) for mark in names.MARKS}
    assert (offline.DEFAULT_RULE.key, offline.DEFAULT_RULE.value) in marks
    labels = {(rule.key, rule.value) for rules in offline.PRESETS.values() for rule in rules if rule.subject == "label"}
    assert labels <= marks
