"""What is written is read by prometheus_client, and says what prometheus_client itself would say."""

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client import Counter as TheirCounter
from prometheus_client import Gauge as TheirGauge
from prometheus_client import Histogram as TheirHistogram
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from criproxy.observe.exposition import Histogram, Registry, Value, add_process_metrics

NUMBERS = st.floats(allow_nan=False) | st.sampled_from([math.inf, -math.inf, 0.0, 1.0, 5.0])
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]) | st.sampled_from('\\"\n'), max_size=8)


def read(exposed: bytes) -> dict[str, tuple[str, str, dict[tuple[str, frozenset[tuple[str, str]]], float]]]:
    """Type, help and samples of each family; without what tells when a series was made."""
    return {
        family.name: (
            family.type,
            family.documentation,
            {(s.name, frozenset(s.labels.items())): s.value for s in family.samples},
        )
        for family in text_string_to_metric_families(exposed.decode())
        if not family.name.endswith("_created")
    }


@given(st.lists(st.tuples(TEXTS, TEXTS, NUMBERS), max_size=5))
def test_gauges_are_as_theirs(sets: list[tuple[str, str, float]]) -> None:
    registry, theirs = Registry(), CollectorRegistry()
    gauge = Value("gauge", "g", "What it is", ("one", "two"), registry=registry)
    their = TheirGauge("g", "What it is", ("one", "two"), registry=theirs)
    for one, two, value in sets:
        gauge.set(value, one, two)
        their.labels(one, two).set(value)
    assert read(registry.render()) == read(generate_latest(theirs))


@given(st.lists(st.tuples(TEXTS, st.integers(0, 10**18)), max_size=5))
def test_counters_are_as_theirs(counts: list[tuple[str, int]]) -> None:
    registry, theirs = Registry(), CollectorRegistry()
    counter, plain = (
        Value("counter", "c_total", "How many", ("of",), registry=registry),
        Value("counter", "p_total", "Any", registry=registry),
    )
    their = TheirCounter("c", "How many", ("of",), registry=theirs)
    their_plain = TheirCounter("p", "Any", registry=theirs)
    for of, count in counts:
        counter.inc(of, by=count)
        plain.inc()
        their.labels(of).inc(count)
        their_plain.inc()
    assert read(registry.render()) == read(generate_latest(theirs))


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 0.1, 0.11, 0.5, 1.0, 9.0])), max_size=20))
def test_histograms_are_as_theirs(seen: list[tuple[str, float]]) -> None:
    registry, theirs = Registry(), CollectorRegistry()
    bounds = (0.1, 0.5, 1.0)
    named = Histogram("h", "How long", ("by",), bounds=bounds, registry=registry)
    plain = Histogram("p", "How long", bounds=bounds, registry=registry)
    their_named = TheirHistogram("h", "How long", ("by",), buckets=bounds, registry=theirs)
    their_plain = TheirHistogram("p", "How long", buckets=bounds, registry=theirs)
    for by, value in seen:
        named.observe(value, by)
        plain.observe(value)
        their_named.labels(by).observe(value)
        their_plain.observe(value)
    assert read(registry.render()) == read(generate_latest(theirs))


def test_process_is_described_as_they_do() -> None:
    registry, theirs = Registry(), CollectorRegistry()
    add_process_metrics(registry)
    ProcessCollector(registry=theirs)
    ours, their = read(registry.render()), read(generate_latest(theirs))
    assert {name: kind for name, (kind, _, _) in ours.items()} == {name: kind for name, (kind, _, _) in their.items()}
    for name, within in [("start_time_seconds", 0.02), ("max_fds", 0), ("open_fds", 2), ("resident_memory_bytes", 4e6)]:
        (value,), (expected,) = ours[f"process_{name}"][2].values(), their[f"process_{name}"][2].values()
        assert value == pytest.approx(expected, abs=within), name


def test_counts_of_many_threads_are_not_lost() -> None:
    registry = Registry()
    counter = Value("counter", "c_total", "How many", registry=registry)
    threads = [
        threading.Thread(
            target=lambda: [counter.inc() for _ in range(5000)]  # type: ignore[func-returns-value]
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert b"\nc_total 20000.0\n" in registry.render()
