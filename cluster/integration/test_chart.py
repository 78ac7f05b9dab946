"""The chart on a real control plane: Helm installs, upgrades, rolls back and uninstalls it; and it renders what kubectl
makes of cluster/manifests."""

import tarfile
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from cluster.integration.objects import PODS, pod, until
from criproxy import __version__
from integration.lab import control_plane
from integration.lab.cluster_side import MANIFESTS, SERVING, SYSTEM, WEBHOOKS, kustomization
from integration.lab.control_plane import ControlPlane
from integration.lab.criproxy import CHECKOUT

CHART = CHECKOUT / "packaging" / "chart"
RELEASE = "criproxy"
NODES = "criproxy-node"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/criproxy-webhook"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/colocationpolicies.colocation.criproxy.io"
POLICIES = "/apis/colocation.criproxy.io/v1alpha1/colocationpolicies"
POLICY = {
    "apiVersion": "colocation.criproxy.io/v1alpha1",
    "kind": "ColocationPolicy",
    "metadata": {"name": "night"},
    "spec": {"settings": {"cpu": {"reserve_cores": 2}}},
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A control plane on which nothing of criproxy is."""
    directory = tmp_path_factory.mktemp("chart")
    made = ControlPlane(directory)
    try:
        made.start(lifecycle=False, scheduler=False)
        until(lambda: made.exists("/api/v1/namespaces/default/serviceaccounts/default"))
        yield made
    finally:
        control_plane.end(directory)


@pytest.fixture(scope="module")
def chart():
    with helm_python.Chart.load(CHART) as loaded:
        yield loaded


# --- one truth ------------------------------------------------------------------------------------------------------


def key(one: dict[str, Any]) -> tuple[str, str, str]:
    return one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]


def rendered(chart: helm_python.Chart, values: dict[str, Any]) -> dict[tuple[str, str, str], Any]:
    """The objects of a first revision, but for what Helm's way with them makes different."""
    made = chart.render(values, name=RELEASE, namespace="default", revision=1)
    objects = [one for name, text in made.items() if name.endswith(".yaml") for one in yaml.safe_load_all(text) if one]
    for one in objects:
        if one["kind"] == "Job":
            one["metadata"]["name"] = one["metadata"]["name"].removesuffix("-1")
        if one["kind"] == "CustomResourceDefinition":
            del one["metadata"]["annotations"]
    return {key(one): one for one in objects}


def of_manifests(plane: ControlPlane, folder: Path) -> dict[tuple[str, str, str], Any]:
    objects = list(yaml.safe_load_all(plane.kubectl("kustomize", str(folder))))
    for one in objects:
        if one["kind"].startswith("ValidatingAdmissionPolicy"):  # kustomize takes it for one of a namespace
            one["metadata"].pop("namespace", None)
    return {key(one): one for one in objects}


@pytest.mark.parametrize(
    ("values", "components"),
    [
        ({}, []),
        ({"markedOnly": True}, ["marked-only"]),
        ({"metrics": True}, ["metrics"]),
        ({"scheduler": True}, ["scheduler"]),
        ({"queue": {"enabled": True}}, ["queue"]),
        ({"overflow": {"enabled": True, "remake": True}}, ["overflow", "overflow-remake"]),
        ({"queue": {"enabled": True, "suspend": True}, "metrics": True}, ["queue", "queue-suspend", "metrics"]),
    ],
    ids=lambda one: "-".join(one) if isinstance(one, list) else "",
)
def test_chart_renders_what_kubectl_makes_of_the_manifests(plane, chart, values, components):
    assert rendered(chart, {"cluster": values}) == of_manifests(plane, kustomization(plane, *components))


@pytest.mark.parametrize(
    ("values", "folders"),
    [
        ({"cluster": {"certManager": True}}, ["cert-manager"]),
        ({"cluster": {"ledger": {"enabled": True}, "budget": True, "koordinator": True}},
         ["base", "ledger", "budget", "koordinator"]),
        ({"cluster": {"enabled": False}, "node": {"enabled": True}}, ["node"]),
    ],
    ids=["cert-manager", "ledger-budget-koordinator", "node"],
)  # fmt: skip
def test_chart_renders_what_kubectl_makes_of_other_folders(plane, chart, values, folders):
    wanted: dict[tuple[str, str, str], Any] = {}
    for folder in folders:
        wanted |= of_manifests(plane, MANIFESTS / folder)
    assert rendered(chart, values) == wanted


# --- the five verbs -------------------------------------------------------------------------------------------------


def packaged_with_a_new_key(folder: Path) -> Path:
    """The chart as an archive of a next version, whose CRD has one more column."""
    copy = folder / "chart"
    with helm_python.Chart.load(CHART) as loaded:
        archive = loaded.save(folder)
    with tarfile.open(archive) as tar:
        tar.extractall(copy, filter="data")
    (root,) = copy.iterdir()
    column, new = "        - {name: Problem,", "        - {name: New, type: integer, jsonPath: .spec.priority}\n"
    for name, old, text_of_next in (
        ("files/base/crd.yaml", column, f"{new}{column}"),
        ("Chart.yaml", f"ersion: {__version__}", "ersion: 9.9.9"),
    ):
        text = (root / name).read_text()
        assert old in text
        (root / name).write_text(text.replace(old, text_of_next))
    return root


def columns(plane: ControlPlane) -> set[str]:
    return {one["name"] for one in plane.call("GET", CRD)["spec"]["versions"][0]["additionalPrinterColumns"]}


def bundle(plane: ControlPlane) -> str:
    return str(plane.call("GET", WEBHOOKS)["webhooks"][0]["clientConfig"].get("caBundle", ""))


def key_of(plane: ControlPlane) -> str:
    return str(plane.call("GET", SERVING)["data"]["tls.key"])


def image(plane: ControlPlane) -> str:
    (container,) = plane.call("GET", DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
    return str(container["image"])


def jobs(plane: ControlPlane, namespace: str = SYSTEM) -> set[str]:
    found = plane.call("GET", f"/apis/batch/v1/namespaces/{namespace}/jobs")["items"]
    return {one["metadata"]["name"] for one in found}


def certify(plane: ControlPlane) -> None:
    """What the Job does, without a node to run it: the Secret, and the bundle, by a merge patch as the keeper's."""
    plane.merge(SERVING, {"data": {"tls.crt": "eA==", "tls.key": "eQ=="}})
    (first, *others) = plane.call("GET", WEBHOOKS)["webhooks"]
    hooks = [{"name": one["name"], "clientConfig": {"caBundle": "eA=="}} for one in (first, *others)]
    plane.call("PATCH", WEBHOOKS, {"webhooks": hooks}, content="application/strategic-merge-patch+json")


def test_chart_is_installed_upgraded_rolled_back_and_uninstalled(plane, chart, tmp_path):
    with helm_python.Config(kubeconfig_path=plane.admin, namespace="default") as helm:
        node = {"enabled": True}
        helm.install(chart, RELEASE, {"node": node, "installer": {"install": ["one"]}}, timeout=60)
        assert image(plane) == f"criproxy:{__version__}" and "New" not in columns(plane)
        assert jobs(plane) == {"criproxy-certificates-1"}
        assert plane.exists(f"/apis/apps/v1/namespaces/{NODES}/daemonsets/criproxy-node")
        assert jobs(plane, NODES) == {"criproxy-install-7692c3ad35-1"}
        certify(plane)
        plane.call("POST", POLICIES, POLICY)

        cluster = {"webhook": {"replicas": 3}, "metrics": True}
        values = {"node": node, "cluster": cluster, "installer": {"remove": ["one"]}}
        helm.upgrade(str(packaged_with_a_new_key(tmp_path)), RELEASE, values, timeout=60)
        assert jobs(plane, NODES) >= {"criproxy-remove-7692c3ad35-2"}
        assert image(plane) == "criproxy:9.9.9" and "New" in columns(plane), "the CRD, too"
        assert plane.call("GET", DEPLOYMENT)["spec"]["replicas"] == 3
        assert "criproxy-certificates-2" in jobs(plane)
        assert (bundle(plane), key_of(plane)) == ("eA==", "eQ=="), "as the Job left them"

        helm.rollback(RELEASE, timeout=60)
        assert image(plane) == f"criproxy:{__version__}" and "New" not in columns(plane)
        assert plane.call("GET", DEPLOYMENT)["spec"]["replicas"] == 2
        assert bundle(plane) == "eA=="
        assert plane.exists(f"{POLICIES}/night")

        helm.uninstall(RELEASE, timeout=60)
        assert not plane.exists(WEBHOOKS) and not plane.exists(DEPLOYMENT)
        assert plane.exists(f"{POLICIES}/night"), "the CRD stays, and policies with it"
        plane.call("POST", f"{PODS}?dryRun=All", pod("probe", {"cpu": "1500m"}))
