"""criproxy on a node of a real control plane, with a real kubelet and kubelet's own credential.

One cluster serves all tests, in their order. Pods are on the host's network, so a node without a CNI plugin will do.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from integration.control_plane.cluster import CLASS, CPU, MEMORY, POD_S, SOON_S, Cluster
from integration.lab.cgroups import of_process
from integration.lab.control_plane import wait_for
from integration.lab.criproxy import python_path
from integration.lab.kubelet import static_pod

pytestmark = pytest.mark.timeout(1200)  # a control plane takes its time on a busy machine

Say = Callable[[str], object]


# --- what is published ----------------------------------------------------------------------------------------------


def test_node_lends_what_its_status_says_and_why_explains_it(cluster: Cluster, say: Say) -> None:
    lent = cluster.wait_published(lambda amount: amount > 0, "published")
    memory = cluster.wait_published(lambda amount: amount > 0, "published", MEMORY)
    shown = cluster.kubernetes()
    say(f"published: {CPU} {lent}, {MEMORY} {memory}")
    assert shown["published"] == {CPU: lent, MEMORY: memory}
    assert (shown["node"], shown["trouble"]) == (cluster.kubelet.node, "")
    assert "online may use within the hour" in shown["why"] or "the floor" in shown["why"]
    assert CPU in json.loads(cluster.proxy.http("/why")[1])["published"]
    code, metrics = cluster.proxy.http("/metrics")
    assert code == 200
    assert f'criproxy_kubernetes_published{{resource="{CPU}"}} {lent}' in metrics
    assert cluster.condition()["status"] == "True"
    assert cluster.node()["metadata"]["annotations"]["colocation.criproxy.io/publishes"] == f"{CPU},{MEMORY}"


def test_scheduler_places_an_offline_pod_by_what_is_published_and_it_runs_in_the_box(cluster: Cluster) -> None:
    cluster.create("lent", {CPU: "100", MEMORY: "64Mi"})
    pod = cluster.wait_running("lent")
    assert pod["spec"]["nodeName"] == cluster.kubelet.node
    assert cluster.in_box(pod)


def test_scheduler_places_no_pod_that_wants_more_than_is_published(cluster: Cluster) -> None:
    cluster.create("greedy", {CPU: "1000000"})

    def refused() -> bool:
        conditions = cluster.pod("greedy")["status"].get("conditions", [])
        return any(f"Insufficient {CPU}" in one.get("message", "") for one in conditions)

    wait_for(refused, SOON_S, "the scheduler to refuse it")
    cluster.delete("greedy")


def test_published_numbers_and_the_pods_that_use_them_survive_a_restart_of_kubelet(cluster: Cluster, say: Say) -> None:
    before = cluster.published()
    uid = cluster.pod("lent")["metadata"]["uid"]
    seen: set[int | None] = set()
    for _ in range(2):
        cluster.kubelet.kill()
        cluster.kubelet.start()
        end_s = time.monotonic() + 15.0
        while time.monotonic() < end_s:
            seen.add(cluster.published())
            time.sleep(0.1)
    say(f"{CPU} was {before} before kubelet's restarts, and while it was looked at after them: {seen}")
    assert None not in seen
    assert 0 not in seen
    assert cluster.condition()["status"] == "True"
    pod = cluster.wait_running("lent")
    assert (pod["metadata"]["uid"], pod["status"]["phase"]) == (uid, "Running")
    assert cluster.in_box(pod)


def test_node_that_registers_anew_has_its_numbers_again(cluster: Cluster) -> None:
    """Somebody has deleted the Node: kubelet makes one, without anything of ours."""
    cluster.delete("lent")
    cluster.plane.call("DELETE", cluster.path)
    cluster.kubelet.kill()
    cluster.kubelet.start()
    wait_for(lambda: cluster.plane.exists(cluster.path), SOON_S, "the node to register anew")
    cluster.wait_published(lambda amount: amount > 0, "published again")


def test_nothing_is_published_below_what_pods_were_promised_but_0_when_nothing_is_lent(cluster: Cluster) -> None:
    cluster.order("1", cpu={"min_cores": 1.0})  # however busy this machine is
    cluster.wait_published(lambda amount: amount >= 1000, "the floor")
    cluster.create("promised", {CPU: "700"})
    cluster.wait_running("promised")
    cluster.order("2", cpu={"min_cores": 0.1, "reserve_cores": 1000.0})
    cluster.wait_published(lambda amount: amount == 700, "what the pod was promised, and no less")
    cluster.order("3", cpu={"reserve_cores": 1000.0}, colocation={"enabled": False})
    cluster.wait_published(lambda amount: amount == 0, "0")
    assert "disabled" in cluster.kubernetes()["why"]
    assert cluster.wait_running("promised")["status"]["phase"] == "Running"
    cluster.delete("promised")
    cluster.order("4")
    cluster.wait_published(lambda amount: amount > 0, "what can be lent")


# --- the policy -----------------------------------------------------------------------------------------------------


def reserve_shown(cluster: Cluster) -> str:
    return str(json.loads(cluster.proxy.http("/why")[1])["decision"]["cpu"]["bounds"]["reserve"])


def test_policy_of_the_annotation_takes_effect_within_seconds_and_is_reported(cluster: Cluster, say: Say) -> None:
    began_s = time.monotonic()
    cluster.order("7", cpu={"reserve_cores": 0.75})
    wait_for(lambda: reserve_shown(cluster) == "0.75", SOON_S, "the policy to be in force")
    say(f"a policy is in force after {time.monotonic() - began_s:.1f} s")
    report = wait_for(lambda: (found := cluster.report()).get("version") == "7" and found, SOON_S, "the report")
    assert report["inForce"] is True
    assert cluster.kubernetes()["policy"]["keys"] == ["cpu.reserve_cores"]


@pytest.mark.parametrize(
    ("version", "settings", "problem"),
    [
        pytest.param("8", {"cpu": {"reserve_cores": -1.0}}, "reserve_cores", id="bad-value"),
        pytest.param("9", {"proxy": {"engine": "grpc"}}, "only this node's own file may set it", id="not-its-to-set"),
    ],
)
def test_bad_policy_keeps_the_old_one_and_is_reported(
    cluster: Cluster, version: str, settings: Mapping[str, Any], problem: str
) -> None:
    cluster.order(version, **settings)
    report = wait_for(lambda: (found := cluster.report()).get("version") == version and found, SOON_S, "the report")
    assert (report["inForce"], report["instead"]) == (False, "7")
    assert problem in "".join(report["problems"])
    assert reserve_shown(cluster) == "0.75"
    assert any("policy is refused" in one for one in cluster.proxy.status()["problems"])


def test_policy_takes_force_and_ends_though_an_operator_has_made_a_mistake_in_a_dropin(cluster: Cluster) -> None:
    dropin = cluster.proxy.config_file.with_suffix(".d") / "site.toml"
    dropin.parent.mkdir()
    dropin.write_text("[cpu]\nreserve_core = 2\n")
    wait_for(lambda: cluster.proxy.status()["config"]["errors"], SOON_S, "the mistake to be seen")
    cluster.order("switch", cpu={"reserve_cores": 0.5})
    wait_for(lambda: reserve_shown(cluster) == "0.5", SOON_S, "the policy to be in force")
    report = wait_for(lambda: (found := cluster.report()).get("version") == "switch" and found, SOON_S, "the report")
    assert report["inForce"] is True
    cluster.order("7", cpu={"reserve_cores": 0.75})
    wait_for(lambda: reserve_shown(cluster) == "0.75", SOON_S, "the one before to be in force again")
    dropin.unlink()
    dropin.parent.rmdir()
    wait_for(lambda: not cluster.proxy.status()["config"]["errors"], SOON_S, "the mistake to be gone")
    assert reserve_shown(cluster) == "0.75"


def test_last_policy_holds_from_the_first_moment_without_an_api_server(cluster: Cluster) -> None:
    cluster.plane.kill_api()
    cluster.proxy.kill()
    cluster.proxy.start()
    wait_for(lambda: json.loads(cluster.proxy.http("/why")[1])["decision"], SOON_S, "a decision")
    assert reserve_shown(cluster) == "0.75"
    cluster.plane.start_api()
    wait_for(lambda: not cluster.kubernetes()["trouble"], POD_S, "the watch to go on")


# --- the API server goes and comes ----------------------------------------------------------------------------------


def test_node_without_an_api_server_starts_offline_pods_in_the_box_and_tells_later(cluster: Cluster, say: Say) -> None:
    cluster.order("10", cpu={"reserve_cores": 0.25})
    wait_for(lambda: reserve_shown(cluster) == "0.25", SOON_S, "the policy to be in force")
    cluster.plane.kill_api()
    began_s = time.monotonic()
    cluster.kubelet.add_pod(static_pod("static", labels=CLASS))
    pod = cluster.kubelet.wait_running("static")
    say(f"without an API server, a static pod runs after {time.monotonic() - began_s:.1f} s")
    places = of_process(cluster.client.pid_of(pod.containers["main"]))
    assert any("/offline/" in place for place in places.values())
    assert cluster.proxy.is_ready()
    wait_for(lambda: cluster.kubernetes()["trouble"], SOON_S, "the status to say that the API server is away")
    assert reserve_shown(cluster) == "0.25"
    cluster.plane.start_api()
    began_s = time.monotonic()
    wait_for(lambda: not cluster.kubernetes()["trouble"], POD_S, "all to go on")
    say(f"{time.monotonic() - began_s:.1f} s after the API server's return, all goes on")
    cluster.order("11")
    wait_for(lambda: reserve_shown(cluster) == "0.0", SOON_S, "no policy any more")
    cluster.kubelet.remove_pod("static")
    cluster.kubelet.wait_gone(pod)


def test_credential_that_kubelet_rotates_is_used_from_then_on(cluster: Cluster) -> None:
    """A new certificate and key, in the file's place; the control plane's own are as before."""
    node = cluster.kubelet.node
    cluster.plane.authority.sign(f"kubelet-{node}", f"/O=system:nodes/CN=system:node:{node}")
    cluster.order("12", cpu={"reserve_cores": 0.5})
    wait_for(lambda: cluster.report().get("version") == "12", SOON_S, "the report")
    cluster.order("13")


# --- eviction -------------------------------------------------------------------------------------------------------


def test_pod_whose_budget_lets_it_not_go_stays_and_the_next_victim_goes_with_events(
    cluster: Cluster, tmp_path: Path
) -> None:
    """By the daemon's own part, as `criproxy.pods.eviction` asks it: the first in rank first."""
    for name in ("kept", "next"):
        cluster.create(name, app=name)
    victims = [cluster.wait_running(name) for name in ("kept", "next")]
    with cluster.budget(app="kept"):
        assert cluster.evict_first(victims, tmp_path) == 1
        cluster.wait_gone("next")
        assert cluster.pod("kept")["metadata"].get("deletionTimestamp") is None
    wait_for(lambda: "EvictedByColocation" in cluster.events("Pod", "next"), SOON_S, "the event on the pod")
    wait_for(lambda: "EvictedByColocation" in cluster.events("Node", "next"), SOON_S, "the event on the node")
    kept_out = cluster.node()["metadata"]["annotations"]["colocation.criproxy.io/evicted"]
    assert victims[1]["metadata"]["uid"] in kept_out
    cluster.delete("kept")


def test_node_that_is_switched_off_evicts_its_pods_and_waits_for_their_budgets(cluster: Cluster) -> None:
    for name in ("waits", "goes"):
        cluster.create(name, app=name)
        cluster.wait_running(name)
    with cluster.budget(app="waits"):
        cluster.order("20", colocation={"enabled": False, "on_disable": "evict"})
        cluster.wait_gone("goes")

        def told() -> bool:
            found = cluster.proxy.events()
            return any(one["event"] == "eviction_waits" and one["pod"] == "default/waits" for one in found)

        wait_for(told, SOON_S, "the log to say that one waits")
        assert cluster.pod("waits")["metadata"].get("deletionTimestamp") is None
        assert cluster.wait_running("waits")["status"]["containerStatuses"][0]["restartCount"] == 0
    cluster.wait_gone("waits")  # without a budget it goes, at the next round
    cluster.order("21")
    cluster.wait_published(lambda amount: amount > 0, "lent again")


def test_node_whose_criproxy_is_away_lends_nothing_once_that_is_withdrawn(cluster: Cluster) -> None:
    """As criproxy-withdraw.timer does it, 15 minutes after criproxy's end."""
    command = [sys.executable, "-m", "criproxy", "withdraw", "--config", str(cluster.proxy.config_file)]
    env = {**os.environ, "PYTHONPATH": python_path()}
    beside = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (beside.returncode, cluster.published() == 0) == (1, False)
    assert "criproxy runs" in beside.stderr
    cluster.proxy.stop()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (cluster.published(), cluster.published(MEMORY)) == (0, 0)
    time.sleep(6.0)  # three of kubelet's own reports
    assert cluster.published() == 0
    cluster.proxy.start()
    cluster.wait_published(lambda amount: amount > 0, "lent again")


# --- what it costs --------------------------------------------------------------------------------------------------


def test_memory_and_time_of_a_daemon_with_kubernetes_are_told(cluster: Cluster, say: Say) -> None:
    """No bar here: benchmarks have those. It holds that the node's side does not spin."""
    ticks_before, began_s = cpu_s(cluster.proxy.pid), time.monotonic()
    time.sleep(20.0)
    used = (cpu_s(cluster.proxy.pid) - ticks_before) / (time.monotonic() - began_s)
    status = Path(f"/proc/{cluster.proxy.pid}/status").read_text()
    resident_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    say(f"with Kubernetes, criproxy has {resident_kib / 1024:.1f} MiB resident and takes {used:.2%} of a core")
    assert used < 0.5


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
