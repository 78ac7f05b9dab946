"""`criproxy metrics`: what a running criproxy counts and measures, printed, or in a file of node_exporter's textfile
collector, for where that is the way in.

The file is replaced at once, never half written. It lacks the metrics of the process, which node_exporter has by the
same names: doubled ones would fail the whole scrape. Where criproxy does not answer, the file goes, so that no old
figures pass for new ones. Source: node_exporter's README, Textfile Collector.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from criproxy.observe import client

_ASK_S: Final = 5.0
_PROCESS: Final = "process_"


def text(socket: Path) -> str:
    """Raises client.AskError."""
    return client.ask(socket, "/metrics", _ASK_S)


def to_file(socket: Path, file: Path) -> None:
    """Raises client.AskError, after the file has gone, and OSError."""
    try:
        found = text(socket)
    except client.AskError:
        file.unlink(missing_ok=True)
        raise
    new = file.with_name(f".{file.name}.{os.getpid()}")  # which the collector leaves alone: it takes *.prom
    try:
        new.write_text("".join(_of_criproxy(found)), encoding="utf-8")
        new.chmod(0o644)
        new.replace(file)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def _of_criproxy(found: str) -> Iterator[str]:
    for line in found.splitlines(keepends=True):
        name = line.split(None, 3)[2] if line.startswith("# ") else line
        if not name.startswith(_PROCESS):
            yield line
