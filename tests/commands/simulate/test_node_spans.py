"""Spans of recorded nodes become a folder of many nodes that `criproxy simulate --cluster` reads."""

import math
import random

import pytest

from benchmarks.node_spans import STEP_S, Recorded, drawn, main
from criproxy.commands.simulate.cluster.folder import read
from criproxy.commands.simulate.readers import load

DAY_S = 86400
STEPS = DAY_S // STEP_S


def a_file(tmp_path, name, days, usage, *, without=()):
    rows = "".join(
        f"{one},{1_760_000_000 + STEP_S * i},{usage(i):.3f}\n"
        for one in days
        for i in range(days[one] * STEPS)
        if (one, i) not in without
    )
    (tmp_path / name).write_text(f"id,t,u\n{rows}")
    return str(tmp_path / name)


def made(tmp_path, *arguments):
    assert main([*arguments, str(tmp_path / "out")]) == 0
    return read(tmp_path / "out")


def test_each_node_is_a_span_and_has_the_memory_of_that_time(tmp_path, capsys):
    days = {"cpu-a": 3, "cpu-b": 2}
    cpu = a_file(tmp_path, "cpu.csv", days, lambda i: 1.0 + i // STEPS)
    memory = a_file(tmp_path, "memory.csv", {"mem-a": 3, "mem-b": 2}, lambda i: 10.0 * (1 + i // STEPS))
    cluster = made(tmp_path, "--nodes", "5", "--memory", memory, cpu)
    assert "5 nodes of 2 series, 0 of which" in capsys.readouterr().out
    assert sorted(node.cpu.usages[0] for node in cluster.nodes) == [1.0, 1.0, 2.0, 2.0, 3.0]
    assert all(node.memory.usages[9] == 10 * node.cpu.usages[9] * 2**30 for node in cluster.nodes)
    assert (cluster.grid.cells, cluster.grid.cell_s) == (STEPS, STEP_S)
    work_s = sum(job.duration_s * job.count for job in cluster.jobs)
    assert work_s == pytest.approx(5 * 32 * DAY_S, rel=0.15)


def test_spans_overlap_where_there_are_too_few_and_borrowed_memory_is_said(tmp_path, capsys):
    cpu = a_file(tmp_path, "cpu.csv", {"cpu-a": 3}, lambda i: 2.0 + math.sin(i))
    memory = a_file(tmp_path, "memory.csv", {"mem-z": 1}, lambda _: 10.0)
    cluster = made(tmp_path, "--nodes", "6", "--memory", memory, "--endless", cpu)
    assert "their memory is that of other series" in capsys.readouterr().out
    assert (len(cluster.nodes), cluster.jobs) == (6, None)


def test_span_that_lacks_too_much_is_no_node(tmp_path):
    lacking = {("a", i) for i in range(STEPS, STEPS + STEPS // 8)}
    file = a_file(tmp_path, "cpu.csv", {"a": 3}, lambda _: 1.0, without=lacking)
    series = [Recorded(one, DAY_S) for one in load([file], "32", None)[0]]
    assert sorted(one.begin // STEPS for one in drawn(series, 2, random.Random(1))) == [0, 2]


def test_what_is_too_short_is_refused(tmp_path, capsys):
    (tmp_path / "cpu.csv").write_text("id,t,u\na,0,1\na,300,1\na,600,1\n")
    assert main([str(tmp_path / "cpu.csv"), str(tmp_path / "out")]) == 1
    assert "no series is long enough" in capsys.readouterr().err
