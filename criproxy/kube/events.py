"""Events: what criproxy has done, on the pods and on the Node, where people look for it (`kubectl describe node`).

Whoever tells something does not wait for it. What can't be written after a few tries is left: it is in the log as well.

What may come again and again, as the steps of the ladder, is an Event with a name (`repeats`), and then

- the same again makes no other event: the one that is there counts it, with the last message. An event that the API
  server has forgotten (after an hour, mostly) is made anew;
- no more than `BURST` are sent at once, and one each `EVERY_S`.

Source: Kubernetes, client-go, tools/record/events_cache.go (that a repeated event is patched).
"""

import asyncio
import random
from collections import deque
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from criproxy.concurrency.clock import Clock
from criproxy.control.interference.ladder import Rung, Transition
from criproxy.kube.client import MERGE_PATCH, ApiAnswer, ApiRequest, Asks, UnreachableError
from criproxy.kube.objects import MAX_MESSAGE, Event, Involved, event, path, status_of
from criproxy.kube.retry import Meaning
from criproxy.vocabulary.times import rfc3339

MAX_UNTOLD: Final = 96
"""Events that wait to be sent; of more, the oldest are forgotten."""

BURST: Final = 10.0
EVERY_S: Final = 60.0

_ORDER: Final = tuple(Rung)
_REASONS: Final = {
    Rung.SQUEEZED: "ColocationSqueezed",
    Rung.CLOSED: "ColocationClosed",
    Rung.EVICTING: "ColocationEvicting",
}
_CALM: Final = "ColocationCalm"


class Told(Struct, frozen=True):
    """An Event's text and kind, about the Node. `well`: it is nothing to worry about."""

    reason: str
    message: str
    well: bool = False


def of_ladder(one: Transition) -> Told | None:
    """The Event of a transition; None: none. An experiment is none of the cluster's business."""
    if one.after in _REASONS:
        reason = _REASONS[one.after]
    elif one.before in _REASONS:
        reason = _CALM
    else:
        return None
    message = f"{one.resource}: {one.before} -> {one.after}: {one.reason}"
    return Told(reason, message, well=_ORDER.index(one.after) < _ORDER.index(one.before))


def events_path(made: Event, *name: str) -> str:
    return path("namespaces", made.metadata["namespace"], "events", *name)


class EventWriter:
    """Writes events of the Node `node`."""

    def __init__(
        self, client: Asks, node: Involved, *, clock: Clock, rng: random.Random, log: FilteringBoundLogger
    ) -> None:
        self.node: Final = node
        self._client = client
        self._clock = clock
        self._rng = rng
        self._log = log
        self._untold: deque[Event] = deque(maxlen=MAX_UNTOLD)
        self._some = asyncio.Event()
        self._told: dict[str, Event] = {}
        """By what repeats."""
        self._left = BURST
        self._left_at_s = clock.boottime_s()

    def tell(self, about: Involved, reason: str, message: str, *, well: bool = False, repeats: str = "") -> None:
        """Neither blocks nor raises. `repeats` names what may come again; "": it comes once."""
        now = rfc3339(self._clock.wall_s())
        if repeats and not self._may():
            return
        if before := self._told.get(repeats):
            made = replace(before, message=message[:MAX_MESSAGE], last_timestamp=now, count=before.count + 1)
        else:
            name = f"{self._rng.getrandbits(64):016x}"
            made = event(about, self.node.name, reason, message, at=now, name=name, well=well)
        if repeats:
            self._told[repeats] = made
        self._untold.append(made)
        self._some.set()

    def transition(self, one: Transition) -> None:
        """Tell of a step of the ladder, on the Node. Neither blocks nor raises."""
        if told := of_ladder(one):
            repeats = f"{one.resource} {one.before} {one.after}"
            self.tell(self.node, told.reason, told.message, well=told.well, repeats=repeats)

    def _may(self) -> bool:
        now_s = self._clock.boottime_s()
        self._left = min(BURST, self._left + (now_s - self._left_at_s) / EVERY_S)
        self._left_at_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._some.wait()
            await self.tell_all()

    async def tell_all(self) -> None:
        """Never raises."""
        self._some.clear()
        while self._untold:
            made = self._untold.popleft()
            where = events_path(made)
            try:
                answer = await self._send(made, where)
            except UnreachableError as error:
                self._log.info("event_not_told", path=where, reason=str(error))
            else:
                if answer.meaning is not Meaning.DONE:
                    why = f"{answer.status} {status_of(answer.body).message}"
                    self._log.info("event_not_told", path=where, reason=why)

    async def _send(self, made: Event, where: str) -> ApiAnswer:
        if made.count > 1:
            changed = {"message": made.message, "lastTimestamp": made.last_timestamp, "count": made.count}
            patch = ApiRequest(
                "PATCH", events_path(made, made.metadata["name"]), msgspec.json.encode(changed), MERGE_PATCH
            )
            answer = await self._client.ask_again(patch)
            if answer.status != 404:
                return answer
        return await self._client.ask_again(ApiRequest("POST", where, msgspec.json.encode(made)))
