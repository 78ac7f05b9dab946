"""What keeps a replica small, and its webhook prompt, beside thousands of nodes that it knows."""

import ctypes
import gc
from asyncio import sslproto
from contextlib import suppress
from typing import Final

TLS_BUFFER_BYTES: Final = 32 << 10
"""Asyncio's own is 256 KiB, written to for each connection that is made: the API server keeps dozens of them. A record
of TLS has 16 KiB at most.
"""


def keep_connections_small() -> None:
    """Those of this process that are made from now on, over TLS."""
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES


def settle() -> None:
    """Much was read that stays: Python looks through it for garbage no more, and what reading it took goes back.

    A search for garbage among 10,000 nodes would keep a pod waiting for 11 ms, again and again. This one does, once.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    with suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL(None).malloc_trim(0)
