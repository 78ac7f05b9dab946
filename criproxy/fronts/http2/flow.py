"""The upstream's connection window, and what the client believes of it."""

from criproxy.fronts.http2.frames import FIRST_WINDOW, MAX_WINDOW, BrokenError


class Ledger:
    """Bytes that may be sent on the connection, as the upstream counts them and as the client does.

    `real` is what the upstream still takes. `debt` is how much more the client believes in: bytes went up that it has
    not paid. `waiting` is what it has paid and is not sent yet. So the client sees `real + debt - waiting`.
    """

    __slots__ = ("debt", "real", "waiting")

    def __init__(self) -> None:
        self.real = FIRST_WINDOW
        self.debt = 0
        self.waiting = 0

    @property
    def shown(self) -> int:
        """The window that the client sees."""
        return self.real + self.debt - self.waiting

    def pay(self, size: int) -> None:
        """The client has sent what is to wait here. Raises BrokenError when it had no window for it."""
        if size > self.shown:
            raise BrokenError(f"{size} bytes sent into a window of {self.shown}")
        self.waiting += size

    def spend(self, size: int, paid: int) -> None:
        """Of `size` bytes that go up now, the client has paid `paid`."""
        self.real -= size
        self.waiting -= paid
        self.debt += size - paid

    def forgive(self, paid: int) -> int:
        """What the client has paid goes nowhere; returns how much of it is to be given back, the rest settles debt."""
        self.waiting -= paid
        settled = min(paid, self.debt)
        self.debt -= settled
        return paid - settled

    def credit(self, size: int) -> int:
        """The upstream takes so much more; returns what of it the client is told. Raises BrokenError."""
        if not size or self.real + size > MAX_WINDOW:
            raise BrokenError(f"WINDOW_UPDATE of {size} on a window of {self.real}")
        self.real += size
        settled = min(size, self.debt)
        self.debt -= settled
        return size - settled
