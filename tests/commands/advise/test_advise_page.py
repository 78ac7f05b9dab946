"""The page: its verdict, its two forms, and that nothing that a node is called does anything."""

import io
import json
import math
import re
from array import array
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from criproxy.cli import main
from criproxy.commands.advise import blocks, words
from criproxy.commands.advise.dryrun import Comparison
from criproxy.commands.advise.questions import LargestPods
from criproxy.commands.advise.study import (
    POD_BYTES,
    POD_CORES,
    Advice,
    Curve,
    CurvePoint,
    GroupAdvice,
    GroupLent,
    HourOfDay,
    Life,
    ResourceAdvice,
    by_node,
    endless_jobs,
    lent,
    study,
    together,
)
from criproxy.commands.simulate.cluster.record import Grid, RecordedNode
from criproxy.commands.simulate.parallel import Bar
from tests.commands.simulate.simulate_helpers import score, trace

GIB = float(1 << 30)
EVIL = "</title><script>alert(1)</script> | `x` [a](http://evil) "
LIFE = Life(3600.0, 950, 50, 1.0, 1.1, 1.2, 0.001, 0.02, 3.5, 0.25, 0, 1000)


def an_advice(*, name="4 cores, 16 GiB", mean=3.0, hard=0.001, days=7.0, life=LIFE, chosen=0.85, hard_memory=0.0):
    hours = tuple(HourOfDay(mean - 1.0, mean) for _ in range(23))
    found = GroupLent((*hours, HourOfDay(None, None)), mean - 1.0, mean, mean / 2)
    group = GroupAdvice(
        name,
        2,
        1,
        days,
        (
            ResourceAdvice("cpu", 8.0, found, score()),
            ResourceAdvice("memory", 32 * GIB, replace(found, mean=8 * GIB, guaranteed=4 * GIB), score()),
        ),
        (life,),
        2.0,
        6.0 * GIB,
    )
    curve = Curve("cpu", (CurvePoint(0.85, 0.4, 0.001), CurvePoint(0.9, 0.41, 0.002)), chosen, 0.9, 0.002)
    overall = {"cpu": score(hard_ratio=hard), "memory": score(hard_ratio=hard_memory)}
    return Advice((group,), (curve,), overall, group.resources[0], 60.0, 0.0, days * 86400 - 60, True)


# --- the verdict ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, well, begins",
    [
        ({}, True, "Yes, begin with a dry run: these nodes would have lent 3.0 of 8 cores on average (38%)"),
        ({"days": 1.0}, False, "Too early to say: the record has 1.0 days"),
        ({"mean": 0.3}, False, "No: these nodes would have lent 0.3 of 8 cores"),
        ({"hard": 0.01}, False, "Not with these settings"),
        ({"hard_memory": 0.01}, False, "Not with these settings"),
        ({"life": replace(LIFE, ended=0, evictions=0)}, False, "No: no job of one core and 2 GiB would have started"),
        ({"life": replace(LIFE, ended=50, evictions=50)}, False, "Only for short jobs: "),
    ],
    ids=["yes", "young", "little", "risky", "memory-risky", "never-started", "evicted"],
)
def test_verdict_says_whether_to_begin_and_why(changes, well, begins):
    found, sentence = words.verdict(an_advice(**changes))
    assert (found, sentence.startswith(begins)) == (well, True)
    assert sentence.count(". ") == 0  # one sentence


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"hard": 0.001}, "less CPU than it wanted 0.10% of the time (1.4 min a day)"),
        ({"hard": 0.001, "hard_memory": 0.01}, "less memory than it wanted 1.00% of the time (14.4 min a day)"),
    ],
    ids=["cpu", "memory"],
)
def test_verdict_names_the_resource_that_is_short_most_often(changes, says):
    assert says in words.verdict(an_advice(**changes))[1]


def test_verdict_without_lives_of_jobs_goes_by_what_is_lent_and_risked():
    advice = an_advice()
    without = replace(advice, groups=(replace(advice.groups[0], lives=()),), lives_known=False)
    assert words.verdict(without)[0]


# --- the page ---------------------------------------------------------------------------------------------------------


def a_page(**more):
    return [*words.blocks(an_advice(), words.Origin("by a test", **more))]


def test_page_has_what_its_reader_needs():
    text = blocks.markdown(words.TITLE, a_page(pods=LargestPods({}, "uses")))
    for heading in (
        "is promised",
        "is not promised",
        "been lent",
        "have risked",
        "How it is stopped",
        "The first step",
    ):
        assert heading in text
    assert "| 1 h | 95.0% | 1.00 x | 1.10 x | 1.20 x | 0.10% | 3.5 | 0.25 |" in text
    assert "| 00:00 | 2.0 | 3.0 |" in text
    assert "| 23:00 | - | - |" in text
    assert "[cpu]\nwatermark_ratio = 0.85" in text
    assert "the largest pod uses 6.0 GiB" in text
    assert "reserve_bytes = 4724464026 under" in text.replace("`", "").replace("\\", "")


@pytest.mark.parametrize("off, says", [(1.05, "can be believed"), (1.5, "More than 10% apart: n (cpu)")])
def test_dry_run_that_is_alike_or_not_is_told(off, says):
    text = blocks.markdown("t", a_page(compared=(Comparison("n", "cpu", 2.0, 2.0 * off, 24.0),)))
    assert says in text


def test_name_that_is_markup_is_text_in_both_forms():
    page = [*words.blocks(an_advice(name=EVIL), words.Origin(EVIL, notes=(EVIL,)))]
    html = blocks.html(words.TITLE, page)
    assert "<script" not in html
    assert 'href="http' not in html
    text = blocks.markdown(words.TITLE, page)
    assert "<script" not in text.replace("\\<", "")
    assert re.search(r"(?<!\\)\[a(?<!\\)\]\(", text) is None


def test_html_asks_nobody_and_its_drawings_are_well_formed_and_named():
    html = blocks.html(words.TITLE, a_page())
    assert "default-src 'none'" in html.replace("&#x27;", "'")
    assert re.findall(r'(?:src|href)="([^"]*)"', html) == ["data:,"]
    drawings = html.split("<svg")[1:]
    assert len(drawings) == 3
    for drawing in drawings:
        root = ElementTree.fromstring("<svg" + drawing.partition("</svg>")[0] + "</svg>")
        assert root.attrib["role"] == "img" and root.attrib["aria-label"]


def test_nobody_begins_with_more_than_the_default():
    advice = an_advice(chosen=0.95)
    text = blocks.markdown("t", [*words.blocks(advice, words.Origin("by a test"))])
    assert "[cpu]\nwatermark_ratio = 0.9" in text
    assert "Later, 0.95 would give more." in text
    text = blocks.markdown("t", [*words.blocks(an_advice(chosen=None), words.Origin("by a test"))])
    assert "\nwatermark_ratio" not in text
    assert "None of them keeps within 0.2%" in text


# --- sums -------------------------------------------------------------------------------------------------------------


def test_node_in_a_gap_of_its_record_is_taken_to_lend_as_the_others_do():
    sums = together([[1.0, math.nan, math.nan, 1.0], [2.0, 3.0, math.nan, 3.0]], [4.0, 8.0])
    assert sums[:2] == array("d", [3.0, 4.5])
    assert math.isnan(sums[2])
    assert sums[3] == 4.0


def test_node_lends_nothing_before_its_first_sample_and_after_its_last():
    sums = together([[1.0, 1.0, math.nan, math.nan], [math.nan, 2.0, 2.0, math.nan]], [4.0, 8.0])
    assert sums[:3] == array("d", [1.0, 3.0, 2.0])
    assert math.isnan(sums[3])


STEP_S = 300.0


def recorded(name, first_day, last_day, family="16 cores", peak=0.0):
    """Of 16 cores it uses 2 or a little more, and in each 97th sample `peak` more, which no forecast knows."""
    times = [first_day * 86400.0 + i * STEP_S for i in range(round((last_day - first_day) * 288))]
    usages = [2.0 + 0.2 * math.sin(t / 9000) + (0.0 if i % 97 else peak) for i, t in enumerate(times)]
    return RecordedNode(trace(usages, times, capacity=16.0, name=name, family=family), None)


def studied(*nodes):
    return study(nodes, {}, Bar(io.StringIO()), lives=False)


def test_nodes_that_came_one_after_the_other_are_not_added_up():
    steady = studied(recorded("a", 0, 7), recorded("b", 0, 7))
    rolled = studied(*(recorded(f"{name}{k}", 3.5 * k, 3.5 * k + 3.5) for name in "ab" for k in (0, 1)))
    (group,) = rolled.groups
    assert (group.nodes, group.at_once) == (4, pytest.approx(2.0, rel=0.01))
    assert "of 32 cores on average" in words.verdict(rolled)[1]
    assert rolled.cpu.lent.mean == pytest.approx(steady.cpu.lent.mean, rel=0.03)
    page = blocks.markdown("t", [*words.blocks(rolled, words.Origin("by a test"))])
    assert "### 16 cores: 4 nodes, 2 at a time" in page
    assert "CPU: " in page and " of 32.0 cores on average" in page


def test_group_that_takes_anothers_place_is_not_added_to_it():
    found = studied(recorded("a", 0, 3.5), recorded("b", 3.5, 7, "16 cores, new"))
    assert [group.resources[0].capacity for group in found.groups] == [16.0, 16.0]
    assert "of 16 cores on average" in words.verdict(found)[1]
    assert found.cpu.lent.guaranteed > 0.0


def test_hours_with_more_nodes_than_on_average_stay_within_the_drawing():
    hours = tuple(HourOfDay(1.0, 16.0 if hour == 12 else 4.0) for hour in range(24))
    advice = an_advice()
    cpu = replace(advice.groups[0].resources[0], lent=replace(advice.cpu.lent, hours=hours))
    group = replace(advice.groups[0], resources=(cpu, advice.groups[0].resources[1]))
    html = blocks.html("t", [*words.blocks(replace(advice, groups=(group,)), words.Origin("by a test"))])
    assert all(float(y) >= 0.0 for y in re.findall(r'<rect[^>]* y="([^"]*)"', html))


def test_guaranteed_is_the_least_of_an_hour_on_all_days_and_the_warm_up_does_not_count():
    grid = Grid(0.0, 1800.0, 48 * 2)
    amounts = [float(cell % 48) + (100.0 if cell >= 48 else 0.0) for cell in range(grid.cells)]
    found = lent(amounts, amounts, grid)
    first = grid.warm_cells
    assert first == 12
    assert found.hours[0] == HourOfDay(100.0, 100.5)
    assert found.hours[6] == HourOfDay(12.0, (12 + 13 + 112 + 113) / 4)
    assert found.guaranteed == 12.0


def test_node_counts_as_much_as_another_in_whatever_group_it_is():
    scores = [score(hard_ratio=0.003)] * 100 + [score(hard_ratio=0.0)]
    traces = [trace([1.0], family="small")] * 100 + [trace([1.0], family="odd")]
    overall = by_node(traces, scores, 0.01).overall.score
    assert overall.hard_ratio == pytest.approx(0.3 / 101)
    assert words.verdict(an_advice(hard=overall.hard_ratio))[1].startswith("Not with these settings")


def test_verdict_and_curve_go_by_all_nodes_and_the_worst_group_is_named():
    risky = [recorded(name, 0, 3, peak=13.0) for name in "ab"]
    found = studied(*risky, recorded("c", 0, 3, "calm"))
    (hard,) = (group.resources[0].score.hard_ratio for group in found.groups if group.name == "16 cores")
    assert 0.002 < found.overall["cpu"].hard_ratio == pytest.approx(2 / 3 * hard)
    (curve,) = found.curves
    assert {one.watermark_ratio: one.hard_ratio for one in curve.points}[curve.present] == pytest.approx(2 / 3 * hard)
    assert f"most on 16 cores ({hard:.2%})" in words.verdict(found)[1]


def test_page_says_of_how_long_its_values_are_means():
    text = blocks.markdown("t", [*words.blocks(replace(an_advice(), step_s=15.0), words.Origin("by a test"))])
    assert "Peaks shorter than the record's step of 15 s" in text
    origin = words.Origin("by a test", mean_s=75.0)
    text = blocks.markdown("t", [*words.blocks(replace(an_advice(), step_s=15.0), origin)])
    assert "a sample each 15 s, of CPU the mean of the 75 s before it" in text
    assert "Peaks of CPU shorter than the 75 s of which each value is the mean" in text


# --- the command ------------------------------------------------------------------------------------------------------


def usage(path, cores=4.0, hours=14):
    rows = [f"{name},{t},{cores * (0.3 + 0.1 * math.sin(t / 9000)):.3f}" for name in ("a-1", "b-1")
            for t in range(0, hours * 3600, 300)]  # fmt: skip
    path.write_text("\n".join(("id,t,u", *rows)) + "\n")
    return str(path)


def test_files_of_cpu_alone_make_a_page_and_say_that_memory_is_missing(tmp_path, capsys):
    out, numbers = tmp_path / "o.html", tmp_path / "o.json"
    file = usage(tmp_path / "u.csv")
    assert main(["advise", file, "--capacity", "4", "--output", str(out), "--json", str(numbers)]) == 0
    assert "of 8 cores on average" in capsys.readouterr().out
    assert "Memory is not in these files" in out.read_text()
    content = json.loads(numbers.read_text())
    assert [group["name"] for group in content["advice"]["groups"]] == ["a", "b"]
    assert main(["simulate", file, "--capacity", "4", "--json", str(numbers)]) == 0
    assert json.loads(numbers.read_text())["overall"]["score"] == content["advice"]["overall"]["cpu"]


def test_folders_lives_are_those_of_simulate_cluster(tmp_path, capsys):
    folder, out, cluster = tmp_path / "in", tmp_path / "o.json", tmp_path / "c.json"
    folder.mkdir()
    rows = [f"{name},{t},{2 + math.sin(t / 4000 + seed):.3f},{4e9 + 3e9 * math.sin(t / 5000):.0f}"
            for seed, name in enumerate(("a", "b")) for t in range(0, 12 * 3600, 300)]  # fmt: skip
    (folder / "nodes.csv").write_text("\n".join(("id,t,cpu,memory", *rows)) + "\n")
    (folder / "capacity.csv").write_text("id,cpu,memory\na,4,16000000000\nb,4,16000000000\n")
    assert main(["advise", str(folder), "--json", str(out)]) == 0
    assert "Too early to say: the record has 0.5 days" in capsys.readouterr().out
    groups = json.loads(out.read_text())["advice"]["groups"]
    assert len(groups) == 2  # a folder has no groups of its own: each id is one
    group = groups[0]
    job = endless_jobs(4.0, 12 * 3600.0, 3600.0)
    (folder / "nodes.csv").write_text("\n".join(("id,t,cpu,memory", *(row for row in rows if row[0] == "a"))) + "\n")
    (folder / "capacity.csv").write_text("id,cpu,memory\na,4,16000000000\n")
    (folder / "jobs.csv").write_text(
        f"arrival,cpu,memory,duration,count\n0,{POD_CORES},{POD_BYTES:.0f},{job.duration_s:.0f},{job.count}\n"
    )
    assert main(["simulate", "--cluster", str(folder), "--json", str(cluster)]) == 0
    law = json.loads(cluster.read_text())["laws"]["criproxy"]
    life = group["lives"][1]
    assert life["ended"] == law["jobs_ended"] > 5
    assert life["evictions"] == law["evictions"]
    assert life["slowdown_p99"] == law["slowdown_p99"]
    assert life["below_half_ratio"] == law["below_half"]
    assert life["squeezed_ratio"] == law["squeezed"] > 0.0


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["{file}"], "give --capacity"),
        (["{file}", "--capacity", "4000"], "is the capacity in millicores"),
        (["--prometheus", "localhost:9090"], "give http://HOST:PORT"),
        (["--prometheus", "http://u:p@h"], "a token belongs into --token-file"),
        (["--prometheus", "http://127.0.0.1:1", "--query", "disk=up"], "give NAME=PROMQL"),
        (["--config", "{folder}/none.toml"], "give --prometheus URL"),
    ],
    ids=["capacity", "unit", "scheme", "password", "query", "no daemon"],
)
def test_wrong_question_says_what_to_do(arguments, says, tmp_path, capsys):
    file = usage(tmp_path / "u.csv")
    given = [one.format(file=file, folder=tmp_path) for one in arguments]
    assert main(["advise", *given]) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--output", "x.pdf"], ["f", "--prometheus", "http://h"], ["--days", "0.1"]])
def test_wrong_command_line_ends_with_two(arguments):
    with pytest.raises(SystemExit) as ended:
        main(["advise", *arguments])
    assert ended.value.code == 2
