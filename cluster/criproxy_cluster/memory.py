"""What keeps a process small and prompt: a controller that knows thousands of nodes, a webhook with many requests."""

import ctypes
import gc
from contextlib import suppress


def settle() -> None:
    """Much was read that stays: Python looks through it for garbage no more, and what reading it took goes back.

    A search for garbage among 10,000 nodes would keep all else waiting for 11 ms, again and again. This one does, once.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    with suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL(None).malloc_trim(0)
