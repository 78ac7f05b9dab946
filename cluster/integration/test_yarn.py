"""YARN as a holder in the ledger: a real ResourceManager and NodeManager, jobs that are squeezed, a naive writer."""

import os
import time
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.integration.objects import CPU, MEMORY, PODS, pod, put_node, until
from criproxy_cluster.ledger import messages
from criproxy_cluster.ledger.grpc_door import SERVICE
from integration.lab import cache, control_plane, hadoop, ledger_side
from integration.lab.cgroups import Tree, hierarchies
from integration.lab.control_plane import ApiError, ControlPlane
from integration.lab.ledger_side import LedgerReplica

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.by_command,
]

GIB = 1 << 30
MIB = 1 << 20
LENT_GIB, LESS_GIB = 4, 2
SHARE, GRACE_S = 0.75, 60.0
JOB_S = 600.0
NODE = "n"
MANAGER_MIB = 256
MAPS = 16
SUM = """
import time
from pyspark import SparkContext

sc = SparkContext(appName="sum")

def part(rows):
    time.sleep(2)
    yield sum(x * x for x in rows)

print("ANSWER", sc.parallelize(range(100000), 60).mapPartitions(part).sum(), flush=True)
sc.stop()
"""
RIGHT = sum(x * x for x in range(100000))


def spark():
    """The folder of the Spark that integration/setup has made; None: there is none."""
    return next(iter(cache.folder().glob("spark-*/opt/spark")), None)


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    directory = tmp_path_factory.mktemp("yarn-plane")
    made = ControlPlane(directory)
    try:
        made.start(lifecycle=False, scheduler=False)
        made.call("POST", "/api/v1/namespaces", {"metadata": {"name": "criproxy-system"}})
        until(lambda: made.exists("/api/v1/namespaces/default/serviceaccounts/default"))
        ledger_side.install(made)
        yield made
    finally:
        control_plane.end(directory)


@pytest.fixture(scope="module")
def yarn(tmp_path_factory):
    made = hadoop.Yarn(tmp_path_factory.mktemp("yarn"), 8192, 8)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def node_manager(yarn):
    made = yarn.start_node_manager()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def box(node_manager):
    """The cgroup of memory in which the NodeManager is, as an offline pod's is in the box."""
    tree = Tree(f"/criproxy-yarn-{os.getpid()}")
    tree.make()
    (hierarchy,) = [one for one in hierarchies() if "memory" in one.controllers or one.controllers == ("",)][:1]
    pod = hierarchy.directory(tree.path) / "nodemanager"
    pod.mkdir()
    (pod / "cgroup.procs").write_text(str(node_manager.pid))
    yield pod
    tree.kill()
    tree.remove()


class Node:
    """The Kubernetes node on which the NodeManager's pod is, and what the ledger says of it."""

    def __init__(self, plane, yarn, ledger):
        self.plane, self.yarn, self.ledger = plane, yarn, ledger
        channel = grpc.ssl_channel_credentials(plane.authority.ca.read_bytes())
        self._channel = grpc.secure_channel(f"localhost:{ledger.grpc_port}", channel)
        self.steps = []

    def lend(self, gib, cores=6):
        self.lent = {CPU: cores * 1000, MEMORY: gib * GIB}
        amounts = {"cpu": "8", "memory": "16Gi", "pods": "100", CPU: str(cores * 1000), MEMORY: f"{gib}Gi"}
        self.plane.merge(f"/api/v1/nodes/{NODE}/status", {"status": {"capacity": amounts, "allocatable": amounts}})

    def held_mib(self):
        """By what the ledger tells its listeners is free; no pod but the NodeManager's is there. None: it abstains."""
        watch = self._channel.unary_stream(
            f"/{SERVICE}/Watch",
            request_serializer=messages.WatchRequest.SerializeToString,
            response_deserializer=messages.Changes.FromString,
        )
        stream = watch(messages.WatchRequest(), timeout=10)
        try:
            (node,) = next(stream).nodes
        except grpc.RpcError:
            return None
        finally:
            stream.cancel()
        return (self.lent[MEMORY] - MANAGER_MIB * MIB - node.free[MEMORY]) // MIB

    def metrics(self):
        families = text_string_to_metric_families(self.ledger.ask("/metrics")[1].decode())
        return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}

    def agrees(self, mib):
        """Whether the ResourceManager and the ledger both say so."""
        said = self.yarn.size()[0], self.held_mib()
        return said == (mib, mib)


@pytest.fixture(scope="module")
def node(plane, yarn, node_manager):
    put_node(plane, NODE)
    arguments = (
        "--resource-manager", yarn.address, "--yarn-share", str(SHARE), "--yarn-grace", str(GRACE_S),
        "--yarn-drain-grace", "5",
    )  # fmt: skip
    ledger = LedgerReplica(plane, "ledger", arguments=arguments)
    made = Node(plane, yarn, ledger)
    made.lend(LENT_GIB)
    manager = pod("nm", {CPU: "500", MEMORY: f"{MANAGER_MIB}Mi"}, nodeName=NODE)
    manager["metadata"]["labels"]["app.kubernetes.io/component"] = "node-manager"
    manager["metadata"]["annotations"] = {"yarn.hadoop.apache.org/node-id": yarn.node_id}
    container = manager["spec"]["containers"][0]["resources"]
    container["limits"] = dict(container["requests"])
    plane.call("POST", PODS, manager)
    ledger.start()
    until(ledger.is_ready, 60.0)
    ledger.take_binds()
    yield made
    ledger.process.stop()


def part_mib(gib):
    return int(gib * 1024 * SHARE)


def test_yarn_has_its_part_and_no_bind_gets_more_than_the_rest(plane, yarn, node):
    until(lambda: node.agrees(part_mib(LENT_GIB)), 60.0)
    assert yarn.size() == (3072, 4)

    def bound(name, mib):
        one = pod(name, {MEMORY: f"{mib}Mi"})
        one["spec"]["containers"][0]["resources"]["limits"] = {MEMORY: f"{mib}Mi"}
        plane.call("POST", PODS, one)
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": NODE}}
        try:
            plane.call("POST", f"{PODS}/{name}/binding", {"apiVersion": "v1", "kind": "Binding", **binding})
        except ApiError as error:
            return str(error)
        finally:
            plane.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
        return ""

    assert "free" in bound("larger", 900), "Kubernetes' part is 1024 MiB, and the NodeManager's pod has 256 of it"
    assert bound("smaller", 700) == ""
    assert "yarn_unprotected" in node.ledger.log
    until(lambda: node.agrees(part_mib(LENT_GIB)), 60.0)


def squeezed(node, job, box, busy_mib):
    """How many containers of a job were killed that was squeezed once and then given all again."""
    yarn = node.yarn
    until(lambda: yarn.used_mib() >= busy_mib, 240.0)
    running = yarn.container_pids()
    inside = {int(pid) for pid in (box / "cgroup.procs").read_text().split()}
    assert running and running & yarn.container_pids() <= inside, "the NodeManager's containers are its children"
    before, seen = yarn.killed(), []
    node.lend(LESS_GIB)
    began_s = time.monotonic()
    until(lambda: yarn.size()[0] == part_mib(LESS_GIB))
    node.lend(LESS_GIB, cores=3)
    until(lambda: yarn.size()[1] == 2)  # CPU does not wait for memory, and moves no deadline
    ends_s = began_s + GRACE_S + 20.0
    while time.monotonic() < ends_s and not (yarn.used_mib() <= part_mib(LESS_GIB) and node.agrees(part_mib(LESS_GIB))):
        used, size, held, used_after = yarn.used_mib(), yarn.size()[0], node.held_mib(), yarn.used_mib()
        seen.append((used, size, held))
        if time.monotonic() < began_s + GRACE_S:
            assert held is None or held >= min(used, used_after), "what YARN uses is YARN's until it is given back"
        assert job.is_alive()
        time.sleep(0.3)
    assert node.agrees(part_mib(LESS_GIB)), seen[-3:]
    assert any(size < used <= held for used, size, held in seen if held is not None), "YARN kept what it used, held"
    killed = yarn.killed() - before
    took_s = time.monotonic() - began_s
    print(f"squeezed from {seen[0]} to {seen[-1]} (used, size, held) in {took_s:.0f} s: {killed} killed")
    node.lend(LENT_GIB)
    until(lambda: node.agrees(part_mib(LENT_GIB)), 60.0)
    return killed


def test_a_mapreduce_job_ends_with_the_right_answer_and_its_maps_are_let_end(yarn, node, box):
    """Maps of a few seconds end within the grace: none is killed. The naive writer's are."""
    until(lambda: node.agrees(part_mib(LENT_GIB)), 60.0)
    job = yarn.run("pi", str(MAPS), "300000")
    killed = squeezed(node, job, box, 2500)
    until(lambda: not job.is_alive(), JOB_S)
    assert "Estimated value of Pi is 3.141" in Path(job.log).read_text()
    print(f"pi: {killed} killed with the grace")


def test_a_spark_job_survives_a_squeeze_and_ends_with_the_right_answer(yarn, node, box, tmp_path):
    if (home := spark()) is None:
        pytest.skip("no Spark here: integration/setup spark")
    (file := tmp_path / "sum.py").write_text(SUM)
    job = yarn.submit(home, file, "--num-executors", "2", "--executor-cores", "1")
    killed = squeezed(node, job, box, 2500)
    until(lambda: not job.is_alive(), JOB_S)
    assert f"ANSWER {RIGHT}" in Path(job.log).read_text()
    print(f"spark: {killed} executors killed, told {GRACE_S:.0f} s before")


def test_a_node_that_is_switched_off_is_drained_and_comes_back(plane, yarn, node):
    plane.merge(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {"colocation.criproxy.io/switch": "off"}}})
    until(lambda: yarn.size() == (0, 0), 30.0)
    plane.merge(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {"colocation.criproxy.io/switch": None}}})
    until(lambda: node.agrees(part_mib(LENT_GIB)), 60.0)


def test_sizes_that_somebody_else_has_set_do_not_stay(yarn, node):
    yarn.ask(f"nodes/{yarn.node_id}/resource", {"resource": {"memory": 8192, "vCores": 8}, "overCommitTimeout": 1000})
    until(lambda: node.agrees(part_mib(LENT_GIB)), 30.0)


def test_the_naive_writer_kills_at_once_and_gives_away_what_pods_have(yarn, node):
    """As the one public peer does it: all that is lent, MB of 1000, and no grace."""
    node.ledger.process.stop()
    naive(yarn, LENT_GIB)
    given_mib = yarn.size()[0]
    assert given_mib == 4294 > LENT_GIB * 1024, "4.9 % more than there is, and all of what pods have"
    job = yarn.run("pi", str(MAPS), "300000")
    until(lambda: yarn.used_mib() >= 2500, 240.0)
    before = yarn.killed()
    naive(yarn, LESS_GIB)
    time.sleep(5.0)
    killed = yarn.killed() - before
    print(f"naive: {killed} killed within 5 s")
    naive(yarn, LENT_GIB)
    until(lambda: not job.is_alive(), JOB_S)
    assert killed >= 1


def naive(yarn, gib):
    size = {"memory": gib * GIB // 10**6, "vCores": 6}
    yarn.ask(f"nodes/{yarn.node_id}/resource", {"resource": size})
    time.sleep(0.5)
