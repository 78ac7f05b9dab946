"""Input as users have it: formats, and tables of what can be wrong with it."""

import gzip
import json
import time
import tracemalloc

import pytest

from criproxy.commands.simulate import SimulateError, readers
from criproxy.commands.simulate.readers import load
from criproxy.commands.simulate.trace import Flaw

GOOD = "id,t,u\na-1,0,1\na-1,60,2\nb-1,0,3\n"


@pytest.fixture
def read(tmp_path):
    """Loads text (or bytes) as a file; returns {id: samples} and {flaw: (count, places)}."""

    def read(content, capacity="10", family=None, name="nodes.csv"):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        traces, findings = load([str(file)], capacity, family)
        courses = {t.id: list(zip(t.times_s, t.usages, strict=True)) for t in traces}
        places = {
            flaw: (count, [place.replace(f"{tmp_path}/", "") for place in findings.places[flaw]])
            for flaw, count in findings.counts.items()
        }
        return courses, places, traces

    return read


AB = {"a-1": [(0, 1), (60, 2)], "b-1": [(0, 3)]}


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        GOOD.removeprefix("id,t,u\n"),
        GOOD.replace("\n", "\r\n"),
        "\ufeff" + GOOD,
        "\n\n" + GOOD,
        "U,Node,Timestamp\n1,a-1,0\n2,a-1,60\n3,b-1,0\n",
        'time,usage,instance\n"0",1,a-1\n60,2,"a-1"\n0,3,b-1\n',
        "id,t,u\na-1,1970-01-01T00:00:00Z,1\na-1,1970-01-01 00:01:00,2\nb-1,1970-01-01T01:00:00+01:00,3\n",
        gzip.compress(GOOD.encode()),
    ],
    ids=["plain", "no-header", "crlf", "bom", "blank-lines", "other-order", "quoted", "iso-8601", "gzip"],
)
def test_csv_of_any_kind_gives_its_samples(content, read):
    courses, flaws, _ = read(content)
    assert (courses, flaws) == (AB, {})


def test_csv_time_without_a_zone_is_utc_wherever_one_is(read, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert read("t,u\n1970-01-01T00:00:00,1\n", name="n.csv")[0] == {"n": [(0, 1)]}
    finally:
        monkeypatch.undo()
        time.tzset()


def test_csv_without_ids_is_one_node_named_by_the_file(read):
    assert read("t,u\n0,1\n60,2\n", name="worker.csv")[0] == {"worker": [(0, 1), (60, 2)]}


@pytest.mark.parametrize(
    ("rows", "flaw", "noted", "left"),
    [
        ("a,60,nan", Flaw.NOT_A_NUMBER, (1, ["nodes.csv:3"]), [(0, 1)]),
        ("a,60,inf", Flaw.NOT_A_NUMBER, (1, ["nodes.csv:3"]), [(0, 1)]),
        ("a,60,", Flaw.NOT_A_NUMBER, (1, ["nodes.csv:3"]), [(0, 1)]),
        ("a,sometime,2", Flaw.NOT_A_NUMBER, (1, ["nodes.csv:3"]), [(0, 1)]),
        ("a,nan,2", Flaw.NOT_A_NUMBER, (1, ["nodes.csv:3"]), [(0, 1)]),
        ("a,60", Flaw.NOT_A_ROW, (1, ["nodes.csv:3"]), [(0, 1)]),
        ("x\ny\nz\nx\na,60,2", Flaw.NOT_A_ROW, (4, ["nodes.csv:3", "nodes.csv:4", "nodes.csv:5"]), [(0, 1), (60, 2)]),
        ("a,60,-2", Flaw.NEGATIVE, (1, ["nodes.csv:3"]), [(0, 1), (60, 0)]),
        ("a,60,11", Flaw.ABOVE_CAPACITY, (1, ["nodes.csv:3"]), [(0, 1), (60, 10)]),
        ("a,60,2\na,60,3", Flaw.DUPLICATE, (1, ["nodes.csv:4"]), [(0, 1), (60, 2)]),
        ("a,120,2\na,60,3", Flaw.UNSORTED, (1, ["nodes.csv:4"]), [(0, 1), (60, 3), (120, 2)]),
        (
            "a,60,1\na,120,1\na,400,1",
            Flaw.GAP, (1, ["a after t=120"]), [(0, 1), (60, 1), (120, 1), (400, 1)],
        ),
    ],
    ids=[
        "nan", "inf", "empty", "bad-time", "nan-time", "short-row", "many", "negative", "above-capacity", "duplicate",
        "unsorted", "gap",
    ],
)  # fmt: skip
def test_bad_rows_are_counted_and_named_and_the_rest_is_used(rows, flaw, noted, left, read):
    courses, flaws, _ = read(f"id,t,u\na,0,1\n{rows}\n")
    assert flaws == {flaw: noted}
    assert courses == {"a": left}


@pytest.mark.parametrize("factor", [1000, 10**6, 10**9], ids=["milli", "micro", "nano"])
def test_times_in_a_finer_unit_are_taken_as_such_and_noted(factor, read):
    courses, flaws, _ = read(f"id,t,u\na,{1_700_000_000 * factor},1\na,{1_700_000_060 * factor},2\n")
    assert courses == {"a": [(1_700_000_000, 1), (1_700_000_060, 2)]}
    assert flaws == {Flaw.FINER_TIME: (2, ["nodes.csv:2", "nodes.csv:3"])}


def test_usage_of_nothing_and_of_the_whole_capacity_is_no_flaw(read):
    assert read("id,t,u\na,0,0\na,60,10\n")[:2] == ({"a": [(0, 0), (60, 10)]}, {})


def test_unsorted_and_duplicate_at_once_keep_the_first_of_the_file(read):
    courses, flaws, _ = read("id,t,u\na,60,2\na,0,1\na,60,3\n")
    assert courses == {"a": [(0, 1), (60, 2)]}
    assert flaws == {Flaw.UNSORTED: (1, ["nodes.csv:3"]), Flaw.DUPLICATE: (1, ["nodes.csv:4"])}


def test_findings_are_told_in_one_line_each(tmp_path):
    (tmp_path / "n.csv").write_text("id,t,u\na,0,1\n" + "a,60,x\n" * 5)
    _, findings = load([str(tmp_path / "n.csv")], "10", None)
    place = f"{tmp_path}/n.csv"
    assert list(findings.lines()) == [
        f"5 rows left out: time or usage is not a finite number ({place}:3, {place}:4, {place}:5, ...)"
    ]


def test_other_columns_are_ignored_and_named(read):
    courses, flaws, _ = read("zone,id,t,u,note\nz,a,0,1,hello\nz,a,60,2,\n")
    assert courses == {"a": [(0, 1), (60, 2)]}
    assert flaws == {Flaw.OTHER_COLUMN: (2, ["nodes.csv: zone", "nodes.csv: note"])}


def test_gzip_that_breaks_off_is_used_as_far_as_it_goes(read):
    rows = "id,t,u\n" + "".join(f"a,{i * 60},{i % 7}.{i * 7919 % 1000}\n" for i in range(20_000))
    courses, flaws, _ = read(gzip.compress(rows.encode())[:-20_000])
    assert 1000 < len(courses["a"]) < 20_000
    assert flaws[Flaw.CUT_OFF] == (1, ["nodes.csv"])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is empty"),
        ("id,t,u\n", "no usable row: there are no rows"),
        ("id,t,u\na,x,1\na,0,nan\n", "2 rows left out: time or usage is not a finite number"),
        ("when,how much\n0,1\n", "has the columns 'when', 'how much'; needed are t and u"),
        (b"\x00\x01\x02\n" * 900, "has the columns"),
        (GOOD.replace("a-1,0", '"a' + "x" * 200_000), "field larger than field limit"),
    ],
    ids=["empty", "header-only", "all-bad", "no-columns", "binary", "huge-field"],
)
def test_nothing_of_use_is_one_clear_error(content, told, read):
    with pytest.raises(SimulateError, match=told) as raised:
        read(content)
    assert "nodes.csv" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_file_that_is_missing_is_one_clear_error(tmp_path):
    with pytest.raises(SimulateError, match=r"gone.csv: No such file"):
        load([str(tmp_path / "gone.csv")], "10", None)


def test_several_files_add_up_and_name_their_own_rows(tmp_path):
    (tmp_path / "1.csv").write_text("id,t,u\na,0,1\n")
    (tmp_path / "2.csv").write_text("id,t,u\na,60,2\na,0,5\n")
    traces, findings = load([str(tmp_path / "1.csv"), str(tmp_path / "2.csv")], "10", None)
    assert list(traces[0].usages) == [1, 2]
    assert findings.places[Flaw.DUPLICATE] == [f"{tmp_path}/2.csv:3"]


# --- Prometheus ---


def answer(*series):
    result = [{"metric": metric, "values": values} for metric, values in series]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


A = [[0, "1"], [60, "2"]]


PARTS = {
    "whole": lambda whole: whole,
    "data": lambda whole: whole["data"],
    "result": lambda whole: whole["data"]["result"],
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("indent", [None, 1], ids=["compact", "pretty"])
def test_prometheus_answer_or_a_part_of_it_gives_its_samples(part, indent, read):
    whole = answer(({"instance": "a:9100", "job": "node"}, A), ({"instance": "b:9100", "job": "node"}, [[0.5, "3"]]))
    courses, flaws, _ = read(json.dumps(part(whole), indent=indent), name="answer.json")
    assert courses == {"a:9100": [(0, 1), (60, 2)], "b:9100": [(0.5, 3)]}
    assert flaws == {}


@pytest.mark.parametrize(
    ("metrics", "ids"),
    [
        ([{"node": "a", "job": "x"}], ["a"]),
        ([{"job": "x"}], ["answer"]),
        ([{"node": "a", "zone": "1"}, {"node": "b", "zone": "2"}], ["a", "b"]),
        ([{"pod": "a", "job": "x"}, {"pod": "b", "job": "x"}], ["a", "b"]),
        ([{"pod": "a", "ns": "x"}, {"pod": "a", "ns": "y"}, {"pod": "b"}], ["ns=x,pod=a", "ns=y,pod=a", "pod=b"]),
    ],
    ids=["single", "single-without", "node-of-several", "the-one-that-differs", "all-that-differ"],
)
def test_prometheus_series_are_named_by_what_differs(metrics, ids, read):
    courses, _, _ = read(json.dumps(answer(*((metric, A) for metric in metrics))), name="answer.json")
    assert list(courses) == ids


def test_prometheus_warnings_and_series_without_values_are_counted_and_named(read):
    whole = answer(({"node": "a"}, A), ({"node": "b"}, []), ({"node": "c"}, None))
    whole |= {"warnings": ["no store   matches"], "infos": ["is x a counter?"]}
    _, flaws, _ = read(json.dumps(whole), name="answer.json")
    assert flaws == {
        Flaw.WARNED: (2, ["answer.json: no store matches", "answer.json: is x a counter?"]),
        Flaw.NO_VALUES: (2, ["answer.json:b", "answer.json:c"]),
    }


def test_prometheus_bad_values_are_counted_and_named(read):
    values = [[0, "1"], [60, "NaN"], [120, "+Inf"], [180], "x", [240, None], [300, "2"], [360, 10**400]]
    courses, flaws, _ = read(json.dumps(answer(({"node": "a"}, values))), name="answer.json")
    assert courses == {"a": [(0, 1), (300, 2)]}
    assert flaws == {
        Flaw.NOT_A_NUMBER: (4, ["answer.json:a[1]", "answer.json:a[2]", "answer.json:a[5]"]),
        Flaw.NOT_A_ROW: (2, ["answer.json:a[3]", "answer.json:a[4]"]),
    }


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"status": "error", "error": "query timed out"}', "query timed out"),
        ('{"status": "success", "data": {"resultType": "vector", "result": []}}', "a vector, not a matrix"),
        ('{"status": "success", "data": {"resultType": "matrix", "result": []}}', "result is empty"),
        ('{"something": 1}', "no result of a range query"),
        ("[1, 2]", "no result of a range query"),
        ('{"status": ', "is no JSON"),
        (json.dumps(answer(({"node": "a"}, []))), "no usable row"),
        (json.dumps(answer(({"node": "a"}, None))), "no usable row: 1 series left out: they have no values"),
        (json.dumps(answer(({"node": "a"}, 5))), "json:a: has 5 for values, which are no list"),
    ],
    ids=["error", "vector", "empty", "other", "list", "cut-off", "no-values", "null-values", "number-for-values"],
)
def test_prometheus_answer_of_no_use_is_one_clear_error(content, told, read):
    with pytest.raises(SimulateError, match=told):
        read(content, name="answer.json")


# --- families and capacities ---


@pytest.mark.parametrize(
    ("content", "family", "expected"),
    [
        ("id,t,u\nweb-1,0,1\ndb,0,1\n", None, ["web", "db"]),
        ("id,t,u,family\nweb-1,0,1,x\ndb,0,1,\n", None, ["x", "db"]),
        ("id,t,u,pool\nweb-1,0,1,big\ndb,0,1,big\n", "pool", ["big", "big"]),
        (json.dumps(answer(({"node": "a-1"}, A), ({"node": "b-1", "family": "x"}, A))), None, ["a", "x"]),
        (json.dumps(answer(({"node": "a-1", "pool": "p"}, A), ({"node": "b-1"}, A))), "pool", ["p", "b"]),
    ],
    ids=["id-prefix", "column", "named-column", "label", "named-label"],
)
def test_family_is_that_of_the_row_or_of_the_id(content, family, expected, read):
    assert [trace.family for trace in read(content, family=family)[2]] == expected


@pytest.mark.parametrize("content", [GOOD, json.dumps(answer(({"node": "a"}, A)))], ids=["csv", "prometheus"])
def test_family_that_is_nowhere_is_one_clear_error(content, read):
    with pytest.raises(SimulateError, match="pool for the family"):
        read(content, family="pool")


@pytest.mark.parametrize(
    "content",
    [
        "id,capacity\na-1,4\nb-1,8\n",
        '{"a-1": 4, "b-1": 8}',
        '[{"id": "a-1", "capacity": 4}, {"id": "b-1", "capacity": "8"}]',
    ],
    ids=["csv", "json-object", "json-rows"],
)
def test_capacity_of_each_node_comes_from_a_file(content, read, tmp_path):
    (tmp_path / "capacity").write_text(content)
    traces = read(GOOD, capacity=str(tmp_path / "capacity"))[2]
    assert [(trace.id, trace.capacity, trace.family) for trace in traces] == [("a-1", 4, "a"), ("b-1", 8, "b")]


def test_capacity_file_may_name_families_and_leave_nodes_out(read, tmp_path):
    """What it names counts more than what the rows do."""
    (tmp_path / "capacity").write_text("id,capacity,family\na-1,4,big\n")
    _, flaws, traces = read("id,t,u,family\na-1,0,1,small\nb-1,0,3,small\n", capacity=str(tmp_path / "capacity"))
    assert [(trace.id, trace.family) for trace in traces] == [("a-1", "big")]
    assert flaws == {Flaw.NO_CAPACITY: (1, ["b-1"])}


@pytest.mark.parametrize(
    ("capacity", "told"),
    [
        ("0", "above 0"), ("-1", "above 0"), ("nan", "above 0"), ("inf", "above 0"), ("nowhere", "No such file"),
        ("id,cap\na,1\n", "neither a number nor a file of id,capacity"), ('{"a": 0}', "above 0"),
        ('{"a": "x"}', "neither a number"), ('{"a": 1' + 400 * "0" + "}", "neither a number"),
        ("[1]", "neither a number"), ("{", "neither a number"),
    ],
)  # fmt: skip
def test_capacity_that_is_none_is_one_clear_error(capacity, told, read, tmp_path):
    if capacity[0] in "i{[" and capacity != "inf":
        (tmp_path / "capacity").write_text(capacity)
        capacity = str(tmp_path / "capacity")
    with pytest.raises(SimulateError, match=told):
        read(GOOD, capacity=capacity)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param(b"id,t,u\n" + b"a" * (readers.MOST_LINE + 1), "a line of more than 1 MiB", id="line"),
        pytest.param(b"\n" * 2000 + GOOD.encode(), "empty lines", id="blank-lines"),
        pytest.param(b'{"a":' + b"[" * 300_000, "is no JSON", id="deep"),
        pytest.param(b'{"a":"' + b"x" * 3_000_000, "JSON of more than 2 MiB", id="answer"),
        pytest.param(b"a,1,1\n" * 200, "more than 100 lines", id="lines"),
        pytest.param(GOOD.encode() + (b"x" * 1000 + b"\n") * 5000, "more than 4 MiB of text", id="text"),
    ],
)
def test_file_beyond_a_bound_is_refused_and_never_unpacked_as_a_whole(content, told, read, monkeypatch):
    monkeypatch.setattr(readers, "MOST_ANSWER", 2 << 20)
    monkeypatch.setattr(readers, "MOST_TEXT", 4 << 20)
    monkeypatch.setattr(readers, "MOST_LINES", 100 if told.endswith("lines") and "100" in told else 10_000_000)
    with pytest.raises(SimulateError, match=told):
        read(gzip.compress(content, 1))


def test_line_of_a_gib_from_a_megabyte_of_gzip_takes_no_memory(tmp_path):
    file = tmp_path / "bomb.csv.gz"
    with gzip.open(file, "wb", compresslevel=1) as packed:
        for _ in range(128):
            packed.write(b"a" * (1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(SimulateError, match="a line of more than 1 MiB"):
            load([str(file)], "10", None)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["[" * 300_000, "x" * 3_000_000, '{"a":' * 100_000])
def test_capacities_beyond_a_bound_are_refused_in_few_words(text, tmp_path, read):
    (tmp_path / "capacity.json").write_text(text)
    with pytest.raises(SimulateError) as error:
        read(GOOD, capacity=str(tmp_path / "capacity.json"))
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("title", ["host", "pod", "machine_id", "vm", "Hostname", "whatever"])
def test_column_that_tells_rows_of_one_time_apart_is_the_id(title, read):
    content = f"timestamp,{title},value\n0,a,1\n0,b,3\n60,a,2\n60,b,4\n"
    courses, flaws, _ = read(content)
    assert courses == {"a": [(0, 1), (60, 2)], "b": [(0, 3), (60, 4)]}
    assert flaws == {}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param(
            "t,zone,rack,u\n0,a,x,1\n0,b,y,2\n", "rows have one time, .* of 'zone', 'rack'; call that one id", id="two"
        ),
        pytest.param("t,zone,u\n0,a,1\n0,a,2\n0,b,3\n60,a,2\n", "rows have one time, .* of 'zone'", id="not-enough"),
        pytest.param("t,number,u\n0,1,1\n0,2,2\n", "rows have one time, .* of 'number'", id="numbers"),
        pytest.param("t,zone,u\n0,a,1\n30,b,2\n60,a,1\n90,b,2\n", "rows differ, .* of 'zone'", id="in-turn"),
    ],
)
def test_rows_that_may_be_several_nodes_are_refused_and_never_made_one(content, told, read):
    with pytest.raises(SimulateError, match=told):
        read(content)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("t,unit,u\n0,cores,1\n60,cores,2\n", id="the-same-in-all"),
        pytest.param("t,memory,u\n0,7,1\n60,8,2\n", id="numbers"),
        pytest.param("t,date,u\n0,Monday,1\n60,Tuesday,2\n", id="another-in-each"),
    ],
)
def test_other_columns_of_one_node_are_ignored(content, read):
    courses, flaws, _ = read(content)
    assert courses == {"nodes": [(0, 1), (60, 2)]}
    assert list(flaws) == [Flaw.OTHER_COLUMN]
