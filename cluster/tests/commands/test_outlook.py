"""What a node would publish under other settings."""

from fractions import Fraction

import pytest

from criproxy_cluster.commands.plan.outlook import How, Outlook, in_all, outlooks
from criproxy_cluster.objects import Figures, Meta, NodeObject, NodeStatus, figures

CPU, MEMORY, OWN = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory", "example.com/cores"
GI = 1 << 30
CAPACITY = {"cpu": Fraction(16), "memory": Fraction(64 * GI)}


def outlook(name, now, before, after):
    found = outlooks(Figures(CAPACITY, {name: Fraction(now)}), before, after).get(name)
    return found and (found.how, int(found.then))


OFF = {"colocation.enabled": False}
HIGH, LOW = {"cpu.watermark_ratio": 0.9}, {"cpu.watermark_ratio": 0.7}
UNKNOWN = (How.UNKNOWN, 0)
THEN = {
    "the switch": (CPU, 4000, {}, OFF, (How.EXACT, 0)),
    "the switch, of a name of its own": (OWN, 4, {}, OFF, (How.EXACT, 0)),
    "the switch, where nothing is lent": (CPU, 0, {}, OFF, None),
    "publishing no more": (CPU, 4000, {}, {"kubernetes.publish": False}, (How.EXACT, 0)),
    "on again": (CPU, 0, OFF, {}, UNKNOWN),
    "on again, with a watermark": (CPU, 0, OFF, HIGH, (How.AT_MOST, 14400)),
    "a lower watermark": (CPU, 4000, HIGH, LOW, (How.ABOUT, 800)),
    "a higher one": (CPU, 4000, LOW, HIGH, (How.ABOUT, 7200)),
    "a reserve beside it": (
        *(CPU, 8000, {**HIGH, "cpu.reserve_cores": 1}, {**LOW, "cpu.reserve_cores": 2.5}),
        (How.ABOUT, 3300),
    ),
    "a watermark above the ceiling": (
        *(CPU, 4000, {**LOW, "cpu.max_cores": 5}, {**HIGH, "cpu.max_cores": 5}),
        (How.ABOUT, 5000),
    ),
    "held by its ceiling": (
        *(CPU, 5000, {**HIGH, "cpu.max_cores": 5}, {**LOW, "cpu.max_cores": 5}),
        (How.AT_MOST, 5000),
    ),
    "held by its floor": (
        *(CPU, 2000, {**LOW, "cpu.min_cores": 2}, {**HIGH, "cpu.min_cores": 2}),
        (How.AT_MOST, 14400),
    ),
    "a watermark below the floor": (
        CPU,
        1000,
        {**HIGH, "cpu.min_cores": 0.5},
        {**LOW, "cpu.min_cores": 0.5},
        (How.ABOUT, 500),
    ),
    "held by the floor of all nodes": (CPU, 100, HIGH, LOW, (How.AT_MOST, 11200)),
    "a watermark below the floor of all nodes": (CPU, 2000, HIGH, LOW, (How.ABOUT, 100)),
    "held by the floor of all nodes, of memory": (
        *(MEMORY, 128 << 20, {"memory.watermark_ratio": 0.75}, {"memory.watermark_ratio": 0.5}),
        (How.AT_MOST, 32 * GI),
    ),
    "lending nothing": (CPU, 0, LOW, HIGH, (How.AT_MOST, 14400)),
    "a watermark over the file's": (CPU, 4000, {}, LOW, (How.AT_MOST, 11200)),
    "the file's again": (CPU, 4000, LOW, {}, UNKNOWN),
    "a reserve alone": (CPU, 4000, {}, {"cpu.reserve_cores": 4}, (How.AT_MOST, 12000)),
    "a ceiling": (CPU, 4000, {}, {"cpu.max_cores": 2}, (How.AT_MOST, 2000)),
    "another schedule": (CPU, 4000, {}, {"control.policy": "schedule"}, UNKNOWN),
    "in whole cores": ("gocrane.io/cpu", 4, HIGH, LOW, (How.ABOUT, 0)),
    "of memory": (
        MEMORY,
        32 * GI,
        {"memory.watermark_ratio": 0.75},
        {"memory.watermark_ratio": 0.5},
        (How.ABOUT, 16 * GI),
    ),
    "the other resource's": (MEMORY, 32 * GI, HIGH, LOW, None),
    "of a name of its own": (OWN, 4, HIGH, LOW, UNKNOWN),
    "what has nothing to do with it": (CPU, 4000, {}, {"pids.max_ratio": 0.5}, None),
    "no number": (CPU, 4000, HIGH, {"cpu.watermark_ratio": "much"}, UNKNOWN),
}


@pytest.mark.parametrize(("name", "now", "before", "after", "then"), THEN.values(), ids=THEN)
def test_what_is_published_then_is_said_as_far_as_it_is_known(name, now, before, after, then):
    assert outlook(name, now, before, after) == then


def test_a_node_whose_capacity_is_not_known_has_no_outlook():
    found = outlooks(Figures({}, {CPU: Fraction(4000)}), HIGH, LOW)

    assert found == {CPU: Outlook(Fraction(4000), Fraction(0), How.UNKNOWN)}


def test_a_sum_is_as_well_known_as_the_worst():
    several = [Outlook(Fraction(1), Fraction(2), how) for how in (How.EXACT, How.AT_MOST, How.ABOUT)]

    assert in_all(several) == Outlook(Fraction(3), Fraction(6), How.AT_MOST)


def test_figures_are_those_that_can_be_read_of_the_names_that_the_node_publishes():
    status = NodeStatus({"cpu": "16", "memory": "?", "pods": "110"}, {OWN: "4", CPU: "7", "cpu": "15"})
    node = NodeObject(Meta("n", annotations={"colocation.criproxy.io/publishes": OWN}), status=status)

    assert figures(node) == Figures({"cpu": Fraction(16)}, {OWN: Fraction(4)})
