"""One more row is all that one more resource takes, from the policy to what is shown of it."""

import json

import pytest
from msgspec.structs import replace

from criproxy.cgroup.driver import HeldLimit
from criproxy.control.history import DecisionRecord, History
from criproxy.control.policy import DynamicSettings, PolicySettings, PolicyState, StaticSettings, decide, safe_limits
from criproxy.control.resources import RESOURCES, SHARES, Resource, Sampling, Share
from criproxy.control.sampler import Sampler
from criproxy.model import Capacity, ResourcePrediction, ResourceSample, Snapshot, Usage, UsageReading
from criproxy.observe.metrics import Metrics
from criproxy.observe.status import from_json, latest_decisions, resource_status, to_json
from criproxy.observe.status_text import render
from criproxy.observe.why import answer
from criproxy.observe.why import from_json as why_from_json
from criproxy.observe.why import render as render_why
from criproxy.observe.why import to_json as why_to_json
from tests.observe.status_samples import STATUS

DISK = Resource(
    name="disk",
    title="disk",
    unit="mb_per_s",
    head="disk",
    step=1 << 20,
    words=lambda value: f"{value / 1e6:.0f} MB/s",
    cell=lambda value: f"{value / 1e6:.0f} MB/s",
)
SAMPLED = replace(
    DISK,
    sampling=Sampling(
        for_box=lambda _: None,
        capacity=lambda capacity: 1e9,
        most=lambda capacity: 1e9,
        used=lambda usage: usage.memory_bytes,
        counter=True,
        buckets=RESOURCES["memory"].sampling.buckets,
        usage_help="Disk in use",
        capacity_help="What disks can do",
    ),
)
SETTINGS = PolicySettings({"cpu": StaticSettings(1.5), "memory": StaticSettings(1 << 30), "disk": StaticSettings(5e7)})
SNAPSHOT = Snapshot(1.0, {name: ResourceSample(8e9, 2e9, 1e9, 1e9) for name in ("cpu", "memory")}, 0.0)


@pytest.fixture
def disk(monkeypatch):
    monkeypatch.setitem(RESOURCES, "disk", DISK)


def decided():
    return decide(SNAPSHOT, {}, PolicyState(), SETTINGS)[0]


def test_row_that_is_not_sampled_is_limited_as_configured(disk):
    decision, state = decide(SNAPSHOT, {}, PolicyState(), SETTINGS)
    assert decision.limits["disk"] == safe_limits(SETTINGS)["disk"] == 5e7
    assert decision.resources["disk"].reason == "static, as configured: 50 MB/s"
    lower = PolicySettings({**SETTINGS.resources, "disk": StaticSettings(2e7)})
    second = decide(SNAPSHOT, {}, state, lower)[0].resources["disk"]
    assert second.reason == "lowered 50 MB/s -> 20 MB/s: static, as configured: 20 MB/s"


def test_row_that_is_sampled_has_the_law_of_the_others(monkeypatch):
    monkeypatch.setitem(RESOURCES, "disk", SAMPLED)
    sampler, capacity = Sampler(), Capacity(4.0, 1 << 33)
    for t_s, node, box in ((1.0, 0, 0), (2.0, int(5e8), int(2e8))):
        reading = UsageReading(Usage(t_s, 0, memory_bytes=node), Usage(t_s, 0, memory_bytes=box), t_s)
        snapshot = sampler.sample(t_s, reading, capacity)
    assert snapshot.of["disk"] == ResourceSample(1e9, 5e8, 2e8, 3e8)
    predicted, law = {"disk": ResourcePrediction(4e8)}, DynamicSettings(floor=1e6)
    decision, _ = decide(snapshot, predicted, PolicyState(), PolicySettings({"disk": law}))  # type: ignore[arg-type]
    assert decision.resources["disk"].reason == "set to 499 MB/s: 1000 MB/s x 0.90 - predicted 400 MB/s"
    assert decision.limits["disk"] == pytest.approx(5e8, rel=0.01)


def test_row_is_in_the_status(disk):
    record = DecisionRecord(1.7e9, SNAPSHOT, decided())
    shown = resource_status(SNAPSHOT, decided(), {"cpu": 1.5, "memory": 1 << 30, "disk": 5e7})
    status = replace(STATUS, box=replace(STATUS.box, resources=shown), decisions=latest_decisions([record], 1))
    data = json.loads(to_json(status))
    assert (data["box"]["disk"]["limit_mb_per_s"], data["box"]["disk"]["in_force_mb_per_s"]) == (5e7, 5e7)
    assert (data["decisions"][0]["limit_mb_per_s"], data["decisions"][0]["disk_reason"]) == (
        5e7,
        "static, as configured: 50 MB/s",
    )
    assert from_json(to_json(status)) == status
    text = render(from_json(to_json(status)))
    assert "  disk       not known   not known   not known   not known   not known     50 MB/s     50 MB/s\n" in text
    assert "  disk: static, as configured: 50 MB/s\n" in text


def test_row_is_in_the_answer_to_why(disk):
    history = History()
    history.add(DecisionRecord(1.7e9, SNAPSHOT, decided()))
    why = answer(history, None, {"disk": 4e7})
    assert why_from_json(why_to_json(why)) == why
    assert "disk limit 50 MB/s, since" in render_why(why)
    assert "  in force   40 MB/s\n  why        static, as configured: 50 MB/s\n" in render_why(why)


def test_row_is_in_the_metrics(disk):
    metrics = Metrics("1")
    metrics.ticked(SNAPSHOT, decided(), (), 0.1)
    metrics.box_held({"disk": 4e7}, None)
    text = metrics.registry.render().decode()
    assert "criproxy_limit_mb_per_s 50000000.0\n" in text
    assert "criproxy_limit_in_force_mb_per_s 40000000.0\n" in text
    assert "criproxy_usage_mb_per_s" not in text


def test_row_of_a_share_is_in_the_status_and_the_metrics(monkeypatch):
    monkeypatch.setitem(SHARES, "files", Share("files", "open files", "files controller"))
    shares = {"files": HeldLimit(80, 5)}
    status = replace(STATUS, box=replace(STATUS.box, shares=shares))
    assert json.loads(to_json(status))["box"]["files"] == {"current": 5, "limit": 80}
    assert json.loads(to_json(status))["box"]["pids"] is None
    assert from_json(to_json(status)) == status
    assert "  open files: 5, limit 80\n" in render(from_json(to_json(status)))
    metrics = Metrics("1")
    metrics.in_use({"files": HeldLimit(80, 5)})
    text = metrics.registry.render().decode()
    assert "# HELP criproxy_box_files Open files in the box\n" in text
    assert "criproxy_box_files 5.0\n" in text
    assert "criproxy_limit_files 80.0\n" in text
