"""`criproxy simulate --cluster`: its options, and what it does: read, foresee each node, replay each law, tell."""

import argparse
import multiprocessing
import os
import platform
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from criproxy import __version__
from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.cluster import page, text
from criproxy.commands.simulate.cluster.figures import Counted
from criproxy.commands.simulate.cluster.folder import EXAMPLE, RecordedCluster, read
from criproxy.commands.simulate.cluster.forecast import Foreseen, NodeOnGrid, foresee
from criproxy.commands.simulate.cluster.laws import ABLATIONS, LAWS, Law
from criproxy.commands.simulate.cluster.record import Grid
from criproxy.commands.simulate.parallel import Bar, available_cpus, spread
from criproxy.commands.simulate.report import write_json

SEED: Final = 20260131

CHILDREN_END_S: Final = 5.0

NUMPY: Final = "python3 -m venv .venv && .venv/bin/pip install '.[cluster]'"
"""How numpy is installed beside criproxy, in a checkout of it."""

PART_NODES: Final = 500
"""So many nodes with an endless queue are replayed at a time, which bounds memory, and fills all CPUs."""

_EPILOG: Final = """\
FOLDER has these files, as CSV with a line of column names, plain or gzip (.csv.gz):
  nodes.csv      id,t,cpu,memory: what online used of a node at a time (unix seconds or ISO 8601), in cores and bytes;
                 memory may be left out
  capacity.csv   id,cpu,memory: what each node has
  jobs.csv       arrival,cpu,memory,duration,count: what pods ask for, and how many seconds of work they have at full
                 speed; left out: an endless queue of pods of one core, of 10 minutes on average
or, in place of the first two, answers of Prometheus' /api/v1/query_range: cpu.json, memory.json, and cpu_capacity.json,
memory_capacity.json. Without FOLDER, the example that ships is replayed. What is modelled, and where each law is from:
docs/simulate.md.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="criproxy simulate --cluster",
        description="Replays recorded nodes and jobs by criproxy's law of what is lent, and by its peers', with "
        "one model of a scheduler: how much offline pods get, how fast they run, and what online pods have to bear.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="FOLDER", nargs="?", type=Path, default=EXAMPLE, help="see below")
    parser.add_argument(
        "--without", action="store_true", help="replay criproxy's law without one of its parts each, too"
    )
    parser.add_argument("--json", metavar="F", help="write all numbers to this file")
    parser.add_argument("--html", metavar="F", help="write a report with plots to this file; it needs no network")
    return parser


def simulate(arguments: Sequence[str], bar: Bar) -> None:
    """Raises SimulateError."""
    given, begun_s = _parser().parse_args(arguments), time.monotonic()
    require_numpy()
    cluster = read(given.folder)
    sys.stderr.writelines(f"note: {line}\n" for line in cluster.notes)
    grid = cluster.grid
    works = [NodeOnGrid(node, grid) for node in cluster.nodes]
    nodes = spread("forecasting", foresee, works, available_cpus(), bar)
    counted = _replayed(nodes, cluster, grid, (*LAWS, *ABLATIONS) if given.without else LAWS, bar)
    content = _content(counted, cluster, grid)
    content["machine"] = machine(time.monotonic() - begun_s)
    sys.stdout.writelines(f"{line}\n" for line in text.told(content))
    if given.json:
        write_json(given.json, content)
    if given.html:
        page.write(given.html, content, {name: one.course for name, one in counted.items()}, grid)


def require_numpy() -> None:
    """Raises SimulateError, with the remedy, when numpy can't be had: before the work, not after it."""
    try:
        import numpy  # noqa: F401
    except (ImportError, RuntimeError) as error:  # its wheels refuse old CPUs with a RuntimeError
        why = " ".join(str(error).split())
        raise SimulateError(
            f"--cluster needs numpy ({why}), and criproxy's packages have none: in a checkout, {NUMPY}"
        ) from error


def _replayed(
    nodes: Sequence[Foreseen], cluster: RecordedCluster, grid: Grid, laws: Sequence[Law], bar: Bar
) -> dict[str, Counted]:
    """By law. With an endless queue nodes know nothing of each other, so that they are replayed by parts."""
    from criproxy.commands.simulate.cluster.engine import NodesByLaw, replay

    size = PART_NODES if cluster.jobs is None else len(nodes)
    parts: list[NodesByLaw] = [
        NodesByLaw(law.name, grid, tuple(nodes[start : start + size]), cluster.jobs, (SEED, start // size))
        for law in laws
        for start in range(0, len(nodes), size)
    ]
    found: dict[str, Counted] = {}
    for part, counted in zip(parts, spread("replaying", replay, parts, available_cpus(), bar), strict=True):
        if part.law in found:
            found[part.law].add(counted)
        else:
            found[part.law] = counted
    return found


def _content(counted: Mapping[str, Counted], cluster: RecordedCluster, grid: Grid) -> dict[str, Any]:
    return {
        "laws": {name: one.figures(finite=cluster.jobs is not None) for name, one in counted.items()},
        "seed": SEED,
        "nodes": len(cluster.nodes),
        "duration": grid.duration_s,
        "warm_up": grid.warm_cells * grid.cell_s,
        "cell": grid.cell_s,
        "cores": sum(node.cpu.capacity for node in cluster.nodes),
        "memory": any(node.memory is not None for node in cluster.nodes),
        "jobs": None if cluster.jobs is None else sum(job.count for job in cluster.jobs),
        "notes": list(cluster.notes),
    }


def machine(took_s: float) -> dict[str, Any]:
    """What the figures were made on; `peak_rss_bytes` is that of the largest process."""
    for child in multiprocessing.active_children():
        child.join(CHILDREN_END_S)  # only then does its CPU time count
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    peak_kib = max(one.ru_maxrss for one in used)
    cpu_s = sum(one.ru_utime + one.ru_stime for one in used)
    return {
        "cpus": available_cpus(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "criproxy": __version__,
        "took_s": round(took_s, 1),
        "cpu_s": round(cpu_s, 1),
        "peak_rss_bytes": peak_kib * 1024,
    }
