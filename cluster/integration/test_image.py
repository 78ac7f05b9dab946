"""The image, built without a registry: the same twice, and what the manifests run, on a real kubelet's node."""

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO

import helm_python
import pytest
import yaml

from cluster.image.__main__ import NAME, build, version
from cluster.image.oci import architecture
from integration.lab import cri_client_pb2 as cri
from integration.lab.cgroups import of_process, unkept
from integration.lab.clean import clean, leftovers
from integration.lab.client import CriClient
from integration.lab.containerd import Containerd
from integration.lab.control_plane import ApiError, ControlPlane, wait_for
from integration.lab.criproxy import CHECKOUT, LETS_THE_LAB, merged, static
from integration.lab.directory import claimed, lab_name
from integration.lab.kubelet import Kubelet, static_pod
from integration.lab.ports import free_ports
from integration.programs.build import find

pytestmark = [
    pytest.mark.timeout(1200),  # a control plane takes its time on a busy machine
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]

MANIFESTS = Path(__file__).parent.parent / "manifests"
SYSTEM = "criproxy-system"
WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/zz-criproxy-cluster"
PODS = "/api/v1/namespaces/default/pods"
SOON_S = 180.0


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> tuple[Path, str]:
    file = tmp_path_factory.mktemp("image") / "image.tar"
    return file, build(file, "", [architecture()])


@pytest.mark.by_command
def test_image_that_is_built_twice_is_the_same_to_the_last_byte(image, tmp_path):
    file, digest = image
    assert build(tmp_path / "again.tar", "", [architecture()]) == digest
    assert sha256(file.read_bytes()).digest() == sha256((tmp_path / "again.tar").read_bytes()).digest()


def test_image_has_the_license(image):
    with tarfile.open(image[0]) as archive:
        layers = [archive.extractfile(one) for one in archive if one.name.startswith("blobs/")]
        found = [layer for layer in layers if layer is not None and _has_license(layer)]
    assert len(found) == 1


def test_image_has_all_that_each_verb_needs(image, tmp_path):
    with tarfile.open(image[0]) as archive:
        for one in archive:
            if one.name.startswith("blobs/") and (layer := archive.extractfile(one)) is not None:
                _unpack(layer, tmp_path)
    for name in ("criproxy", "criproxy-cluster", "criproxy-install"):
        helped = subprocess.run(
            ["chroot", str(tmp_path), f"/usr/bin/{name}", "--help"], check=False, capture_output=True
        )
        assert name.encode() in helped.stdout + helped.stderr, helped.stderr
    verbs = ("certificates", "controller", "convert", "ledger", "plan.command", "webhook")
    imports = "; ".join(f"import criproxy_cluster.commands.{verb}" for verb in verbs)
    program = f"import sys; sys.path.insert(0, '/usr/lib/criproxy-cluster'); {imports}"
    done = subprocess.run(
        ["chroot", str(tmp_path), "/usr/bin/python3.11", "-ISBc", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def _unpack(blob: IO[bytes], folder: Path) -> None:
    try:
        with tarfile.open(fileobj=blob) as layer:
            layer.extractall(folder, filter="fully_trusted")
    except tarfile.ReadError:  # the config or the manifest
        return


def _has_license(blob: IO[bytes]) -> bool:
    try:
        with tarfile.open(fileobj=blob) as layer:
            return "usr/share/doc/criproxy-cluster/LICENSE" in layer.getnames()
    except tarfile.ReadError:  # the config or the manifest
        return False


@pytest.mark.parametrize("folder", ["base", "ledger", "node"])
def test_manifests_name_the_image_that_is_built(folder):
    kustomization = yaml.safe_load((MANIFESTS / folder / "kustomization.yaml").read_text())
    (named,) = kustomization["images"]
    assert f"docker.io/library/{named['name']}:{named['newTag']}" == f"{NAME}:{version()}"


@pytest.fixture(scope="module")
def node(image) -> Iterator[tuple[ControlPlane, Path]]:
    """A control plane, and one node whose containerd has the image."""
    with claimed() as lab:
        try:
            plane = ControlPlane(lab)
            plane.start()
            (lab / "cni").mkdir()
            network = {"cniVersion": "0.4.0", "name": "host-network-only", "plugins": [{"type": "loopback"}]}
            (lab / "cni" / "10-none.conflist").write_text(json.dumps(network))  # with one of any kind a node is ready
            containerd = Containerd(lab, programs=find("containerd").parent)
            containerd.start()
            load = ["ctr", "--address", str(containerd.socket), "-n", "k8s.io", "images", "import", str(image[0])]
            subprocess.run(load, check=True, capture_output=True)
            name = lab_name(lab)
            Kubelet(lab, containerd.socket, kubeconfig=plane.node_kubeconfig(name)).start()
            wait_for(lambda: plane.exists(f"/api/v1/nodes/{name}"), SOON_S, "the node to register")
            yield plane, lab
        finally:
            clean(lab)
    assert leftovers(lab) == []


def requests_of_offline_pod(plane: ControlPlane):
    """What becomes of 1.5 cores; None: the webhook does not answer, or is not asked yet."""
    container = {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": "1500m"}}}
    meta = {"generateName": "batch-", "labels": {"colocation.criproxy.io/class": "offline"}}
    try:
        made = plane.call("POST", PODS, {"metadata": meta, "spec": {"containers": [container]}})
    except ApiError:
        return None
    return made["spec"]["containers"][0]["resources"]["requests"]


def test_manifests_run_from_the_image_and_the_webhook_is_found_by_its_service(node):
    """On the host's network, as the lab has no other: the level of Pod Security allows it, and a node takes one."""
    plane, lab = node
    environment = [
        {"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"},
        {"name": "KUBERNETES_SERVICE_PORT", "value": plane.url.rpartition(":")[2]},
    ]

    def on_the_host(api, kind, name, container):
        """One of it, on the host's network, which finds the API server there."""
        template = {"spec": {"hostNetwork": True, "containers": [{"name": container, "env": environment}]}}
        spec = {"replicas": 1, "template": template} if kind == "Deployment" else {"template": template}
        return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": SYSTEM}, "spec": spec}

    workloads = (
        on_the_host("apps/v1", "Deployment", "criproxy-webhook", "webhook"),
        on_the_host("apps/v1", "Deployment", "criproxy-controller", "controller"),
        on_the_host("batch/v1", "Job", "criproxy-certificates", "certificates"),
    )
    level = {"pod-security.kubernetes.io/enforce": "privileged", "pod-security.kubernetes.io/warn": "privileged"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM, "labels": level}}
    shutil.copytree(MANIFESTS / "base", lab / "base")
    (overlay := lab / "overlay").mkdir()
    kustomization = {
        "resources": ["../base"],
        "patches": [{"patch": yaml.safe_dump(one)} for one in (*workloads, namespace)],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    plane.kubectl("apply", "--warnings-as-errors", "-k", str(overlay))

    requests = wait_for(lambda: requests_of_offline_pod(plane), SOON_S, "the webhook to answer")

    assert requests["kubernetes.io/batch-cpu"] == "1500"
    (webhook, *_) = plane.call("GET", WEBHOOK)["webhooks"]
    assert webhook["clientConfig"]["service"]["name"] == "criproxy-cluster"
    assert webhook["clientConfig"]["caBundle"], "by the Job, which has made the certificate"

    def ready():
        pods = plane.call("GET", f"/api/v1/namespaces/{SYSTEM}/pods")["items"]
        running = {
            one["metadata"]["labels"]["app.kubernetes.io/name"]: one["status"]["containerStatuses"][0]
            for one in pods
            if one["status"]["phase"] == "Running"
        }
        there = running.keys() >= {"criproxy-webhook", "criproxy-controller"}
        return there and all(status["ready"] for status in running.values()) and running

    for status in wait_for(ready, SOON_S, "webhook and controller to be ready").values():
        assert status["restartCount"] == 0
        assert status["image"].endswith(f"criproxy:{version()}")


def test_chart_s_pod_places_offline_pods_on_a_node_on_which_nothing_of_criproxy_is(node):
    """As the DaemonSet says, but for the directories that the lab has elsewhere."""
    plane, lab = node
    (port,) = free_ports(1)
    runtime = Containerd(lab)
    config = merged(
        static(1.0),
        {
            "proxy": {"runtime": str(runtime.socket), "nri": str(runtime.nri)},
            "observe": {"address": f"127.0.0.1:{port}"},
            "hardening": LETS_THE_LAB,
        },
    )
    with helm_python.Chart.load(CHECKOUT / "packaging" / "chart") as chart:
        values = {"cluster": {"enabled": False}, "node": {"enabled": True, "config": config}}
        made = chart.render(values, name="node", namespace="default")
    objects = [one for one in yaml.safe_load_all(made["criproxy/templates/node.yaml"]) if one]
    (daemonset,) = [one for one in objects if one["kind"] == "DaemonSet"]
    pod = daemonset["spec"]["template"]["spec"]
    for place in (pod["volumes"], pod["containers"][0]["volumeMounts"]):
        place[:] = [one for one in place if one["name"] != "nri"]  # both sockets are in one directory here
    for volume in pod["volumes"]:
        if volume["name"] in ("own", "state", "kubelet", "kubernetes", "logs"):
            volume["hostPath"] = {"path": str(lab / volume["name"]), "type": "DirectoryOrCreate"}
    objects.sort(key=lambda one: one["kind"] != "Namespace")
    plane.kubectl("apply", "--warnings-as-errors", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def ready():
        found = plane.call("GET", "/api/v1/namespaces/criproxy-node/pods")["items"]
        return next((one for pod in found for one in pod["status"].get("containerStatuses", ()) if one["ready"]), None)

    container = wait_for(ready, SOON_S, "the pod to be ready")["containerID"].removeprefix("containerd://")

    def status():
        """What `criproxy status` says in the container."""
        with CriClient(runtime.socket) as client:
            command = ["/usr/bin/criproxy", "status", "--json"]
            said = client.call("ExecSync", cri.ExecSyncRequest(container_id=container, cmd=command))
        assert said.exit_code == 0, said.stderr
        return json.loads(said.stdout)

    assert status()["problems"] == []
    manifest = static_pod("batch", labels={"colocation.criproxy.io/class": "offline"})
    (lab / "kubelet" / "manifests" / "batch.json").write_text(json.dumps(manifest))
    wait_for(lambda: [one["name"] for one in status()["pods"]] == [f"batch-{lab_name(lab)}"], SOON_S, "the offline pod")
    found = status()
    assert found["problems"] == []
    with CriClient(runtime.socket) as client:
        (batch,) = [one for one in client.list_pods() if one.metadata.name == f"batch-{lab_name(lab)}"]
        own = cri.ListContainersRequest(filter=cri.ContainerFilter(pod_sandbox_id=batch.id))

        def started():
            """The container's id, and a process of it."""
            held = [(one.id, client.pid_of(one.id)) for one in client.call("ListContainers", own).containers]
            return next(((name, pid) for name, pid in held if pid), None)

        name, pid = wait_for(started, SOON_S, "the container to start")
        kept = {path for controller, path in of_process(pid).items() if controller not in unkept()}
    assert kept == {f"{found['pods'][0]['placement']}/{name}"}
    assert found["pods"][0]["placement"].startswith(found["box"]["path"])
