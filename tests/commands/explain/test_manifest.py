"""What is read of Pod manifests."""

import json
from typing import Any

import pytest

from criproxy.commands.explain.manifest import MOST_OBJECTS, Manifest, ManifestError, ManifestPart, read_manifests


def manifest(
    *containers: dict[str, Any],
    init: list[dict[str, Any]] | None = None,
    meta: dict[str, Any] | None = None,
    **spec: Any,
) -> Manifest:
    named = [{"name": f"c{number}", **c} for number, c in enumerate(containers)]
    started = [{"name": f"i{number}", **c} for number, c in enumerate(init or [])]
    document = {
        "kind": "Pod",
        "metadata": meta or {"name": "p", "uid": "u"},
        "spec": {"containers": named, "initContainers": started, **spec},
    }
    (found,) = read_manifests(json.dumps(document).encode()).pods
    return found


def parts(pod: Manifest) -> list[ManifestPart]:
    return [part for call in pod.calls for part in call.parts]


def needs(requests: dict[str, Any] | None = None, limits: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"resources": {"requests": requests, "limits": limits}, **more}


@pytest.mark.parametrize(
    ("pod", "sandbox", "container"),
    [
        pytest.param(manifest({}), False, False, id="nothing"),
        pytest.param(manifest(needs({"cpu": 1}, {"memory": "1Gi"})), False, False, id="no-cpu-limit"),
        pytest.param(manifest(needs(None, {"cpu": "500m"})), True, True, id="limit"),
        pytest.param(manifest(needs(None, {"cpu": 0.5})), True, True, id="number"),
        pytest.param(manifest(needs(None, {"cpu": "0m"})), False, False, id="zero"),
        pytest.param(manifest({}, needs(None, {"cpu": 1})), True, False, id="another-container"),
        pytest.param(manifest({}, init=[needs(None, {"cpu": 1})]), True, False, id="init-container"),
        pytest.param(manifest({}, resources={"limits": {"cpu": 5}}), True, False, id="pod-level"),
    ],
)
def test_cpu_quota_is_known_to_be_there(pod: Manifest, sandbox: bool, container: bool) -> None:
    first, main = (next(one for one in parts(pod) if one.container == name) for name in ("", "c0"))
    assert (first.resources.cpu_quota_us > 0, main.resources.cpu_quota_us > 0) == (sandbox, container)
    assert first.resources.cpu_period_us == main.resources.cpu_period_us == 100_000


def test_containers_are_in_order_init_ones_first() -> None:
    pod = manifest({}, {"securityContext": {"capabilities": {"add": ["ALL"]}}}, init=[{}])
    assert [(one.container, one.security.added_capabilities) for one in parts(pod)] == [
        ("", ()), ("i0", ()), ("c0", ()), ("c1", ("ALL",)),
    ]  # fmt: skip
    assert pod.kinds == {"i0": "init"}


POD = "kind: Pod\nmetadata: {name: %s}\nspec: {containers: [{name: c}]}\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param(POD % "a", ["a"], id="yaml"),
        pytest.param("---\n" + POD % "a" + "---\n" + POD % "b" + "---\n", ["a", "b"], id="documents"),
        pytest.param('{"kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c"}]}}', ["a"], id="json"),
        pytest.param(
            '{"kind":"List","items":[{"kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c"}]}}]}',
            ["a"],
            id="list",
        ),
        pytest.param(
            '{"kind":"PodList","items":[{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c"}]}}]}',
            ["a"],
            id="pod-list",
        ),
    ],
)
def test_pods_are_found(text: str, names: list[str]) -> None:
    assert [found.pod.ref.name for found in read_manifests(text.encode()).pods] == names


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("", "no Pod", id="empty"),
        pytest.param("{", "neither YAML nor JSON", id="broken-json"),
        pytest.param("a: [", "neither YAML nor JSON", id="broken-yaml"),
        pytest.param("{" + '"a":{' * 100_000, "nested too deeply", id="deep"),
        pytest.param("kind: Deployment", "Deployment: spec.template is missing", id="no-template"),
        pytest.param("kind: Service\nmetadata: {name: s}", "Service s has no pod", id="other-kind"),
        pytest.param(
            "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job", "Job has no pod", id="a-kind-of-another-group"
        ),
        pytest.param("3", "3 has no pod", id="number"),
        pytest.param("kind: List\nitems: [3]", "3 has no pod", id="list-of-numbers"),
        pytest.param("kind: Pod", "metadata", id="no-metadata"),
        pytest.param("kind: Pod\nmetadata: {}\nspec: {containers: []}", "empty", id="no-container"),
        pytest.param("kind: Pod\nmetadata: {labels: {a: true}}\nspec: {containers: []}", "labels", id="label-true"),
    ],
)
def test_manifest_that_is_no_pod_is_refused(text: str, told: str) -> None:
    with pytest.raises(ManifestError, match=told):
        read_manifests(text.encode())


TEMPLATE = "template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c}]}}"


@pytest.mark.parametrize(
    ("text", "pods", "passed_over"),
    [
        pytest.param(
            f"apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d, namespace: web}}\nspec: {{{TEMPLATE}}}\n",
            ["web/d"],
            [],
            id="deployment",
        ),
        pytest.param(
            f"apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: j}}\n"
            f"spec: {{jobTemplate: {{spec: {{{TEMPLATE}}}}}}}",
            ["default/j"],
            [],
            id="cron-job",
        ),
        pytest.param(
            "kind: Pod\nmetadata: {generateName: batch-}\nspec: {containers: [{name: c}]}", ["default/batch-"], [],
            id="generated-name",
        ),
        pytest.param(
            f"kind: ConfigMap\nmetadata: {{name: m}}\n---\n{POD % 'a'}---\nkind: Service\nmetadata: {{name: s}}\n",
            ["default/a"],
            [f"{one} has no pod that is known here, and is passed over" for one in ("ConfigMap m", "Service s")],
            id="others-beside-it",
        ),
        pytest.param("{kind: Pod, metadata: {name: a}, spec: {containers: [{name: c}]}}", ["default/a"], [], id="flow"),
    ],
)  # fmt: skip
def test_pods_that_others_make_are_found_and_what_makes_none_is_passed_over(
    text: str, pods: list[str], passed_over: list[str]
) -> None:
    read = read_manifests(text.encode())
    assert [str(one.pod.ref) for one in read.pods] == pods
    assert list(read.passed_over) == passed_over


def test_plain_words_are_what_kubectl_reads_in_them() -> None:
    marks = "annotations: {deployed: 2024-01-01, x: 1e}, labels: {ports: 53:53}"
    text = f"kind: Pod\nmetadata: {{name: a, {marks}}}\nspec: {{containers: [{{name: c, command: [test, a, =, b]}}]}}\n"
    for data in (text.encode(), text.encode("utf-16"), b"\xef\xbb\xbf" + text.encode()):
        (pod,) = read_manifests(data).pods
        assert pod.pod.annotations == {"deployed": "2024-01-01", "x": "1e"}
        assert pod.pod.labels["ports"] == "53:53"


def test_pods_beyond_a_bound_are_refused() -> None:
    one = b'{"kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c"}]}}'
    many = b'{"kind":"List","items":[' + b",".join([one] * (MOST_OBJECTS + 1)) + b"]}"
    with pytest.raises(ManifestError, match="more than 1000 objects"):
        read_manifests(many)


def test_pod_carries_what_kubelet_adds() -> None:
    pod = manifest({}, meta={"name": "n", "namespace": "ns", "uid": "u", "labels": {"a": "b"}, "annotations": None}).pod
    assert pod.labels["a"] == "b"
    assert pod.labels["io.kubernetes.pod.uid"] == "u"
    assert (str(pod.ref), dict(pod.annotations)) == ("ns/n", {})
