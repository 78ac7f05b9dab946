"""The publisher, at a server that takes its patches, or does not."""

import asyncio

import msgspec
import pytest

from criproxy.control.publication import REPORT_S, Lendable
from criproxy.kube.extended_resources import LATEST_S, SHED_S, Offer, PublishSettings, resources_called
from criproxy.kube.objects import Node, decoded
from criproxy.kube.publisher import MOST_UNDONE, STALE_S, Publisher
from criproxy.model import CPU, MEMORY
from criproxy.vocabulary.names import CONDITION, PUBLISHES
from tests.kube.conftest import KubeBench

GIB = 2**30
BATCH_CPU, BATCH_MEMORY = (resource.name for resource in resources_called("batch"))


class Source:
    def __init__(self, clock):
        self.clock, self.made_s = clock, None
        self.lend(4.0)

    def lend(self, cores, gib=8.0, **fields):
        self.now = Offer({CPU: Lendable(cores, "because"), MEMORY: Lendable(gib * GIB, "because")}, **fields)

    def offer(self):
        return None if self.now is None else (self.clock.now if self.made_s is None else self.made_s, self.now)


class Bench(KubeBench):
    def __init__(self, credential, clock, api):
        super().__init__(credential, clock, api)
        self.source = Source(clock)
        self.begin(PublishSettings())

    def begin(self, settings):
        """As a new process does."""
        self.publisher = Publisher(self.client, "node1", self.source, settings, **self.how)

    def look(self, after_s=0.0):
        """Returns what the node's status then has."""
        self.clock.advance(after_s)
        asyncio.run(self.publisher.look())
        status = self.node()["status"]
        assert status.get("capacity") == status.get("allocatable")
        return status.get("capacity", {})

    def patches(self):
        return len(self.api.seen("PATCH", "/status"))

    def condition(self):
        return next(one for one in self.node()["status"]["conditions"] if one["type"] == CONDITION)

    def see(self):
        """As the watch would have it."""
        self.publisher.saw(decoded(msgspec.json.encode(self.node()), Node))


@pytest.fixture
def bench(credential, clock, api):
    return Bench(credential, clock, api)


def pod(name, milli, phase="Running", **spec):
    requests = {"resources": {"requests": {BATCH_CPU: milli}}}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"nodeName": "node1", "containers": [{"name": "c", **requests}], **spec},
        "status": {"phase": phase},
    }


def test_first_look_publishes_beside_what_kubelet_has(bench, api):
    api.put_node(status={"capacity": {"cpu": "16"}, "allocatable": {"cpu": "16"}, "conditions": [{"type": "Ready"}]})
    assert bench.look() == {"cpu": "16", BATCH_CPU: "4000", BATCH_MEMORY: str(8 * GIB)}
    assert [one["type"] for one in api.nodes["node1"]["status"]["conditions"]] == ["Ready", CONDITION]
    assert bench.condition()["status"] == "True"
    assert bench.condition()["reason"] == "Lending"
    assert bench.condition()["message"].startswith(f"{BATCH_CPU} 4000 (4.00 cores): because")


def test_nothing_is_published_before_anything_was_measured(bench):
    bench.source.now = None
    assert bench.look() == {}
    assert bench.publisher.status().why == "it is not known yet what can be lent"


def test_change_is_published_and_no_change_is_not(bench):
    bench.look()
    bench.source.lend(4.1)
    assert bench.look(60)[BATCH_CPU] == "4000"
    bench.source.lend(2.0)
    assert bench.look(60)[BATCH_CPU] == "2000"


def test_rise_waits_for_the_report(bench):
    bench.look()
    bench.source.lend(8.0)
    assert bench.look(239)[BATCH_CPU] == "4000"
    assert bench.look(122)[BATCH_CPU] == "8000"
    assert bench.patches() == 2


def test_what_was_published_counts_as_promised_for_as_long_as_it_may_take_to_be_told_of_less(bench):
    assert bench.publisher.promised(MEMORY, 93.0) == (0.0, 0.0)
    bench.look()
    bench.source.lend(4.0, gib=7.5)
    bench.look(60)
    assert bench.publisher.promised(MEMORY, 93.0) == (8.0 * GIB, 8.0 * GIB), "a fall by less than a tenth waits"
    bench.source.lend(4.0, gib=4.0)
    bench.look(60)
    assert bench.publisher.promised(MEMORY, 93.0) == (4.0 * GIB, 8.0 * GIB)
    bench.clock.advance(92)
    assert bench.publisher.promised(MEMORY, 93.0) == (4.0 * GIB, 8.0 * GIB)
    bench.clock.advance(1)
    assert bench.publisher.promised(MEMORY, 93.0) == (4.0 * GIB, 4.0 * GIB)
    assert bench.publisher.promised(CPU, 93.0) == (4.0, 4.0)


def test_what_pods_were_promised_is_theirs_and_nobody_s_to_give_back(bench, api):
    bench.look()
    api.pods = [pod("a", "4000")]
    bench.source.lend(1.0)
    assert bench.look(60)[BATCH_CPU] == "4000"
    assert bench.publisher.promised(CPU, 0.0) == (1.0, 1.0)


def test_nothing_counts_as_promised_once_a_report_is_overdue(bench, api):
    bench.look()
    api.fail("PATCH", 403, times=99)
    bench.source.lend(4.0, gib=7.5)
    bench.look(REPORT_S)
    assert bench.publisher.promised(MEMORY, 93.0) == (8.0 * GIB, 8.0 * GIB)
    bench.look(LATEST_S - REPORT_S)
    assert bench.publisher.promised(MEMORY, 93.0) == (0.0, 0.0)


def test_report_is_a_sign_of_life(bench):
    bench.look()
    first = bench.condition()
    bench.look(361)
    second = bench.condition()
    assert bench.patches() == 2
    assert second["lastHeartbeatTime"] > first["lastHeartbeatTime"]
    assert second["lastTransitionTime"] == first["lastTransitionTime"]


def test_number_does_not_sink_below_what_pods_were_promised(bench, api):
    bench.look()
    api.pods = [pod("a", "1500"), pod("b", 1000), pod("ended", "9000", phase="Succeeded")]
    bench.source.lend(1.0)
    assert bench.look(60)[BATCH_CPU] == "2500"
    assert "what pods were promised, above 1.00 cores" in bench.condition()["message"]
    del api.pods[0]
    assert bench.look(391)[BATCH_CPU] == "1000"
    fields = api.seen("GET", "/api/v1/pods")[-1].query["fieldSelector"]
    assert fields.split(",")[0] == "spec.nodeName=node1"


def test_what_a_pod_leaves_at_its_end_is_taken_back_before_the_api_server_knows_of_the_end(bench, api):
    api.pods = [pod(name, "1500") for name in "abc"]
    bench.source.lend(1.0, pods=frozenset({"uid-a", "uid-b", "uid-c"}))
    before = bench.look()[BATCH_CPU]
    bench.source.lend(1.0, pods=frozenset({"uid-b", "uid-c"}))
    soon = bench.look(SHED_S - 1)[BATCH_CPU]
    then = bench.look(1)[BATCH_CPU]
    assert (before, soon, then) == ("4500", "4500", "3000"), "each costs a report"
    bench.source.lend(1.0, pods=frozenset({"uid-c"}))
    del api.pods[0]
    assert bench.look(SHED_S)[BATCH_CPU] == "1500"


def test_end_of_a_pod_costs_no_report_where_all_that_is_published_can_be_lent(bench, api):
    bench.source.lend(4.0, pods=frozenset({"uid-a"}))
    bench.look()
    bench.source.lend(4.0)
    bench.look(60)
    assert bench.patches() == 1


def test_number_stays_when_pods_cannot_be_asked_for(bench, api):
    bench.look()
    api.fail("GET /api/v1/pods", 500)
    bench.source.lend(1.0)
    assert bench.look(60)[BATCH_CPU] == "4000"
    assert bench.look(60)[BATCH_CPU] == "1000"


def test_held_node_lends_just_what_pods_were_promised_and_says_so(bench, api):
    bench.look()
    api.pods = [pod("a", "3000")]
    bench.source.lend(4.0, held="online waits")
    assert bench.look(60)[BATCH_CPU] == "3000"
    assert bench.condition()["reason"] == "Held"
    api.pods = []
    assert bench.look(391)[BATCH_CPU] == "0"


def test_number_of_a_held_node_falls_with_each_end_though_others_take_their_room_at_once(bench, api):
    """As where nobody calls criproxy: they start past it, and each would be followed by another."""
    api.pods, boxed = [pod("a", "1000"), pod("b", "1000")], frozenset({"uid-a", "uid-b"})
    bench.source.lend(4.0, held="nobody calls criproxy", pods=boxed)
    before = bench.look()[BATCH_CPU]
    api.pods = [pod("b", "1000"), pod("c", "1000")]
    bench.source.lend(4.0, held="nobody calls criproxy", pods=frozenset({"uid-b"}))
    one = bench.look(20)[BATCH_CPU]
    api.pods = [pod("c", "1000"), pod("d", "1000")]
    bench.source.lend(4.0, held="nobody calls criproxy")
    none = bench.look(20)[BATCH_CPU]
    bench.source.lend(1.0)
    assert (before, one, none, bench.look(20)[BATCH_CPU]) == ("2000", "1000", "0", "2000")


def test_pod_of_a_held_node_that_was_taken_for_ended_counts_again(bench, api):
    api.pods = [pod("a", "1000")]
    bench.source.lend(4.0, held="online waits", pods=frozenset({"uid-a"}))
    bench.look()
    bench.source.lend(4.0, held="online waits")
    none = bench.look(20)[BATCH_CPU]
    bench.source.lend(4.0, held="online waits", pods=frozenset({"uid-a"}))
    assert (none, bench.look(20)[BATCH_CPU]) == ("0", "1000")


def test_pods_of_a_held_node_that_were_taken_for_ended_one_after_the_other_count_again(bench, api):
    api.pods = [pod(name, "1000") for name in "abc"]
    numbers = []
    for left in ("abc", "bc", "c", "abc"):
        bench.source.lend(4.0, held="online waits", pods=frozenset(f"uid-{name}" for name in left))
        numbers.append(bench.look(20)[BATCH_CPU])
    bench.look(400)
    assert (numbers, bench.look(400)[BATCH_CPU]) == (["3000", "2000", "1000", "3000"], "3000")


def withhold(bench):
    """As by evictions of two pods at once."""

    async def both():
        await asyncio.gather(*(bench.publisher.withhold(5.0) for _ in range(2)))

    bench.clock.advance(5.0)
    asyncio.run(both())
    return bench.node()["status"].get("capacity", {}).get(BATCH_CPU), bench.patches()


def test_who_withholds_has_0_published_once_and_nothing_while_the_node_lends(bench, api):
    api.put_node()
    assert withhold(bench) == (None, 0)
    bench.look()
    bench.source.lend(2.0)
    assert withhold(bench) == ("4000", 1)
    bench.source.lend(4.0, withheld="disabled")
    assert withhold(bench) == ("0", 2)
    bench.clock.advance(60.0)
    assert withhold(bench) == ("0", 2)


def test_withheld_is_zero_at_once_and_comes_back(bench, api):
    bench.look()
    api.pods = [pod("a", "3000")]
    bench.source.lend(4.0, withheld="disabled")
    assert bench.look(1)[BATCH_CPU] == "0"
    assert (bench.condition()["status"], bench.condition()["reason"]) == ("False", "Withheld")
    assert bench.condition()["message"] == "0 of each, as nothing is lent: disabled"
    bench.source.lend(4.0)
    assert bench.look(30)[BATCH_CPU] == "4000"
    assert bench.condition()["status"] == "True"


def test_node_that_lends_nothing_says_whether_offline_pods_run_on(bench):
    bench.look()
    bench.source.lend(4.0, withheld="disabled", pods=frozenset({"uid-a", "uid-b"}))
    bench.look(1)
    assert bench.condition()["reason"] == "Occupied"
    assert bench.condition()["message"] == "0 of each, as nothing is lent: disabled; offline pods that run on: 2"
    bench.source.lend(4.0, withheld="disabled", pods=frozenset({"uid-a"}))
    bench.look(30)
    assert bench.patches() == 2, "each that leaves is not worth a patch"
    bench.source.lend(4.0, withheld="disabled")
    bench.look(30)
    assert (bench.condition()["reason"], bench.patches()) == ("Withheld", 3)
    bench.source.lend(4.0, pods=frozenset({"uid-a", "uid-b"}))
    bench.look(30)
    assert bench.condition()["reason"] == "Lending"


def test_node_that_lends_again_lends_no_less_than_its_pods_were_promised(bench, api):
    """The box of a closed schedule may only be squeezed: its pods are still there."""
    bench.look()
    api.pods = [pod("a", "3000")]
    bench.source.lend(4.0, withheld="closed")
    assert bench.look(1)[BATCH_CPU] == "0"
    bench.source.lend(1.0)
    assert bench.look(30)[BATCH_CPU] == "3000"
    api.pods = []
    assert bench.look(391)[BATCH_CPU] == "1000"


def test_what_was_decided_long_ago_counts_no_more(bench, clock):
    bench.look()
    bench.source.made_s = clock.now
    assert bench.look(STALE_S - 1)[BATCH_CPU] == "4000"
    assert bench.look(2)[BATCH_CPU] == "0"
    assert "nothing was decided for 901 s" in bench.condition()["message"]


@pytest.mark.parametrize(
    "written",
    [
        pytest.param({"capacity": {BATCH_CPU: "1"}}, id="capacity"),
        pytest.param({"allocatable": {BATCH_CPU: "64000"}}, id="allocatable"),
        pytest.param({"allocatable": {BATCH_CPU: None}, "capacity": {BATCH_CPU: None}}, id="taken away"),
        pytest.param({"allocatable": {BATCH_CPU: "3999.5"}, "capacity": {BATCH_CPU: "3999.5"}}, id="a fraction"),
    ],
)
def test_what_kubelet_or_somebody_else_wrote_over_is_written_anew(bench, api, written):
    bench.look()
    bench.see()
    bench.look(60)
    assert bench.patches() == 1
    api.put_node(status=written)
    bench.see()
    assert bench.look(60) == {BATCH_CPU: "4000", BATCH_MEMORY: str(8 * GIB)}
    assert "somebody else has set" in bench.log.events[-1][2]["reason"]


def test_another_publisher_is_a_trouble_after_three_times_and_is_written_over_at_the_reports_pace(bench, api):
    def undo():
        for place in ("capacity", "allocatable"):
            api.put_node(status={place: {BATCH_CPU: "0", BATCH_MEMORY: str(8 * GIB)}})
        bench.see()

    bench.look()
    for _ in range(MOST_UNDONE):
        assert bench.publisher.status().contested == ""
        undo()
        bench.look(30)
    contested = bench.patches()
    undo()
    for _ in range(8):
        bench.look(30)
    assert bench.patches() == contested, "no duel"
    status = bench.publisher.status()
    assert status.contested == (
        f"another program sets {BATCH_CPU} (to 0) on this Node: stop its node-resource controller, or set "
        "kubernetes.publish = false"
    )
    assert status.quantities == {BATCH_CPU: 0, BATCH_MEMORY: 8 * GIB}

    assert bench.look(160)[BATCH_CPU] == "4000", "the report"
    bench.look(LATEST_S / 2)
    assert bench.publisher.status().contested
    bench.look(LATEST_S / 2)
    assert bench.publisher.status().contested == ""
    undo()
    assert bench.look(60)[BATCH_CPU] == "4000"


def test_kubelet_s_restarts_from_time_to_time_are_no_trouble(bench, api):
    bench.look()
    for _ in range(2 * MOST_UNDONE):
        bench.look(LATEST_S)
        api.put_node(status={"capacity": {BATCH_CPU: "0"}, "allocatable": {BATCH_CPU: "0"}})
        bench.see()
        bench.look(30)
        assert bench.look(LATEST_S)[BATCH_CPU] == "4000"
        assert bench.publisher.status().contested == ""


def test_quantities_in_other_words_are_the_same_number(bench, api):
    bench.source.lend(4.0)
    bench.look()
    for place in ("capacity", "allocatable"):
        api.put_node(status={place: {BATCH_CPU: "4k", BATCH_MEMORY: "8Gi"}})
    bench.see()
    bench.look(60)
    assert bench.patches() == 1


@pytest.mark.parametrize(
    "how",
    [
        {"status": 409},
        {"status": 429, "headers": {"Retry-After": "30"}},
        {"status": 500},
        {"status": 403},
        {"raw": b""},
    ],
    ids=str,
)
def test_patch_that_fails_is_tried_again_ever_more_rarely_and_told_once(bench, api, how):
    api.fail("PATCH", times=3, **how)
    for _ in range(600):
        bench.look(1)
    assert bench.look()[BATCH_CPU] == "4000"
    assert bench.patches() in (5, 6)
    assert bench.log.names()[:3] == ["publishing_failed", "published", "publishing_again"]
    assert bench.publisher.status().trouble == ""


def test_after_hours_without_an_api_server_the_newest_is_published(bench, api):
    bench.look()
    api.stop()
    bench.source.lend(2.0)
    for _ in range(120):
        bench.look(60)
    assert bench.publisher.status().trouble
    bench.source.lend(1.0)
    api.start()
    assert bench.look(121)[BATCH_CPU] == "1000"
    assert bench.log.names() == ["published", "publishing_failed", "published", "publishing_again"]


def test_other_names_replace_the_old_ones(bench):
    bench.look()
    bench.publisher.configure(PublishSettings(resources_called("katalyst")))
    assert bench.look(30) == {
        "resource.katalyst.kubewharf.io/reclaimed_millicpu": "4000",
        "resource.katalyst.kubewharf.io/reclaimed_memory": str(8 * GIB),
    }


@pytest.mark.parametrize("watched", [True, False])
def test_other_names_replace_those_of_an_earlier_process(bench, watched):
    bench.look()
    assert bench.annotation(PUBLISHES) == f"{BATCH_CPU},{BATCH_MEMORY}"
    bench.begin(PublishSettings(resources_called("crane")))
    if watched:
        bench.see()
    assert bench.look(30) == {"gocrane.io/cpu": "4", "gocrane.io/memory": str(8 * GIB)}
    assert bench.annotation(PUBLISHES) == "gocrane.io/cpu,gocrane.io/memory"


def test_annotation_that_is_removed_is_written_anew_and_goes_when_the_names_are_left_to_others(bench, api):
    bench.look()
    api.put_node(metadata={"annotations": {PUBLISHES: None}})
    bench.see()
    bench.look(30)
    assert bench.annotation(PUBLISHES) == f"{BATCH_CPU},{BATCH_MEMORY}"
    bench.source.lend(4.0, withheld="disabled")
    bench.look(30)
    assert bench.annotation(PUBLISHES) == f"{BATCH_CPU},{BATCH_MEMORY}", "0 is published, too"
    bench.publisher.configure(PublishSettings(off="kubernetes.publish is false"))
    bench.look(30)
    assert (bench.annotation(PUBLISHES), bench.patches()) == (None, 4)
    bench.look(3600)
    assert bench.patches() == 4


OFF = PublishSettings(off="kubernetes.publish is false")


def publish_as_another(bench, **amounts):
    """Another system has taken the names that were left to it."""
    status = bench.api.nodes["node1"]["status"]
    for table in ("capacity", "allocatable"):
        status[table] = {**status.get(table, {}), **amounts}
    bench.see()


@pytest.mark.parametrize("status", [403, 503])
def test_write_that_was_not_taken_makes_no_other_system_s_names_ours(bench, status):
    bench.see()
    bench.api.fail("PATCH", status)
    bench.look()
    publish_as_another(bench, **{BATCH_CPU: "7000"})
    bench.publisher.configure(OFF)
    assert bench.look(130)[BATCH_CPU] == "7000"
    assert bench.patches() == 1
    assert bench.publisher.ceased


def write_without_an_answer(bench):
    """It was taken; then the watch shows the Node as it was before, and publishing is switched off."""
    bench.see()
    before = bench.node()
    bench.api.fail("PATCH", cut=10)
    assert bench.look()[BATCH_CPU] == "4000"
    bench.publisher.saw(decoded(msgspec.json.encode(before), Node))
    bench.publisher.configure(OFF)


def test_write_that_was_taken_without_an_answer_is_taken_back(bench):
    write_without_an_answer(bench)
    assert not bench.publisher.ceased
    assert bench.look(130)[BATCH_CPU] == "0"
    assert bench.publisher.ceased


@pytest.mark.parametrize("status", [403, 429])
def test_refused_look_at_the_node_settles_no_write_without_an_answer(bench, status):
    write_without_an_answer(bench)
    bench.api.fail("GET /api/v1/nodes", status)
    bench.look(130)
    assert not bench.publisher.ceased
    assert bench.look(130)[BATCH_CPU] == "0"
    assert bench.publisher.ceased


def test_names_that_were_left_to_others_stay_when_other_names_are_published(bench):
    bench.look()
    bench.publisher.configure(OFF)
    bench.look(30)
    publish_as_another(bench, **{BATCH_CPU: "7000", BATCH_MEMORY: "1"})
    bench.publisher.configure(PublishSettings(resources_called("crane")))
    found = bench.look(30)
    assert (found[BATCH_CPU], found[BATCH_MEMORY], found["gocrane.io/cpu"]) == ("7000", "1", "4")


def test_start_that_leaves_names_to_others_takes_away_those_of_the_annotation_alone(bench):
    bench.begin(PublishSettings(resources_called("crane")))
    bench.look()
    publish_as_another(bench, **{BATCH_CPU: "7000", BATCH_MEMORY: "1"})
    bench.begin(OFF)
    bench.see()
    assert bench.look(30) == {BATCH_CPU: "7000", BATCH_MEMORY: "1"}
    assert bench.annotation(PUBLISHES) is None
    bench.publisher.configure(PublishSettings())
    assert bench.look(30)[BATCH_CPU] == "4000", "it publishes again"


def test_status_tells_the_numbers_and_why(bench):
    bench.look()
    bench.clock.advance(7)
    status = bench.publisher.status()
    assert status.quantities == {BATCH_CPU: 4000, BATCH_MEMORY: 8 * GIB}
    assert status.age_s == 7.0
    assert status.why.startswith(f"{BATCH_CPU} 4000 (4.00 cores): because")


def test_no_pod_has_more_published_than_the_node_has(bench, api):
    """A release of Kubernetes that reads a quantity otherwise lets such a pod in."""
    api.pods = [pod("a", "10E")]
    bench.source.lend(1.0, capacity={CPU: 16.0})
    assert bench.look()[BATCH_CPU] == "16000"


def test_one_pod_that_cannot_be_read_keeps_no_node_from_publishing(bench, api):
    api.pods = [pod("a", "nonsense"), pod("b", "1500")]
    bench.source.lend(1.0)
    assert bench.look()[BATCH_CPU] == "1500"
    bench.source.lend(0.5)
    bench.look(391)
    assert bench.log.names().count("pod_unreadable") == 1


def test_a_pod_whose_sandbox_is_made_anew_keeps_its_promise(bench, api):
    api.pods = [pod("a", "2000")]
    bench.source.lend(1.0, pods=frozenset({"uid-a"}))
    assert bench.look()[BATCH_CPU] == "2000"
    bench.source.lend(1.0)
    assert bench.look(391)[BATCH_CPU] == "1000"
    bench.look(391)
    bench.source.lend(1.0, pods=frozenset({"uid-a"}))
    assert bench.look(60)[BATCH_CPU] == "2000"
