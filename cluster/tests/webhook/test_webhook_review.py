"""What the API server is told of a pod."""

import base64
import json

import pytest

from criproxy_cluster.webhook.admission import MAX_WARNING, ReviewError, answer
from criproxy_cluster.webhook.conversion import ConversionSettings

SETTINGS = ConversionSettings()


def review(pod, operation="CREATE"):
    request = {"uid": "u1", "kind": {"kind": "Pod"}, "operation": operation, "object": pod, "dryRun": True}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def offline(**resources):
    containers = [{"name": "c", "resources": resources}]
    return {"metadata": {"labels": {"colocation.criproxy.io/class": "offline"}}, "spec": {"containers": containers}}


def response(body):
    found = json.loads(answer(body, SETTINGS).body)
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert found["response"].pop("uid") == "u1"
    return found["response"]


def test_an_offline_pod_is_allowed_with_its_patch():
    found = response(review(offline(requests={"cpu": "1"})))

    patch = json.loads(base64.b64decode(found["patch"]))
    assert (found["allowed"], found["patchType"]) == (True, "JSONPatch")
    assert {"op": "remove", "path": "/spec/containers/0/resources/requests/cpu"} in patch
    below = "/spec/containers/0/resources/requests/kubernetes.io~1batch-cpu"
    assert {"op": "add", "path": below, "value": "1000"} in patch


UNTOUCHED = {
    "online": review({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c"}]}}),
    "an update": review(offline(requests={"cpu": "1"}), "UPDATE"),
    "a deletion": review(None, "DELETE"),
}


@pytest.mark.parametrize("body", UNTOUCHED.values(), ids=UNTOUCHED)
def test_another_question_is_allowed_without_a_patch(body):
    assert response(body) == {"allowed": True}


def test_a_quantity_that_cannot_be_meant_is_refused_with_the_remedy():
    found = response(review(offline(limits={"kubernetes.io/batch-cpu": "200m"})))

    assert not found["allowed"]
    assert found["status"]["code"] == 422
    assert 'for 0.2 cores write "200"' in found["status"]["message"]


def test_a_warning_is_short_enough_to_be_shown_whole():
    pod = offline(requests={"cpu": "1"})
    pod["spec"]["overhead"] = {"cpu": "1"}

    (said,) = response(review(pod))["warnings"]
    assert "RuntimeClass" in said and len(said) <= MAX_WARNING


MALFORMED = {
    "nothing": b"",
    "no JSON": b"{",
    "another kind": b'{"apiVersion": "admission.k8s.io/v1", "kind": "Pod", "request": {"uid": "", "operation": ""}}',
    "an old version": review({}).replace(b"k8s.io/v1", b"k8s.io/v1beta1"),
    "no request": b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}',
    "no text": b"\xff\xfe",
    "deep": b'{"apiVersion":' * 100_000,
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_review_is_an_error(body):
    with pytest.raises(ReviewError):
        answer(body, SETTINGS)
