"""Pods that are left for virtual nodes, and those that are converted whatever a policy says."""

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.tests.fake_kube import patched
from criproxy_cluster.owners.history import History, Written, encoded
from criproxy_cluster.owners.pods import Owner
from criproxy_cluster.owners.rules import Overflow as OverflowSpec
from criproxy_cluster.owners.rules import OwnersSpec, Rule
from criproxy_cluster.vocabulary.names import CLASS, DEADLINE, EXTENDED_SPEC, KEEP_REQUESTS, OVERFLOW, RAISED, RESOURCES
from criproxy_cluster.webhook.admission import answer
from criproxy_cluster.webhook.conversion import ConversionSettings, left_before, left_for_virtual_nodes, may_overflow
from criproxy_cluster.webhook.overflow import STALE_S, Overflow

NOW = 1_760_000_000.0
JOB = Owner("batch", "Job", "sort", "u1")
SPEC = OverflowSpec(pods=2, wait_seconds=600, deadline_margin_seconds=60)
RULE = Rule("night", OwnersSpec(("batch",), SPEC))
WAITED = History(JOB, waited_s=700, waited_at_s=int(NOW) - 100)
BOOK = Written([RULE], True, {}, [WAITED])
SETTINGS = ConversionSettings()


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def overflow(clock):
    made = Overflow(clock, lambda: NOW)
    made.hear(encoded(BOOK))
    return made


def pod(annotations=None, owner=JOB, requests=None, **spec):
    meta = {"name": "p", "labels": {CLASS: "offline"}, "annotations": annotations or {}}
    if owner:
        reference = {"kind": owner.kind, "name": owner.name, "uid": owner.uid, "controller": True}
        meta["ownerReferences"] = [{"apiVersion": "v1", **reference}]
    container = {"name": "c", "resources": {"requests": requests or {"cpu": "1500m", "memory": "1Gi"}}}
    return {"metadata": meta, "spec": {"containers": [container], **spec}}


def made(asked, overflow, namespace="batch", dry_run=False):
    """The pod after the webhook's patch, its outcome and its warnings."""
    request = {"uid": "u", "operation": "CREATE", "namespace": namespace, "object": asked, "dryRun": dry_run}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    found = answer(json.dumps(review).encode(), SETTINGS, overflow)
    response = json.loads(found.body)["response"]
    document = copy.deepcopy(asked)
    for change in json.loads(base64.b64decode(response.get("patch", "W10="))):
        assert patched(document, change)
    return document, found.outcome, response.get("warnings", [])


def test_a_pod_of_an_owner_that_waited_is_left_for_virtual_nodes_and_its_author_is_told(overflow):
    found, outcome, (warning,) = made(pod(), overflow)
    assert outcome == "overflowed" and "billed" in warning and "700 s" in warning
    assert found["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "1500m", "memory": "1Gi"}}
    assert {"key": "virtual-kubelet.io/provider", "operator": "Exists"} in found["spec"]["tolerations"]
    required = found["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "type", "operator": "In", "values": ["virtual-kubelet"]}]
    assert found["spec"]["priorityClassName"] == "colocation-expendable"
    assert found["metadata"]["labels"][CLASS] == "offline" and "700 s" in found["metadata"]["annotations"][OVERFLOW]
    assert json.loads(found["metadata"]["annotations"][RESOURCES]) == {"containers": {}}


def test_the_second_call_about_the_same_pod_changes_nothing(overflow):
    found, _, _ = made(pod(), overflow)
    assert made(found, overflow)[0] == found
    overflow.forget()
    assert made(found, overflow)[0] == found, "whatever is known meanwhile"


@pytest.mark.parametrize(
    ("asked", "namespace"),
    [
        (pod(owner=Owner("batch", "Job", "sort", "u2")), "batch"),
        (pod(owner=Owner("batch", "ReplicaSet", "sort", "u1")), "batch"),
        (pod(owner=None), "batch"),
        (pod(), "other"),
        (pod(nodeSelector={"pool": "night"}), "batch"),
        (pod({KEEP_REQUESTS: "true"}), "batch"),
        (pod({OVERFLOW: "please"}), "batch-2"),
    ],
    ids=["another-uid", "another-kind", "no-owner", "another-namespace", "its-own-nodes", "keeps-requests", "forged"],
)
def test_all_others_are_converted_as_ever(asked, namespace, overflow):
    found, outcome, _ = made(asked, overflow, namespace)
    assert outcome == "converted" and OVERFLOW not in found["metadata"]["annotations"]
    assert "tolerations" in found["spec"] and "virtual-kubelet" not in json.dumps(found)


def blank(overflow, clock):
    overflow.forget()


def old(overflow, clock):
    clock.now_s += STALE_S + 1


def nowhere(overflow, clock):
    overflow.hear(encoded(Written([RULE], False, {}, [WAITED])))


def full(overflow, clock):
    overflow.hear(encoded(Written([RULE], True, {"batch": 2}, [WAITED])))


@pytest.mark.parametrize("happens", [blank, old, nowhere, full])
def test_without_what_it_needs_a_pod_is_converted(happens, overflow, clock):
    happens(overflow, clock)
    assert made(pod(), overflow)[1] == "converted"
    assert made(pod(), Overflow(clock, clock))[1] == "converted", "nothing was heard yet"


def test_a_book_that_can_not_be_read_leaves_the_one_before(overflow):
    with pytest.raises(ValueError, match="book"):
        overflow.hear("{")
    assert made(pod(), overflow)[1] == "overflowed"


def test_a_book_that_is_heard_again_is_no_newer_for_it(overflow, clock):
    book = encoded(Written([RULE], True, {"batch": 1}, [WAITED]))
    overflow.hear(book, "7")
    assert [made(pod(), overflow)[1] for _ in range(2)] == ["overflowed", "converted"]
    overflow.hear(book, "7", written_s=NOW)
    assert made(pod(), overflow)[1] == "converted", "what has overflowed since counts"
    overflow.hear(book, "8")
    clock.now_s += STALE_S + 1
    overflow.hear(book, "8", written_s=NOW)
    assert made(pod(), overflow)[1] == "converted"


@pytest.mark.parametrize(("age_s", "outcome"), [(0, "overflowed"), (-60, "overflowed"), (STALE_S + 1, "converted")])
def test_a_book_that_a_webhook_finds_at_its_start_is_as_old_as_it_says(age_s, outcome, clock):
    overflow = Overflow(clock, lambda: NOW)
    overflow.hear(encoded(BOOK), "7", written_s=NOW - age_s)
    assert made(pod(), overflow)[1] == outcome


def test_a_burst_does_not_pass_the_most_of_its_namespace_and_a_trial_counts_for_nothing(overflow):
    made(pod(), overflow, dry_run=True)
    assert [made(pod(), overflow)[1] for _ in range(3)] == ["overflowed", "overflowed", "converted"]
    overflow.hear(encoded(Written([RULE], True, {"batch": 1}, [WAITED])))
    assert [made(pod(), overflow)[1] for _ in range(2)] == ["overflowed", "converted"]


@pytest.mark.parametrize(("deadline", "outcome"), [("2025-10-09T08:54:20Z", "overflowed"), ("soon", "converted")])
def test_a_deadline_makes_a_pod_overflow_by_itself(deadline, outcome, overflow):
    assert made(pod({DEADLINE: deadline}, owner=None), overflow)[1] == outcome


@pytest.mark.parametrize(
    ("annotations", "requests"),
    [
        ({}, {"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "1073741824"}),
        ({}, {"gocrane.io/cpu": "2", "gocrane.io/memory": "1073741824"}),
        (
            {EXTENDED_SPEC: '{"containers": {"c": {"requests": {"kubernetes.io/batch-cpu": 1500}}}}'},
            {"hugepages-2Mi": "0"},
        ),
    ],
)
def test_what_is_asked_for_in_what_nodes_lend_is_asked_for_in_cpu_and_memory(annotations, requests, overflow):
    found, _, _ = made(pod(annotations, requests=requests), overflow)
    asked = found["spec"]["containers"][0]["resources"]["requests"]
    assert asked["cpu"] in ("1500m", "2000m") and not [name for name in asked if "/" in name]
    assert EXTENDED_SPEC not in found["metadata"]["annotations"]


def test_the_mark_of_a_raise_is_never_the_author_s(overflow):
    found, _, _ = made(pod({RAISED: "2026-01-01T00:00:00Z"}, owner=None), overflow)
    assert RAISED not in found["metadata"]["annotations"]


def test_an_author_who_writes_the_same_gets_what_a_pod_without_the_mark_has():
    forged = left_for_virtual_nodes(pod(), "mine", SETTINGS)
    assert left_before(forged) == "mine"
    del forged["spec"]["affinity"]
    assert left_before(forged) == "", "the annotation alone leaves a pod to be converted"


_NAMES = st.sampled_from(["cpu", "memory", "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory", "nvidia.com/gpu"])
_TABLE = st.dictionaries(_NAMES, st.sampled_from(["1", "1073741824", "2Gi", "1500"]), max_size=4)


@given(st.lists(st.fixed_dictionaries({"requests": _TABLE, "limits": _TABLE}), min_size=1, max_size=3))
def test_left_pods_ask_for_nothing_that_nodes_lend_and_stay_as_they_are(tables):
    containers = [{"name": f"c{number}", "resources": table} for number, table in enumerate(tables)]
    before: dict[str, Any] = {
        "metadata": {"name": "p", "labels": {CLASS: "offline"}},
        "spec": {"containers": containers},
    }
    original = copy.deepcopy(before)
    assert may_overflow(before)
    try:
        found = left_for_virtual_nodes(before, "why", SETTINGS)
    except ValueError:
        return  # a quantity that can't be meant, which is refused in any case
    assert before == original
    assert "kubernetes.io/batch" not in json.dumps(found["spec"])
    assert left_for_virtual_nodes(found, "why", SETTINGS) == found and left_before(found) == "why"
    for one, kept in zip(found["spec"]["containers"], original["spec"]["containers"], strict=True):
        for kind in ("requests", "limits"):
            assert one["resources"].get(kind, {}).get("nvidia.com/gpu") == kept["resources"][kind].get("nvidia.com/gpu")


def test_a_spark_driver_runs_online_whatever_its_owner_waits_for(overflow):
    asked = pod()
    asked["metadata"]["labels"]["spark-role"] = "driver"
    found, outcome, _ = made(asked, overflow)
    assert (outcome, CLASS in found["metadata"]["labels"]) == ("converted", False)


def test_a_controller_that_the_book_knows_nobody_by_is_none(clock):
    """The keeper takes such a pod for its own owner: what it met with is nobody else's."""
    long = Owner("batch", "Job", "o" * 254, "u1")
    overflow = Overflow(clock, lambda: NOW)
    overflow.hear(encoded(Written([RULE], True, {}, [History(long, waited_s=700, waited_at_s=int(NOW) - 100)])))
    assert made(pod(owner=long), overflow)[1] == "converted"
