"""A real Spark on a real control plane and node: its driver is online, its executors run in the box.

Executors come with what the node lends. Those that criproxy evicts move what they have to others, and don't count as
failures; those that are killed are replaced. It takes some minutes, and `integration/setup spark` fetches 430 MB first.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from integration.control_plane.cluster import CPU, PLAIN, POD_S, PODS, POLICIES, SOON_S, Cluster, container_of, joined
from integration.control_plane.test_examples import apply_kinds
from integration.lab import cluster_side, kubelet_cgroup
from integration.lab.cluster_side import Replica
from integration.lab.control_plane import wait_for
from integration.lab.node import FAVOURED
from integration.lab.process import LabError
from integration.lab.spark import GRACEFUL, JAVA_HOME, OFFLINE_EXECUTORS, Application, Work, growing, requesting

pytestmark = [
    pytest.mark.alone,
    pytest.mark.by_command,
    pytest.mark.timeout(1200),
]

WORK = Work(rows=600_000, parts=48, rounds=64)
FEW, MORE = 2, 4
"""Executors, of 200m each, that there is room for before and after the node lends more."""
LENT: Mapping[int, float] = {FEW: 0.45, MORE: 1.0}


@pytest.fixture(scope="module")
def cluster(say: Callable[[str], object]) -> Iterator[Cluster]:
    """Its pods go before what else this machine does."""
    with joined(say) as cluster:
        kubelet_cgroup.make(cluster.kubelet.cgroup_root, shares=FAVOURED)
        cluster_side.install(cluster.plane)
        replica = Replica(cluster.plane, "replica")
        replica.take_webhooks()
        replica.start()
        wait_for(replica.leads, SOON_S, "the replica to lead")
        policy = {"apiVersion": "colocation.criproxy.io/v1alpha1", "kind": "ColocationPolicy"}
        cluster.plane.call("POST", POLICIES, {**policy, "metadata": {"name": "all"}, "spec": lends(LENT[FEW])})
        apply_kinds(cluster, "spark-application.yaml", "ServiceAccount", "Role", "RoleBinding")
        yield cluster
        replica.process.kill()


def lends(cores: float) -> dict[str, Any]:
    return {"settings": {"cpu": {"min_cores": cores, "max_cores": cores}}}


GROWING: Mapping[str, str] = {
    **OFFLINE_EXECUTORS,
    **requesting("200m"),
    **growing(1, MORE),
    **GRACEFUL,
    "spark.executor.maxNumFailures": "1",
}
"""With a second failure, the application fails."""


def application(cluster: Cluster, folder: Path, settings: Mapping[str, str], name: str = "sum") -> Application:
    """Its driver has the label of offline pods, too, as where a whole namespace has it."""
    offline = {"colocation.criproxy.io/class": "offline"}
    spec = {"tolerations": PLAIN["tolerations"]}
    return Application(cluster.plane, name, folder, WORK, settings, driver_labels=offline, spec=spec)


def running(app: Application) -> list[Any]:
    return [
        pod
        for pod in app.executors()
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


def await_running(app: Application, many: int) -> list[Any]:
    found: list[Any] = wait_for(lambda: len(now := running(app)) == many and now, POD_S, f"{many} executors")
    return found


def number(pod: Any) -> str:
    """The executor's."""
    return str(pod["metadata"]["labels"]["spark-exec-id"])


def removed(app: Application) -> Mapping[str, str]:
    """Why executors were removed, by their numbers; the first reason is what Spark judges by."""
    events = reversed(app.events("ExecutorRemoved"))
    return {one["Executor ID"]: one["Removed Reason"] for one in events}


def test_evicted_executors_move_their_shuffle_and_the_job_ends_with_the_right_answer(
    cluster: Cluster, tmp_path: Path, say: Callable[[str], object]
) -> None:
    cluster.wait_published(lambda amount: amount == 1000 * LENT[FEW], "the policy's")
    app = application(cluster, tmp_path / "app", GROWING)
    app.submit()
    driver = cluster.wait_running(app.driver)
    assert not cluster.in_box(driver)
    assert driver["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "100m", "memory": "1Gi"}

    for pod in await_running(app, FEW):
        assert cluster.in_box(pod)
        assert pod["spec"]["containers"][0]["resources"]["requests"][CPU] == "200"
    cluster.plane.merge(f"{POLICIES}/all", {"spec": lends(LENT[MORE])})
    pods = await_running(app, MORE)

    wait_for(lambda: len(app.events("TaskEnd")) >= WORK.parts, POD_S, "the first stage")
    (asked := tmp_path / "asked").mkdir()
    began_s = time.monotonic()
    for pod in pods[:2]:
        assert cluster.evict_first([pod], asked, grace_s=None) == 0
    for pod in pods[:2]:
        cluster.wait_gone(pod["metadata"]["name"])
        say(f"{pod['metadata']['name']} was gone {time.monotonic() - began_s:.1f} s after the first eviction")
    answer = wait_for(lambda: ended(cluster, app), POD_S, "the driver to end")

    assert WORK.is_answered_by(answer), answer
    evicted = [number(pod) for pod in pods[:2]]
    assert all("decommission" in removed(app)[one] for one in evicted), removed(app)
    moved = [one for one in evicted if "Migrated migrate_shuffle" in app.executor_log(one)]
    assert moved == evicted
    tasks = app.events("TaskEnd")
    assert [one["Task End Reason"]["Reason"] for one in tasks if one["Stage ID"] == 0] == ["Success"] * WORK.parts, (
        "the first stage's output was moved, so none of it was computed again"
    )
    assert not [one for one in tasks if one["Task End Reason"].get("Exit Caused By App")], "no end was a failure"
    again = sum(one["Task End Reason"]["Reason"] != "Success" for one in tasks)
    vain = f"{again} of {len(tasks)} tasks in vain"
    say(f"answered in {answer['seconds']:.1f} s; executors {' and '.join(evicted)} were evicted; {vain}")


def test_killed_executor_is_replaced_and_an_evicted_one_beside_it_is_no_failure(
    cluster: Cluster, tmp_path: Path, say: Callable[[str], object]
) -> None:
    """The killed one takes its shuffle's output with it: that is computed again."""
    cluster.plane.merge(f"{POLICIES}/all", {"spec": lends(LENT[MORE])})
    cluster.wait_published(lambda amount: amount == 1000 * LENT[MORE], "the policy's")
    app = application(cluster, tmp_path / "app", GROWING, "killed")
    app.submit()
    pods = await_running(app, MORE)
    wait_for(lambda: len(app.events("TaskEnd")) >= WORK.parts, POD_S, "the first stage")
    killed, evicted = pods[:2]
    assert cluster.in_box(killed)
    os.kill(cluster.client.pid_of(container_of(killed)), signal.SIGKILL)
    (asked := tmp_path / "asked").mkdir()
    assert cluster.evict_first([evicted], asked, grace_s=None) == 0
    before = {pod["metadata"]["name"] for pod in pods}
    new = wait_for(lambda: [pod for pod in running(app) if pod["metadata"]["name"] not in before], POD_S, "another")
    assert cluster.in_box(new[0])
    answer = wait_for(lambda: ended(cluster, app), POD_S, "the driver to end")

    assert WORK.is_answered_by(answer), answer
    why = removed(app)
    assert "decommission" in why[number(evicted)], why
    assert "decommission" not in why[number(killed)], why
    worked = [one["Task Info"]["Executor ID"] for one in app.events("TaskEnd")]
    assert number(new[0]) in worked
    say(f"answered in {answer['seconds']:.1f} s; {why}")


def ended(cluster: Cluster, app: Application) -> dict[str, Any] | None:
    phase = cluster.pod(app.driver)["status"]["phase"]
    if phase == "Failed":
        raise LabError(f"the driver has failed; the end of its log:\n{app.complaints()}")
    return app.answer() if phase == "Succeeded" else None


@pytest.mark.parametrize(
    ("offline", "limit", "counted"),
    [(True, "1", 1), (True, None, os.cpu_count()), (False, "1", 1)],
    ids=["in the box, with a limit", "in the box, without", "online"],
)
def test_jvm_counts_the_cpus_that_its_pod_may_have(
    cluster: Cluster, tmp_path: Path, offline: bool, limit: str | None, counted: int
) -> None:
    """The first pod of a box is pinned some seconds after its start, as nothing was measured before."""
    app = application(cluster, tmp_path / "app", {})
    app.put_files()
    java = f"{JAVA_HOME}/bin/java -XshowSettings:system -version"
    spec = app.pod(["/bin/sh", "-c", f"while {java} >/job/new 2>&1; do mv /job/new /job/said; sleep 1; done"], "main")
    spec |= {"terminationGracePeriodSeconds": 1}
    asked = {"cpu": limit} if limit else {}
    spec["containers"][0]["resources"] = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": asked}
    labels = {"colocation.criproxy.io/class": "offline"} if offline else {}
    cluster.plane.call("POST", PODS, {"metadata": {"name": "counts", "labels": labels}, "spec": spec})
    assert cluster.in_box(cluster.wait_running("counts")) == offline
    said = tmp_path / "app" / "said"
    words = f"Effective CPU Count: {counted}\n"
    wait_for(lambda: said.exists() and words in said.read_text(), SOON_S, f"java to count {counted}")
    cluster.delete("counts")
