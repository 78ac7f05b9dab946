"""Remembers what the kernel held after each write, so that a value from somebody else is told from our own."""

from criproxy.model import LimitChange


class Ledger:
    """One entry per file that was settled."""

    def __init__(self) -> None:
        self._held: dict[str, str] = {}

    def kept(self, file: str, value: str) -> None:
        """The file holds what it should."""
        self._held[file] = value

    def changed(self, file: str, old: str, new: str) -> LimitChange:
        """The file held `old` and has been brought to `new`."""
        drift = self._held.get(file, old) != old
        self._held[file] = new
        return LimitChange(file, old, new, drift)

    def forget(self, directory: str) -> None:
        """The cgroup is gone; one of the same name starts anew."""
        self._held = {file: value for file, value in self._held.items() if not file.startswith(f"{directory}/")}
