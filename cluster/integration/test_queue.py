"""The real Kueue on a real control plane, with the Cohort that follows what nodes lend: the objects of examples/kueue.

Nodes are objects without a kubelet: this test ends their pods, and has them lend what a course says, but never less
than what pods there were promised, as criproxy does. Times are a tenth of those in force: the law's 5 minutes are 30
seconds, and a pod that waits for 6 s stands for one that waits for a minute.
"""

import re
import shlex
import time
from collections import Counter
from contextlib import contextmanager, suppress

import pytest
import yaml

from cluster.integration.objects import CPU, MEMORY, PODS, pod, put_node, until
from criproxy_cluster.vocabulary.names import SUSPENDED
from integration.lab.cluster_side import WEBHOOKS, Replica, install_with
from integration.lab.control_plane import ApiError
from integration.lab.criproxy import CHECKOUT
from integration.lab.kueue import QUEUE_NAME, Kueue

pytestmark = pytest.mark.timeout(1200)  # a control plane takes its time on a busy machine

EXAMPLES = CHECKOUT / "examples" / "kueue"
PAGE = CHECKOUT / "docs" / "kueue.md"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
COHORT = f"{KUEUE}/cohorts/lent"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
WORKLOADS = f"{KUEUE}/namespaces/default/workloads"
SCALE = 10.0
SCALED = f"""
import criproxy_cluster.quota.law as law, criproxy_cluster.quota.surplus as surplus
law.WINDOW_S /= {SCALE}; law.RISE_S /= {SCALE}; surplus.OVER_S /= {SCALE}
"""
LATE_S = 60.0 / SCALE
LAG_S = 5.0
"""So long after nodes lend less, Kueue may admit by what was: the keeper looks each second, and so does Kueue."""

NODES = [f"online-{number}" for number in range(4)]
LIFE_S = 6.0


@pytest.fixture(scope="module")
def kueue(plane):
    made = Kueue(plane, yaml.safe_load((EXAMPLES / "kueue-config.yaml").read_text()))
    made.start()
    plane.kubectl("apply", "--warnings-as-errors", "-f", str(EXAMPLES / "queues.yaml"))
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def arguments(plane, kueue):
    """The controller's, by the components."""
    return install_with(plane, "queue", "queue-suspend")


@pytest.fixture
def nodes(plane):
    for name in NODES:
        put_node(plane, name, "0", {"pool": "online"})
    yield NODES
    delete_jobs(plane)
    for name in NODES:
        plane.call("DELETE", f"/api/v1/nodes/{name}")


def delete_jobs(plane):
    plane.call("DELETE", f"{JOBS}?propagationPolicy=Background")
    plane.call("DELETE", f"{PODS}?gracePeriodSeconds=0")
    until(lambda: not plane.call("GET", WORKLOADS)["items"])


@pytest.fixture(scope="module")
def served(plane, arguments):
    made = Replica(plane, "replica")
    made.take_webhooks()
    return made


@contextmanager
def controlled(plane, served, arguments):
    """The webhook answers, and the controller keeps the Cohort."""
    served.start(before=SCALED, controller_arguments=arguments)
    try:
        until(lambda: answers(plane))
        yield
    finally:
        served.process.stop()


def answers(plane):
    with suppress(ApiError):
        return plane.call("POST", f"{PODS}?dryRun=All", pod("probe"))
    return None


def put_lent(plane, node, cores):
    table = {CPU: str(round(cores * 1000))}
    plane.merge(f"/api/v1/nodes/{node}/status", {"status": {"allocatable": table, "capacity": table}})


def lend(plane, cores):
    for name in NODES:
        put_lent(plane, name, cores / len(NODES))


def quota(plane):
    """Of the Cohort, in cores; None: there is none."""
    if not plane.exists(COHORT):
        return None
    (group,) = plane.call("GET", COHORT)["spec"]["resourceGroups"]
    text = str(group["flavors"][0]["resources"][0]["nominalQuota"])
    return float(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)


def make_job(plane, name, queue="team-b", requests=None):
    job = yaml.safe_load((EXAMPLES / "job.yaml").read_text())
    job["metadata"] = {"name": name, "labels": {QUEUE_NAME: queue}}
    job["spec"] |= {"parallelism": 1, "completions": 1, "ttlSecondsAfterFinished": 1}
    if requests:
        job["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] = requests
    plane.call("POST", JOBS, job)


def admitted(plane):
    """The Workloads that have quota and are not done, by their names."""
    return {one["metadata"]["name"]: one for one in plane.call("GET", WORKLOADS)["items"] if holds_quota(one)}


def holds_quota(workload):
    status = workload.get("status", {})
    finished = (one["type"] == "Finished" and one["status"] == "True" for one in status.get("conditions", ()))
    return "admission" in status and not any(finished)


def bound(plane):
    """The pods that have a node."""
    return [one for one in plane.call("GET", PODS)["items"] if one["spec"].get("nodeName")]


def job_s(workload):
    return workload["metadata"]["ownerReferences"][0]["name"]


FIXED = [f"fixed-{number}" for number in range(4)]
HIGH, LOW, MEAN = 16, 4, 10
FULL_S = 30.0
STEPS = (
    (FULL_S, HIGH),
    *((3, cores) for cores in (14, 12, 10, 8, 6)),
    (2 * FULL_S, LOW),
    *((3, cores) for cores in (8, 12)),
    (FULL_S, HIGH),
)
"""Seconds, and the cores that are lent meanwhile: a day's ebb. `MEAN` is what people would fix a quota at."""
WAITING = 10
"""Jobs of each queue that wait at any time."""

QUEUE_OF_FIXED = f"""
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {{name: fixed}}
spec: {{nodeLabels: {{pool: fixed}}}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {{name: fixed}}
spec:
  namespaceSelector: {{}}
  resourceGroups:
    - coveredResources: [cpu, memory]
      flavors:
        - name: fixed
          resources: [{{name: cpu, nominalQuota: {MEAN}}}, {{name: memory, nominalQuota: 1Ti}}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {{name: fixed, namespace: default}}
spec: {{clusterQueue: fixed}}
"""


class Side:
    """A queue, and nodes that lend by the course."""

    def __init__(self, plane, nodes, queue):
        self._plane, self._nodes, self._queue = plane, nodes, queue
        self._first_s, self._bound_s, self._made = {}, {}, 0
        self._known, self._lent, self._written = set(), [], {}
        self.waits_s, self.above = {}, []
        self.lag_s, self._over_s = 0.0, None

    def look(self, now_s, wanted, pods, workloads, *, promised):
        """`promised`: the quota, as it is now."""
        bound: Counter[str] = Counter()
        for one in pods:
            name, node = one["metadata"]["name"], one["spec"].get("nodeName")
            if not name.startswith(self._queue):
                continue
            self._first_s.setdefault(name, now_s)
            if node and name not in self._bound_s:
                self._bound_s[name] = now_s
                self.waits_s[name] = now_s - self._first_s[name]
            if node and one["status"].get("phase") == "Pending":
                if now_s - self._bound_s[name] > LIFE_S:
                    self._plane.merge(f"{PODS}/{name}/status", {"status": {"phase": "Succeeded"}})
                else:
                    bound[node] += 1
        lent = 0
        for index, node in enumerate(self._nodes):
            cores = max((wanted + index) // len(self._nodes), bound[node])
            lent += cores
            if self._written.get(node) != cores:
                put_lent(self._plane, node, cores)
                self._written[node] = cores
        self._over_s = None if promised <= lent else self._over_s or now_s
        if self._over_s is not None:
            self.lag_s = max(self.lag_s, now_s - self._over_s)
        since_s = now_s - LAG_S - 2 * self.lag_s  # Kueue hears of the quota as late as the quota of the nodes
        self._lent = [(at_s, cores) for at_s, cores in self._lent if at_s > since_s] + [(now_s, lent)]
        own = [one for one in workloads if one["spec"].get("queueName") == self._queue]
        holding = {one["metadata"]["name"] for one in own if holds_quota(one)}
        if holding - self._known:
            self.above.append(len(holding) - max(cores for _, cores in self._lent))
        self._known |= holding
        for _ in range(WAITING - sum("admission" not in one.get("status", {}) for one in own)):
            make_job(self._plane, f"{self._queue}-{self._made}", self._queue)
            self._made += 1

    def end(self, now_s):
        """Pods that wait still."""
        for name, first_s in self._first_s.items():
            self.waits_s.setdefault(name, now_s - first_s)

    @property
    def late_share(self):
        return sum(wait_s > LATE_S for wait_s in self.waits_s.values()) / len(self.waits_s)


def run_course(plane, sides):
    began_s, ends_s = time.monotonic(), 0.0
    for seconds, cores in STEPS:
        ends_s += seconds
        while (now_s := time.monotonic()) < began_s + ends_s:
            pods, workloads = (plane.call("GET", where)["items"] for where in (PODS, WORKLOADS))
            follows, fixed = sides
            follows.look(now_s, cores, pods, workloads, promised=quota(plane))
            fixed.look(now_s, cores, pods, workloads, promised=0)
            time.sleep(0.1)
    for side in sides:
        side.end(now_s)


@pytest.mark.alone
@pytest.mark.by_command
def test_what_is_admitted_keeps_to_what_is_lent_and_few_pods_wait(plane, served, arguments, nodes):
    """Beside it, at the same time, a queue with a quota that is fixed at the mean, on nodes that lend the same."""
    plane.kubectl("apply", "-f", "-", stdin=QUEUE_OF_FIXED)
    for name in FIXED:
        put_node(plane, name, "4000", {"pool": "fixed"})
    lend(plane, HIGH)
    try:
        with controlled(plane, served, arguments):
            until(lambda: quota(plane) == HIGH)
            follows, fixed = sides = Side(plane, NODES, "team-b"), Side(plane, FIXED, "fixed")
            run_course(plane, sides)
    finally:
        delete_jobs(plane)
        for name in FIXED:
            plane.call("DELETE", f"/api/v1/nodes/{name}")
        plane.call("DELETE", COHORT)

    print(f"the quota was above what is lent for {follows.lag_s:.1f} s at most")
    for name, side in (("follows", follows), ("fixed", fixed)):
        print(f"{name}: {len(side.waits_s)} pods, {side.late_share:.1%} waited > {LATE_S} s, above {max(side.above)}")
    assert max(follows.above) <= 0, "whenever something is admitted, all that is admitted is lent"
    assert max(fixed.above) > 0, "or the course shows nothing"
    assert len(follows.waits_s) >= 30 and len(fixed.waits_s) >= 30
    assert follows.late_share <= fixed.late_share / 10


def test_commands_of_the_page_as_they_are_written_have_a_job_admitted(plane, served, arguments, tmp_path, monkeypatch):
    """Of docs/kueue.md: its first block is commands, its second the user's kustomization, in a checkout."""
    commands, kustomization = re.findall(r"^```(?:sh|yaml)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)[:2]
    for name in ("cluster", "examples"):
        (tmp_path / name).symlink_to(CHECKOUT / name)
    users = tmp_path / "my-criproxy"
    users.mkdir()
    (users / "kustomization.yaml").write_text(kustomization)
    monkeypatch.chdir(tmp_path)
    put_node(plane, "lends", "4000")
    try:
        with controlled(plane, served, arguments):
            plane.call("DELETE", WEBHOOKS)  # the lab's goes by a URL, which no manifest takes away
            for command in commands.splitlines():
                program, *words = shlex.split(command.replace("NODE", "lends"), comments=True)
                assert program == "kubectl"
                plane.kubectl(*words)
                if "-k" in words:
                    served.take_webhooks()
                    until(lambda: answers(plane))
            until(lambda: quota(plane) == 4)
            until(lambda: len(admitted(plane)) == 1)
            until(lambda: len(bound(plane)) == 2)
    finally:
        delete_jobs(plane)
        plane.call("DELETE", "/api/v1/nodes/lends")
        plane.call("DELETE", COHORT)


def test_template_that_asks_for_batch_cpu_is_counted_in_cores(plane, served, arguments, nodes):
    lend(plane, 4)
    with controlled(plane, served, arguments):
        until(lambda: quota(plane) == 4)
        make_job(plane, "batch", requests={CPU: "3000", "kubernetes.io/batch-memory": "64Mi"})
        make_job(plane, "second", requests={CPU: "3000", "kubernetes.io/batch-memory": "64Mi"})
        (found,) = until(lambda: list(admitted(plane).values()))
        (assignment,) = found["status"]["admission"]["podSetAssignments"]
        assert assignment["flavors"] == {"cpu": "lent", "memory": "lent"}
        assert assignment["resourceUsage"] == {"cpu": "3", "memory": "64Mi"}
        until(lambda: [one["spec"].get("nodeName") for one in plane.call("GET", PODS)["items"]])
    plane.call("DELETE", COHORT)


def test_plain_pods_wait_in_their_queue_until_nodes_lend_enough_and_take_what_is_lent(
    plane, kueue, served, arguments, nodes
):
    """Kueue's integration `pod`, with its own webhook beside criproxy's."""
    kueue.take_pods()
    lend(plane, 4)
    labels = {"colocation.criproxy.io/class": "offline", QUEUE_NAME: "team-b"}
    with controlled(plane, served, arguments):
        until(lambda: quota(plane) == 4)
        for number in range(5):
            plane.call("POST", PODS, pod(f"plain-{number}", {"cpu": "1", "memory": "64Mi"}, labels))
        until(lambda: len(admitted(plane)) == 4 and len(bound(plane)) == 4)
        assert len(plane.call("GET", WORKLOADS)["items"]) == 5
        (assignment,) = next(iter(admitted(plane).values()))["status"]["admission"]["podSetAssignments"]
        assert assignment["flavors"] == {"cpu": "lent", "memory": "lent"}
        assert assignment["resourceUsage"] == {"cpu": "1", "memory": "64Mi"}
        requests = [one["spec"]["containers"][0]["resources"]["requests"] for one in bound(plane)]
        assert requests == [{CPU: "1k", MEMORY: str(64 << 20)}] * 4
        (waits,) = [one for one in plane.call("GET", PODS)["items"] if not one["spec"].get("nodeName")]
        assert {"name": "kueue.x-k8s.io/admission"} in waits["spec"]["schedulingGates"]
        lend(plane, 8)
        until(lambda: len(bound(plane)) == 5, 60.0)
    plane.call("DELETE", COHORT)


def test_team_s_own_part_goes_on_while_the_pool_is_below_its_use(plane, served, arguments, nodes):
    """`exclusive` has a flavor of its own."""
    put_node(plane, "own", "4000", {"pool": "team-a"})
    lend(plane, 8)
    try:
        with controlled(plane, served, ["controller", "--cohort=lent"]):
            until(lambda: quota(plane) == 8)
            for number in range(8):
                make_job(plane, f"b-{number}")
            until(lambda: len(admitted(plane)) == 8)
            lend(plane, 4)
            until(lambda: quota(plane) == 4)
            for number in range(4):
                make_job(plane, f"a-{number}", "team-a")
            until(lambda: len(admitted(plane)) == 12)
            flavors = Counter(
                one["status"]["admission"]["podSetAssignments"][0]["flavors"]["cpu"] for one in admitted(plane).values()
            )
            assert flavors == {"lent": 8, "exclusive": 4}
    finally:
        plane.call("DELETE", "/api/v1/nodes/own")
        plane.call("DELETE", COHORT)


def test_newest_workload_is_suspended_and_admitted_again_and_a_user_s_is_left_alone(plane, served, arguments, nodes):
    lend(plane, 8)
    with controlled(plane, served, arguments):
        until(lambda: quota(plane) == 8)
        for number in range(8):
            make_job(plane, f"runs-{number}")
            until(lambda number=number: len(admitted(plane)) == number + 1)
            time.sleep(1.1 if number == 6 else 0)  # Kueue writes whole seconds
        make_job(plane, "users")
        until(lambda: len(plane.call("GET", WORKLOADS)["items"]) == 9)
        (users,) = [one for one in plane.call("GET", WORKLOADS)["items"] if job_s(one) == "users"]
        plane.merge(f"{WORKLOADS}/{users['metadata']['name']}", {"spec": {"active": False}})

        nodes_lend = {CPU: "1000"}
        plane.merge(f"/api/v1/nodes/{NODES[0]}/status", {"status": {"allocatable": nodes_lend, "capacity": nodes_lend}})
        until(lambda: len(admitted(plane)) == 7, 60.0)
        assert "runs-7" not in {job_s(one) for one in admitted(plane).values()}, "the newest"
        assert until(lambda: plane.call("GET", f"{JOBS}/runs-7")["spec"]["suspend"])
        (workload,) = [one for one in plane.call("GET", WORKLOADS)["items"] if job_s(one) == "runs-7"]
        until(lambda: plane.call("GET", f"{WORKLOADS}/{workload['metadata']['name']}")["spec"]["active"])

        lend(plane, 8)
        until(lambda: "runs-7" in {job_s(one) for one in admitted(plane).values()}, 60.0)
        meta = plane.call("GET", f"{WORKLOADS}/{workload['metadata']['name']}")["metadata"]
        assert SUSPENDED not in (meta.get("annotations") or {})
        assert plane.call("GET", f"{WORKLOADS}/{users['metadata']['name']}")["spec"]["active"] is False
    plane.call("DELETE", COHORT)


def test_cohort_of_somebody_else_is_left_as_it_is_and_the_controller_says_so(plane, served, arguments, nodes):
    theirs = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Cohort",
        "metadata": {"name": "lent"},
        "spec": {
            "resourceGroups": [
                {
                    "coveredResources": ["cpu", "memory"],
                    "flavors": [
                        {
                            "name": "lent",
                            "resources": [
                                {"name": "cpu", "nominalQuota": "3"},
                                {"name": "memory", "nominalQuota": "3Gi"},
                            ],
                        }
                    ],
                }
            ]
        },
    }
    plane.call("PATCH", f"{COHORT}?fieldManager=admin", theirs, content="application/apply-patch+yaml")
    lend(plane, 8)
    with controlled(plane, served, arguments):
        until(lambda: "delete the Cohort, and it is made anew" in served.log.read_text())
        assert quota(plane) == 3
        plane.call("DELETE", COHORT)
        until(lambda: quota(plane) == 3 or quota(plane) == 8, 60.0)
    plane.call("DELETE", COHORT)
