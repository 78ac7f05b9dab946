"""What Prometheus reads."""

import ast
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

import criproxy
from criproxy.daemon.register import OTHERS, PARTS
from criproxy.model import LimitChange
from criproxy.observe import metrics as metrics_module
from criproxy.observe.metrics import Metrics
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
        pytest.param(
            lambda m: m.count("rewrites", "RunPodSandbox"), "rewrites_total{method=RunPodSandbox}", 1, id="rewrite"
        ),
        pytest.param(lambda m: m.on_broken("a reason"), "connections_broken_total", 1, id="broken"),
        pytest.param(lambda m: m.on_given_up(1), "relay_given_up", 1, id="given-up"),
        pytest.param(lambda m: m.count("refusals", "a", "b"), "refusals_total{method=a,reason=b}", 1, id="refusal"),
        pytest.param(lambda m: m.set(runtime_ready=True), "runtime_ready", 1, id="ready"),
        pytest.param(lambda m: m.count("config_reloads"), "config_reloads_total", 1, id="reload"),
        pytest.param(lambda m: m.set(offline_sandboxes=7), "offline_sandboxes", 7, id="sandboxes"),
        pytest.param(lambda m: m.count("ticks_missed", by=0.5), "ticks_missed_total", 0.5, id="a-part"),
        pytest.param(lambda m: m.tick_failed(0.5), "tick_failures_total", 1, id="tick-failure"),
        pytest.param(lambda m: m.count("ticks_missed", by=3), "ticks_missed_total", 3, id="missed"),
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


def test_each_counter_is_counted_somewhere_with_its_labels() -> None:
    """Counters are named by texts, which no type checker looks at."""
    shown = (one for kind in (*OTHERS, *PARTS) for one in kind.COUNTERS)
    known = {one.name: len(one.labels) for one in (*metrics_module._COUNTERS, *shown)}
    counted: dict[str, int] = {}
    for file in Path(criproxy.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(ast.Attribute(attr="count") | ast.Name("count"), [first, *labels]):
                    texts = (one.value for one in ast.walk(first) if isinstance(one, ast.Constant))
                    counted.update((name, len(labels)) for name in texts if isinstance(name, str))
                case ast.Subscript(ast.Attribute(attr="_counters"), ast.Constant(str(name))):
                    counted[name] = known[name]
    assert {name: counted.get(name) for name in known} == known


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


@pytest.mark.parametrize(
    "name",
    [
        "evictions_total{resource=memory}",
        "kernel_tables_full_total{table=keys}",
        "ladder_transitions_total{resource=cpu,rung=closed}",
        "prediction_exceeded_total{resource=cpu}",
        "slow_pod_seconds_total{below=0.5}",
    ],
)
def test_counter_whose_labels_are_known_begins_with_0(name: str) -> None:
    """Else Prometheus sees no increase at the first that is counted."""
    assert samples(Metrics("1", shown=(*OTHERS, *PARTS)))[f"criproxy_{name}"] == 0


def test_two_registries_are_apart() -> None:
    one, other = Metrics("1"), Metrics("1")
    one.tick_failed(0.0)
    assert samples(other)["criproxy_tick_failures_total"] == 0


def test_dropped_lines_of_the_log_are_counted_as_they_are_asked_for() -> None:
    dropped = [3, 5]
    metrics = Metrics("1", lambda: dropped.pop(0))
    assert [samples(metrics)["criproxy_log_lines_dropped_total"] for _ in range(2)] == [3.0, 5.0]


def test_what_came_of_a_tick_is_counted_by_the_next() -> None:
    metrics = Metrics("1")
    cpu = SNAPSHOT.of["cpu"]
    assert samples(metrics)["criproxy_prediction_exceeded_total{resource=cpu}"] == 0
    later = {"t_s": SNAPSHOT.t_s + 3600.0, "read_s": SNAPSHOT.read_s + 2.0}
    now = replace(SNAPSHOT, **later, of={**SNAPSHOT.of, "cpu": replace(cpu, online=2.2, box=0.75)})
    metrics.passed(SNAPSHOT, DECISION, now)  # which says 2.1 cores, and nothing of memory
    metrics.passed(SNAPSHOT, DECISION, replace(now, of={**now.of, "cpu": replace(cpu, online=2.1, box=0.75)}))
    found = samples(metrics)
    assert found["criproxy_prediction_exceeded_total{resource=cpu}"] == 1
    assert found["criproxy_prediction_exceeded_total{resource=memory}"] == 0
    assert found["criproxy_box_cpu_seconds_total"] == 3.0
