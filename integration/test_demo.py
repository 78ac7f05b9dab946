"""The demo through its real command: a short play, and every way to end one; nothing may be left behind."""

import os
import pty
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.lab.cgroups import Tree
from integration.lab.clean import clean, leftovers
from integration.lab.containerd import shim_sockets
from integration.lab.directory import cgroup_root
from integration.lab.ports import free_ports
from integration.lab.process import wait_until

COMMAND = Path(__file__).resolve().parents[1] / "demo"
CLEAN = "no process, mount, cgroup, socket or file of the demo is left"
PLAYING = "throttled"
"""In every line of a play."""

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True, slots=True)
class Spot:
    """A port and a plot for the demos of one test."""

    port: int
    plot: Path

    def command(self, *arguments: str) -> list[str]:
        return [str(COMMAND), "--port", str(self.port), "--plot", str(self.plot), *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def spot(tmp_path: Path) -> Spot:
    return Spot(free_ports(1)[0], tmp_path / "plot.png")


def lab_of(text: str) -> Path:
    """Where a demo that has written this lives."""
    found = re.search(r"a private containerd in ([^\s,]+)", text)
    assert found, text
    return Path(found[1])


def assert_left_nothing(text: str) -> None:
    """A demo cleaned its lab up, and says so."""
    lab = lab_of(text)
    left = [str(lab)] if lab.exists() else leftovers(lab)
    clean(lab)
    assert (left, CLEAN in text) == ([], True)


class Running:
    """A demo on a terminal; what it has written so far is `text`."""

    def __init__(self, command: list[str]) -> None:
        ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        self.text = ""
        self._reader = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self._reader.start()

    def wait_playing(self) -> None:
        def playing() -> bool:
            assert self.process.poll() is None, self.text
            return PLAYING in self.text

        wait_until(playing, 120, "the play to begin")

    def wait(self) -> int:
        """The exit status."""
        status = self.process.wait(120)
        self._reader.join(10)
        return status

    def _read(self, terminal: int) -> None:
        try:
            while read := os.read(terminal, 1 << 16):
                self.text += read.decode(errors="replace")
        except OSError:  # EIO: the last writer has gone
            pass
        finally:
            os.close(terminal)


@pytest.fixture
def running(spot: Spot) -> Iterator[Running]:
    """A demo that plays on a terminal, long enough for any test."""
    demo = Running(spot.command("--seconds", "600"))
    try:
        demo.wait_playing()
        yield demo
    finally:
        if demo.process.poll() is None:
            demo.process.kill()
            demo.process.wait()
        clean(lab_of(demo.text))


def test_demo_played_to_its_end_tells_the_numbers_and_leaves_only_the_plot(spot: Spot) -> None:
    done = spot.run("--seconds", "12")
    assert done.returncode == 0, done.stdout + done.stderr
    assert PLAYING in done.stdout
    offline = re.search(r"Offline work got ([0-9.]+) core-seconds in 12 s", done.stdout)
    online = re.search(r"Online wanted ([0-9.]+) core-seconds and used ([0-9.]+)", done.stdout)
    assert offline and float(offline[1]) > 0
    assert online and 0 < float(online[2]) <= 1.2 * float(online[1])
    assert spot.plot.read_bytes().startswith(b"\x89PNG") and f"Plot: {spot.plot}" in done.stdout
    assert_left_nothing(done.stdout)


def test_demo_with_a_real_kubelet_has_it_start_the_pods(spot: Spot) -> None:
    done = spot.run("--kubelet", "--seconds", "12")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a real kubelet" in done.stdout
    assert re.search(r"online pod: /\S+/kubepods/burstable/pod", done.stdout)
    assert_left_nothing(done.stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_demo_stopped_by_a_signal_cleans_up(spot: Spot, running: Running, number: signal.Signals) -> None:
    running.process.send_signal(number)
    assert running.wait() == 128 + number, running.text
    assert f"stopped by {number.name}" in running.text and "box limit" in running.text
    assert_left_nothing(running.text)


def test_demo_killed_leaves_pods_that_the_next_one_cleans_up(spot: Spot, running: Running) -> None:
    running.process.kill()
    running.process.wait()
    lab = lab_of(running.text)
    sockets = shim_sockets(lab)
    assert Tree(cgroup_root(lab)).pids() and sockets  # else there would be nothing to clean
    done = spot.run("--seconds", "10")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"Cleaning up what an earlier demo left in .*{lab}", done.stdout)
    assert not [path for path in sockets if path.exists()]
    assert_left_nothing(done.stdout)


def test_demo_beside_another_says_in_one_sentence_what_is_taken_and_leaves_it_alone(
    spot: Spot, running: Running
) -> None:
    other = spot.run("--seconds", "10")
    assert other.returncode == 1
    assert other.stderr == (
        f"demo: Port 127.0.0.1:{spot.port} is taken by another program: give a free one with --port.\n"
    )
    assert running.process.poll() is None and lab_of(running.text).exists()
    running.process.send_signal(signal.SIGINT)
    assert running.wait() == 128 + signal.SIGINT


def test_demo_without_cgroups_says_so_in_one_sentence(spot: Spot) -> None:
    hide = ["unshare", "--mount", "sh", "-ec", 'umount -lR /sys/fs/cgroup; exec "$@"', "sh"]
    done = subprocess.run([*hide, *spot.command()], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("demo: No cgroup hierarchy is mounted here") and done.stderr.count("\n") == 1


def test_demo_without_root_says_so_in_one_sentence(spot: Spot) -> None:
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    done = subprocess.run([*drop, *spot.command()], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "demo: The demo needs root, for containerd and cgroups: run `sudo ./demo`.\n"


def test_demo_of_a_bad_trace_says_so_before_anything_is_set_up(spot: Spot, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("id,t,u\na,0,many\n")
    done = spot.run("--trace", str(tmp_path / "bad.csv"))
    assert done.returncode == 1 and "bad.csv:2" in done.stderr and "is not a finite number" in done.stderr
    assert "Setting up" not in done.stdout
