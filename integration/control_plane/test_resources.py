"""What kubelet, the API server and the scheduler make of offline pods' resources is what the pods' authors wrote.

Kubelet of 1.33 and later takes a container's resources from what the runtime reports, and scheduler, quotas and
kubelet's own admission count that. So nothing that criproxy gives an offline pod may show there: what is lent would
count as taken from online pods. Containerd 1.6 knows no resize of a pod, and 2.4 does.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from criproxy.cgroup.kernel_files import weight_of
from integration.control_plane.cluster import CLASS, CPU, MEMORY, POD_S, PODS, Cluster, id_of, joined
from integration.lab import cri_client_pb2 as cri
from integration.lab.cgroups import of_process, version
from integration.lab.containerd import programs
from integration.lab.control_plane import ApiError, wait_for
from integration.lab.kubelet import static_pod
from integration.lab.throwaway import is_throwaway
from integration.lab.usage import Cgroup

pytestmark = pytest.mark.timeout(2400 if is_throwaway() else 1200)

Say = Callable[[str], object]

OOM_GROUP = {"memory.oom.group": "1"}
"""Kubelet's, on v2."""
JUDGED_S = 60.0 if is_throwaway() else 15.0
"""Within which a kubelet that starts has admitted the pods that it knows, or failed them."""
LENT_CORES = 0.5
OURS, KOORDINATORS = "colocation.criproxy.io/resources", "node.koordinator.sh/extended-resource-spec"


THE_MACHINES = "the-machines"
CONTAINERDS = [THE_MACHINES] if is_throwaway() else ["2.4", pytest.param(THE_MACHINES, marks=pytest.mark.by_command)]
"""A node in QEMU has one."""


@pytest.fixture(scope="module", params=CONTAINERDS)
def cluster(request: pytest.FixtureRequest, say: Say) -> Iterator[Cluster]:
    with joined(say, programs=programs() if request.param == "2.4" else None) as cluster:
        yield cluster


def create(cluster: Cluster, name: str, manifest: dict[str, Any]) -> Any:
    manifest["spec"] |= {
        "tolerations": [{"operator": "Exists"}],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
    cluster.plane.call("POST", PODS, manifest)
    return name


def offline(name: str, containers: Mapping[str, Any], **annotations: object) -> dict[str, Any]:
    """A pod of these containers, by name with their resources."""
    manifest = static_pod(name, labels=CLASS)
    (first,) = manifest["spec"]["containers"]
    manifest["spec"]["containers"] = [{**first, "name": of, "resources": what} for of, what in containers.items()]
    manifest["metadata"]["annotations"] = {key: json.dumps({"containers": what}) for key, what in annotations.items()}
    return manifest


def wants(cores: float, memory: str) -> dict[str, Any]:
    return {"requests": {"cpu": str(cores), "memory": memory}, "limits": {"memory": memory}}


def batch(cores: float, memory: str) -> dict[str, Any]:
    amounts = {CPU: str(int(cores * 1000)), MEMORY: memory}
    return {"requests": amounts, "limits": amounts}


LENT = batch(LENT_CORES, "64Mi")
KINDS: Mapping[str, dict[str, Any]] = {
    "plain": offline("plain", {"main": {}}),
    "ordinary": offline(
        "ordinary",
        {"main": {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}},
    ),
    "converted": offline("converted", {"main": LENT}, **{OURS: {"main": wants(LENT_CORES, "64Mi")}}),
    "koordinators": offline("koordinators", {"main": LENT}, **{KOORDINATORS: {"main": LENT}}),
    "two-containers": offline(
        "two-containers",
        {"main": LENT, "side": batch(0.1, "32Mi")},
        **{OURS: {"main": wants(LENT_CORES, "64Mi"), "side": wants(0.1, "32Mi")}},
    ),
    "forged": offline("forged", {"main": batch(0.001, "1Mi")}, **{OURS: {"main": wants(256, "1000Gi")}}),
}
"""As the cluster's side leaves them, but for the last, whose author has written more than was asked of the node."""


def containers_of(cluster: Cluster, name: str) -> dict[str, Any]:
    return {one["name"]: one for one in cluster.pod(name)["status"].get("containerStatuses", [])}


def wait_all_running(cluster: Cluster, name: str) -> None:
    def runs() -> bool:
        found = containers_of(cluster, name).values()
        return bool(found) and all("running" in one["state"] for one in found)

    with cluster.explaining(name):
        wait_for(runs, POD_S, f"pod {name} to run")


@pytest.fixture(scope="module")
def pods(cluster: Cluster) -> Iterator[Cluster]:
    """One of each kind, which runs."""
    cluster.order("1", cpu={"min_cores": 2.0}, memory={"min_bytes": 512 << 20})  # however busy this machine is
    cluster.wait_published(lambda amount: amount >= 2000, "the floor")
    cluster.wait_published(lambda amount: amount >= 512 << 20, "the floor", MEMORY)
    for name, manifest in KINDS.items():
        create(cluster, name, manifest)
    for name in KINDS:
        wait_all_running(cluster, name)
    yield cluster
    cluster.delete(*KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_status_has_the_resources_that_the_author_wrote_and_nothing_that_was_lent(pods: Cluster, name: str) -> None:
    asked = {one["name"]: one.get("resources", {}) for one in pods.pod(name)["spec"]["containers"]}
    assert {of: one.get("resources", {}) for of, one in containers_of(pods, name).items()} == asked


@pytest.mark.parametrize(
    ("name", "shares", "memory_bytes", "quota_us"),
    [
        ("plain", 2, 0, 0),
        ("ordinary", 102, 64 << 20, 20_000),
        ("converted", 2, 0, 0),
        ("forged", 2, 0, 0),
    ],
)
def test_runtime_reports_what_kubelet_asked_for_but_for_who_goes_first_and_v1s_quota(
    pods: Cluster, name: str, shares: int, memory_bytes: int, quota_us: int
) -> None:
    """Monitoring agents read that, too."""
    (status,) = containers_of(pods, name).values()
    container = id_of(status)
    answer = pods.client.call("ContainerStatus", cri.ContainerStatusRequest(container_id=container)).status
    told = answer.resources.linux
    unified = {name: value for name, value in told.unified.items() if value != "0"}  # kubelet's: no swap, no protection
    assert (told.cpu_shares, told.memory_limit_in_bytes, told.cpuset_cpus, unified) == (
        shares,
        memory_bytes,
        "",
        OOM_GROUP if version() == 2 else {},
    )
    assert (told.oom_score_adj, told.cpu_quota) == (1000, quota_us if version() == 2 else 0)


@pytest.mark.parametrize("name", ["converted", "koordinators", "two-containers"])
def test_containers_have_what_their_pod_asks_for_all_the_same(pods: Cluster, name: str) -> None:
    """In the kernel, where nobody counts it."""
    shares = {"main": int(LENT_CORES * 1024), "side": 102}
    weight = {of: weight_of(one, version()) for of, one in shares.items()}
    expected = {"main": (weight["main"], 64 << 20), "side": (weight["side"], 32 << 20)}
    statuses = containers_of(pods, name)

    def held() -> bool:
        return all(in_force(pods, one) == expected[of] for of, one in statuses.items())

    wait_for(held, POD_S, "the containers' cgroups to have what they ask for")


def in_force(cluster: Cluster, status: Any) -> tuple[int, int]:
    """The CPU weight, in the unit of the kernel's file, and the memory limit of a container's cgroup."""
    places = of_process(cluster.client.pid_of(id_of(status)))
    cpu, memory = (places.get(controller) or places[""] for controller in ("cpu", "memory"))
    weight = Cgroup(cpu).either("cpu.shares", "cpu.weight")
    limit = Cgroup(memory).either("memory.limit_in_bytes", "memory.max").read_text().strip()
    return int(weight.read_text()), int(limit) if limit != "max" else 0


def online_of_all_that_is_left(cluster: Cluster) -> dict[str, Any]:
    """An online pod that asks for all CPUs of the node but what the offline pods of ordinary resources have."""
    cores = cluster.node()["status"]["allocatable"]["cpu"]
    millicores = int(cores.removesuffix("m")) if cores.endswith("m") else int(cores) * 1000
    requests = {"cpu": f"{millicores - 100}m", "memory": "16Mi"}
    return static_pod("online", resources={"requests": requests})


def test_scheduler_gives_online_what_was_lent_and_a_restarted_kubelet_keeps_it(pods: Cluster, say: Say) -> None:
    create(pods, "online", online_of_all_that_is_left(pods))
    before = pods.wait_running("online")

    pods.kubelet.kill()
    pods.kubelet.start()
    wait_for(lambda: {"online", *KINDS} <= pods.kubelet.pods().keys(), POD_S, "kubelet to know all pods again")
    end_s = time.monotonic() + JUDGED_S
    while time.monotonic() < end_s and pods.pod("online")["status"]["phase"] == "Running":
        time.sleep(1.0)
    after = pods.pod("online")
    say(f"online is {after['status']['phase']} after kubelet's restart")
    assert (after["metadata"]["uid"], after["status"]["phase"]) == (before["metadata"]["uid"], "Running")
    restarts = {of: one["restartCount"] for of, one in containers_of(pods, "online").items()}
    assert restarts == {"main": 0}
    pods.delete("online")


def test_forged_record_weighs_no_more_than_what_the_scheduler_was_told(pods: Cluster) -> None:
    """Among the pods of the box; an honest one has what it asks for."""
    of_spec, honest = (str(weight_of(shares, version())) for shares in (2, int(LENT_CORES * 1024)))
    wait_for(lambda: values(pods, "offline", "forged")[0] == of_spec, POD_S, "the forged record to count no more")
    assert values(pods, "offline", "converted")[0] == honest


# --- in-place resize ------------------------------------------------------------------------------------------------

RESIZED = ("bounded", "unbounded", "as-a-whole")
FOLLOWED_S = 60.0 if is_throwaway() else 4.0
"""Within which the box has what kubelet has: less than the 5 s after which criproxy looks anew by itself, but on a slow
node.
"""


@pytest.fixture
def resized(cluster: Cluster) -> Iterator[Cluster]:
    """With the pods of `RESIZED`, whose resources the tests change."""
    bounded = {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}
    for name, what in {"bounded": bounded, "unbounded": {"requests": {"cpu": "100m"}}}.items():
        create(cluster, name, offline(name, {"main": what}))
    as_a_whole = offline("as-a-whole", {"main": {}, "side": {}})
    as_a_whole["spec"]["resources"] = bounded
    create(cluster, "as-a-whole", as_a_whole)
    for name in RESIZED:
        wait_all_running(cluster, name)
    yield cluster
    cluster.delete(*RESIZED)


def resize(cluster: Cluster, name: str, **amounts: Mapping[str, str]) -> None:
    spec = {"containers": [{"name": "main", "resources": amounts}]}
    patch = "application/strategic-merge-patch+json"
    cluster.plane.call("PATCH", f"{PODS}/{name}/resize", {"spec": spec}, content=patch)


def values(cluster: Cluster, parent: str, name: str) -> list[str]:
    """Of the pod's cgroup below `parent` of the lab: weight, memory limit and, on v2, quota."""
    pod = Cgroup(f"{cluster.kubelet.cgroup_root}/{parent}/pod{cluster.pod(name)['metadata']['uid']}")
    files = [pod.either("cpu.shares", "cpu.weight"), pod.either("memory.limit_in_bytes", "memory.max")]
    quota = [pod.file("cpu", "cpu.max")] if version() == 2 else []
    return [one.read_text().strip() for one in (*files, *quota)]


def wait_resized(cluster: Cluster, name: str, shares: int) -> None:
    """Until kubelet's own cgroup has this weight, and kubelet calls the resize done."""
    weight = str(weight_of(shares, version()))
    wait_for(lambda: values(cluster, "kubepods/burstable", name)[0] == weight, POD_S, f"kubelet to resize {name}")
    wait_for(lambda: not resizing(cluster, name), POD_S, f"kubelet to call the resize of {name} done")


def assert_follows(cluster: Cluster, name: str) -> None:
    """The pod in the box has what kubelet's own cgroup has."""
    end_s = time.monotonic() + FOLLOWED_S
    while (in_box := values(cluster, "offline", name)) != values(cluster, "kubepods/burstable", name):
        assert time.monotonic() < end_s, f"{in_box} is not {values(cluster, 'kubepods/burstable', name)}"
        time.sleep(0.1)


def resizing(cluster: Cluster, name: str) -> list[str]:
    """Why kubelet still resizes the pod, or can't."""
    conditions = cluster.pod(name)["status"].get("conditions", [])
    return [str(one) for one in conditions if one["type"] in ("PodResizePending", "PodResizeInProgress")]


@pytest.mark.parametrize("turn", range(2), ids=["once", "twice"])
@pytest.mark.parametrize(
    ("requests", "limits", "shares"),
    [
        pytest.param({"cpu": "150m"}, {"cpu": "300m"}, 153, id="cpu-up"),
        pytest.param({"cpu": "50m"}, {"cpu": "150m"}, 51, id="cpu-down"),
        pytest.param({"cpu": "110m", "memory": "96Mi"}, {"memory": "128Mi"}, 112, id="memory-up"),
        pytest.param({"cpu": "120m", "memory": "24Mi"}, {"memory": "48Mi"}, 122, id="memory-down"),
    ],
)
def test_resize_is_followed_in_the_box_at_once(
    resized: Cluster, requests: dict[str, str], limits: dict[str, str], shares: int, turn: int
) -> None:
    resize(resized, "bounded", requests=requests, limits=limits)
    wait_resized(resized, "bounded", shares)
    if turn:  # and another one, after which the first is no news any more
        resize(resized, "bounded", requests={**requests, "cpu": "100m"}, limits={"cpu": "400m"})
        wait_resized(resized, "bounded", 102)
    assert_follows(resized, "bounded")
    (container,) = containers_of(resized, "bounded").values()
    assert (container["restartCount"], "running" in container["state"]) == (0, True)


@pytest.mark.parametrize(
    ("requests", "limits", "shares"),
    [
        pytest.param({"cpu": "150m", "memory": "96Mi"}, {"cpu": "300m", "memory": "128Mi"}, 153, id="up"),
        pytest.param({"cpu": "50m", "memory": "24Mi"}, {"cpu": "150m", "memory": "48Mi"}, 51, id="down"),
    ],
)
def test_resize_of_a_pod_as_a_whole_is_followed(
    resized: Cluster, requests: dict[str, str], limits: dict[str, str], shares: int
) -> None:
    patch = {"spec": {"resources": {"requests": requests, "limits": limits}}}
    try:
        resized.plane.call(
            "PATCH", f"{PODS}/as-a-whole/resize", patch, content="application/strategic-merge-patch+json"
        )
    except ApiError as error:
        assert os.environ.get("KUBERNETES") == "1.34", error
        pytest.skip(f"Kubernetes 1.34 does not resize what a pod as a whole has: {error}")
    wait_resized(resized, "as-a-whole", shares)
    assert_follows(resized, "as-a-whole")


def test_cpu_of_a_pod_without_a_memory_limit_can_be_resized(resized: Cluster) -> None:
    """On v1 kubelet then sends what the kernel calls no limit as the pod's limit on memory."""
    resize(resized, "unbounded", requests={"cpu": "200m"})
    wait_resized(resized, "unbounded", 204)
    assert_follows(resized, "unbounded")
