"""Remembers the box from one process to the next: its last pods may end while no criproxy runs."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from criproxy.cgroup.naming import BoxPath, parse_box


class LastBox:
    """`file` is as short-lived as cgroups are: it belongs below /run. `exists` tells whether a cgroup is there."""

    def __init__(self, file: Path, exists: Callable[[str], bool]) -> None:
        self._file = file
        self._exists = exists
        self._noted: str | None = None

    def note(self, path: str | None) -> None:
        """This is the box by now; None: there is none, and an earlier one stays noted. A full disk costs no more."""
        if path is None or path == self._noted:
            return
        with contextlib.suppress(OSError):
            new = self._file.with_name(f"{self._file.name}~")
            new.write_text(path)
            new.replace(self._file)
            self._noted = path

    def find(self) -> BoxPath | None:
        """The box that was noted last, if its cgroup is still there."""
        try:
            box = parse_box(self._file.read_text())
        except (OSError, ValueError):
            return None
        return box if self._exists(box.path) else None
