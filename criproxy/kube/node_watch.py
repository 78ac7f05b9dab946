"""One watch on the own Node, for all parts that want to see it. What to do next is `watching`'s."""

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, Protocol
from urllib.parse import urlencode

from structlog.typing import FilteringBoundLogger

from criproxy.concurrency.clock import Clock
from criproxy.kube.client import ApiAnswer, ApiRequest, Asks, RejectedError, UnreachableError
from criproxy.kube.objects import Node, status_of
from criproxy.kube.retry import Meaning, pause_s
from criproxy.vocabulary import watching
from criproxy.vocabulary.watching import Item, Unread, UnreadableError, WatchError, WatchState

_PATH: Final = "/api/v1/nodes?"
_HOLDS: Final = "what was last seen of it holds"


class Watches(Asks, Protocol):
    """Whoever can also keep a watch (`criproxy.kube.client`)."""

    def lines(self, path: str) -> AsyncGenerator[bytes]:
        """The lines of an answer as they come, after an empty one when it has begun."""
        ...


class SeesNode(Protocol):
    """Hears of the own Node whenever it has changed; None: there is none. It must not block, nor wait for anything."""

    def saw(self, node: Node | None) -> None: ...


class NodeWatch:
    """Tells the observers of the Node `name`, from now until it is cancelled, whatever fails.

    `node` is what was last seen, and `trouble` why it may be old ("": it is as the API server has it).
    """

    def __init__(
        self,
        client: Watches,
        name: str,
        observers: Sequence[SeesNode],
        *,
        clock: Clock,
        rng: random.Random,
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._name = name
        self._observers = observers
        self._clock = clock
        self._rng = rng
        self._log = log
        self._state = WatchState()
        self._unread = Unread()
        self._began_s: float | None = None
        self.node: Node | None = None
        self.trouble = "it was not seen yet"

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._clock.sleep(await self.step())

    async def step(self) -> float:
        """One list, or one watch to its end. Returns the seconds to wait before the next."""
        return await (self._watch() if self._state.version else self._list())

    async def _list(self) -> float:
        try:
            answer = await self._client.ask(ApiRequest("GET", self._path()))
            if answer.meaning is not Meaning.DONE:
                return self._rejected(answer)
            page = watching.read_page(answer.body, Node)
        except (UnreachableError, UnreadableError) as error:
            self._state = watching.failed(self._state)
            return self._failed(str(error))
        for item in page.items:
            self._hear(item)
        if not page.items:
            self._tell(None)
        self._state = watching.listed(self._state, page.version)
        if not self._state.failures:  # a list between two broken watches is no recovery
            self._well()
        return 0.0

    async def _watch(self) -> float:
        self._began_s = None
        why, named_s = "the server ends each watch at once", None
        try:
            await self._listen()
        except UnreachableError as error:
            self._state, why = watching.ended(self._state, self._lasted_s()), str(error)
        except WatchError as error:
            self._state, why = watching.refused(self._state, error.code, self._lasted_s()), str(error)
            named_s = error.named_s
        except RejectedError as error:
            return self._rejected(error.answer)
        else:
            self._state = watching.ended(self._state, self._lasted_s())
        if self._state.failures:
            return self._failed(why, named_s)
        self._well()
        return self._rng.random()

    async def _listen(self) -> None:
        async with aclosing(self._client.lines(self._path())) as lines:
            async for line in lines:
                if self._began_s is None:
                    self._began_s = self._clock.boottime_s()
                    continue
                item = watching.read_event(line, Node)
                self._hear(item)
                self._state = watching.happened(self._state, item, self._lasted_s())
                if not item.problem:
                    self._well()

    def _lasted_s(self) -> float:
        return 0.0 if self._began_s is None else self._clock.boottime_s() - self._began_s

    def _path(self) -> str:
        chosen = {"fieldSelector": f"metadata.name={self._name}"}
        return _PATH + urlencode(chosen | watching.asked(self._state, self._rng.random()))

    def _rejected(self, answer: ApiAnswer) -> float:
        self._state = watching.refused(self._state, answer.status)
        return self._failed(f"{answer.status} {status_of(answer.body).message}", answer.named_pause_s)

    def _hear(self, item: Item[Node]) -> None:
        if self._unread.is_news(item):
            self._log.warning("node_unreadable", node=self._name, reason=item.problem, consequence=_HOLDS)
        if item.event == "DELETED":
            self._tell(None)
        elif item.value is not None:
            self._tell(item.value)

    def _tell(self, node: Node | None) -> None:
        self.node = node
        for observer in self._observers:
            observer.saw(node)

    def _well(self) -> None:
        if self.trouble:
            self._log.info("node_watched", node=self._name)
        self.trouble = ""

    def _failed(self, why: str, named_s: float | None = None) -> float:
        """Logged once for each row of failures; one watch that was cut off is none. Returns the seconds to wait."""
        failures = self._state.failures
        if self.trouble or failures >= 2:
            if failures == 2:
                self._log.warning("node_not_watched", node=self._name, reason=why, consequence=_HOLDS)
            self.trouble = why
        return pause_s(failures, self._rng.random(), named_s)
