"""Remembers what the kernel held after each write, so that a value from somebody else is told from our own."""

import contextlib
from collections.abc import Iterator

from criproxy.model import LimitChange


class Ledger:
    """One entry per file that was settled. One thread settles files; another may sink a limit meanwhile (`sinking`)."""

    def __init__(self) -> None:
        self._held: dict[str, str] = {}
        self._sinking: str | None = None

    def kept(self, file: str, value: str) -> None:
        """The file holds what it should."""
        self._held[file] = value

    def changed(self, file: str, old: str, new: str) -> LimitChange:
        """The file held `old` and has been brought to `new`."""
        drift = self._held.get(file, old) != old and not self.is_sinking(file)
        self._held[file] = new
        return LimitChange(file, old, new, drift)

    @contextlib.contextmanager
    def sinking(self, file: str) -> Iterator[None]:
        """Within this, the file may change at any time, by our own doing."""
        self._sinking = file
        try:
            yield
        finally:
            self._sinking = None

    def is_sinking(self, file: str) -> bool:
        return self._sinking == file

    def forget(self, directory: str) -> None:
        """The cgroup is gone; one of the same name starts anew."""
        held = self._held.copy()  # whoever sinks a limit may add to it
        self._held = {file: value for file, value in held.items() if not file.startswith(f"{directory}/")}
