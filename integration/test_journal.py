"""What a bound on the box's disk does to online's fsyncs on the same ext4, which has one journal for both.

Without criproxy: a writer in a cgroup that gets the floor of an experiment by io.max, and one that writes 4 KiB and
waits for them to be on the disk, over and over, in a cgroup beside it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from criproxy.cgroup.files import io_max
from criproxy.control.interference.disks import FLOOR
from integration.lab.cgroups import Tree, version
from integration.lab.directory import cgroup_root
from integration.lab.throwaway import is_throwaway
from integration.lab.usage import Cgroup

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_throwaway(), reason="makes a file system"),
    pytest.mark.skipif(version() == 1, reason="cgroup v1 has no limit on disks for all that is in a cgroup"),
]

Say = Callable[[str], object]

DISK = Path("/dev/vdc")
"""The node's, which nobody uses."""
TRIAL_S, HELD_S = 3.0, 12.0
MOST_MS = 1000.0
FSYNC = """
import os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
while True:
    began_s = time.monotonic()
    os.write(file, bytes(4096))
    os.fsync(file)
    print(began_s, time.monotonic(), flush=True)
    time.sleep(0.1)
"""
WRITE = "n=0; while :; do dd if=/dev/zero of={0}/off$n bs=1M count=40 2>/dev/null; n=$(((n+1)%4)); done"


@dataclass(frozen=True)
class Shared:
    """A disk that two cgroups write to; `log` has when each of online's fsyncs began and ended."""

    offline: Cgroup
    log: Path
    number: str

    def hold(self, *, held: bool) -> None:
        self.offline.file("io", "io.max").write_text(io_max(self.number, FLOOR if held else None))

    def watch(self, seconds: float) -> list[float]:
        """How long online's fsyncs took, in ms, as far as they lie within so much time; sorted."""
        began_s = time.monotonic()
        time.sleep(seconds)
        ended_s, took = time.monotonic(), []
        times = [tuple(map(float, line.split())) for line in self.log.read_text().splitlines()]
        for since_s, until_s in [*times, (times[-1][1] + 0.1, ended_s)]:  # the last one may still wait
            inside_s = min(until_s, ended_s) - max(since_s, began_s)
            if inside_s > 0:
                took.append(1000.0 * inside_s)
        return sorted(took)


@contextlib.contextmanager
def in_cgroup(cgroup: Cgroup, command: list[str], out: Path) -> Iterator[None]:
    enter = ["sh", "-c", 'echo $$ >"$0"; exec "$@"', str(cgroup.file("io", "cgroup.procs"))]
    with out.open("w") as stdout, subprocess.Popen([*enter, *command], stdout=stdout, start_new_session=True) as child:
        try:
            yield
        finally:
            os.killpg(child.pid, signal.SIGKILL)


@pytest.mark.parametrize("options", ["dioread_nolock", "nodioread_nolock"], ids=["default", "nodioread_nolock"])
def test_fsync_of_online_does_not_wait_for_a_writer_that_is_held_back(lab: Path, options: str, say: Say) -> None:
    """Where data goes to the disk before the journal is told of it. Where it does not, as some mount it, it is said."""
    subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "4096", DISK], check=True, timeout=60)
    (at := lab / "disk").mkdir()
    subprocess.run(["mount", "-o", options, DISK, at], check=True, timeout=60)
    cgroups = [Cgroup(f"{cgroup_root(lab)}/{name}") for name in ("kubepods", "offline")]
    for cgroup in cgroups:
        Tree(cgroup.path).make()
    online, offline = cgroups
    device = DISK.stat().st_rdev
    shared = Shared(offline, lab / "fsyncs", f"{os.major(device)}:{os.minor(device)}")
    found = {}
    with in_cgroup(online, [sys.executable, "-c", FSYNC, str(at / "online")], shared.log):
        time.sleep(3.0)
        found["alone"] = shared.watch(5.0)
        with in_cgroup(offline, ["sh", "-c", WRITE.format(at)], lab / "nothing"):
            time.sleep(2.0)
            found["beside a free writer"] = shared.watch(5.0)
            for name, seconds in (("in an experiment", TRIAL_S), ("while it is bounded", HELD_S)):
                shared.hold(held=True)
                found[name] = shared.watch(seconds)
                shared.hold(held=False)
                found[f"after that ({name})"] = shared.watch(4.0)
    for name, took in found.items():
        say(f"{options}, {name}: {len(took)} fsyncs of online, {median(took):.0f} ms each, at most {max(took):.0f}")

    if options == "dioread_nolock":
        assert max(max(took) for name, took in found.items() if name != "alone") < MOST_MS
