"""`criproxy simulate` from end to end."""

import csv
import gzip
import json
import subprocess
import sys

import pytest

from criproxy.cli import main
from criproxy.commands.simulate import SimulateError, plot
from criproxy.commands.simulate.replay import Plan, Trial
from criproxy.commands.simulate.replay import run as run_trial
from criproxy.commands.simulate.trace import example

try:
    plot.require()
    MATPLOTLIB = True
except SimulateError:
    MATPLOTLIB = False
needs_matplotlib = pytest.mark.skipif(not MATPLOTLIB, reason="matplotlib does not load here")


def rows(courses):
    lines = [f"{c.id},{t:.0f},{u!r}" for c in courses for t, u in zip(c.times_s, c.usages, strict=True)]
    return "id,t,u\n" + "\n".join(lines) + "\n"


@pytest.fixture
def example_file(tmp_path):
    (tmp_path / "nodes.csv").write_text(rows(example()))
    return str(tmp_path / "nodes.csv")


@pytest.fixture
def run(capsys):
    """Runs the verb; returns status, stdout and stderr."""

    def simulate(*arguments):
        status = main(["simulate", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return simulate


def test_example_tells_each_node_each_family_and_all(run):
    status, out, err = run("--example")
    assert (status, err) == (0, "")
    starts = ["series ", "web-node ", "shop-node ", "steady-node ", "family web (1 node) ", "family shop (1 node) ",
              "family steady (1 node) ", "overall (mean of 3 families) "]  # fmt: skip
    for line, start in zip(out.splitlines(), starts, strict=False):
        assert line.startswith(start)
    assert "of 16 cores" in out
    assert "3 of 3 (100.0%) nodes were violated in at most 1.50% of their samples." in out


def test_example_numbers_are_those_of_the_core(run, tmp_path):
    run("--example", "--json", str(tmp_path / "out.json"))
    found = json.loads((tmp_path / "out.json").read_text())
    plan = Plan(resource="cpu", floor=0.1)
    for course, series in zip(example(), found["series"], strict=True):
        score = run_trial(Trial(course, (plan,))).scores[0]
        assert series["score"]["violation_ratio"] == score.violation_ratio
        assert series["score"]["share_ratio"] == score.share_ratio
        assert series["score"]["limit_ratio"] == score.limit_ratio
    assert found["overall"]["nodes"] == found["overall"]["holding"] == 3
    assert found["plan"]["alpha_ratio"] == 0.01


@pytest.mark.slow
def test_file_gzip_and_standard_input_tell_the_same_as_the_example(run, example_file, tmp_path):
    _, expected, _ = run("--example")
    assert run(example_file, "--capacity", "16")[1] == expected
    packed = gzip.compress(rows(example()).encode())
    (tmp_path / "nodes.gz").write_bytes(packed)
    assert run(str(tmp_path / "nodes.gz"), "--capacity", "16")[1] == expected
    for given in (packed, rows(example()).encode()):
        done = subprocess.run([sys.executable, "-m", "criproxy", "simulate", "-", "--capacity", "16"],
                              input=given, capture_output=True, check=True)  # fmt: skip
        assert (done.stdout.decode(), done.stderr) == (expected, b"")


def test_millicores_tell_the_same_as_cores(run, tmp_path):
    node = example()[1]
    milli = "".join(f"shop-node,{t:.0f},{1000 * u!r}\n" for t, u in zip(node.times_s, node.usages, strict=True))
    (tmp_path / "m.csv").write_text(milli)
    (tmp_path / "c.csv").write_text(rows([node]))
    _, cores, _ = run(str(tmp_path / "c.csv"), "--capacity", "16")
    _, millicores, _ = run(str(tmp_path / "m.csv"), "--capacity", "16000", "--unit", "millicores")
    assert millicores.splitlines()[:3] == cores.splitlines()[:3]


def test_memory_in_gib_has_the_floor_and_watermark_of_memory(run, tmp_path):
    (tmp_path / "m.csv").write_text("".join(f"n,{60 * i},{60 + i % 3}\n" for i in range(600)))
    files = ["--json", str(tmp_path / "j"), "--predictions", str(tmp_path / "p")]
    status, out, _ = run(str(tmp_path / "m.csv"), "--resource", "memory", "--unit", "GiB", "--capacity", "64", *files)
    assert status == 0
    assert "of 64 GiB" in out
    plan = json.loads((tmp_path / "j").read_text())["plan"]
    assert (plan["resource"], plan["floor"], plan["unit"]) == ("memory", 128 * 2**20, 2**30)
    with open(tmp_path / "p", newline="") as file:
        limits = [float(row["limit"]) for row in csv.DictReader(file)]
    assert min(limits) == pytest.approx(0.125)


def test_predictions_file_has_a_row_per_sample_with_a_safe_limit(run, tmp_path):
    run("--example", "--predictions", str(tmp_path / "p.csv"))
    with open(tmp_path / "p.csv", newline="") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == ["id", "t", "usage", "prediction", "limit"]
    assert [row["id"] for row in found] == [course.id for course in example() for _ in course.times_s]
    for row in found:
        usage, prediction, limit = (float(row[name]) for name in ("usage", "prediction", "limit"))
        assert usage <= prediction <= 16.0
        assert 0.1 <= limit <= max(0.1, 0.9 * 16.0 - prediction + 1e-6)


@pytest.mark.parametrize(
    ("arguments", "alpha", "probes"),
    [((), 0.01, 24), (("--horizon", "600"), 0.01, 24), (("--horizon", "3600"), 0.05, 288),
     (("--horizon", "3600", "--alpha", "0.02"), 0.02, 288), (("--horizon", "next", "--alpha", "0.02"), 0.02, 24)],
    ids=["next", "ten-minutes", "an-hour", "an-hour-and-alpha", "alpha"],
)  # fmt: skip
def test_defaults_follow_the_horizon(arguments, alpha, probes, run, tmp_path):
    assert run("--example", "--json", str(tmp_path / "j"), *arguments)[0] == 0
    plan = json.loads((tmp_path / "j").read_text())["plan"]
    assert (plan["alpha_ratio"], plan["cold_start_probes"]) == (alpha, probes)


def test_higher_alpha_and_watermark_give_offline_more(run, tmp_path):
    shares = []
    for arguments in ((), ("--alpha", "0.1"), ("--watermark", "1")):
        run("--example", "--json", str(tmp_path / "j"), *arguments)
        shares.append(json.loads((tmp_path / "j").read_text())["overall"]["score"]["limit_ratio"])
    assert shares[0] < shares[1] < shares[2]


def test_bad_rows_are_told_on_stderr_and_in_json(run, example_file, tmp_path):
    with open(example_file, "a") as file:
        file.write("web-node,x,1\nweb-node,1735689600,1\nlate-node,1735689600,1\n")
    status, out, err = run(example_file, "--capacity", "16", "--json", str(tmp_path / "j"))
    assert status == 0
    assert err.splitlines() == [
        f"note: 1 rows left out: time or usage is not a finite number ({example_file}:8642)",
        f"note: 1 rows left out: a second usage for the same id and time ({example_file}:8643)",
        f"note: 1 rows out of order in time, sorted ({example_file}:8643)",
        "note: 1 series not scored: nothing is left after the warm-up (late-node)",
    ]
    found = json.loads((tmp_path / "j").read_text())
    assert {one["flaw"]: one["count"] for one in found["findings"]} == {
        "not_a_number": 1, "duplicate": 1, "unsorted": 1, "too_short": 1,
    }  # fmt: skip
    assert found["series"][3]["score"] is None
    assert [line.split() for line in out.splitlines() if line.startswith("late-node")] == [
        ["late-node", "1", *"-------"]
    ]


def test_brief_leaves_the_series_out(run):
    _, out, _ = run("--example", "--brief")
    assert out.splitlines()[1].startswith("family web")


def test_sweep_tells_every_value_and_recommends_one(run, tmp_path):
    _, out, _ = run("--example", "--brief", "--sweep", "watermark=0.6..0.8", "--json", str(tmp_path / "j"))
    swept = json.loads((tmp_path / "j").read_text())["swept"]
    assert [one["value"] for one in swept] == [0.6, 0.65, 0.7, 0.75, 0.8]
    assert [one["recommended"] for one in swept] == [False] * 4 + [True]
    assert "Recommended: watermark 0.8: offline gets " in out


def test_sweep_of_a_setting_ends_where_the_setting_itself_does(run, tmp_path):
    (tmp_path / "n.csv").write_text(rows([example()[2]]))
    node = (str(tmp_path / "n.csv"), "--capacity", "16")
    run(*node, "--sweep", "alpha=0.01..0.05", "--json", str(tmp_path / "s"))
    run(*node, "--alpha", "0.05", "--json", str(tmp_path / "a"))
    swept, alone = (json.loads((tmp_path / name).read_text()) for name in "sa")
    assert swept["swept"][-1]["overall"]["score"] == alone["overall"]["score"]


# --- plots ---


@pytest.mark.slow
@needs_matplotlib
@pytest.mark.parametrize(("name", "magic"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml")], ids=["png", "svg"])
@pytest.mark.parametrize("arguments", [(), ("--sweep", "watermark=0.8..0.9"), ("--horizon", "3600")],
                         ids=["courses", "sweep", "hour"])  # fmt: skip
def test_plot_is_drawn(name, magic, arguments, run, tmp_path):
    assert run("--example", "--plot", str(tmp_path / name), *arguments)[0] == 0
    assert (tmp_path / name).read_bytes().startswith(magic)


@needs_matplotlib
def test_plot_shows_usage_prediction_reclaimable_and_violations(run, tmp_path):
    run("--example", "--plot", str(tmp_path / "p.svg"))
    drawn = (tmp_path / "p.svg").read_text()
    for label in ("online usage", "prediction", "reclaimable", "violation", "capacity", "web-node: 0."):
        assert f"<!-- {label}" in drawn


@needs_matplotlib
def test_plot_of_long_flat_and_short_series_is_drawn(run, tmp_path):
    long = "".join(f"long,{60 * i},{3 + i % 2}\n" for i in range(7000))
    flat = "".join(f"flat,{60 * i},10\n" for i in range(500))
    (tmp_path / "n.csv").write_text(long + flat + "short,0,1\nshort,60,1\n")
    status, _, _ = run(str(tmp_path / "n.csv"), "--capacity", "10", "--plot", str(tmp_path / "p.svg"))
    assert status == 0
    drawn = (tmp_path / "p.svg").read_text()
    assert "drawn as the highest of 3 samples each" in drawn
    assert "short: too short to be scored" in drawn


@pytest.mark.slow
@needs_matplotlib
@pytest.mark.parametrize("name", ["p.docx", "nowhere/p.png"])
def test_plot_that_cannot_be_written_is_one_clear_error(name, run, tmp_path):
    status, _, err = run("--example", "--plot", str(tmp_path / name))
    assert (status, err.count("\n")) == (1, 1)
    assert "give a file that can be written, as .png or .svg" in err


def test_plot_without_matplotlib_fails_at_once_and_says_how_to_get_it(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, out, err = run("--example", "--plot", str(tmp_path / "p.png"))
    assert (status, out) == (1, "")
    assert f"{sys.executable} -m pip install matplotlib" in err


def test_plot_of_a_package_s_criproxy_says_what_works_there(tmp_path):
    """Its interpreter sees no packages but its own: see packaging/vendor."""
    arguments = ["simulate", "--example", "--plot", str(tmp_path / "p.png")]
    script = (
        f"import sys; sys.path += {sys.path}; sys.modules['matplotlib.figure'] = None\n"
        f"from criproxy.cli import main; sys.exit(main({arguments}))"
    )
    done = subprocess.run([sys.executable, "-ISB", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "in a checkout, python3 -m venv .venv && .venv/bin/pip install '.[plot]'" in done.stderr
    assert "or draw what --json writes" in done.stderr
    assert f"{sys.executable} -m pip" not in done.stderr


def test_nodes_to_draw_are_the_worst_the_median_and_the_best():
    from tests.commands.simulate.simulate_helpers import score

    scores = [score(violation_ratio=ratio) for ratio in (0.01, 0.05, 0.0, 0.02, 0.03)]
    assert plot.pick(scores) == [1, 3, 2]
    assert plot.pick([*scores, None]) == [1, 3, 2]
    assert plot.pick(scores[:3]) == [0, 1, 2]


# --- what fails ---


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("gone.csv", "--capacity", "4"), "gone.csv: No such file"),
        (("--example", "--sweep", "alpha=1..2"), "--sweep alpha=1..2"),
        (("--example", "--json", "/nowhere/j"), "--json /nowhere/j: No such file"),
        (("--example", "--predictions", "/nowhere/p"), "--predictions /nowhere/p: No such file"),
    ],
    ids=["no-file", "sweep", "json", "predictions"],
)
def test_failure_is_one_clear_line(arguments, told, run):
    status, _, err = run(*arguments)
    assert (status, err.count("\n")) == (1, 1)
    assert told in err


def test_series_all_shorter_than_the_warm_up_are_one_clear_error(run, tmp_path):
    (tmp_path / "n.csv").write_text("a,0,1\na,60,1\n")
    status, out, err = run(str(tmp_path / "n.csv"), "--capacity", "4")
    assert (status, out) == (1, "")
    assert err.startswith("nothing to score: no series goes on for longer than the warm-up (6 h, or 24 h of one longer")


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("n.csv",), ("--example", "n.csv"), ("--example", "--capacity", "4"), ("--example", "--resource", "memory"),
        ("n.csv", "--capacity", "4", "--unit", "GiB"), ("n.csv", "--capacity", "4", "--horizon", "0"),
        ("n.csv", "--capacity", "4", "--horizon", "soon"), ("n.csv", "--capacity", "4", "--alpha", "1"),
        ("n.csv", "--capacity", "4", "--watermark", "1.1"), ("-", "-", "--capacity", "4"), ("--nonsense",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_command_line_that_is_wrong_is_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *arguments])
    assert ended.value.code == 2
    assert "usage: criproxy simulate" in capsys.readouterr().err


def test_other_verbs_still_refuse_what_they_do_not_know(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["upgrade", "--capacity", "4"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --capacity 4" in capsys.readouterr().err


def test_help_names_the_options(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "--capacity" in out
    assert "/api/v1/query_range" in out


# --- what others pay for it ---


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (
            "from criproxy.cli import main\nwith contextlib.suppress(SystemExit): main(['--version'])",
            {"criproxy.commands.simulate"},
        ),
        (
            "import criproxy.daemon.daemon",
            {"criproxy.commands.simulate", "multiprocessing", "matplotlib", "numpy", "csv"},
        ),
        ("from criproxy.cli import main; main(['simulate', '--example', '--brief'])", {"matplotlib", "numpy", "grpc"}),
    ],
    ids=["version", "daemon", "without-plot"],
)
def test_modules_are_imported_only_by_who_needs_them(code, absent):
    script = f"import contextlib, sys\n{code}\nprint(sorted({absent} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
