"""A process whose time of day is wrong, by libfaketime; the clocks that only grow are left as they are."""

from collections.abc import Mapping
from pathlib import Path

from integration.lab.process import LabError

_PLACES = Path("/usr/lib")


def wrong_clock(hours: float) -> Mapping[str, str]:
    """The environment of a process whose clock is so many hours ahead. Raises LabError.

    Source: libfaketime, README (0.9.10 has the shorter of two names that are one).
    """
    found = sorted(_PLACES.glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        raise LabError("no libfaketime found: apt-get install libfaketime")
    return {
        "LD_PRELOAD": str(found[0]),
        "FAKETIME": f"{hours * 3600:+.0f}s",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
