"""What a real API server lets the ledger write of a Node: its note, and nothing else."""

import time

import pytest

from cluster.integration.objects import put_node, until
from criproxy_cluster.vocabulary.gives_back import Note, encoded
from criproxy_cluster.vocabulary.names import GIVES_BACK, PUBLISHES
from integration.lab.cluster_side import MANIFESTS
from integration.lab.control_plane import ApiError

pytestmark = pytest.mark.timeout(1200)  # a control plane takes its time on a busy machine

NODE = "/api/v1/nodes/n"
NOTE = encoded(Note(7, 3 << 30, 33.0))


@pytest.fixture(scope="module")
def refused(plane):
    """Why the ledger's account may not make this change of the Node; "": it may, and has."""
    for name in ("rbac", "notes"):
        plane.kubectl("apply", "--warnings-as-errors", "-f", str(MANIFESTS / "yarn" / f"{name}.yaml"))
    put_node(plane, "n", labels={"zone": "a"})
    plane.merge(NODE, {"metadata": {"annotations": {PUBLISHES: "", "mine": "1"}, "finalizers": ["example.com/kept"]}})
    plane.kubeconfig("as-ledger", "/CN=system:serviceaccount:criproxy-system:criproxy-ledger")
    context = plane.context_of("as-ledger")

    def tried(body, below=""):
        try:
            plane.merge(f"{NODE}{below}", body, context=context)
        except ApiError as error:
            return str(error)
        return ""

    def probed():
        """Another value each time: what is written already changes nothing, and is never refused."""
        return tried({"metadata": {"annotations": {"probe": str(time.monotonic_ns())}}})

    until(lambda: "the ledger's note" in probed())
    return tried


OTHERS = {
    "a taint": {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
    "cordoned": {"spec": {"unschedulable": True}},
    "a label": {"metadata": {"labels": {"zone": "b"}}},
    "another label": {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
    "no label": {"metadata": {"labels": {"zone": None}}},
    "a finalizer": {"metadata": {"finalizers": ["example.com/kept", "example.com/x"]}},
    "no finalizer": {"metadata": {"finalizers": None}},
    "an owner": {
        "metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "nobody"}]}
    },
    "another annotation": {"metadata": {"annotations": {"other": "1"}}},
    "an annotation that is there": {"metadata": {"annotations": {PUBLISHES: "kubernetes.io/batch-cpu"}}},
    "no annotation": {"metadata": {"annotations": {"mine": None}}},
    "all annotations": {"metadata": {"annotations": None}},
    "the note, and a taint": {
        "metadata": {"annotations": {GIVES_BACK: NOTE}},
        "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
    },
    "a long note": {"metadata": {"annotations": {GIVES_BACK: "x" * 1025}}},
}


@pytest.mark.parametrize("what", OTHERS)
def test_the_ledger_changes_nothing_else_of_a_node(plane, refused, what):
    before = plane.call("GET", NODE)
    assert "the ledger's note" in refused(OTHERS[what])
    after = plane.call("GET", NODE)
    assert (after["metadata"]["resourceVersion"], after["spec"]) == (
        before["metadata"]["resourceVersion"],
        before["spec"],
    )


def test_the_ledger_writes_its_note_and_takes_it_away(plane, refused):
    for note in (NOTE, "", None):
        assert refused({"metadata": {"annotations": {GIVES_BACK: note}}}) == ""
        assert plane.call("GET", NODE)["metadata"]["annotations"].get(GIVES_BACK) == note
    assert "cannot patch" in refused({"status": {"allocatable": {"cpu": "1"}}}, "/status")


def test_others_change_nodes_as_ever(plane, refused):
    kept = {"labels": {"zone": "a"}, "annotations": {"mine": "1"}}
    plane.merge(NODE, {"metadata": {"labels": {"zone": "b"}, "annotations": {"mine": "2"}}})
    plane.merge(NODE, {"metadata": kept, "spec": {"unschedulable": True}})
    plane.merge(NODE, {"spec": {"unschedulable": None}})
