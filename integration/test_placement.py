"""Offline pods in the box and online pods where they belong: as /proc and the kernel's files show it, under real
containerd.
"""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from criproxy.vocabulary.names import RESOURCES
from integration.lab import cgroups, kubelet_cgroup
from integration.lab import cri_client_pb2 as cri
from integration.lab.apis import OLDER_BY_COMMAND
from integration.lab.client import Container, CriClient, Pod
from integration.lab.containerd import Containerd
from integration.lab.criproxy import ENGINE, ENGINES, static
from integration.lab.node import Node
from integration.lab.pods import assert_within, cgroups_of, strays
from integration.lab.process import wait_until
from integration.lab.usage import Cgroup

MIB = 1 << 20
FOREVER = ["sh", "-c", "sleep 2147483647 & wait"]
OFFLINE = {"colocation.criproxy.io/class": "offline"}
QOS = ("", "/burstable", "/besteffort")
BOX_CORES = 0.2
PERIOD_US = 100_000
PRESETS = {"presets": ["koordinator", "caelus", "bilibili"]}
CONFIG = static(BOX_CORES, 256 * MIB, control={"interval_s": 0.2}, colocation=PRESETS)


ON_EACH_ENGINE = pytest.mark.parametrize("site", ENGINES, indirect=True, scope="module")


@pytest.fixture(scope="module")
def site(containerd: Containerd, request: pytest.FixtureRequest) -> Iterator[Node]:
    engine = getattr(request, "param", ENGINE)
    with Node.before(containerd, {**CONFIG, "proxy": {"engine": engine}}) as site:
        yield site


@pytest.fixture(params=OLDER_BY_COMMAND)
def through(site: Node, client: CriClient, request: pytest.FixtureRequest) -> Iterator[CriClient]:
    """A client of the proxy, under either API; the pods go after the test."""
    with CriClient(site.proxy.socket, request.param) as through:
        yield through
        through.remove_all_pods()


@dataclass(frozen=True, slots=True)
class Started:
    """A pod with one container, and the cgroup_parent that its request named."""

    pod: Pod
    container: Container
    uid: str
    parent: str


def start(client: CriClient, site: Node, labels: dict[str, str], qos: str = "/besteffort", **more: object) -> Started:
    uid = str(uuid.uuid4())
    parent = f"{site.root}/kubepods{qos}/pod{uid}"
    cgroups.Tree(parent).make()
    pod = client.run_pod(f"p-{uid}", uid=uid, labels=labels, cgroup_parent=parent)
    return Started(pod, client.run_container(pod, "main", FOREVER, **more), uid, parent)


def kernel(path: str, v1: str, v2: str) -> str:
    """What the kernel holds for a cgroup, in v1's file or in v2's."""
    return Cgroup(path).either(v1, v2).read_text().strip()


# --- where ----------------------------------------------------------------------------------------------------------


@ON_EACH_ENGINE
@pytest.mark.parametrize("qos", QOS)
def test_offline_sandbox_and_container_are_in_the_box_in_every_controller(
    site: Node, through: CriClient, qos: str
) -> None:
    started = start(through, site, OFFLINE, qos)
    through.exec_sync(started.container, ["sh", "-c", "sleep 2147483647 >/dev/null 2>&1 &"])
    place = f"{site.box.path}/pod{started.uid}"
    for what in (started.pod, started.container):
        paths = cgroups.of_process(through.pid(what))
        assert set(paths.values()) == {f"{place}/{what.id}"}
        assert paths.keys() >= {name for h in cgroups.hierarchies() for name in h.controllers}
    # pause, the shell, what was executed, and the shell's child as soon as that has been started
    wait_until(lambda: len(cgroups_of(started.pod.id)) == 4, 60, "all of the pod's processes")
    assert_within(started.pod.id, place)


@ON_EACH_ENGINE
@pytest.mark.parametrize("qos", QOS)
def test_online_pod_is_where_its_request_named_it(site: Node, through: CriClient, qos: str) -> None:
    labels = {"colocation.criproxy.io/class": "online"}
    started = start(through, site, labels, qos)
    for what in (started.pod, started.container):
        assert set(cgroups.of_process(through.pid(what)).values()) == {f"{started.parent}/{what.id}"}
    everywhere = len(cgroups.of_process(1)) * 3  # pause, the shell, and its child as soon as that has been started
    wait_until(lambda: len(strays(started.pod.id, site.box.path)) == everywhere, 60, "all to be outside the box")


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [
        pytest.param({"koordinator.sh/qosClass": "BE"}, {}, id="koordinator"),
        pytest.param({}, {"mixer.kubernetes.io/app-class": "greedy"}, id="caelus"),
        pytest.param({"caster.io/resource-type": "colocation"}, {}, id="bilibili-label"),
        pytest.param({}, {"caster.io/resource-type": "colocation"}, id="bilibili-annotation"),
    ],
)
def test_pod_with_a_preset_s_mark_is_in_the_box(
    site: Node, through: CriClient, labels: dict[str, str], annotations: dict[str, str]
) -> None:
    uid = str(uuid.uuid4())
    parent = f"{site.root}/kubepods/besteffort/pod{uid}"
    pod = through.run_pod("marked", uid=uid, labels=labels, annotations=annotations, cgroup_parent=parent)
    through.run_container(pod, "main", FOREVER)
    assert_within(pod.id, f"{site.box.path}/pod{uid}")


@pytest.mark.parametrize(
    ("namespace", "source", "placed"),
    [
        pytest.param("kube-system", "file", False, id="static"),
        pytest.param("kube-system", "http", False, id="static-from-a-url"),
        pytest.param("kube-system", "api", True, id="ordinary-pod-of-kube-system"),
        pytest.param("batch", "file", True, id="static-pod-of-a-user"),
    ],
)
def test_static_pod_of_kube_system_stays_where_it_is_whatever_its_marks(
    site: Node, through: CriClient, namespace: str, source: str, placed: bool
) -> None:
    uid = uuid.uuid4().hex  # a static pod's is a hash
    parent = f"{site.root}/kubepods/burstable/pod{uid}"
    pod = through.run_pod(
        "etcd",
        uid=uid,
        namespace=namespace,
        labels=OFFLINE,
        annotations={"kubernetes.io/config.source": source},
        cgroup_parent=parent,
    )
    through.run_container(pod, "main", FOREVER)
    assert_within(pod.id, f"{site.box.path}/pod{uid}" if placed else parent)


@ON_EACH_ENGINE
@pytest.mark.parametrize("length", [64, 13])
def test_container_follows_its_sandbox_whatever_its_own_request_says(
    site: Node, through: CriClient, length: int
) -> None:
    """The second container's request has neither the mark nor the whole id: runtimes take an id's beginning too."""
    started = start(through, site, OFFLINE)
    config = cri.PodSandboxConfig()
    config.CopyFrom(started.pod.config)
    config.labels.clear()
    container = through.run_container(Pod(started.pod.id[:length], config), "second", FOREVER)
    # pause, and of both containers the shell and, as soon as that has been started, its child
    wait_until(lambda: len(cgroups_of(started.pod.id)) == 5, 60, "all of the pod's processes")
    assert_within(started.pod.id, f"{site.box.path}/pod{started.uid}")
    assert through.pid(container) in cgroups_of(started.pod.id)


# --- resources ------------------------------------------------------------------------------------------------------

LIMITED = cri.LinuxContainerResources(
    cpu_period=PERIOD_US,
    cpu_quota=2 * PERIOD_US,
    cpu_shares=2048,
    memory_limit_in_bytes=64 * MIB,
    oom_score_adj=500,
    cpuset_cpus="0",
    cpuset_mems="0",
)


def assert_bounded(
    site: Node, cgroup: str, memory_bytes: int, shares: int = 2048, cpus: str = LIMITED.cpuset_cpus
) -> None:
    """In this container's cgroup: no quota where v1 would refuse it; its own CPUs, shares and memory limit."""
    weight = str(1 + (shares - 2) * 9999 // 262142)
    assert kernel(cgroup, "cpu.shares", "cpu.weight") == (str(shares) if cgroups.version() == 1 else weight)
    assert kernel(cgroup, "memory.limit_in_bytes", "memory.max") == str(memory_bytes)
    for file, asked in (("cpuset.cpus", cpus), ("cpuset.mems", LIMITED.cpuset_mems)):
        everything = kernel(site.box.path, file, file) if cgroups.version() == 1 else ""
        assert kernel(cgroup, file, file) == (asked or everything)
    if cgroups.version() == 1:
        assert kernel(cgroup, "cpu.cfs_quota_us", "cpu.max") == "-1"


@pytest.mark.parametrize(
    ("kubelets_bytes", "expected"),
    [pytest.param(48 * MIB, str(48 * MIB), id="kubelets"), pytest.param(None, "none", id="none-of-kubelets")],
)
def test_offline_pod_has_the_memory_limit_of_kubelets_cgroup_and_not_the_sum_in_the_request(
    site: Node, through: CriClient, kubelets_bytes: int | None, expected: str
) -> None:
    """Kubelet's cgroup has none where one of the containers has none; the sum of the others is in the request still."""
    uid = str(uuid.uuid4())
    parent = kubelet_cgroup.make(f"{site.root}/kubepods/burstable/pod{uid}", memory_bytes=kubelets_bytes)
    resources = cri.LinuxContainerResources(memory_limit_in_bytes=40 * MIB)
    through.run_pod(f"p-{uid}", uid=uid, labels=OFFLINE, cgroup_parent=parent, resources=resources)

    held = kernel(f"{site.box.path}/pod{uid}", "memory.limit_in_bytes", "memory.max")
    assert ("none" if held in ("9223372036854771712", "max") else held) == expected


@pytest.mark.parametrize(
    ("annotations", "resources"),
    [
        pytest.param({}, LIMITED, id="kubelets"),
        pytest.param(
            {RESOURCES: json.dumps({"containers": {"main": {"limits": {"cpu": "2", "memory": "64Mi"}}}})},
            cri.LinuxContainerResources(cpu_period=PERIOD_US, cpu_shares=2),
            id="in-an-annotation",
        ),
    ],
)
def test_what_sizes_a_virtual_machine_reaches_the_runtime_and_no_cgroup(
    site: Node, through: CriClient, annotations: dict[str, str], resources: cri.LinuxContainerResources
) -> None:
    """The runtime hands it on as annotations of the sandbox."""
    uid = str(uuid.uuid4())
    parent = kubelet_cgroup.make(f"{site.root}/kubepods/burstable/pod{uid}")
    pod = through.run_pod(
        f"p-{uid}", uid=uid, labels=OFFLINE, annotations=annotations, cgroup_parent=parent, resources=resources
    )
    status = through.call("PodSandboxStatus", cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id, verbose=True))
    told = json.loads(status.info["info"])["runtimeSpec"]["annotations"]
    kind = "io.kubernetes.cri.sandbox-"
    found = [int(told[f"{kind}{name}"]) for name in ("cpu-quota", "cpu-period", "memory")]
    assert found == [2 * PERIOD_US, PERIOD_US, 64 * MIB]
    if cgroups.version() == 1:
        assert kernel(f"{site.box.path}/pod{uid}/{pod.id}", "cpu.cfs_quota_us", "") == "-1"


def box_quota_us(site: Node) -> int:
    return int(kernel(site.box.path, "cpu.cfs_quota_us", "cpu.max").split()[0].replace("max", "-1"))


def test_offline_container_with_a_quota_runs_while_the_box_is_far_below_it(site: Node, through: CriClient) -> None:
    started = start(through, site, OFFLINE, "", resources=LIMITED)
    assert 0 < box_quota_us(site) <= BOX_CORES * PERIOD_US
    cgroup = f"{site.box.path}/pod{started.uid}/{started.container.id}"
    assert_bounded(site, cgroup, 64 * MIB)
    assert Path(f"/proc/{through.pid(started.container)}/oom_score_adj").read_text() == "1000\n"


@pytest.mark.skipif(cgroups.version() != 1, reason="cgroup v1 alone refuses a child's larger quota")
def test_container_with_a_quota_in_the_box_is_refused_without_the_rewrite(
    site: Node, client: CriClient, through: CriClient
) -> None:
    """The control of the test above: the kernel does refuse what criproxy takes out.

    The bare pod's cgroup is not named as a pod's: criproxy would sweep that before it has a process.
    """
    start(through, site, OFFLINE)
    wait_until(lambda: 0 < box_quota_us(site) <= BOX_CORES * PERIOD_US, 60, "the box's limit")
    pod = client.run_pod("bare", uid="bare", cgroup_parent=f"{site.box.path}/bare")
    with pytest.raises(grpc.RpcError, match=r"cpu.cfs_quota_us: invalid argument"):
        client.run_container(pod, "main", FOREVER, resources=LIMITED)


def test_online_container_keeps_what_its_request_says(site: Node, through: CriClient) -> None:
    started = start(through, site, {}, "", resources=LIMITED)
    cgroup = f"{started.parent}/{started.container.id}"
    assert kernel(cgroup, "cpuset.cpus", "cpuset.cpus") == "0"
    assert kernel(cgroup, "memory.limit_in_bytes", "memory.max") == str(64 * MIB)
    assert Path(f"/proc/{through.pid(started.container)}/oom_score_adj").read_text() == "500\n"
    if cgroups.version() == 1:
        assert kernel(cgroup, "cpu.shares", "") == "2048"
        assert kernel(cgroup, "cpu.cfs_quota_us", "") == str(2 * PERIOD_US)
    else:
        assert kernel(cgroup, "", "cpu.max") == f"{2 * PERIOD_US} {PERIOD_US}"


@pytest.mark.parametrize("length", [64, 13])
@pytest.mark.parametrize(
    ("update", "memory_bytes"),
    [
        pytest.param(cri.LinuxContainerResources(cpuset_cpus="0"), 64 * MIB, id="static-cpu-manager"),
        pytest.param(
            cri.LinuxContainerResources(cpu_period=PERIOD_US, cpu_quota=3 * PERIOD_US, cpu_shares=3072),
            64 * MIB,
            id="resize-of-cpu",
        ),
        pytest.param(
            cri.LinuxContainerResources(
                cpu_period=PERIOD_US,
                cpu_quota=PERIOD_US,
                cpu_shares=1024,
                memory_limit_in_bytes=96 * MIB,
                oom_score_adj=2,
            ),
            96 * MIB,
            id="resize-of-all",
        ),
    ],
)
def test_update_of_an_offline_container_succeeds_and_leaves_it_bounded(
    site: Node, through: CriClient, update: cri.LinuxContainerResources, memory_bytes: int, length: int
) -> None:
    started = start(through, site, OFFLINE, "", resources=LIMITED)
    request = cri.UpdateContainerResourcesRequest(container_id=started.container.id[:length], linux=update)
    through.call("UpdateContainerResources", request)
    cgroup = f"{site.box.path}/pod{started.uid}/{started.container.id}"
    cpus = update.cpuset_cpus or LIMITED.cpuset_cpus
    assert_bounded(site, cgroup, memory_bytes, update.cpu_shares or LIMITED.cpu_shares, cpus)
    assert_within(started.pod.id, f"{site.box.path}/pod{started.uid}")


def test_update_to_cpus_of_another_machine_fails_as_it_does_directly(
    site: Node, client: CriClient, through: CriClient
) -> None:
    codes = []
    for cri_client, labels in ((client, {}), (through, OFFLINE)):
        started = start(cri_client, site, labels, "", resources=LIMITED)
        linux = cri.LinuxContainerResources(cpuset_cpus="4095")
        request = cri.UpdateContainerResourcesRequest(container_id=started.container.id, linux=linux)
        with pytest.raises(grpc.RpcError) as raised:
            cri_client.call("UpdateContainerResources", request)
        codes.append(raised.value.code())
    assert codes[0] == codes[1]


def test_update_of_an_online_container_does_what_it_says(site: Node, through: CriClient) -> None:
    started = start(through, site, {}, "", resources=LIMITED)
    update = cri.LinuxContainerResources(cpu_shares=512, memory_limit_in_bytes=96 * MIB)
    request = cri.UpdateContainerResourcesRequest(container_id=started.container.id, linux=update)
    through.call("UpdateContainerResources", request)
    cgroup = f"{started.parent}/{started.container.id}"
    assert kernel(cgroup, "memory.limit_in_bytes", "memory.max") == str(96 * MIB)
    assert kernel(cgroup, "cpu.shares", "cpu.weight") == ("512" if cgroups.version() == 1 else "20")


# --- everything else ------------------------------------------------------------------------------------------------

ENVS = {"ZULU": "1", "PASSWORD": "tr0ub4dor", "ALPHA": "two words", "EMPTY": "", "UNI": "ünï=code\nline", "MIKE": "2"}


def test_environment_of_an_offline_container_is_as_without_the_proxy(
    site: Node, client: CriClient, through: CriClient
) -> None:
    seen = []
    for cri_client, labels in ((client, {}), (through, {}), (through, OFFLINE)):
        started = start(cri_client, site, labels, env=ENVS)
        seen.append(cri_client.exec_sync(started.container, ["cat", "/proc/self/environ"]).stdout)
    direct, online, offline = seen
    own = [entry for entry in direct.decode().split("\0") if entry.partition("=")[0] in ENVS]
    assert own == [f"{key}={value}" for key, value in ENVS.items()]
    assert direct == online == offline
    assert "tr0ub4dor" not in site.proxy.log.read_text()
