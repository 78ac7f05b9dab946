"""Tells when a config has changed and come to rest."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from criproxy.config import files_of


class FileWatch:
    """`file` and its drop-ins as they were when this was made, or at the last `changed` that said so or `read`.

    A file that is just being written is empty or cut off, and may be valid all the same, with another meaning. So a
    change counts only when the next look finds the same.
    """

    def __init__(self, file: Path) -> None:
        self.file: Final = file
        self._known = self._seen = self._look()

    def changed(self) -> bool:
        """Whether the file has changed, and not since the last call. To be asked at intervals."""
        now = self._look()
        at_rest, self._seen = now == self._seen, now
        if not at_rest or now == self._known:
            return False
        self._known = now
        return True

    @property
    def settling(self) -> bool:
        """Whether the last look found a change that the next one has to confirm: it should come soon."""
        return self._seen != self._known

    def read(self) -> None:
        """The file is about to be read, changed or not."""
        self._known = self._seen = self._look()

    def _look(self) -> tuple[tuple[str, int, int, int], ...]:
        """What tells one state of the files from another."""
        return tuple(self._states())

    def _states(self) -> Iterator[tuple[str, int, int, int]]:
        try:
            files = files_of(self.file)
        except OSError:
            files = (self.file,)
        for file in files:
            try:
                status = file.stat()
            except OSError:
                continue
            yield str(file), status.st_mtime_ns, status.st_size, status.st_ino
