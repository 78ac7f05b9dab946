"""The series that ship: three nodes of our own making, two days, a sample a minute, 16 cores each.

`web` has the wave of a day with noise, `shop` two rushes a day with sudden bursts, `steady` is almost level and has a
step on the second day. The same on every machine: only a seeded source of random numbers is used.
"""

import math
import random
from array import array
from typing import Final

from criproxy.commands.simulate.trace import Trace

CAPACITY_CORES: Final = 16.0
STEP_S: Final = 60
DAYS: Final = 2
START_S: Final = 1_735_689_600
"""2025-01-01, midnight UTC."""


def example() -> list[Trace]:
    """CPU usage in cores."""
    source = random.Random(2025)
    moments = [START_S + i * STEP_S for i in range(DAYS * 86400 // STEP_S)]
    hours = [t_s % 86400 / 3600.0 for t_s in moments]
    web = [6.0 - 3.5 * math.cos((hour - 3.0) / 24.0 * math.tau) + source.gauss(0.0, 0.35) for hour in hours]
    rush = [4.5 * math.exp(-((hour - 9.0) ** 2) / 2.0) + 6.0 * math.exp(-((hour - 20.0) ** 2) / 3.0) for hour in hours]
    burst = [source.uniform(2.0, 5.0) if source.random() < 0.004 else 0.0 for _ in hours]
    shop = [2.0 + r + b + source.gauss(0.0, 0.2) for r, b in zip(rush, burst, strict=True)]
    risen_s = START_S + 86400 + 14 * 3600
    steady = [4.0 + (3.0 if t_s >= risen_s else 0.0) + source.gauss(0.0, 0.1) for t_s in moments]
    return [
        Trace(
            f"{name}-node",
            name,
            CAPACITY_CORES,
            array("d", moments),
            array("d", (min(max(usage, 0.0), CAPACITY_CORES) for usage in usages)),
        )
        for name, usages in (("web", web), ("shop", shop), ("steady", steady))
    ]
