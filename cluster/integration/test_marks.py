"""What a real API server sends to the webhook by a pod's marks; what it lets nobody do to these, and everybody to all
else."""

import json

import pytest
import yaml

from cluster.integration.objects import CPU, PODS, pod, until
from criproxy_cluster.vocabulary.names import ANNOTATION_MARKS, CLASS, IGNORE, KEEP_REQUESTS, OVERFLOW, RESOURCES
from criproxy_cluster.vocabulary.presets import EVERY_MARK
from integration.lab.cluster_side import MANIFESTS
from integration.lab.control_plane import ApiError
from integration.lab.process import LabError

pytestmark = pytest.mark.timeout(1200)  # a control plane takes its time on a busy machine

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/zz-criproxy-cluster"


def of_mark(mark):
    return f"{mark.of} {mark.key}"


def metadata(mark, value=None):
    return {f"{mark.of}s": {mark.key: mark.value if value is None else value}}


@pytest.mark.parametrize("mark", EVERY_MARK, ids=of_mark)
def test_pod_with_the_mark_alone_is_sent_to_the_webhook(plane, mark):
    """Nobody answers it there: marked pods can't be made, and all others start as ever."""
    one = pod("sent", labels={})
    one["metadata"] |= metadata(mark)
    said = until(lambda: refused(plane, one))
    assert "failed calling webhook" in said and "colocation.criproxy.io" in said
    assert refused(plane, pod("sent", labels={})) == ""
    one["metadata"] |= metadata(mark, "another")
    assert refused(plane, one) == ""


def test_namespace_that_leaves_annotations_to_another_system_has_labels_alone_sent(plane):
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "theirs", "labels": {ANNOTATION_MARKS: IGNORE}}})
    until(lambda: plane.exists("/api/v1/namespaces/theirs/serviceaccounts/default"))
    for mark in EVERY_MARK:
        one = pod("sent", labels={})
        one["metadata"] |= metadata(mark) | {"namespace": "theirs"}
        assert bool(refused(plane, one, PODS.replace("default", "theirs"))) == (mark.of == "label"), mark


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


@pytest.mark.parametrize("mark", EVERY_MARK, ids=of_mark)
def test_no_mark_comes_or_goes_on_a_pod_that_there_is_gated_or_not(alone, mark):
    name = f"of-{EVERY_MARK.index(mark)}"
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
    assert made_without_webhook(alone, "recorded", {CLASS: "offline"}, {RESOURCES: record})
    assert made_without_webhook(alone, "none")
    for name, text in (("recorded", None), ("recorded", "{}"), ("none", record)):
        assert "leave it as it is" in refusal(alone, name, {"annotations": {RESOURCES: text}})


@pytest.mark.parametrize("mark", EVERY_MARK, ids=of_mark)
def test_no_pod_is_made_with_a_record_and_without_a_mark(alone, mark):
    """The webhook would not write it anew, and a node would take it for both."""
    forged = pod(f"forged-{EVERY_MARK.index(mark)}", labels={})
    forged["metadata"]["annotations"] = {RESOURCES: '{"containers":{"main":{"requests":{"cpu":"256"}}}}'}
    assert f"give the pod the label {CLASS}=offline" in until(lambda: refused(alone, forged))
    for where, given in metadata(mark).items():
        forged["metadata"][where] = {**forged["metadata"].get(where, {}), **given}
    assert refused(alone, forged) == "", "with its mark it goes to the webhook"


def test_annotation_is_no_mark_in_kube_system(alone):
    system = PODS.replace("/default/", "/kube-system/")
    one = pod("forged-system", labels={})
    one["metadata"] |= {"namespace": "kube-system", "annotations": {RESOURCES: "{}"}}
    annotation = next(mark for mark in EVERY_MARK if mark.of == "annotation")
    one["metadata"]["annotations"][annotation.key] = annotation.value
    assert f"give the pod the label {CLASS}=offline" in until(lambda: refused(alone, one, system))
    one["metadata"]["labels"] = {CLASS: "offline"}
    assert refused(alone, one, system) == ""
    asks = unmarked("unmarked-system", WARNED["older-name"])
    asks["metadata"] |= {"namespace": "kube-system", "annotations": {annotation.key: annotation.value}}
    with pytest.raises(LabError) as error:
        alone.kubectl("create", "--dry-run=server", "--warnings-as-errors", "-f", "-", stdin=json.dumps(asks))
    assert f"give it the label {CLASS}=offline" in str(error.value)


def test_a_mirror_pod_has_what_the_file_has(alone):
    mirror = pod("mirror", labels={}, nodeName="none")
    mirror["metadata"]["annotations"] = {RESOURCES: "{}", "kubernetes.io/config.mirror": "x"}
    assert refused(alone, mirror) == ""


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


SPEAK = tuple(
    f"{name}.colocation.criproxy.io" for name in ("unmarked", "unconverted", "unconverted-annotations", "requests")
)
WARNED = {
    "name": "resource.katalyst.kubewharf.io/reclaimed_millicpu",
    "older-name": "koordinator.sh/batch-cpu",
}


def unmarked(name, asked):
    one = pod(name, labels={})
    one["spec"]["containers"][0]["resources"] = {kind: {asked: "1000"} for kind in ("requests", "limits")}
    return one


@pytest.mark.parametrize("name", WARNED)
def test_author_of_a_pod_that_only_means_to_be_offline_is_warned_with_the_remedy(alone, name):
    made = json.dumps(unmarked(f"warned-{name}", WARNED[name]))

    def warned():
        with pytest.raises(LabError) as error:
            alone.kubectl("create", "--dry-run=server", "--warnings-as-errors", "-f", "-", stdin=made)
        said = str(error.value)
        return f"it asks for {WARNED[name]}" in said and f"give it the label {CLASS}=offline" in said

    until(warned)
    alone.kubectl("create", "-f", "-", stdin=made)  # a warning, and no more


def test_marked_and_plain_pods_are_not_warned_of(alone):
    converted = {RESOURCES: "{}"}
    offline = {CLASS: "offline"}
    huge = {"cpu": "0", "memory": 0, "hugepages-2Mi": "2Mi", CPU: "1000"}
    for name, asked, labels, annotations in (
        ("plain", {"cpu": "1"}, {}, {}),
        ("marked", {CPU: "1000"}, offline, converted),
        ("huge", huge, offline, converted),
        ("keeps", {"cpu": "1"}, offline, {**converted, KEEP_REQUESTS: "true"}),
        ("overflows", {"cpu": "1"}, offline, {**converted, OVERFLOW: "late"}),
    ):
        one = pod(name, asked, labels)
        one["metadata"]["annotations"] = annotations
        one["spec"]["containers"][0]["resources"]["limits"] = {
            what: amount for what, amount in asked.items() if what.startswith("hugepages") or what == CPU
        }
        alone.kubectl("create", "--dry-run=server", "--warnings-as-errors", "-f", "-", stdin=json.dumps(one))


@pytest.mark.parametrize("what", ["cpu", "memory"])
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_author_of_a_converted_pod_to_which_a_later_webhook_adds_requests_is_warned(alone, kind, what):
    one = pod("added", {CPU: "1000"}, {CLASS: "offline"})
    (container,) = one["spec"]["containers"]
    container["resources"]["limits"] = {CPU: "1000"}
    one["metadata"]["annotations"] = {RESOURCES: "{}"}
    adds = {**container, "name": "adds", "resources": {"requests": {what: "1"}}}
    one["spec"][kind] = [*one["spec"].get(kind, []), adds]

    def warned():
        with pytest.raises(LabError) as error:
            alone.kubectl("create", "--dry-run=server", "--warnings-as-errors", "-f", "-", stdin=json.dumps(one))
        return f"it was converted, and asks for {what}, which online pods are promised" in str(error.value)

    until(warned)


@pytest.mark.parametrize("mark", EVERY_MARK, ids=of_mark)
def test_author_of_a_pod_that_got_its_mark_after_the_webhook_is_warned(alone, mark):
    late = pod(f"unconverted-{EVERY_MARK.index(mark)}", labels={})
    late["metadata"] |= metadata(mark)
    made = json.dumps(late)

    def warned():
        with pytest.raises(LabError) as error:
            alone.kubectl("create", "--dry-run=server", "--warnings-as-errors", "-f", "-", stdin=made)
        return "was not converted: whatever gave it the mark came after" in str(error.value)

    until(warned)
    alone.kubectl("create", "-f", "-", stdin=made)


def refused(plane, made, where=PODS):
    """Why the API server does not make it; "": it does."""
    try:
        plane.call("POST", f"{where}?dryRun=All", made)
    except ApiError as error:
        return str(error)
    return ""


def test_with_the_component_such_a_pod_is_refused(alone):
    bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    folder = MANIFESTS / "marked-only" / "kustomization.yaml"
    patches = yaml.safe_load(folder.read_text())["patches"]
    assert [one["target"]["name"] for one in patches] == [*SPEAK]
    for one in patches:
        where = f"{bindings}/{one['target']['name']}"
        alone.call("PATCH", where, yaml.safe_load(one["patch"]), content="application/json-patch+json")
    try:
        for name, asked in WARNED.items():
            made = unmarked(f"refused-{name}", asked)
            assert "give it the label" in until(lambda made=made: refused(alone, made))
        for mark in EVERY_MARK:
            late = pod("late", labels={})
            late["metadata"] |= metadata(mark)
            assert "was not converted" in until(lambda late=late: refused(alone, late))
    finally:
        for name in SPEAK:
            alone.merge(f"{bindings}/{name}", {"spec": {"validationActions": ["Warn"]}})
