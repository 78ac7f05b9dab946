"""What the box's memory limit waits for, as the cluster's ledger says it in an annotation of the own Node.

Whatever stands there, the wait is bounded (`criproxy.control.policy`): by `MOST_WAIT_S`, by what online uses now, and,
where the ledger says nothing new for `VALID_S` of this node's own clock, there is none.
"""

from typing import Final

from structlog.typing import FilteringBoundLogger

from criproxy.concurrency.clock import Clock
from criproxy.kube.objects import Node
from criproxy.model import GivingBack
from criproxy.vocabulary.gives_back import MOST_WAIT_S, VALID_S, decoded
from criproxy.vocabulary.names import GIVES_BACK


class GivesBackFollower:
    """Follows the annotation."""

    def __init__(self, clock: Clock, log: FilteringBoundLogger) -> None:
        self._clock: Final = clock
        self._log: Final = log
        self._text = ""
        self._serial: int | None = None
        self._until_s = 0.0
        self._lent: GivingBack | None = None

    def saw(self, node: Node | None) -> None:
        if node is None:
            return
        text = node.annotation(GIVES_BACK) or ""
        if text == self._text:
            return
        self._text = text
        self._lent = None
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
        self._lent = GivingBack(float(note.bytes), min(note.wait_s, MOST_WAIT_S))

    def now(self) -> GivingBack | None:
        """None: nothing is to be waited for."""
        return self._lent if self._clock.boottime_s() < self._until_s else None
