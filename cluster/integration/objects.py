"""What the tests on a real control plane put there and wait for."""

import time
from contextlib import suppress

from criproxy_cluster.vocabulary.times import rfc3339

POLICIES = "/apis/colocation.criproxy.io/v1alpha1/colocationpolicies"
PODS = "/api/v1/namespaces/default/pods"
CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"


def until(condition, seconds=30.0):
    """What the condition returns, once it is true; a key that is not there yet counts as false."""
    ends_s = time.monotonic() + seconds
    while True:
        with suppress(KeyError):
            if found := condition():
                return found
        assert time.monotonic() < ends_s, "it did not come to pass"
        time.sleep(0.05)


def pod(name, requests=None, labels=None, **spec):
    container = {"name": "c", "image": "busybox", "resources": {"requests": requests or {}}}
    meta = {"name": name, "labels": {"colocation.criproxy.io/class": "offline"} if labels is None else labels}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": {"containers": [container], **spec}}


def policy(name, match, settings):
    kind = {"kind": "ColocationPolicy", "apiVersion": "colocation.criproxy.io/v1alpha1", "metadata": {"name": name}}
    return {**kind, "spec": {"selector": {"matchLabels": match}, "settings": settings}}


def put_node(plane, name, lends="0", labels=None):
    node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "labels": labels or {}}}
    plane.call("POST", "/api/v1/nodes", node)
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "100", CPU: lends, MEMORY: "8Gi"}
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": conditions}}
    plane.merge(f"/api/v1/nodes/{name}/status", status)
    plane.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
    return f"/api/v1/nodes/{name}"


def ready(node, reason):
    now = rfc3339(time.time())
    made = {"type": "ColocationReady", "status": "True", "reason": reason, "lastHeartbeatTime": now}
    return {"status": {"conditions": [{"type": "Ready", "status": "True"}, made]}}
