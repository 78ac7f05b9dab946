"""The node's policy: from the annotation, above the file, remembered, reported."""

import asyncio
import json
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.config import OwnFiles
from criproxy.kube.objects import Node, decoded
from criproxy.kube.policy import NONE, PolicyError, PolicyFollower, bounded, parsed
from criproxy.vocabulary.names import POLICIES, POLICY, POLICY_STATUS
from criproxy.vocabulary.policy import MAX_POLICY_BYTES, NODES_OWN, NodePolicy
from tests.fakes.log import FakeLog
from tests.fakes.waiting import until
from tests.kube.conftest import KubeBench

NIGHT = {"version": "7", "name": "night", "settings": {"cpu": {"watermark_ratio": 0.5}}}


class Taker:
    def __init__(self):
        self.times = 0

    def policy_changed(self):
        self.times += 1


class Bench(KubeBench):
    def __init__(self, folder, credential, clock, api):
        super().__init__(credential, clock, api)
        self.folder = folder
        self.config = folder / "config.toml"
        self.config.write_text("[cpu]\nmin_cores = 1.0\nwatermark_ratio = 0.8\n")
        self.start()

    def start(self):
        """As a new process does."""
        self.taker, self.log = Taker(), FakeLog()
        self.own = OwnFiles(self.config)
        self.own.load()
        files = (self.own, self.folder / "state" / "policy.json")
        self.follower = PolicyFollower(self.client, "node1", files, self.taker, **self.how)
        asyncio.run(self.follower.remember())

    def write(self, policy):
        text = policy if isinstance(policy, str) or policy is None else json.dumps(policy)
        self.api.put_node(metadata={"annotations": {POLICY: text}})
        return self.see()

    def see(self):
        """Returns whether something failed."""
        self.follower.saw(decoded(msgspec.json.encode(self.node()), Node))
        return asyncio.run(self.follower.look())

    def edit(self, text):
        """The file is another one, and the daemon has read it."""
        self.config.write_text(text)
        self.own.load(self.follower.in_force.overrides)
        self.follower.look_again()

    def watermark(self):
        """What the daemon would put in force."""
        loaded = self.own.load(self.follower.in_force.overrides)
        return (loaded.instead if loaded.errors else loaded.config).cpu.watermark_ratio

    def report(self):
        text = self.annotation(POLICY_STATUS)
        return None if text is None else json.loads(text)

    def patches(self):
        return len(self.api.seen("PATCH", "node1"))


@pytest.fixture
def bench(tmp_path, credential, clock, api):
    return Bench(tmp_path, credential, clock, api)


def test_policy_holds_above_the_file_and_is_reported(bench):
    assert not bench.write(NIGHT)
    assert bench.watermark() == 0.5
    nothing = {"problems": [], "instead": "", "refused": {}, "ignored": []}
    assert bench.report() == {"version": "7", "inForce": True, **nothing}
    assert bench.taker.times == 1
    status = bench.follower.status()
    assert (status.name, status.version, status.keys) == ("night", "7", ("cpu.watermark_ratio",))


def test_node_without_a_policy_goes_by_its_file_and_reports_nothing(bench):
    assert not bench.see()
    assert (bench.watermark(), bench.report(), bench.patches(), bench.taker.times) == (0.8, None, 0, 0)


def test_same_policy_is_taken_and_reported_once(bench):
    for _ in range(3):
        bench.write(NIGHT)
    assert (bench.patches(), bench.taker.times) == (1, 1)
    assert bench.log.names() == ["policy_taken"]


def test_policy_that_is_removed_leaves_the_file_and_no_report(bench):
    bench.write(NIGHT)
    bench.write(None)
    assert (bench.watermark(), bench.report()) == (0.8, None)
    assert bench.taker.times == 2
    bench.start()
    assert bench.watermark() == 0.8


ALL_IN_THE_CLUSTER_S_HAND: dict[str, dict[str, object]] = {
    "proxy": {"bypass_after_s": "never"},
    "colocation": {
        "enabled": True,
        "on_runtime_overload": "evict",
        "on_unbounded": "evict",
        "presets": ["koordinator"],
        "rules": [{"annotation": "kubernetes.io/config.source", "equals": "api"}],
        "runtime_max_cores": 0.01,
    },
    "hardening": {
        "allow": [{"namespace": True, "prefix": "k"}],
        "cache_classes": False,
        "capabilities": ["ALL"],
        "proc_mount": False,
        "refuse_host_namespaces": [],
        "refuse_host_paths": [],
        "refuse_host_ports": False,
        "refuse_privileged": False,
        "seccomp": False,
        "verified_only": True,
        "writable_host_paths": ["/"],
    },
    "interference": {"queries": [{"name": "all", "promql": "count({__name__=~'.+'})"}]},
    "pids": {"max_ratio": 1.0},
}
"""Every pod of the node would be offline, stopped as it runs outside the box, and kept from nothing."""


HELD_BACK = [
    key for key in NODES_OWN if key.partition(".")[2] in ALL_IN_THE_CLUSTER_S_HAND.get(key.partition(".")[0], {})
]


def test_policy_has_no_power_over_which_pods_are_offline_or_stopped_and_its_rest_holds(bench):
    bench.write({"version": "7", "name": "all", "settings": ALL_IN_THE_CLUSTER_S_HAND})
    config = bench.own.load(bench.follower.in_force.overrides).config
    assert config.colocation.enabled
    assert config == msgspec.structs.replace(
        bench.own.load().config, colocation=msgspec.structs.replace(bench.own.load().config.colocation, enabled=True)
    )
    assert (bench.report()["inForce"], bench.report()["ignored"]) == (True, HELD_BACK)
    status = bench.follower.status()
    assert status.keys == ("colocation.enabled",)
    assert [problem.partition(":")[0] for problem in status.problems] == HELD_BACK
    assert bench.log.names() == ["policy_taken", "policy_keys_ignored"]
    bench.start()
    assert bench.own.load(bench.follower.in_force.overrides).config == config, "as one of before has left it on disk"


BAD = [
    pytest.param("{", "it is no policy", id="no JSON"),
    pytest.param("[]", "it is no policy", id="no object"),
    pytest.param({"version": "8", "setting": {}}, "unknown field", id="misspelled field"),
    pytest.param({"version": 8}, "it is no policy", id="a number for a version"),
    pytest.param({"version": "8", "settings": {"cpu": {"watermark_ratio": 7}}}, "expected a number", id="bound"),
    pytest.param({"version": "8", "settings": {"cpu": {"max_cores": 0.5}}}, "above cpu.max_cores", id="conflict"),
    pytest.param({"version": "8", "settings": {"proxy": {"runtime": "/x"}}}, "only this node's own", id="the node's"),
    pytest.param(json.dumps({"version": "x" * MAX_POLICY_BYTES}), "has more than", id="too long"),
    pytest.param('{"settings":' + '{"a":' * 2000 + "1" + "}" * 2001, "", id="too deep"),
    pytest.param({"version": "8", "settings": {str(n): 1 for n in range(200)}}, "there is no such key", id="many"),
]


@pytest.mark.parametrize(("bad", "words"), BAD)
def test_bad_policy_leaves_the_old_one_in_force_and_is_reported(bench, bad, words):
    bench.write(NIGHT)
    bench.write(bad)
    assert bench.watermark() == 0.5
    report = bench.report()
    assert (report["inForce"], report["instead"]) == (False, "7")
    assert words in report["problems"][0]
    assert len(json.dumps(report)) < 4096
    assert bench.taker.times == 1
    assert bench.follower.status().problems
    assert bench.log.names() == ["policy_taken", "policy_refused"]
    bench.start()
    assert bench.watermark() == 0.5, "a bad one is not remembered"


def test_refused_policy_is_in_force_once_the_file_allows_it(bench):
    bench.write({"version": "8", "settings": {"cpu": {"max_cores": 0.5}}})
    assert not bench.report()["inForce"]
    bench.edit("[cpu]\nmin_cores = 0.2\n")
    assert not asyncio.run(bench.follower.look())
    assert bench.report()["inForce"]


WRONG = "[cpu]\nmin_cores = -1\n"


def test_policy_holds_and_ends_though_the_file_has_an_error_by_now(bench):
    """The cluster's switch is for emergencies: a mistake in a file must neither keep it from working nor keep it on."""
    bench.edit(WRONG)
    bench.write(NIGHT)
    assert (bench.report()["inForce"], bench.watermark()) == (True, 0.5)
    bench.write(None)
    assert (bench.report(), bench.watermark()) == (None, 0.8)
    assert bench.taker.times == 2


def test_policy_is_not_in_force_on_a_file_that_had_errors_from_the_start(bench):
    bench.config.write_text(WRONG)
    bench.start()
    bench.write(NIGHT)
    report = bench.report()
    assert (report["inForce"], report["instead"], bench.taker.times) == (False, "", 0)
    assert report["problems"][0] == "this node's own file has had errors since criproxy began"
    assert "cpu.min_cores = -1" in report["problems"][1]
    bench.edit("[cpu]\nwatermark_ratio = 0.8\n")
    assert not bench.see()
    assert (bench.report()["inForce"], bench.watermark(), bench.taker.times) == (True, 0.5, 1)


def test_remembered_policy_on_a_file_that_had_errors_from_the_start_is_not_said_to_hold_instead(bench):
    bench.write(NIGHT)
    bench.config.write_text(WRONG)
    bench.start()
    bench.see()
    assert (bench.report()["inForce"], bench.report()["instead"]) == (False, "")


def test_no_policy_is_said_to_hold_instead_of_another_on_a_file_that_had_errors_from_the_start(bench):
    bench.write(NIGHT)
    bench.config.write_text(WRONG)
    bench.start()
    bench.write({**NIGHT, "version": "8"})
    assert (bench.report()["inForce"], bench.report()["instead"]) == (False, "")
    status = bench.follower.status()
    assert (status.name, status.version, status.keys) == ("", "", ())
    assert bench.log.events[-1][2]["consequence"] == "no policy holds before the file is in order"


def test_without_an_api_server_the_last_policy_holds_after_a_restart(bench, api):
    bench.write(NIGHT)
    api.stop()
    bench.start()
    assert bench.watermark() == 0.5
    assert bench.follower.status().version == "7"


def test_remembered_policy_is_not_taken_anew_when_it_is_seen_again(bench):
    bench.write(NIGHT)
    bench.start()
    bench.see()
    assert (bench.taker.times, bench.patches()) == (0, 1)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"x":1}'])
def test_file_that_is_none_of_ours_leaves_the_nodes_own(bench, data):
    bench.write(NIGHT)
    (bench.folder / "state" / "policy.json").write_bytes(data)
    bench.start()
    assert bench.follower.in_force == NONE
    assert bench.log.names() == ["policy_not_remembered"]


def test_node_that_is_gone_changes_nothing(bench):
    bench.write(NIGHT)
    bench.follower.saw(None)
    assert not asyncio.run(bench.follower.look())
    assert bench.watermark() == 0.5


def test_policy_that_cannot_be_kept_is_in_force_and_kept_once_it_can_be(bench):
    """A full disk must not keep the cluster's switch from working."""
    (bench.folder / "state").write_text("no folder")
    assert bench.write(NIGHT)
    assert (bench.watermark(), bench.taker.times, bench.report()["inForce"]) == (0.5, 1, True)
    assert "can't be kept for a restart" in bench.follower.status().trouble
    assert bench.see(), "it is tried again"
    (bench.folder / "state").unlink()
    assert not bench.see()
    assert (bench.follower.status().trouble, bench.taker.times, bench.patches()) == ("", 1, 1)
    bench.start()
    assert bench.watermark() == 0.5


def test_policy_that_arrives_while_the_disk_hangs_is_in_force(bench, monkeypatch):
    """A hung disk must not keep the cluster's switch from working."""
    goes_on = threading.Event()
    monkeypatch.setattr("criproxy.kube.policy._DISK_S", 1.0)
    monkeypatch.setattr("criproxy.kube.policy.PolicyFile.write", lambda *_: goes_on.wait(60))
    bench.start()
    try:
        assert bench.write(NIGHT)
        assert bench.write({"version": "8", "settings": {"colocation": {"enabled": False}}})
        assert bench.follower.in_force.policy.version == "8"
        assert (bench.report()["version"], bench.report()["inForce"]) == ("8", True)
        assert "can't be kept for a restart" in bench.follower.status().trouble
    finally:
        goes_on.set()


def test_file_that_could_not_be_read_is_written_anew(bench):
    bench.write(NIGHT)
    (bench.folder / "state" / "policy.json").write_bytes(b"{")
    bench.start()
    bench.see()
    bench.start()
    assert bench.watermark() == 0.5


@pytest.mark.parametrize("how", [{"status": 409}, {"status": 500}, {"raw": b""}], ids=str)
def test_policy_holds_though_its_report_cannot_be_written_yet(bench, api, how):
    api.fail("PATCH", **how)
    assert bench.write(NIGHT)
    assert (bench.watermark(), bench.report()) == (0.5, None)
    assert not bench.see()
    assert bench.report()["inForce"]


# --- several policies, each of which is tried by itself ---------------------------------------------------------------

OFF = {"colocation": {"enabled": False, "on_disable": "evict"}}
TYPO = {"cpu": {"watermark": 0.5}}


def part(name, settings, version="1"):
    return {"name": name, "version": version, "settings": settings}


def tell(bench, *parts, version="9", together=None):
    """As the controller does, the part that wins last. `together`: as people have made the first annotation."""
    settings: dict = {}
    for one in parts:
        for section, table in one["settings"].items():
            settings[section] = {**settings.get(section, {}), **table}
    name = "+".join(f"{one['name']}.{one['version']}" for one in parts)
    policy = {"version": version, "name": name, "settings": settings if together is None else together}
    bench.api.put_node(metadata={"annotations": {POLICY: json.dumps(policy), POLICIES: json.dumps(parts)}})
    assert not bench.see()


def enabled(bench):
    loaded = bench.own.load(bench.follower.in_force.overrides)
    return (loaded.instead if loaded.errors else loaded.config).colocation.enabled


@pytest.fixture
def lending(bench):
    bench.config.write_text("[cpu]\nmin_cores = 1.0\nwatermark_ratio = 0.8\n[colocation]\nenabled = true\n")
    bench.start()
    return bench


def test_policy_with_a_typo_is_left_out_and_named_and_holds_up_no_other(lending):
    tell(lending, part("a", TYPO), part("b", OFF))
    assert not enabled(lending)
    report = lending.report()
    assert (report["version"], report["inForce"], report["instead"]) == ("9", False, "")
    assert list(report["refused"]) == ["a"]
    assert "policy a (1): cpu.watermark = 0.5: there is no such key" in report["refused"]["a"]
    status = lending.follower.status()
    assert (status.name, status.keys) == ("b.1", ("colocation.enabled", "colocation.on_disable"))
    assert "policy a (1)" in status.problems[0]
    events = {name: fields for _, name, fields in lending.log.events}
    assert list(events) == ["policy_refused", "policy_taken"]
    assert events["policy_refused"]["consequence"] == "b.1 holds"
    assert lending.taker.times == 1


def test_policies_that_are_all_refused_leave_the_file(lending):
    tell(lending, part("a", TYPO), part("b", {"cpu": {"watermark_ratio": 7}}))
    assert (lending.watermark(), enabled(lending)) == (0.8, True)
    assert lending.report()["refused"].keys() == {"a", "b"}
    assert lending.log.events[0][2]["consequence"] == "the file holds"


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_policy_that_gets_a_typo_holds_on_as_it_was_before(lending, restarted):
    """A mistake in the cluster's switch must not turn it off."""
    tell(lending, part("a", OFF))
    if restarted:
        lending.start()
    tell(lending, part("a", {**OFF, **TYPO}, "2"), part("b", {"cpu": {"watermark_ratio": 0.5}}), version="10")
    assert (enabled(lending), lending.watermark()) == (False, 0.5)
    assert list(lending.report()["refused"]) == ["a"]
    assert lending.follower.status().name == "a.1+b.1"
    lending.start()
    assert (enabled(lending), lending.watermark()) == (False, 0.5), "remembered"
    tell(lending, part("b", {"cpu": {"watermark_ratio": 0.5}}), version="11")
    assert enabled(lending), "it is gone"


NEWER = {"cpu": {"key_of_a_newer_version": 1}}


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_policy_that_has_a_key_of_a_newer_version_switches_this_node_off_all_the_same(lending, restarted):
    """As amid an upgrade: the cluster's side knows the key, and some nodes do not yet."""
    before = {"cpu": {"watermark_ratio": 0.5}}
    tell(lending, part("a", before))
    tell(lending, part("a", {**OFF, **NEWER}, "2"), version="10")
    if restarted:
        lending.start()
    assert (enabled(lending), lending.watermark()) == (False, 0.5)
    assert list(lending.report()["refused"]) == ["a"], "it is told all the same"
    assert lending.follower.status().name == "a.1+a/switch.2"
    tell(lending, part("a", NEWER, "3"), version="11")
    assert (enabled(lending), list(lending.report()["refused"])) == (True, ["a"])


def test_switch_of_a_policy_that_is_refused_holds_also_where_none_was_in_force_before(lending):
    tell(lending, part("a", {**OFF, **NEWER}), part("b", {"cpu": {"watermark_ratio": 0.5}}))
    assert (enabled(lending), lending.watermark()) == (False, 0.5)
    tell(lending, part("a", {"colocation": {"enabled": False, "on_disable": 7}}, "2"), version="10")
    assert not enabled(lending) and list(lending.report()["refused"]) == ["a"]
    tell(lending, part("a", {"colocation": {"enabled": True, "on_disable": 7}}, "3"), version="11")
    assert enabled(lending)


def test_switch_holds_on_though_neither_a_policy_nor_the_one_before_it_fits(lending):
    tell(lending, part("a", {**OFF, "cpu": {"max_cores": 2.0}}))
    tell(lending, part("a", {**OFF, **NEWER}, "2"), version="10")
    lending.edit("[cpu]\nmin_cores = 3.0\n[colocation]\nenabled = true\n")
    assert not enabled(lending), "before the policies are looked at again"
    asyncio.run(lending.follower.look())
    assert (enabled(lending), lending.follower.status().name) == (False, "a/switch.1")


def test_switch_of_a_policy_that_is_refused_gives_way_to_what_wins_over_it(lending):
    tell(lending, part("a", {**OFF, **NEWER}), part("b", {"colocation": {"enabled": True}}))
    assert enabled(lending)


def test_policy_that_is_put_right_is_in_force(lending):
    tell(lending, part("a", TYPO), part("b", OFF))
    tell(lending, part("a", {"cpu": {"watermark_ratio": 0.5}}, "2"), part("b", OFF), version="10")
    assert lending.watermark() == 0.5
    assert (lending.report()["version"], lending.report()["inForce"]) == ("10", True)


def test_policy_that_the_file_does_not_fit_any_more_holds_up_no_other(lending):
    tell(lending, part("a", {"cpu": {"max_cores": 2.0}}), part("b", OFF))
    lending.edit("[cpu]\nmin_cores = 3.0\n[colocation]\nenabled = true\n")
    assert not enabled(lending), "before the policies are looked at again"
    asyncio.run(lending.follower.look())
    assert not enabled(lending)
    assert list(lending.report()["refused"]) == ["a"]


NOT_ITS_PARTS = {
    "none": None,
    "no JSON": "{",
    "no list": "{}",
    "a field of a later controller": json.dumps([{**part("b", OFF), "priority": 1}]),
    "others": json.dumps([part("b", {"cpu": {"watermark_ratio": 0.3}})]),
    "too long": json.dumps([part("b" * MAX_POLICY_BYTES, OFF)]),
}


@pytest.mark.parametrize("parts", NOT_ITS_PARTS.values(), ids=NOT_ITS_PARTS)
def test_parts_that_do_not_make_the_policy_count_for_nothing(lending, parts):
    """A controller of before writes none, and leaves those of a later one; people write the first annotation alone."""
    policy = {"version": "7", "name": "by hand", "settings": OFF}
    lending.api.put_node(metadata={"annotations": {POLICY: json.dumps(policy), POLICIES: parts}})
    assert not lending.see()
    assert (enabled(lending), lending.watermark(), lending.report()["inForce"]) == (False, 0.8, True)
    assert lending.follower.in_force.parts == ()


def test_file_of_what_holds_can_be_read_by_a_criproxy_of_before_and_from_one(lending):
    tell(lending, part("a", {"cpu": {"watermark_ratio": 0.5}}), part("b", OFF))
    file = lending.folder / "state" / "policy.json"
    kept = json.loads(file.read_text())
    assert kept.keys() == {"version", "name", "settings"}
    (lending.folder / "state" / "policies.json").unlink()
    lending.start()
    assert (lending.watermark(), enabled(lending), lending.follower.in_force.parts) == (0.5, False, ())


def test_report_of_many_refused_policies_is_bounded(lending):
    tell(lending, *(part(f"p{number:03}", {"cpu": {f"k{number}": "x" * 200}}) for number in range(40)))
    refused = lending.report()["refused"]
    assert (len(refused), sum(map(bool, refused.values()))) == (40, 20)
    assert len(json.dumps(lending.report())) < 8192


def annotate(bench, policy):
    bench.api.put_node(metadata={"annotations": {POLICY: json.dumps(policy)}})
    bench.follower.saw(decoded(msgspec.json.encode(bench.api.nodes["node1"]), Node))


def test_run_follows_until_it_is_cancelled(bench, api, monkeypatch):
    failed = []

    def pause_s(failures, _luck):
        failed.append(failures)
        return 0.01

    monkeypatch.setattr("criproxy.kube.policy.pause_s", pause_s)

    async def scenario():
        task = asyncio.create_task(bench.follower.run())
        api.fail("PATCH", 500, times=2)
        annotate(bench, NIGHT)
        await until(bench.report)
        task.cancel()

    asyncio.run(scenario())
    assert bench.watermark() == 0.5
    assert failed == [1, 2]


def test_policy_that_arrives_in_a_pause_is_in_force_at_once(bench, api, monkeypatch):
    monkeypatch.setattr("criproxy.kube.policy.pause_s", lambda _failures, _luck: 100.0)
    api.fail("PATCH", 500, times=1)

    async def scenario():
        task = asyncio.create_task(bench.follower.run())
        annotate(bench, NIGHT)
        await until(lambda: bench.follower.status().trouble)
        annotate(bench, {"version": "8", "settings": {"colocation": {"enabled": False}}})
        await until(lambda: bench.follower.in_force.policy.version == "8")
        await until(bench.report)
        task.cancel()

    bench.clock.sleep = asyncio.sleep
    asyncio.run(scenario())


@given(st.text(max_size=200))
def test_any_text_is_a_policy_or_an_error(text):
    try:
        assert isinstance(parsed(text), NodePolicy)
    except PolicyError:
        return


def test_problems_are_bounded():
    found = bounded(["x" * 10_000] * 9)
    assert [len(problem) for problem in found] == [300, 300, 300, 300, 300, 6]
    assert found[-1] == "4 more"
