"""What a daemon tells of itself, on a clock that the test moves."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from msgspec.structs import astuple, replace

from criproxy.cgroup.box import Held
from criproxy.cgroup.driver import HeldLimit
from criproxy.cgroup.naming import Driver
from criproxy.clients.link import RuntimeInfo
from criproxy.config import Config, ConfigError
from criproxy.config.load import parse
from criproxy.config.settings import Colocation, Control
from criproxy.control.day import Day
from criproxy.control.history import DecisionRecord, History
from criproxy.control.interference.responder import InterferenceStatus
from criproxy.control.policy import PolicyState, StaticSettings, decide
from criproxy.daemon.bypass import Bypass, BypassStatus
from criproxy.daemon.kubernetes import KubernetesPart, KubernetesStatus
from criproxy.model import CPU, UNLIMITED, AttachStatus, Decision, Limits, PodRef, Sandbox
from criproxy.model.modes import TABLE, Mode, Modes, in_words
from criproxy.model.shown import Gauge
from criproxy.observe import why
from criproxy.observe.above_bound import AboveBound
from criproxy.observe.log_writer import LogWriter
from criproxy.observe.metrics import Metrics
from criproxy.observe.recorder import Recorder
from criproxy.observe.report import Reporter
from criproxy.observe.status import ConfigStatus, Status, from_json, to_json
from criproxy.observe.status_text import render
from criproxy.pods.cpu_assignments import NOBODY_BOUND
from criproxy.pods.cpu_manager import CpuManager
from criproxy.pods.hold_offs import HoldOff, HoldOffs, HoldOffStatus
from criproxy.pods.interference import InterferenceWatch
from criproxy.pods.part import Part
from tests.fakes.box import FakeBox
from tests.fakes.clock import FakeClock
from tests.fakes.hold_offs import no_hold_offs
from tests.fakes.part import Showing
from tests.fakes.pods import FakeInventory
from tests.rows import laws, limited, predictions, snapshot

GIB = 1 << 30
ON = Config(colocation=Colocation(enabled=True))
SNAPSHOT = snapshot(1.0, (4.0, 2.0, 0.5, 1.5), (8 * GIB, 4 * GIB, GIB, 3 * GIB), throttled_ratio=0.25)


def decision() -> Decision:
    settings = laws(cpu=StaticSettings(1.5), memory=StaticSettings(GIB))
    return decide(SNAPSHOT, predictions(None, None), PolicyState(), settings)[0]


@dataclass
class Link:
    path: Path = Path("/run/r.sock")
    ready: bool = True
    problem: str = ""
    info: RuntimeInfo | None = field(default_factory=lambda: RuntimeInfo("containerd", "1.6", "runtime.v1"))


@dataclass
class Engine:
    name: str = "grpc"
    problem: str | None = None


@dataclass
class Reconciler:
    swept: int = 0


@dataclass
class Notifier:
    lines: list[str] = field(default_factory=list)

    def status(self, text: str) -> bool:
        self.lines.append(text)
        return True


class FakePart(Part):
    """A part that shows what a test says."""

    NAME = "being a fake"
    GAUGES = (Gauge("fakes", "Fakes that there are", lambda part: 3),)
    knows = True

    def knows_modes(self) -> bool:
        return self.knows

    def section(self) -> Mapping[str, Any]:
        return {"fake": {"words": "here"}}

    def of_pod(self, sandbox: Sandbox) -> Mapping[str, Any]:
        return {"cpus": "0,2-3"}

    def rows(self) -> Iterator[tuple[str, ...]]:
        yield "fake", "it is here", "and goes on"


KINDS = (HoldOffs, Bypass, InterferenceWatch, FakePart, KubernetesPart)
HARM = InterferenceStatus("", (), (), "", 0, 6)


class Bench:
    def __init__(self, config: Config = ON, pass_through: bool = False) -> None:
        self.clock = FakeClock()
        self.link, self.inventory, self.notifier = Link(), FakeInventory(), Notifier()
        self.box = FakeBox("/offline", drift=3)
        self.history, self.part = History(), FakePart()
        self.reconciler = Reconciler()
        self.engine, self.bypass = Engine(), Showing(Bypass)
        speeds = SimpleNamespace(why=lambda: "of 2 that want CPU, 50% below 90%; starved for five minutes: 1")
        self.interference = Showing(InterferenceWatch, HARM, closed="", speeds=speeds)
        self.kubelets_driver = SimpleNamespace(driver=None)
        self.holds = SimpleNamespace(everybody="", closed="", held=lambda _: self.holds.everybody)  # type: ignore[has-type]
        of_box: Any = SimpleNamespace(contradicted="", state=NOBODY_BOUND)
        self.cpu_manager = CpuManager(Path("/nowhere"), of_box, self.box, self.clock, None, None)  # type: ignore[arg-type]
        self.hold_offs = no_hold_offs(self.clock)
        self.log_writer = Showing(LogWriter, missing=0)
        self.no_cgroups = "rootless"
        self.attachment = AttachStatus("unknown", "")
        self.kubernetes = Showing(KubernetesPart)
        metrics = Metrics("1", shown=KINDS)
        self.recorder = Recorder(
            metrics,
            self.box,  # type: ignore[arg-type]
            self.inventory,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            notifier=self.notifier,  # type: ignore[arg-type]
            clock=self.clock,
            above=AboveBound(structlog.get_logger()),
            holds=self.holds,  # type: ignore[arg-type]
            day=Day(),
        )
        parts: dict[str, Any] = {
            "recorder": self.recorder,
            "attachment": lambda: self.attachment,
            "published": self.kubernetes,
            "meters": metrics,
            "shown": (
                self.hold_offs,
                self.bypass,
                self.cpu_manager,
                self.interference,
                self.part,
                self.kubernetes,
                self.log_writer,
            ),
        }
        fields = Reporter.__struct_fields__
        self.endpoints = Reporter(**{name: parts.get(name, vars(self).get(name)) for name in fields})  # type: ignore[arg-type]
        self.configure(config, pass_through=pass_through)

    def configure(
        self,
        config: Config,
        errors: tuple[ConfigError, ...] = (),
        pending: tuple[str, ...] = (),
        *,
        pass_through: bool = False,
        **modes: str,
    ) -> None:
        """As a reload does. `modes`: more that are in force, by name, each with why."""
        self.recorder.configured(ConfigStatus("/c.toml", tuple(map(str, errors)), pending), config.control.interval_s)
        why = {Mode[name]: reason for name, reason in modes.items()}
        if pass_through:
            why[Mode.PASS_THROUGH] = ""
        elif not config.colocation.enabled:
            why[Mode.DISABLED] = ""
        self.recorder.scheduled(Modes(why), "")

    def tick(self, after_s: float = 1.0) -> None:
        self.clock.advance(after_s)
        self.recorder.ticked(SNAPSHOT, decision(), (), 0.01)

    def status(self) -> Status:
        return self.endpoints.status()

    def metric(self, name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", self.endpoints.metrics().decode(), re.MULTILINE)
        assert found is not None, name
        return float(found[1])


# --- the last day ----------------------------------------------------------------------------------------------------


def test_past_has_each_tick_and_each_closing_with_its_reason() -> None:
    bench = Bench()
    bench.tick()
    bench.configure(ON, CLOSED="the window is over")
    bench.tick()
    bench.tick()
    bench.configure(ON)
    bench.tick()
    bench.holds.closed = "online pods were harmed"
    bench.tick()
    bench.configure(Config())
    bench.tick()
    marks = json.loads(bench.endpoints.past(-math.inf))["marks"]
    assert [(mark["kind"], mark["reason"]) for mark in marks] == [
        ("closing", "the window is over"),
        ("opening", "new offline pods are let in"),
        ("closing", "online pods were harmed"),
        ("opening", "new offline pods are let in"),
    ]


def test_past_has_what_the_status_has() -> None:
    bench = Bench()
    bench.recorder.ticked(replace(SNAPSHOT, t_s=bench.clock.now), decision(), (), 0.01)
    shown, past = bench.status().box.resources, json.loads(bench.endpoints.past(bench.clock.wall))
    for name, unit in (("cpu", "cores"), ("memory", "bytes")):
        for key in ("capacity", "online", "box", "limit"):
            number = past["seconds"][name][key][-1] * past["scales"][unit]
            assert number == getattr(shown[name], key), (name, key)


# --- health --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval_s", "silent_s", "healthy"),
    [
        pytest.param(1.0, 30.0, True, id="late"),
        pytest.param(1.0, 32.0, False, id="stalled"),
        pytest.param(60.0, 61.0, True, id="slow-loop-between-ticks"),
        pytest.param(60.0, 91.0, False, id="slow-loop-stalled"),
    ],
)
def test_health_is_lost_when_the_loop_stalls(interval_s: float, silent_s: float, healthy: bool) -> None:
    bench = Bench(replace(ON, control=Control(interval_s=interval_s)))
    bench.tick()
    bench.clock.now += silent_s
    assert (bench.endpoints.unhealthy() is None) == healthy


def test_health_of_a_process_that_waited_long_for_its_turn_is_good_when_it_begins() -> None:
    bench = Bench()
    bench.clock.now += 60.0
    bench.recorder.begins()
    assert bench.endpoints.unhealthy() is None
    bench.clock.now += 32.0
    assert bench.endpoints.unhealthy() is not None


def test_health_holds_while_ticks_fail_and_they_are_counted() -> None:
    bench = Bench()
    for _ in range(100):
        bench.clock.now += 1.0
        bench.recorder.tick_failed(0.01)
    assert bench.endpoints.unhealthy() is None
    assert bench.status().box.tick_failures == 100


def test_readiness_is_the_runtime_s_and_tells_its_problem() -> None:
    bench = Bench()
    assert bench.endpoints.unready() is None
    bench.link.ready, bench.link.problem = False, "connection lost"
    assert "connection lost" in (bench.endpoints.unready() or "")
    assert bench.metric("criproxy_runtime_ready") == 0


def test_part_that_does_not_do_its_work_makes_criproxy_unready_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    monkeypatch.setattr(FakePart, "unready", lambda _: "a part has failed for 91 s")
    assert bench.endpoints.unready() == "a part has failed for 91 s"
    assert bench.endpoints.unready() not in bench.status().problems, "the part says more there"


# --- status --------------------------------------------------------------------------------------------------------


def test_status_tells_the_boxs_cpus_and_what_is_wrong_with_them() -> None:
    bench = Bench()
    bench.box.cpus = "0,2-3"
    bench.cpu_manager.failure = "kubelet's file is not to be read"
    assert bench.status().box.cpus == "0,2-3"
    problem = f"{CpuManager.NAME} failed, and is tried again: kubelet's file is not to be read"
    assert problem in bench.status().problems


@pytest.mark.parametrize(
    ("attached", "shown"), [("yes", 1.0), ("no", 0.0), pytest.param("unknown", math.nan, id="unknown")]
)
def test_metrics_tell_how_many_problems_there_are_and_whether_kubelet_uses_it(attached: Any, shown: float) -> None:
    bench = Bench()
    assert math.isnan(bench.metric("criproxy_problems")), "it was not looked yet"
    bench.attachment = AttachStatus(attached, "", "kubelet uses another one" if attached == "no" else "")
    bench.link.ready, bench.link.problem = False, "no answer"
    bench.endpoints.judge()
    assert bench.metric("criproxy_attached") == pytest.approx(shown, nan_ok=True)
    assert bench.metric("criproxy_problems") == len(bench.status().problems) > 0
    bench.endpoints.not_judged()
    assert math.isnan(bench.metric("criproxy_attached")) and math.isnan(bench.metric("criproxy_problems"))


def test_ticks_have_the_recorder_count_what_came_of_the_one_before() -> None:
    bench = Bench()
    bench.tick()
    bench.clock.advance(1.0)
    bench.recorder.ticked(replace(SNAPSHOT, read_s=SNAPSHOT.read_s + 4.0), decision(), (), 0.01)
    assert bench.metric("criproxy_box_cpu_seconds_total") == SNAPSHOT.of[CPU].box * 4.0


def test_status_metrics_and_problems_have_what_a_part_shows() -> None:
    bench = Bench()
    bench.inventory.placed = (Sandbox("s", PodRef("u", "batch", "job"), "/offline/podu"),)
    bench.part.failure = "no such file"
    status = from_json(to_json(bench.status()))
    assert status.sections["fake"] == {"words": "here"}
    assert "fake          it is here\n  and goes on\n" in render(status)
    assert [one.cpus for one in status.pods] == ["0,2-3"]
    assert "being a fake failed, and is tried again: no such file" in status.problems
    assert bench.metric("criproxy_fakes") == 3


@pytest.mark.parametrize(
    ("version", "words"),
    [
        pytest.param(2, "1 mid, 2 low; by CPU, memory and who goes first", id="v2"),
        pytest.param(1, "1 mid, 2 low; by CPU and by who goes first, as cgroup v1 protects no memory", id="v1"),
    ],
)
def test_status_tells_of_tiers_what_the_kernel_can(version: int, words: str) -> None:
    bench = Bench()
    off = bench.status().box.tiers
    bench.box.version, bench.box.tiers = version, True
    pods = [Sandbox(f"s{n}", PodRef(f"u{n}", "batch", "job"), f"/offline/podu{n}", mid=n == 0) for n in range(3)]
    bench.inventory.placed = tuple(pods)

    assert off == ""
    assert bench.status().box.tiers.startswith(words)


def test_status_before_the_first_tick_has_no_sample() -> None:
    status = Bench().status()
    assert (status.box.resources, status.box.path) == ({}, "/offline")


def test_status_tells_all_parts() -> None:
    bench = Bench()
    bench.inventory.placed = (Sandbox("s", PodRef("u", "batch", "job"), "/offline/podu"),)
    bench.tick(5.0)
    bench.reconciler.swept = 2
    status = bench.status()
    assert (status.colocation, status.uptime_s, status.dry_run) == ("on", 5.0, False)
    assert (status.runtime.ready, status.runtime.version) == (True, "containerd 1.6, CRI runtime.v1")
    assert (status.box.drift, status.box.swept) == (3, 2)
    assert [astuple(pod)[:5] for pod in status.pods] == [("u", "batch", "job", "/offline/podu", "0,2-3")]
    cpu = status.box.resources["cpu"]
    assert (cpu.limit, cpu.online) == (1.5, 1.5)


@pytest.mark.parametrize(
    ("pass_through", "held", "cores", "size"),
    [
        pytest.param(False, None, "unlimited", "unlimited", id="off-no-box"),
        pytest.param(False, {"cpu": UNLIMITED, "memory": UNLIMITED}, "unlimited", "unlimited", id="off-released"),
        pytest.param(False, {"cpu": 0.25, "memory": GIB // 2}, 0.25, GIB // 2, id="off-evicting"),
        pytest.param(True, None, "unlimited", "unlimited", id="pass-through"),
    ],
)
def test_limits_that_are_decided_but_not_applied_are_not_told(
    pass_through: bool, held: Limits | None, cores: Any, size: Any
) -> None:
    bench = Bench(Config(), pass_through)
    bench.box.limits = held
    bench.tick()
    box = bench.status().box
    assert {name: one.limit for name, one in box.resources.items()} == {"cpu": cores, "memory": size}
    assert bench.status().colocation in box.resources["cpu"].reason
    assert bench.metric("criproxy_limit_cores") == (float("inf") if cores == "unlimited" else cores)


def test_status_right_after_colocation_is_switched_tells_one_thing() -> None:
    bench = Bench(Config())
    bench.tick()
    told = []
    for config in (ON, Config()):
        bench.configure(config)
        cpu = bench.status().box.resources["cpu"]
        told.append((bench.status().colocation, cpu.limit, cpu.reason))
        bench.tick()
    assert told == [
        ("on", "unlimited", "what the kernel holds until the next tick, the first since colocation is on"),
        ("off", "unlimited", "what the kernel holds, as colocation is off"),
    ]


def test_status_of_decisions_tells_when_the_same_limits_came_into_force() -> None:
    bench = Bench()
    for t_s, kept_by in enumerate([Mode.DRY_RUN, Mode.DRY_RUN, None, None]):
        bench.history.add(DecisionRecord(1000.0 + t_s, SNAPSHOT, replace(decision(), t_s=float(t_s)), kept_by))
    told = bench.status().decisions
    assert [(one.decided_s, one.applied) for one in told] == [(1002.0, True), (1000.0, False)]
    assert bench.endpoints.why(None).decision.applied


def test_status_of_decisions_leaves_out_changes_that_print_alike() -> None:
    bench = Bench()
    mib = 1 << 20
    for t_s, size in enumerate([2836 * mib, 2837 * mib, 2838 * mib, 2850 * mib]):
        made = limited(replace(decision(), t_s=t_s * 100.0), cpu=1.0, memory=size)
        bench.history.add(DecisionRecord(1000.0 + t_s, SNAPSHOT, made))
    told = bench.status().decisions
    assert [(one.decided_s, one.limits["memory"]) for one in told] == [(1003.0, 2850 * mib), (1000.0, 2836 * mib)]
    assert len(bench.history.records()) == 4


def test_status_tells_config_errors_and_what_waits_for_a_restart() -> None:
    bench = Bench()
    errors = parse(b"[cpu]\nmin_cores = 0\n", "/c.toml").errors
    bench.configure(ON, errors, ("proxy.listen",))
    config = bench.status().config
    assert (config.file, config.errors, config.needs_restart) == (
        "/c.toml",
        tuple(map(str, errors)),
        ("proxy.listen",),
    )
    assert len(config.errors) == 1


@pytest.mark.parametrize(("colocation", "shown"), [("off", math.nan), ("on", 0.0)])
def test_kubelet_that_nobody_has_attached_is_no_alert_where_colocation_is_off(colocation: str, shown: float) -> None:
    bench = Bench()
    bench.configure(ON if colocation == "on" else Config())
    bench.attachment = AttachStatus("no", "kubelet uses another one")
    bench.endpoints.judge()
    assert bench.metric("criproxy_attached") == pytest.approx(shown, nan_ok=True)


def test_status_tells_whether_kubelet_is_attached() -> None:
    bench = Bench()
    assert bench.status().attached.state == "unknown"
    bench.attachment = AttachStatus("yes", "by a flag")
    assert bench.status().attached == AttachStatus("yes", "by a flag")
    assert bench.status().problems == ()


def test_attachment_that_is_lost_is_a_problem() -> None:
    bench = Bench()
    bench.attachment = AttachStatus("no", "kubelet uses /x", "attach again")
    assert bench.status().problems == ("attach again",)


@pytest.mark.parametrize(
    ("pids", "limit"),
    [
        pytest.param(HeldLimit(10813, 12), 10813.0, id="bounded"),
        pytest.param(HeldLimit(UNLIMITED, 12), math.inf, id="unlimited"),
        pytest.param(None, math.nan, id="no-controller"),
    ],
)
def test_status_and_metrics_tell_of_processes(pids: HeldLimit | None, limit: float) -> None:
    bench = Bench()
    bench.box.pids = pids

    assert bench.status().box.shares.get("pids") == pids
    assert bench.metric("criproxy_limit_pids") == pytest.approx(limit, nan_ok=True)
    assert bench.metric("criproxy_box_pids") == pytest.approx(12.0 if pids else math.nan, nan_ok=True)


@pytest.mark.parametrize(
    ("path", "told", "version", "driver"),
    [
        ("/offline", None, 1, "cgroupfs"),
        ("offline.slice", None, 2, "systemd"),
        (None, None, 2, None),
        (None, Driver.SYSTEMD, 2, "systemd"),
        ("/offline", Driver.SYSTEMD, 2, "systemd"),
    ],
    ids=["cgroupfs", "systemd", "not-known-yet", "online-pods-only", "kubelet-has-changed-it"],
)
def test_status_tells_the_kind_of_cgroups_and_the_engine(
    path: str | None, told: Driver | None, version: int, driver: str | None
) -> None:
    bench = Bench()
    bench.box.path, bench.box.version = path, version
    bench.kubelets_driver.driver = told
    status = bench.status()
    assert (status.cgroup.version, status.cgroup.driver, status.engine) == (version, driver, "grpc")


def test_status_tells_the_latest_decisions_that_changed_a_limit() -> None:
    bench = Bench()
    for t_s, cores in enumerate([1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 5.0, 6.0, 6.0]):
        made = limited(replace(decision(), t_s=t_s * 100.0), cpu=cores, memory=UNLIMITED)
        bench.history.add(DecisionRecord(1000.0 + t_s, SNAPSHOT, made))
    told = bench.status().decisions
    assert [(one.decided_s, one.limits) for one in told] == [
        (1000.0 + t_s, {"cpu": cores, "memory": "unlimited"})
        for t_s, cores in [(7, 6.0), (6, 5.0), (5, 4.0), (4, 3.0), (2, 2.0)]
    ]
    assert told[0].reasons["cpu"] == decision().resources["cpu"].reason


# --- what is wanted, and what is in force ------------------------------------------------------------------------

MIB = 1 << 20


def _stay(bench: Bench) -> None:
    """Memory that can't be taken back, as it was found on a node."""
    bench.box.wanted, bench.box.limits = {"cpu": 1.5, "memory": 128 * MIB}, {"cpu": 1.5, "memory": 509 * MIB}
    bench.box.used = Held(used_bytes=501 * MIB, wanted_bytes=128 * MIB)


def test_status_metrics_and_why_tell_what_is_in_force_and_what_it_bounds() -> None:
    bench = Bench()
    _stay(bench)
    bench.tick()
    bench.history.add(DecisionRecord(1.7e9, SNAPSHOT, decision()))
    box, why = bench.status().box, bench.endpoints.why(None).decision
    assert why is not None
    for resources in (box.resources, why.resources):
        assert {name: one.in_force for name, one in resources.items()} == {"cpu": 1.5, "memory": 509 * MIB}
        assert resources["memory"].used == 501 * MIB
    assert bench.metric("criproxy_limit_in_force_bytes") == 509 * MIB
    assert bench.metric("criproxy_limit_in_force_cores") == 1.5
    assert bench.metric("criproxy_box_memory_bytes") == 501 * MIB
    past = bench.endpoints.why(1.7e9 + 1).decision
    assert past is not None and past.resources["memory"].in_force is None


def test_memory_that_stays_above_the_bound_is_a_problem_and_a_metric() -> None:
    bench = Bench()
    _stay(bench)
    for _ in range(4):
        bench.tick()
    early = bench.status().problems
    for _ in range(42):
        bench.tick()
    above = 'criproxy_box_above_bound_seconds{resource="%s"}'
    assert early == ()
    assert bench.status().problems == ("the box uses 501.00 MiB, 373.00 MiB above its bound of 128.00 MiB, for 45 s",)
    assert (bench.metric(above % "memory"), bench.metric(above % "cpu")) == (45.0, 0.0)
    bench.box.used = Held(used_bytes=100 * MIB, wanted_bytes=128 * MIB)
    bench.tick()
    assert (bench.metric(above % "memory"), bench.status().problems) == (0.0, ())


# --- what is not well ----------------------------------------------------------------------------------------------


def test_status_of_a_node_that_is_well_has_no_problem() -> None:
    bench = Bench()
    bench.tick()
    assert bench.status().problems == ()


def _stall(bench: Bench) -> None:
    bench.clock.now += 100.0


def _lose_runtime(bench: Bench) -> None:
    bench.link.ready, bench.link.problem = False, "connection lost"


def _spoil_config(bench: Bench) -> None:
    bench.configure(ON, parse(b"[cpu]\nmin_cores = 0\n", "/c.toml").errors)


def _close_box(bench: Bench) -> None:
    bench.box.fault = "cannot write"


def _lose_hierarchy(bench: Bench) -> None:
    bench.box.version = 0


def _fail_tick(bench: Bench) -> None:
    bench.recorder.tick_failed(0.1)


def _give_the_relay_up(bench: Bench) -> None:
    bench.engine.name, bench.engine.problem = "relay", "the relay broke again and again"


def _open_bypass(bench: Bench) -> None:
    bench.bypass.told = BypassStatus(10.0, 1.7e9, 1, 1.7e9)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        pytest.param(_stall, "the control loop has not ticked for 100 s", id="stalled"),
        pytest.param(_lose_runtime, "the runtime is not ready: connection lost", id="runtime"),
        pytest.param(_spoil_config, "the config file has errors, so the one before holds", id="config"),
        pytest.param(_close_box, "no offline pod is let in: cannot write", id="box-closed"),
        pytest.param(_lose_hierarchy, "no box can be made, so offline pods are refused: rootless", id="no-hierarchy"),
        pytest.param(_fail_tick, "last tick failed", id="tick"),
        pytest.param(_give_the_relay_up, "the relay broke again and again", id="engine"),
        pytest.param(_open_bypass, "the bypass is open", id="bypass"),
    ],
)
def test_status_tells_what_is_not_well(spoil: Callable[[Bench], None], told: str) -> None:
    bench = Bench()
    bench.tick()
    spoil(bench)
    problems = bench.status().problems
    assert len(problems) == 1
    assert told in problems[0]


def test_tick_that_failed_is_no_problem_any_more_after_one_that_succeeded() -> None:
    bench = Bench()
    bench.recorder.tick_failed(0.1)
    bench.tick()
    assert bench.status().problems == ()


def test_impossible_samples_are_counted_and_a_problem_from_the_third_in_a_row_until_one_is_used() -> None:
    bench = Bench()
    bench.tick()
    for _ in range(2):
        bench.recorder.sample_discarded("the node's CPU counter says 9.00 cores, of 4.00")
    before = bench.status().problems
    bench.clock.now += 100.0
    bench.recorder.sample_discarded("the node's CPU counter says 9.00 cores, of 4.00")

    assert before == ()
    assert bench.status().problems == (
        "the last 3 samples are impossible and not used: the node's CPU counter says 9.00 cores, of 4.00",
    )
    assert bench.metric("criproxy_samples_discarded_total") == 3.0
    bench.tick()
    assert bench.status().problems == ()


def test_config_error_at_the_start_tells_of_the_pass_through_and_a_box_that_is_not_wanted_is_no_problem() -> None:
    bench = Bench(pass_through=True)
    bench.box.version, bench.box.fault = 0, "cannot write"
    errors = parse(b"[cpu]\nmin_cores = 0\n", "/c.toml").errors
    bench.configure(ON, errors, pass_through=True)
    assert bench.status().problems == ("the config file has errors, so nothing new is placed",)


# --- the headline --------------------------------------------------------------------------------------------------


def test_headline_goes_to_the_service_manager_every_ten_seconds() -> None:
    bench = Bench()
    bench.inventory.placed = (Sandbox("s", PodRef("u", "batch", "job"), "/offline/podu"),)
    for _ in range(25):
        bench.tick()
    assert bench.notifier.lines == ["colocation on, runtime ready, 1 offline pods"] * 2


def test_log_that_is_not_read_is_a_problem_until_it_is() -> None:
    bench = Bench()
    bench.log_writer.missing = 7
    assert [problem for problem in bench.status().problems if "7 lines of the log were dropped" in problem]
    bench.log_writer.missing = 0
    assert not [problem for problem in bench.status().problems if "log" in problem]


def test_headline_tells_a_pass_through_that_waits_for_the_runtime() -> None:
    bench = Bench(pass_through=True)
    bench.link.ready = False
    assert bench.recorder.headline() == "colocation pass-through, waiting for the runtime, 0 offline pods"


# --- the modes -------------------------------------------------------------------------------------------------------


def _disable(bench: Bench) -> None:
    bench.configure(Config())


def _dry_run(bench: Bench) -> None:
    bench.configure(ON, DRY_RUN="")


def _pass_through(bench: Bench) -> None:
    bench.configure(ON, pass_through=True)


def _close(bench: Bench) -> None:
    bench.configure(ON, CLOSED="the schedule is off")


def _hold(bench: Bench) -> None:
    bench.interference.closed = bench.holds.everybody = "the box harms online pods: memory"


@pytest.mark.parametrize(
    ("mode", "bring_about"),
    [
        (Mode.DISABLED, _disable),
        (Mode.DRY_RUN, _dry_run),
        (Mode.PASS_THROUGH, _pass_through),
        (Mode.CLOSED, _close),
        (Mode.HELD, _hold),
        (Mode.UNWELCOME, _close_box),
        (Mode.NO_CGROUPS, _lose_hierarchy),
        (Mode.ENGINE_GIVEN_UP, _give_the_relay_up),
        (Mode.BYPASS, _open_bypass),
    ],
    ids=lambda value: value.value if isinstance(value, Mode) else "",
)
def test_each_mode_is_told_by_its_name_and_line_and_is_a_problem_where_the_table_says_so(
    mode: Mode, bring_about: Callable[[Bench], None]
) -> None:
    bench = Bench()
    bench.tick()
    assert bench.status().modes == ()
    bring_about(bench)
    status = bench.status()
    assert status.modes == (mode.value,)
    assert bool(status.problems) == (not TABLE[mode].well or mode is Mode.HELD)
    assert f"mode          {in_words(mode)}" in " ".join(render(status).replace("\n" + " " * 14, " ").splitlines())
    assert bench.endpoints.unready() is None, "kubelet's calls pass in each"
    assert (TABLE[mode].ready == "ok while the runtime is ready") == (mode is not Mode.BYPASS)


def test_modes_that_were_asked_for_are_all_told() -> None:
    bench = Bench()
    bench.configure(Config(), DRY_RUN="", CLOSED="the schedule is off")
    status = bench.status()
    assert status.modes == ("disabled", "dry run", "closed")
    assert (status.dry_run, status.colocation, status.schedule.closed, status.problems) == (True, "off", "", ())


def test_hold_offs_are_told_with_their_end_by_the_wall_clock_and_what_the_kernel_holds_is_shown() -> None:
    bench = Bench()
    bench.box.limits, bench.box.wanted = {"cpu": 3.5, "memory": UNLIMITED}, {"cpu": 1.5, "memory": GIB}
    bench.configure(ON, HELD_OFF="an operator holds criproxy off the box: repair")
    bench.hold_offs._all = {
        "": HoldOff("", "box", bench.clock.now + 7200.0, "repair"),
        "u": HoldOff("u", "batch/job", bench.clock.now + 60.0, "debug"),
    }
    end_s = bench.clock.wall + 7200.0
    bench.tick(1.0)
    bench.tick(60.0)

    status = bench.status()
    assert status.sections["hold_offs"] == (HoldOffStatus("box", "", end_s, "repair"),)
    assert (status.modes, status.problems) == (("held off",), ())
    assert (status.box.resources["cpu"].limit, status.box.resources["memory"].limit) == (3.5, "unlimited")
    assert "hold-off      box until " in render(status)
    assert bench.metric("criproxy_hold_offs") == 1


def test_why_says_what_is_published_now_and_not_what_was() -> None:
    bench = Bench()
    bench.history.add(DecisionRecord(100.0, SNAPSHOT, decision()))
    without = why.render(bench.endpoints.why(None))
    bench.kubernetes.told = KubernetesStatus(why="kubernetes.io/batch-cpu 1500: the floor; held: memory")
    shown = why.render(bench.endpoints.why(None))

    assert "published" not in without and "starved" not in without
    assert "published to Kubernetes\n  kubernetes.io/batch-cpu 1500: the floor\n  held: memory\n" in shown
    assert shown.endswith("published\n  of 2 that want CPU, 50% below 90%\n  starved for five minutes: 1\n")
    then = why.render(bench.endpoints.why(100.0))
    assert "published" not in then and "starved" not in then


def test_what_is_decided_is_there_with_its_modes_from_the_first_tick_on() -> None:
    bench = Bench()
    before = bench.endpoints.decided()
    bench.tick()
    found = bench.endpoints.decided()
    assert before is None
    assert found is not None
    assert (found[0], found[2]) == (SNAPSHOT, Modes({}))
    bench.part.knows = False
    assert bench.endpoints.decided() is None, "it is not known whether pods would be bounded"
