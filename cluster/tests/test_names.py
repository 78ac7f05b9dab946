"""What both sides write into Kubernetes' objects has one name and one format."""

import pytest

from criproxy_cluster import names

PAIRS = {
    "policy": ("criproxy.kube.policy", "POLICY", names.POLICY),
    "policy-status": ("criproxy.kube.policy", "POLICY_STATUS", names.POLICY_STATUS),
    "evicted": ("criproxy.kube.evictions", "EVICTED", names.EVICTED),
    "condition": ("criproxy.kube.publisher", "CONDITION", names.CONDITION),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_name_is_the_node_s(pair):
    module, name, ours = pair
    assert getattr(pytest.importorskip(module), name) == ours


def test_presets_are_the_node_s():
    node = pytest.importorskip("criproxy.kube.extended_resources").PRESETS
    theirs = {preset: (cpu.name, cpu.per_unit, memory.name, memory.per_unit) for preset, (cpu, memory) in node.items()}
    ours = {preset: (one.cpu, one.per_core, one.memory, 1) for preset, one in names.PRESETS.items()}
    assert ours == theirs


def test_the_class_is_the_node_s():
    from criproxy.hooks.offline import DEFAULT_RULE, PRESETS

    marks = {(mark.key, mark.value) for mark in names.MARKS}
    assert (DEFAULT_RULE.key, DEFAULT_RULE.value) in marks
    labels = {(rule.key, rule.value) for rules in PRESETS.values() for rule in rules if rule.subject == "label"}
    assert labels <= marks
