import copy
import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.hooks.batch import asked_by, of_pod
from criproxy_cluster.vocabulary.names import (
    CLASS,
    EVICTED_FROM,
    EXTENDED_SPEC,
    KEEP_REQUESTS,
    PLUGIN,
    REQUIRED_PLUGINS,
    RESOURCES,
)
from criproxy_cluster.vocabulary.presets import EVERY_MARK, NAMES, OLDER
from criproxy_cluster.vocabulary.quantities import amount
from criproxy_cluster.webhook.admission import MAX_WARNING
from criproxy_cluster.webhook.conversion import (
    LEAST,
    MIRROR,
    ConversionError,
    ConversionSettings,
    converted,
    is_offline,
    left_for_virtual_nodes,
    warnings,
)
from criproxy_cluster.webhook.hardening import HardeningSettings
from criproxy_cluster.webhook.jsonpatch import difference

BATCH = ConversionSettings()
CPU, MEMORY = BATCH.names.cpu, BATCH.names.memory
ANNOTATIONS = [mark for mark in EVERY_MARK if mark.of == "annotation"]
KATALYST = {"millicpu": "1500", "memory": "1Gi"}


def pod(*containers, labels=None, annotations=None, owner=None, **spec):
    meta = {"name": "p", "labels": {CLASS: "offline"} if labels is None else labels}
    if annotations is not None:
        meta["annotations"] = annotations
    if owner:
        meta["ownerReferences"] = [{"kind": "Job", "uid": "other"}, {"kind": "Job", "uid": owner, "controller": True}]
    return {"metadata": meta, "spec": {"containers": list(containers) or [container()], **spec}}


def container(name="c", requests=None, limits=None):
    resources = {kind: table for kind, table in (("requests", requests), ("limits", limits)) if table is not None}
    return {"name": name, "resources": resources} if resources else {"name": name}


def resources(found, number=0, kind="containers"):
    return found["spec"][kind][number]["resources"]


def recorded(found):
    record = json.loads(found["metadata"]["annotations"][RESOURCES])
    return {**record.get("initContainers", {}), **record.get("containers", {})}


def applied(document, patch):
    """A JSON patch done by hand, for what `difference` makes."""
    document = copy.deepcopy(document)
    for change in patch:
        steps = [step.replace("~1", "/").replace("~0", "~") for step in change["path"].split("/")[1:]]
        if not steps:
            document = change["value"]
            continue
        place = document
        for step in steps[:-1]:
            place = place[int(step) if isinstance(place, list) else step]
        last = int(steps[-1]) if isinstance(place, list) else steps[-1]
        if change["op"] == "remove":
            del place[last]
        else:
            assert (change["op"] == "replace") == (isinstance(place, list) or last in place)
            place[last] = copy.deepcopy(change["value"])
    return document


# --- resources -------------------------------------------------------------------------------------------------------

AMOUNTS = {
    "as they are": ({"cpu": "1500m", "memory": "1Gi"}, {CPU: "1500", MEMORY: "1073741824"}),
    "whole and broken": ({"cpu": "0.5", "memory": "1.5Gi"}, {CPU: "500", MEMORY: "1610612736"}),
    "rounded up": ({"cpu": "10.1m", "memory": "2097152.5"}, {CPU: "11", MEMORY: "2097153"}),
    "bare numbers": ({"cpu": 2, "memory": 2097152}, {CPU: "2000", MEMORY: "2097152"}),
    "exponents": ({"cpu": "1e1", "memory": "2E6"}, {CPU: "10000", MEMORY: "2000000"}),
    "batch already": ({CPU: "1k", MEMORY: "1Gi"}, {CPU: "1k", MEMORY: "1Gi"}),
    "another system's": ({"gocrane.io/cpu": "2", "gocrane.io/memory": "4Mi"}, {CPU: "2000", MEMORY: "4194304"}),
    "batch before cpu, which a LimitRange adds": (
        {CPU: "1000", "cpu": "7", MEMORY: "4Mi", "memory": "1Gi"},
        {CPU: "1000", MEMORY: "4Mi"},
    ),
    "another system's before cpu, which a LimitRange adds": (
        {"gocrane.io/cpu": "2", "cpu": "100m", "gocrane.io/memory": "4Mi", "memory": "1Gi"},
        {CPU: "2000", MEMORY: "4194304"},
    ),
    "others stay": (
        {"cpu": "1", "memory": "4Mi", "ephemeral-storage": "1Gi", "nvidia.com/gpu": "1"},
        {CPU: "1000", MEMORY: "4194304", "ephemeral-storage": "1Gi", "nvidia.com/gpu": "1"},
    ),
}


@pytest.mark.parametrize(("asked", "wanted"), AMOUNTS.values(), ids=AMOUNTS)
def test_an_amount_of_cpu_and_memory_becomes_what_nodes_lend(asked, wanted):
    found = converted(pod(container(requests=asked, limits=asked)), BATCH)

    assert resources(found) == {"requests": wanted, "limits": wanted}


def test_requests_and_limits_are_converted_each_and_a_missing_request_is_the_limit():
    found = converted(pod(container(requests={"cpu": "1"}, limits={"cpu": "2", "memory": "1Gi"})), BATCH)

    assert resources(found) == {
        "requests": {CPU: "1000", MEMORY: "1073741824"},
        "limits": {CPU: "2000", MEMORY: "1073741824"},
    }


@pytest.mark.parametrize("kind", ["initContainers", "containers", "ephemeralContainers"])
def test_containers_of_every_kind_are_converted(kind):
    one = container("x", requests={"cpu": "1", "memory": "4Mi"})
    found = converted(pod(**{kind: [one, {**copy.deepcopy(one), "name": "y", "restartPolicy": "Always"}]}), BATCH)

    assert [resources(found, n, kind)["requests"] for n in (0, 1)] == [{CPU: "1000", MEMORY: "4194304"}] * 2
    assert converted(found, BATCH) == found


def test_record_says_which_container_is_which():
    """As Kubernetes counts an init container's amounts beside the others, not with them."""
    fetch, log = container("fetch", requests={"cpu": "8"}), {**container("a-log"), "restartPolicy": "Always"}
    found = converted(pod(container("main", requests={"cpu": "1"}), initContainers=[fetch, log]), BATCH)

    record = json.loads(found["metadata"]["annotations"][RESOURCES])
    assert record["containers"] == {"main": {"requests": {"cpu": "1", "memory": "4Mi"}}}
    assert list(record["initContainers"].items()) == [
        ("fetch", {"requests": {"cpu": "8"}}),
        ("a-log", {"restartPolicy": "Always"}),
    ]
    asked = asked_by(found["metadata"]["annotations"])
    assert [one.kind.value for one in asked.values()] == ["init container", "sidecar", "container"]
    assert of_pod(asked).cpu_shares == 8192
    assert converted(found, BATCH) == found, "what was recorded is believed of init containers, too"


def test_a_limit_range_s_limit_is_not_below_an_extended_request():
    """It gives a container limits of CPU and memory that has none, whatever its requests are."""
    added = {"cpu": "500m", "memory": "512Mi"}
    found = converted(pod(container(requests={CPU: "2000", MEMORY: "4Gi", **added}, limits=added)), BATCH)

    assert resources(found) == {"requests": {CPU: "2000", MEMORY: "4Gi"}, "limits": {}}
    assert recorded(found)["c"] == {"requests": {"cpu": "2000m", "memory": "4294967296"}}


def test_huge_pages_stay_valid_beside_a_request_of_nothing():
    asked = {"cpu": "1", "memory": "4Mi", "hugepages-2Mi": "4Mi"}
    found = converted(pod(container(requests=asked, limits=asked)), BATCH)

    lent = {CPU: "1000", MEMORY: "4194304", "hugepages-2Mi": "4Mi"}
    assert resources(found) == {"requests": {**lent, "cpu": "0", "memory": "0"}, "limits": lent}
    assert recorded(found)["c"]["requests"] == {"cpu": "1", "memory": "4Mi"}


def test_what_was_asked_for_stays_in_the_annotation():
    asked = {"cpu": "1.5", "memory": "1Gi"}
    found = converted(pod(container(requests=asked, limits={"cpu": "2"}), container("d", {CPU: "250"})), BATCH)

    assert recorded(found) == {
        "c": {"requests": asked, "limits": {"cpu": "2"}},
        "d": {"requests": {"cpu": "250m"}},
    }


def test_a_pod_that_asks_for_nothing_asks_for_the_least():
    found = converted(pod(container(), container("d", {"memory": "0"})), BATCH)

    assert resources(found)["requests"] == {CPU: "10", MEMORY: "4194304"}
    assert "limits" not in resources(found)
    assert recorded(found)["c"]["requests"] == {what: text for what, (text, _) in LEAST.items()}


@pytest.mark.parametrize("nothing", [None, {}])
def test_resources_that_say_nothing_ask_for_the_least(nothing):
    before = pod({"name": "c", "resources": nothing})
    found = converted(before, BATCH)

    assert resources(found)["requests"] == {CPU: "10", MEMORY: "4194304"}
    assert resources(before) == nothing


def test_what_does_not_change_is_not_copied():
    before = pod({"name": "c", "env": [{"name": "A", "value": "a"}]})

    assert converted(before, BATCH)["spec"]["containers"][0]["env"] is before["spec"]["containers"][0]["env"]


def test_a_limit_of_nothing_is_not_below_the_least_request():
    found = converted(pod(container(limits={"cpu": "0"})), BATCH)

    assert resources(found)["limits"] == {CPU: "10"}
    assert resources(found)["requests"][CPU] == "10"


def test_names_that_may_not_differ_have_one_amount_in_whole_cores():
    crane = ConversionSettings(names=NAMES["crane"])
    found = converted(pod(container(requests={"cpu": "1500m", "memory": "4Mi"}, limits={"cpu": "4"})), crane)

    both = {"gocrane.io/cpu": "2", "gocrane.io/memory": "4194304"}
    assert resources(found) == {"requests": both, "limits": both}
    assert recorded(found)["c"] == {"requests": {"cpu": "1500m", "memory": "4Mi"}, "limits": {"cpu": "4"}}


REFUSED = {
    "a part of a thousandth": ({CPU: "200m"}, 'for 0.2 cores write "200"'),
    "cores for thousandths": ({CPU: "2"}, 'for 2 cores write "2000"'),
    "a fraction of cores for thousandths": ({CPU: "2.5"}, 'for 2.5 cores write "2500"'),
    "a part of a whole core": ({"gocrane.io/cpu": "500m"}, 'write "1"'),
    "thousandths for cores": ({"gocrane.io/cpu": "8000"}, 'for 8 cores write "8"'),
    "thousandths for plain cores": ({"cpu": "5000"}, 'for 5 cores write "5"'),
    "bytes for MiB": ({MEMORY: "512"}, 'for 512 MiB write "512Mi"'),
    "thousandths of bytes": ({"memory": "512m"}, 'for 512 MiB write "512Mi"'),
    "negative": ({"cpu": "-1"}, "write 0 or more"),
    "no quantity": ({"cpu": "two"}, "is no quantity"),
    "a truth": ({"cpu": True}, "is no quantity"),
    "a list": ({"cpu": [1]}, "is no quantity"),
}


@pytest.mark.parametrize(("asked", "remedy"), REFUSED.values(), ids=REFUSED)
def test_a_quantity_that_cannot_be_meant_is_refused_with_the_remedy(asked, remedy):
    with pytest.raises(ConversionError) as refused:
        converted(pod(container("main", limits=asked)), BATCH)

    assert remedy in str(refused.value)
    assert "spec.containers[0] (main).resources.limits[" in str(refused.value)


def marked(requests=None, spec=None):
    annotations = {} if spec is None else {EXTENDED_SPEC: json.dumps({"containers": {"c": {"requests": spec}}})}
    return pod(container(requests=requests), annotations=annotations)


BAD_EXTENDED = {
    "in the container": marked({CPU: "2 cores"}),
    "of another system's names": marked({"gocrane.io/cpu": "2 cores"}),
    "null in the container": marked({CPU: None}),
    "in the annotation": marked(spec={CPU: "2 cores"}),
    "null in the annotation": marked(spec={CPU: None}),
}


@pytest.mark.parametrize("recorded_before", [False, True], ids=["new", "recorded"])
@pytest.mark.parametrize("bad", BAD_EXTENDED.values(), ids=BAD_EXTENDED)
def test_an_extended_quantity_that_is_none_is_refused_in_words(bad, recorded_before):
    bad = copy.deepcopy(bad)
    if recorded_before:
        record = {"containers": {"c": {"requests": {"cpu": "2"}}}}
        bad["metadata"]["annotations"][RESOURCES] = json.dumps(record)

    with pytest.raises(ConversionError):
        converted(bad, BATCH)


def test_resources_of_the_whole_pod_are_refused():
    with pytest.raises(ConversionError, match="for its containers"):
        converted(pod(resources={"requests": {"cpu": "1"}}), BATCH)


MALFORMED = {
    "containers": {"containers": {"name": "c"}},
    "container": {"containers": ["c"]},
    "resources": {"containers": [{"resources": "1"}]},
    "requests": {"containers": [{"resources": {"requests": [1]}}]},
    "tolerations": {"tolerations": "all"},
    "affinity": {"affinity": [1]},
    "anti-affinity": {"affinity": {"podAntiAffinity": [1]}},
    "a term of it": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [1]}}},
    "too many": {"containers": [{}] * 1000},
}


@pytest.mark.parametrize("spec", MALFORMED.values(), ids=MALFORMED)
def test_a_pod_of_another_shape_is_refused_in_words(spec):
    with pytest.raises(ConversionError):
        converted({**pod(owner="u"), "spec": spec}, BATCH)


DRIVER = {"labels": {CLASS: "offline", "spark-role": "driver"}}


@pytest.mark.parametrize(
    "kept",
    [{"annotations": {KEEP_REQUESTS: "true"}}, {**DRIVER, "annotations": {KEEP_REQUESTS: "true"}}],
    ids=["annotated", "annotated spark driver"],
)
def test_a_pod_that_keeps_its_requests_is_offline_all_the_same(kept):
    before = pod(container(requests={"cpu": "1"}), **copy.deepcopy(kept))
    forged = json.dumps({"containers": {"c": {"requests": {"cpu": "256", CPU: "256000"}}}})
    before["metadata"].setdefault("annotations", {}).update({RESOURCES: forged, EXTENDED_SPEC: forged})
    found = converted(before, BATCH)

    assert found["spec"]["containers"] == before["spec"]["containers"]
    assert found["spec"]["priorityClassName"] == BATCH.priority_class
    assert asked_by(found["metadata"]["annotations"]) == {}
    assert found["metadata"]["annotations"][RESOURCES] == '{"containers":{}}', "a mark for the node, and no request"


@pytest.mark.parametrize("mark", EVERY_MARK, ids=lambda mark: f"{mark.of} {mark.key}")
def test_a_spark_driver_runs_online_with_its_own_requests(mark):
    record = json.dumps({"containers": {"c": {"requests": {"cpu": "256"}}}})
    meta = {"labels": {"spark-role": "driver", "app": "pi"}, "annotations": {RESOURCES: record, "its": "own"}}
    meta[f"{mark.of}s"][mark.key] = mark.value
    before = pod(container(requests={"cpu": "1"}), **copy.deepcopy(meta))
    found = converted(before, BATCH)

    assert found == {**before, "metadata": {**before["metadata"], **found["metadata"]}}, "all else is as it was"
    assert found["metadata"]["labels"] == {"spark-role": "driver", "app": "pi"}
    assert found["metadata"]["annotations"] == {"its": "own"}
    assert not is_offline(found)
    (said,) = warnings(before, BATCH)
    assert KEEP_REQUESTS in said
    assert len(said) <= 240


def test_a_record_that_an_author_has_forged_beside_kept_requests_is_not_left():
    forged = {KEEP_REQUESTS: "true", RESOURCES: '{"containers": {"c": {"requests": {"cpu": "256"}}}}'}
    found = converted(pod(container(), annotations=forged), BATCH)
    assert found["metadata"]["annotations"][RESOURCES] == '{"containers":{}}'


def test_overhead_stays_with_a_warning():
    before = pod(overhead={"cpu": "250m"}, runtimeClassName="kata")

    assert converted(before, BATCH)["spec"]["overhead"] == {"cpu": "250m"}
    assert "RuntimeClass" in warnings(before, BATCH)[0]
    assert warnings(pod(overhead={CPU: "250"}), BATCH) == ()
    assert warnings(pod(), BATCH) == ()


def test_pod_whose_requests_an_autoscaler_has_written_is_converted_with_a_warning():
    updated = pod(annotations={"vpaUpdates": "Pod resources updated by sort: container 0: cpu request"})

    (warning,) = warnings(updated, BATCH)
    assert "updateMode: Off" in warning and len(warning) <= MAX_WARNING
    assert warnings(converted(updated, BATCH), BATCH) == (warning,), "it is asked about a second time"
    updated["metadata"]["annotations"][KEEP_REQUESTS] = "true"
    assert warnings(updated, BATCH) == ()


@pytest.mark.parametrize("names", OLDER, ids=lambda names: names.cpu)
def test_names_that_a_system_had_before_are_converted(names):
    asking = {names.cpu: "1500", names.memory: "1Gi"}

    found = converted(pod(container(requests=asking, limits=asking)), BATCH)

    amounts = {CPU: "1500", MEMORY: str(1 << 30)}
    assert resources(found) == {"requests": amounts, "limits": amounts}, "no node has the older names"
    assert converted(found, BATCH) == found


@pytest.mark.parametrize("mark", ANNOTATIONS, ids=lambda mark: mark.key)
@pytest.mark.parametrize("labels", [{}, {"labels": {}}, {"labels": {"app": "pi"}}], ids=["none", "empty", "others"])
def test_pod_that_an_annotation_alone_marks_is_converted(mark, labels):
    before = pod(container(requests={"cpu": "1"}), labels={}, annotations={mark.key: mark.value})
    del before["metadata"]["labels"]
    before["metadata"].update(copy.deepcopy(labels))

    found = converted(before, BATCH)

    assert resources(found)["requests"][CPU] == "1000"
    assert found["metadata"]["labels"] == {**labels.get("labels", {}), CLASS: "offline"}, "nodes know no other mark"
    assert found["metadata"]["annotations"][mark.key] == mark.value
    assert converted(found, BATCH) == found
    assert warnings(before, BATCH) == ()
    assert left_for_virtual_nodes(before, "why", BATCH)["metadata"]["labels"][CLASS] == "offline"


@pytest.mark.parametrize("mark", ANNOTATIONS, ids=lambda mark: mark.key)
def test_another_value_of_such_an_annotation_is_no_mark(mark):
    before = pod(container(requests={"cpu": "1"}), labels={}, annotations={mark.key: f"{mark.value}x"})
    assert converted(before, BATCH) == before


def test_katalyst_s_pod_asks_for_what_nodes_publish():
    asked = {f"resource.katalyst.kubewharf.io/reclaimed_{what}": amount for what, amount in KATALYST.items()}
    marked = {"katalyst.kubewharf.io/qos_level": "reclaimed_cores"}
    before = pod(container(requests=asked, limits=asked), labels={}, annotations=marked)
    wanted = {CPU: "1500", MEMORY: str(1 << 30)}
    assert resources(converted(before, BATCH)) == {"requests": wanted, "limits": wanted}


@pytest.mark.parametrize("name", [name for names in (*NAMES.values(), *OLDER) for name, _, _ in names.rows])
def test_unmarked_pod_that_asks_for_what_nodes_lend_is_said_with_the_remedy(name):
    (words,) = warnings(pod(container(requests={name: "2000"}), labels={}), BATCH)
    assert words.startswith(f"it asks for {name}") and f"{CLASS}: offline" in words


@given(
    requests=st.fixed_dictionaries(
        {}, optional={"cpu": st.sampled_from(["1", "2500m"]), "memory": st.just("2Mi"), CPU: st.just("1000")}
    )
)
def test_pods_of_one_owner_are_equal_and_no_spread_or_pod_affinity_is_added(requests):
    """A scheduler that scores equal pods once (KEP-5598) goes by their values; these two would keep it from it."""
    one, other = (
        converted({**made, "metadata": {**made["metadata"], "name": name, "uid": name}}, BATCH)
        for name, made in ((name, pod(container(requests=requests), owner="job")) for name in ("a", "b"))
    )

    assert one["spec"] == other["spec"]
    assert one["metadata"]["annotations"] == other["metadata"]["annotations"]
    assert one["metadata"]["labels"] == other["metadata"]["labels"]
    assert "topologySpreadConstraints" not in one["spec"]
    assert one["spec"].get("affinity", {}).keys() <= {"nodeAffinity"}


# --- who, and where --------------------------------------------------------------------------------------------------

ONLINE = {
    "without a mark": pod(labels={}),
    "without labels": {"metadata": {"name": "p"}, "spec": {"containers": [container()]}},
    "with another class": pod(labels={CLASS: "online"}),
    "the copy of a static pod": pod(annotations={MIRROR: "x"}),
}


@pytest.mark.parametrize("before", ONLINE.values(), ids=ONLINE)
def test_what_is_not_offline_stays_as_it_is(before):
    assert converted(before, BATCH) == before


def test_koordinator_s_manifest_works_unchanged():
    """Shaped as Koordinator's own: the label, a class, batch resources, and the annotation that its webhook writes."""
    amounts = {CPU: "1k", MEMORY: "1Gi"}
    spec = json.dumps({"containers": {"c": {"requests": amounts, "limits": amounts}}})
    before = pod(
        container(requests=amounts, limits=amounts),
        labels={"koordinator.sh/qosClass": "BE", "koordinator.sh/priority": "5500"},
        annotations={EXTENDED_SPEC: spec},
        priorityClassName="koord-batch",
        priority=5500,
        preemptionPolicy="Never",
        schedulerName="koord-scheduler",
    )
    found = converted(before, BATCH)

    assert found["metadata"]["labels"][CLASS] == "offline"
    assert found["metadata"]["annotations"][EXTENDED_SPEC] == spec
    assert resources(found)["limits"] == amounts
    kept = ("priorityClassName", "priority", "schedulerName")
    assert [found["spec"][name] for name in kept] == ["koord-batch", 5500, "koord-scheduler"]
    assert recorded(found) == {
        "c": {"requests": {"cpu": "1000m", "memory": "1073741824"}, "limits": {"cpu": "1000m", "memory": "1073741824"}}
    }


def test_koordinator_s_annotation_speaks_for_a_container_that_says_nothing():
    spec = json.dumps({"containers": {"c": {"requests": {CPU: "500"}, "limits": {CPU: "1000"}}}})
    found = converted(pod(container(), container("d", {"cpu": "1"}), annotations={EXTENDED_SPEC: spec}), BATCH)

    assert (resources(found)["requests"][CPU], resources(found)["limits"][CPU]) == ("500", "1000")
    assert resources(found, 1)["requests"][CPU] == "1000"


def test_koordinator_s_annotation_speaks_for_a_container_to_which_a_limit_range_has_added():
    spec = json.dumps({"containers": {"c": {"requests": {CPU: "500"}}}})
    added = {"cpu": "2", "memory": "4Mi"}
    found = converted(pod(container(requests=added, limits=added), annotations={EXTENDED_SPEC: spec}), BATCH)

    assert resources(found) == {"requests": {CPU: "500", MEMORY: "4194304"}, "limits": {MEMORY: "4194304"}}


def test_koordinator_s_annotation_that_cannot_be_read_is_refused():
    with pytest.raises(ConversionError, match="extended-resource-spec"):
        converted(pod(annotations={EXTENDED_SPEC: "{"}), BATCH)


NEVER = {"preemptionPolicy": "Never"}
PRIORITIES = {
    "none": ({}, "ours"),
    "the default": ({"priority": 0}, "ours"),
    "a default class": ({"priorityClassName": "normal", "priority": 1000}, "ours"),
    "above online": ({"priorityClassName": "production", "priority": 9500, **NEVER}, "ours"),
    "a system's, unresolved": ({"priorityClassName": "system-node-critical"}, "ours"),
    "koordinator's batch": ({"priorityClassName": "koord-batch", "priority": 5000, **NEVER}, "koord-batch"),
    "koordinator's mid": ({"priorityClassName": "koord-mid", "priority": 7999, **NEVER}, "koord-mid"),
    "koordinator's batch, which preempts": ({"priorityClassName": "koord-batch", "priority": 5000}, "ours"),
    "koordinator's mid, which preempts": ({"priorityClassName": "koord-mid", "priority": 7999}, "ours"),
    "below all": ({"priorityClassName": "low", "priority": -100}, "low"),
    "unresolved": ({"priorityClassName": "koord-batch"}, "koord-batch"),
}


@pytest.mark.parametrize(("spec", "wanted"), PRIORITIES.values(), ids=PRIORITIES)
def test_a_priority_that_could_preempt_online_pods_is_replaced(spec, wanted):
    found = converted(pod(**{"preemptionPolicy": "PreemptLowerPriority", **spec}), BATCH)["spec"]

    if wanted == "ours":
        assert found["priorityClassName"] == BATCH.priority_class
        assert "priority" not in found and "preemptionPolicy" not in found, "the API server fills them in"
    else:
        assert (found["priorityClassName"], found.get("priority")) == (wanted, spec.get("priority"))


def test_author_hears_of_a_class_for_offline_pods_that_preempts_online_ones():
    (said,) = warnings(pod(priorityClassName="koord-batch", priority=5000), BATCH)
    assert "koord-batch may preempt online pods" in said and "preemptionPolicy: Never" in said
    assert not warnings(pod(priorityClassName="koord-batch", priority=5000, **NEVER), BATCH)


def test_author_hears_of_capabilities_that_nodes_cut_as_of_a_service_mesh_s_init_container():
    def adding(name, *capabilities):
        return {"name": name, "securityContext": {"capabilities": {"add": list(capabilities)}}}

    mesh = pod(adding("c", "CHOWN", "CAP_KILL"), initContainers=[adding("istio-init", "NET_ADMIN", "NET_RAW")])
    (said,) = warnings(mesh, BATCH)
    assert said.startswith("spec.initContainers[0] (istio-init) adds NET_ADMIN, which nodes cut")
    assert "CNI plugin" in said and "hardening.capabilities" in said and len(said) <= MAX_WARNING
    assert "adds ALL" in warnings(pod(adding("c", "all")), BATCH)[0]
    assert warnings({**mesh, "metadata": {**mesh["metadata"], "labels": {}}}, BATCH) == ()

    mesh["metadata"]["namespace"] = "drivers"
    assert warnings(mesh, ConversionSettings(hardening=HardeningSettings(trusted=frozenset(["drivers"])))) == ()

    (longest,) = warnings(pod(adding("c" * 63, *(f"{number}" * 64 for number in range(10)))), BATCH)
    assert len(longest) <= MAX_WARNING


def test_a_pod_tolerates_nodes_that_are_there_for_offline_pods():
    mine = {"key": "x", "operator": "Exists"}

    assert converted(pod(tolerations=[mine]), BATCH)["spec"]["tolerations"] == [
        mine,
        {"key": BATCH.tolerated, "operator": "Exists"},
    ]


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
AWAY = {"key": f"{EVICTED_FROM}u1", "operator": "DoesNotExist"}
SSD = {"key": "disk", "operator": "In", "values": ["ssd"]}
FIELD = {"key": "metadata.name", "operator": "In", "values": ["node1"]}
NEW_PREFERENCE = {"weight": 100, "preference": {"matchExpressions": [AWAY]}}
OWN_PREFERENCE = {"weight": 1, "preference": {"matchExpressions": [SSD]}}
AFFINITIES: dict = {
    "none": ({}, [NEW_PREFERENCE]),
    "required terms": (
        {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [SSD]}, {"matchFields": [FIELD]}]}},
        [NEW_PREFERENCE],
    ),
    "an empty term, which matches no node": ({REQUIRED: {"nodeSelectorTerms": [{}]}}, [NEW_PREFERENCE]),
    "a preference of its own": ({PREFERRED: [OWN_PREFERENCE]}, [OWN_PREFERENCE, NEW_PREFERENCE]),
}


OFFLINE_PODS = {"key": CLASS, "operator": "In", "values": ["offline"]}
OF_ITS_JOB = {"key": "job", "operator": "Exists"}
SELECTORS = {
    "everybody": ({}, {"matchExpressions": [OFFLINE_PODS]}),
    "its like": (
        {"matchLabels": {"a": "b"}, "matchExpressions": [OF_ITS_JOB]},
        {"matchLabels": {"a": "b"}, "matchExpressions": [OF_ITS_JOB, OFFLINE_PODS]},
    ),
    "offline pods already": ({"matchExpressions": [OFFLINE_PODS]}, {"matchExpressions": [OFFLINE_PODS]}),
    "nobody": (None, None),
}


@pytest.mark.parametrize("overflows", [False, True], ids=["for the box", "for virtual nodes"])
@pytest.mark.parametrize(("selector", "wanted"), SELECTORS.values(), ids=SELECTORS)
def test_anti_affinity_counts_offline_pods_alone_as_it_would_keep_online_ones_away(selector, wanted, overflows):
    def away(chosen):
        term = {"topologyKey": "kubernetes.io/os", "namespaceSelector": {}, "labelSelector": chosen}
        return {
            "requiredDuringSchedulingIgnoredDuringExecution": [term],
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": dict(term)}],
        }

    near = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "labelSelector": {}}]}
    before = pod(affinity={"podAntiAffinity": away(selector), "podAffinity": near})
    found = left_for_virtual_nodes(before, "late", BATCH) if overflows else converted(before, BATCH)

    assert found["spec"]["affinity"]["podAntiAffinity"] == away(wanted)
    assert found["spec"]["affinity"]["podAffinity"] == near
    assert before["spec"]["affinity"]["podAntiAffinity"] == away(selector)
    assert converted(found, BATCH)["spec"]["affinity"]["podAntiAffinity"] == away(wanted)
    assert [one.partition(" ")[0] for one in warnings(before, BATCH)] == (
        ["spec.affinity.podAntiAffinity"] if selector != wanted else []
    )


@pytest.mark.parametrize(("affinity", "wanted"), AFFINITIES.values(), ids=AFFINITIES)
def test_pod_prefers_nodes_that_did_not_evict_its_like_and_one_that_runs_there_violates_nothing(affinity, wanted):
    before = pod(owner="u1", **({"affinity": {"nodeAffinity": affinity}} if affinity else {}))
    untouched = copy.deepcopy(before)
    found = converted(before, BATCH)["spec"]["affinity"]["nodeAffinity"]

    assert found.get(PREFERRED) == wanted
    assert found.get(REQUIRED) == affinity.get(REQUIRED), "kubelet would fail its like that runs, when it restarts"
    assert before == untouched


def test_a_pod_without_a_controller_has_no_like():
    assert "affinity" not in converted(pod(), BATCH)["spec"]


# --- what holds for all ----------------------------------------------------------------------------------------------

cpus = st.sampled_from(["1", "1500m", "0.5", "0", 2, "10m", "33.4m", "1m", "5m"])
memories = st.sampled_from(["1Gi", "1.5Gi", "100M", "0", 2097153, "1e8"])
batch_cpus = st.sampled_from(["1k", "1500", 20, "0"])


@st.composite
def tables(draw):
    table = {}
    other = ("gocrane.io/cpu", st.sampled_from(["1", "2"]))
    more = ((name, st.just("1")) for name in ("nvidia.com/gpu", "hugepages-2Mi"))
    for name, values in (("cpu", cpus), ("memory", memories), (CPU, batch_cpus), other, *more):
        if draw(st.booleans()):
            table[name] = draw(values)
    return table


@st.composite
def pods(draw):
    made = [
        container(name, *(draw(st.none() | tables()) for _ in range(2)))
        for name in draw(st.lists(st.sampled_from("abc"), min_size=1, unique=True))
    ]
    annotations = draw(st.none() | st.fixed_dictionaries({}, optional={KEEP_REQUESTS: st.just("true")}))
    more: dict[str, Any] = {"initContainers": [container("i", draw(tables()))] if draw(st.booleans()) else []}
    if draw(st.booleans()):
        term = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
        required = {"nodeSelectorTerms": [term]}
        more["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return pod(*made, annotations=annotations, owner=draw(st.none() | st.just("u1")), **more)


@given(pods(), st.sampled_from(sorted(NAMES)))
def test_a_second_conversion_changes_nothing_and_the_patch_makes_the_first(before, preset):
    settings = ConversionSettings(names=NAMES[preset])
    untouched = copy.deepcopy(before)
    once = converted(before, settings)

    assert before == untouched
    assert converted(once, settings) == once
    assert list(difference(once, converted(once, settings))) == []
    assert applied(before, difference(before, once)) == once


@given(pods())
def test_nothing_asks_for_online_s_cpu_and_memory_and_no_request_is_above_its_limit(before):
    found = converted(before, BATCH)
    if KEEP_REQUESTS in before["metadata"].get("annotations", {}):
        return
    asked = Fraction(0)
    given = [*before["spec"]["containers"], *before["spec"]["initContainers"]]
    for old, one in zip(given, (*found["spec"]["containers"], *found["spec"]["initContainers"]), strict=True):
        requests, limits = (one.get("resources", {}).get(kind, {}) for kind in ("requests", "limits"))
        assert not {"cpu", "memory"} & limits.keys()
        assert not any(amount(requests.get(name, 0)) for name in ("cpu", "memory"))
        assert "hugepages-2Mi" in {**requests, **limits} or not {"cpu", "memory"} & requests.keys()
        if "requests" not in old.get("resources", {}):  # else it may be above the limit as it came
            assert all(amount(requests[name]) <= amount(limits[name]) for name in (CPU, MEMORY) if name in limits)
    for one in found["spec"]["containers"]:
        asked += amount(one.get("resources", {}).get("requests", {}).get(CPU, 0))
    assert asked > 0, "a pod that asks for nothing could be placed on a node that lends nothing"


def test_a_container_that_another_webhook_adds_is_converted_then():
    once = converted(pod(container(requests={"cpu": "1.5"})), BATCH)
    once["spec"]["containers"].append(container("sidecar", {"cpu": "100m"}))
    twice = converted(once, BATCH)

    assert resources(twice, 1)["requests"][CPU] == "100"
    assert recorded(twice)["c"] == recorded(once)["c"]


def test_amounts_that_the_api_server_writes_otherwise_in_between_are_the_same():
    once = converted(pod(container(requests={"cpu": "1", "memory": "1G"})), BATCH)
    resources(once)["requests"].update({CPU: "1k", MEMORY: "1G"})

    assert converted(once, BATCH) == once
    assert recorded(once)["c"]["requests"] == {"cpu": "1", "memory": "1G"}


def test_less_than_the_least_that_people_may_write_is_believed_of_a_record_that_makes_it():
    once = converted(pod(container(requests={"cpu": "5m"}, limits={"cpu": "0.4m"})), BATCH)
    assert resources(once) == {"requests": {CPU: "5", MEMORY: "4194304"}, "limits": {CPU: "1"}}
    assert converted(once, BATCH) == once

    added = copy.deepcopy(once)
    resources(added)["limits"]["memory"] = "8Mi"  # by a LimitRange
    twice = converted(added, BATCH)
    assert resources(twice) == {"requests": resources(once)["requests"], "limits": {CPU: "1"}}
    assert recorded(twice) == recorded(once)


def test_a_record_that_somebody_else_wrote_is_not_believed():
    forged = json.dumps({"containers": {"c": {"requests": {"cpu": "64"}}}})
    found = converted(pod(container(requests={"cpu": "1"}), annotations={RESOURCES: forged}), BATCH)

    assert recorded(found)["c"]["requests"]["cpu"] == "1"
    again = pod(container(requests={CPU: "1000", MEMORY: "4194304"}), annotations={RESOURCES: forged})
    assert recorded(converted(again, BATCH))["c"]["requests"] == {"cpu": "1000m", "memory": "4194304"}


def test_a_record_with_another_name_that_makes_what_is_there_is_not_believed_of_cpu_and_memory():
    """Or a pod that asks for one core would have the weight of 64."""
    forged = json.dumps({"containers": {"c": {"requests": {"cpu": "64", CPU: "1000", "memory": "4Mi"}}}})
    before = pod(container(requests={CPU: "1000", MEMORY: "4194304"}), annotations={RESOURCES: forged})

    assert recorded(converted(before, BATCH))["c"]["requests"] == {"cpu": "1000m", "memory": "4194304"}


# --- real time -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        ({"add": ["SYS_NICE"]}, {"add": ["SYS_NICE"], "drop": ["SYS_NICE"]}),
        ({"add": ["cap_sys_nice", "KILL"]}, {"add": ["cap_sys_nice", "KILL"], "drop": ["SYS_NICE"]}),
        ({"add": ["ALL"], "drop": ["KILL"]}, {"add": ["ALL"], "drop": ["KILL", "SYS_NICE"]}),
        ({"add": ["ALL"], "drop": ["SYS_NICE"]}, {"add": ["ALL"], "drop": ["SYS_NICE"]}),
        ({"add": ["NET_ADMIN"]}, {"add": ["NET_ADMIN"]}),
        ({"drop": ["ALL"]}, {"drop": ["ALL"]}),
    ],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_container_that_could_run_in_real_time_has_that_capability_dropped(kind, asked, made):
    """As nodes do, but those whose runtime calls criproxy by NRI, which can't."""
    before = pod(**{kind: [container() | {"securityContext": {"runAsUser": 1, "capabilities": asked}}]})
    found = converted(before, BATCH)
    assert found["spec"][kind][0]["securityContext"] == {"runAsUser": 1, "capabilities": made}
    assert converted(found, BATCH) == found
    assert before["spec"][kind][0]["securityContext"]["capabilities"] == asked


@pytest.mark.parametrize("odd", [None, {}, {"capabilities": None}, {"capabilities": {"add": None}}])
def test_a_container_without_capabilities_of_its_own_stays_as_it_is(odd):
    before = pod(container() | {"securityContext": odd})
    assert converted(before, BATCH)["spec"]["containers"][0].get("securityContext") == odd


# --- the runtime's plugins -------------------------------------------------------------------------------------------

REQUIRES = ConversionSettings(require_plugin=True)


@pytest.mark.parametrize(
    ("annotations", "required"),
    [
        (None, [PLUGIN]),
        ({REQUIRED_PLUGINS: '["other"]'}, ["other", PLUGIN]),
        ({REQUIRED_PLUGINS: f'["{PLUGIN}"]'}, [PLUGIN]),
        ({KEEP_REQUESTS: "true"}, [PLUGIN]),
    ],
)
def test_runtimes_wait_for_the_plugin_where_they_are_to(annotations, required):
    found = converted(pod(annotations=annotations), REQUIRES)
    assert json.loads(found["metadata"]["annotations"][REQUIRED_PLUGINS]) == required
    assert converted(found, REQUIRES) == found


@pytest.mark.parametrize("scope", ["/pod", "/container.main", "/container.no-such"])
def test_a_narrower_list_of_plugins_goes_before_the_pods_and_has_ours_too(scope):
    """By the runtime's validator, which takes the first of a container's, of the pod's, and the plain one."""
    before = pod(annotations={f"{REQUIRED_PLUGINS}{scope}": '["other"]', f"{REQUIRED_PLUGINS}-not": "[]"})
    found = converted(before, REQUIRES)
    annotations = found["metadata"]["annotations"]
    assert json.loads(annotations[f"{REQUIRED_PLUGINS}{scope}"]) == ["other", PLUGIN]
    assert json.loads(annotations[REQUIRED_PLUGINS]) == [PLUGIN]
    assert annotations[f"{REQUIRED_PLUGINS}-not"] == "[]"
    assert converted(found, REQUIRES) == found
    with pytest.raises(ConversionError, match=rf"required-plugins.noderesource.dev{scope}\]: '\{{\}}' is no list"):
        converted(pod(annotations={f"{REQUIRED_PLUGINS}{scope}": "{}"}), REQUIRES)


def test_runtimes_wait_for_no_plugin_by_default_and_for_none_with_online_pods():
    assert REQUIRED_PLUGINS not in converted(pod(), BATCH)["metadata"]["annotations"]
    online = pod(labels={})
    assert converted(online, REQUIRES) == online


def test_a_list_of_plugins_that_is_none_is_refused():
    with pytest.raises(ConversionError, match=r"required-plugins.noderesource.dev\]: 'other' is no list of plugins"):
        converted(pod(annotations={REQUIRED_PLUGINS: "other"}), REQUIRES)
