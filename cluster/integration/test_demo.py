"""./demo --cluster through its real command, as short as it can be; nothing may be left behind."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.demo.place import Place
from integration.lab.clean import clean, leftovers

COMMAND = Path(__file__).resolve().parents[2] / "demo"

pytestmark = [
    pytest.mark.timeout(3600),  # the first run builds Kubernetes
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


@pytest.fixture
def base() -> Iterator[Path]:
    """Where the demo lives; what it leaves fails the test."""
    found = Path("/run") / f"criproxy-demo-{os.getpid()}"
    yield found
    left = [line for lab in Place(found).labs for line in leftovers(lab)]
    for lab in Place(found).labs:
        clean(lab)
    assert left == []
    assert not found.exists()


def test_cluster_of_the_demo_converts_places_evicts_and_places_anew(base: Path, tmp_path: Path) -> None:
    options = ["--seconds", "16", "--directory", str(base), "--plot", str(tmp_path / "plot.png")]
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
    evicted = re.search(r"criproxy has (\S+) evicted \(pods/eviction\)\. (.*)", said)
    assert evicted and evicted[1] in pods and "memory_shortage" in evicted[2]
    assert re.search(r"\S+ runs, in the box of node 2\.", said)
    assert re.search(r"later another pod ran in its place, on node 2\.", said)
    for window in ("quiet, alone", "burst, alone", "quiet, beside the Job", "burst, beside the Job"):
        assert re.search(rf"^{window} +[1-9]\d* +\d+ ms +\d+ ms", said, re.MULTILINE), window
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "no process, mount, cgroup, socket or file of the demo is left" in said


def test_cluster_of_the_demo_that_is_interrupted_cleans_up(base: Path) -> None:
    command = [str(COMMAND), "--cluster", "--directory", str(base)]
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
    assert "no process, mount, cgroup, socket or file of the demo is left" in said


def test_cluster_of_the_demo_without_root_says_so_in_one_sentence(base: Path) -> None:
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    done = subprocess.run([*drop, str(COMMAND), "--cluster"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "demo: The demo needs root, for containerd and cgroups: run `sudo ./demo`.\n"
