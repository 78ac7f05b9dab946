"""The daemon's part of Kubernetes, at a fake API server: what it begins with, and that no fault of it goes further."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from criproxy.config import OwnFiles
from criproxy.config.settings import Config, Control, Proxy, ResourceTable
from criproxy.config.settings import Kubernetes as Settings
from criproxy.control.interference.ladder import Rung, Transition
from criproxy.control.pod_speed import Feedback
from criproxy.control.policy import PolicyState, StaticSettings, decide
from criproxy.control.publication import OpenBoxSettings
from criproxy.daemon.kubernetes import (
    KubernetesPart,
    PublishedMark,
    load_first,
    mark_file,
    marked,
    policy_file,
    publish_settings,
)
from criproxy.daemon.upgrade.channel import KubernetesMemory
from criproxy.kube.extended_resources import ExtendedResource, resources_called
from criproxy.model import CPU, Bounds, GivingBack, PodRef, ResourceDecision, ResourcePrediction
from criproxy.model.modes import Mode, Modes
from criproxy.observe.metrics import Metrics
from criproxy.pods.stopping import BudgetError, KnownPod, RefusedError
from criproxy.vocabulary.gives_back import Note, encoded
from criproxy.vocabulary.names import GIVES_BACK, POLICY, PUBLISHES
from tests.fakes.apiserver import BUDGET, Fault
from tests.fakes.log import FakeLog
from tests.fakes.waiting import until
from tests.kube.conftest import api, authority
from tests.kube.test_together import Hurried
from tests.rows import laws, predictions, snapshot

__all__ = ["api", "authority"]

GIB = 1 << 30
JOB = PodRef("uid-a", "default", "a")


class Offering:
    def __init__(self, clock):
        self.clock, self.modes, self.pods = clock, Modes({}), frozenset[str]()

    def decided(self):
        sample = snapshot(self.clock.boottime_s(), (4.0, 2.0, 0.5, 1.5), (8 * GIB, 4 * GIB, GIB, 3 * GIB))
        settings = laws(cpu=StaticSettings(1.5), memory=StaticSettings(GIB))
        return sample, decide(sample, predictions(None, None), PolicyState(), settings)[0], self.modes

    def offline_uids(self):
        return self.pods


class OpenBox(Offering):
    """Of 4 cores, online may use 3.5 within the hour."""

    def decided(self):
        sample, decision, modes = super().decided()
        predicted = ResourcePrediction(2.0, hour=3.5, recent=1.5)
        cpu = ResourceDecision(4.0, "open", Bounds(0.1, None, 0.0, 0.9), predicted, open=True)
        return sample, replace(decision, resources={**decision.resources, CPU: cpu}), modes


class Measures:
    feedback = Feedback(0.5)


def lose(file):
    """Where the state lies is said beside it."""
    (drop_ins := file.with_name("config.d")).mkdir(exist_ok=True)
    (drop_ins / "state.toml").write_text(f'[control]\ncheckpoint = "{file.parent}/predictor.json"\n')
    file.unlink()


class Bench:
    def __init__(self, folder, kubeconfig, *, dry_run=False, publish=True, text="", lost=False):
        self.file, self.clock, self.log, self.changes = folder / "config.toml", Hurried(), FakeLog(), 0
        right = f'[control]\ncheckpoint = "{folder}/predictor.json"\n[kubernetes]\nenabled = true\n'
        self.file.write_text(text or right)
        self.config = Config(
            control=Control(checkpoint=f"{folder}/predictor.json"),
            kubernetes=Settings(enabled=True, kubeconfig=str(kubeconfig), publish=publish),
        )
        self.metrics, self.offering = Metrics("1", shown=(KubernetesPart,)), Offering(self.clock)
        self.measures = Measures()
        own = OwnFiles(self.file)
        if lost:
            lose(self.file)
        loaded = load_first(own, dry_run=dry_run)
        if lost:
            self.config = loaded.config
        self.part = KubernetesPart(
            own,
            self.config,
            self.changed,
            dry_run=dry_run,
            metrics=self.metrics,
            clock=self.clock,
            log=self.log,
        )

    def changed(self):
        self.changes += 1

    def run(self, scenario):
        async def beside():
            running = asyncio.create_task(self.part.run(self.offering, self.measures))
            try:
                async with asyncio.timeout(20):
                    return await scenario()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

        return asyncio.run(beside())


@pytest.fixture
def bench(tmp_path, authority, api):
    return Bench(tmp_path, authority.kubeconfig(api.port))


def batch_cpu(api):
    return api.nodes["node1"]["status"].get("allocatable", {}).get("kubernetes.io/batch-cpu")


def test_node_of_the_certificate_publishes_what_is_decided_and_0_when_it_is_off(bench, api):
    async def scenario():
        await until(lambda: batch_cpu(api) == "1500" and bench.part.status().published)
        shown = bench.part.status()
        bench.offering.modes, bench.offering.pods = Modes({Mode.DISABLED: ""}), frozenset({"a", "b"})
        await until(lambda: batch_cpu(api) == "0")
        return shown

    shown = bench.run(scenario)
    assert (shown.node, shown.trouble, shown.published["kubernetes.io/batch-cpu"]) == ("node1", "", 1500)
    assert "disabled" in bench.part.status().why and bench.part.status().why.endswith("that run on: 2")


def test_open_box_publishes_by_the_forecast_and_by_what_pods_got_of_it(bench, api):
    bench.offering = OpenBox(bench.clock)

    async def scenario():
        before = bench.part.promised_cores()
        await until(lambda: batch_cpu(api) == "1000")
        bench.measures.feedback = Feedback(0.5, 2.0)
        await until(lambda: batch_cpu(api) == "500" and bench.part.promised_cores() == 0.5)
        return before, bench.part.why()

    before, why = bench.run(scenario)
    assert before is None, "nothing was published yet"
    assert "1.00 x (4.00 cores - 3.50 cores that online may use within the hour), so that pods keep 50%" in why
    assert "2.00 x moved by what they got" in why


def test_switching_off_the_publishing_withdraws_what_was_published_once(bench, api):
    async def scenario():
        await until(lambda: batch_cpu(api) == "1500")
        bench.part.configure(Config(kubernetes=Settings(enabled=True, publish=False)))
        await until(lambda: batch_cpu(api) == "0")
        patches = len(api.seen("PATCH", "/status"))
        await asyncio.sleep(5.0)  # 500 s of the node's time
        return patches

    assert bench.run(scenario) == len(api.seen("PATCH", "/status"))


def test_node_that_never_published_leaves_the_names_to_others(tmp_path, authority, api):
    bench = Bench(tmp_path, authority.kubeconfig(api.port), publish=False)
    api.put_node(status={"allocatable": {"kubernetes.io/batch-cpu": "7"}, "capacity": {"kubernetes.io/batch-cpu": "7"}})

    async def scenario():
        await until(lambda: api.watchers)
        await asyncio.sleep(1.0)

    bench.run(scenario)
    assert (batch_cpu(api), api.seen("PATCH", "/status")) == ("7", [])


def test_kubeconfig_that_comes_later_is_found_and_until_then_named_in_the_status(tmp_path, authority, api):
    late = authority.folder / "late.conf"
    bench = Bench(tmp_path, late)

    async def scenario():
        await until(lambda: str(late) in bench.part.status().trouble)
        late.write_bytes(authority.kubeconfig(api.port).read_bytes())
        await until(lambda: batch_cpu(api) == "1500")

    bench.run(scenario)
    assert [name for name in bench.log.names() if name == "kubernetes_not_begun"] == ["kubernetes_not_begun"]


def test_dry_run_asks_no_api_server(tmp_path, authority, api):
    bench = Bench(tmp_path, authority.kubeconfig(api.port), dry_run=True)
    bench.run(lambda: asyncio.sleep(0.2))
    assert (bench.part.status(), api.requests) == (None, [])


def test_fault_of_a_part_is_logged_and_all_begins_anew(bench, api, monkeypatch):
    faults = iter([ZeroDivisionError("a bug")])
    look = "criproxy.kube.publisher.Publisher.look"
    monkeypatch.setattr(look, lambda _: (_ for _ in ()).throw(next(faults)))

    async def scenario():
        await until(lambda: "kubernetes_failed" in bench.log.names())
        monkeypatch.undo()
        await until(lambda: batch_cpu(api) == "1500")

    bench.run(scenario)


def test_kubeconfig_that_goes_once_all_had_begun_is_said(bench, api, authority, monkeypatch):
    """The numbers that were published stand on; that they are old must not be all that is seen."""
    kubeconfig = authority.folder / "moved.conf"

    async def scenario():
        await until(lambda: batch_cpu(api) == "1500" and bench.part.status().published)
        Path(bench.config.kubernetes.kubeconfig).rename(kubeconfig)  # noqa: ASYNC240
        monkeypatch.setattr("criproxy.kube.publisher.Publisher.look", lambda _: 1 / 0)
        await until(lambda: "kubernetes_not_begun" in bench.log.names())
        return bench.part.status()

    try:
        shown = bench.run(scenario)
    finally:
        kubeconfig.rename(bench.config.kubernetes.kubeconfig)
    assert shown.published
    assert bench.config.kubernetes.kubeconfig in shown.trouble


def test_eviction_that_is_under_way_when_the_part_ceases_goes_no_further(bench, api):
    put_pod(api)

    async def scenario():
        await until(lambda: api.watchers and bench.part.status().published)  # else that takes the slow answer
        api.fail("PATCH", slow_s=0.5)
        assert await bench.part.evict(JOB, "why", within_s=0.05) is None

    bench.run(scenario)
    assert (len(api.pods), api.evictions) == (1, [])


def test_eviction_at_a_start_waits_for_the_first_contact(bench, api):
    put_pod(api)

    async def scenario():
        assert await bench.part.evict(JOB, "why", within_s=10.0) is not None

    bench.run(scenario)
    assert api.evictions


# --- the mark --------------------------------------------------------------------------------------------------------


def published(bench, api):
    """It has been at work, and has left the mark."""

    async def scenario():
        await until(lambda: batch_cpu(api) == "1500" and mark_file(bench.config).exists())

    bench.run(scenario)


def test_node_that_has_lost_its_config_takes_back_what_it_published_once(bench, api, tmp_path, authority):
    published(bench, api)
    assert mark_file(bench.config).stat().st_mode & 0o777 == 0o600
    after = Bench(tmp_path, authority.kubeconfig(api.port), lost=True)
    assert after.config.kubernetes.kubeconfig == bench.config.kubernetes.kubeconfig

    async def scenario():
        await until(lambda: batch_cpu(api) == "0")
        patches = len(api.seen("PATCH", "/status"))
        await asyncio.sleep(2.0)  # 200 s of the node's time
        return patches

    assert after.run(scenario) == len(api.seen("PATCH", "/status"))
    assert PUBLISHES not in api.nodes["node1"]["metadata"]["annotations"]


def test_node_whose_config_is_back_publishes_again_unless_it_says_not_to(bench, api, tmp_path, authority):
    published(bench, api)
    after = Bench(tmp_path, authority.kubeconfig(api.port), lost=True)

    async def scenario():
        await until(lambda: batch_cpu(api) == "0")
        after.part.configure(Config())
        await asyncio.sleep(2.0)
        assert batch_cpu(api) == "0"
        after.part.configure(bench.config)
        await until(lambda: batch_cpu(api) == "1500")

    after.run(scenario)


@pytest.mark.parametrize("text", ["", "{", '{"kubernetes": {"names": 3}}', "[" * 5000])
def test_mark_that_cannot_be_read_counts_with_the_defaults(tmp_path, text):
    bench = Bench(tmp_path, tmp_path / "kubeconfig")
    mark_file(bench.config).write_text(text)
    after = Bench(tmp_path, tmp_path / "kubeconfig", lost=True)
    assert after.config.kubernetes == Settings(enabled=True, publish=False)


def test_mark_goes_once_what_was_published_is_taken_back_and_comes_again(bench, api):
    file = mark_file(bench.config)

    async def scenario():
        await until(lambda: batch_cpu(api) == "1500" and file.exists())
        api.fail("PATCH", 503)
        bench.part.configure(replace(bench.config, kubernetes=replace(bench.config.kubernetes, publish=False)))
        await until(lambda: not file.exists())
        assert (batch_cpu(api), PUBLISHES in api.nodes["node1"]["metadata"]["annotations"]) == ("0", False)
        bench.part.configure(bench.config)
        await until(file.exists)

    bench.run(scenario)


def test_mark_stays_while_what_was_published_can_not_be_taken_back(bench, api):
    file = mark_file(bench.config)

    async def scenario():
        await until(lambda: batch_cpu(api) == "1500" and file.exists())
        api.stop()
        bench.part.configure(replace(bench.config, kubernetes=replace(bench.config.kubernetes, publish=False)))
        await asyncio.sleep(1.0)  # 100 s of the node's time

    bench.run(scenario)
    assert file.exists()


OFF = "[kubernetes]\nenabled = false\n"


@pytest.mark.parametrize(
    ("text", "drop_in", "enabled"),
    [
        pytest.param(OFF + "typo = 1", "", False, id="an unknown key"),
        pytest.param(OFF + "".join(f"typo{n} = 1\n" for n in range(25)), "", False, id="more errors than are shown"),
        pytest.param("", OFF + "typo = 1", False, id="in a drop-in"),
        pytest.param("typo = 1", "", True, id="not said"),
        pytest.param("[kubernetes]\nenabled = 0", "", True, id="said wrongly"),
        pytest.param(OFF, "[kubernetes]\nenabled = tru", True, id="a drop-in that is no TOML may say otherwise"),
    ],
)
def test_mark_counts_only_where_the_files_do_not_say_that_kubernetes_is_off(text, drop_in, enabled, tmp_path):
    file, drop_ins = tmp_path / "config.toml", tmp_path / "config.d"
    drop_ins.mkdir()
    file.write_text(text)
    (drop_ins / "a.toml").write_text(drop_in)
    (drop_ins / "state.toml").write_text(f'[control]\ncheckpoint = "{tmp_path}/predictor.json"\n')
    (tmp_path / "published.json").write_bytes(msgspec.json.encode(PublishedMark(Settings(enabled=True))))
    loaded = load_first(OwnFiles(file), dry_run=False)
    assert (bool(loaded.errors), loaded.config.kubernetes.enabled) == (True, enabled)


def test_old_mark_leaves_the_names_to_those_who_publish_them_now(bench, api, tmp_path, authority):
    published(bench, api)
    lent = {"kubernetes.io/batch-cpu": "7"}
    api.delete_node()
    api.put_node(status={"allocatable": lent, "capacity": lent})
    after = Bench(tmp_path, authority.kubeconfig(api.port), lost=True)
    patches = len(api.seen("PATCH", "/status"))

    async def scenario():
        await until(lambda: after.part.status().node)
        await asyncio.sleep(1.0)

    after.run(scenario)
    assert (batch_cpu(api), len(api.seen("PATCH", "/status"))) == ("7", patches)


def test_node_without_a_config_and_without_a_mark_asks_no_api_server(tmp_path, authority, api):
    bench = Bench(tmp_path, authority.kubeconfig(api.port), lost=True)
    bench.run(lambda: asyncio.sleep(0.2))
    assert (bench.part.status(), api.requests) == (None, [])


def test_dry_run_of_a_node_that_lends_takes_it_back(bench, api, tmp_path, authority):
    published(bench, api)
    after = Bench(tmp_path, authority.kubeconfig(api.port), dry_run=True)
    after.offering.modes = Modes({Mode.DRY_RUN: ""})

    async def scenario():
        await until(lambda: batch_cpu(api) == "0")

    after.run(scenario)
    assert "dry run" in after.part.why()


def test_dry_run_of_a_node_that_lends_begins_with_the_policy_that_it_follows(bench, api):
    published(bench, api)
    write_policy(bench, cpu={"reserve_cores": 2.0})
    assert load_first(OwnFiles(bench.file), dry_run=True).config.cpu.reserve_cores == 2.0


def test_dry_run_of_a_node_that_lends_and_has_lost_its_config_takes_it_back(bench, api, tmp_path, authority):
    published(bench, api)
    after = Bench(tmp_path, authority.kubeconfig(api.port), dry_run=True, lost=True)

    async def scenario():
        await until(lambda: batch_cpu(api) == "0")

    after.run(scenario)


def test_dry_run_beside_the_criproxy_that_publishes_leaves_the_node_to_it(tmp_path, authority):
    kubernetes = Settings(enabled=True, kubeconfig=str(authority.kubeconfig(1)))
    mark = msgspec.json.encode(PublishedMark(kubernetes, Proxy().listen_path))
    (tmp_path / "published.json").write_bytes(mark)
    trial = f'proxy.listen = "{tmp_path}/trial.sock"\ncontrol.checkpoint = "{tmp_path}/predictor.json"\n'
    file = tmp_path / "trial.toml"
    for text in (trial + "kubernetes.enabled = true", trial + "typo = 1"):
        file.write_text(text)
        own = OwnFiles(file)
        config = load_first(own, dry_run=True).config
        assert config.kubernetes.publish, text
        part = KubernetesPart(
            own, config, lambda: None, dry_run=True, metrics=Metrics("1"), clock=Hurried(), log=FakeLog()
        )
        assert part.status() is None, text


def test_dry_run_leaves_the_mark_as_it_is(bench, api, tmp_path, authority):
    published(bench, api)
    before = mark_file(bench.config).read_bytes()
    after = Bench(tmp_path, authority.kubeconfig(api.port), dry_run=True)
    other = replace(after.config, kubernetes=replace(after.config.kubernetes, names="crane"))

    async def scenario():
        await until(lambda: after.part.status().node)
        after.part.configure(other)
        await until(lambda: "gocrane.io/cpu" in api.nodes["node1"]["status"]["allocatable"])

    after.run(scenario)
    assert mark_file(bench.config).read_bytes() == before


def test_mark_follows_the_config_and_is_written_once_the_disk_takes_it(tmp_path, authority, api):
    bench = Bench(tmp_path, authority.kubeconfig(api.port), publish=False)
    temporary = mark_file(bench.config).with_name("published.json.tmp")
    temporary.mkdir()

    async def scenario():
        await until(lambda: bench.part.status().node)
        await asyncio.sleep(0.2)
        assert not bench.log.names().count("mark_not_written"), "nothing is published"
        bench.part.configure(replace(bench.config, kubernetes=replace(bench.config.kubernetes, publish=True)))
        await until(lambda: "mark_not_written" in bench.log.names() and batch_cpu(api) == "1500")
        temporary.rmdir()
        await until(lambda: marked(bench.config) is not None)

    bench.run(scenario)
    assert bench.log.names().count("mark_not_written") == 1
    assert marked(bench.config).kubernetes.kubeconfig == bench.config.kubernetes.kubeconfig


# --- the policy ------------------------------------------------------------------------------------------------------


def write_policy(bench, **settings):
    policy_file(bench.config).write_text(json.dumps({"version": "7", "name": "night", "settings": settings}))


def test_policy_that_held_last_holds_from_the_start(bench):
    write_policy(bench, cpu={"reserve_cores": 2.0})
    loaded = load_first(OwnFiles(bench.file), dry_run=False)
    assert (loaded.config.cpu.reserve_cores, loaded.errors) == (2.0, ())
    assert load_first(OwnFiles(bench.file), dry_run=True).config.cpu.reserve_cores == 0.0


def test_remembered_switch_holds_at_the_start_though_its_policy_is_refused_by_now(bench, tmp_path, authority):
    """As a downgraded node does, with a key that it does not know, while the API server is away."""
    bench.file.write_text(bench.file.read_text() + "[colocation]\nenabled = true\n")
    write_policy(bench, colocation={"enabled": False}, cpu={"key_of_a_newer_version": 1})
    loaded = load_first(OwnFiles(bench.file), dry_run=False)
    assert (loaded.config.colocation.enabled, loaded.errors) == (False, ())
    after = Bench(tmp_path, authority.kubeconfig(1), text=bench.file.read_text())
    assert not after.part.load(after.file).config.colocation.enabled, "nor at a reload"


def test_files_are_read_once_at_the_start_where_no_policy_held(tmp_path, monkeypatch):
    reads, real = [], OwnFiles.load

    def load(own, overrides=()):
        reads.append(own.path)
        return real(own, overrides)

    monkeypatch.setattr(OwnFiles, "load", load)
    bench = Bench(tmp_path, tmp_path / "kubeconfig")
    assert reads == [bench.file]


@pytest.mark.parametrize("text", ["{", '{"settings": {"cpu": {"reserve_cores": -1}}}', '{"settings": {"proxy": {}}}x'])
def test_policy_that_does_not_fit_any_more_is_left_out(bench, text):
    policy_file(bench.config).write_text(text)
    loaded = load_first(OwnFiles(bench.file), dry_run=False)
    assert (loaded.config.cpu.reserve_cores, loaded.errors) == (0.0, ())


def test_policy_that_held_last_holds_on_once_the_node_is_watched_where_the_server_is_away(bench, api):
    write_policy(bench, cpu={"reserve_cores": 2.0})
    api.stop()

    async def scenario():
        await until(lambda: bench.part.status().node)
        return bench.part.load(bench.file).config.cpu.reserve_cores

    assert bench.run(scenario) == 2.0


def switched_off_on_a_full_disk(bench, api):
    """The cluster's policy is in force, and can't be kept."""
    policy_file(bench.config).with_name("policy.json.tmp").mkdir()
    api.put_node(metadata={"annotations": {POLICY: json.dumps({"version": "8", "settings": RESERVE})}})

    async def scenario():
        await until(lambda: bench.changes and "can't be kept" in bench.part.status().trouble)

    bench.run(scenario)
    api.stop()


RESERVE = {"cpu": {"reserve_cores": 1.5}}


def test_no_policy_holds_above_files_that_do_not_switch_kubernetes_on(bench, api):
    """It was begun by the mark, or was switched off since."""
    api.put_node(metadata={"annotations": {POLICY: json.dumps({"version": "8", "settings": RESERVE})}})

    async def scenario():
        await until(lambda: bench.part.load(bench.file).config.cpu.reserve_cores == 1.5)
        right = bench.file.read_text()
        bench.file.write_text(right.replace("true", "false"))
        loaded = bench.part.load(bench.file)
        assert (loaded.config.cpu.reserve_cores, loaded.errors) == (0.0, ())
        bench.part.configure(loaded.config)
        assert bench.part.status().policy.keys == ()
        bench.file.write_text(right)
        assert bench.part.load(bench.file).config.cpu.reserve_cores == 1.5
        bench.file.write_text("typo = 1")
        assert bench.part.load(bench.file).instead.cpu.reserve_cores == 1.5, "it holds by the files of before"

    bench.run(scenario)


def test_policy_that_no_disk_has_holds_in_the_process_that_takes_over(bench, api, tmp_path, authority):
    switched_off_on_a_full_disk(bench, api)
    sent = msgspec.json.encode(bench.part.memory())
    after = Bench(tmp_path, authority.kubeconfig(api.port))
    assert after.part.load(after.file).config.cpu.reserve_cores == 0.0
    after.part.go_on_by(msgspec.json.decode(sent, type=KubernetesMemory))
    assert after.part.load(after.file).config.cpu.reserve_cores == 1.5

    async def scenario():
        await until(lambda: after.part.status().node)
        return after.part.load(after.file).config.cpu.reserve_cores

    assert after.run(scenario) == 1.5, "the API server is away"


def test_policy_that_no_disk_has_holds_after_a_hand_over_that_failed(bench, api):
    switched_off_on_a_full_disk(bench, api)
    before = bench.part._side

    async def scenario():
        await until(lambda: bench.part._side is not before)
        return bench.part.load(bench.file).config.cpu.reserve_cores

    assert bench.run(scenario) == 1.5


def test_policy_of_another_version_leaves_what_is_on_disk(bench):
    write_policy(bench, cpu={"reserve_cores": 2.0})
    bench.part.go_on_by(KubernetesMemory(msgspec.Raw(b'{"policy": 3}')))
    assert bench.part.load(bench.file).config.cpu.reserve_cores == 2.0


def test_what_the_limit_waits_for_is_waited_for_by_the_process_that_takes_over(bench, api):
    giving_back = GivingBack(3.0 * GIB, 8.0 * GIB, 9.0 * GIB)
    bench.part.go_on_by(KubernetesMemory(giving_back=giving_back, until_s=bench.clock.boottime_s() + 333.0))
    assert bench.part.giving_back() == giving_back == bench.part.memory().giving_back
    api.put_node(metadata={"annotations": {GIVES_BACK: encoded(Note(7, 2 * GIB, 300.0))}})

    async def scenario():
        await until(lambda: bench.part._side and bench.part._side.gives_back.heard)
        heard = bench.part.giving_back()
        api.put_node(metadata={"annotations": {GIVES_BACK: None}})
        await until(lambda: bench.part.giving_back() is None)
        return heard

    heard = bench.run(scenario)
    assert (heard.size_bytes, heard.published_lately_bytes) == (2.0 * GIB, 9.0 * GIB)


def test_what_was_promised_before_ends_though_hand_overs_follow_each_other(bench):
    """Each process hands on what it was handed, and no later end of it."""
    until_s = bench.clock.boottime_s() + 333.0
    bench.part.go_on_by(KubernetesMemory(giving_back=GivingBack(3.0, 8.0, 9.0), until_s=until_s))

    async def scenario():
        await until(lambda: bench.part._side is not None)
        return bench.part.memory()

    assert bench.run(scenario).until_s == until_s


def test_what_a_process_before_waited_for_ends(bench):
    bench.part.go_on_by(KubernetesMemory(giving_back=GivingBack(3.0, 8.0, 9.0), until_s=bench.clock.boottime_s() - 1.0))
    assert bench.part.giving_back() is None


def test_policy_of_the_annotation_is_in_what_is_loaded_next(bench, api):
    async def scenario():
        await until(lambda: api.watchers)
        policy = {"version": "8", "settings": {"cpu": {"reserve_cores": 1.5}}}
        api.put_node(metadata={"annotations": {POLICY: json.dumps(policy)}})
        await until(lambda: bench.changes)
        return bench.part.load(bench.file).config.cpu.reserve_cores

    assert bench.run(scenario) == 1.5
    assert bench.part.status().policy.keys == ("cpu.reserve_cores",)


def test_cluster_s_switch_works_while_the_node_s_file_has_an_error_and_its_end_as_well(bench, api):
    bench.file.write_text(bench.file.read_text() + "[colocation]\nenabled = true\n")
    bench.part.load(bench.file)
    bench.file.write_text("[colocation]\nenabeld = true\n")

    def put(text):
        api.put_node(metadata={"annotations": {POLICY: text}})

    async def scenario():
        await until(lambda: api.watchers)
        found = []
        for text in (json.dumps({"version": "8", "settings": {"colocation": {"enabled": False}}}), None):
            changes = bench.changes
            put(text)
            await until(lambda changes=changes: bench.changes > changes)  # type: ignore[misc]
            found.append(bench.part.load(bench.file).instead.colocation.enabled)
        return found

    assert bench.run(scenario) == [False, True]


def test_policy_is_looked_at_again_once_a_file_that_was_wrong_from_the_start_is_mended(bench, api, tmp_path):
    """Though what could be salvaged of it was the same config."""
    right = bench.file.read_text()
    bench.file.write_text(right + "[cpu]\nmin_core = 1\n")
    bench = Bench(tmp_path, bench.config.kubernetes.kubeconfig, text=bench.file.read_text())
    policy = {"version": "8", "settings": {"cpu": {"reserve_cores": 1.5}}}
    api.put_node(metadata={"annotations": {POLICY: json.dumps(policy)}})

    async def scenario():
        await until(lambda: bench.part.status().policy and bench.part.status().policy.problems)
        bench.file.write_text(right)
        bench.part.load(bench.file)
        bench.part.configure(bench.config)
        await until(lambda: bench.changes)
        return bench.part.load(bench.file).config.cpu.reserve_cores

    assert bench.run(scenario) == 1.5


# --- evictions -------------------------------------------------------------------------------------------------------


def evicted(bench, api, pod=JOB):
    async def scenario():
        await until(lambda: api.watchers)
        return await bench.part.evict(pod, "why", within_s=5.0)

    return bench.run(scenario)


def test_pods_are_known_with_their_priorities_and_owners_while_the_server_answers(bench, api):
    put_pod(api, priority=7)
    api.pods.append({"metadata": {"name": "b", "uid": "uid-b"}})

    async def scenario():
        await until(lambda: api.watchers and not bench.part.status().trouble)
        found = await bench.part.known(within_s=5.0)
        api.stop()
        return found, await bench.part.known(within_s=5.0)

    known = {"uid-a": KnownPod(7, "uid-job", 0), "uid-b": KnownPod(None, "", 0)}
    assert bench.run(scenario) == (known, {})


@pytest.mark.parametrize(
    ("requests", "shares"),
    [
        ({"cpu": "500m"}, 512),
        ({"kubernetes.io/batch-cpu": "1500", "memory": "1Gi"}, 1536),
        ({"kubernetes.io/batch-cpu": "1", "cpu": "1"}, 1026),
        ({"gocrane.io/cpu": "2"}, 2048),
        ({"caster.io/colocation-cpu": "64"}, 0),
        ({"cpu": "?"}, None),
    ],
    ids=["ordinary", "ours", "rounded-up", "another-systems", "that-the-node-has-not", "unreadable"],
)
def test_cpu_that_the_scheduler_has_counted_is_known(bench, api, requests, shares):
    """By all names that this node's CPU has."""
    api.put_node(status={"allocatable": {"gocrane.io/cpu": "4"}})
    put_pod(api)
    api.pods[0]["spec"]["containers"] = [{"name": "c", "resources": {"requests": requests}}]

    async def scenario():
        await until(lambda: api.watchers and not bench.part.status().trouble)
        return (await bench.part.known(within_s=5.0))["uid-a"].cpu_shares

    assert bench.run(scenario) == shares


def test_server_that_says_nothing_is_not_waited_for(bench, api):
    put_pod(api, priority=7)

    async def scenario():
        await until(lambda: api.watchers and not bench.part.status().trouble)
        api.faults.append(Fault("GET /api/v1/pods", slow_s=3.0, times=9))
        async with asyncio.timeout(2.0):
            return await bench.part.known(within_s=0.1)

    assert bench.run(scenario) == {}
    assert asyncio.run(bench.part.known(within_s=0.1)) == {}


def put_pod(api, **spec):
    owner = {"kind": "Job", "name": "job", "uid": "uid-job", "controller": True}
    api.pods = [{"metadata": {"name": "a", "uid": "uid-a", "ownerReferences": [owner]}, "spec": spec}]


def test_pod_is_evicted_in_its_own_grace_period(bench, api):
    put_pod(api, terminationGracePeriodSeconds=60)
    assert evicted(bench, api) == 75.0
    assert api.pods == []
    assert 'criproxy_kubernetes_evictions_total{outcome="evicted"} 1' in bench.metrics.registry.render().decode()


@pytest.mark.parametrize(("own_s", "has_s"), [(900, None), (901, 900), (2**62, 900)])
def test_grace_period_that_never_ends_is_cut(bench, api, own_s, has_s):
    """With one of years, a pod that ignores its signal stays, whatever harm it does."""
    put_pod(api, terminationGracePeriodSeconds=own_s)
    assert evicted(bench, api) == 915.0
    assert api.evictions[0]["deleteOptions"].get("gracePeriodSeconds") == has_s


@pytest.mark.parametrize("pod", [PodRef("another", "default", "a"), PodRef("uid-b", "default", "b")])
def test_pod_that_the_api_server_does_not_know_is_left_to_the_runtime(bench, api, pod):
    """A static pod, whose mirror has another uid."""
    put_pod(api)
    assert evicted(bench, api, pod) is None
    assert len(api.pods) == 1


def test_eviction_that_is_waited_for_no_longer_goes_on_once_and_keeps_the_controller_out(bench, api):
    """Whoever waits no longer stops the pod at the runtime: what its controller makes next must not come here."""
    put_pod(api)

    async def scenario():
        await until(lambda: api.watchers)
        api.fail("/eviction", slow_s=1.0)
        waited = [await bench.part.evict(JOB, "why", within_s=0.2) for _ in range(2)]
        bench.part.stopped(JOB, "why")
        await until(lambda: len(api.events) == 4)
        return waited

    assert bench.run(scenario) == [None, None]
    assert (api.pods, len(api.evictions)) == ([], 1)
    assert api.nodes["node1"]["metadata"]["labels"] == {"evicted.colocation.criproxy.io/uid-job": ""}
    assert [(one["reason"], one["involvedObject"]["kind"]) for one in api.events] == [
        ("StoppedByColocation", "Pod"),
        ("StoppedByColocation", "Node"),
        ("EvictedByColocation", "Pod"),
        ("EvictedByColocation", "Node"),
    ]
    assert api.events[0]["message"] == "Stopped by criproxy on the node: why"
    assert 'criproxy_kubernetes_evictions_total{outcome="evicted"} 1' in bench.metrics.registry.render().decode()


@pytest.fixture
def switched_off(bench, api, monkeypatch):
    """A part that has published, and looks for what else to publish only when an eviction has it do so."""

    async def evict(**how):
        await until(lambda: api.watchers and batch_cpu(api) == "1500" and bench.part.status().published)
        monkeypatch.setattr("criproxy.kube.publisher.LOOK_S", 1e6)
        await asyncio.sleep(0.1)  # the last of the others is over
        bench.offering.modes = Modes({Mode.DISABLED: ""})
        return await bench.part.evict(JOB, "why", **how)

    put_pod(api)
    return evict


def test_pod_is_evicted_once_the_0_is_published_as_its_successor_would_run_here_unbounded(bench, api, switched_off):
    bench.run(lambda: switched_off(within_s=5.0))
    asked = [one for one in api.requests if one.path.endswith(("/status", "/eviction"))]
    assert [one.method for one in asked][-2:] == ["PATCH", "POST"]
    assert asked[-2].body["status"]["allocatable"]["kubernetes.io/batch-cpu"] == "0"
    assert (batch_cpu(api), api.pods) == ("0", [])


@pytest.mark.parametrize(
    ("within_s", "grace_s"), [(2.0, None), (0.5, 1)], ids=["for half its time", "while online waits for memory"]
)
def test_server_that_does_not_take_the_0_keeps_no_pod_here(bench, api, switched_off, within_s, grace_s):
    api.fail("PATCH /api/v1/nodes/node1/status", slow_s=0.0)  # the first one, which publishes
    api.fail("PATCH /api/v1/nodes/node1/status", slow_s=4.0)
    assert bench.run(lambda: switched_off(within_s=within_s, grace_s=grace_s)) is not None
    assert api.pods == []


def test_budget_is_told(bench, api):
    put_pod(api)
    api.budgets = {"a": BUDGET}
    with pytest.raises(BudgetError):
        evicted(bench, api)


def test_refusal_is_told_so_that_another_pod_may_be_asked_for(bench, api):
    put_pod(api)
    api.fail("/eviction", status=400)
    with pytest.raises(RefusedError):
        evicted(bench, api)


def test_nobody_is_asked_before_the_node_is_known(bench):
    assert asyncio.run(bench.part.evict(JOB, "why", within_s=1.0)) is None
    bench.part.stopped(JOB, "why")


# --- the ladder ------------------------------------------------------------------------------------------------------

SQUEEZED = Transition(0.0, "cpu", Rung.OPEN, Rung.SQUEEZED, "cpu_pressure", "online waits")


def test_step_of_the_ladder_is_told_on_the_node(bench, api):
    bench.part.transition(SQUEEZED)  # nobody is known yet whom to tell

    async def scenario():
        await until(lambda: api.watchers)
        bench.part.transition(SQUEEZED)
        await until(lambda: api.events)

    bench.run(scenario)
    told = [(one["reason"], one["involvedObject"]["name"], one["message"]) for one in api.events]
    assert told == [("ColocationSqueezed", "node1", "cpu: open -> squeezed: online waits")]


# --- names -----------------------------------------------------------------------------------------------------------


def test_names_are_those_of_the_preset_or_ones_own():
    own = ResourceTable(name="example.com/spare-cpu", of="cpu", per_unit=1000)
    assert publish_settings(Settings(names="mid")).resources == resources_called("mid")
    found = publish_settings(Settings(enabled=True, names="mid", resources=(own,)))
    assert (found.resources, found.off) == ((ExtendedResource("example.com/spare-cpu", "cpu", 1000),), "")


def test_speed_and_watermark_of_the_config_are_published_by():
    found = publish_settings(Settings(cpu_watermark_ratio=1.0, speed_ratio=0.8))
    assert found.open_box == OpenBoxSettings(watermark_ratio=1.0, speed_ratio=0.8)
    assert publish_settings(Settings()).open_box == OpenBoxSettings()
