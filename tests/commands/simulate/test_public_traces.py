"""Public traces become folders that `criproxy simulate --cluster` reads; what is none is refused."""

import pytest

from benchmarks.traces import main
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
