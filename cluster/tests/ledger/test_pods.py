"""What pods ask for as a whole, and what nodes lend."""

import time

import msgspec
import pytest

from criproxy_cluster.ledger import pods
from criproxy_cluster.ledger.desk import Seen
from criproxy_cluster.ledger.law import Ledger
from criproxy_cluster.ledger.pods import MOST_NAMES, PodObject, lent_by, pod_of
from criproxy_cluster.ledger.resources import PodResource, UnplacedResource
from criproxy_cluster.ledger.watching import Watches
from criproxy_cluster.objects import NodeObject
from criproxy_cluster.resources import NodeResource
from criproxy_cluster.vocabulary.watching import Item

CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"


def container(cpu, **more):
    return {"name": "c", "resources": {"requests": {CPU: cpu, "cpu": "8"}}, **more}


ALWAYS = {"restartPolicy": "Always"}
ASKED = {
    "containers together": ({"containers": [container("1k"), container("500")]}, 1500),
    "the largest init container": ({"initContainers": [container("4k"), container("3k")]}, 4000),
    "an init container beside the sidecar before it": (
        {"initContainers": [container("100", **ALWAYS), container("4k"), container("50", **ALWAYS)]},
        4100,
    ),
    "sidecars beside the containers": (
        {"initContainers": [container("100", **ALWAYS)], "containers": [container("1k")]},
        1100,
    ),
    "overhead": ({"containers": [container("1k")], "overhead": {CPU: "10"}}, 1010),
    "a part is rounded up": ({"containers": [container("200m")]}, 1),
    "only a limit": ({"containers": [{"resources": {"limits": {CPU: "7"}}}]}, 7),
    "what can't be read is nothing": ({"containers": [container("many"), container("5")]}, 5),
    "nothing": ({"containers": None}, 0),
}


def test_of_tens_of_thousands_of_names_those_that_are_lent_and_some_others_count():
    names = {f"a.example/c{index}": "1" for index in range(30_000)}
    spec = {"containers": [{"resources": {"requests": {**names, CPU: "5", MEMORY: "7"}}}]}
    pod_of(PodObject())
    before = cached()
    found = pod_of(msgspec.convert({"metadata": {"uid": "a"}, "spec": spec}, PodObject))
    assert len(found.amounts) <= MOST_NAMES + 2 and {(CPU, 5), (MEMORY, 7)} <= set(found.amounts)
    assert cached() == before, "nothing of that size is remembered"


def cached():
    return pods._remembered.cache_info().currsize


@pytest.mark.parametrize(("sidecars", "each"), [(1, 3000), (64, 45), (512, 4), (800, 1)])
def test_what_sidecars_ask_for_is_read_in_time_that_grows_with_the_text(sidecars, each):
    def asked(index):
        return {"restartPolicy": "Always", "resources": {"limits": {f"a.b/{index}-{one}": "1" for one in range(each)}}}

    made = msgspec.json.encode({"spec": {"initContainers": [asked(index) for index in range(sidecars)]}})
    assert len(made) <= 64 * 1024
    found = msgspec.json.decode(made, type=PodObject)
    least_s = float("inf")
    for _ in range(10):
        began_s = time.thread_time()
        pod_of(found)
        least_s = min(least_s, time.thread_time() - began_s)
    assert least_s <= 0.005


@pytest.mark.parametrize("quantity", [[1], {}, None, True, 1.5, "1" * 1000])
def test_a_quantity_of_any_kind_is_read_or_counts_as_nothing(quantity):
    spec = {"containers": [{"resources": {"requests": {CPU: quantity}}}]}
    assert pod_of(msgspec.convert({"spec": spec}, PodObject)).amounts in ((), ((CPU, 2),))


@pytest.mark.parametrize(("spec", "cpu"), ASKED.values(), ids=ASKED)
def test_a_pod_asks_for_what_kubernetes_counts(spec, cpu):
    found = pod_of(msgspec.convert({"metadata": {"uid": "u"}, "spec": spec}, PodObject))
    assert dict(found.amounts) == ({CPU: cpu} if cpu else {})


def test_a_pod_goes_by_its_uid_and_ends_by_its_phase():
    meta = {"uid": "u", "name": "x", "namespace": "d", "resourceVersion": "7"}
    raw = {"metadata": meta, "spec": {"nodeName": "n", "priority": 3}, "status": {"phase": "Failed"}}
    found = msgspec.convert(raw, PodObject)
    pod = pod_of(found)
    assert (pod.uid, pod.name, pod.namespace, pod.node, pod.priority, pod.ended) == ("u", "x", "d", "n", 3, True)
    assert (found.metadata.name, found.metadata.resource_version) == ("u", "7")


def test_pods_that_ask_for_the_same_share_one_record():
    first, second = (pod_of(msgspec.convert({"spec": {"containers": [container("1k")]}}, PodObject)) for _ in "ab")
    assert first.amounts is second.amounts


def test_a_node_lends_what_it_publishes_by_the_names_that_it_says():
    raw = {"metadata": {"name": "n"}, "status": {"allocatable": {CPU: "8k", MEMORY: "1Gi", "cpu": "8", "x.io/y": "1"}}}
    assert lent_by(msgspec.convert(raw, NodeObject)) == {CPU: 8000, MEMORY: 1 << 30}
    named = {"name": "n", "annotations": {"colocation.criproxy.io/publishes": "x.io/y"}}
    assert lent_by(msgspec.convert({**raw, "metadata": named}, NodeObject)) == {"x.io/y": 1}


def test_lists_and_watches_fill_the_ledger(log):
    ledger, seen = Ledger(), Seen()
    watches = Watches(None, ledger, seen, log)  # type: ignore[arg-type]
    node = msgspec.convert({"metadata": {"name": "n"}, "status": {"allocatable": {CPU: "8k"}}}, NodeResource)

    def told(event, uid, node=""):
        spec = {"nodeName": node, "containers": [container("1k")]}
        return Item(event, uid, "1", msgspec.convert({"metadata": {"uid": uid}, "spec": spec}, PodResource))

    watches._node(Item("LISTED", "n", "1", node))
    watches._nodes_listed({"n"})
    watches._pod(told("LISTED", "a", "n"))
    watches._pod(told("LISTED", "w"))
    watches._pods_listed({"a", "w"})
    watches._unplaced(Item("LISTED", "online", "1", UnplacedResource()))
    watches._unplaced_listed({"online"})
    assert not seen.missing and seen.unplaced == {"online"}
    assert ledger.free("n") == {CPU: 7000} and ledger.pod("w") is not None

    watches._pod(Item("DELETED", "a", "2"))
    watches._pod(Item("BOOKMARK", "", "3"))
    watches._unplaced(Item("DELETED", "online", "2"))
    assert ledger.free("n") == {CPU: 8000} and not seen.unplaced
    watches._pods_listed(set())
    watches._node(Item("DELETED", "n", "4"))
    assert ledger.pod("w") is None and ledger.free("n") is None
