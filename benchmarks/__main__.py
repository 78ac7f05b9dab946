"""All benchmarks but the soak, or those named: `./bench [NAME …] [--json F]`."""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import baselines, footprint, predictor, proxy, replay
from benchmarks.cluster import run as cluster
from benchmarks.effect import report as effect
from benchmarks.ledger import run as ledger
from benchmarks.soak import report as soak

BENCHMARKS: dict[str, Callable[[], object]] = {
    "proxy": proxy.report,
    "footprint": footprint.report,
    "predictor": predictor.report,
    "replay": replay.report,
}
SOAK = "soak"
"""Not among them: it lasts half an hour."""


EFFECT = "effect"
BASELINES = "baselines"
CLUSTER = "cluster"
LEDGER = "ledger"
"""Not among them either: these have options of their own."""


def main() -> int:
    if sys.argv[1:2] == [EFFECT]:
        effect.main(sys.argv[2:])
        return 0
    if sys.argv[1:2] == [BASELINES]:
        return baselines.main(sys.argv[2:])
    if sys.argv[1:2] == [CLUSTER]:
        cluster.main(sys.argv[2:])
        return 0
    if sys.argv[1:2] == [LEDGER]:
        return ledger.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="./bench", description="Measure what criproxy costs on this machine.")
    names = (
        f"one of {', '.join(BENCHMARKS)} (all of them, unless named) or {SOAK}; {EFFECT}, {BASELINES}, {CLUSTER} and "
        f"{LEDGER} have a --help of their own"
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help=names)
    parser.add_argument("--json", metavar="F", type=Path, help="write the figures to this file, too")
    parser.add_argument("--minutes", metavar="N", type=float, default=30, help="how long the soak lasts (%(default)s)")
    parser.add_argument("--plot", metavar="F", type=Path, help="draw the soak into this .png")
    options = parser.parse_args()
    known: dict[str, Callable[[], object]] = {**BENCHMARKS, SOAK: partial(soak.report, options.minutes, options.plot)}
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"there is no benchmark {', '.join(unknown)}: choose from {', '.join(known)}")
    figures = {}
    for name in options.names or BENCHMARKS:
        print(f"=== {name}")
        figures[name] = known[name]()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
