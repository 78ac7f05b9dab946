import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from criproxy_cluster.cli import main

POD = """\
metadata:
  labels: {colocation.criproxy.io/class: offline}
spec:
  containers:
  - name: c
    resources: {requests: {cpu: "1", memory: 1Gi}}
"""


def run(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def indented(text, steps):
    for step in reversed(steps):
        text = f"{step}:\n" + "".join(f"  {line}\n" for line in text.splitlines())
    return text


KINDS = {
    "Pod": (),
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "PodTemplate": ("template",),
}


@pytest.mark.parametrize(("kind", "steps"), KINDS.items(), ids=KINDS)
def test_the_pod_of_every_kind_is_converted(kind, steps, tmp_path, capsys):
    file = tmp_path / "pod.yaml"
    file.write_text(f"apiVersion: v1\nkind: {kind}\n{indented(POD, steps)}")

    code, out, err = run(["convert", str(file)], capsys)

    found = yaml.safe_load(out)
    for step in steps:
        found = found[step]
    assert (code, err) == (0, "")
    assert found["spec"]["containers"][0]["resources"]["requests"] == {
        "kubernetes.io/batch-cpu": "1000",
        "kubernetes.io/batch-memory": "1073741824",
    }


def test_several_documents_lists_and_others_are_kept_in_order(tmp_path, capsys):
    file = tmp_path / "all.yaml"
    pod = {"kind": "Pod", **yaml.safe_load(POD)}
    plain = {"kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [{"name": "c"}]}}
    documents = [{"kind": "ConfigMap", "data": {"a": "1"}}, {"kind": "List", "items": [pod, plain]}, plain]
    file.write_text("---\n" + yaml.safe_dump_all(documents) + "---\n")

    code, out, err = run(["convert", str(file), "--preset", "crane"], capsys)

    made = list(yaml.safe_load_all(out))
    assert code == 0
    assert [one["kind"] for one in made] == ["ConfigMap", "List", "Pod"]
    assert made[1]["items"][0]["spec"]["containers"][0]["resources"]["limits"]["gocrane.io/cpu"] == "1"
    assert made[2] == plain
    assert err.count("Pod web: it is not offline and stays as it is") == 2


def test_plain_words_stay_what_kubectl_takes_them_for(tmp_path, capsys):
    text = """
        kind: Pod
        metadata: {name: p, creationTimestamp: 2024-01-01T00:00:00Z, annotations: {day: 2024-01-01}}
        spec: {containers: [{name: c, args: [53:53, 20:30:40.5, =, 0x10, 1.5, 12]}]}
    """
    file = tmp_path / "pod.yaml"
    file.write_text(text)

    found = yaml.load(run(["convert", str(file)], capsys)[1], Loader=yaml.BaseLoader)  # as it is written
    assert found["metadata"]["creationTimestamp"] == "2024-01-01T00:00:00Z"
    assert found["metadata"]["annotations"] == {"day": "2024-01-01"}
    assert found["spec"]["containers"][0]["args"] == ["53:53", "20:30:40.5", "=", "0x10", "1.5", "12"]


def test_json_from_the_input_is_converted(monkeypatch, capsys):
    data = json.dumps({"kind": "Pod", **yaml.safe_load(POD)}).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    assert 'kubernetes.io/batch-cpu: "1000"' in run(["convert", "-"], capsys)[1]


def test_resources_that_yaml_has_once_for_two_containers_are_converted_in_both(tmp_path, capsys):
    file = tmp_path / "pod.yaml"
    file.write_text(
        "kind: Pod\nmetadata: {labels: {colocation.criproxy.io/class: offline}}\nspec:\n  containers:\n"
        "  - {name: a, resources: &r {requests: {cpu: 1500m}}}\n  - {name: b, resources: *r}\n"
    )
    meta = yaml.safe_load(run(["convert", str(file)], capsys)[1])["metadata"]

    recorded = json.loads(meta["annotations"]["colocation.criproxy.io/resources"])["containers"]
    assert [recorded[name]["requests"]["cpu"] for name in "ab"] == ["1500m", "1500m"]


WRONG = {
    "a quantity": (
        "kind: Job\n" + indented(POD.replace('"1"', "1s"), ("spec", "template")),
        "Job: spec.template.spec",
    ),
    "no template": ("kind: Job\nspec: {}\n", "template: it is missing"),
    "no object": ("- 1\n", "is no object"),
    "no yaml": ("a: [1\n", "neither YAML nor JSON"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_with_the_file(text, message, tmp_path, capsys):
    file = tmp_path / "x.yaml"
    file.write_text(text)

    code, out, err = run(["convert", str(file)], capsys)

    assert (code, out) == (1, "")
    assert f"{file}: " in err and message in err


def test_a_file_that_is_not_there_is_said(tmp_path, capsys):
    assert "can't be read" in run(["convert", str(tmp_path / "none")], capsys)[2]


OTHERS = {
    "Volcano": "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: x}\nspec:\n  tasks:\n  - template:\n"
    "      spec: {containers: [{name: c}]}\n",
    "Spark": "apiVersion: sparkoperator.k8s.io/v1beta2\nkind: SparkApplication\nmetadata: {name: x}\n"
    "spec: {driver: {}}\n",
    "Ray": "apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {name: x}\nspec:\n  rayClusterSpec:\n"
    "    headGroupSpec: {template: {spec: {containers: [{name: c}]}}}\n",
    "Flink": "apiVersion: flink.apache.org/v1beta1\nkind: FlinkDeployment\nmetadata: {name: x}\nspec: {image: i}\n",
    "PyTorch": "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: x}\nspec:\n  pytorchReplicaSpecs:\n"
    "    Worker: {template: {spec: {containers: [{name: c}]}}}\n",
    "JobSet": "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: x}\nspec:\n  replicatedJobs:\n"
    "  - template: {spec: {template: {spec: {containers: [{name: c}]}}}}\n",
    "Argo": "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {name: x}\nspec:\n"
    "  templates: [{container: {image: i}}]\n",
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_others_kinds_stay_as_they_are_and_are_named_and_the_pod_beside_them_is_converted(text, tmp_path, capsys):
    file = tmp_path / "all.yaml"
    file.write_text(f"{text}---\nkind: Pod\n{POD}---\nkind: Service\nmetadata: {{name: s}}\n")

    code, out, err = run(["convert", str(file)], capsys)

    made = list(yaml.safe_load_all(out))
    assert (code, made[0]) == (0, yaml.safe_load(text))
    assert "kubernetes.io/batch-cpu" in made[1]["spec"]["containers"][0]["resources"]["requests"]
    kind = made[0]["kind"]
    assert err == (
        f"criproxy-cluster: {file}: {kind} x: it stays as it is; the webhook converts its pods when they are made\n"
    )


def test_list_of_one_kind_is_converted_and_its_items_stay_without_their_kind(tmp_path, capsys):
    file = tmp_path / "pods.json"
    file.write_text(json.dumps({"kind": "PodList", "apiVersion": "v1", "items": [yaml.safe_load(POD)]}))

    (item,) = yaml.safe_load(run(["convert", str(file)], capsys)[1])["items"]
    assert item["spec"]["priorityClassName"] == "colocation-expendable"
    assert item.keys() == {"metadata", "spec"}


def test_what_stays_is_written_as_it_was(tmp_path, capsys):
    file = tmp_path / "pod.yaml"
    file.write_text(
        f"kind: Pod\n{POD}  volumes:\n  - name: v\n    configMap: {{name: 'm', defaultMode: 0777, optional: }}\n"
        '  nodeSelector: {a: "y", b: 1e3}\n'
    )

    out = run(["convert", str(file)], capsys)[1]
    assert "configMap: {name: 'm', defaultMode: 0777, optional: null}" in out
    assert 'nodeSelector: {a: "y", b: 1e3}' in out
    assert "cpu: '1'" not in out and "&id" not in out


# --- output that can't be written -------------------------------------------------------------------------------------


def ended(output, *arguments):
    """Its status and what it says on stderr, its output buffered as in a script."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "criproxy_cluster", *arguments]
    done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    return done.returncode, done.stderr


@pytest.fixture(params=[1, 200], ids=["short", "longer than the buffer"])
def manifest(request, tmp_path):
    file = tmp_path / "pods.yaml"
    file.write_text("---\n".join([f"kind: ConfigMap\ndata: {{a: {'x' * 100}}}\n"] * request.param))
    return str(file)


def test_output_that_nobody_reads_any_more_ends_quietly(manifest):
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "wb") as pipe:
        status, words = ended(pipe, "convert", manifest)
    assert (status, "Exception" in words, "Traceback" in words) == (1, False, False)


def test_output_for_which_the_disk_has_no_room_is_a_line_of_words(manifest):
    with open("/dev/full", "wb") as full:
        status, words = ended(full, "convert", manifest)
    assert status == 1
    assert words.splitlines()[-1] == "criproxy-cluster: the output can't be written: No space left on device"
