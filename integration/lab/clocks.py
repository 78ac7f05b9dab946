"""A process whose time of day is wrong; the clocks that only grow are left as they are."""

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from integration.lab.process import LabError

_SOURCE = Path(__file__).with_name("wrong-clock.c")


def wrong_clock(hours: float) -> Mapping[str, str]:
    """The environment of a process whose clock is so many hours ahead. Raises LabError."""
    return {"LD_PRELOAD": str(_library()), "CLOCK_AHEAD_S": f"{hours * 3600:.0f}"}


@cache
def _library() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="criproxy-clock-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "wrong-clock.so"
    command = ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LabError("there is no C compiler: apt-get install gcc libc6-dev") from None
    if done.returncode != 0:
        raise LabError(f"{_SOURCE}: {done.stderr.strip()}")
    return library
