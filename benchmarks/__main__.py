"""All benchmarks, or those named: `./bench [NAME …] [--json F]`."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import footprint, predictor, proxy, replay

BENCHMARKS: dict[str, Callable[[], object]] = {
    "proxy": proxy.report,
    "footprint": footprint.report,
    "predictor": predictor.report,
    "replay": replay.report,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="./bench", description="Measure what criproxy costs on this machine.")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"one of {', '.join(BENCHMARKS)} (all, unless named)")
    parser.add_argument("--json", metavar="F", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {', '.join(unknown)}: choose from {', '.join(BENCHMARKS)}")
    figures = {}
    for name in options.names or BENCHMARKS:
        print(f"=== {name}")
        figures[name] = BENCHMARKS[name]()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
