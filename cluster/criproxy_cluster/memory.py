"""What keeps a replica small, and its webhook prompt, beside thousands of nodes that it knows."""

import ctypes
import gc
from contextlib import suppress


def settle() -> None:
    """Much was read that stays: Python looks through it for garbage no more, and what reading it took goes back.

    A search for garbage among 10,000 nodes would keep a pod waiting for 11 ms, again and again. This one does, once.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    with suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL(None).malloc_trim(0)
