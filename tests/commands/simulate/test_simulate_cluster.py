"""Nodes and jobs come from a folder, or not at all; a law's replay on small clusters is what arithmetic says."""

import gzip
import json
import math
import os
import subprocess
import sys
from array import array
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec import structs

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.cluster import command
from criproxy.commands.simulate.cluster.engine import NodesByLaw, replay
from criproxy.commands.simulate.cluster.figures import Counted
from criproxy.commands.simulate.cluster.folder import EXAMPLE, read
from criproxy.commands.simulate.cluster.forecast import Foreseen, NodeOnGrid, OpenBoxAt, foresee
from criproxy.commands.simulate.cluster.laws import ABLATIONS, BY_NAME, LAWS
from criproxy.commands.simulate.cluster.record import Grid, PodsToCome, RecordedNode, grid_of, on_grid
from criproxy.commands.simulate.command import main
from criproxy.commands.simulate.replay import Plan, predict
from criproxy.commands.simulate.trace import Trace
from criproxy.control.publication import by_open_box

DOCS = Path(__file__).parents[3] / "docs"

GIB = 2**30
START_S = 1_760_000_000
NAMES = [law.name for law in LAWS]


def a_folder(tmp_path, nodes, capacity="id,cpu,memory\na,8,34359738368\nb,8,34359738368\n", jobs=None):
    for name, content in (("nodes.csv", nodes), ("capacity.csv", capacity), ("jobs.csv", jobs)):
        if content is not None:
            (tmp_path / name).write_text(content)
    return tmp_path


def some_nodes(hours=12, cpu=2.0, memory=8 * GIB, ids=("a", "b")):
    rows = [f"{one},{START_S + 300 * i},{cpu},{memory}" for one in ids for i in range(12 * hours)]
    return "\n".join(["id,t,cpu,memory", *rows]) + "\n"


def some_answers(folder, *, cores="8", memory_at=lambda i: START_S + 300 * i, samples=24, metrics=None, warnings=()):
    """A folder of Prometheus' answers; `cores` is what each node has, `metrics` are the labels of its series."""
    metrics = [{"node": "a"}, {"node": "b"}] if metrics is None else metrics
    values = {
        "cpu": [[START_S + 300 * i, "2"] for i in range(24)],
        "memory": [[memory_at(i), str(8 * GIB)] for i in range(samples)],
        "cpu_capacity": [[START_S, cores]],
        "memory_capacity": [[START_S, str(32 * GIB)]],
    }
    for name, of in values.items():
        data = {"resultType": "matrix", "result": [{"metric": metric, "values": of} for metric in metrics]}
        answer = {"status": "success", "data": data, "warnings": [*warnings]}
        (folder / f"{name}.json").write_text(json.dumps(answer))
    return folder


def refused(folder):
    with pytest.raises(SimulateError) as error:
        read(folder)
    return str(error.value)


@pytest.mark.parametrize("name", ["nodes.csv", "capacity.csv", "jobs.csv"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop", "nothing"])
def test_what_is_no_file_is_named_and_not_waited_for(tmp_path, name, kind):
    folder = a_folder(tmp_path, some_nodes(), jobs="arrival,cpu,duration\n1760000000,1,600\n")
    file = folder / name
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to({"device": "/dev/zero", "loop": file, "nothing": "/no/such/file"}[kind])
    assert refused(folder) == f"{file}: is no file, and no link to one; write it as a file, or remove it"


def test_a_name_that_no_file_can_have_is_no_folder():
    assert "is no folder" in refused(Path("/tmp/" + "a" * 5000))


@pytest.mark.parametrize("t", ["0", "99999999999", "-99999999999"])
def test_a_time_far_from_all_others_is_named_and_not_made_a_grid_of(tmp_path, t):
    why = refused(a_folder(tmp_path, some_nodes() + f"b,{t},1,1\n"))
    assert f"t = {t} (node b)" in why
    assert "remove rows whose time is wrong" in why
    assert why.startswith(str(tmp_path / "nodes.csv"))


def test_nodes_that_hardly_anything_is_on_record_of_are_not_made_one_grid_of(tmp_path):
    nodes = "".join(f"n{i},{START_S + 3000 * i},1\n" for i in range(20_000))
    capacity = "id,cpu\n" + "".join(f"n{i},8\n" for i in range(20_000))
    assert "for each of 20000 nodes are too many" in refused(a_folder(tmp_path, f"id,t,cpu\n{nodes}", capacity))


@pytest.mark.parametrize(
    ("file", "row", "named"),
    [
        ("nodes", f"b,{START_S + 7},1e308,1", ":290: cpu is '1e308'"),
        ("nodes", f"b,{START_S + 7},1,1e308", ":290: memory is '1e308'"),
        ("capacity", "c,8193,1", ":4: cpu is '8193'"),
        ("capacity", "c,1,1e19", ":4: memory is '1e19'"),
        ("jobs", f"{START_S},1e-300,0,60,1", ":2: cpu is '1e-300'"),
        ("jobs", f"{START_S},1,1e-300,60,1", ":2: memory is '1e-300'"),
        ("jobs", f"{START_S},1,0,1e300,1", ":2: duration is '1e300'"),
        ("jobs", f"{START_S},1,0,60,1e300", ":2: count is '1e300'"),
        ("jobs", f"{START_S},nan,0,60,1", ":2: cpu is 'nan'"),
    ],
)
def test_a_number_that_nothing_can_have_is_named_with_its_line(tmp_path, file, row, named):
    folder = a_folder(tmp_path, some_nodes(), jobs="arrival,cpu,memory,duration,count\n")
    with (folder / f"{file}.csv").open("a") as out:
        out.write(f"{row}\n")
    assert f"{file}.csv{named}; write " in refused(folder)


@pytest.mark.parametrize("cores", ["16000", "1e308"])
def test_capacity_answer_in_another_unit_than_cores_is_named_with_its_node(tmp_path, cores):
    why = refused(some_answers(tmp_path, cores=cores))
    assert why.startswith(f"{tmp_path / 'cpu_capacity.json'}: a has {float(cores):g} cores")


def test_capacity_answer_of_more_bytes_than_any_node_has_is_named(tmp_path):
    folder = some_answers(tmp_path)
    file = folder / "memory_capacity.json"
    file.write_text(file.read_text().replace(str(32 * GIB), "1e19"))
    assert refused(folder).startswith(f"{file}: a has 1e+19 bytes")


def test_columns_that_are_needed_are_named_once(tmp_path):
    why = refused(a_folder(tmp_path, some_nodes(), "id,cpu\na,8\n"))
    assert "needed are id,cpu,memory, and no others" in why


def test_warnings_and_capacities_without_usage_are_noted(tmp_path):
    folder = some_answers(tmp_path, warnings=["no store   matches"])
    for name in ("cpu_capacity.json", "memory_capacity.json"):
        answer = json.loads((folder / name).read_text())
        answer["data"]["result"].append({"metric": {"node": "away"}, "values": [[START_S, "8"]]})
        (folder / name).write_text(json.dumps(answer))
    notes = read(folder).notes
    assert "1 nodes left out: they have a capacity, and no usage on record (away)" in notes
    warned = next(note for note in notes if note.startswith("4 warnings of Prometheus"))
    assert f"{folder / 'cpu.json'}: no store matches" in warned


def test_nan_in_an_answer_is_left_out_and_noted(tmp_path):
    folder = some_answers(tmp_path)
    file = folder / "cpu.json"
    file.write_text(file.read_text().replace('"2"', '"NaN"', 1))
    cluster = read(folder)
    assert len(cluster.nodes[0].cpu.times_s) == 23
    assert cluster.notes == (f"1 rows left out: time or usage is not a finite number ({file}:a[0])",)


def test_series_without_labels_is_one_node_in_all_files(tmp_path):
    cluster = read(some_answers(tmp_path, metrics=[{}]))
    assert [(node.cpu.capacity, node.memory.capacity) for node in cluster.nodes] == [(8.0, 32.0 * GIB)]


def test_an_answer_of_prometheus_is_one_line_however_long(tmp_path):
    values = [[START_S + 30 * i, "2.5"] for i in range(50_000)]
    for name, of in (("cpu", values), ("cpu_capacity", [[START_S, "8"]])):
        result = [{"metric": {"node": "a"}, "values": of}]
        answer = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})
        (tmp_path / f"{name}.json").write_text(answer)
    assert (tmp_path / "cpu.json").stat().st_size > 1 << 20
    assert len(read(tmp_path).nodes[0].cpu.times_s) == 50_000


def test_an_answer_that_is_more_than_is_read_ends_there(tmp_path):
    with gzip.open(tmp_path / "cpu.json.gz", "wb", 1) as out:
        for _ in range(257):
            out.write(b"[]," * ((1 << 20) // 3 + 1))
    assert "more than 256 MiB" in refused(tmp_path)


def flat(law, *, cpu=(2.0,), lent=(4.0,), cells=40, cores=8.0, memory=None, lent_memory=None, size=32 * GIB):
    """A node that uses and lends these, cell by cell; the last value goes on."""
    long = lambda values: array("f", [values[min(i, len(values) - 1)] for i in range(cells)])  # noqa: E731
    return Foreseen(
        capacity_cores=cores,
        capacity_bytes=float(size) if memory else 0.0,
        cpu=long(cpu),
        memory=long(memory) if memory else None,
        lent_cpu={BY_NAME[law].amounts: long(lent)},
        lent_memory={BY_NAME[law].amounts: long(lent_memory)} if lent_memory else {},
    )


def replayed(law, *nodes, jobs=None, cell_s=300.0):
    return replay(NodesByLaw(law, Grid(0.0, cell_s, 40), nodes, jobs, (1,)))


def job(**given):
    return PodsToCome(**{"arrival_s": 0.0, "cpu": 1.0, "memory": 0.0, "duration_s": 600.0, "count": 1, **given})


# --- the folder -------------------------------------------------------------------------------------------------------


def test_folder_of_csv_gives_nodes_in_cores_and_bytes(tmp_path):
    cluster = read(
        a_folder(tmp_path, some_nodes(), jobs=f"arrival,cpu,memory,duration,count\n{START_S + 60},2,3,4,5\n")
    )
    assert [node.id for node in cluster.nodes] == ["a", "b"]
    node = cluster.nodes[0]
    assert (node.cpu.capacity, node.cpu.usages[0], node.memory.capacity, node.memory.usages[0]) == (
        8.0, 2.0, 32 * GIB, 8 * GIB,
    )  # fmt: skip
    assert cluster.jobs == (PodsToCome(arrival_s=60.0, cpu=2.0, memory=3.0, duration_s=4.0, count=5),)
    assert (cluster.grid.cell_s, cluster.grid.cells) == (300.0, 144)


def test_folder_may_be_packed_and_have_iso_times_and_no_memory(tmp_path):
    rows = "".join(f"a,2026-01-31T{hour:02}:{minute:02}:00Z,1\n" for hour in range(2) for minute in range(0, 60, 5))
    (tmp_path / "nodes.csv.gz").write_bytes(gzip.compress(f"id,t,cpu\n{rows}".encode()))
    cluster = read(a_folder(tmp_path, None, "id,cpu\na,4\n"))
    assert (cluster.nodes[0].memory, cluster.jobs, cluster.grid.cells) == (None, None, 24)


def test_folder_of_prometheus_answers_is_read(tmp_path):
    def answer(name, value):
        values = [[START_S + 300 * i, str(value)] for i in range(24)]
        series = [{"metric": {"instance": one, "job": "node"}, "values": values} for one in ("n1", "n2")]
        content = {"status": "success", "data": {"resultType": "matrix", "result": series}}
        (tmp_path / name).write_text(json.dumps(content))

    for name, value in (("cpu", 1.5), ("memory", GIB), ("cpu_capacity", 4), ("memory_capacity", 8 * GIB)):
        answer(f"{name}.json", value)
    cluster = read(tmp_path)
    found = [(node.id, node.cpu.usages[0], node.cpu.capacity, node.memory.capacity) for node in cluster.nodes]
    assert found == [("n1", 1.5, 4.0, 8.0 * GIB), ("n2", 1.5, 4.0, 8.0 * GIB)]


GOOD_ROW = f"a,{START_S},1,1"


@pytest.mark.parametrize(
    ("nodes", "capacity", "jobs", "words"),
    [
        pytest.param("", None, None, ("nodes.csv", "empty", "id,t,cpu"), id="empty"),
        pytest.param("id,t,cpu,memory\n", None, None, ("nodes.csv", "no row"), id="titles only"),
        pytest.param("id,t,usage\n", None, None, ("nodes.csv:1", "usage", "id,t,cpu"), id="other columns"),
        pytest.param("id,t,cpu,disk\n", None, None, ("nodes.csv:1", "disk"), id="a column more"),
        pytest.param(f"id,t,cpu,memory\n{GOOD_ROW}\na,{START_S + 1},x,1\n", None, None,
                     ("nodes.csv:3", "cpu", "'x'", "3.25"), id="no number"),
        pytest.param(f"id,t,cpu,memory\na,{START_S},nan,1\n", None, None, ("nodes.csv:2", "'nan'"), id="nan"),
        pytest.param(f"id,t,cpu,memory\na,{START_S},-1,1\n", None, None, ("nodes.csv:2", "'-1'"), id="negative"),
        pytest.param("id,t,cpu,memory\na,yesterday,1,1\n", None, None, ("nodes.csv:2", "'yesterday'"), id="time"),
        pytest.param(f"id,t,cpu,memory\n{GOOD_ROW},7\n", None, None, ("nodes.csv:2", "5 fields"), id="too many fields"),
        pytest.param(f"id,t,cpu,memory\na,{START_S},1\n", None, None, ("nodes.csv:2", "3 fields"), id="too few fields"),
        pytest.param(f"id,t,cpu,memory\n,{START_S},1,1\n", None, None, ("nodes.csv:2", "id is empty"), id="no id"),
        pytest.param(f"id,t,cpu,memory\n{GOOD_ROW}\n{GOOD_ROW}\na,{START_S + 300},1,1\n", None, None,
                     ("nodes.csv:3", "second usage"), id="twice"),
        pytest.param(some_nodes(ids=("c",)), None, None, ("nodes.csv", "'c'", "capacity.csv", "'a'"), id="no capacity"),
        pytest.param(some_nodes(cpu=2000), None, None, ("nodes.csv", "above the node's capacity", "cores"), id="unit"),
        pytest.param(f"id,t,cpu,memory\n{GOOD_ROW}\n", None, None, ("one moment",), id="one moment"),
        pytest.param(some_nodes(), "id,cpu,memory\na,0,1\n", None, ("capacity.csv:2", "'0'"), id="no cores"),
        pytest.param(some_nodes(), "id,cpu,memory\na,8,1\na,8,1\n", None, ("capacity.csv:3", "second"), id="id twice"),
        pytest.param(some_nodes(), "id,cpu\na,8\n", None, ("capacity.csv:1", "memory"), id="no memory"),
        pytest.param(some_nodes(), None, "arrival,cpu,memory,duration,count\n0,1,1,60,1.5\n",
                     ("jobs.csv:2", "'1.5'", "whole"), id="half a job"),
        pytest.param(some_nodes(), None, "arrival,cpu,memory,duration,count\n0,0,1,60,1\n",
                     ("jobs.csv:2", "cpu", "'0'"), id="job without CPU"),
        pytest.param(some_nodes(), None, "arrival,cpu,memory,duration,count\n", ("jobs.csv", "no row"), id="no job"),
        pytest.param(some_nodes(), None, f"arrival,cpu,duration\n{START_S + 10**7},1,60\n",
                     ("jobs.csv", "after the record"), id="all jobs late"),
        pytest.param(some_nodes(), None, f"arrival,cpu,duration\n{START_S - 10**7},1,60\n{START_S - 1},1,60\n",
                     ("jobs.csv", "before the record", "are times the same?"), id="all jobs early"),
        pytest.param("id,t,cpu\na,0,1\na,300,1\n", "id,cpu\na,8\n", "arrival,cpu,memory,duration\n0,1,5,60\n",
                     ("jobs.csv:2", "memory is 5"), id="memory that nobody recorded"),
    ],
)  # fmt: skip
def test_folder_that_is_understood_in_part_is_refused(tmp_path, nodes, capacity, jobs, words):
    folder = a_folder(tmp_path, nodes, **({"capacity": capacity} if capacity else {}), jobs=jobs)
    with pytest.raises(SimulateError) as caught:
        read(folder)
    for word in words:
        assert word in str(caught.value)


def test_jobs_outside_the_record_are_noted_and_only_those_that_come_are_counted(tmp_path):
    times = {START_S - 3600: 2, START_S + 60: 3, START_S + 12 * 3600: 5, START_S + 10**7: 7}
    rows = "".join(f"{at},1,60,{count}\n" for at, count in times.items())
    cluster = read(a_folder(tmp_path, some_nodes(), jobs=f"arrival,cpu,duration,count\n{rows}"))
    assert [job.count for job in cluster.jobs] == [2, 3]
    assert cluster.notes == (
        f"2 jobs arrive before the record of the nodes begins, and wait from its begin on ({tmp_path / 'jobs.csv'})",
        f"12 jobs arrive after the record of the nodes ends, and are left out ({tmp_path / 'jobs.csv'})",
    )


def test_folder_that_is_not_there_or_empty_is_refused_with_what_is_needed(tmp_path):
    with pytest.raises(SimulateError, match="is no folder; give one with"):
        read(tmp_path / "gone")
    with pytest.raises(SimulateError, match=r"has neither nodes\.csv"):
        read(tmp_path)


def test_packed_file_that_breaks_off_is_refused(tmp_path):
    packed = gzip.compress(some_nodes().encode())
    (tmp_path / "nodes.csv.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(SimulateError, match=r"nodes\.csv"):
        read(a_folder(tmp_path, None))


# --- the grid, and the forecast ---------------------------------------------------------------------------------------


def test_on_grid_means_and_holds_and_ends_in_a_gap():
    grid = Grid(0.0, 60.0, 8)
    values = on_grid([60.0, 90.0, 180.0], [2.0, 4.0, 5.0], grid)
    assert [round(v, 1) for v in values[1:6]] == [3.0, 3.0, 5.0, 5.0, 5.0]
    assert [math.isnan(v) for v in values] == [True, False, False, False, False, False, True, True]


def test_on_grid_leaves_out_what_lies_outside():
    grid = Grid(0.0, 60.0, 10)
    times = [-120.0 + 60.0 * i for i in range(12)]
    assert list(on_grid(times, [100.0, 100.0] + [1.0] * 10, grid)) == [1.0] * 10
    assert list(on_grid([-1.0, *times[2:], 600.0], [100.0] + [1.0] * 10 + [100.0], grid, last=True)) == [1.0] * 10


def test_on_grid_holds_a_value_for_three_steps_of_its_own():
    values = on_grid([300.0 * i for i in range(5)] + [3600.0], [1.0] * 6, Grid(0.0, 60.0, 61))
    assert [math.isnan(v) for v in values] == [False] * 35 + [True] * 25 + [False]


def test_memory_recorded_before_and_after_cpu_is_left_out_and_noted(tmp_path):
    folder = some_answers(tmp_path, memory_at=lambda i: START_S - 120 + 300 * i, samples=26)
    cluster = read(folder)
    assert cluster.notes == ("4 usages of memory are before or after all of CPU's record, and are left out",)
    for node in cluster.nodes:
        found = foresee(NodeOnGrid(node, cluster.grid))
        assert found.memory == array("f", [8 * GIB] * 24)


def test_memory_of_another_time_than_cpus_is_refused(tmp_path):
    folder = some_answers(tmp_path, memory_at=lambda i: START_S - 86400 + 300 * i)
    assert "are times the same?" in refused(folder)


def test_node_of_a_longer_step_stays_on_record_and_is_noted(tmp_path):
    def placed(steps, folder):
        rows = [
            f"n{at},{START_S + step * i},{2 + math.sin(step * i / 9000):.3f}"
            for at, step in enumerate(steps)
            for i in range(12 * 3600 // step)
        ]
        folder.mkdir()
        capacity = "id,cpu\nn0,8\nn1,8\nn2,8\n"
        cluster = read(a_folder(folder, "\n".join(["id,t,cpu", *rows]) + "\n", capacity))
        nodes = tuple(foresee(NodeOnGrid(node, cluster.grid)) for node in cluster.nodes)
        counted = replay(NodesByLaw("criproxy", cluster.grid, nodes, None, (1,)))
        return 100.0 * counted.figures(finite=False)["placed_ratio"], cluster.notes

    alike, nothing = placed((60, 60, 60), tmp_path / "alike")
    other, notes = placed((60, 60, 300), tmp_path / "other")
    assert nothing == ()
    assert notes == (
        "1 series have a longer step than cells of 60 s; each value holds until the next (CPU of n2: 300 s)",
    )
    assert other == pytest.approx(alike, abs=2.0)


def test_foresee_is_the_products_prediction_and_law():
    usages = array("d", [4.0 + math.sin(i / 20.0) for i in range(400)])
    trace = Trace("a", "a", 16.0, array("d", [300.0 * i for i in range(400)]), usages)
    node = RecordedNode(trace, None)
    found = foresee(NodeOnGrid(node, grid_of([node])))
    hours = predict(trace, Plan("cpu", 0.1, alpha_ratio=0.05, horizon_s=3600.0, cold_start_probes=288))
    for i in (0, 5, 50, 399):
        expected = by_open_box(16.0, usages[i], hours[i], watermark_ratio=0.95, factor=2.0)
        assert found.lent_cpu["criproxy"][i] == pytest.approx(max(expected, 0.1), rel=1e-5)
        assert found.lent_cpu["criproxy_former"][i] == pytest.approx(max(0.9 * 16 - hours[i], 0.1), rel=1e-5)
        assert found.lent_cpu["koordinator"][i] == pytest.approx(0.6 * 16 - usages[i], rel=1e-5)
        highest = max(usages[i : i + 12])
        assert found.lent_cpu["foresight"][i] == pytest.approx(16.0 - highest, rel=1e-5)


# --- the replay -------------------------------------------------------------------------------------------------------


def test_what_pods_got_moves_what_criproxy_lends():
    box = OpenBoxAt(array("f", [2.0] * 40), array("f", [4.0] * 40))
    calm, starved = (
        structs.replace(flat("criproxy", cpu=(used,)), open_box=box)
        for used in (2.0, 7.5)  # 5.6 or 0.5 cores are free
    )
    # Of what the forecast leaves, 4 cores, twice as much is lent at first: what is free now, 5.6, is less.
    assert replayed("criproxy", calm).course[-1][2] == pytest.approx(5.6)
    assert replayed("criproxy", starved).course[-1][2] < 2.0


def test_endless_queue_fills_what_is_lent_and_no_more():
    counted = replayed("criproxy", flat("criproxy"))
    found = counted.figures(finite=False)
    assert found["promised_core_hours"] <= 4.0 * 30 / 12 + 1e-6  # of 40 cells of 5 minutes, a quarter warms up
    assert found["placed_core_hours"] == pytest.approx(4.0 * 30 / 12, rel=0.05)
    assert found["free_core_hours"] == pytest.approx(6.0 * 30 / 12)
    assert (found["below_half"], found["squeezed"], found["evictions"]) == (0.0, 0.0, 0)
    assert found["slowdown_p95"] == 1.0


def test_pods_share_what_online_leaves_and_their_slowdown_is_counted():
    law, cpu = "without_starved", (2.0,) * 12 + (7.0,) * 28  # 4 pods of a core share one core from then on
    counted = replayed(law, flat(law, cpu=cpu), jobs=(job(count=4, arrival_s=3000.0, duration_s=1200.0),))
    found = counted.figures(finite=True)
    # Begun at 3000 s, 600 s at full speed, and 600 s of work at a quarter of it: 3000 s for 1200.
    assert (found["jobs_ended"], found["evictions"]) == (4, 0)
    assert found["slowdown_p50"] == pytest.approx(2.5, rel=0.002)
    assert found["below_half"] == pytest.approx(2400.0 / 3000.0, rel=0.01)
    assert found["placed_core_hours"] == pytest.approx(4 * 1200.0 / 3600.0)
    assert found["broken_cpu"] == 0


def test_who_starves_for_five_minutes_has_the_youngest_go_until_the_rest_get_all():
    """From 3600 s on four pods share 1.5 cores, and by 3870 s had less than half in 5 minutes."""
    crowded = flat("criproxy", cpu=(2.0,) * 12 + (6.0,) * 28, lent=(4.0,) * 13 + (2.0,) * 27)
    late = flat("criproxy", lent=(0.0,) * 20 + (4.0,) * 20)
    jobs = (job(count=4, arrival_s=3000.0, duration_s=6000.0),)
    counted = replayed("criproxy", crowded, late, jobs=jobs)
    assert counted.starved == counted.evictions == 0  # half is not below half

    crowded = structs.replace(crowded, cpu=array("f", (2.0,) * 12 + (6.5,) * 28))
    counted = replayed("criproxy", crowded, late, jobs=jobs)
    assert (counted.starved, counted.evictions) == (3, 3)  # of 1.5 cores, one pod gets all that it wants
    # They ran at full speed up to 3600 s, at 3/8 for 270 s, at a half and at three quarters for a minute each.
    first = 600.0 + 3 / 8 * 270.0
    assert counted.lost == pytest.approx(first + (first + 30.0) + (first + 30.0 + 45.0))
    assert (counted.ended, counted.waiting) == (2, 0)  # the one that stayed, and the first that found a node
    assert counted.below_half_s == pytest.approx(4 * 270.0)


def test_no_more_go_for_starving_than_the_ladder_may_evict_in_ten_minutes():
    node = flat("criproxy", cpu=(2.0,) * 12 + (8.0,) * 28, lent=(4.0,) * 13 + (0.0,) * 27)
    for cells, gone in ((13, 2), (14, 4), (16, 8)):  # from 3780 s on one a minute, and from 4380 s on again
        jobs = (job(cpu=0.4, count=10, arrival_s=3000.0, duration_s=9e5),)
        counted = replay(NodesByLaw("criproxy", Grid(0.0, 300.0, cells), (node,), jobs, (1,)))
        assert counted.starved == gone


@pytest.mark.parametrize("law", [law.name for law in ABLATIONS])
def test_law_without_a_part_lacks_only_that(law):
    box = OpenBoxAt(array("f", [2.0] * 40), array("f", [4.0] * 40))
    memory, lent_memory = (8.0 * GIB,) * 28 + (27.0 * GIB,) * 12, (20.0 * GIB,) * 28 + (0.0,) * 12
    node = flat(law, cpu=(2.0,) * 12 + (7.9,) * 8 + (2.0,) * 20, lent=(5.6,), memory=memory, lent_memory=lent_memory)
    jobs = (job(count=5, memory=2 * GIB, duration_s=9e5),)
    counted = replayed(law, structs.replace(node, open_box=box), jobs=jobs)
    moved, fell = counted.starved > 0, counted.course[-1][2] < 5.0
    assert moved == (law == "without_feedback")
    assert fell == (law != "without_feedback")
    assert counted.evictions > counted.starved  # kubelet's own at least


def test_koordinator_is_suppressed_to_065_of_the_node():
    counted = replayed("koordinator", flat("koordinator", cpu=(2.0,) * 12 + (4.0,) * 28, lent=(3.0,)), jobs=(
        job(count=3, arrival_s=3000.0, duration_s=6000.0),
    ))  # fmt: skip
    assert counted.figures(finite=True)["utilisation"] == pytest.approx(
        (2.0 * 2 + 4.0 * 28 + 3.0 * 2 + 1.2 * 28) / (8.0 * 30), rel=0.01
    )


def test_law_without_idle_breaks_a_sample_that_comes_to_a_full_node():
    cpu = (2.0,) * 20 + (6.0,) + (2.0,) * 19
    assert replayed("tke", flat("tke", cpu=cpu, lent=(5.0,))).broken_cpu == 1
    assert replayed("criproxy", flat("criproxy", cpu=cpu, lent=(5.0,))).broken_cpu == 0


def test_memory_that_online_takes_back_evicts_by_each_laws_rule():
    def run(law):
        memory, lent = (8.0 * GIB,) * 20 + (26.0 * GIB,) * 20, (20.0 * GIB,) * 20 + (0.0,) * 20
        node = flat(law, memory=memory, lent_memory=lent, lent=(6.0,))
        return replayed(law, node, jobs=(job(count=6, arrival_s=3000.0, memory=2 * GIB, duration_s=1e5),))

    ladder, koordinator, tke = run("criproxy"), run("koordinator"), run("tke")
    assert ladder.broken_memory == koordinator.broken_memory == 1  # 26 + 12 of 32 GiB, as it comes
    # 0.9 x 32 - 26 = 2.8 GiB stay: one pod, within the budget of 6 in 10 minutes; 0.68 x 32 - 26 < 0: none; kubelet: 2.
    assert (ladder.evictions, koordinator.evictions, tke.evictions) == (5, 6, 4)
    assert ladder.lost / 5 == pytest.approx(3000.0, rel=0.02)
    assert ladder.waiting == 5


def test_report_waits_for_a_rise_and_not_for_a_fall():
    ours, theirs = (
        replayed(law, flat(law, lent=(4.0, 2.0) * 20), cell_s=60.0).reports for law in ("criproxy", "koordinator")
    )
    assert (ours < 12, theirs) == (True, 30)  # one in 5 minutes, and the falls after them; or one each minute


def test_scheduler_takes_the_node_that_has_most_free_and_lets_what_fits_by():
    big, small = flat("criproxy", lent=(6.0,)), flat("criproxy", lent=(2.0,))
    jobs = (job(cpu=7.0), job(cpu=1.0, count=3, duration_s=9e5))
    counted = replayed("criproxy", big, small, jobs=jobs)
    assert counted.waiting == 1  # 7 cores fit nowhere
    assert counted.figures(finite=True)["placed_core_hours"] == pytest.approx(3.0 * 30 / 12)


def test_job_from_before_the_record_waits_from_its_begin_on():
    node = flat("tke", lent=(0.0,) * 20 + (4.0,) * 20)
    found = replayed("tke", node, jobs=(job(arrival_s=-1e6),)).figures(finite=True)
    assert found["wait_p50_s"] == pytest.approx(6300.0, abs=60.0)  # what is lent from 6000 s on is known 300 s later


def test_pods_that_still_wait_count_with_their_wait_so_far():
    """Of six pods two begin after 6300 s, two never had room, and two come after the last look of the scheduler."""
    node = flat("tke", lent=(0.0,) * 20 + (4.0,) * 20)
    jobs = (job(cpu=2.0, count=2, duration_s=9e5), job(cpu=2.0, count=2), job(count=2, arrival_s=11_990.0))
    counted = replayed("tke", node, jobs=jobs)
    waits = {step: count for step, count in enumerate(counted.waits) if count}
    assert waits == {0: 2, 105: 2, 200: 2}
    assert (counted.waiting, counted.waiting_work_h) == (4, pytest.approx((2 * 2 + 2) * 600.0 / 3600.0))


def test_evicted_pod_that_waits_again_counts_with_its_first_wait_alone():
    memory, lent = (8.0 * GIB,) * 20 + (31.0 * GIB,) * 20, (20.0 * GIB,) * 20 + (0.0,) * 20
    node = flat("criproxy", memory=memory, lent_memory=lent)
    counted = replayed("criproxy", node, jobs=(job(arrival_s=3000.0, memory=8 * GIB, duration_s=9e5),))
    assert (counted.evictions, counted.waiting, sum(counted.waits)) == (1, 1, 1)


@pytest.mark.parametrize(
    ("duration_s", "gap", "placed"),
    [
        pytest.param(1.0, False, 30 * 1.0, id="short"),
        # The job before the first counted cell ends in it; the last one, and that before the gap, lack 10 s.
        pytest.param(110.0, True, 30 * 110.0 + 10.0 - 10.0 - 10.0, id="end in a gap"),
    ],
)
def test_course_and_sum_have_the_same_work_of_pods_that_end_within_a_step(duration_s, gap, placed):
    cpu = (2.0,) * 15 + ((math.nan,) if gap else (2.0,)) + (2.0,) * 24
    jobs = tuple(job(arrival_s=100.0 * i, duration_s=duration_s) for i in range(40))
    grid = Grid(0.0, 100.0, 40)
    counted = replay(NodesByLaw("criproxy", grid, (flat("criproxy", cpu=cpu),), jobs, (1,)))
    assert counted.placed == pytest.approx(placed)
    assert sum(cell[3] for cell in counted.course[grid.warm_cells :]) * grid.cell_s == pytest.approx(placed)


def test_gap_lends_nothing_and_counts_nothing():
    nan = math.nan
    counted = replayed("criproxy", flat("criproxy", cpu=(2.0,) * 20 + (nan,) * 20))
    assert counted.nodes_s == 10 * 300.0
    assert counted.course[-1] == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("law", ["criproxy", "koordinator", "tke", "without_ladder"])
def test_pods_go_with_their_node_and_do_not_end_on_it(law):
    """Two nodes on record for five hours each, one after the other, and jobs of six."""
    nan = math.nan
    first = flat(law, cpu=(2.0,) * 60 + (nan,), lent=(3.0,), cells=120)
    second = flat(law, cpu=(nan,) * 60 + (2.0,), lent=(3.0,), cells=120)
    jobs = (job(count=6, duration_s=6 * 3600.0),)
    counted = replay(NodesByLaw(law, Grid(0.0, 300.0, 120), (first, second), jobs, (1,)))
    assert (counted.ended, counted.evictions, counted.starved) == (0, 3, 0)
    assert counted.lost == pytest.approx(3 * 5 * 3600.0, rel=0.05)
    assert counted.waiting == 3  # the others are on the second node


def test_pods_stay_on_their_node_through_a_gap_of_its_record():
    cpu = (2.0,) * 15 + (math.nan,) * 10 + (2.0,)
    counted = replayed("criproxy", flat("criproxy", cpu=cpu), jobs=(job(count=4, duration_s=9e3),))
    assert (counted.ended, counted.evictions) == (4, 0)


def test_replay_of_parts_adds_up_and_repeats():
    one, other = flat("criproxy"), flat("criproxy", cpu=(5.0,), lent=(2.0,))
    total = Counted()
    total.add(replayed("criproxy", one))
    total.add(replayed("criproxy", other))
    both = replayed("criproxy", one, other)
    assert total.promised == pytest.approx(both.promised, rel=0.02)
    assert total.figures(finite=False) == {**total.figures(finite=False)}
    again = replayed("criproxy", one, other)
    assert again.figures(finite=False) == both.figures(finite=False)


# --- the command ------------------------------------------------------------------------------------------------------


def test_command_writes_json_and_a_page_that_needs_no_network(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    folder = a_folder(tmp_path / "in", some_nodes())
    out, html = tmp_path / "o.json", tmp_path / "o.html"
    assert main(["--cluster", str(folder), "--json", str(out), "--html", str(html)]) == 0
    content = json.loads(out.read_text())
    assert list(content["laws"]) == NAMES
    assert (content["nodes"], content["duration"], content["warm_up"]) == (2, 12 * 3600.0, 3 * 3600.0)
    assert content.keys() >= {"seed", "machine", "cores"}
    needed = {
        "placed_core_hours", "free_core_hours", "below_half", "squeezed", "evictions", "slowdown_p50", "slowdown_p95",
        "lost_core_hours", "broken_cpu", "broken_memory", "waiting_jobs", "utilisation",
    }  # fmt: skip
    assert all(found.keys() >= needed for found in content["laws"].values())
    assert content["laws"]["foresight"]["placed_core_hours"] >= content["laws"]["koordinator"]["placed_core_hours"] > 0
    told = capsys.readouterr().out
    assert "Koordinator" in told and "2 nodes of 16 cores" in told
    page = html.read_text()
    assert "http" not in page.replace("http-equiv", "")
    assert "prefers-color-scheme: dark" in page
    for drawing in page.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + drawing.partition("</svg>")[0] + "</svg>")


def test_command_replays_criproxys_law_without_each_of_its_parts_if_asked(tmp_path, capsys):
    out, folder = tmp_path / "o.json", a_folder(tmp_path, some_nodes())
    assert main(["--cluster", str(folder), "--without", "--json", str(out)]) == 0
    content = json.loads(out.read_text())
    assert list(content["laws"]) == [*NAMES, "without_starved", "without_feedback", "without_ladder"]
    assert content["laws"]["without_starved"]["evictions_starved"] == 0
    assert content["machine"]["cpu_s"] > 0
    assert "nobody moved who starves" in capsys.readouterr().out


def test_command_has_no_more_than_one_word_for_a_wrong_folder(tmp_path, capsys):
    assert main(["--cluster", str(tmp_path / "gone")]) == 1
    assert "is no folder" in capsys.readouterr().err


def test_example_that_ships_is_small_and_sound():
    cluster = read(EXAMPLE)
    assert (len(cluster.nodes), cluster.notes) == (12, ())
    assert cluster.jobs is not None
    assert sum(file.stat().st_size for file in EXAMPLE.iterdir()) < 60_000


MOST_REPORTS_AN_HOUR = 11.0
"""Of a node: what 10,000 nodes ask of an API server, 30 patches a second."""


def test_nodes_of_the_example_report_no_more_often_than_aimed_at():
    cluster = read(EXAMPLE)
    nodes = tuple(foresee(NodeOnGrid(node, cluster.grid)) for node in cluster.nodes)
    counted = replay(NodesByLaw("criproxy", cluster.grid, nodes, cluster.jobs, (1,)))
    assert 9.0 < counted.figures(finite=True)["reports_per_node_hour"] <= MOST_REPORTS_AN_HOUR


@pytest.mark.parametrize(("step_min", "above"), [(60, False), (30, False), (20, True)])
def test_falls_of_more_than_a_tenth_are_within_the_aim_up_to_some_two_an_hour(step_min, above):
    """What is lent falls in seven steps, again and again. Beyond, the law goes by what pods lose, not by the aim."""
    cells = 720
    lent = [10.0 * 0.85 ** (cell // step_min % 8) for cell in range(cells + 16 * 30)]
    nodes = [flat("without_feedback", cores=20.0, cells=cells, lent=lent[30 * i :]) for i in range(16)]
    counted = replay(NodesByLaw("without_feedback", Grid(0.0, 60.0, cells), tuple(nodes), (), (1,)))
    assert (counted.figures(finite=True)["reports_per_node_hour"] > MOST_REPORTS_AN_HOUR) == above


def test_command_without_numpy_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert command.require_numpy.__module__.endswith("cluster.command")
    assert main(["--cluster", str(tmp_path)]) == 1
    said, remedy = capsys.readouterr().err, "python3 -m venv .venv && .venv/bin/pip install '.[cluster]'"
    assert "criproxy's packages have none" in said and f"in a checkout, {remedy}" in said
    assert sys.executable not in said
    assert remedy in (DOCS / "simulate.md").read_text() and remedy in (DOCS / "advise.md").read_text()


@pytest.mark.slow
def test_command_imports_numpy_only_when_it_replays_a_cluster():
    code = "import sys, criproxy.commands.simulate.command; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
