"""What a daemon tells of itself, on a clock that the test moves."""

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from criproxy.cgroup.box import BoxState
from criproxy.config import Config
from criproxy.config.load import parse
from criproxy.config.settings import Colocation, Control
from criproxy.control.guardlaw import GuardStatus
from criproxy.control.history import History
from criproxy.control.policy import PolicySettings, PolicyState, StaticSettings, decide
from criproxy.model import UNLIMITED, Decision, Limits, PodRef, Prediction, Sandbox, Snapshot
from criproxy.observe.metrics import Metrics
from criproxy.observe.status import Status
from criproxy.proxy.runtime import RuntimeInfo
from criproxy.report import Reporter

GIB = 1 << 30
ON = Config(colocation=Colocation(enabled=True))
SNAPSHOT = Snapshot(
    t_s=1.0,
    capacity_cores=4.0,
    capacity_bytes=8 * GIB,
    node_cores=2.0,
    node_bytes=4 * GIB,
    box_cores=0.5,
    box_bytes=GIB,
    online_cores=1.5,
    online_bytes=3 * GIB,
    throttled_ratio=0.25,
)


def decision() -> Decision:
    settings = PolicySettings(cpu=StaticSettings(1.5), memory=StaticSettings(GIB))
    return decide(SNAPSHOT, Prediction(None, None), PolicyState(), settings)[0]


@dataclass
class Link:
    path: Path = Path("/run/r.sock")
    ready: bool = True
    problem: str = ""
    info: RuntimeInfo | None = field(default_factory=lambda: RuntimeInfo("containerd", "1.6", "runtime.v1"))


@dataclass
class Box:
    limits: Limits | None = None

    def state(self) -> BoxState:
        return BoxState("/offline", 1, self.limits, True, "", drift=3, timeouts=0, pods=())


@dataclass
class Inventory:
    placed: tuple[Sandbox, ...] = ()


@dataclass
class Notifier:
    lines: list[str] = field(default_factory=list)

    def status(self, text: str) -> bool:
        self.lines.append(text)
        return True


class Bench:
    def __init__(self, config: Config = ON, pass_through: bool = False) -> None:
        self.now_s = 1000.0
        self.link, self.box, self.inventory, self.notifier = Link(), Box(), Inventory(), Notifier()
        self.reporter = Reporter(
            Metrics("1"),
            self.box,  # type: ignore[arg-type]
            self.inventory,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            self.notifier,  # type: ignore[arg-type]
            config_file=Path("/c.toml"),
            dry_run=False,
            clock=lambda: self.now_s,
        )
        self.reporter.configured(config, (), (), pass_through=pass_through)
        self.guard = GuardStatus(True, None, "", 0, 0, 0, "not listening")
        self.endpoints = self.reporter.endpoints(History(), lambda: self.guard)

    def tick(self, after_s: float = 1.0) -> None:
        self.now_s += after_s
        self.reporter.ticked(SNAPSHOT, decision(), (), 0.01)

    def status(self) -> Status:
        return self.endpoints.status()

    def metric(self, name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", self.endpoints.metrics().decode(), re.MULTILINE)
        assert found is not None, name
        return float(found[1])


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
    bench.now_s += silent_s
    assert (bench.endpoints.unhealthy() is None) == healthy


def test_health_holds_while_ticks_fail_and_they_are_counted() -> None:
    bench = Bench()
    for _ in range(100):
        bench.now_s += 1.0
        bench.reporter.tick_failed(0.01)
    assert bench.endpoints.unhealthy() is None
    assert bench.status().box.tick_failures == 100


def test_readiness_is_the_runtime_s_and_tells_its_problem() -> None:
    bench = Bench()
    assert bench.endpoints.unready() is None
    bench.link.ready, bench.link.problem = False, "connection lost"
    assert "connection lost" in (bench.endpoints.unready() or "")
    assert bench.metric("criproxy_runtime_ready") == 0


# --- status --------------------------------------------------------------------------------------------------------


def test_status_before_the_first_tick_has_no_sample() -> None:
    status = Bench().status()
    assert (status.box.cpu, status.box.memory, status.box.path) == (None, None, "/offline")


def test_status_tells_all_parts() -> None:
    bench = Bench()
    bench.inventory.placed = (Sandbox("s", PodRef("u", "batch", "job"), "/offline/podu"),)
    bench.tick(5.0)
    bench.reporter.swept(2)
    status = bench.status()
    assert (status.colocation, status.uptime_s, status.dry_run) == ("on", 5.0, False)
    assert (status.runtime.ready, status.runtime.version) == (True, "containerd 1.6, CRI runtime.v1")
    assert (status.box.drift, status.box.swept) == (3, 2)
    assert [dataclasses.astuple(pod) for pod in status.pods] == [("batch", "job", "u", "/offline/podu")]
    assert status.box.cpu is not None
    assert (status.box.cpu.limit_cores, status.box.cpu.online_cores) == (1.5, 1.5)


@pytest.mark.parametrize(
    ("pass_through", "held", "cores", "size"),
    [
        pytest.param(False, None, "unlimited", "unlimited", id="off-no-box"),
        pytest.param(False, Limits(UNLIMITED, UNLIMITED), "unlimited", "unlimited", id="off-released"),
        pytest.param(False, Limits(0.25, GIB // 2), 0.25, GIB // 2, id="off-evicting"),
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
    assert box.cpu is not None
    assert box.memory is not None
    assert (box.cpu.limit_cores, box.memory.limit_bytes) == (cores, size)
    assert bench.status().colocation in box.cpu.reason
    assert bench.metric("criproxy_limit_cores") == (float("inf") if cores == "unlimited" else cores)


def test_status_tells_config_errors_and_what_waits_for_a_restart() -> None:
    bench = Bench()
    errors = parse(b"[cpu]\nmin_cores = 0\n", "/c.toml").errors
    bench.reporter.configured(ON, errors, ("proxy.listen",), pass_through=False)
    config = bench.status().config
    assert (config.file, config.errors, config.needs_restart) == (
        "/c.toml",
        tuple(map(str, errors)),
        ("proxy.listen",),
    )
    assert len(config.errors) == 1


def test_status_and_metrics_tell_of_the_guard() -> None:
    bench = Bench()
    bench.guard = GuardStatus(True, 0.5, "online stepped up", 3, 1, 0, "listening")
    assert bench.status().guard == bench.guard
    assert bench.metric("criproxy_guard_ceiling_cores") == 0.5


# --- the headline --------------------------------------------------------------------------------------------------


def test_headline_goes_to_the_service_manager_every_ten_seconds() -> None:
    bench = Bench()
    bench.inventory.placed = (Sandbox("s", PodRef("u", "batch", "job"), "/offline/podu"),)
    for _ in range(25):
        bench.tick()
    assert bench.notifier.lines == ["colocation on, runtime ready, 1 offline pods"] * 2


def test_headline_tells_a_pass_through_that_waits_for_the_runtime() -> None:
    bench = Bench(pass_through=True)
    bench.link.ready = False
    assert bench.reporter.headline() == "colocation pass-through, waiting for the runtime, 0 offline pods"
