"""What kubelet makes of Pod manifests. The expected numbers are kubelet's, worked out by hand from its sources."""

import contextlib
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.commands.explain.manifest import Manifest, ManifestError, QosClass, parse_quantity, read_manifests

GIB = 1 << 30


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
    (found,) = read_manifests(json.dumps(document))
    return found


def needs(requests: dict[str, Any] | None = None, limits: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"resources": {"requests": requests, "limits": limits}, **more}


FULL = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("pod", "qos", "parent"),
    [
        pytest.param(manifest({}), QosClass.BEST_EFFORT, "/kubepods/besteffort/podu", id="nothing"),
        pytest.param(manifest(needs({"cpu": 0})), QosClass.BEST_EFFORT, "/kubepods/besteffort/podu", id="zero"),
        pytest.param(
            manifest(needs({"nvidia.com/gpu": 1})), QosClass.BEST_EFFORT, "/kubepods/besteffort/podu", id="extended"
        ),
        pytest.param(manifest(needs({"cpu": "1m"})), QosClass.BURSTABLE, "/kubepods/burstable/podu", id="request"),
        pytest.param(manifest(needs(None, {"cpu": 1})), QosClass.BURSTABLE, "/kubepods/burstable/podu", id="cpu-limit"),
        pytest.param(manifest(needs(None, FULL)), QosClass.GUARANTEED, "/kubepods/podu", id="limits-alone"),
        pytest.param(
            manifest(needs({"cpu": "1000m", "memory": "1024Mi"}, FULL)),
            QosClass.GUARANTEED,
            "/kubepods/podu",
            id="same",
        ),
        pytest.param(
            manifest(needs({"cpu": "999m"}, FULL)), QosClass.BURSTABLE, "/kubepods/burstable/podu", id="lower-request"
        ),
        pytest.param(manifest(needs(None, FULL), {}), QosClass.BURSTABLE, "/kubepods/burstable/podu", id="one-without"),
        pytest.param(
            manifest(needs(None, FULL), init=[{}]), QosClass.BURSTABLE, "/kubepods/burstable/podu", id="init-without"
        ),
        pytest.param(
            manifest({}, resources={"limits": FULL}), QosClass.GUARANTEED, "/kubepods/podu", id="pod-level-resources"
        ),
    ],
)
def test_qos_class_and_parent_are_kubelets(pod: Manifest, qos: QosClass, parent: str) -> None:
    assert (pod.qos, pod.pod.cgroup_parent) == (qos, parent)


def test_qos_class_that_the_api_server_has_set_wins() -> None:
    text = (
        '{"kind": "Pod", "metadata": {}, "spec": {"containers": [{"name": "a"}]}, "status": {"qosClass": "Guaranteed"}}'
    )
    assert read_manifests(text)[0].qos is QosClass.GUARANTEED


@pytest.mark.parametrize(
    ("pod", "oom_score_adj"),
    [
        pytest.param(manifest({}), 1000, id="best-effort"),
        pytest.param(manifest(needs(None, FULL)), -997, id="guaranteed"),
        pytest.param(manifest(needs({"cpu": 1})), 999, id="burstable-without-memory"),
        pytest.param(manifest(needs({"memory": "1Gi"})), 875, id="burstable-with-an-eighth"),
        pytest.param(manifest(needs({"memory": "8Gi"})), 3, id="burstable-with-all"),
        pytest.param(manifest({}, priorityClassName="system-node-critical"), -997, id="node-critical"),
    ],
)
def test_oom_score_of_a_container_is_kubelets(pod: Manifest, oom_score_adj: int) -> None:
    assert pod.container_resources(pod.containers[0], 8 * GIB).oom_score_adj == oom_score_adj


@pytest.mark.parametrize(
    ("amounts", "shares", "quota", "memory"),
    [
        pytest.param(needs(), 2, 0, 0, id="nothing"),
        pytest.param(needs({"cpu": "100m"}, {"cpu": "500m"}), 102, 50_000, 0, id="request-and-limit"),
        pytest.param(needs(None, {"cpu": 2, "memory": "1.5Gi"}), 2048, 200_000, 3 * GIB // 2, id="limit-alone"),
        pytest.param(needs({"cpu": "1m"}, {"cpu": "1m"}), 2, 1000, 0, id="least"),
        pytest.param(needs({"cpu": "1000"}), 262_144, 0, 0, id="most-shares"),
        pytest.param(needs({"cpu": "0.5m"}, {"memory": "100m"}), 2, 0, 1, id="rounded-up"),
    ],
)
def test_resources_of_a_container_are_kubelets(amounts: dict[str, Any], shares: int, quota: int, memory: int) -> None:
    pod = manifest(amounts)
    found = pod.container_resources(pod.containers[0], GIB)
    assert (found.cpu_shares, found.cpu_quota_us, found.memory_limit_bytes, found.cpu_period_us) == (
        shares,
        quota,
        memory,
        100_000,
    )


@pytest.mark.parametrize(
    ("pod", "millicores"),
    [
        pytest.param(manifest(needs({"cpu": 1}), needs({"cpu": 2})), 3000, id="containers-add-up"),
        pytest.param(manifest(needs({"cpu": 1}), init=[needs({"cpu": 2})]), 2000, id="greatest-init"),
        pytest.param(manifest(needs({"cpu": 3}), init=[needs({"cpu": 2})] * 2), 3000, id="inits-do-not-add-up"),
        pytest.param(
            manifest(needs({"cpu": 3}), init=[needs({"cpu": 1}, restartPolicy="Always"), needs({"cpu": 2})]),
            4000,
            id="sidecars-add-up",
        ),
        pytest.param(
            manifest({}, init=[needs({"cpu": 1}, restartPolicy="Always"), needs({"cpu": 2})]),
            3000,
            id="init-on-sidecar",
        ),
        pytest.param(
            manifest({}, init=[needs({"cpu": 2}), needs({"cpu": 1}, restartPolicy="Always")]), 2000, id="init-first"
        ),
        pytest.param(manifest(needs({"cpu": 1}), resources={"requests": {"cpu": 5}}), 5000, id="pod-level"),
    ],
)
def test_sandbox_carries_the_pods_total(pod: Manifest, millicores: int) -> None:
    assert pod.sandbox_resources().cpu_shares == millicores * 1024 // 1000


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", "0"),
        ("100m", "0.1"),
        ("1.5", "1.5"),
        ("2k", "2000"),
        ("1Ki", "1024"),
        ("1.5Gi", str(3 * GIB // 2)),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("1E", str(10**18)),
        ("5n", "0.000000005"),
        ("+1", "1"),
    ],
)
def test_quantity_is_kubernetes(text: str, number: str) -> None:
    assert parse_quantity(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "m", "1 Gi", "1KiB", "-1", "1.2.3", "nan", "1e999", "9" * 50, "٣", "1K", "."])
def test_quantity_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ManifestError, match="is no quantity"):
        parse_quantity(text)


@given(st.text() | st.floats() | st.integers())
def test_any_quantity_is_parsed_or_refused(value: str | float) -> None:
    with contextlib.suppress(ManifestError):
        assert 0 <= parse_quantity(value) < 2**63


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
    assert [found.pod.ref.name for found in read_manifests(text)] == names


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("", "no Pod", id="empty"),
        pytest.param("{", "no JSON", id="broken-json"),
        pytest.param("a: [", "no YAML", id="broken-yaml"),
        pytest.param("a: 2024-99-99", "no YAML", id="yaml-with-an-impossible-date"),
        pytest.param("{" + '"a":{' * 100_000, "no JSON", id="deep"),
        pytest.param("kind: Deployment", "'Deployment'", id="other-kind"),
        pytest.param("3", "None", id="number"),
        pytest.param("kind: List\nitems: [3]", "None", id="list-of-numbers"),
        pytest.param("kind: Pod", "metadata", id="no-metadata"),
        pytest.param("kind: Pod\nmetadata: {}\nspec: {containers: []}", "empty", id="no-container"),
        pytest.param("kind: Pod\nmetadata: {labels: {a: true}}\nspec: {containers: []}", "labels", id="label-true"),
        pytest.param(
            "kind: Pod\nmetadata: {}\nspec: {containers: [{name: c, resources: {limits: {cpu: lots}}}]}",
            "'lots' is no quantity",
            id="quantity",
        ),
    ],
)
def test_manifest_that_is_no_pod_is_refused(text: str, told: str) -> None:
    with pytest.raises(ManifestError, match=told):
        read_manifests(text)


def test_pod_carries_what_kubelet_adds() -> None:
    pod = manifest({}, meta={"name": "n", "namespace": "ns", "uid": "u", "labels": {"a": "b"}, "annotations": None}).pod
    assert pod.labels["a"] == "b"
    assert pod.labels["io.kubernetes.pod.uid"] == "u"
    assert (str(pod.ref), dict(pod.annotations)) == ("ns/n", {})
