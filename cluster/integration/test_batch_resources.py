"""What Kubernetes itself does with what offline pods ask for: quotas, LimitRanges, a resize, and applying a pod again.

README.md has it as a table, with what to do instead. None of it is the webhook's doing, and nothing of it can be helped
by it; a test that fails here says that Kubernetes has changed, and that the table has to.
"""

import json
import os
import subprocess
import sys
import time

import pytest

from cluster.integration.objects import CPU, MEMORY, PODS, pod, put_node, until
from integration.lab.cluster_side import Replica
from integration.lab.control_plane import ApiError
from integration.lab.criproxy import CHECKOUT
from integration.lab.process import LabError

pytestmark = pytest.mark.timeout(1200)  # a control plane takes its time on a busy machine

CACHED_S = 1.5
"""The admissions of quotas and of LimitRanges have caches."""
KEEPS = {"colocation.criproxy.io/keep-requests": "true"}
STRATEGIC = "application/strategic-merge-patch+json"


@pytest.fixture(scope="module", autouse=True)
def replica(plane):
    """The webhook answers."""
    made = Replica(plane, "replica")
    made.take_webhooks()
    made.start()

    def answers():
        try:
            plane.call("POST", f"{PODS}?dryRun=All", pod("probe"))
        except ApiError:
            return False
        return True

    try:
        until(answers)
        yield made
    finally:
        made.process.stop()


@pytest.fixture
def namespace(plane, request):
    """One of the test's own."""
    name = request.node.originalname.replace("_", "-")[-50:].strip("-")
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    until(lambda: plane.exists(f"/api/v1/namespaces/{name}/serviceaccounts/default"))
    return f"/api/v1/namespaces/{name}"


def refused(plane, method, path, body, **options):
    """What the API server says when it refuses."""
    with pytest.raises(ApiError) as error:
        plane.call(method, path, body, **options)
    return str(error.value)


def resources(made):
    return made["spec"]["containers"][0]["resources"]


# --- quotas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [f"requests.{CPU}", CPU, f"limits.{CPU}"])
def test_quota_takes_batch_cpu_and_never_counts_it(plane, name):
    where = f"/api/v1/namespaces/quota-{name.partition('.')[0].replace('/', '-')}"
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": where.rpartition("/")[2]}})
    until(lambda: plane.exists(f"{where}/serviceaccounts/default"))
    plane.call("POST", f"{where}/resourcequotas", {"metadata": {"name": "batch"}, "spec": {"hard": {name: "1"}}})
    counted = until(lambda: plane.call("GET", f"{where}/resourcequotas/batch")["status"])
    assert counted["hard"] == {name: "1"}, "the quota is taken without a word"
    time.sleep(CACHED_S)

    made = plane.call("POST", f"{where}/pods", pod("above", {"cpu": "2"}))

    assert resources(made)["requests"][CPU] == "2k", "a pod of two thousand times the quota is let in"
    time.sleep(CACHED_S)
    counted = plane.call("GET", f"{where}/resourcequotas/batch")["status"]
    assert counted.get("used", {}) == {}, "what is used of it, the quota never says"


def test_quota_counts_extended_resources_of_other_names(plane, namespace):
    """As those of the preset `crane`: they are not below kubernetes.io."""
    hard = {"requests.gocrane.io/cpu": "1"}
    plane.call("POST", f"{namespace}/resourcequotas", {"metadata": {"name": "crane"}, "spec": {"hard": hard}})
    until(lambda: plane.call("GET", f"{namespace}/resourcequotas/crane")["status"]["used"])
    time.sleep(CACHED_S)
    asking = pod("crane", {"gocrane.io/cpu": "2"}, labels={})
    asking["spec"]["containers"][0]["resources"]["limits"] = {"gocrane.io/cpu": "2"}

    assert "exceeded quota: crane" in refused(plane, "POST", f"{namespace}/pods", asking)


# --- a resize -------------------------------------------------------------------------------------------------------


def resize(requests):
    return {"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}}


def test_converted_pod_cannot_be_resized_and_one_that_keeps_its_requests_can(plane):
    put_node(plane, "lends", "8000")
    plane.call("POST", PODS, pod("converted", {"cpu": "1500m", "memory": "1Gi"}))
    until(lambda: plane.call("GET", f"{PODS}/converted")["spec"]["nodeName"])
    at = f"{PODS}/converted/resize"

    said = refused(plane, "PATCH", at, resize({"cpu": "2"}), content=STRATEGIC)
    assert "Pod QOS Class may not change" in said, "with a request of CPU it would be BestEffort no longer"
    said = refused(plane, "PATCH", at, resize({CPU: "2000"}), content=STRATEGIC)
    assert "only cpu and memory resources are mutable" in said, "what it does ask for is no CPU to Kubernetes"

    kept = pod("kept", {"cpu": "100m", "memory": "64Mi"})
    kept["metadata"]["annotations"] = KEEPS
    plane.call("POST", PODS, kept)
    until(lambda: plane.call("GET", f"{PODS}/kept")["spec"]["nodeName"])
    made = plane.call("PATCH", f"{PODS}/kept/resize", resize({"cpu": "200m"}), content=STRATEGIC)
    assert resources(made)["requests"] == {"cpu": "200m", "memory": "64Mi"}


# --- applying it again ----------------------------------------------------------------------------------------------


def convert(manifest, folder):
    """What `criproxy-cluster convert` makes of it."""
    (file := folder / "pod.json").write_text(json.dumps(manifest))
    command = [sys.executable, "-m", "criproxy_cluster", "convert", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "cluster")}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


@pytest.mark.parametrize("options", [[], ["--server-side"]], ids=["client-side", "server-side"])
def test_bare_offline_pod_is_applied_once_alone_unless_it_was_converted_before(plane, tmp_path, options):
    side = "server" if options else "client"

    def apply(text):
        return plane.kubectl("apply", *options, "-f", "-", stdin=text)

    bare = json.dumps(pod(f"bare-{side}", {"cpu": "1500m", "memory": "1Gi"}))
    apply(bare)
    with pytest.raises(LabError) as error:
        apply(bare)
    assert "pod updates may not change fields" in str(error.value), "apply wants the requests back that were converted"

    converted = convert(pod(f"converted-{side}", {"cpu": "1500m", "memory": "1Gi"}), tmp_path)
    apply(converted)
    apply(converted)


def test_deployment_of_offline_pods_is_applied_as_often_as_one_likes(plane):
    one = pod("any", {"cpu": "1500m"}, {"app": "batch", "colocation.criproxy.io/class": "offline"})
    template = {"metadata": {"labels": one["metadata"]["labels"]}, "spec": one["spec"]}
    spec = {"selector": {"matchLabels": {"app": "batch"}}, "template": template, "replicas": 1}
    made = json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "batch"}, "spec": spec})
    plane.kubectl("apply", "-f", "-", stdin=made)

    assert "unchanged" in plane.kubectl("apply", "-f", "-", stdin=made), "the webhook converts its pods, not itself"


# --- LimitRanges ----------------------------------------------------------------------------------------------------


def put_limits(plane, namespace, **limits):
    body = {"metadata": {"name": "limits"}, "spec": {"limits": [{"type": "Container", **limits}]}}
    plane.call("POST", f"{namespace}/limitranges", body)
    time.sleep(CACHED_S)


def test_limit_ranges_defaults_are_on_the_pod_before_the_webhook_sees_it(plane, namespace):
    put_limits(plane, namespace, default={"cpu": "2", "memory": "2Gi"}, defaultRequest={"cpu": "1", "memory": "1Gi"})

    made = plane.call("POST", f"{namespace}/pods", pod("silent"))
    assert resources(made) == {
        "requests": {CPU: "1k", MEMORY: str(1 << 30)},
        "limits": {CPU: "2k", MEMORY: str(2 << 30)},
    }, "a pod that asks for nothing asks for the defaults, of what nodes lend"
    made = plane.call("POST", f"{namespace}/pods", pod("asks", {"cpu": "100m"}))
    assert resources(made)["requests"] == {CPU: "100", MEMORY: str(1 << 30)}, "its author's own request stays"
    made = plane.call("POST", f"{namespace}/pods", pod("batch", {CPU: "3000", MEMORY: "4Gi"}))
    assert resources(made) == {"requests": {CPU: "3k", MEMORY: "4Gi"}}, "what nodes lend goes before the defaults"


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"min": {"cpu": "100m"}}, "minimum cpu usage per Container is 100m.  No request is specified"),
        ({"max": {"cpu": "4"}}, "maximum cpu usage per Container is 4.  No limit is specified"),
    ],
    ids=["minimum", "maximum"],
)
def test_limit_ranges_bound_is_checked_after_the_webhook_and_refuses_offline_pods(plane, limits, words):
    (kind,) = limits
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": f"bound-{kind}"}})
    namespace = f"/api/v1/namespaces/bound-{kind}"
    until(lambda: plane.exists(f"{namespace}/serviceaccounts/default"))
    put_limits(plane, namespace, **limits)

    said = refused(plane, "POST", f"{namespace}/pods", pod("within", {"cpu": "1"}))

    assert words in said, "of CPU itself, a converted pod has neither request nor limit"


def test_limit_range_of_batch_cpu_gives_it_to_online_pods_too(plane, namespace):
    put_limits(plane, namespace, default={CPU: "4000"})

    made = plane.call("POST", f"{namespace}/pods", pod("online", {"cpu": "1"}, labels={}))

    assert resources(made)["requests"] == {"cpu": "1", CPU: "4k"}, "an online pod then waits for a node that lends"
