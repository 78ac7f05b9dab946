"""The ladder on this machine: real pods behind a criproxy, harm by others and by the box, and what was done about it.

Needs root. `python -m benchmarks.ladder.real [--times N] [--only WORD] [--json F]`; on a throwaway node,
`integration/node/node run --timeout 3600 -- .venv/bin/python -m benchmarks.ladder.real`.

Online is a pod with a process for each CPU that wants it for 1 ms of each 10; offline two pods that want two fifths
of the node's CPUs.

    outside       processes outside of kubelet's pods take 30 % of all CPUs, in turns of 15 ms
    neighbour     those of another online pod do
    like steal    what is in no cgroup does, in turns of 6 ms
    box by CPU    online itself says that it is harmed by as much as the box uses of the CPU (a service check), as
                  `cpu.idle` leaves a box hardly a way to harm online that the kernel would count
    mixed         that, and five seconds of `outside` meanwhile

Others' load and online run at real-time priorities, so that what else the machine does is no harm by itself; where the
kernel refuses that, they don't, and the table's first line says so. Harm by memory, disks and processes has tests of
its own: test_interference.py, test_disk_squeeze.py, test_pids.py.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks.stage import Helper
from benchmarks.table import table
from criproxy.control.interference.service_checks import ANNOTATION
from integration.lab.cgroups import Tree, of_process, version
from integration.lab.clean import clean
from integration.lab.client import Pod
from integration.lab.directory import claimed, lab_name
from integration.lab.harm import HarmedNode, own_word
from integration.lab.meter import Meter, Reading, cpu_controller
from integration.lab.process import LabError, wait_until
from integration.lab.usage import CPUS, Cgroup

SIGNAL: Final = "run_queue_delay" if version() == 1 else "cpu_pressure"
ROOMS_US: Final = {"kubepods": 550_000, "online": 150_000, "others": 350_000}
"""Real-time CPU time a second, on each CPU: for what holds pods, for online, and for others; v1 alone counts it."""

FLOOR_CORES = 0.05
CALM_S, GUILTY_S = 4.0, 45.0
OPENS_S, BACK_S = 90.0, 150.0
"""How long the box may take to open before a trial, and after it until all is given back."""
LEAST_S = 6.0
"""An innocent box is watched for so long after the harm's end at least."""
POLL_S = 0.5
BURST_S = 5.0
FOREVER_S = 86400.0


@dataclass(frozen=True, slots=True)
class Harm:
    """`by`: whose it is. `turn_s`: the time between the begins of two turns of others' load."""

    name: str
    by: str
    seconds: float
    turn_s: float = 0.05

    @property
    def guilty(self) -> bool:
        return self.by in ("box", "mixed")


HARMS: Final = (
    *(Harm(f"outside, {seconds:g} s", "outside", seconds) for seconds in (2.0, 5.0, 10.0, 20.0)),
    *(Harm(f"neighbour, {seconds:g} s", "neighbour", seconds) for seconds in (2.0, 5.0, 10.0, 20.0)),
    *(Harm(f"like steal, {seconds:g} s", "steal", seconds, 0.02) for seconds in (2.0, 5.0, 10.0, 20.0)),
    Harm("box by CPU, 45 s", "box", GUILTY_S),
    Harm("mixed, 45 s", "mixed", GUILTY_S),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """Times in s from the harm's begin; NaN: it did not come to that. `back_s`: from its end until nothing is held."""

    harm: str
    signal: float
    experiments: int
    convictions: int
    pods_gone: int
    tried_s: float
    convicted_s: float
    back_s: float
    held_s: float
    load: float


@dataclass(frozen=True, slots=True)
class Row:
    """All trials of one harm: medians, and the longest time until all was back."""

    harm: str
    trials: int
    signal: float
    experiments: int
    convicted: int
    pods_gone: int
    tried_s: float
    convicted_s: float
    held_s: float
    back_s: float
    longest_back_s: float
    load: float


@dataclass
class Ground:
    node: HarmedNode
    loads: dict[str, Helper]
    word: "Word"
    real_time: bool = True

    def trial(self, harm: Harm) -> Trial:
        """A criproxy that remembers nothing, the harm, and what came of it."""
        node = self.node
        self._begin_anew()
        seen, began_s, wall_s = len(node.proxy.events()), time.monotonic(), time.time()
        self._harm(harm, began_s)
        end_s, rungs, most = began_s + harm.seconds, list[tuple[float, str]](), 0.0
        while True:
            now_s = time.monotonic()
            if harm.guilty and now_s >= end_s:
                self.word.guilty = False
            rungs.append((now_s, node.rung("cpu")))
            most = max(most, node.value("service_check" if harm.guilty else SIGNAL) if now_s < end_s else 0.0)
            if now_s >= end_s + (BACK_S if rungs[-1][1] != "open" else LEAST_S):
                break
            time.sleep(POLL_S)
        events = node.proxy.events()[seen:]
        moves = [one for one in events if one["event"] == "ladder" and one["resource"] == "cpu"]
        tried = [_at(one) - wall_s for one in moves if one["new"] == "tried"]
        guilty = [_at(one) - wall_s for one in moves if (one["old"], one["new"]) == ("tried", "squeezed")]
        last = max((at for at, rung in rungs if rung != "open"), default=end_s)
        return Trial(
            harm=harm.name,
            signal=most,
            experiments=len(tried),
            convictions=len(guilty),
            pods_gone=sum(one["event"] == "stop" for one in events),
            tried_s=tried[0] if tried else float("nan"),
            convicted_s=guilty[0] if guilty else float("nan"),
            back_s=float("inf") if rungs[-1][1] != "open" else max(0.0, last - end_s),
            held_s=sum(after[0] - before[0] for before, after in pairwise(rungs)
                       if before[1] != "open"),
            load=os.getloadavg()[0],
        )  # fmt: skip

    def _begin_anew(self) -> None:
        proxy = self.node.proxy
        proxy.stop()
        (proxy.directory / "criproxy.checkpoint").unlink(missing_ok=True)
        proxy.start()
        wait_until(self._is_calm, OPENS_S, "the box to be open, and online calm", proxy.log)
        time.sleep(CALM_S)

    def _is_calm(self) -> bool:
        node = self.node
        seen = node.signal(SIGNAL)
        is_known = seen is not None and seen["value"] is not None
        return is_known and node.rung("cpu") == "open" and self.word.is_asked

    def _harm(self, harm: Harm, now_s: float) -> None:
        if harm.guilty:
            self.word.guilty = True
            if harm.by == "mixed":
                for after_s in (2.0, 25.0):
                    self._others("outside", now_s + after_s, BURST_S, 0.05)
        else:
            self._others(harm.by, now_s, harm.seconds, harm.turn_s)

    def _others(self, name: str, from_s: float, seconds: float, turn_s: float) -> None:
        self.loads[name].tell(from_s, from_s + seconds, 0.3 * turn_s, turn_s)


BUSY: Final = {"online": (0.001, 0.01), "offline": (0.02, 0.05)}
"""For how long of how long, in s, each of their processes is busy."""


class Word:
    """What online says of itself, in percent of its bar: well, or harmed by as much as the box uses of the CPU, where
    what it had used before is four times the bar."""

    def __init__(self, box: str) -> None:
        self.guilty = False
        self.is_asked = False
        self._meter = Meter({"box": box})
        self._before: Reading | None = None
        self._cores = 0.0
        self._usual_cores = 0.0

    def __call__(self) -> float:
        self.is_asked = True
        now = self._meter.read()
        if self._before is None or now.at_s - self._before.at_s >= 0.4:
            self._cores = 0.0 if self._before is None else now.cores_since(self._before, "box")
            self._before = now
            if not self.guilty:
                self._usual_cores = (self._usual_cores + self._cores) / 2.0
        part = (self._cores - 2.0 * FLOOR_CORES) / max(FLOOR_CORES, self._usual_cores - 2.0 * FLOOR_CORES)
        return 40.0 + (360.0 * min(1.0, max(0.0, part)) if self.guilty else 0.0)


@contextmanager
def ground(lab: Path) -> Iterator[Ground]:
    """The node, and the processes that are busy when a trial wants it."""
    with ExitStack() as on_exit:
        node = on_exit.enter_context(HarmedNode.before(lab, starts=False))
        Cgroup(node.root).favour()
        word = Word(node.box.path)
        port = on_exit.enter_context(own_word(word))
        check = {"http": {"port": port}, "threshold": 100, "every_s": 1, "timeout_s": 1}
        node.configure({"control": {"predictor": "histogram"}, "cpu": {"min_cores": FLOOR_CORES}})
        pods = {
            "online": node.start_pod("online", annotations={ANNOTATION: json.dumps(check)}),
            "neighbour": node.start_pod("online-neighbour"),
            "offline": node.start_pod("offline-1"),
        }
        node.start_pod("offline-2")
        others = f"/{lab_name(lab)}-others"
        on_exit.callback(Tree(others).remove)
        Tree(others).make()
        places = {**{name: _place(node, pod) for name, pod in pods.items()}, "outside": others, "steal": ""}
        loads = {name: on_exit.enter_context(_load(place)) for name, place in places.items()}
        made = Ground(node, loads, word)
        for name in ("online", "neighbour", "outside", "steal"):
            is_online = name == "online"
            room_us, priority = ROOMS_US["online" if is_online else "others"], 5 if is_online else 10
            try:
                _make_real_time(places[name], loads[name].pid, priority, room_us)
            except OSError as error:
                print(f"{name} runs as all else: {error}", file=sys.stderr)
                made.real_time = False
        for name in BUSY:
            made.loads[name].tell(time.monotonic(), time.monotonic() + FOREVER_S, *BUSY[name])
        yield made


def _place(node: HarmedNode, pod: Pod) -> str:
    """The cgroup of a pod's sandbox, which takes processes on v2, too."""
    return of_process(node.direct.pid(pod))[cpu_controller()]


@contextmanager
def _load(place: str) -> Iterator[Helper]:
    """Its children would else be busy for as long as they were to be."""
    with Helper("benchmarks.burner", "load", place or "/") as load:
        try:
            yield load
        finally:
            for child in _children(load.pid):
                os.kill(child, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _make_real_time(place: str, pid: int, priority: int, room_us: int) -> None:
    """A process and its children, and on v1 the room for it in all cgroups from the top. Raises OSError."""
    parts = place.strip("/").split("/") if place and version() == 1 else []
    for depth in range(1, len(parts) + 1):
        file = Cgroup("/" + "/".join(parts[:depth])).file("cpu", "cpu.rt_runtime_us")
        own = len(parts) == 1 or any(part.startswith("pod") for part in parts[1:depth])
        if file.exists() and int(file.read_text()) == 0:
            file.write_text(str(room_us if own else ROOMS_US["kubepods"]))
    for one in (pid, *_children(pid)):
        os.sched_setscheduler(one, os.SCHED_FIFO, os.sched_param(priority))


def _at(event: dict[str, str]) -> float:
    return datetime.fromisoformat(event["ts"]).timestamp()


def _row(trials: list[Trial]) -> Row:
    def median(name: str) -> float:
        values = [value for one in trials if (value := getattr(one, name)) == value]
        return statistics.median(values) if values else float("nan")

    return Row(
        harm=trials[0].harm,
        trials=len(trials),
        signal=median("signal"),
        experiments=sum(one.experiments for one in trials),
        convicted=sum(one.convictions > 0 for one in trials),
        pods_gone=sum(one.pods_gone for one in trials),
        tried_s=median("tried_s"),
        convicted_s=median("convicted_s"),
        held_s=median("held_s"),
        back_s=median("back_s"),
        longest_back_s=max(one.back_s for one in trials),
        load=median("load"),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ladder.real", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--times", metavar="N", type=int, default=3, help="trials of each harm (%(default)s)")
    parser.add_argument("--only", metavar="WORD", default="", help="harms with this in their name")
    parser.add_argument("--json", metavar="F", type=Path, help="write every trial to this file, too")
    options = parser.parse_args()
    harms = [one for one in HARMS if options.only in one.name]
    if not harms:
        parser.error(f"no harm has {options.only!r} in its name: {', '.join(one.name for one in HARMS)}")
    trials: list[Trial] = []
    with claimed() as lab:
        try:
            with ground(lab) as made:
                for _ in range(options.times):
                    for harm in harms:
                        trials.append(made.trial(harm))
                        print(trials[-1], file=sys.stderr, flush=True)
        except LabError as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            clean(lab)
    real_time = "at real-time priorities" if made.real_time else "NOT at real-time priorities"
    print(
        f"cgroup v{version()}, {CPUS} CPUs, Linux {os.uname().release}; others and online {real_time}; signal {SIGNAL}"
    )
    print(table([_row([one for one in trials if one.harm == harm.name]) for harm in harms]))
    if options.json:
        with contextlib.suppress(OSError):
            options.json.write_text(json.dumps([asdict(one) for one in trials], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
