"""What Prometheus reads."""

import math
import re
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from criproxy.model import LimitChange
from criproxy.observe.metrics import Metrics
from criproxy.observe.status import BypassStatus
from tests.observe.status_samples import DECISION, SNAPSHOT


def samples(metrics: Metrics) -> dict[str, float]:
    """Value by name and sorted labels, as `name{a=b}`."""
    found = {}
    for family in text_string_to_metric_families(metrics.registry.render().decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def test_call_that_ended_is_counted_timed_and_no_longer_in_flight() -> None:
    metrics = Metrics("1")
    metrics.on_start()
    assert samples(metrics)["criproxy_calls_in_flight"] == 1
    metrics.on_call("Version", "OK", 0.002, False)
    found = samples(metrics)
    assert found["criproxy_calls_in_flight"] == 0
    assert found["criproxy_calls_total{code=OK,hooked=false,method=Version}"] == 1
    assert found["criproxy_call_duration_seconds_sum{method=Version}"] == 0.002


@pytest.mark.parametrize(
    ("act", "name", "value"),
    [
        pytest.param(lambda m: m.on_rewrite("RunPodSandbox"), "rewrites_total{method=RunPodSandbox}", 1, id="rewrite"),
        pytest.param(lambda m: m.on_broken("a reason"), "connections_broken_total", 1, id="broken"),
        pytest.param(lambda m: m.on_given_up(1), "relay_given_up", 1, id="given-up"),
        pytest.param(lambda m: m.on_refusal("a", "b"), "refusals_total{method=a,reason=b}", 1, id="refusal"),
        pytest.param(lambda m: m.set(runtime_ready=True), "runtime_ready", 1, id="ready"),
        pytest.param(lambda m: m.count("config_reloads"), "config_reloads_total", 1, id="reload"),
        pytest.param(lambda m: m.count("config_reload_failures"), "config_reload_failures_total", 1, id="bad-reload"),
        pytest.param(lambda m: m.set(offline_sandboxes=7), "offline_sandboxes", 7, id="sandboxes"),
        pytest.param(lambda m: m.on_misplaced(), "misplacements_total", 1, id="misplacement"),
        pytest.param(lambda m: m.on_memory_eviction(), "memory_evictions_total", 1, id="memory-eviction"),
        pytest.param(lambda m: m.runtime_worked(1, 2, 3), "runtime_cpu_seconds_total", 1, id="runtime"),
        pytest.param(lambda m: m.runtime_worked(1, 2, 3), "offline_shim_cpu_seconds_total", 2, id="shims"),
        pytest.param(lambda m: m.runtime_worked(1, 2, 3), "offline_log_bytes_total", 3, id="logs"),
        pytest.param(lambda m: m.count("upgrade_failures"), "upgrade_failures_total", 1, id="upgrade-failure"),
        pytest.param(lambda m: m.count("samples_discarded"), "samples_discarded_total", 1, id="discarded"),
        pytest.param(lambda m: m.tick_failed(0.5), "tick_failures_total", 1, id="tick-failure"),
        pytest.param(lambda m: m.count("ticks_missed", 3), "ticks_missed_total", 3, id="missed"),
        pytest.param(lambda m: m.box_swept(2), "box_swept_total", 2, id="swept"),
        pytest.param(lambda m: m.guard_squeezed(), "guard_squeezes_total", 1, id="squeeze"),
        pytest.param(lambda m: m.guard_false_alarm(), "guard_false_alarms_total", 1, id="false-alarm"),
    ],
)
def test_event_shows(act: Callable[[Metrics], None], name: str, value: float) -> None:
    metrics = Metrics("1")
    before = samples(metrics).get(f"criproxy_{name}", 0)
    act(metrics)
    assert samples(metrics)[f"criproxy_{name}"] == before + value


def test_tick_shows_usage_prediction_limits_and_drift() -> None:
    metrics = Metrics("1")
    changes = [LimitChange("f", "1", "2", drift=drift) for drift in (True, False, True)]
    metrics.ticked(SNAPSHOT, DECISION, changes, 0.003)
    found = samples(metrics)
    expected = {
        "criproxy_usage_cores{scope=node}": 3.0,
        "criproxy_usage_cores{scope=online}": 1.75,
        "criproxy_usage_bytes{scope=box}": 1 << 30,
        "criproxy_capacity_cores": 4.0,
        "criproxy_prediction_cores": 2.1,
        "criproxy_limit_cores": 1.5,
        "criproxy_limit_bytes": math.inf,
        "criproxy_box_throttled_ratio": 0.125,
        "criproxy_box_drift_total": 2,
        "criproxy_tick_duration_seconds_count": 1,
    }
    assert {name: found[name] for name in expected} == expected
    assert math.isnan(found["criproxy_prediction_bytes"])


@pytest.mark.parametrize(("cores", "shown"), [(0.5, 0.5), (None, math.inf)])
def test_guards_ceiling_is_infinite_at_rest(cores: float | None, shown: float) -> None:
    metrics = Metrics("1")
    metrics.guard_ceiling(cores)
    assert samples(metrics)["criproxy_guard_ceiling_cores"] == shown


def test_gauges_of_what_is_not_known_yet_are_nan() -> None:
    assert math.isnan(samples(Metrics("1"))["criproxy_limit_cores"])


def test_process_and_version_are_shown() -> None:
    found = samples(Metrics("1.2.3"))
    assert found["criproxy_info{version=1.2.3}"] == 1
    assert found["process_resident_memory_bytes"] > 0


def test_names_follow_the_conventions_and_no_series_is_doubled() -> None:
    metrics = Metrics("1")
    metrics.on_call("Version", "OK", 0.1, True)
    for family in text_string_to_metric_families(metrics.registry.render().decode()):
        assert re.fullmatch(r"(criproxy|process)_[a-z_]+", family.name)
        assert family.documentation
        assert not family.name.endswith("_created")


def test_two_registries_are_apart() -> None:
    one, other = Metrics("1"), Metrics("1")
    one.tick_failed(0.0)
    assert samples(other)["criproxy_tick_failures_total"] == 0


@pytest.mark.parametrize(
    ("status", "after", "is_open", "uses"),
    [
        pytest.param(None, math.nan, math.nan, math.nan, id="no-bypass"),
        pytest.param(BypassStatus(10.0, None, 2, 5.0), 10.0, 0.0, 2.0, id="shut"),
        pytest.param(BypassStatus(None, 7.0, 3, 5.0), math.inf, 1.0, 3.0, id="open-and-never-again"),
    ],
)
def test_bypass_is_told(status: BypassStatus | None, after: float, is_open: float, uses: float) -> None:
    metrics = Metrics("1")
    metrics.bypass(status)
    found = samples(metrics)
    told = [found[f"criproxy_bypass_{name}"] for name in ("after_seconds", "open", "uses")]
    assert told == pytest.approx([after, is_open, uses], nan_ok=True)


def test_dropped_lines_of_the_log_are_counted_as_they_are_asked_for() -> None:
    dropped = [3, 5]
    metrics = Metrics("1", lambda: dropped.pop(0))
    assert [samples(metrics)["criproxy_log_lines_dropped_total"] for _ in range(2)] == [3.0, 5.0]
