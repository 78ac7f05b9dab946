"""Tables as people export them: each is read as what it says, or refused in words that say what it looks like."""

import gzip
import json
import re
import time

import pytest

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.cells import Moments, amount
from criproxy.commands.simulate.readers import load
from criproxy.commands.simulate.trace import Flaw

JANUARY = 1_735_689_600.0
"""2025-01-01."""
SAMPLES = {"a": [(JANUARY, 1.5), (JANUARY + 60, 2.5)], "b": [(JANUARY, 3.5), (JANUARY + 60, 4.5)]}
FLAT = [(node, t, u) for node, samples in SAMPLES.items() for t, u in samples]


@pytest.fixture
def read(tmp_path):
    """Loads text (or bytes) as a file; returns {id: samples} and {flaw: count}."""

    def read(content, capacity="10", unit="cores", name="nodes.csv"):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        traces, findings = load([str(file)], capacity, None, unit)
        return {t.id: list(zip(t.times_s, t.usages, strict=True)) for t in traces}, findings.counts

    return read


def table(row, header="", end="\n", samples=FLAT):
    return "".join(f"{line}{end}" for line in ([header] if header else []) + [row(*one) for one in samples])


def day(t_s, form):
    return time.strftime(form, time.gmtime(t_s))


SAR = """\
# hostname;interval;timestamp;CPU;%user;%nice;%system;%iowait;%steal;%idle
a;60;2025-01-01 00:00:00 UTC;-1;10.00;0.00;5.00;10.00;0.00;75.00
a;60;2025-01-01 00:01:00 UTC;-1;15.00;0.00;10.00;0.00;5.00;70.00
a;-1;2025-01-01 00:00:30 UTC;LINUX-RESTART\t(4 CPU)
# hostname;interval;timestamp;CPU;%user;%nice;%system;%iowait;%steal;%idle
b;60;2025-01-01 00:00:00 UTC;-1;35.00;0.00;0.00;0.00;0.00;65.00
b;60;2025-01-01 00:01:00 UTC;-1;45.00;0.00;0.00;0.00;0.00;55.00
"""

WIDE = """\
"Time","a","b"
2025-01-01 00:00:00,15.0%,35.0%
2025-01-01 00:01:00,25.0%,45.0%
"""


def exported(name, samples):
    series = {"metric": {"__name__": "x", "instance": name}, "values": [u for _, u in samples]}
    return json.dumps({**series, "timestamps": [int(t * 1000) for t, _ in samples]})


def answered(name, samples):
    series = {"metric": {"instance": name}, "values": [[t, str(u)] for t, u in samples]}
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [series]}})


READ = {
    "semicolons": table(lambda n, t, u: f"{n};{t:.0f};{u}", "id;t;u"),
    "tabs": table(lambda n, t, u: f"{n}\t{t:.0f}\t{u}", "id\tt\tu"),
    "bars": table(lambda n, t, u: f"{n}|{t:.0f}|{u}", "id|t|u"),
    "semicolons without header": table(lambda n, t, u: f"{n};{t:.0f};{u}"),
    "decimal commas": table(lambda n, t, u: f"{n};{t:.0f};{str(u).replace('.', ',')}", "id;t;u"),
    "decimal commas in quotes": table(lambda n, t, u: f"{n},{t:.0f},\"{str(u).replace('.', ',')}\"", "id,t,u"),
    "decimal commas without header": table(lambda n, t, u: f"{n};{t:.0f};{str(u).replace('.', ',')}"),
    "what Excel wants": "sep=;\r\n"
    + table(lambda n, t, u: f"{n};{t:.0f};{str(u).replace('.', ',')}", "id;t;u", "\r\n"),
    "UTF-16": table(lambda n, t, u: f"{n}\t{t:.0f}\t{u}", "id\tt\tu").encode("utf-16"),
    "packed UTF-16": gzip.compress(table(lambda n, t, u: f"{n},{t:.0f},{u}", "id,t,u").encode("utf-16")),
    "comments": "# made by hand\n" + table(lambda n, t, u: f"{n},{t:.0f},{u}", "id,t,u") + "# the end\n",
    "a comment as header": table(lambda n, t, u: f"{n},{t:.0f},{u}", "# id,t,u"),
    "files one behind the other": 2 * table(lambda n, t, u: f"{n},{t:.0f},{u}", "id,t,u"),
    "units": table(lambda n, t, u: f"{n},{t:.0f},{u} cores", "id,t,u"),
    "millicores": table(lambda n, t, u: f"{n},{t:.0f},{u * 1000:.0f}m", "id,t,u"),
    "percent": table(lambda n, t, u: f"{n},{t:.0f},{u * 10}%", "id,t,u"),
    "percent in the title": table(lambda n, t, u: f"{n};{t * 1000:.0f};{u * 10}", "vm;Timestamp [ms];Usage [%]"),
    "Grafana's wide table": WIDE,
    "Grafana's legends": "\ufeff" + re.sub('"([ab])"', r'"{instance=""\1""}"', WIDE),
    "a wide table with gaps": WIDE.replace("\n", ",\n").replace('"b",', '"b","c"') + "2025-01-01 00:02:00,,,\n",
    "Grafana's rows": table(lambda n, t, u: f"{n};{day(t, '%Y-%m-%dT%H:%M:%S+00:00')};{u}", "Series;Time;Value"),
    "sadf": SAR,
    "Go's times": table(lambda n, t, u: f"{n},{day(t, '%Y-%m-%d %H:%M:%S +0000 UTC')},{u}", "id,t,u"),
    "a zone": table(lambda n, t, u: f"{n},{day(t + 7200, '%Y-%m-%d %H:%M:%S+0200')},{u}", "id,t,u"),
    "days with points": table(lambda n, t, u: f"{n},{day(t, '%d.%m.%Y %H:%M:%S')},{u}", "id,t,u"),
    "years with slashes": table(lambda n, t, u: f"{n},{day(t, '%Y/%m/%d %H:%M')},{u}", "id,t,u"),
    "VictoriaMetrics' export": "\n".join(exported(*one) for one in SAMPLES.items()),
    "several answers": "\n".join(answered(*one) for one in SAMPLES.items()),
    "lines of JSON": "\n".join(json.dumps({"host": n, "time": t, "value": u}) for n, t, u in FLAT),
    "a list of JSON": json.dumps([{"host": n, "time": day(t, "%Y-%m-%dT%H:%M:%SZ"), "value": u} for n, t, u in FLAT]),
    "InfluxDB's annotations": "#group,false,false,false\n#datatype,string,dateTime,double\n"
    + table(lambda n, t, u: f"{n},{day(t, '%Y-%m-%dT%H:%M:%SZ')},{u}", "host,_time,_value"),
}  # fmt: skip


@pytest.mark.parametrize("content", READ.values(), ids=READ)
def test_table_of_any_kind_gives_its_samples(content, read):
    courses, flaws = read(content)
    assert {node: [(t, pytest.approx(u)) for t, u in samples] for node, samples in SAMPLES.items()} == courses
    again = {Flaw.DUPLICATE, Flaw.UNSORTED} if content is READ["files one behind the other"] else {Flaw.FINER_TIME}
    assert flaws.keys() <= again


@pytest.mark.parametrize(
    ("form", "moment"),
    [("%m/%d/%Y %H:%M", "01/31/2025 10:00"), ("%d/%m/%Y %H:%M:%S", "31/01/2025 10:00:00"), ("", "1/31/2025 10:00 AM")],
)
def test_days_with_slashes_are_read_where_one_of_them_tells_which_is_the_month(form, moment, read):
    first = day(JANUARY, form) if form else "1/1/2025 12:00 AM"
    assert read(f"id,t,u\na,{first},1\na,{moment},2\n")[0] == {"a": [(JANUARY, 1), (JANUARY + 30 * 86400 + 36000, 2)]}


@pytest.mark.parametrize(
    ("text", "unit", "usage"),
    [
        ("1.5 GiB", "GiB", 1.5), ("1.5 GiB", "bytes", 1.5 * 2**30), ("1536 MiB", "GiB", 1.5), ("2 GB", "bytes", 2e9),
        ("64Mi", "MiB", 64), ("50%", "GiB", 2), ("1,5 GiB", "GiB", 1.5), ("0 B", "GiB", 0),
    ],
)  # fmt: skip
def test_memory_is_read_in_the_unit_that_it_is_wanted_in(text, unit, usage, read):
    capacity = str(4 * 2**30) if unit == "bytes" else "4" if unit == "GiB" else "4096"
    courses, _ = read(f"id;t;u\na;0;{text}\na;60;{text}\n", capacity, unit)
    assert courses == {"a": [(0, usage), (60, usage)]}


REFUSED = {
    "comma of either kind": ("id;t;u\na;0;1,234\na;60;2,345\n", "'1,234' may have a decimal comma or one between"),
    "days of either kind": (
        "id,t,u\na,01/02/2025 10:00,1\na,01/03/2025 10:00,2\n", "it is not clear which is the month",
    ),
    "Excel's days": ("id;t;u\na;45658,41;1,5\na;45658,42;1,5\n", "look like Excel's days"),
    "two units": ("id,t,u\na,0,5%\na,60,2\n", "3: has both '5%' and '2'; write all in one unit"),
    "memory for CPU": ("id,t,u\na,0,1 GiB\n", "'1 GiB' is no amount of CPU"),
    "percent of one CPU": ("id,t,u\na,0,250%\n", "'250%' is more than all of a node"),
    "an unknown unit": ("id,t,usage [MHZ]\na,0,250\n", "the unit of the column 'usage \\[MHZ\\]' is not known"),
    "measures": ("time,cpu,memory\n0,1,2\n60,1,2\n", "'cpu', 'memory' look like measures of one node"),
    "sadf of single CPUs": (SAR.replace(";-1;", ";0;"), "has rows of single CPUs"),
    "sadf of memory": (
        "# hostname;interval;timestamp;kbmemfree;kbavail\na;60;2025-01-01 00:00:00 UTC;1;2\n", "sadf's table of",
    ),
    "two tables of sadf": (SAR + SAR.replace("%user", "%usr"), "has several tables"),
    "two of one name": ("Time,a,a\n0,1,2\n60,1,2\n", "has two columns of one name"),
    "usages of parts": (
        "time,host,mode,value\n0,a,user,1\n0,a,system,2\n60,a,user,1\n60,a,system,2\n",
        "several rows for one host and time, of which 'mode' says",
    ),
    "usages of numbered parts": (
        "time,host,cpu,value\n0,a,0,1\n0,a,1,2\n60,a,0,1\n60,a,1,2\n",
        "several rows for one host and time, of which 'cpu'",
    ),
    "wide without header": ("1735689600,0.5,0.7\n1735689660,0.5,0.7\n", "no header that says which is which"),
    "more without header": ("a,1735689600,0.5,0.7\na,1735689660,0.5,0.7\n", "no header that says which is which"),
    "words": (
        "id,t,u\n" + "a,0,1\n" * 5 + "a,60,some\n" * 20,
        "in 20 of 25 rows the usage is not understood, such as 'some' in line 7",
    ),
    "times": (
        "id,t,u\n" + "a,noon CET,1\n" * 20, "in 20 of 20 rows the time is not understood, such as 'noon CET' in line 2",
    ),
    "commas without quotes": ("id,t,u\n" + "a,0,6,5\n" * 20, "in 20 of 20 rows the number of fields is not understood"),
    "other keys": ('{"t": 0, "u": 1}\n{"t": 0, "usage": 1}\n', "object 2 has other keys than the first"),
    "export of parts": ('{"metric": {}, "values": [1, 2], "timestamps": [1]}', "are not as many"),
    "Grafana's answer": ('{"results": {"A": {"frames": []}}}', "is an answer of Grafana's own; download"),
    "promtool's text": ('{instance="a"} =>\n0.5 @[1435781430.781]\n', "looks like promtool's text"),
    "a scrape": ("# HELP up x\n# TYPE up gauge\nup{job=\"a\"} 1\n", "looks like what Prometheus scrapes"),
    "sar": ("Linux 6.1.0 (a) \t01/31/2025 \t_x86_64_\t(4 CPU)\n\n00:00:01 CPU %user\n", "looks like sar's own table"),
    "a web page": ("<!DOCTYPE html>\n<html></html>\n", "looks like a web page"),
    "InfluxDB's lines": ("cpu,host=a usage=0.5 1435781430781000000\n", "looks like InfluxDB's lines"),
    "a workbook": (b"PK\x03\x04" + b"\0" * 100, "a zip or an Excel workbook"),
    "xz": (b"\xfd7zXZ\0" + b"\0" * 100, "packed with xz: unpack it"),
    "zstd": (b"\x28\xb5\x2f\xfd" + b"\0" * 100, "packed with zstd"),
    "blanks": ("id t u\na 0 1\n", "has the columns 'id t u'; needed are t and u"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "told"), REFUSED.values(), ids=REFUSED)
def test_what_is_understood_in_part_is_an_error_that_says_what_it_looks_like(content, told, read):
    with pytest.raises(SimulateError, match=told) as raised:
        read(content)
    assert "nodes.csv" in str(raised.value)
    assert len(str(raised.value)) < 500 and str(raised.value).isprintable()


@pytest.mark.parametrize(
    ("content", "unit"),
    [
        ("id;capacity\na;1,5\nb;2\n", "cores"), ("# made\nnode\tcapacity\na\t1500m\nb\t2000m\n", "cores"),
        ("host,capacity\na,1.5 GiB\nb,2 GiB\n", "GiB"), ("host,capacity [MiB]\na,1536\nb,2048\n", "GiB"),
    ],
)  # fmt: skip
def test_capacities_are_read_as_usages_are(content, unit, tmp_path):
    (tmp_path / "capacity.csv").write_text(content)
    (tmp_path / "nodes.csv").write_text("id,t,u\na,0,1\nb,0,1\n")
    traces, _ = load([str(tmp_path / "nodes.csv")], str(tmp_path / "capacity.csv"), None, unit)
    assert [trace.capacity for trace in traces] == [1.5, 2]


@pytest.mark.parametrize("content", ["id,capacity\na,50%\n", "id,capacity\na,1 GiB\n", "id,capacity\na\n", "a,4\n"])
def test_capacities_that_are_none_are_refused(content, tmp_path):
    (tmp_path / "capacity.csv").write_text(content)
    (tmp_path / "nodes.csv").write_text("id,t,u\na,0,1\n")
    with pytest.raises(SimulateError):
        load([str(tmp_path / "nodes.csv")], str(tmp_path / "capacity.csv"), None)


@pytest.mark.parametrize(
    ("content", "place", "told"),
    [
        ("id,capacity\na,16\nb,8\n\n# as measured\na,32\n", ":6", "'a' is there for the second time, with 32 after 16"),
        ('{"a": 16, "a": 32}', ": entry 2", "'a' is there for the second time, with 32 after 16"),
        ('[{"id": "a", "capacity": 16}, {"id": "a", "capacity": 16}]', ": entry 2", "with 16 after 16"),
        ("id,capacity,family\na,16,x\n\nb,8\n", ":4", "has 2 of the 3 columns; write them all"),
        ("capacity,id\n8\n", ":2", "has 1 of the 2 columns; write them all"),
        ("id,capacity\na,many\n", ":2", "'many' is no capacity; write it as"),
        ("id,capacity\na,16\nb,0\n", ":3", "b has 0.0, which must be above 0"),
    ],
)  # fmt: skip
def test_capacity_that_is_not_clear_is_refused_with_its_line(content, place, told, tmp_path):
    (tmp_path / "capacity").write_text(content)
    (tmp_path / "nodes.csv").write_text("id,t,u\na,0,1\n")
    with pytest.raises(SimulateError) as raised:
        load([str(tmp_path / "nodes.csv")], str(tmp_path / "capacity"), None)
    assert str(raised.value).startswith(f"--capacity {tmp_path}/capacity{place}: ")
    assert told in str(raised.value)


def test_node_of_percentages_and_of_cores_is_refused(tmp_path):
    (tmp_path / "1.csv").write_text("id,t,u\na,0,5%\n")
    (tmp_path / "2.csv").write_text("id,t,u\na,60,5\n")
    with pytest.raises(SimulateError, match=r"2.csv:2: of a, some usages are percentages and some not"):
        load([str(tmp_path / "1.csv"), str(tmp_path / "2.csv")], "10", None)


@pytest.mark.parametrize(
    "content", ["t,u\n{},1\n", '[{{"metric": {{"job": "x"}}, "values": [[{}, "1"]]}}]'], ids=["csv", "json"]
)
def test_files_of_one_name_are_no_node_of_that_name(content, tmp_path):
    paths = []
    for name in ("0", "60"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpu.csv").write_text(content.format(name))
        paths.append(str(tmp_path / name / "cpu.csv"))
    with pytest.raises(SimulateError, match="have one name, and may be of two nodes"):
        load(paths, "10", None)
    for path in paths:
        with open(path, "w") as file:
            file.write(f"id,t,u\na,{path.split('/')[-2]},1\n")
    assert list(load(paths, "10", None)[0][0].times_s) == [0, 60]


def test_series_in_two_answers_is_one_node(read):
    content = answered("a", SAMPLES["a"][:1]) + answered("a", SAMPLES["a"][1:]) + answered("b", SAMPLES["b"])
    assert read(content, name="answers.json")[0] == SAMPLES


HOSTILE = {
    "columns": ",".join("a" * 100_000) + "\n" + "1," * 100_000 + "\n",
    "separators": ";|\t," * 200_000 + "\n",
    "quotes": '"' * 500_000 + "\n" + "a;b\n" * 1000,
    "comments": "#" * 1_000_000 + "\n" + "# a\n" * 100_000 + "t,u\n0,1\n",
    "times": "t,u\n" + ("1/" * 30 + ",1\n") * 50_000,
    "digits": "t,u\n" + ("1," + "9" * 100_000 + "\n") * 20,
    "numbers": "t;u\n" + ("1;" + "1,1." * 20_000 + "\n") * 20,
    "braces": "a" * 200_000 + "{" * 200_000 + "} =\n",
    "legends": 'Time,"' + "{" * 50_000 + '"\n0,1\n',
    "brackets": "t," + "(" * 100_000 + "\n0,1\n",
    "lists of JSON": "[] " * 100_000,
    "objects of JSON": '{"t": 1, "u": ' + "9" * 4000 + "}\n" * 1,
    "blanks in JSON": '{"t": 1, "u": 1}' + " " * 1_000_000 + "{}",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_file_is_read_or_refused_in_a_moment(content, read):
    began_s = time.thread_time()
    try:
        read(content)
    except SimulateError as error:
        assert len(str(error)) < 2000
    assert time.thread_time() - began_s < 5.0


def test_cells_say_of_what_they_are():
    of = {text: amount(text).of for text in ("1", "1%", "1m", "1 GiB", "1 furlong", "nan", "x")}
    assert of == {"1": "", "1%": "%", "1m": "cores", "1 GiB": "bytes", "1 furlong": None, "nan": "", "x": None}
    assert amount("1.234,5", decimal_comma=True).value == 1234.5
    assert amount("1,234.5").value == 1234.5


@pytest.mark.parametrize("text", ["2025-01-01 00:00:00 CET", "2025-13-01 00:00:00 UTC", "01/02/2025 10:00", "x" * 1000])
def test_moment_that_is_not_clear_is_none(text):
    assert not Moments().read(text) > 0
