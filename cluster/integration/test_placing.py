"""Where the real kube-scheduler puts offline pods, as it is shipped and with the profile of manifests/scheduler."""

from collections import Counter

import pytest
import yaml

from cluster.integration.objects import CPU, MEMORY, PODS, pod, put_node, until
from integration.lab.cluster_side import MANIFESTS, kustomization

pytestmark = pytest.mark.timeout(1200)  # a control plane takes its time on a busy machine

PROFILES = yaml.safe_load((MANIFESTS / "scheduler" / "kube-scheduler.yaml").read_text())["profiles"]
LENDS = {"small": 2000, "middle": 4000, "large": 16000}
"""Thousandths of a core."""


@pytest.fixture(scope="module")
def nodes(plane):
    for name, lends in LENDS.items():
        put_node(plane, name, str(lends))


@pytest.fixture
def placed(plane, nodes):
    """Where pods are put, one after the other."""
    made = []

    def place(number, requests, prefix, **spec):
        for index in range(number):
            name = f"{prefix}-{index}"
            made.append(name)
            plane.call("POST", PODS, pod(name, requests, labels={}, **spec))
            until(lambda name=name: plane.call("GET", f"{PODS}/{name}")["spec"]["nodeName"])
        return Counter(plane.call("GET", f"{PODS}/{name}")["spec"]["nodeName"] for name in made)

    yield place
    for name in made:
        plane.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")


COMPONENTS = ("metrics", "queue", "queue-suspend", "marked-only", "scheduler")


@pytest.mark.parametrize("order", [COMPONENTS, COMPONENTS[::-1]], ids=["as-listed", "the-other-way"])
def test_components_go_together_in_any_order(plane, order):
    made = list(yaml.safe_load_all(plane.kubectl("kustomize", str(kustomization(plane, *order)))))
    (deployment,) = [one for one in made if one["kind"] == "Deployment" and "controller" in one["metadata"]["name"]]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"][0] == "controller"
    assert set(container["args"][1:]) == {
        "--metrics-port=9464",
        "--cohort=lent",
        "--flavor=lent",
        "--suspends-per-hour=20",
    }


def test_scheduler_s_configuration_is_a_config_map_beside_the_scheduler(plane):
    before, made = (
        list(yaml.safe_load_all(plane.kubectl("kustomize", str(kustomization(plane, *components)))))
        for components in ((), ("scheduler",))
    )
    (configuration,) = [one for one in made if one not in before]
    assert len(made) == len(before) + 1, "all else stays as it was"
    assert configuration["metadata"] == {"name": "kube-scheduler-lent", "namespace": "kube-system"}
    assert configuration["data"].keys() == {"kube-scheduler.yaml", "kube-scheduler-1.20.yaml"}
    assert yaml.safe_load(configuration["data"]["kube-scheduler.yaml"])["profiles"] == PROFILES


OFFLINE = {CPU: "1000", MEMORY: "64Mi"}


def spread(placed):
    return [placed[name] for name in LENDS]


def test_stock_scheduler_fills_nodes_that_lend_least(plane, placed):
    plane.start_scheduler()
    found = placed(9, OFFLINE, "stock")
    print("as shipped:", spread(found))
    assert found["small"] == 2, "the smallest is full while the largest has room for a dozen more"


def test_profile_places_offline_pods_by_what_is_lent(plane, placed):
    plane.start_scheduler(PROFILES)
    found = placed(9, OFFLINE, "lent")
    print("with the profile:", spread(found))
    assert found["small"] <= 1 and found["large"] >= 6
    assert found["middle"] <= 2


def test_profile_follows_what_a_node_lends_now(plane, placed):
    plane.start_scheduler(PROFILES)
    plane.merge("/api/v1/nodes/large/status", lent("1000"))
    plane.merge("/api/v1/nodes/small/status", lent("16000"))
    try:
        until(lambda: plane.call("GET", "/api/v1/nodes/small")["status"]["allocatable"][CPU] == "16k")
        assert placed(6, OFFLINE, "moved")["small"] >= 4
    finally:
        plane.merge("/api/v1/nodes/large/status", lent(str(LENDS["large"])))
        plane.merge("/api/v1/nodes/small/status", lent(str(LENDS["small"])))


def lent(amount):
    return {"status": {kind: {CPU: amount} for kind in ("capacity", "allocatable")}}


def test_profile_scores_online_pods_as_ever(plane, placed):
    """By CPU and memory alone, of which the nodes have the same: what they lend, 2 to 16 cores, makes no difference."""
    plane.start_scheduler(PROFILES)
    assert sorted(placed(9, {"cpu": "500m", "memory": "512Mi"}, "online").values()) == [3, 3, 3]


def test_profile_places_koordinators_pods_that_name_its_scheduler(plane, placed):
    plane.start_scheduler(PROFILES)
    assert placed(3, OFFLINE, "koord", schedulerName="koord-scheduler")["large"] == 3
