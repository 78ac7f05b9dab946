"""Folders for `criproxy simulate --cluster` from public traces that you have put there; nothing is fetched.

`python -m benchmarks.traces planetlab|bitbrains|alibaba-tasks SOURCE FOLDER`

| name | repository and commit | SOURCE | gives |
|---|---|---|---|
| planetlab | github.com/Cloudslab/cloudsim 476ceef | modules/cloudsim-examples/src/main/resources/workload/planetlab/DAY: a file for each VM, 288 lines of CPU % | nodes, 1 day |
| bitbrains | github.com/JessieRayeBauer/Time-Series-Forecasting- 0901a0d | rnd/2013-7, -8 or -9: a CSV file for each VM | nodes with memory, 1 month |
| alibaba-tasks | github.com/PriyadarshiniDas/Workload-Prediction-of-Alibaba-Cluster-Dataset 53aa3e8 | batch_task.csv | jobs, 12 h and more |

VMs are summed up to nodes of 32 cores and 128 GiB, 20 to a node, in the order of their names, which are as large as
makes their 99.9th percentile four fifths of the node's. In a clone of the repository, each file is compared with the
commit's, byte by byte, and another one, one too many or one too few ends it; elsewhere the shape of each file is all
that can be checked, which is said. The SHA-256 of all that was read is printed, so that figures can name what they were
made from.
"""  # noqa: E501

import csv
import hashlib
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

CORES: Final = 32.0
BYTES: Final = 128.0 * 2**30
VMS: Final = 20
STEP_S: Final = 300
SAMPLES_A_DAY: Final = 288
PEAK_RATIO: Final = 0.8

COMMITS: Final = {"planetlab": "476ceef", "bitbrains": "0901a0d", "alibaba-tasks": "53aa3e8"}

_BITBRAINS_S: Final = range(1_372_550_400, 1_380_672_001)
"""From 30 June to 2 October 2013."""

_BITBRAINS: Final = ("Timestamp [ms]", "CPU usage [MHZ]", "Memory usage [KB]")
_TASK_FIELDS: Final = 8

Usage = dict[int, tuple[float, float]]
"""CPU and memory, in units of their own, by time in s."""


class Wrong(Exception):
    """What was put there is not the trace; the message says where and what is expected."""


def planetlab(file: Path) -> Usage:
    lines = file.read_text().split()
    if len(lines) != SAMPLES_A_DAY or not all(line.isdecimal() and int(line) <= 100 for line in lines):
        raise Wrong(f"{file}: is not {SAMPLES_A_DAY} lines of whole numbers from 0 to 100; give planetlab/DAY")
    return {STEP_S * i: (float(line), 0.0) for i, line in enumerate(lines)}


def bitbrains(file: Path) -> Usage:
    with file.open(newline="") as text:
        rows = csv.reader(text, delimiter=";")
        titles = [title.strip() for title in next(rows, [])]
        if not set(_BITBRAINS) <= set(titles):
            raise Wrong(f"{file}:1: has not the columns {', '.join(_BITBRAINS)}; give rnd/2013-7, -8 or -9")
        t, cpu, memory = (titles.index(title) for title in _BITBRAINS)
        usage = Usage()
        for row in rows:
            if len(row) == len(titles):
                found = _numbers(f"{file}:{rows.line_num}", row[t], row[cpu], row[memory])
                at_s = int(found[0])  # whatever the title of the times says
                if at_s not in _BITBRAINS_S:
                    raise Wrong(f"{file}:{rows.line_num}: {at_s} is no time in July to September 2013, in seconds")
                usage[at_s // STEP_S * STEP_S] = found[1], found[2]
        return usage


def alibaba_tasks(file: Path) -> Iterator[tuple[int, float, int, int]]:
    """Of the tasks that ended: when they came, cores, seconds and instances, whose share of memory has no unit."""
    with file.open(newline="") as text:
        for number, row in enumerate(csv.reader(text), 1):
            if len(row) != _TASK_FIELDS:
                raise Wrong(f"{file}:{number}: has {len(row)} fields, not {_TASK_FIELDS}; give batch_task.csv")
            if row[5] == "Terminated" and row[6]:
                begin, end, instances, cpu = _numbers(f"{file}:{number}", row[0], row[1], row[4], row[6])
                if cpu > 0.0 and end > begin:
                    yield int(begin), cpu / 100.0, int(end - begin), int(instances)


def _numbers(place: str, *texts: str) -> list[float]:
    """Raises Wrong where one is no number from 0 on."""
    found = []
    for text in texts:
        try:
            found.append(float(text))
        except ValueError:
            found.append(math.nan)
        if not 0.0 <= found[-1] < math.inf:
            raise Wrong(f"{place}: {text.strip()[:40]!r} is no number from 0 on; give the file as it was published")
    return found


# --- nodes, and what is written ---------------------------------------------------------------------------------------


def write_nodes(read: Callable[[Path], Usage], source: Path, folder: Path, *, memory: bool) -> int:
    """Returns how many nodes were written."""
    files = _files(source)
    if len(files) < VMS:
        raise Wrong(f"{source}: has {len(files)} files, fewer than the {VMS} of a node")
    count = len(files) // VMS
    with (folder / "nodes.csv").open("w") as nodes, (folder / "capacity.csv").open("w") as capacities:
        nodes.write("id,t,cpu,memory\n" if memory else "id,t,cpu\n")
        capacities.write("id,cpu,memory\n" if memory else "id,cpu\n")
        for i in range(count):
            name = f"node-{i:04}"
            capacities.write(f"{name},{CORES:.0f},{BYTES:.0f}\n" if memory else f"{name},{CORES:.0f}\n")
            for t_s, cores, size in _summed([read(file) for file in files[i * VMS : (i + 1) * VMS]]):
                nodes.write(f"{name},{t_s},{cores:.3f},{size:.0f}\n" if memory else f"{name},{t_s},{cores:.3f}\n")
    return count


def _summed(vms: Sequence[Usage]) -> list[tuple[int, float, float]]:
    """Cores and bytes at the times that most of the VMs have."""
    times = sorted({t_s for vm in vms for t_s in vm})
    sums = [
        (t_s, sum(vm[t_s][0] for vm in there), sum(vm[t_s][1] for vm in there))
        for t_s in times
        if 2 * len(there := [vm for vm in vms if t_s in vm]) > len(vms)
    ]
    cpu, memory = (PEAK_RATIO / max(_high([one[i] for one in sums]), 1e-9) for i in (1, 2))
    return [(t_s, min(used * cpu, 1.0) * CORES, min(held * memory, 1.0) * BYTES) for t_s, used, held in sums]


def _high(values: Sequence[float]) -> float:
    """The 99.9th percentile."""
    return sorted(values)[min(len(values) - 1, int(0.999 * len(values)))]


def write_jobs(source: Path, folder: Path) -> int:
    """Returns how many jobs were written."""
    jobs = sorted(alibaba_tasks(source))
    with (folder / "jobs.csv").open("w") as file:
        file.write("arrival,cpu,duration,count\n")
        file.writelines(f"{begin},{cores:g},{seconds},{count}\n" for begin, cores, seconds, count in jobs)
    return len(jobs)


# --- what was put there -----------------------------------------------------------------------------------------------


def _files(source: Path) -> list[Path]:
    """The file, or a folder's files by their names."""
    return [source] if source.is_file() else sorted(file for file in source.iterdir() if file.is_file())


def digest(source: Path) -> str:
    """The SHA-256 of all files, with their names."""
    found = hashlib.sha256()
    for file in _files(source):
        found.update(f"{file.name}\n".encode() + file.read_bytes())
    return found.hexdigest()


def compared(source: Path, commit: str) -> str:
    """With what the files were compared. Raises Wrong where they are not those that the commit has there."""
    folder = source.parent if source.is_file() else source
    listing = subprocess.run(
        ["git", "-C", folder, "ls-tree", "-z", commit], capture_output=True, text=True, check=False
    )
    if listing.returncode:
        return f"{folder} is in no clone that has the commit {commit}, so that the shape alone was checked"
    entries = [entry.split("\t") for entry in listing.stdout.split("\0") if entry]
    known = {name: of.split()[2] for of, name in entries if of.split()[1] == "blob"}
    files = {file.name: file for file in _files(source)}
    for name in sorted(files.keys() if source.is_file() else files.keys() | known.keys()):
        if name not in known or name not in files:
            there = "only here" if name in files else "missing here"
            raise Wrong(f"{folder / name}: is {there}, by the commit {commit}; check it out as it is")
        content = files[name].read_bytes()
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
        if blob.hexdigest() != known[name]:
            raise Wrong(f"{files[name]}: differs from that of the commit {commit}; check it out as it is")
    return f"as the commit {commit} has it"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    if len(arguments) != 3 or arguments[0] not in COMMITS:
        sys.stderr.write(__doc__ or "")
        return 2
    name, source, folder = arguments[0], Path(arguments[1]), Path(arguments[2])
    try:
        if not (source.is_file() if name == "alibaba-tasks" else source.is_dir()):
            raise Wrong(f"{source}: is not there; see `python -m benchmarks.traces --help` for what to put where")
        how = compared(source, COMMITS[name])
        folder.mkdir(parents=True, exist_ok=True)
        if name == "alibaba-tasks":
            written = f"{write_jobs(source, folder)} jobs"
        else:
            read = planetlab if name == "planetlab" else bitbrains
            written = f"{write_nodes(read, source, folder, memory=name == 'bitbrains')} nodes"
        sys.stdout.write(f"{folder}: {written}; SHA-256 of what was read: {digest(source)}; {how}\n")
    except (Wrong, ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
