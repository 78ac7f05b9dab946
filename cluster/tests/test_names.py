"""What both sides write into Kubernetes' objects has one name and one format."""

import pytest

from criproxy.hooks import batch, offline
from criproxy.kube import evictions, extended_resources, policy, publisher
from criproxy.kube.extended_resources import Offer
from criproxy.model import Asked
from criproxy_cluster import conversion
from criproxy_cluster.vocabulary import names


@pytest.mark.parametrize(
    ("node_s", "ours"),
    [
        pytest.param(policy.POLICY, names.POLICY, id="policy"),
        pytest.param(policy.POLICIES, names.POLICIES, id="policies"),
        pytest.param(policy.POLICY_STATUS, names.POLICY_STATUS, id="policy-status"),
        pytest.param(evictions.EVICTED, names.EVICTED, id="evicted"),
        pytest.param(evictions.EVICTED_FROM, names.EVICTED_FROM, id="evicted-from"),
        pytest.param(batch.RESOURCES, names.RESOURCES, id="resources"),
        pytest.param(extended_resources.PUBLISHES, names.PUBLISHES, id="publishes"),
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


@pytest.mark.parametrize(
    ("offered", "ours"),
    [
        pytest.param(Offer({}, held="online waits"), names.HELD, id="held"),
        pytest.param(Offer({}, withheld="off", pods=1), names.OCCUPIED, id="occupied"),
    ],
)
def test_a_reason_is_the_node_s(offered: Offer, ours: str) -> None:
    assert publisher.reason(offered) == ours


def test_what_the_webhook_records_is_what_the_node_s_hook_reads() -> None:
    resources = {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    pod = {
        "metadata": {"name": "a", "labels": {names.CLASS: names.OFFLINE}},
        "spec": {
            "initContainers": [{"name": "first", "resources": {"limits": {"cpu": "250m", "memory": "64Mi"}}}],
            "containers": [{"name": "main", "resources": resources}, {"name": "side"}],
        },
    }
    found = conversion.converted(pod, conversion.ConversionSettings())
    assert batch.asked_by(found["metadata"]["annotations"]) == {
        "first": Asked(256, 64 << 20, 250),
        "main": Asked(1536, 2 << 30),
        "side": Asked(),
    }
