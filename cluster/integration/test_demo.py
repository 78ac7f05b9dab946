"""./demo --cluster through its real command, as short as it can be; nothing may be left behind."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from integration.demo.cluster.stage import MIN_CORES
from integration.lab.clean import clean, leftovers

COMMAND = Path(__file__).resolve().parents[2] / "demo"
EVICTED = r"criproxy (?:has (\S+) evicted \(pods/eviction\)|stops (\S+) on the node, as the API [^.]*)\. (.*)"
"""In an emergency it waits for the API server a second, which is little on a machine that others use, too."""
LATENCY = r"^(\w+, [\w ]*\w) +[1-9]\d* +(\d+) ms +\d+ ms +\d+$"
NOISE_MS = 20
"""Of a machine that others use, too. Nothing is said of the slowest requests: those are theirs."""

pytestmark = [
    pytest.mark.alone,
    pytest.mark.by_command,
    pytest.mark.timeout(1200),  # a control plane takes its time on a busy machine
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


def assert_left_nothing(text: str) -> None:
    """The demo cleaned its labs up, and says so."""
    labs = [Path(lab) for lab in re.findall(r"node \d: a containerd in ([^\s,]+)", text)]
    left = [line for lab in labs for line in ([str(lab)] if lab.exists() else leftovers(lab))]
    for lab in labs:
        clean(lab)
    assert left == []
    assert "no process, mount, cgroup, socket or file of the demo is left" in text


def test_cluster_of_the_demo_converts_places_evicts_and_places_anew(tmp_path: Path) -> None:
    options = ["--seconds", "16", "--plot", str(tmp_path / "plot.png")]
    done = subprocess.run(
        [str(COMMAND), "--cluster", *options], capture_output=True, text=True, timeout=1800, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "the webhook has made its requests kubernetes.io/batch-cpu 100 " in said
    pods = re.findall(r"The scheduler has placed (\S+) on node 1, by kubernetes.io/batch-cpu", said)
    assert len(pods) == 3
    for pod in pods:
        assert f"{pod} runs, in the box of node 1." in said
    evicted = re.search(EVICTED, said)
    assert evicted and (evicted[1] or evicted[2]) in pods and "memory_shortage" in evicted[3]
    assert re.search(r"\S+ runs, in the box of node 2\.", said)
    assert re.search(r"later another pod ran in its place, on node 2\.", said)
    bounds = re.search(r"With pods in it, the box of node 1 had from ([\d.]+) to ([\d.]+) cores\.", said)
    assert bounds and MIN_CORES - 0.01 <= float(bounds[1]) <= float(bounds[2])
    squeezed = re.findall(r"The box of node 1 is squeezed from ([\d.]+) to ([\d.]+) cores: \S", said)
    # It is where something tells of harm to online, which nobody can promise; else the demo says so.
    why_not = [words for words in ("nothing was to be seen of a squeeze", "Nothing has squeezed it") if words in said]
    assert len(why_not) == (0 if squeezed else 1)
    assert all(float(before) > float(after) for before, after in squeezed)
    medians_ms = {name: int(median) for name, median in re.findall(LATENCY, said, re.MULTILINE)}
    assert list(medians_ms) == ["burst, alone", "quiet, alone", "quiet, beside the Job", "burst, beside the Job"]
    assert medians_ms["burst, beside the Job"] <= 3 * medians_ms["burst, alone"] + NOISE_MS
    assert medians_ms["quiet, beside the Job"] <= 3 * medians_ms["quiet, alone"] + NOISE_MS
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert_left_nothing(said)


def test_cluster_of_the_demo_that_is_interrupted_cleans_up() -> None:
    command = [str(COMMAND), "--cluster"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout and demo.stderr
        said = ""
        for line in demo.stdout:
            said += line
            if "node 2: a containerd" in line:
                demo.send_signal(signal.SIGINT)
        assert "node 2: a containerd" in said, demo.stderr.read()
        assert demo.stderr.read() == "demo: stopped by SIGINT\n"
    assert demo.returncode == 128 + signal.SIGINT
    assert_left_nothing(said)


def test_cluster_of_the_demo_without_root_says_so_in_one_sentence() -> None:
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    done = subprocess.run([*drop, str(COMMAND), "--cluster"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "demo: The demo needs root, for containerd and cgroups: run `sudo ./demo`.\n"
