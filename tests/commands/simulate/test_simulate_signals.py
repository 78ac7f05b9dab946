"""`criproxy simulate --signals`: a record of signals through the ladder."""

import gzip
import json
import random
from pathlib import Path

import pytest

from criproxy.cli import main
from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.signals import read_record, replay_signals
from criproxy.commands.simulate.trace import Findings, Flaw
from criproxy.control.interference.detectors import DETECTORS
from criproxy.control.interference.ladder import Rung

OPEN, TRIED, SQUEEZED, CLOSED, EVICTING = Rung


def record(values, signal="cpu_pressure", from_s=0, step_s=1.0):
    return [
        json.dumps({"t_s": from_s + i * step_s, "signal": signal, "value": value}) for i, value in enumerate(values)
    ]


def replayed(lines, guilty=""):
    return replay_signals(read_record(lines, "r.jsonl", Findings()), guilty)


def path(found, resource="cpu"):
    return [one.after for one in found.transitions if one.resource == resource]


def test_calm_record_moves_nothing():
    found = replayed(record([1.0] * 100))
    assert (found.transitions, found.gone) == ((), ())
    assert found.rungs_s["cpu"] == {OPEN: 99.0}
    assert (found.signals[0].samples, found.signals[0].bar) == (100, 10.0)


def test_lasting_harm_is_not_the_boxs_by_the_record_alone():
    found = replayed(record([0.0] * 10 + [40.0] * 20 + [0.0] * 10))
    assert path(found) == [TRIED, OPEN]
    assert found.signals[0].bar == 10.0


def test_hours_of_others_harm_of_a_second_each_hold_back_almost_nothing():
    rng = random.Random(7)
    usual = [2.0 * rng.lognormvariate(0.0, 0.6) for _ in range(2 * 3600)]
    found = replayed(record([30.0 if rng.random() < 1 / 60 else value for value in usual]))
    held_s = sum(seconds for rung, seconds in found.rungs_s["cpu"].items() if rung is not OPEN)
    assert held_s < 0.01 * found.span_s
    assert SQUEEZED not in path(found)


def test_lasting_harm_that_is_supposed_to_be_the_boxs_climbs_the_ladder_and_comes_down():
    found = replayed(record([0.0] * 10 + [40.0] * 200 + [0.0] * 200), guilty="cpu")
    assert path(found) == [TRIED, SQUEEZED, CLOSED, EVICTING, CLOSED, SQUEEZED, OPEN]
    assert len(found.gone) == 1, "nothing in the record tells that it has helped"
    assert found.span_s == 409.0


def test_shortage_is_the_boxs_by_account():
    lines = record([95.0] * 5 + [98.5] * 25 + [95.0] * 150, "memory_shortage")
    assert path(replayed(lines), "memory") == []
    found = replayed(lines, guilty="memory")
    assert path(found, "memory") == [SQUEEZED, CLOSED, EVICTING, CLOSED, SQUEEZED, OPEN]
    assert len(found.gone) == 1


def test_table_of_the_docs_has_each_detector_as_it_is():
    text = (Path(__file__).parents[3] / "docs/simulate.md").read_text()
    for one in DETECTORS:
        (row,) = (line for line in text.splitlines() if line.startswith(f"| `{one.name}`"))
        cells = [cell.strip() for cell in row.split("|")]
        assert (cells[2], cells[3].partition(",")[0], cells[4]) == (one.unit, f"{one.threshold:g}", f"{one.hold_s:g} s")


def test_record_of_a_slow_scrape_is_replayed_at_its_pace():
    found = replayed(record([0.0] * 5 + [40.0] * 20 + [0.0] * 40, step_s=15.0), guilty="cpu")
    assert path(found)[:2] == [TRIED, SQUEEZED]
    assert path(found)[-1] is OPEN


def test_lines_of_one_moment_are_one_tick_whatever_their_order():
    lines = [*record([1.0, 2.0]), *record([3.0, 4.0], "io_pressure", from_s=0.2)]
    findings = Findings()
    ticks = read_record(lines, "r", findings)
    assert [(one.t_s, one.values) for one in ticks] == [
        (0.0, {"cpu_pressure": 1.0, "io_pressure": 3.0}),
        (1.0, {"cpu_pressure": 2.0, "io_pressure": 4.0}),
    ]
    assert findings.counts == {Flaw.UNSORTED: 1}


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "x", '{"t_s": 1}', '{"t_s": "a", "signal": "cpu_pressure", "value": 1}', "\ufffd",
     '{"t_s": 1e999, "signal": "cpu_pressure", "value": 1}'],
)  # fmt: skip
def test_line_that_is_none_is_noted_and_left_out(line):
    findings = Findings()
    assert len(read_record([line, "", *record([1.0])], "r", findings)) == 1
    assert findings.places == {Flaw.NOT_A_SIGNAL: ["r:1"]}


def test_signal_that_is_null_is_not_known():
    (tick,) = read_record(['{"t_s": 1, "signal": "cpu_pressure", "value": null}'], "r", Findings())
    assert tick.values == {}


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "no usable line"),
        (["x"], "no usable line"),
        (record([1.0], "cpu_presure"), "no detector has the signal 'cpu_presure'; there are memory_shortage, cpu_"),
        (record([1.0], from_s=1.7e12), "give seconds"),
    ],
)
def test_record_that_is_none_is_refused_with_the_remedy(lines, why):
    with pytest.raises(SimulateError, match=why):
        read_record(lines, "r", Findings())


def test_command_tells_each_step_and_the_sums(tmp_path, capsys):
    file = tmp_path / "r.jsonl.gz"
    file.write_bytes(gzip.compress("\n".join(record([0.0] * 10 + [40.0] * 30 + [0.0] * 60)).encode()))
    assert main(["simulate", "--signals", str(file), "--guilty", "cpu", "--json", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "12.0 cpu: open -> tried: online's waiting for CPU (cpu_pressure) is at 40 %, above its bar of 10 %" in out
    assert "fell to 40% of its excess" in out
    assert "1 experiment, 1 conviction; 0 pods would have gone." in out
    written = json.loads((tmp_path / "out").read_text())
    assert written["transitions"][0]["after"] == "tried"


def test_command_goes_by_the_numbers_of_the_config(tmp_path, capsys):
    file, config = tmp_path / "r.jsonl", tmp_path / "config.toml"
    file.write_text("\n".join(record([0.0] * 10 + [40.0] * 75)))
    config.write_text("[interference]\nclose_after_s = 30.0\nevict_after_s = 10.0\n")
    signals = ["simulate", "--signals", str(file), "--guilty", "cpu"]
    assert main(signals) == 0
    assert "0 pods would have gone" in capsys.readouterr().out
    assert main([*signals, "--config", str(config)]) == 0
    assert "1 pod would have gone" in capsys.readouterr().out


def test_command_says_what_is_wrong_with_a_config(tmp_path, capsys):
    file, config = tmp_path / "r.jsonl", tmp_path / "config.toml"
    file.write_text("\n".join(record([0.0])))
    config.write_text("[interference]\nclose_after_s = 'soon'\n")
    assert main(["simulate", "--signals", str(file), "--config", str(config)]) == 1
    assert "close_after_s" in capsys.readouterr().err


def test_command_says_what_is_wrong_with_a_record(tmp_path, capsys):
    assert main(["simulate", "--signals", str(tmp_path / "none")]) == 1
    assert "give a file that can be read" in capsys.readouterr().err
