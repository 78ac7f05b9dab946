"""What keeps the daemon small, whatever passes it: no module that only others need, and memory that goes back.

And what lets it serve soon: some modules are imported after that only. But then all of them: an upgrade of the package
removes this version's files while this process still finishes its calls.

Measured with glibc 2.36 and CPython 3.11: 9 MB and 10 ms of modules; ten lists of 15 MB left 9 MB behind.
"""

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from criproxy.fronts.cri import messages

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Source: glibc, malloc.h, mallopt(3)."""

_LARGE_BYTES: Final = 512 * 1024
"""More than one read of the relay, so that what passes all the time comes from the heap; lists are larger."""

DEFERRED_MODULES: Final = (
    "criproxy.kubelet.evictionhard",
    "criproxy.kubelet.attachment",
    "jeepney",
    "jeepney.bus",
    "jeepney.bus_messages",
    "jeepney.io.blocking",
)
"""What functions of the daemon import when they are called, beside CRI's messages. The standard library is not ours,
and stays.
"""


@contextmanager
def fewer_modules() -> Iterator[None]:
    """Import the daemon within this: what others would import, and can do without, is not there.

    asyncio does without `ssl` where Python has none, hashlib without `_hashlib`, which is OpenSSL (3.3 MiB), as it has
    hashes of Python's own, and msgspec and structlog need not have the others.
    """
    gc.disable()  # nothing of it is ever garbage, and it would be looked through again and again
    try:
        with without("ssl", "_hashlib", "typing_extensions", "rich"):
            yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """What is imported within this does not find these modules, unless they are there already."""
    hidden = [name for name in modules if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # Source: Python, the import system, the module cache
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def return_memory() -> None:
    """Have what is freed go back to the kernel. Without this, glibc keeps as much as the largest message ever took.

    Its thresholds grow with each large block that is freed, unless they are set.
    """
    with suppress(OSError, AttributeError):  # another libc
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE_BYTES)


def settle() -> None:
    """The daemon has begun: import what is left to import. What that leaves behind stays."""
    for name in DEFERRED_MODULES:
        importlib.import_module(name)
    messages.load()
    gc.collect()
    gc.freeze()
    return_memory()
    trim()


def tidy() -> None:
    """Much was made anew at once: have what nobody needs any more go. It takes some ms, in which nothing else runs."""
    gc.collect()
    trim()


def trim() -> None:
    """Give back what is free between what is not, after much was allocated in small pieces. It takes some ms."""
    with suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
