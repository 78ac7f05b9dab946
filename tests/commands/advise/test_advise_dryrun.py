"""What a daemon recorded, held against the replay of the same minutes: alike for a week, told apart where it is not."""

import json
import math
import random
import sys

import pytest

from criproxy.cli import main
from criproxy.commands.advise.dryrun import SAME_RATIO, compared, of_histories, of_pages
from criproxy.commands.page.document import document
from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.cluster import forecast
from criproxy.control.day import Day
from criproxy.control.policy import PolicyState, StaticSettings, decide
from criproxy.control.predictor import make_predictor
from criproxy.control.resources import RESOURCES
from criproxy.model import ResourcePrediction
from tests.commands.page.lived import node
from tests.rows import laws, snapshot

GIB = 1 << 30
CORES, BYTES = 16.0, 64.0 * GIB
DAY_S = 86400
WALL_S = 1_735_689_600.0
LAWS = laws(StaticSettings(1.0), StaticSettings(GIB))


def lived(days, *, tick_s=60, burst_s=300, wrong=1.0):
    """Histories of so many days, each as it was at its end, of a daemon that looked each `tick_s`; its forecasts times
    `wrong`. Each half hour or so, online bursts by a quarter of the node for `burst_s`.
    """
    day, histories, rng, bursts_until_s = Day(), [], random.Random(5), 0
    predictors = {of: make_predictor(forecast._HOUR, RESOURCES[of].sampling.buckets) for of in ("cpu", "memory")}
    for t_s in range(0, days * DAY_S + 1, tick_s):
        wave = math.cos((t_s % DAY_S / DAY_S - 0.6) * math.tau)
        bursts_until_s = t_s + burst_s if rng.random() < tick_s / 1800 else bursts_until_s
        burst = 4.0 if t_s < bursts_until_s else 0.0
        cpu = min(CORES, max(0.0, 6.0 + 3.0 * wave + burst + rng.gauss(0.0, 0.4)))
        memory = (24.0 + 2.0 * wave + rng.gauss(0.0, 0.1)) * GIB
        one = snapshot(float(t_s), (CORES, cpu, 0.0, cpu), (BYTES, memory, 0.0, memory))
        found = {
            of: ResourcePrediction(None, hour=wrong * predictors[of].observe(float(t_s), WALL_S + t_s, used, capacity))
            for of, used, capacity in (("cpu", cpu, CORES), ("memory", memory, BYTES))
        }
        decision, _ = decide(one, found, PolicyState(), LAWS)
        day.sampled(one, decision, "")
        if t_s and not t_s % DAY_S:
            histories.append(json.loads(day.to_json(float(t_s), WALL_S + t_s)))
    return histories


@pytest.fixture(scope="module")
def week():
    return lived(7)


def test_week_of_dry_run_is_what_the_advice_says_within_a_tenth(week):
    run = of_histories("n", week)
    assert len(run.node.cpu.times_s) == 7 * 1440
    cpu, memory = compared(run)
    assert (cpu.resource, memory.resource) == ("cpu", "memory")
    assert cpu.hours == pytest.approx(6 * 24, abs=0.1)
    assert 3.0 < cpu.said < 12.0
    assert abs(cpu.off_ratio) < SAME_RATIO
    assert abs(memory.off_ratio) < SAME_RATIO


def test_bursts_that_a_minute_hides_are_told():
    """The daemon sees them, and lends less; the replay of means does not."""
    (cpu, _) = compared(of_histories("n", lived(1, tick_s=30, burst_s=30)))
    assert cpu.off_ratio > SAME_RATIO


def test_daemon_that_forecasts_otherwise_is_told_apart():
    (cpu, memory) = compared(of_histories("n", lived(1, wrong=1.8)))
    assert cpu.off_ratio > SAME_RATIO
    assert memory.off_ratio > SAME_RATIO


def test_saved_pages_of_several_days_are_one_record(week, tmp_path):
    for number, history in enumerate(week[:2]):
        page, _ = document("node-<1>", {"history": history})
        (tmp_path / f"{number}.html").write_text(page)
    (run,) = of_pages([str(tmp_path / "1.html"), str(tmp_path / "0.html")])
    assert run.node.id == "node-<1>"
    assert run.node.cpu.times_s == of_histories("n", week[:2]).node.cpu.times_s


def test_record_of_an_older_daemon_has_no_forecasts_and_is_advised_on_all_the_same(week):
    old = {**week[0], "minutes": {**week[0]["minutes"]}}
    for of in ("cpu", "memory"):
        old["minutes"][of] = {key: value for key, value in old["minutes"][of].items() if key != "hour"}
    run = of_histories("n", [old])
    assert len(run.node.cpu.times_s) == 1440
    assert compared(run) == []


def test_what_is_no_record_is_refused_in_words(tmp_path, week):
    (tmp_path / "a.html").write_text("<title>x</title><p>no data")
    with pytest.raises(SimulateError, match="criproxy page --save"):
        of_pages([str(tmp_path / "a.html")])
    with pytest.raises(SimulateError, match="not understood"):
        of_histories("n", [{"minutes": {}, "scales": {}}])
    empty = json.loads(Day().to_json(60.0, WALL_S))
    with pytest.raises(SimulateError, match=r"has 0\.0 hours on record; ask again in 7 hours"):
        of_histories("n", [empty])


def test_on_a_node_without_numpy_the_running_criproxy_is_asked(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    with node(tmp_path) as config:
        assert main(["advise", "--config", str(config)]) == 0
    told = capsys.readouterr().out
    assert "Of 1 node, by what criproxy recorded here" in told
    assert "Too early to say: the record has 1.0 days" in told
    assert "32 cores" in told
    assert "How long offline jobs would have lived is not said: that needs numpy." in told
    assert "`python3 -m venv .venv && .venv/bin/pip install '.[cluster]'`" in told
    assert "ran to its end" not in told
