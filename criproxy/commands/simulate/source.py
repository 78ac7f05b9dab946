"""Input files as text: plain or gzip, by their content; `-` is standard input."""

import gzip
import io
import zlib
from collections.abc import Iterator
from typing import Final

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.findings import Findings, Flaw

_GZIP_MAGIC: Final = b"\x1f\x8b"


def name_of(path: str) -> str:
    """How messages call the file."""
    return "standard input" if path == "-" else path


def lines(path: str, findings: Findings) -> Iterator[str]:
    """The lines of a file, bytes that are no UTF-8 replaced; a gzip stream that breaks off ends early, and is noted.

    Raises SimulateError when it can't be read.
    """
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as raw:
            packed = raw.peek(2)[:2] == _GZIP_MAGIC
            unpacked = gzip.GzipFile(fileobj=raw) if packed else raw
            try:
                yield from io.TextIOWrapper(unpacked, encoding="utf-8-sig", errors="replace", newline="")
            except (EOFError, zlib.error, gzip.BadGzipFile):
                findings.note(Flaw.CUT_OFF, name_of(path))
    except OSError as error:
        raise SimulateError(f"{name_of(path)}: {error.strerror or error}; give a file that can be read") from error
