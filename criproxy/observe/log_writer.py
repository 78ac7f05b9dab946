"""The process's log, which shows when lines of it are missing."""

from collections.abc import Iterator

from criproxy.model.shown import Shows
from criproxy.observe.line_writer import LineWriter


class LogWriter(Shows, LineWriter):
    """See `LineWriter`."""

    def problems(self) -> Iterator[str]:
        if self.missing:
            dropped = f"{self.missing} lines of the log were dropped"
            yield f"{dropped}, as nobody reads it: look after journald, or what reads it"
