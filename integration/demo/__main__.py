"""`python -m integration.demo`: see ./demo."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import grpc

from integration.demo import DemoError
from integration.demo.load import DAY
from integration.demo.place import Stopped
from integration.lab.criproxy import CHECKOUT
from integration.lab.process import LabError

SHORTEST_S: Final = 10.0
LONGEST_S: Final = 86400.0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments. Exits as argparse does for --help and unknown ones; raises DemoError for bad values."""
    parser = argparse.ArgumentParser(
        prog="./demo",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Watch criproxy do its job on this machine: a private containerd, an online pod that plays a day's "
        "usage as real CPU load, and two offline pods that want everything. Needs root; leaves nothing but the plot.",
    )
    add = parser.add_argument
    add("--seconds", type=float, default=90, metavar="N", help="how long the day takes; of --cluster, its four acts")
    trace = "your own usage, as criproxy simulate reads it: its first 24 h, scaled to this machine"
    add("--trace", type=Path, default=DAY, metavar="CSV", help=trace)
    add("--trace-id", metavar="ID", help="which series of the trace, if not the first")
    cluster = "a whole cluster of its own: a Job is converted, placed, squeezed, evicted and placed anew, beside online"
    add("--cluster", action="store_true", help=f"{cluster} (Kubernetes is compiled first, once: a quarter of an hour)")
    job = "a real Spark job: on a node of its own, and beside an online Deployment, with executors evicted and killed"
    add("--spark", action="store_true", help=f"{job} (no plot; --cluster's Kubernetes, and Spark, are fetched once)")
    add("--kubelet", action="store_true", help="have a real kubelet start the pods, as static pods")
    others = "unrelated load on all CPUs for so many seconds in the middle, as a cron job or an image pull is"
    add("--others", type=float, default=0.0, metavar="S", help=others)
    add("--port", type=int, default=9877, metavar="N", help="criproxy's /metrics on 127.0.0.1")
    add("--plot", type=Path, metavar="PNG", help="where the plot goes, if not to build/ in the checkout")
    given = parser.parse_args(argv)
    if not SHORTEST_S <= given.seconds <= LONGEST_S:
        raise DemoError(f"--seconds {given.seconds:g} is out of range: give {SHORTEST_S:g} to {LONGEST_S:g}")
    if not 0.0 <= given.others <= given.seconds / 2.0:
        raise DemoError(f"--others {given.others:g} is out of range: give 0 to half of --seconds ({given.seconds:g})")
    if given.others and (given.cluster or given.spark):
        raise DemoError("--others is for a single node: leave out --cluster and --spark")
    if not 1 <= given.port <= 65535:
        raise DemoError(f"--port {given.port} is no TCP port: give 1 to 65535")
    if given.spark and (given.cluster or given.trace != DAY or given.kubelet):
        raise DemoError("--spark has kubelets and a load of its own: leave out --cluster, --kubelet and --trace")
    if given.cluster and (given.trace != DAY or given.kubelet):
        raise DemoError("--cluster has kubelets and a load of its own: leave out --kubelet and --trace")
    plot = given.plot or CHECKOUT / "build" / ("demo-cluster.png" if given.cluster else "demo.png")
    if plot.suffix != ".png":
        raise DemoError(f"--plot {plot} does not end in .png: the plot is a PNG file")
    given.plot = plot.absolute()
    return given


def main() -> int:
    """Run the demo; returns the exit status: 0, 1 after an error, 128 + N when stopped by signal N."""
    try:
        options = parse(sys.argv[1:])
        if options.spark:
            from integration.demo.spark.play import run
        elif options.cluster:
            from integration.demo.cluster.play import run
        else:
            from integration.demo.play import run
        run(options)
    except Stopped as stop:
        print(f"demo: {stop}", file=sys.stderr)
        return 128 + stop.number
    except KeyboardInterrupt:  # after the play, while the plot is drawn
        return 130
    except grpc.RpcError as error:
        said = error.details() if isinstance(error, grpc.Call) else error
        print(f"demo: the runtime refused a call: {said}", file=sys.stderr)
        return 1
    except (DemoError, LabError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
