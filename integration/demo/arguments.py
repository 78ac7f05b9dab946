"""The demo's command line."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from integration.demo import DemoError

REPOSITORY: Final = Path(__file__).resolve().parents[2]
DAY: Final = Path(__file__).with_name("day.csv")
SHORTEST_S: Final = 10.0
LONGEST_S: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for. `port` is criproxy's, for its status and metrics, on loopback."""

    seconds: float
    trace: Path
    trace_id: str | None
    kubelet: bool
    cluster: bool
    port: int
    plot: Path
    directory: Path


def parse(argv: Sequence[str]) -> Options:
    """Parse the arguments. Exits as argparse does for --help and unknown ones; raises DemoError for bad values."""
    given = _parser().parse_args(argv)
    if not SHORTEST_S <= given.seconds <= LONGEST_S:
        raise DemoError(f"--seconds {given.seconds:g} is out of range: give {SHORTEST_S:g} to {LONGEST_S:g}")
    if not 1 <= given.port <= 65535:
        raise DemoError(f"--port {given.port} is no TCP port: give 1 to 65535")
    if given.trace_id is not None and given.trace is None:
        raise DemoError("--trace-id chooses a series of --trace: give that too")
    if given.cluster and (given.trace is not None or given.kubelet):
        raise DemoError("--cluster has kubelets and a load of its own: leave out --kubelet and --trace")
    plot = given.plot or REPOSITORY / "build" / ("demo-cluster.png" if given.cluster else "demo.png")
    if plot.suffix != ".png":
        raise DemoError(f"--plot {plot} does not end in .png: the plot is a PNG file")
    return Options(
        seconds=given.seconds,
        trace=given.trace or DAY,
        trace_id=given.trace_id,
        kubelet=given.kubelet,
        cluster=given.cluster,
        port=given.port,
        plot=plot.absolute(),
        directory=given.directory.absolute(),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./demo",
        allow_abbrev=False,
        description="Watch criproxy do its job on this machine: a private containerd, an online pod that plays a day's "
        "usage as real CPU load, and two offline pods that want everything. Needs root; leaves nothing but the plot.",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=90,
        metavar="N",
        help="how long the day takes, or, with --cluster, its four acts together (default: 90)",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="CSV",
        help="your own usage: columns id,t,u (t in seconds), gzip too; its first 24 h, scaled to this machine",
    )
    parser.add_argument("--trace-id", metavar="ID", help="which series of the trace (default: its first)")
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="on a whole cluster of its own: a Job is converted, placed, squeezed, evicted and placed anew, beside an "
        "online Deployment (Kubernetes is compiled first, once: a quarter of an hour)",
    )
    parser.add_argument("--kubelet", action="store_true", help="have a real kubelet start the pods, as static pods")
    parser.add_argument(
        "--port",
        type=int,
        default=9877,
        metavar="N",
        help="criproxy's /metrics on 127.0.0.1 (default: 9877)",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="PNG",
        help="where the plot goes (default: build/demo.png in the checkout; build/demo-cluster.png with --cluster)",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("/run/criproxy-demo"),
        metavar="DIR",
        help="where the demo's node lives while it runs (default: /run/criproxy-demo)",
    )
    return parser
