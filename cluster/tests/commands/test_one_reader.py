"""Explain, convert and the webhook have one answer to each shape of the manifests that people have."""

import copy
import json
import textwrap

import pytest
import yaml

from criproxy.commands.explain.manifest import ManifestError, read_manifests
from criproxy_cluster.commands.convert import convert
from criproxy_cluster.vocabulary.manifests import documents
from criproxy_cluster.vocabulary.names import RESOURCES
from criproxy_cluster.webhook.conversion import ConversionError, ConversionSettings, converted

SETTINGS = ConversionSettings()
OFFLINE = {"colocation.criproxy.io/class": "offline"}

# --- pods: what is in them --------------------------------------------------------------------------------------------

ASKED = {"requests": {"cpu": "1", "memory": "1Gi"}}


def pod(**more):
    container = {"name": "main", "image": "i", "resources": ASKED, **more.pop("container", {})}
    meta = {"labels": {**OFFLINE, **more.pop("labels", {})}, **more.pop("metadata", {})}
    return {"metadata": meta, "spec": {"containers": [container, *more.pop("beside", [])], **more}}


PODS = {
    "plain": pod(),
    "limits alone": pod(container={"resources": {"limits": {"cpu": 2, "memory": "64Mi"}}}),
    "numbers": pod(container={"resources": {"requests": {"cpu": 0.5, "memory": 1000000000}}}),
    "no resources": pod(container={"resources": None}),
    "resources of null": pod(container={"resources": {"requests": None, "limits": None}}),
    "huge pages": pod(container={"resources": {"limits": {"hugepages-2Mi": "4Mi", "memory": "64Mi", "cpu": "1"}}}),
    "a device": pod(container={"resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "1"}}}),
    "init container": pod(initContainers=[{"name": "prep", "image": "i", "resources": ASKED}]),
    "sidecar": pod(initContainers=[{"name": "log", "image": "i", "restartPolicy": "Always", "resources": ASKED}]),
    "ephemeral container": pod(ephemeralContainers=[{"name": "debug", "image": "i"}]),
    "three containers": pod(beside=[{"name": name, "image": "i", "resources": ASKED} for name in "ab"]),
    "odd texts": pod(container={"env": [{"name": "A", "value": "y"}, {"name": "B", "value": "1e3"}]}),
    "odd arguments": pod(container={"command": ["test", "a", "=", "b"], "args": ["12:30:00", "0777", "~", "null", ""]}),
    "odd labels": pod(labels={"commit": "1234e56", "ports": "53:53", "on": "off"}),
    "dates": pod(metadata={"annotations": {"deployed": "2024-01-01", "at": "2024-01-01T00:00:00Z"}}),
    "lines": pod(container={"args": ["a\nb\n", "  c", "#d", "e: f"]}),
    "generated name": pod(metadata={"generateName": "batch-"}),
    "what a server adds": pod(metadata={"creationTimestamp": None, "managedFields": [{"fieldsV1": {"f:a": {}}}]}),
    "tolerations": pod(tolerations=[{"operator": "Exists"}]),
    "its own priority": pod(priorityClassName="low", priority=5000, preemptionPolicy="Never"),
    "affinity": pod(affinity={"podAntiAffinity": {}, "nodeAffinity": {}}),
    "privileged": pod(container={"securityContext": {"privileged": True}}),
    "host namespaces": pod(hostPID=True, hostNetwork=True),
    "converted before": converted(pod(), SETTINGS),
    "a wrong quantity": pod(container={"resources": {"requests": {"cpu": "1s"}}}),
}  # fmt: skip

# --- kinds: who makes them --------------------------------------------------------------------------------------------

NAMED = {"name": "x", "namespace": "web"}


def made_by(version, kind, *steps):
    def form(template):
        of = template
        for step in reversed(steps):
            of = [of] if step == "-" else {step: of}
        if not steps:
            return {"apiVersion": version, "kind": kind, **of, "metadata": {**NAMED, **of["metadata"]}}
        return {"apiVersion": version, "kind": kind, "metadata": NAMED, **of}

    return form


CONTROLLERS = {
    "Pod": made_by("v1", "Pod"),
    "PodTemplate": made_by("v1", "PodTemplate", "template"),
    "ReplicationController": made_by("v1", "ReplicationController", "spec", "template"),
    "Job": made_by("batch/v1", "Job", "spec", "template"),
    "CronJob": made_by("batch/v1", "CronJob", "spec", "jobTemplate", "spec", "template"),
    "Deployment of old": made_by("extensions/v1beta1", "Deployment", "spec", "template"),
    **{
        kind: made_by("apps/v1", kind, "spec", "template")
        for kind in ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")
    },
}
OTHERS = {
    "Volcano": made_by("batch.volcano.sh/v1alpha1", "Job", "spec", "tasks", "-", "template"),
    "Ray": made_by("ray.io/v1", "RayCluster", "spec", "headGroupSpec", "template"),
    "RayJob": made_by("ray.io/v1", "RayJob", "spec", "rayClusterSpec", "workerGroupSpecs", "-", "template"),
    "Flink": made_by("flink.apache.org/v1beta1", "FlinkDeployment", "spec", "podTemplate"),
    "PyTorch": made_by("kubeflow.org/v1", "PyTorchJob", "spec", "pytorchReplicaSpecs", "Worker", "template"),
    "JobSet": made_by("jobset.x-k8s.io/v1alpha2", "JobSet", "spec", "jobs", "-", "template", "spec", "template"),
    "Spark": made_by("sparkoperator.k8s.io/v1beta2", "SparkApplication", "spec", "driver", "template"),
    "OpenKruise": made_by("apps.kruise.io/v1alpha1", "DaemonSet", "spec", "template"),
}  # fmt: skip
KINDS = {**CONTROLLERS, **OTHERS}

# --- files: how they are written --------------------------------------------------------------------------------------

BESIDE = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"on": "yes"}}


class Quoting(yaml.SafeDumper):
    """Texts have quotes, as PyYAML leaves them out of some that kubectl takes for something else."""


Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'"))


def dumped(*objects, **more):
    return yaml.dump_all(objects, Dumper=Quoting, sort_keys=False, **more)


def several(*objects):
    return f"# made by hand\n---\n{dumped(*objects)}---\n"


FILES = {
    "blocks": several,
    "flow": lambda one: dumped(one, default_flow_style=True),
    "aliases": lambda one: several({**one, "x-same": one.get("spec"), "x-again": one.get("spec")}),
    "beside others": lambda one: several(BESIDE, one, BESIDE),
    "a List": lambda one: several({"apiVersion": "v1", "kind": "List", "items": [BESIDE, one]}),
    "JSON": lambda one: json.dumps(one, indent="\t"),
    "a stream of JSON": lambda one: json.dumps(BESIDE) + "\n" + json.dumps(one),
    "a mark": lambda one: "\ufeff" + several(one),
    "Windows": lambda one: several(one).replace("\n", "\r\n"),
}


def shapes():
    for kind, form in KINDS.items():
        for number, name in enumerate(PODS):
            for file in list(FILES)[number % 5 :: 5]:
                yield pytest.param(form, name, FILES[file], kind in OTHERS, id=f"{kind}-{name}-{file}")


SHAPES = list(shapes())


def test_shapes_are_as_many_as_were_found_in_public():
    assert len(SHAPES) >= 600


@pytest.mark.parametrize(("form", "name", "written", "is_others"), SHAPES)
def test_explain_convert_and_the_webhook_have_one_answer(form, name, written, is_others, tmp_path):
    of, before = form(copy.deepcopy(PODS[name])), copy.deepcopy(PODS[name])
    data = written(of).encode("utf-16" if name == "plain" else "utf-8")
    (tmp_path / "file").write_bytes(data)

    if is_others:
        text, notes = convert(str(tmp_path / "file"), SETTINGS)
        assert [one.value for one in documents(text.encode(), yaml)] == [one.value for one in documents(data, yaml)]
        assert len(notes) == 1 and f"{of['kind']} x: it stays as it is" in notes[0]
        with pytest.raises(ManifestError, match="x is passed over: explain its pods when they are"):
            read_manifests(data)
        return
    try:
        webhooks = converted(before, SETTINGS)
    except ConversionError as error:
        with pytest.raises(ValueError, match="1s"):
            convert(str(tmp_path / "file"), SETTINGS)
        assert "1s" in str(error)
        return
    text, notes = convert(str(tmp_path / "file"), SETTINGS)
    assert notes == ()
    assert webhooks["spec"].items() <= found_in(text, webhooks).items()
    for explained in (read_manifests(data), read_manifests(text.encode())):
        (one,) = explained.pods
        ref = one.pod.ref
        assert (ref.namespace, ref.name) == ("web", "x") and OFFLINE.items() <= one.pod.labels.items()
    assert one.pod.annotations[RESOURCES] == webhooks["metadata"]["annotations"][RESOURCES]


def found_in(text, webhooks):
    """The spec of the one pod that is in a file, wherever it is."""
    below = [one.value for one in documents(text.encode(), yaml)]
    while below:
        one = below.pop(0)
        if isinstance(one, dict):
            if "containers" in one and one["containers"] == webhooks["spec"]["containers"]:
                return one
            below += one.values()
        elif isinstance(one, list):
            below += one
    raise AssertionError(textwrap.shorten(text, 1000))
