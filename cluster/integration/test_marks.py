"""What a real API server lets nobody do to a pod's marks, and what it lets everybody do to all else."""

import json

import pytest
import yaml

from cluster.integration.objects import PODS, pod, until
from criproxy_cluster.vocabulary.names import CLASS, RESOURCES
from criproxy_cluster.vocabulary.presets import MARKS, OWN_MARK
from integration.lab.cluster_side import MANIFESTS
from integration.lab.control_plane import ApiError
from integration.lab.process import LabError

pytestmark = pytest.mark.timeout(1200)  # a control plane takes its time on a busy machine

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/criproxy-cluster"
EVERY = [OWN_MARK, *(mark for marks in MARKS.values() for mark in marks)]


@pytest.fixture(scope="module")
def alone(plane):
    """The plane without the webhook, once it keeps marks: it takes up an admission policy some time later."""
    plane.call("DELETE", WEBHOOKS)
    until(lambda: made_without_webhook(plane, "probe", {CLASS: "offline"}))
    until(lambda: refusal(plane, "probe", {"labels": {CLASS: None}}, "?dryRun=All"))
    return plane


def made_without_webhook(plane, name, labels=None, annotations=None, **spec):
    one = pod(name, labels=labels or {}, **spec)
    one["metadata"]["annotations"] = annotations or {}
    try:
        return plane.call("POST", PODS, one)
    except ApiError:
        return None


def refusal(plane, name, metadata, below=""):
    """Why the API server does not take this change; "": it takes it."""
    try:
        plane.merge(f"{PODS}/{name}{below}", {"metadata": metadata})
    except ApiError as error:
        assert error.code == 422, error
        return str(error)
    return ""


@pytest.mark.parametrize("mark", EVERY, ids=lambda mark: f"{mark.of} {mark.key}")
def test_no_mark_comes_or_goes_on_a_pod_that_there_is_gated_or_not(alone, mark):
    name = f"of-{EVERY.index(mark)}"
    gates = [{"name": "example.com/wait"}]
    where, given = f"{mark.of}s", {mark.key: mark.value}
    assert made_without_webhook(alone, f"{name}-marked", **{where: given}, schedulingGates=gates)
    assert made_without_webhook(alone, f"{name}-plain", schedulingGates=gates)
    for change in (None, "other"):
        assert f"metadata.{where}[{mark.key}] = {mark.value}" in refusal(
            alone, f"{name}-marked", {where: {mark.key: change}}
        )
    assert "from its creation on" in refusal(alone, f"{name}-plain", {where: given})
    assert "from its creation on" in refusal(alone, f"{name}-plain", {where: given}, "/status")


def test_webhook_s_record_stays_as_it_is(alone):
    record = '{"containers":{}}'
    assert made_without_webhook(alone, "recorded", annotations={RESOURCES: record})
    assert made_without_webhook(alone, "none")
    for name, text in (("recorded", None), ("recorded", "{}"), ("none", record)):
        assert "leave it as it is" in refusal(alone, name, {"annotations": {RESOURCES: text}})


def test_all_else_of_pods_changes_as_ever(alone):
    assert made_without_webhook(alone, "online")
    assert made_without_webhook(alone, "offline", {CLASS: "offline"})
    for name in ("online", "offline"):
        changes = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["example.com/x"]}
        assert refusal(alone, name, changes) == ""
        assert refusal(alone, name, {"labels": {"a": None}, "annotations": None, "finalizers": None}) == ""
        alone.merge(f"{PODS}/{name}/status", {"status": {"phase": "Running"}})
    assert refusal(alone, "online", {"labels": {CLASS: "online"}}) == "", "another value is no mark"
    alone.call("DELETE", f"{PODS}/offline?gracePeriodSeconds=0")


UNMARKED, UNCONVERTED = "unmarked.colocation.criproxy.io", "unconverted.colocation.criproxy.io"
WARNED = {
    "volcano": ({"volcano.sh/qos-level": "BE"}, {"cpu": "1"}, "metadata.annotations[volcano.sh/qos-level] = BE"),
    "katalyst": (
        {"katalyst.kubewharf.io/qos_level": "reclaimed_cores"},
        {"resource.katalyst.kubewharf.io/reclaimed_millicpu": "1000"},
        "it asks for resource.katalyst.kubewharf.io/reclaimed_millicpu",
    ),
    "older-name": ({}, {"koordinator.sh/batch-cpu": "1000"}, "it asks for koordinator.sh/batch-cpu"),
}


def unmarked(name, annotations, requests):
    one = pod(name, labels={})
    one["metadata"]["annotations"] = annotations
    resources = {"requests": requests, "limits": {} if "cpu" in requests else requests}
    one["spec"]["containers"][0]["resources"] = resources
    return one


@pytest.mark.parametrize("name", WARNED)
def test_author_of_a_pod_that_only_means_to_be_offline_is_warned_with_the_remedy(alone, name):
    annotations, requests, words = WARNED[name]
    made = json.dumps(unmarked(f"warned-{name}", annotations, requests))

    def warned():
        with pytest.raises(LabError) as error:
            alone.kubectl("create", "--dry-run=server", "--warnings-as-errors", "-f", "-", stdin=made)
        return words in str(error.value) and f"give it the label {CLASS}=offline" in str(error.value)

    until(warned)
    alone.kubectl("create", "-f", "-", stdin=made)  # a warning, and no more


def test_marked_and_plain_pods_are_not_warned_of(alone):
    for name, labels, annotations in (("plain", {}, {}), ("marked", {CLASS: "offline"}, {RESOURCES: "{}"})):
        one = {**unmarked(name, annotations, {"cpu": "1"}), "kind": "Pod", "apiVersion": "v1"}
        one["metadata"]["labels"] = labels
        alone.kubectl("create", "--dry-run=server", "--warnings-as-errors", "-f", "-", stdin=json.dumps(one))


def test_author_of_a_pod_that_got_its_label_after_the_webhook_is_warned(alone):
    made = json.dumps(pod("unconverted", labels={CLASS: "offline"}))

    def warned():
        with pytest.raises(LabError) as error:
            alone.kubectl("create", "--dry-run=server", "--warnings-as-errors", "-f", "-", stdin=made)
        return "was not converted: whatever gave it the label came after" in str(error.value)

    until(warned)
    alone.kubectl("create", "-f", "-", stdin=made)


def refused(plane, made):
    """Why the API server does not make it; "": it does."""
    try:
        plane.call("POST", f"{PODS}?dryRun=All", made)
    except ApiError as error:
        return str(error)
    return ""


def test_with_the_component_such_a_pod_is_refused(alone):
    bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    folder = MANIFESTS / "marked-only" / "kustomization.yaml"
    patches = yaml.safe_load(folder.read_text())["patches"]
    assert [one["target"]["name"] for one in patches] == [UNMARKED, UNCONVERTED]
    for one in patches:
        where = f"{bindings}/{one['target']['name']}"
        alone.call("PATCH", where, yaml.safe_load(one["patch"]), content="application/json-patch+json")
    try:
        for name, (annotations, requests, _) in WARNED.items():
            made = unmarked(f"refused-{name}", annotations, requests)
            assert "give it the label" in until(lambda made=made: refused(alone, made))
        late = pod("late", labels={CLASS: "offline"})
        assert "was not converted" in until(lambda: refused(alone, late))
    finally:
        for name in (UNMARKED, UNCONVERTED):
            alone.merge(f"{bindings}/{name}", {"spec": {"validationActions": ["Warn"]}})
