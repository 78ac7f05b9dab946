"""What the box's memory limit waits for, as the cluster's ledger says it in an annotation of the own Node.

Whatever stands there, the wait is bounded: it is for what the node itself has published within `MOST_WAIT_S`, and never
for what online uses now (`criproxy.control.policy`); and where the ledger says nothing new for `VALID_S` of this node's
own clock, there is none.
"""

from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from criproxy.concurrency.clock import Clock
from criproxy.kube.objects import Node
from criproxy.model import MEMORY, GivingBack
from criproxy.vocabulary.gives_back import MOST_WAIT_S, VALID_S, Note, decoded
from criproxy.vocabulary.names import GIVES_BACK


class Publishes(Protocol):
    """Whoever publishes what the node lends."""

    def promised(self, resource: str, within_s: float) -> tuple[float, float]:
        """What is published of it now, and the most of what was within the last `within_s`; in its unit."""


class GivesBackFollower:
    """Follows the annotation."""

    def __init__(self, publisher: Publishes, clock: Clock, log: FilteringBoundLogger) -> None:
        self._publisher: Final = publisher
        self._clock: Final = clock
        self._log: Final = log
        self._text = ""
        self._serial: int | None = None
        self._until_s = 0.0
        self._note: Note | None = None
        self.heard = False
        """Whether the Node was seen, with or without the annotation."""

    def saw(self, node: Node | None) -> None:
        if node is None:
            return
        self.heard = True
        text = node.annotation(GIVES_BACK) or ""
        if text == self._text:
            return
        self._text = text
        self._note = None
        if not text:
            return
        try:
            note = decoded(text)
        except ValueError as error:
            consequence = "the box's memory limit waits for nobody"
            self._log.warning("gives_back_unreadable", annotation=GIVES_BACK, error=str(error), consequence=consequence)
            return
        if note.serial != self._serial:
            self._serial, self._until_s = note.serial, self._clock.boottime_s() + VALID_S
        self._note = note

    def now(self) -> GivingBack | None:
        """None: nothing is to be waited for."""
        note = self._note
        if note is None or self._clock.boottime_s() >= self._until_s:
            return None
        return GivingBack(float(note.bytes), *self._publisher.promised(MEMORY, min(note.wait_s, MOST_WAIT_S)))
