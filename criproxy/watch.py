"""Tells when a file has changed and come to rest."""

from pathlib import Path
from typing import Final


class FileWatch:
    """The file as it was when this was made, or at the last `changed` that said so or `read`.

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

    def read(self) -> None:
        """The file is about to be read, changed or not."""
        self._known = self._seen = self._look()

    def _look(self) -> tuple[int, int, int] | None:
        """What tells one state of the file from another; None while there is none."""
        try:
            status = self.file.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
