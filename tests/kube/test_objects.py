"""What is read of objects, and what is written to them."""

import json

import msgspec
import pytest

from criproxy.kube.objects import BoundPod, Involved, Node, ObjectError, allocated, decoded, event, eviction, status_of
from criproxy.model import PodRef

NAME = "kubernetes.io/batch-cpu"


def container(amount, field="requests", **more):
    return {"name": "c", "resources": {field: {NAME: amount}}, **more}


@pytest.mark.parametrize(("uid", "known"), [("0bd6-7", True), ("x" * 300_000, False), ("", False), ("a/b", False)])
def test_an_owner_is_one_whose_uid_is_one(uid, known):
    owners = [
        {"kind": "Job", "name": "j", "uid": "other"},
        {"kind": "Job", "name": "j", "uid": uid, "controller": True},
    ]
    found = decoded(json.dumps({"metadata": {"ownerReferences": owners}}).encode(), BoundPod).controller
    assert (found.uid if found else None) == (uid if known else None)


@pytest.mark.parametrize(
    ("spec", "promised"),
    [
        pytest.param({"containers": [container("1000"), container(500)]}, 1500, id="containers together"),
        pytest.param({"containers": [container("200m")]}, 1, id="rounded up"),
        pytest.param(
            {"containers": [container("0" * 100 + "1500")]}, 1500, id="leading zeros, which the API server keeps"
        ),
        pytest.param({"containers": [container("1e" + "0" * 100 + "3")]}, 1000, id="leading zeros of an exponent"),
        pytest.param({"containers": [container("1e4294967299")]}, 1000, id="an exponent of which 32 bits are kept"),
        pytest.param({"containers": [container("1e-4294967293")]}, 1000, id="a negative one"),
        pytest.param({"containers": [container("700", "limits")]}, 700, id="a limit without a request"),
        pytest.param(
            {"containers": [container("100")], "initContainers": [container("900"), container("300")]},
            900,
            id="the largest init container",
        ),
        pytest.param(
            {"containers": [container("100")], "initContainers": [container("50", restartPolicy="Always")]},
            150,
            id="a sidecar beside",
        ),
        pytest.param(
            {
                "containers": [container("100")],
                "initContainers": [container("50", restartPolicy="Always"), container("200")],
            },
            250,
            id="an init container beside a sidecar",
        ),
        pytest.param({"containers": [container("100")], "overhead": {NAME: "10"}}, 110, id="overhead"),
        pytest.param({"containers": [{"name": "c"}]}, 0, id="none"),
        pytest.param({"containers": None, "initContainers": None}, 0, id="null"),
    ],
)
def test_allocated_counts_as_the_scheduler_does(spec, promised):
    one = decoded(json.dumps({"spec": spec}).encode(), BoundPod)
    assert allocated([one], [NAME, "other"]) == {NAME: promised, "other": 0}


def test_decoded_skips_what_it_does_not_know_and_takes_null_for_none():
    node = decoded(b'{"metadata":{"annotations":null,"managedFields":[{}]},"status":{"images":[1]},"x":2}', Node)
    assert node.annotation("a") is None


@pytest.mark.parametrize("data", [b"", b"[]", b'{"metadata":3}', b"\xff", b"[" * 100_000])
def test_decoded_of_something_else_is_an_error(data):
    with pytest.raises(ObjectError):
        decoded(data, Node)


def test_status_of_a_proxys_page_is_its_text():
    assert status_of(b"<html>\n 502  Bad Gateway").message == "<html> 502 Bad Gateway"


def test_eviction_names_the_pod_by_its_uid():
    body = json.loads(eviction(PodRef("u1", "ns", "a"), "v1", 30))
    assert body["apiVersion"] == "policy/v1"
    assert body["metadata"] == {"name": "a", "namespace": "ns"}
    assert body["deleteOptions"] == {"preconditions": {"uid": "u1"}, "gracePeriodSeconds": 30}
    assert "gracePeriodSeconds" not in json.loads(eviction(PodRef("u1", "ns", "a"), "v1", None))["deleteOptions"]


def test_event_of_a_node_is_in_the_default_namespace():
    made = event(Involved("Node", "n1", "u1"), "n1", "Why", "x" * 2000, at="2026-11-22T19:00:00Z", name="1")
    found = json.loads(msgspec.json.encode(made))
    assert found["metadata"] == {"name": "n1.1", "namespace": "default"}
    assert found["involvedObject"] == {"kind": "Node", "name": "n1", "uid": "u1", "apiVersion": "v1", "namespace": ""}
    assert len(found["message"]) == 1024
