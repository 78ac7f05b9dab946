"""What a look at each online pod by itself costs, and what it leaves in memory: `python -m benchmarks.ladder.pods`.

As root, where a hierarchy of cgroup v2 is mounted, alone or beside v1. Every tenth pod waits as much as gives it a
monitor of its own. CPU time of one look, in ms; the daemon looks once a second, twice while something is going on.
"""

import sys
import time
from dataclasses import dataclass

import msgspec

from benchmarks.table import table
from criproxy.cgroup.access import FileAccess
from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.pod_stalls import MOST_PODS, PodStallReader
from criproxy.cgroup.tree import Tree
from criproxy.concurrency.clock import Clock
from criproxy.control.interference.detectors import POD, Monitor, OnlineUse
from criproxy.control.interference.pod_waits import PodMeter
from criproxy.control.interference.signals import PodWait
from integration.lab.cgroups import hierarchies

PODS = (10, 100, 1000)
LOOKS = 100
ROOT = "/criproxy-pod-looks"
USE = OnlineUse(1.0, 4)


@dataclass(frozen=True)
class Look:
    """`state_kib`: what the monitors of the pods that wait would take in a checkpoint."""

    pods: int
    read: int
    reading_ms: float
    judging_ms: float
    state_kib: float


def look(access: FileAccess, pods: int) -> Look:
    tree = access.tree
    paths = {f"uid-{number}": (f"{ROOT}/pod{number}",) for number in range(pods)}
    made = [access.directory("", path) for (path,) in paths.values()]
    try:
        for directory in (access.directory("", ROOT), *made):
            tree.mkdir(directory)
        reader = PodStallReader(access, tree, Clock())
        found = reader.read(paths)
        began_s = time.process_time()
        for _ in range(LOOKS):
            reader.read(paths)
        reading_s = time.process_time() - began_s
        reader.read({})
    finally:
        for directory in (*made, access.directory("", ROOT)):
            tree.remove(directory)
    return Look(pods, len(found), 1000.0 * reading_s / LOOKS, *judged(list(found)))


def judged(uids: list[str]) -> tuple[float, float]:
    """In ms of a look, and in KiB."""
    waits = {uid: PodWait(uid, 15.0 if number % 10 == 0 else 1.0, stopped=False) for number, uid in enumerate(uids)}
    names = {uid: uid for uid in uids}
    meter = PodMeter()
    began_s = time.process_time()
    for second in range(LOOKS):
        meter.take(float(second), waits, names, USE)
        meter.at_rest()
    judging_s = time.process_time() - began_s
    monitor = Monitor(POD)
    for second in range(LOOKS):
        monitor.observe(float(second), 15.0, USE)
    size = len(msgspec.json.encode(monitor.state()))
    return 1000.0 * judging_s / LOOKS, size * -(-len(uids) // 10) / 1024.0


def main() -> int:
    mount = next((str(one.mount) for one in hierarchies() if one.version == 2), None)
    if mount is None:
        print("no hierarchy of cgroup v2 is mounted here", file=sys.stderr)
        return 1
    access = FileAccess(2, {"": mount}, [mount], Tree())
    try:
        rows = [look(access, pods) for pods in PODS]
    except CgroupError as error:
        print(f"{error}: this needs root, and a kernel with PSI", file=sys.stderr)
        return 1
    print(f"pods that are read: {MOST_PODS} at most")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
