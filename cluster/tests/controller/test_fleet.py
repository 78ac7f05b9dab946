import json
import tracemalloc

import pytest

from criproxy_cluster.controller.fleet import Fleet
from criproxy_cluster.controller.node_law import AWAY_S, CALM_S, LONGEST_S, TRUST_S, judge
from criproxy_cluster.controller.policies import PolicyError, in_order, parsed, told_by
from criproxy_cluster.objects import Condition, Meta, NodeObject, NodeSpec, NodeStatus, Taint, view
from criproxy_cluster.vocabulary.names import EVICTED_FROM, MANAGED, PRESSURE, SWITCH
from criproxy_cluster.vocabulary.times import rfc3339

WALL = 1_800_000_000.0
CPU = "kubernetes.io/batch-cpu"


def node(
    name="n1",
    labels=None,
    policy=None,
    *,
    parts=None,
    report=None,
    evicted=None,
    taints=(),
    lent=None,
    beat=None,
    reason="",
    lends="True",
    publishes=None,
):
    annotations = {
        "colocation.criproxy.io/policy": policy,
        "colocation.criproxy.io/policies": parts,
        "colocation.criproxy.io/evicted": evicted,
        "colocation.criproxy.io/publishes": publishes,
    }
    if report is not None:
        annotations["colocation.criproxy.io/policy-status"] = json.dumps(report)
    conditions = (Condition("ColocationReady", lends, reason, beat),) if beat else ()
    status = NodeStatus(lent or {}, lent or {}, conditions)
    meta = Meta(
        name, resource_version="7", labels=labels, annotations={k: v for k, v in annotations.items() if v is not None}
    )
    return view(NodeObject(meta, NodeSpec(tuple(taints)), status))


def policy(name="night", selector=None, generation=1, **spec):
    return parsed(name, generation, {"selector": selector or {}, **spec})


def text_of(chosen, off=False):
    found = told_by(chosen, switched_off=off)
    assert found is not None
    return found.policy, found.version


# --- policies --------------------------------------------------------------------------------------------------------


def test_policies_hold_key_by_key_and_the_higher_priority_wins():
    low = policy("cluster", settings={"cpu": {"reserve_cores": 1, "min_cores": 2}})
    high = policy("night", priority=5, generation=3, settings={"cpu": {"reserve_cores": 4}})

    text, version = text_of(in_order([high, low]))

    assert json.loads(text) == {
        "version": version,
        "name": "cluster.1+night.3",
        "settings": {"cpu": {"reserve_cores": 4, "min_cores": 2}},
    }


def test_what_each_policy_says_is_told_too_the_one_that_wins_last():
    low = policy("cluster", settings={"cpu": {"reserve_cores": 1}})
    high = policy("night", priority=5, generation=3, settings={"cpu": {"reserve_cores": 4}})
    found = told_by(in_order([high, low]), switched_off=True)
    assert found is not None and found.parts is not None

    assert json.loads(found.parts) == [
        {"version": "1", "name": "cluster", "settings": {"cpu": {"reserve_cores": 1}}},
        {"version": "3", "name": "night", "settings": {"cpu": {"reserve_cores": 4}}},
        {"version": "off", "name": SWITCH, "settings": {"colocation": {"enabled": False, "on_disable": "evict"}}},
    ]


def test_policies_that_are_too_long_one_by_one_are_told_together_alone():
    long = [policy(name, settings={"cpu": {"x": name * 30_000}}) for name in "abc"]
    found = told_by(in_order(long), switched_off=False)
    assert found is not None and found.parts is None and len(found.policy) < 64 * 1024


def test_of_equal_priorities_the_first_name_wins():
    one, other = (policy(name, settings={"cpu": {"reserve_cores": n}}) for n, name in enumerate("ab"))

    assert json.loads(text_of(in_order([other, one]))[0])["settings"]["cpu"] == {"reserve_cores": 0}


def test_a_schedule_becomes_the_node_s_own():
    windows = [{"days": "mon-fri", "start": "22:00", "end": "06:00", "policy": "dynamic"}]
    found = policy(schedule={"timeZone": "Europe/Berlin", "windows": windows, "graceSeconds": 60, "onClose": "squeeze"})

    assert found.settings == {
        "control": {"policy": "schedule"},
        "schedule": {"time_zone": "Europe/Berlin", "windows": windows, "grace_s": 60, "on_close": "squeeze"},
    }


def test_the_switch_is_off_for_a_policy_and_for_a_node_above_all():
    assert policy(enabled=False).settings["colocation"] == {"enabled": False, "on_disable": "evict"}
    on = policy(enabled=True, priority=9)

    told = json.loads(text_of((on,), off=True)[0])
    assert told["settings"]["colocation"] == {"enabled": False, "on_disable": "evict"}
    assert told["name"] == "night.1+switch"


def test_the_version_is_another_one_exactly_when_the_content_is():
    def version(**spec):
        return text_of((policy(**spec),))[1]

    one = version(settings={"cpu": {"reserve_cores": 1}})
    assert version(settings={"cpu": {"reserve_cores": 1}}, generation=2) == one
    assert version(settings={"cpu": {"reserve_cores": 2}}) != one
    assert version(name="other", settings={"cpu": {"reserve_cores": 1}}) != one, "a node's report names policies"


SELECTORS = {
    "all": ({}, True),
    "a label": ({"matchLabels": {"a": "1"}}, True),
    "another value": ({"matchLabels": {"a": "2"}}, False),
    "in": ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
    "not in": ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
    "not in, and not there": ({"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["1"]}]}, True),
    "there": ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, True),
    "not there": ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False),
    "both": ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]}, False),
}


@pytest.mark.parametrize(("selector", "selects"), SELECTORS.values(), ids=SELECTORS)
def test_a_selector_selects_as_kubernetes_does(selector, selects):
    assert policy(selector=selector).selector.selects({"a": "1"}) is selects


WRONG = {
    "an unknown field": ({"setings": {}}, "setings"),
    "no tables": ({"settings": {"cpu": 1}}, "settings"),
    "an operator": ({"selector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}, "Like"),
    "values": ({"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, "values"),
    "20,000 expressions": (
        {"selector": {"matchExpressions": [{"key": "a", "operator": "Exists"}] * 20_000}},
        r"length <= 64 - at `\$.selector.matchExpressions`",
    ),
    "20,000 labels": ({"selector": {"matchLabels": {str(i): "" for i in range(20_000)}}}, "length <= 64"),
    "20,000 values": (
        {"selector": {"matchExpressions": [{"key": "a", "operator": "In", "values": list(map(str, range(20_000)))}]}},
        "length <= 1024",
    ),
    "a schedule's key": ({"schedule": {"zone": "UTC"}}, "spec.schedule.zone"),
    "two schedules": ({"schedule": {}, "settings": {"schedule": {}}}, "write one of them"),
    "too long": ({"settings": {"cpu": {"x": "y" * 40_000}}}, "shorten"),
}


@pytest.mark.parametrize(("spec", "message"), WRONG.values(), ids=WRONG)
def test_a_policy_that_cannot_be_used_says_why(spec, message):
    with pytest.raises(PolicyError, match=message):
        parsed("p", 1, spec)


# --- one node --------------------------------------------------------------------------------------------------------


def test_a_node_that_has_what_it_should_have_is_not_written():
    found = judge(node(policy="p", beat="x", lent={CPU: "0"}), None, "p", 0.0, WALL)

    assert (found.patch, found.status, found.due_s, found.why) == (None, None, AWAY_S, ())


@pytest.mark.parametrize(("have", "wanted"), [(None, "p"), ("old", "p"), ("old", None)])
def test_another_policy_is_written(have, wanted):
    assert judge(node(policy=have), None, wanted, 0.0, WALL).patch == {
        "metadata": {"annotations": {"colocation.criproxy.io/policy": wanted}}
    }


def test_the_policies_one_by_one_are_written_beside_the_policy_and_go_with_it():
    name = "colocation.criproxy.io/policies"
    found = judge(node(policy="p"), None, "p", 0.0, WALL, parts="[]")
    assert found.patch == {"metadata": {"annotations": {name: "[]"}}}
    assert judge(node(policy="p", parts="[]"), None, "p", 0.0, WALL, parts="[]").patch is None
    gone = judge(node(policy="p", parts="[]"), None, None, 0.0, WALL).patch
    assert gone == {"metadata": {"annotations": {"colocation.criproxy.io/policy": None, name: None}}}


def test_a_node_that_people_manage_keeps_its_policy():
    assert judge(node(policy="by hand", labels={MANAGED: "false"}), None, "p", 0.0, WALL).patch is None


def test_the_switch_holds_on_a_node_that_people_manage_and_goes_again():
    fleet = Fleet()
    fleet.see(node("n0", {MANAGED: "false", SWITCH: "off"}, "by hand"))
    off = told(fleet)
    assert off["settings"]["colocation"]["enabled"] is False

    fleet.see(node("n0", {MANAGED: "false"}, json.dumps(off)))
    found = fleet.look("n0", 0.0, WALL)
    assert found.patch == {"metadata": {"annotations": {"colocation.criproxy.io/policy": None}}}

    fleet.see(node("n0", {MANAGED: "false"}, "by hand"))
    assert fleet.look("n0", 0.0, WALL).patch is None


def interval(begins_s, ends_s):
    """By the node's clock; seconds from what is the time in truth."""
    return f"{rfc3339(WALL + begins_s)}/{rfc3339(WALL + ends_s)}"


def test_an_evicted_pod_s_controller_has_a_label_until_its_time_is_over():
    entries = {"u1": interval(-240, 60), "u2": interval(-301, -1), "u3": interval(0, 9e6), "x/y": interval(0, 60)}
    labels = {f"{EVICTED_FROM}u2": "", f"{EVICTED_FROM}u9": "", "other": "1"}
    found = judge(node(evicted=json.dumps(entries), labels=labels), None, None, 100.0, WALL)

    assert found.patch == {
        "metadata": {"labels": {f"{EVICTED_FROM}u1": "", f"{EVICTED_FROM}u3": "", f"{EVICTED_FROM}u9": None}}
    }
    assert found.due_s == 160.0
    longest = node(evicted=json.dumps({"u3": interval(0, 9e6)}))
    found = judge(longest, None, None, 0.0, WALL)
    assert found.due_s == LONGEST_S
    has = node(evicted=longest.evicted, labels={f"{EVICTED_FROM}u3": ""})
    over = judge(has, found.memory, None, LONGEST_S, WALL + LONGEST_S)
    assert over.patch == {"metadata": {"labels": {f"{EVICTED_FROM}u3": None}}}, "whatever the node says"
    assert judge(longest, over.memory, None, LONGEST_S + 1, WALL).patch is None, "it does not come back"


SKEWED = {"a node ahead": 3600.0, "a node behind": -3600.0, "by a day": 86400.0, "in time": 0.0}


@pytest.mark.parametrize("skew_s", SKEWED.values(), ids=SKEWED)
@pytest.mark.parametrize("begins", [False, True], ids=["the leader", "one that begins to lead"])
def test_a_label_lasts_its_time_whatever_the_clocks(skew_s, begins):
    label = {f"{EVICTED_FROM}u1": ""}
    seen = node(evicted=json.dumps({"u1": interval(skew_s, skew_s + 300)}), labels=label)
    before = None if begins else judge(node(), None, None, 0.0, WALL).memory
    first = judge(seen, before, None, 10.0, WALL)
    assert (first.patch, first.due_s) == (None, 310.0)
    assert judge(seen, first.memory, None, 309.0, WALL + 299).patch is None
    assert judge(seen, first.memory, None, 310.0, WALL + 300).patch == {
        "metadata": {"labels": {f"{EVICTED_FROM}u1": None}}
    }


def test_a_pod_that_is_evicted_again_counts_anew():
    label = {f"{EVICTED_FROM}u1": ""}
    first = judge(node(evicted=json.dumps({"u1": interval(0, 300)}), labels=label), None, None, 0.0, WALL)
    again = node(evicted=json.dumps({"u1": interval(200, 500)}), labels=label)
    assert judge(again, first.memory, None, 200.0, WALL + 200).due_s == 500.0


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"u1": 3}', '{"u1": "tomorrow/2099-01-01T00:00:00Z"}'),
        *(json.dumps({name: interval(0, 60)}) for name in ("-", "-u1", "u1-")),  # no label's name, which 422 answers
    ],
)
def test_an_evicted_annotation_that_cannot_be_read_keeps_nobody_out(text):
    assert judge(node(evicted=text), None, None, 0.0, WALL).patch is None


def test_the_taint_comes_at_once_and_goes_when_the_node_was_calm_for_long():
    other = Taint("mine", "x", "NoSchedule")
    held = judge(node(beat="1", reason="Held", taints=[other]), None, None, 0.0, WALL)
    taint = {"key": PRESSURE, "effect": "PreferNoSchedule"}
    assert held.patch == {
        "metadata": {"resourceVersion": "7"},
        "spec": {"taints": [{"key": "mine", "value": "x", "effect": "NoSchedule"}, taint]},
    }
    both = [other, Taint(PRESSURE, None, "PreferNoSchedule")]

    calm = judge(node(beat="2", reason="Lending", taints=both), held.memory, None, 10.0, WALL)
    assert (calm.patch, calm.due_s) == (None, 10.0 + CALM_S)
    again = judge(node(beat="3", reason="Held", taints=both), calm.memory, None, 100.0, WALL)
    assert again.patch is None
    later = judge(node(beat="4", reason="Lending", taints=both), again.memory, None, 200.0, WALL)
    assert judge(node(beat="4", reason="Lending", taints=both), later.memory, None, 499.0, WALL).patch is None
    over = judge(node(beat="4", reason="Lending", taints=both), later.memory, None, 200.0 + CALM_S, WALL)
    assert over.patch and over.patch["spec"] == {"taints": [{"key": "mine", "value": "x", "effect": "NoSchedule"}]}


def test_a_node_that_says_nothing_for_long_publishes_nothing():
    lent = {CPU: "4000", "kubernetes.io/batch-memory": "1Gi", "cpu": "8", "kubernetes.io/mid-cpu": "0"}
    seen = node(beat=rfc3339(WALL), lent=lent)
    first = judge(seen, None, None, 1000.0, WALL)
    assert (first.status, first.due_s) == (None, 1000.0 + AWAY_S)

    written = judge(seen, first.memory, None, 1000.0 + AWAY_S, WALL + AWAY_S).status
    assert written
    found = written["status"]

    nothing = {CPU: "0", "kubernetes.io/batch-memory": "0"}
    assert (found["capacity"], found["allocatable"]) == (nothing, nothing)
    assert (found["conditions"][0]["status"], found["conditions"][0]["reason"]) == ("Unknown", "Away")
    assert "lastHeartbeatTime" not in found["conditions"][0], "it stays what the node wrote"


PUBLISHED = {
    "names of its own": ("example.com/cores,example.com/spare", {"example.com/spare"}),
    "a preset's, and another system's beside it": ("gocrane.io/cpu", {"gocrane.io/cpu"}),
    "Kubernetes' own": ("cpu,memory", set()),
    "nothing": ("", set()),
    "more than anybody publishes": (",".join(f"example.com/{n:03}" for n in range(90)), set()),
    "a node of before": (None, {CPU, "gocrane.io/cpu"}),
}


@pytest.mark.parametrize(("publishes", "names"), PUBLISHED.values(), ids=PUBLISHED)
def test_what_a_node_says_that_it_publishes_is_made_0_when_it_is_away(publishes, names):
    lent = {
        CPU: "4000",
        "gocrane.io/cpu": "4",
        "example.com/spare": "7",
        "cpu": "8",
        "memory": "1Gi",
        "example.com/089": "1",
    }
    away = node(beat=rfc3339(WALL), lent=lent, publishes=publishes)
    first = judge(away, None, None, 0.0, WALL)

    written = judge(away, first.memory, None, AWAY_S, WALL).status
    assert written
    tables = [written["status"].get(table, {}) for table in ("capacity", "allocatable")]
    assert tables == [dict.fromkeys(names, "0")] * 2


def test_a_node_that_says_something_is_not_away_whatever_its_clock():
    first = judge(node(beat="2001-01-01T00:00:00Z", lent={CPU: "1"}), None, None, 0.0, WALL)
    second = judge(node(beat="2001-01-01T00:05:00Z", lent={CPU: "1"}), first.memory, None, TRUST_S - 1, WALL)

    assert first.status is None and first.due_s == TRUST_S, "a new controller waits before it believes the time"
    assert second.status is None and second.due_s == TRUST_S - 1 + AWAY_S
    assert judge(node(beat="2099-01-01T00:00:00Z", lent={CPU: "1"}), None, None, 0.0, WALL).due_s == AWAY_S


@pytest.mark.parametrize("hour_s", [-3600.0, 3600.0], ids=["behind", "ahead"])
def test_nodes_that_live_are_not_away_for_a_controller_that_begins_with_a_wrong_clock(hour_s):
    """A node reports each 390 s at the latest; here just before the controller began."""
    said = judge(node(beat=rfc3339(WALL), lent={CPU: "1"}), None, None, 0.0, WALL + hour_s)
    later = judge(node(beat=rfc3339(WALL), lent={CPU: "1"}), said.memory, None, 400.0, WALL + hour_s + 400)
    assert (said.status, later.status) == (None, None)
    gone_s = later.due_s
    assert gone_s is not None and gone_s <= AWAY_S
    assert judge(node(beat=rfc3339(WALL), lent={CPU: "1"}), later.memory, None, gone_s, WALL).status, "it is away"


def test_time_in_which_a_node_could_not_be_heard_does_not_make_it_away():
    silent = node(beat=rfc3339(WALL), lent={CPU: "1"})
    first = judge(silent, None, None, 0.0, WALL)
    deaf = judge(silent, first.memory, None, 1200.0, WALL, deaf_s=1000.0)
    assert (deaf.status, deaf.due_s) == (None, 1000.0 + AWAY_S)

    new = judge(node(beat="2", lent={CPU: "1"}), deaf.memory, None, 1300.0, WALL, deaf_s=1000.0)
    assert new.due_s == 1300.0 + AWAY_S
    assert judge(silent, deaf.memory, None, 1000.0 + AWAY_S, WALL, deaf_s=1000.0).status, "it is away"


def test_another_system_s_numbers_are_left_alone():
    seen = node(lent={CPU: "4000"})
    first = judge(seen, None, None, 0.0, WALL)

    assert judge(seen, first.memory, None, 1e6, WALL + 1e6).status is None


@pytest.mark.parametrize(
    ("lends", "reason"),
    [
        pytest.param("False", "Withheld", id="kubernetes.publish = false"),
        pytest.param("False", "Away", id="withdrawn"),
        pytest.param("Unknown", "Away", id="made 0 here before"),
    ],
)
def test_numbers_of_another_system_are_left_alone_where_criproxy_lends_nothing_any_more(lends, reason):
    seen = node(beat=rfc3339(WALL), lends=lends, reason=reason, lent={CPU: "4000"})
    first = judge(seen, None, None, 0.0, WALL)

    later = judge(seen, first.memory, None, AWAY_S, WALL + AWAY_S)
    assert (later.status, later.due_s) == (None, None)


def test_a_held_node_that_goes_away_loses_its_taint_though_it_lent_nothing():
    taints = [Taint(PRESSURE, None, "PreferNoSchedule")]
    held = node(beat=rfc3339(WALL), reason="Held", taints=taints, lent={CPU: "0"})
    first = judge(held, None, None, 0.0, WALL)
    assert first.due_s == AWAY_S

    away = judge(held, first.memory, None, AWAY_S, WALL + AWAY_S)
    assert away.status
    (condition,) = away.status["status"]["conditions"]
    assert away.status == {"status": {"conditions": [condition]}}, "nothing is published that could be made 0"

    seen = node(beat=rfc3339(WALL), lends=condition["status"], reason=condition["reason"], taints=taints)
    calm = judge(seen, away.memory, None, AWAY_S + 1.0, WALL)
    over = judge(seen, calm.memory, None, AWAY_S + 1.0 + CALM_S, WALL)
    assert over.patch and over.patch["spec"] == {"taints": []}


# --- all of them -----------------------------------------------------------------------------------------------------


def fleet_of(count, **labels):
    fleet = Fleet()
    for number in range(count):
        fleet.see(node(f"n{number}", {"pool": f"p{number % 10}", "host": f"n{number}", **labels}))
    return fleet


def look_at(fleet, names, now_s=0.0):
    return {name: fleet.look(name, now_s, WALL) for name in names}


def test_a_label_of_one_of_10_000_nodes_looks_at_one_node():
    fleet = fleet_of(10_000)
    concerned = fleet.set_policy("night", policy(selector={"matchLabels": {"pool": "p3"}}, settings={"cpu": {}}))
    assert len(concerned) == 1000
    look_at(fleet, concerned)
    before = fleet.looks

    fleet.see(node("n4", {"pool": "p3", "host": "n4"}))
    found = fleet.look("n4", 1.0, WALL)

    assert fleet.looks - before == 1
    assert found.why == ("policy",)
    assert fleet.status("night")["nodes"] == 1001


def test_a_policy_concerns_the_nodes_that_it_selected_or_selects():
    fleet = fleet_of(20)
    look_at(fleet, fleet.set_policy("night", policy(selector={"matchLabels": {"pool": "p3"}})))

    moved = policy(selector={"matchLabels": {"pool": "p4"}}, generation=2)
    assert sorted(fleet.set_policy("night", moved)) == ["n13", "n14", "n3", "n4"]
    look_at(fleet, ["n13", "n14", "n3", "n4"])
    assert fleet.set_policy("night", moved) == []
    assert fleet.status("night")["nodes"] == 2
    assert sorted(fleet.set_policy("night", None)) == ["n14", "n4"]
    assert fleet.status("night") is None


def told(fleet, name="n0"):
    return json.loads(fleet.look(name, 0.0, WALL).patch["metadata"]["annotations"]["colocation.criproxy.io/policy"])


def test_the_status_says_who_has_it_in_force_who_waits_and_who_refuses_why():
    fleet = fleet_of(4)
    fleet.set_policy("night", policy(settings={"cpu": {"reserve_cores": 1}}))
    text, version = text_of((policy(settings={"cpu": {"reserve_cores": 1}}),))
    fleet.see(node("n0", {}, text, report={"version": version, "inForce": True}))
    fleet.see(node("n1", {}, text, report={"version": version, "inForce": False, "problems": ["cpu.x: no", "more"]}))
    fleet.see(node("n2", {}, text, report={"version": "old", "inForce": True}))
    fleet.changed_policies()
    look_at(fleet, ["n0", "n1", "n2", "n3"])

    assert fleet.changed_policies() == ["night"]
    assert fleet.status("night") == {
        "observedGeneration": 1,
        "nodes": 4,
        "inForce": 1,
        "refused": 1,
        "waiting": 2,
        "refusedBy": [{"node": "n1", "reason": "cpu.x: no; more"}],
    }


def test_a_switch_is_done_when_its_nodes_say_so_and_publish_nothing():
    fleet = fleet_of(2)
    off = policy(enabled=False)
    fleet.set_policy("night", off)
    text, version = text_of((off,))
    done = {"version": version, "inForce": True}
    fleet.see(node("n0", {}, text, report=done, lent={CPU: "0"}))
    fleet.see(node("n1", {}, text, report=done, lent={CPU: "100"}))
    look_at(fleet, ["n0", "n1"])
    assert fleet.status("night")["off"] == {"nodes": 1, "done": False}

    spare = {"example.com/spare": "100"}
    for own in ({"beat": "1"}, {"beat": "1", "lends": "False", "publishes": "example.com/spare"}):
        fleet.see(node("n1", {}, text, report=done, lent=spare, **own))
        look_at(fleet, ["n1"])
        assert fleet.status("night")["off"] == {"nodes": 1, "done": False}, "by a name of its own"

    fleet.see(node("n1", {}, text, report=done, lent={CPU: "0"}, beat="2", lends="False", reason="Occupied"))
    look_at(fleet, ["n1"])
    assert fleet.status("night")["off"] == {"nodes": 1, "done": False}, "a budget keeps a pod"

    fleet.see(node("n1", {}, text, report=done, lent={CPU: "0"}, beat="3", lends="False", reason="Withheld"))
    look_at(fleet, ["n1"])
    assert fleet.status("night")["off"] == {"nodes": 2, "done": True}


SILENT: dict = {
    "it says nothing": ({}, True),
    "it lends": ({"lent": {CPU: "100"}}, False),
    "it has the condition": ({"beat": "1", "lends": "False", "reason": "Withheld"}, False),
    "it reports on another policy": ({"report": {"version": "old", "inForce": True}}, False),
    "it has not got the policy": ({"policy": "other"}, False),
}


@pytest.mark.parametrize(("said", "done"), SILENT.values(), ids=SILENT)
def test_a_switch_waits_for_no_node_from_which_criproxy_has_never_reported(said, done):
    """Nodes of the control plane, for one."""
    fleet = fleet_of(0)
    off = policy(enabled=False)
    fleet.set_policy("night", off)
    fleet.see(node("n0", {}, **{"policy": text_of((off,))[0], **said}))
    look_at(fleet, ["n0"])

    assert fleet.status("night")["off"] == {"nodes": int(done), "done": done}


def test_a_switch_is_not_done_before_all_nodes_were_looked_at():
    fleet = fleet_of(2)
    off = policy(enabled=False)
    concerned = fleet.set_policy("night", off)
    assert fleet.status("night")["off"]["done"] is False, "none was"

    text, version = text_of((off,))
    fleet.see(node("n0", {}, text, report={"version": version, "inForce": True}))
    look_at(fleet, ["n0"])
    assert fleet.status("night")["off"] == {"nodes": 1, "done": False}, "one of two was"
    fleet.changed_policies()
    look_at(fleet, concerned)
    assert (fleet.status("night")["off"]["done"], fleet.status("night")["nodes"]) == (False, 2)

    fleet.see(node("n1", {}, text, report={"version": version, "inForce": True}))
    fleet.see(node("n2"))
    look_at(fleet, ["n1"])
    assert fleet.status("night")["off"]["done"] is False, "one has come since"
    fleet.changed_policies()
    fleet.forget("n2")
    assert fleet.changed_policies() == ["night"]
    assert fleet.status("night")["off"] == {"nodes": 2, "done": True}


def test_a_policy_that_goes_takes_no_node_from_another_s_figures():
    fleet = fleet_of(3)
    fleet.set_policy("cluster", policy("cluster", enabled=False))
    look_at(fleet, fleet.set_policy("night", policy()))

    concerned = fleet.set_policy("night", None)
    assert len(concerned) == fleet.status("cluster")["nodes"] == 3


NIGHT = text_of((policy(settings={"cpu": {"reserve_cores": 1}}),))[0]
OTHERS = {
    "a switch": ([policy("stop", priority=1000, enabled=False)], ["stop.1"]),
    "a switch among settings": ([policy("stop", settings={"colocation": {"enabled": False}})], ["stop.1"]),
    "a switch that another one overrules": ([policy("a", priority=1, enabled=True), policy("b", enabled=False)], None),
    "no switch": ([policy("more", settings={"cpu": {"min_cores": 1}})], None),
}


@pytest.mark.parametrize(("others", "names"), OTHERS.values(), ids=OTHERS)
def test_a_node_keeps_what_an_unusable_policy_has_said_unless_others_switch_it_off(others, names):
    """As another replica begins to lead, which does not know what `night` was."""
    fleet = Fleet()
    fleet.see(node("n0", {}, NIGHT))
    fleet.set_unusable(frozenset({"night"}))
    for other in others:
        fleet.set_policy(other.name, other)

    if names is None:
        assert fleet.look("n0", 0.0, WALL).patch is None
    else:
        assert told(fleet)["name"] == "+".join(names)
        assert told(fleet)["settings"]["colocation"]["enabled"] is False


def test_a_label_that_is_gone_is_undone_though_a_policy_is_unusable():
    fleet = Fleet()
    fleet.see(node("n0", {}, text_of([policy()], off=True)[0]))
    fleet.set_unusable(frozenset({"night"}))

    assert fleet.look("n0", 0.0, WALL).patch == {"metadata": {"annotations": {"colocation.criproxy.io/policy": None}}}


def test_a_node_s_label_switches_it_off():
    fleet = Fleet()
    fleet.see(node("n0", {SWITCH: "off"}))

    assert told(fleet)["settings"] == {"colocation": {"enabled": False, "on_disable": "evict"}}


def test_a_node_that_is_gone_counts_no_more():
    fleet = fleet_of(3)
    look_at(fleet, fleet.set_policy("night", policy()))
    fleet.forget_all_but({"n1", "n2"})
    fleet.forget("n2")

    assert (len(fleet), fleet.status("night")["nodes"]) == (1, 1)
    assert fleet.look("n0", 0.0, WALL) is None


def test_a_node_is_due_once_and_at_its_last_time():
    fleet = Fleet()
    fleet.see(node("n0", beat="1", lent={CPU: "5"}))
    fleet.look("n0", 0.0, WALL)
    fleet.see(node("n0", beat="2", lent={CPU: "5"}))
    fleet.look("n0", 100.0, WALL)

    assert list(fleet.due(AWAY_S)) == []
    assert list(fleet.due(100.0 + AWAY_S)) == ["n0"]
    assert list(fleet.due(1e9)) == []


def test_a_node_whose_time_comes_earlier_is_due_then_and_not_again_at_the_later_time():
    fleet = Fleet()
    fleet.see(node("n0", beat="1", lent={CPU: "5"}))
    assert fleet.look("n0", 0.0, WALL).due_s == AWAY_S
    fleet.see(node("n0", beat="1", lent={CPU: "5"}, taints=(Taint(PRESSURE),)))
    assert fleet.look("n0", 10.0, WALL).due_s == 10.0 + CALM_S

    assert list(fleet.due(10.0 + CALM_S - 1)) == []
    assert list(fleet.due(10.0 + CALM_S)) == ["n0"]
    assert list(fleet.due(1e9)) == []


def test_a_node_that_has_gone_and_come_back_is_due_at_its_new_time():
    fleet = Fleet()
    fleet.see(node("n0", beat="1", lent={CPU: "5"}))
    fleet.look("n0", 0.0, WALL)
    fleet.forget("n0")
    fleet.see(node("n0", beat="1", lent={CPU: "5"}))
    fleet.look("n0", 50.0, WALL)

    assert list(fleet.due(50.0 + AWAY_S - 1)) == []
    assert list(fleet.due(50.0 + AWAY_S)) == ["n0"]


def test_what_is_to_be_looked_at_later_does_not_grow_with_each_report():
    fleet = Fleet()
    tracemalloc.start()
    try:
        for beat in range(2000):
            if beat == 20:
                before, _ = tracemalloc.get_traced_memory()
            fleet.see(node("n0", beat=str(beat), lent={CPU: "5"}))
            fleet.look("n0", beat / 10, WALL)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 20_000
