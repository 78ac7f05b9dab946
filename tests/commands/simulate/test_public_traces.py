"""Public traces become folders that `criproxy simulate --cluster` reads; what is none is refused."""

import subprocess

import pytest

from benchmarks.traces import COMMITS, main
from criproxy.commands.simulate.cluster.folder import read

TITLES = "Timestamp [ms];\tCPU cores;\tCPU usage [MHZ];\tMemory usage [KB]\n"


def test_planetlab_and_tasks_become_a_folder(tmp_path, capsys):
    (tmp_path / "day").mkdir()
    for i in range(45):
        (tmp_path / "day" / f"vm-{i:02}").write_text("".join(f"{(i + k) % 50}\n" for k in range(288)))
    tasks = "100,160,1,1,3,Terminated,50,0.01\n200,260,1,2,1,Failed,50,0.01\n"
    (tmp_path / "batch_task.csv").write_text(tasks)
    assert main(["planetlab", str(tmp_path / "day"), str(tmp_path / "out")]) == 0
    assert main(["alibaba-tasks", str(tmp_path / "batch_task.csv"), str(tmp_path / "out")]) == 0
    assert "2 nodes; SHA-256" in capsys.readouterr().out
    cluster = read(tmp_path / "out")
    assert [(node.cpu.capacity, len(node.cpu.usages)) for node in cluster.nodes] == [(32.0, 288)] * 2
    assert [(job.arrival_s, job.cpu, job.duration_s, job.count) for job in cluster.jobs] == [(100.0, 0.5, 60.0, 3)]


def test_bitbrains_has_memory(tmp_path):
    (tmp_path / "rnd").mkdir()
    for i in range(20):
        rows = "".join(f"{1372629804 + 300 * k};\t2;\t{10.0 + i + k};\t{1000.0 * (k + 1)}\n" for k in range(30))
        (tmp_path / "rnd" / f"{i}.csv").write_text(TITLES + rows)
    assert main(["bitbrains", str(tmp_path / "rnd"), str(tmp_path / "out")]) == 0
    (node,) = read(tmp_path / "out").nodes
    assert (max(node.cpu.usages), max(node.memory.usages)) == pytest.approx((0.8 * 32, 0.8 * 128 * 2**30), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [("planetlab", "1\n2\n", "288 lines"), ("bitbrains", "a;b\n1;2\n", "Memory usage [KB]")],
)
def test_other_files_are_refused(tmp_path, capsys, name, content, words):
    (tmp_path / "in").mkdir()
    for i in range(20):
        (tmp_path / "in" / f"{i}").write_text(content)
    assert main([name, str(tmp_path / "in"), str(tmp_path / "out")]) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1372629804;\t2;\t-1.0;\t5.0\n", "'-1.0' is no number from 0 on"),
        ("1372629804;\t2;\tnan;\t5.0\n", "'nan' is no number from 0 on"),
        ("1372629804000;\t2;\t1.0;\t5.0\n", "is no time in July to September 2013"),
    ],
)
def test_bitbrains_of_another_range_is_refused_with_its_line(tmp_path, capsys, row, words):
    (tmp_path / "rnd").mkdir()
    for i in range(20):
        (tmp_path / "rnd" / f"{i}.csv").write_text(TITLES + "1372629804;\t2;\t1.0;\t5.0\n" + row)
    assert main(["bitbrains", str(tmp_path / "rnd"), str(tmp_path / "out")]) == 1
    assert "0.csv:3: " in (said := capsys.readouterr().err) and words in said


def test_tasks_of_no_number_are_refused_with_their_line(tmp_path, capsys):
    (tmp_path / "batch_task.csv").write_text("100,160,1,1,3,Terminated,50,0.01\n100,x,1,1,3,Terminated,50,0.01\n")
    assert main(["alibaba-tasks", str(tmp_path / "batch_task.csv"), str(tmp_path / "out")]) == 1
    assert "batch_task.csv:2: 'x' is no number" in capsys.readouterr().err


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone with a day of PlanetLab, whose commit is the one wanted."""

    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        return subprocess.run(
            ["git", *who, "-C", tmp_path, *arguments], check=True, capture_output=True, text=True
        ).stdout

    day = tmp_path / "workload" / "planetlab" / "20110303"
    day.mkdir(parents=True)
    for i in range(20):
        (day / f"vm {i:02}").write_text("".join(f"{(i + k) % 50}\n" for k in range(288)))
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "a day")
    monkeypatch.setitem(COMMITS, "planetlab", git("rev-parse", "--short=7", "HEAD").strip())
    return day


def test_trace_is_compared_with_the_commit_that_a_clone_has(clone, tmp_path, capsys):
    assert main(["planetlab", str(clone), str(tmp_path / "out")]) == 0
    assert f"as the commit {COMMITS['planetlab']} has it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda file: file.write_text(file.read_text().replace("11\n", "12\n", 1)), "vm 07: differs from that of"),
        (lambda file: file.unlink(), "vm 07: is missing here"),
        (lambda file: file.with_name("vm 70").write_text(file.read_text()), "vm 70: is only here"),
    ],
    ids=["changed-byte", "missing", "one-more"],
)  # fmt: skip
def test_trace_that_is_not_the_commits_is_refused(clone, tmp_path, capsys, change, words):
    change(clone / "vm 07")
    assert main(["planetlab", str(clone), str(tmp_path / "out")]) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_trace_in_no_clone_says_that_its_shape_alone_was_checked(clone, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(COMMITS, "planetlab", "0000000")
    assert main(["planetlab", str(clone), str(tmp_path / "out")]) == 0
    assert "that has the commit 0000000, so that the shape alone was checked" in capsys.readouterr().out
