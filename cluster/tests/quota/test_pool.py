"""What the nodes of a flavor lend, in all."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy_cluster.objects import FlavorSpec, NodeObject
from criproxy_cluster.quota.pool import NOTHING, Amounts, Pool, usage
from criproxy_cluster.vocabulary.presets import NAMES

GIB = 1 << 30


def node(name, cpu="4000", memory="8Gi", labels=None, *, ready="True", preset="batch", **spec):
    names = NAMES[preset]
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "labels": labels or {},
                "annotations": {"colocation.criproxy.io/publishes": f"{names.cpu},{names.memory}"},
            },
            "spec": spec,
            "status": {
                "allocatable": {"cpu": "8", names.cpu: cpu, names.memory: memory},
                "conditions": [{"type": "Ready", "status": ready}],
            },
        },
        NodeObject,
    )


def pool(flavors=None, preset="batch"):
    made = Pool(NAMES[preset])
    made.set_flavors(of_labels({"lent": {}} if flavors is None else flavors))
    return made


def of_labels(flavors):
    return {name: FlavorSpec(node_labels=labels) for name, labels in flavors.items()}


def see(one, found):
    one.see(found, found.metadata.labels)


def test_sum_follows_nodes_that_come_change_and_go():
    one = pool()
    see(one, node("a"))
    see(one, node("b", "500"))
    assert one.lent == {"lent": Amounts(4500, 16 * GIB)}
    see(one, node("a", "1k", "1Gi"))
    one.forget("b")
    assert one.lent == {"lent": Amounts(1000, GIB)}
    one.forget_all_but(set())
    assert one.lent == {"lent": NOTHING}


def test_nodes_count_for_the_flavor_whose_labels_they_have():
    one = pool({"ssd": {"disk": "ssd"}, "lent": {"pool": "night"}})
    see(one, node("both", "1000", labels={"disk": "ssd", "pool": "night"}))
    see(one, node("night", "2000", labels={"pool": "night"}))
    see(one, node("none", "4000"))
    assert {name: amounts.millicores for name, amounts in one.lent.items()} == {"ssd": 1000, "lent": 2000}

    one.set_flavors(of_labels({"lent": {"pool": "night"}}))
    assert {name: amounts.millicores for name, amounts in one.lent.items()} == {"lent": 3000}


@pytest.mark.parametrize(
    "away",
    [{"unschedulable": True}, {"ready": "False"}, {"ready": "Unknown"}],
    ids=["cordoned", "not-ready", "unknown"],
)
def test_node_that_takes_no_pods_lends_nothing(away):
    one = pool()
    see(one, node("a", **away))
    assert one.lent == {"lent": NOTHING}


DISRUPTED = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
DEDICATED = {"key": "dedicated", "value": "night", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("taint", "flavor", "millicores"),
    [
        (DISRUPTED, {}, 0),
        ({"key": "ToBeDeletedByClusterAutoscaler", "value": "1790000000", "effect": "NoSchedule"}, {}, 0),
        ({"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}, {}, 0),
        ({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}, {}, 0),
        ({"key": "colocation.criproxy.io/pressure", "effect": "PreferNoSchedule"}, {}, 4000),
        ({"key": "colocation.criproxy.io/offline", "value": "true", "effect": "NoSchedule"}, {}, 4000),
        (DEDICATED, {}, 0),
        (DEDICATED, {"nodeTaints": [{"key": "dedicated", "value": "night", "effect": "NoExecute"}]}, 4000),
        (DEDICATED, {"nodeTaints": [{"key": "dedicated", "value": "day", "effect": "NoExecute"}]}, 0),
        (DEDICATED, {"tolerations": [{"key": "dedicated", "value": "night"}]}, 4000),
        (DEDICATED, {"tolerations": [{"key": "dedicated", "operator": "Equal", "value": "day"}]}, 0),
        (DEDICATED, {"tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}]}, 0),
        (DEDICATED, {"tolerations": [{"operator": "Exists"}]}, 4000),
        (DISRUPTED, {"tolerations": [{"key": "dedicated", "operator": "Exists"}]}, 0),
    ],
    ids=[
        "disrupted", "to-be-deleted", "memory-pressure", "unreachable", "preferred", "ours", "not-known-to-flavor",
        "of-flavor", "other-value-of-flavor", "tolerated", "other-value-tolerated", "other-effect-tolerated",
        "all-tolerated", "other-key-tolerated",
    ],
)  # fmt: skip
def test_node_lends_to_a_flavor_whose_pods_tolerate_its_taints(taint, flavor, millicores):
    one = Pool(NAMES["batch"])
    one.set_flavors({"lent": msgspec.convert(flavor, FlavorSpec)})
    see(one, node("a", taints=[taint]))
    assert one.lent["lent"].millicores == millicores
    see(one, node("a"))
    assert one.lent["lent"].millicores == 4000


def test_node_that_is_tainted_counts_for_the_next_flavor_that_tolerates_it():
    one = Pool(NAMES["batch"])
    tolerant = msgspec.convert({"tolerations": [{"key": "dedicated", "operator": "Exists"}]}, FlavorSpec)
    one.set_flavors({"lent": FlavorSpec(), "dedicated": tolerant})
    see(one, node("a", taints=[DEDICATED]))
    assert {name: amounts.millicores for name, amounts in one.lent.items()} == {"lent": 0, "dedicated": 4000}


PRESSED = {"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}
STARTING = {"key": "example.com/starting", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("node_is", "millicores"),
    [
        ({}, 4000),
        ({"taints": [PRESSED, STARTING]}, 4000),
        ({"unschedulable": True}, 4000),
        ({"taints": [PRESSED, DISRUPTED]}, 0),
        ({"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}]}, 0),
        ({"taints": [DEDICATED]}, 0),
        ({"ready": "False"}, 0),
    ],
    ids=["well", "refuses-new-ones", "cordoned", "disrupted", "to-be-deleted", "no-execute", "not-ready"],
)
def test_node_carries_the_pods_that_go_on_there(node_is, millicores):
    one = pool()
    see(one, node("a", **node_is))
    assert one.carried["lent"].millicores == millicores
    one.forget("a")
    assert one.carried == one.lent == {"lent": NOTHING}


@pytest.mark.parametrize("taints", [[], [PRESSED]], ids=["well", "pressed"])
def test_node_carries_pods_of_the_flavor_that_is_meant_for_it(taints):
    one = Pool(NAMES["batch"])
    gpu = {"key": "gpu", "effect": "NoSchedule"}
    one.set_flavors({"lent": FlavorSpec(), "gpu": msgspec.convert({"nodeTaints": [gpu]}, FlavorSpec)})
    see(one, node("a", taints=[gpu, *taints]))
    assert {name: amounts.millicores for name, amounts in one.carried.items()} == {"lent": 0, "gpu": 4000}


def test_what_cannot_be_read_counts_for_nothing():
    one = pool()
    see(one, node("a", "many", "8Gi"))
    assert one.lent == {"lent": Amounts(0, 8 * GIB)}


@pytest.mark.parametrize("preset", NAMES)
def test_every_preset_counts_in_its_unit(preset):
    one = pool(preset=preset)
    see(one, node("a", str(4 * NAMES[preset].per_core), preset=preset))
    assert one.lent == {"lent": Amounts(4000, 8 * GIB)}


_CHANGES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 9), st.sampled_from(["x", "y"])), max_size=30
)


@given(_CHANGES)
def test_sum_is_that_of_the_nodes_that_are_there(changes):
    one = pool({"x": {"p": "x"}, "y": {"p": "y"}})
    there: dict[str, tuple[str, int]] = {}
    for name, lends, flavor in changes:
        if lends is None:
            one.forget(name)
            there.pop(name, None)
        else:
            see(one, node(name, str(lends), labels={"p": flavor}))
            there[name] = flavor, lends
    for flavor in "xy":
        assert one.lent[flavor].millicores == sum(lends for where, lends in there.values() if where == flavor)


def test_usage_counts_what_is_taken_of_the_flavor():
    flavors, used = {"cpu": "lent", "memory": "exclusive"}, {"cpu": "1500m", "memory": "2Gi"}
    assert usage(flavors, used, "lent") == Amounts(1500, 0)
    assert usage(flavors, used, "exclusive") == Amounts(0, 2 * GIB)
    assert usage(None, None, "lent") == usage({"cpu": "lent"}, {"cpu": "x"}, "lent") == NOTHING
