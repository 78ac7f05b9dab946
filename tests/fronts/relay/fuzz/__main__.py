"""`python -m tests.fronts.relay.fuzz [--seconds N] [--seed S]`: connections until the time is over, or one seed's."""

import argparse
import random
import sys
import time
import traceback

from tests.fronts.relay.fuzz import Fuzz


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fronts.relay.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="only this one")
    options = parser.parse_args()
    if options.seed is not None:
        Fuzz(options.seed).run()
        return 0
    seed, count, end = random.randrange(1 << 40), 0, time.monotonic() + options.seconds
    while time.monotonic() < end:
        try:
            Fuzz(seed + count).run()
        except Exception:
            traceback.print_exc()
            print(f"seed {seed + count}")
            return 1
        count += 1
    print(f"{count} connections without an error")
    return 0


if __name__ == "__main__":
    sys.exit(main())
