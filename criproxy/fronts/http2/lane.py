"""What goes to one peer: the runs of frames that pass as they came, and what is put between them."""

from typing import Final

from criproxy.fronts.http2.frames import Bytes

_NOTHING: Final = memoryview(b"")


class Lane:
    """Bytes on their way to one peer, in order. A run is the part `start` to `end` of the piece that is being read."""

    __slots__ = ("_view", "end", "parts", "start")

    def __init__(self) -> None:
        self.parts: list[Bytes] = []
        """What is to be sent by now: not empty pieces, in order."""
        self._view = _NOTHING
        self.start = 0
        self.end = 0

    def open(self, view: memoryview) -> None:
        self._view = view
        self.start = self.end = 0

    def cut(self) -> None:
        """The run so far goes; what is sent next comes after it."""
        if self.end > self.start:
            self.parts.append(self._view[self.start : self.end])
            self.start = self.end

    def send(self, data: Bytes) -> None:
        self.cut()
        if data:
            self.parts.append(data)

    def close(self) -> None:
        self.cut()
        self._view = _NOTHING
        self.start = self.end = 0

    def take(self) -> Bytes:
        """All of `parts`, in one piece; it stays valid."""
        parts, self.parts = self.parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)
