"""What criproxy leaves to kubelet, runtime and kernel of an offline pod does not take it out of the box: see LEFT in
docs/author_text.py, whose rows these are, as an API server, a kubelet and a containerd of today have them.
"""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from integration.control_plane.cluster import CLASS, PLAIN, PODS, SOON_S, Cluster, container_of
from integration.lab.cgroups import of_process
from integration.lab.control_plane import ApiError, wait_for
from integration.lab.kubelet import static_pod
from integration.lab.process import all_pids, argv_of
from integration.lab.usage import Cgroup

pytestmark = pytest.mark.timeout(1200)

HOARDER = "hoarder"
FILE_MIB = 24
ANNOTATIONS = {
    "blockio.resources.beta.kubernetes.io/pod": "highprio",
    "cdi.k8s.io/all": "vendor.com/device=all",
    "io.containerd.cri.runtime-handler": "other",
    "io.kubernetes.cri-o.userns-mode": "host",
    "io.kubernetes.cri.sandbox-cpu-shares": "262144",
    "org.systemd.property.CPUWeight": "uint64 10000",
    "run.oci.keep_original_groups": "1",
}


def manifest(name: str, **spec: Any) -> dict[str, Any]:
    made = static_pod(name, labels=CLASS, annotations=ANNOTATIONS)
    made["spec"] |= PLAIN | spec
    return made


def with_container(name: str, spec: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    made = manifest(name, **(spec or {}))
    made["spec"]["containers"][0] |= container
    return made


@pytest.fixture(scope="module")
def hoarder(cluster: Cluster) -> Iterator[Any]:
    """One with all that is granted: processes in one namespace, another's user, work by hooks and probes, tmpfs."""
    fill = f"dd if=/dev/zero of=/fast/file bs=1M count={FILE_MIB}; exec sleep 2147483647"
    made = with_container(
        HOARDER,
        {
            "shareProcessNamespace": True,
            "volumes": [{"name": "fast", "emptyDir": {"medium": "Memory"}}],
            "securityContext": {"runAsUser": 1000, "supplementalGroups": [0, 6], "fsGroup": 6},
        },
        command=["sh", "-c", fill],
        tty=True,
        stdin=True,
        securityContext={"allowPrivilegeEscalation": True, "seLinuxOptions": {"type": "spc_t"}},
        volumeMounts=[{"name": "fast", "mountPath": "/fast"}],
        lifecycle={"postStart": {"exec": {"command": ["sh", "-c", "sleep 2147483001 >/dev/null 2>&1 &"]}}},
        livenessProbe={
            "exec": {"command": ["sh", "-c", "sleep 2147483002 >/dev/null 2>&1 & sleep 0.2"]},
            "periodSeconds": 1,
        },
    )
    cluster.plane.call("POST", PODS, made)
    yield cluster.wait_running(HOARDER)
    cluster.delete(HOARDER)


def processes(words: str) -> set[int]:
    return {pid for pid in all_pids() if words in " ".join(argv_of(pid))}


def places(pid: int) -> set[str]:
    """In all hierarchies that the box has."""
    try:
        found = of_process(pid)
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return {found.get(controller) or found.get("", "") for controller in ("cpu", "memory", "pids")}


def assert_in_box(pod: Any, pids: set[int]) -> None:
    found = {place for pid in pids for place in places(pid)}
    assert found, "all of them have ended"
    assert [place for place in found if f"/offline/pod{pod['metadata']['uid']}" not in place] == []


@pytest.mark.parametrize("words", ["sleep 2147483001", "sleep 2147483002"], ids=["hook", "probe"])
def test_what_kubelet_runs_for_the_pod_runs_in_the_box(cluster: Cluster, hoarder: Any, words: str) -> None:
    found = wait_for(lambda: processes(words), SOON_S, f"`{words}`")
    assert_in_box(hoarder, found)


def test_ephemeral_container_runs_in_the_box(cluster: Cluster, hoarder: Any) -> None:
    image = hoarder["spec"]["containers"][0]["image"]
    debugger = {"name": "debug", "image": image, "command": ["sleep", "2147483003"], "targetContainerName": "main"}
    path = f"{PODS}/{HOARDER}/ephemeralcontainers"
    patch = {"spec": {"ephemeralContainers": [debugger | {"imagePullPolicy": "Never"}]}}
    cluster.plane.call("PATCH", path, patch, content="application/strategic-merge-patch+json")
    found = wait_for(lambda: processes("sleep 2147483003"), SOON_S, "the ephemeral container")
    assert_in_box(hoarder, found)


def test_what_is_written_to_memory_counts_against_the_box(cluster: Cluster, hoarder: Any) -> None:
    pod = Cgroup(cluster.cgroup(hoarder).rpartition("/")[0])
    used = pod.either("memory.usage_in_bytes", "memory.current")
    wait_for(lambda: int(used.read_text()) >= FILE_MIB << 20, SOON_S, "the file to count as the pod's memory")


def test_no_annotation_of_the_pod_reaches_the_container(cluster: Cluster, hoarder: Any) -> None:
    spec = cluster.client.spec_of(container_of(hoarder))
    assert not {key for key, value in spec["annotations"].items() if ANNOTATIONS.get(key) == value}
    assert spec["annotations"]["io.kubernetes.cri.container-type"] == "container"
    assert [one["path"] for one in spec["linux"].get("devices", [])] == []


def test_user_and_groups_are_the_author_s_and_no_device_is(cluster: Cluster, hoarder: Any) -> None:
    """6 is the group of disks."""
    spec = cluster.client.spec_of(container_of(hoarder))
    assert spec["process"]["user"]["uid"] == 1000
    assert {0, 6} <= set(spec["process"]["user"]["additionalGids"])
    first = spec["linux"]["resources"]["devices"][0]
    assert (first["allow"], first["access"]) == (False, "rwm")


def test_api_server_refuses_a_mount_that_propagates_to_the_node(cluster: Cluster) -> None:
    mounts = [{"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}]
    made = with_container("refused", {"volumes": [{"name": "v", "emptyDir": {}}]}, volumeMounts=mounts)
    with pytest.raises(ApiError, match="privileged"):
        cluster.plane.call("POST", PODS, made)


NOT_STARTED = {
    "sysctls": (manifest("sysctl", securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}), "Sysctl"),
    "localhost profile": (
        with_container("profile", securityContext={"seccompProfile": {"type": "Localhost", "localhostProfile": "no"}}),
        "seccomp",
    ),
}


@pytest.mark.parametrize(("made", "word"), NOT_STARTED.values(), ids=NOT_STARTED)
def test_kubelet_or_the_runtime_refuses(cluster: Cluster, made: dict[str, Any], word: str) -> None:
    name = made["metadata"]["name"]
    made["spec"]["hostNetwork"] = "sysctls" not in made["spec"].get("securityContext", {})
    cluster.plane.call("POST", PODS, made)

    def said() -> bool:
        status = cluster.pod(name)["status"]
        return word in str(status.get("reason")) + str(status.get("containerStatuses"))

    with cluster.explaining(name):
        wait_for(said, SOON_S, f"{name} to be refused")
    cluster.delete(name)


def test_what_a_probe_has_left_ends_with_the_container(cluster: Cluster, hoarder: Any) -> None:
    """Also where the pod's containers share the namespace of processes, whose first one lives on."""
    left = processes("sleep 2147483002")
    assert left
    os.kill(cluster.client.pid_of(container_of(hoarder)), signal.SIGKILL)
    wait_for(lambda: not left & processes("sleep 2147483002"), SOON_S, "what the probe has left to end")
