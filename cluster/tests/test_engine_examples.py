"""The manifests of examples/ for other engines: which of their pods are offline, and what these then ask for.

Each engine makes pods of templates in its own way; here is where they are, by the kind.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from criproxy.commands.explain import command
from criproxy.config.settings import Config
from criproxy.vocabulary.manifests import documents
from criproxy_cluster.commands.convert import convert
from criproxy_cluster.webhook.conversion import ConversionSettings, converted, is_offline

EXAMPLES = Path(__file__).parents[2] / "examples"
LENT = {"kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"}


def volcano(job: Any) -> Iterator[tuple[str, Any]]:
    for task in job["spec"]["tasks"]:
        yield task["name"], task["template"]


def ray(cluster: Any) -> Iterator[tuple[str, Any]]:
    yield "head", cluster["spec"]["headGroupSpec"]["template"]
    for group in cluster["spec"]["workerGroupSpecs"]:
        yield group["groupName"], group["template"]


def argo(workflow: Any) -> Iterator[tuple[str, Any]]:
    for template in workflow["spec"]["templates"]:
        container = {"name": "main", **template["container"]}
        yield template["name"], {"metadata": workflow["spec"]["podMetadata"], "spec": {"containers": [container]}}


def kueue(job: Any) -> Iterator[tuple[str, Any]]:
    yield "work", job["spec"]["template"]


def spark(driver: Any) -> Iterator[tuple[str, Any]]:
    """The driver, and what it would make by its settings. Source: Spark, BasicExecutorFeatureStep."""
    yield "driver", driver
    settings = settings_of(driver)
    label = "spark.kubernetes.executor.label."
    labels = {key.removeprefix(label): value for key, value in settings.items() if key.startswith(label)}
    cpu = {kind: {"cpu": settings[f"spark.kubernetes.executor.{kind[:-1]}.cores"]} for kind in ("requests", "limits")}
    resources = {kind: {**asked, "memory": "896Mi"} for kind, asked in cpu.items()}
    metadata = {"labels": {"spark-role": "executor", **labels}}
    yield "executor", {"metadata": metadata, "spec": {"containers": [{"name": "e", "resources": resources}]}}


def settings_of(driver: Any) -> Mapping[str, str]:
    arguments = driver["spec"]["containers"][0]["args"]
    return dict(one.removeprefix("--conf=").split("=", 1) for one in arguments if one.startswith("--conf="))


ENGINES = {
    "volcano/job.yaml": ("Job", volcano, {"worker": True}),
    "ray/cluster.yaml": ("RayCluster", ray, {"head": False, "offline": True}),
    "argo/workflow.yaml": ("Workflow", argo, {"checksum": True}),
    "kueue/job.yaml": ("Job", kueue, {"work": True}),
    "spark-application.yaml": ("Pod", spark, {"driver": False, "executor": True}),
}


@pytest.mark.parametrize("file", ENGINES)
def test_example_of_an_engine_has_offline_pods_where_they_are_meant_to_be(file: str, tmp_path: Path) -> None:
    kind, templates, meant = ENGINES[file]
    objects = [one.value for one in documents((EXAMPLES / file).read_bytes(), yaml)]
    pods = {name: pod for one in objects if one["kind"] == kind for name, pod in templates(one)}
    assert {name: "metadata" in pod and is_offline(pod) for name, pod in pods.items()} == meant

    for name, pod in pods.items():
        made = converted({"metadata": {}, **pod}, ConversionSettings())
        (container,) = made["spec"]["containers"]
        if meant[name]:
            assert container["resources"]["requests"].keys() == LENT
            assert set(container["resources"].get("limits", LENT)) == LENT
        else:
            assert made["spec"] == pod["spec"]
        (manifest := tmp_path / f"{name}.json").write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", **made}))
        says = command.run(str(manifest), Config())
        assert ("class          offline" in says) == meant[name], says


@pytest.mark.parametrize("file", [file for file, (kind, *_) in ENGINES.items() if kind not in ("Job", "Pod")])
def test_example_of_a_kind_of_its_own_is_known_to_make_pods(file: str) -> None:
    text, notes = convert(str(EXAMPLES / file), ConversionSettings())
    assert "batch-cpu" not in text
    assert len(notes) == 1, "it is left to the webhook, as its author is told"


def test_spark_s_example_has_what_an_eviction_needs() -> None:
    manifests = yaml.safe_load_all((EXAMPLES / "spark-application.yaml").read_bytes())
    (driver,) = (one for one in manifests if one["kind"] == "Pod")
    page = (EXAMPLES.parent / "docs" / "batch.md").read_text(encoding="utf-8")
    needed = [key for key in settings_of(driver) if "decommission" in key or "dynamicAllocation" in key]
    assert needed
    assert [key for key in needed if f"`{key}" not in page] == []
