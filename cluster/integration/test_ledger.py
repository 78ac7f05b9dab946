"""Two stock kube-schedulers on a real control plane fight for full nodes, with a ledger and without."""

import base64
import time

import grpc
import pytest

from cluster.integration.objects import CPU, PODS, pod, put_node, until
from criproxy_cluster.ledger import messages
from criproxy_cluster.ledger.grpc_door import SERVICE
from integration.lab import control_plane, ledger_side
from integration.lab.control_plane import ApiError, Authority, ControlPlane
from integration.lab.crowd import Crowd, start_scheduler
from integration.lab.ledger_side import LedgerReplica

pytestmark = pytest.mark.timeout(600)

SCHEDULERS = ("sched-0", "sched-1")
NODES = 20
LIFE_S = 15.0
ABSTAINED_S = 3.5
"""Of a new leader, and a little more."""

SETTLED_S = 3.0
LOOK_S = 15.0
TERM_S = 10.0
"""Within the 15 s for which a leader that is killed has its Lease."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ledger")
    made = ControlPlane(directory)
    try:
        made.start(lifecycle=False, scheduler=False)
        made.call("POST", "/api/v1/namespaces", {"metadata": {"name": "criproxy-system"}})
        until(lambda: made.exists("/api/v1/namespaces/default/serviceaccounts/default"))
        yield made
    finally:
        control_plane.end(directory)


@pytest.fixture(scope="module")
def crowd(plane):
    made = Crowd(plane, NODES, SCHEDULERS, LIFE_S)
    made.fill()
    made.start()
    yield made
    made.end()
    assert not made.errors


@pytest.fixture(scope="module")
def without(crowd):
    """What happens without a ledger: before there is one."""
    crowd.run(SETTLED_S)
    tally = crowd.run(LOOK_S)
    print(f"without: {tally}")
    return tally


@pytest.fixture(scope="module")
def replicas(plane, without):
    ledger_side.install(plane)
    first, second = (LedgerReplica(plane, name) for name in ("ledger-a", "ledger-b"))
    first.start()
    until(first.leads)
    second.start()
    until(first.is_ready)
    time.sleep(ABSTAINED_S)
    first.take_binds()
    yield first, second
    for one in (first, second):
        one.process.stop()


def test_without_a_ledger_many_pods_fail_for_good(without):
    assert without.failed_ratio > 0.05


def unanswered(plane):
    """Binds that the API server has done as nobody answered within a second, so far."""
    name = 'apiserver_admission_webhook_fail_open_count{name="ledger.colocation.criproxy.io"'
    lines = plane.kubectl("get", "--raw", "/metrics").splitlines()
    return sum(float(one.rpartition(" ")[2]) for one in lines if one.startswith(name))


def none_fails(crowd):
    return crowd.run(5.0).failed == 0


def test_with_a_ledger_none_fails_and_no_fewer_are_placed(plane, crowd, without, replicas):
    until(lambda: none_fails(crowd), 60.0)  # what was bound before may be refused long after, on a busy machine
    before, abstained = unanswered(plane), replicas[0].counted("abstained")
    tally = crowd.run(LOOK_S)
    missed, abstained = unanswered(plane) - before, replicas[0].counted("abstained") - abstained
    print(f"with: {tally}, {missed:.0f} binds not answered in time, the ledger abstained from {abstained:.0f}")
    assert tally.failed <= missed, "a busy machine answers late, and kubelet is the last guard then"
    assert tally.failed_ratio < 0.02
    assert tally.placed > 0.7 * without.placed


def test_only_the_one_that_leads_is_ready(replicas):
    first, second = replicas
    assert first.is_ready() and not second.is_ready()
    status, why = second.ask("/readyz")
    assert (status, why) == (503, b"criproxy: another replica leads\n")


def test_a_ledger_that_hangs_costs_no_scheduler_its_binds_and_comes_back(crowd, without, replicas):
    first, _ = replicas
    first.hang()
    tally = crowd.run(5.0)
    first.go_on()
    print(f"hangs: {tally}")
    assert tally.placed > 0.4 * without.placed * 5.0 / LOOK_S
    until(lambda: none_fails(crowd), 60.0)


def test_a_certificate_that_is_not_trusted_costs_no_scheduler_its_binds(plane, crowd, without, replicas, tmp_path):
    first, _ = replicas
    configuration = plane.call("GET", ledger_side.WEBHOOK)
    other = base64.b64encode(Authority(tmp_path).ca.read_bytes()).decode()
    configuration["webhooks"][0]["clientConfig"]["caBundle"] = other
    plane.call("PUT", ledger_side.WEBHOOK, configuration)
    tally = crowd.run(5.0)
    first.take_binds()
    print(f"not trusted: {tally}")
    assert tally.placed > 0.4 * without.placed * 5.0 / LOOK_S


def test_a_reservation_keeps_an_extender_s_scheduler_off_until_it_is_released(plane, replicas):
    """The extender says so before the pod is bound; then, the webhook has nothing to refuse."""
    first, _ = replicas
    spare = put_node(plane, "spare", "800")  # less than the pods of the crowd ask for
    channel = grpc_channel(plane, first)
    wish = messages.Wish(uid="u", namespace="default", name="another", node="spare", resources={CPU: 600})
    until(lambda: not call(channel, "Reserve", messages.ReserveRequest(wishes=[wish])).verdicts[0].why)
    extender = {
        "urlPrefix": f"https://localhost:{first.port}",
        "filterVerb": "filter",
        "nodeCacheCapable": True,
        "enableHTTPS": True,
        "tlsConfig": {"caFile": str(plane.authority.ca)},
    }
    scheduler = start_scheduler(plane, "sched-extended", [extender])
    plane.merge(spare, {"metadata": {"labels": {"spare": "yes"}}})
    made = pod("extended", {CPU: "500"}, schedulerName="sched-extended", nodeSelector={"spare": "yes"})
    made["spec"]["containers"][0]["resources"]["limits"] = {CPU: "500"}
    plane.call("POST", PODS, made)
    try:
        until(lambda: "node spare has 200 of" in str(plane.call("GET", f"{PODS}/extended")["status"]), 60.0)
        assert "nodeName" not in plane.call("GET", f"{PODS}/extended")["spec"]
        call(channel, "Release", messages.ReleaseRequest(uids=["u"]))
        plane.merge(spare, {"metadata": {"labels": {"changed": "true"}}})  # so that the scheduler looks again
        until(lambda: plane.call("GET", f"{PODS}/extended")["spec"]["nodeName"] == "spare", 90.0)
    finally:
        scheduler.kill()
        channel.close()
        plane.call("DELETE", f"{PODS}/extended", {"gracePeriodSeconds": 0})
        plane.call("DELETE", spare)


def grpc_channel(plane, replica):
    credentials = grpc.ssl_channel_credentials(plane.authority.ca.read_bytes())
    return grpc.secure_channel(f"localhost:{replica.grpc_port}", credentials)


def call(channel, name, request):
    read = {"Reserve": messages.ReserveResponse.FromString, "Release": messages.ReleaseResponse.FromString}[name]
    method = channel.unary_unary(f"/{SERVICE}/{name}", lambda one: one.SerializeToString(), read)
    return method(request, timeout=10)


def test_a_bind_by_the_older_path_is_refused_too_and_both_are_counted(plane, replicas):
    """POST .../bindings, which names the pod in its body."""
    first, _ = replicas
    spare = put_node(plane, "older", "800")  # less than the pods of the crowd ask for
    with grpc_channel(plane, first) as channel:
        wish = messages.Wish(uid="u", namespace="default", name="first", node="older", resources={CPU: 500})
        until(lambda: not call(channel, "Reserve", messages.ReserveRequest(wishes=[wish])).verdicts[0].why)
        call(channel, "Release", messages.ReleaseRequest(uids=["u"]))
    before = first.counted("refused")

    def bind(name):
        made = pod(name, {CPU: "500"}, schedulerName="nobody")
        made["spec"]["containers"][0]["resources"]["limits"] = {CPU: "500"}
        uid = plane.call("POST", PODS, made)["metadata"]["uid"]
        body = {"metadata": {"name": name, "uid": uid}, "target": {"kind": "Node", "name": "older"}}
        plane.call("POST", PODS.replace("/pods", "/bindings"), {"apiVersion": "v1", "kind": "Binding", **body})

    try:
        bind("older-1")
        with pytest.raises(ApiError, match="node older has 300 of"):
            bind("older-2")
        assert plane.call("GET", f"{PODS}/older-1")["spec"]["nodeName"] == "older"
        assert "nodeName" not in plane.call("GET", f"{PODS}/older-2")["spec"]
        assert first.counted("refused") > before
    finally:
        for name in ("older-1", "older-2"):
            plane.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        plane.call("DELETE", spare)


def test_a_leader_that_is_killed_is_followed_by_one_that_knows_as_much(crowd, without, replicas):
    first, second = replicas
    first.process.kill()
    second.take_binds()
    tally = crowd.run(TERM_S)
    print(f"killed: {tally}")
    assert tally.placed > 0.4 * without.placed * TERM_S / LOOK_S
    until(lambda: second.is_ready() and none_fails(crowd), 90.0)
