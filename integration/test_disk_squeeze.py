"""A slow disk that online and offline share: who harms online there is found, bounded and cured; who does not is free.

The disk is the kernel's null_blk, kept to so many MB/s for all together, with a file system on it. Online reads a page
now and then, past the page cache; offline reads all it can. Online itself says how long each of its reads takes, in ms:
with the start of dd, and in steps of ten.
"""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from integration.lab.cgroups import version
from integration.lab.criproxy import static
from integration.lab.harm import HarmedNode
from integration.lab.process import wait_until
from integration.lab.throwaway import is_throwaway

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not is_throwaway(), reason="makes a disk"),
    pytest.mark.skipif(version() == 1, reason="cgroup v1 has no limit on disks for all that is in a cgroup"),
]

Say = Callable[[str], object]

CONFIGFS = Path("/sys/kernel/config/nullb/slow")
DISK = Path("/dev/slow")
MBPS = 20
MIB = 1 << 20
WAIT_S = 240.0
FLOOR = "rbps=1048576 wbps=1048576 riops=20 wiops=20"
CALM = """
while :; do
  read from _ </proc/uptime
  dd if=/data/online of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null
  read to _ </proc/uptime
  echo $(( (1${to%.*}${to#*.} - 1${from%.*}${from#*.}) * 10 )) >>/out/reads
  sleep 0.1
done
"""
HOG = """
for i in 1 2 3 4; do
  while :; do dd if=/data/large of=/dev/null bs=1M iflag=direct 2>/dev/null; done &
done
wait
"""
LITTLE = "while :; do dd if=/data/online of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null; sleep 0.5; done"


class Node(HarmedNode):
    """Containers see a directory of the host's in /out, where online writes how long its reads took."""

    @property
    def out(self) -> Path:
        return self.mounts[Path("/out")]

    @property
    def number(self) -> str:
        """The slow disk's."""
        device = DISK.stat().st_rdev
        return f"{os.major(device)}:{os.minor(device)}"

    def start(self, **more: Any) -> None:
        self.configure(static(1.0, 512 * MIB, **more))

    def limit(self) -> str:
        """What the kernel holds the box to on the disk; "": nothing."""
        lines = self.box.file("io", "io.max").read_text().splitlines()
        return next((line.partition(" ")[2] for line in lines if line.startswith(f"{self.number} ")), "")

    def read_bytes(self) -> int:
        """By the box, of the disk."""
        lines = self.box.file("io", "io.stat").read_text().splitlines()
        found = [line for line in lines if line.startswith(f"{self.number} ")]
        return int(re.findall(r"rbytes=(\d+)", found[0])[0]) if found else 0

    def watch(self, seconds: float) -> "Watched":
        """What online's reads take, and offline reads, for a while."""
        (self.out / "reads").unlink(missing_ok=True)  # whoever writes there makes it anew
        read, began_s, pressures = self.read_bytes() if self.is_there() else 0, time.monotonic(), []
        while time.monotonic() - began_s < seconds:
            time.sleep(1.0)
            pressures.append(round(self.value("io_pressure")))
        elapsed_s = time.monotonic() - began_s
        moved = (self.read_bytes() - read if self.is_there() else 0) / elapsed_s / MIB
        return Watched(self.reads_ms(), moved, pressures)

    def reads_ms(self) -> list[float]:
        """What online's reads took, since the file was removed."""
        return sorted(map(float, (self.out / "reads").read_text().split()))

    def is_there(self) -> bool:
        return self.box.file("io", "io.stat").exists()


@dataclass
class Watched:
    reads_ms: list[float]
    offline_mib_per_s: float
    pressures: list[int]

    def __str__(self) -> str:
        reads = self.reads_ms
        return (
            f"{len(reads)} reads of online, {median(reads):.1f} ms each (p90 {reads[int(0.9 * len(reads))]:.1f}); "
            f"offline {self.offline_mib_per_s:.1f} MiB/s; io_pressure {self.pressures}"
        )


@pytest.fixture
def node(lab: Path) -> Iterator[Node]:
    (data := lab / "data").mkdir()
    (out := lab / "out").mkdir()
    with ExitStack() as stack:
        make_disk(data, stack)
        yield stack.enter_context(Node.before(lab, starts=False, mounts={Path("/data"): data, Path("/out"): out}))


def make_disk(data: Path, stack: ExitStack) -> None:
    subprocess.run(["modprobe", "null_blk", "nr_devices=0"], check=True)
    CONFIGFS.mkdir()
    stack.callback(CONFIGFS.rmdir)
    for name, value in {"size": 256, "memory_backed": 1, "mbps": MBPS, "power": 1}.items():
        (CONFIGFS / name).write_text(str(value))
    stack.callback((CONFIGFS / "power").write_text, "0")
    wait_until(DISK.is_block_device, WAIT_S, "the disk")
    subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", str(DISK)], check=True)
    subprocess.run(["mount", str(DISK), str(data)], check=True)
    stack.callback(subprocess.run, ["umount", str(data)], check=False)
    for name, size_mib in {"online": 8, "large": 64}.items():
        (data / name).write_bytes(bytes(size_mib * MIB))
    subprocess.run(["sync"], check=True)


def test_box_that_takes_the_disk_is_found_bounded_and_cured_and_stays_so_after_a_kill(node: Node, say: Say) -> None:
    node.start(interference={"evict_after_s": 3600.0})
    node.start_pod("online", ("sh", "-c", CALM))
    wait_until((node.out / "reads").exists, WAIT_S, "online's first read")
    alone = node.watch(15.0)
    say(f"alone: {alone}")
    (node.out / "reads").unlink()
    node.start_pod("offline", ("sh", "-c", HOG))
    began_s = time.monotonic()
    wait_until(lambda: ("io", "tried") in node.moves(), WAIT_S, "the experiment", node.proxy.log)
    hurt, tried_s = node.reads_ms(), time.monotonic() - began_s
    wait_until(lambda: node.limit() == FLOOR, 10.0, "the floor", node.proxy.log)
    wait_until(lambda: ("io", "squeezed") in node.moves(), WAIT_S, "the verdict", node.proxy.log)
    say(f"tried {tried_s:.0f} s after the hog began, guilty after {time.monotonic() - began_s:.0f} s")
    say(f"until then the slowest reads of online took {[round(one) for one in hurt[-5:]]} ms of {len(hurt)}")
    say(node.last_reason())
    cured = node.watch(60.0)
    say(f"bounded: {cured}; {node.limit()}; {node.harm()['disks']}; {node.moves()}")
    node.proxy.kill()
    left = node.limit()
    node.proxy.start()
    wait_until(lambda: node.harm()["disks"] != [], WAIT_S, "a look")
    time.sleep(3.0)
    after = node.limit()
    later = node.watch(60.0)
    say(f"after kill -9: {left!r} -> {after!r}; {later}; {node.limit()}; {node.moves()}")

    assert max(hurt) > 4 * median(alone.reads_ms), "the hog does harm"
    assert left and after, "nothing is lifted by a restart"
    for found in (cured, later):
        assert median(found.reads_ms) < 2 * median(alone.reads_ms) + 20.0
        assert median(found.pressures) < 10.0


def test_what_a_killed_process_left_is_lifted_when_nobody_knows_why_it_was(node: Node, say: Say) -> None:
    """Somebody's own limit on another disk, or on this one, stays."""
    node.start()
    node.start_pod("offline", ("sh", "-c", LITTLE))
    wait_until(node.is_there, WAIT_S, "the box")
    file = node.box.file("io", "io.max")
    node.proxy.kill()
    file.write_text(f"{node.number} {FLOOR}")
    other = next(line.split()[0] for line in (Path("/proc/partitions").read_text().splitlines()) if "vda" in line)
    assert other == "254"
    file.write_text("254:0 wbps=123456789")
    node.proxy.start()
    wait_until(lambda: node.limit() == "", WAIT_S, "it to be lifted", node.proxy.log)
    assert "254:0 rbps=max wbps=123456789" in file.read_text()
    file.write_text(f"{node.number} rbps=99999999")
    time.sleep(5.0)
    say(file.read_text())
    assert "rbps=99999999" in node.limit()


def test_online_that_fills_the_disk_by_itself_costs_the_box_nothing_for_good(node: Node, say: Say) -> None:
    node.start()
    node.start_pod("offline", ("sh", "-c", LITTLE))
    node.start_pod("online", ("sh", "-c", HOG))
    wait_until(lambda: node.value("io_pressure") > 10.0, WAIT_S, "online to wait", node.proxy.log)
    limits = []
    for _ in range(40):
        time.sleep(1.0)
        limits.append(node.limit())
    pressure = node.value("io_pressure")
    say(f"io_pressure {pressure:.0f} %; box bounded in {sum(map(bool, limits))} of {len(limits)} looks; {node.moves()}")

    assert ("io", "squeezed") not in node.moves()
    assert limits[-1] == ""
