"""Swap for a throwaway node, on a disk of it that nobody uses."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

DISK = Path("/dev/vdc")


@contextlib.contextmanager
def swap_on() -> Iterator[None]:
    """The node has swap within this; at its end, what is swapped must fit into memory."""
    subprocess.run(["mkswap", DISK], check=True, capture_output=True, timeout=60)
    subprocess.run(["swapon", DISK], check=True, timeout=60)
    try:
        yield
    finally:
        subprocess.run(["swapoff", DISK], check=True, timeout=300)
