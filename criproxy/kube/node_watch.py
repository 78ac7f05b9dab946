"""One watch on the own Node, for all parts that want to see it. What to do next is `watch_law`'s."""

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from criproxy.concurrency.clock import Clock
from criproxy.kube import watch_law
from criproxy.kube.client import ApiAnswer, ApiRequest, Asks, RejectedError, UnreachableError
from criproxy.kube.objects import Node, ObjectError, status_of
from criproxy.kube.retry import Meaning
from criproxy.kube.watch_law import Seen, WatchError, WatchState

_PATH: Final = "/api/v1/nodes?"


class Watches(Asks, Protocol):
    """Whoever can also keep a watch (`criproxy.kube.client`)."""

    def lines(self, path: str) -> AsyncGenerator[bytes]: ...


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
        luck: random.Random,
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._name = name
        self._observers = observers
        self._clock = clock
        self._luck = luck
        self._log = log
        self._state = WatchState()
        self.node: Node | None = None
        self.trouble = "it was not seen yet"

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._clock.sleep(await self.step())

    async def step(self) -> float:
        """One list, or one watch to its end. Returns the seconds to wait before the next."""
        luck = self._luck.random()
        try:
            if not self._state.version:
                return await self._list()
            return await self._watch()
        except UnreachableError as error:
            self._state, wait_s = watch_law.failed(self._state, luck)
            return self._failed(str(error), wait_s)
        except ObjectError as error:
            self._state, wait_s = watch_law.failed(WatchState(failures=self._state.failures), luck)
            return self._failed(str(error), wait_s)
        except WatchError as error:
            named_s = float(error.status.details.retry_after_seconds) if error.status.details else None
            self._state, wait_s = watch_law.refused(self._state, error.status.code, luck, named_s or None)
            return self._failed(str(error), wait_s)
        except RejectedError as error:
            return self._rejected(error.answer, luck)

    async def _list(self) -> float:
        luck = self._luck.random()
        answer = await self._client.ask(ApiRequest("GET", _PATH + watch_law.query(self._state, self._name, luck)))
        if answer.meaning is not Meaning.DONE:
            return self._rejected(answer, luck)
        self._state, node = watch_law.listed(self._state, answer.body)
        self._tell(node)
        return 0.0

    async def _watch(self) -> float:
        luck = self._luck.random()
        started_s, events = self._clock.boottime_s(), 0
        path = _PATH + watch_law.query(self._state, self._name, luck)
        async with aclosing(self._client.lines(path)) as lines:
            async for line in lines:
                self._state, seen, node = watch_law.happened(self._state, line)
                events += 1
                if seen is not Seen.NOTHING:
                    self._tell(node)
                else:
                    self._well()
        lasted_s = self._clock.boottime_s() - started_s
        self._state, wait_s = watch_law.ended(self._state, lasted_s, events, luck)
        if self._state.failures:
            return self._failed("the server ends each watch at once", wait_s)
        self._well()
        return wait_s

    def _rejected(self, answer: ApiAnswer, luck: float) -> float:
        self._state, wait_s = watch_law.refused(self._state, answer.status, luck, answer.named_pause_s)
        return self._failed(f"{answer.status} {status_of(answer.body).message}", wait_s)

    def _tell(self, node: Node | None) -> None:
        self.node = node
        if not self._state.failures:  # a list between two broken watches is no recovery
            self._well()
        for observer in self._observers:
            observer.saw(node)

    def _well(self) -> None:
        if self.trouble:
            self._log.info("node_watched", node=self._name)
        self.trouble = ""

    def _failed(self, why: str, wait_s: float) -> float:
        """Logged once for each row of failures; one watch that was cut off is none."""
        if not self.trouble and self._state.failures < 2:
            return wait_s
        if self._state.failures == 2:
            self._log.warning(
                "node_not_watched", node=self._name, reason=why, consequence="what was last seen of it holds"
            )
        self.trouble = why
        return wait_s
