"""A YARN NodeManager as an offline pod of a real kubelet: its containers lie in the box, whose memory limit waits.

What the node lends is lowered by its policy, as no other pod on this machine could be made to need so much, and no
more; in one test by the forecast alone. Maps are stopped by SIGSTOP: so they keep their memory for as long as the test
says.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from criproxy.control.histogram import MEMORY_BUCKETS
from integration.control_plane.cluster import CLASS, CPU, MEMORY, PLAIN, POD_S, PODS, SOON_S, Cluster, container_of
from integration.lab import hadoop, ledger_side
from integration.lab.cgroups import of_process
from integration.lab.cluster_side import MANIFESTS, SYSTEM
from integration.lab.control_plane import wait_for
from integration.lab.kubelet import static_pod
from integration.lab.ledger_side import LedgerReplica
from integration.lab.process import Process, argv_of
from integration.lab.usage import Cgroup

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.by_command,
]

Say = Callable[[str], object]

NODE_ID = "yarn.hadoop.apache.org/node-id"
MANAGER = "nodemanager"
MANAGER_MIB = 256
LENT_MIB, LESS_MIB = 4096, 2048
CORES, LESS_CORES = 2.0, 1.9
"""Of both, one is left for YARN beside what the NodeManager's pod asks for."""
GRACE_S, SETTLE_S = 60.0, 3.0
HELD_S = 8.0
LAG_S = 10.0
"""From when something is over to the limit: looks of the ledger, of the node, and of the test."""
ASKED_S = 1.5
"""The test hears of YARN's size so much later than YARN, at most."""
MORE_MIB = 4096
"""Online comes to use so much more, or a little more than that."""

SPARE_MIB = 8
"""YARN has so much more than it uses."""

REPORTED_S = 420.0
"""A node's reports are no further apart, with what the ledger and the test then take to hear of it."""

JOB_S = 600.0
MAPS = 6
FITTING = 2
"""Maps that there is room for when the node lends less."""
MAP_MIB = 512
"""Six, and the ApplicationMaster of 512 MiB, leave no room for a seventh in 4,096 MiB less the NodeManager's."""


class Look(NamedTuple):
    """`used_mib` was read after the limit: while YARN gives back, it held no less when the limit was read."""

    at_s: float
    size_mib: int
    limit_mib: int
    used_mib: int


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hadoop.Yarn]:
    made = hadoop.Yarn(tmp_path_factory.mktemp("yarn"), 8192, 8)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def ledger(cluster: Cluster, yarn: hadoop.Yarn) -> Iterator[LedgerReplica]:
    cluster.plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
    ledger_side.install(cluster.plane)
    cluster.plane.kubectl("apply", "-f", str(MANIFESTS / "yarn" / "rbac.yaml"))
    arguments = ("--resource-manager", yarn.address, "--yarn-share", "1", "--yarn-grace", str(GRACE_S))
    made = LedgerReplica(cluster.plane, "ledger", arguments=arguments)
    made.start()
    wait_for(made.is_ready, SOON_S, "the ledger to be ready")
    made.take_binds()
    yield made
    made.process.stop()


@pytest.fixture(scope="module")
def manager(cluster: Cluster, yarn: hadoop.Yarn, ledger: LedgerReplica) -> Iterator[Any]:
    """The NodeManager's pod, once the ResourceManager has its node and the ledger has set its size."""
    lend(cluster, LENT_MIB)
    cluster.plane.call("POST", PODS, manifest(yarn))
    pod = cluster.wait_running(MANAGER)
    yarn.wait_known(yarn.folder / "nodemanager.log")
    wait_for(lambda: yarn.size()[0] == LENT_MIB - MANAGER_MIB, SOON_S, "the ledger to set YARN's size")
    yield pod
    cluster.delete(MANAGER)


def manifest(yarn: hadoop.Yarn) -> dict[str, Any]:
    """It mounts Hadoop, and what that runs on, from the node: there is no registry."""
    amounts = {CPU: "100", MEMORY: f"{MANAGER_MIB}Mi"}
    log = yarn.folder / "nodemanager.log"
    made = static_pod(
        MANAGER,
        ["/bin/bash", "-c", f'exec "$0" "$@" &>{log}', *yarn.node_manager_command()],
        labels={**CLASS, "app.kubernetes.io/component": "node-manager"},
        annotations={NODE_ID: yarn.node_id},
        resources={"requests": amounts, "limits": amounts},
        grace_s=60,
    )
    mounts = {f"mount-{number}": one for number, one in enumerate(yarn.node_manager_mounts())}
    made["spec"]["volumes"] = [{"name": name, "hostPath": {"path": str(path)}} for name, (path, _) in mounts.items()]
    (container,) = made["spec"]["containers"]
    container["volumeMounts"] = [
        {"name": name, "mountPath": str(path), "readOnly": fixed} for name, (path, fixed) in mounts.items()
    ]
    java = hadoop.java_home()
    environment = {**java, "PATH": f"{java['JAVA_HOME']}/bin:/usr/bin:/bin"}
    container["env"] = [{"name": name, "value": value} for name, value in environment.items()]
    made["spec"] |= PLAIN
    return made


def lend(cluster: Cluster, mib: int, cores: float = CORES) -> None:
    cpu = {"min_cores": cores, "max_cores": cores}
    cluster.order(f"{mib} MiB, {cores} cores", cpu=cpu, memory={"max_bytes": mib << 20})
    cluster.wait_published(lambda amount: amount == cores * 1000, f"{cores} cores")
    cluster.wait_published(lambda amount: amount == mib << 20, f"{mib} MiB", MEMORY)
    # A small raise of the limit waits for a minute since its last change.
    wait_for(lambda: cluster.proxy.status()["box"]["memory"]["limit_bytes"] >= mib << 20, SOON_S, "the box to hold it")


def box(cluster: Cluster, pod: Any) -> Cgroup:
    return Cgroup(cluster.cgroup(pod).partition("/pod")[0])


def maps_of(yarn: hadoop.Yarn) -> set[int]:
    return {pid for pid in yarn.container_pids() if "org.apache.hadoop.mapred.YarnChild" in argv_of(pid)}


def send(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def memory_cgroup(pid: int) -> str:
    """ "": it has ended."""
    try:
        places = of_process(pid)
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return places.get("memory") or places[""]


def answered(job: Process) -> bool:
    return "Estimated value of Pi is 3.1" in Path(job.log).read_text()


@contextlib.contextmanager
def held_maps(yarn: hadoop.Yarn) -> Iterator[tuple[Process, set[int]]]:
    """A job all of whose maps run, and are stopped as soon as they do; they go on afterwards."""
    job = yarn.run("pi", str(MAPS), "100000")
    stopped: set[int] = set()

    def all_stopped() -> bool:
        new = maps_of(yarn) - stopped
        send(new, signal.SIGSTOP)
        stopped.update(new)
        assert job.is_alive(), Path(job.log).read_text()[-2000:]
        return len(stopped) == MAPS

    try:
        wait_for(all_stopped, POD_S, "all maps to run")
        yield job, stopped
    finally:
        send(stopped, signal.SIGCONT)


def watched(yarn: hadoop.Yarn, of_box: Cgroup, until: Callable[[Look], bool], most_s: float) -> list[Look]:
    """Looks from now until one of them ends it, or `most_s` are over."""
    looks: list[Look] = []
    ends_s = time.monotonic() + most_s
    while time.monotonic() < ends_s and not (looks and until(looks[-1])):
        limit_mib = of_box.memory_limit_bytes() >> 20
        looks.append(Look(time.monotonic(), yarn.size()[0], limit_mib, yarn.used_mib()))
        time.sleep(0.2)
    return looks


def assert_room(looks: list[Look]) -> None:
    """The box has held what YARN had, and the NodeManager."""
    assert not [one for one in looks if one.limit_mib < one.used_mib + MANAGER_MIB], looks


def finish(cluster: Cluster, yarn: hadoop.Yarn, job: Process) -> None:
    """The job ends with the right answer, and the node lends again what it did."""
    wait_for(lambda: not job.is_alive(), JOB_S, "the job to end")
    assert answered(job), Path(job.log).read_text()[-2000:]
    lend(cluster, LENT_MIB)
    wait_for(lambda: yarn.size()[0] == LENT_MIB - MANAGER_MIB, SOON_S, "YARN to have its size again")


def test_containers_of_a_node_manager_in_a_pod_lie_in_the_box(
    cluster: Cluster, yarn: hadoop.Yarn, manager: Any, say: Say
) -> None:
    assert cluster.in_box(manager)
    job = yarn.run("pi", "4", "1000")
    seen: dict[int, tuple[str, str]] = {}
    while job.is_alive():
        for pid in yarn.container_pids() - seen.keys() - {job.pid}:
            place = memory_cgroup(pid)
            if words := " ".join(argv_of(pid)):  # one that ends has no words any more, and is in no cgroup
                seen[pid] = place, words
        time.sleep(0.05)
    assert answered(job), Path(job.log).read_text()[-2000:]
    own = f"/offline/pod{manager['metadata']['uid']}"
    assert not [one for one in seen.values() if own not in one[0]]
    for program in ("MRAppMaster", "YarnChild"):
        assert any(program in words for _, words in seen.values()), program
    assert not cluster.proxy.problems("outside")
    assert cluster.pod(MANAGER)["status"]["containerStatuses"][0]["restartCount"] == 0
    say(f"{len(seen)} processes of YARN's containers were in the box, and none elsewhere")


def test_box_keeps_its_memory_until_yarn_has_given_it_back(
    cluster: Cluster, yarn: hadoop.Yarn, manager: Any, say: Say
) -> None:
    """Its maps end: here by SIGKILL, as a busy machine might take too long for their work."""
    of_box, before = box(cluster, manager), yarn.killed()
    with held_maps(yarn) as (job, maps):
        assert of_box.memory_limit_bytes() >> 20 == LENT_MIB
        began_s = time.monotonic()
        lend(cluster, LESS_MIB)
        wait_for(lambda: yarn.size()[0] == LESS_MIB - MANAGER_MIB, SOON_S, "YARN to be told")
        told_s = time.monotonic()
        held = watched(yarn, of_box, lambda _: False, HELD_S)
        send(set(sorted(maps)[FITTING:]), signal.SIGKILL)
        most_s = told_s + GRACE_S - time.monotonic()
        given_back = watched(yarn, of_box, lambda look: look.limit_mib == LESS_MIB, most_s)
    assert_room([*held, *given_back])
    assert min(one.limit_mib for one in held) >= MAPS * MAP_MIB, "nothing was given back, so the limit has waited"
    assert given_back[-1].limit_mib == LESS_MIB, given_back[-1]
    back_s = next(one.at_s for one in given_back if one.used_mib <= one.size_mib)
    assert given_back[-1].at_s < back_s + LAG_S, "the rest of the grace was not waited for"
    assert yarn.killed() == before, "YARN gave back by itself"
    fell_s = given_back[-1].at_s - told_s
    say(f"told after {told_s - began_s:.1f} s; held {held[-1]}; the limit fell {fell_s:.1f} s after")
    finish(cluster, yarn, job)


def test_a_small_fall_waits_for_the_report_that_tells_yarn_of_it(
    cluster: Cluster, yarn: hadoop.Yarn, manager: Any, say: Say
) -> None:
    """The forecast rises by itself, while online uses no more; by less than a tenth of what is lent, which is published
    with the next report. Until then the limit stays, as YARN's containers live by it.

    Online has come to use what is low in a bucket of the histogram, 5 % wide: with time the percentile goes up there.
    """

    def memory() -> Any:
        return cluster.proxy.status()["box"]["memory"]

    of_box, before = box(cluster, manager), yarn.killed()
    bucket = MEMORY_BUCKETS.index(memory()["online_bytes"] + (MORE_MIB << 20)) + 1
    wanted = MEMORY_BUCKETS.edges[bucket] + 0.1 * MEMORY_BUCKETS.widths[bucket]
    used_by_online = b"x" * int(wanted - memory()["online_bytes"])
    with held_maps(yarn) as (job, maps):
        wait_for(lambda: memory()["prediction_bytes"] > memory()["online_bytes"], POD_S, "the forecast to have risen")
        lent_mib, most = MANAGER_MIB + yarn.used_mib() + SPARE_MIB, 0.9 * memory()["capacity_bytes"]
        reserve = int(most - memory()["prediction_bytes"]) - (lent_mib << 20)
        cluster.order("a reserve", cpu={"min_cores": CORES, "max_cores": CORES}, memory={"reserve_bytes": reserve})
        wait_for(lambda: 0 <= yarn.size()[0] - yarn.used_mib() <= SPARE_MIB, SOON_S, "YARN to have little to spare")
        size_mib, published = yarn.size()[0], cluster.published(MEMORY)
        began_s = time.monotonic()
        waited = watched(yarn, of_box, lambda look: look.size_mib < look.used_mib, REPORTED_S)
        reason, now = memory()["reason"], cluster.published(MEMORY)
        send(set(sorted(maps)[1:2]), signal.SIGKILL)
        most_s = GRACE_S - (time.monotonic() - waited[-1].at_s)
        given_back = watched(yarn, of_box, lambda look: look.limit_mib <= look.size_mib + MANAGER_MIB, most_s)
    assert_room([*waited, *given_back])
    assert waited[-1].size_mib < size_mib, waited[-1]
    assert published is not None and now is not None and 0.9 * published < now < published
    assert min(one.limit_mib for one in waited if one.size_mib == size_mib) >= published >> 20, "YARN was not yet told"
    assert "more, as it is to be given back first" in reason
    assert given_back[-1].limit_mib <= given_back[-1].size_mib + MANAGER_MIB, given_back[-1]
    assert yarn.killed() == before, "YARN gave back by itself"
    del used_by_online
    told_s, fell_s = waited[-1].at_s - began_s, given_back[-1].at_s - waited[-1].at_s
    say(
        f"{(published - now) >> 20} MiB less were published, and YARN told after {told_s:.0f} s; the limit, "
        f"{waited[0].limit_mib} MiB until then, fell to {given_back[-1].limit_mib} MiB {fell_s:.1f} s after"
    )
    finish(cluster, yarn, job)


@pytest.mark.parametrize("deaf", [False, True], ids=["killed", "the NodeManager hears nothing"])
def test_box_waits_no_longer_than_the_grace(
    cluster: Cluster, yarn: hadoop.Yarn, manager: Any, say: Say, deaf: bool
) -> None:
    """Containers are killed with the NodeManager's heartbeats: where it sends none, YARN never gives back.

    What the node has published a moment before puts off what it publishes next, and so when YARN is told.
    """
    of_box, before = box(cluster, manager), yarn.killed()
    node_manager = {cluster.client.pid_of(container_of(manager))} if deaf else set()
    with held_maps(yarn) as (job, _):
        lend(cluster, LENT_MIB, LESS_CORES)
        began_s = time.monotonic()
        lend(cluster, LESS_MIB, LESS_CORES)
        wait_for(lambda: yarn.size()[0] == LESS_MIB - MANAGER_MIB, SOON_S, "YARN to be told")
        told_s = time.monotonic()
        send(node_manager, signal.SIGSTOP)
        most_s = GRACE_S + SETTLE_S + LAG_S
        looks = watched(yarn, of_box, lambda look: look.limit_mib == LESS_MIB, most_s)
        send(node_manager, signal.SIGCONT)
    assert_room([one for one in looks if one.at_s < told_s + GRACE_S + SETTLE_S - ASKED_S])
    last = looks[-1]
    assert last.limit_mib == LESS_MIB, last
    assert last.at_s >= told_s + GRACE_S - ASKED_S, "no container was to be killed before"
    assert (last.used_mib > last.size_mib) == deaf, last
    finish(cluster, yarn, job)
    assert deaf or yarn.killed() > before  # the deaf one's containers may end by themselves before it has heard
    fell_s, killed = last.at_s - told_s, yarn.killed() - before
    say(f"told after {told_s - began_s:.1f} s; the limit fell {fell_s:.1f} s after: {last}; {killed} killed")
