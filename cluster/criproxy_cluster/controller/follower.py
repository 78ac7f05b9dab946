"""An unbroken view of all objects of a kind, by lists and watches. What to ask next is `watching`'s."""

import random
import time
from asyncio import sleep, timeout
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, Generic, TypeVar

import httpx2
from lightkube.core.async_client import AsyncClient
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.requests import Trouble, pause_s, trouble_of
from criproxy_cluster.vocabulary import watching
from criproxy_cluster.vocabulary.watching import Item, KubernetesObject, LineReader, Unread, WatchError, WatchState

SILENCE_S: Final = watching.SILENCE_S
ANSWER_S: Final = 30.0
"""Within which an answer has to begin, and a list has to come."""

CONNECT_S: Final = 10.0
PAGE: Final = 100
MAX_PAGE_BYTES: Final = 32 << 20
"""Of a list's page, as it is held in memory."""

T = TypeVar("T", bound=KubernetesObject)


class Hearing:
    """For how long something could not be heard of, in all. Times are of a clock that only grows."""

    def __init__(self) -> None:
        self._before_s = 0.0
        self._lost_s: float | None = None

    def reached(self, now_s: float) -> None:
        self._before_s, self._lost_s = self.deaf_s(now_s), None

    def lost(self, now_s: float) -> None:
        """Found to be lost now: a connection may have been dead for `SILENCE_S` before, which a node's time bears."""
        if self._lost_s is None:
            self._lost_s = now_s

    @property
    def is_lost(self) -> bool:
        return self._lost_s is not None

    def deaf_s(self, now_s: float) -> float:
        return self._before_s + (0.0 if self._lost_s is None else now_s - self._lost_s)


class Follower(Generic[T]):
    """Tells of each object, and after each list, which ones there are. `changed` and `listed` must not block.

    One that can't be read is reported with its problem. Each is a step of its own: others go on in between.
    """

    def __init__(
        self,
        client: AsyncClient,
        kind: type[T],
        changed: Callable[[Item[T]], None],
        listed: Callable[[set[str]], None],
        *,
        hearing: Hearing,
        log: FilteringBoundLogger,
        query: Mapping[str, str] | None = None,
        page: int = PAGE,
    ) -> None:
        """`query`: selectors, which hold for lists and watches. `page`: how many a list brings at once."""
        self._query = query or {}
        self._page = page
        self._client: Any = client._client
        self._kind = kind
        self._changed = changed
        self._listed = listed
        self._hearing = hearing
        self._log = log
        self._state = WatchState()
        self._unread = Unread()
        self._began_s: float | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            pause_s = await self._step()
            await sleep(pause_s)

    async def _step(self) -> float:
        """One list, or one watch to its end. Returns the seconds to wait before the next."""
        watches, self._began_s = bool(self._state.version), None
        what = f"{'watch' if watches else 'list'} of {self._kind.__name__}"
        try:
            with trouble_of(what):
                await (self._watch() if watches else self._list())
        except WatchError as error:
            why = self._refused(error.code, f"{what}: {error}")
        except Trouble as trouble:
            if trouble.code:
                why = self._refused(trouble.code, str(trouble))
            else:
                self._hearing.lost(time.monotonic())
                self._state, why = watching.ended(self._state, self._lasted_s()), str(trouble)
        else:
            if not watches:
                return 0.0
            self._state = watching.ended(self._state, self._lasted_s())
            why = f"{what}: it ended within {watching.LASTED_S:.0f} s"
        failures = self._state.failures
        if failures == 2:
            self._log.warning("watch_trouble", kind=self._kind.__name__, error=why, consequence="tried again")
        return pause_s(failures) if failures else 0.0

    def _refused(self, code: int, why: str) -> str:
        if code not in (404, 410):  # there is nothing to be heard of, or it is heard by the list that comes next
            self._hearing.lost(time.monotonic())
        self._state = watching.refused(self._state, code, self._lasted_s())
        return why

    def _lasted_s(self) -> float:
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s

    async def _list(self) -> None:
        names, more, most = set[str](), "", self._page
        while True:
            response = await self._ask({"limit": str(most), **({"continue": more} if more else {})})
            async with aclosing(response), timeout(ANSWER_S):
                body = await _body(response)
            if body is None and most > 1:  # one object may have 9 MiB of JSON, of 1.5 MiB that etcd keeps of it
                most //= 2
                continue
            if body is None:
                raise Trouble(f"list of {self._kind.__name__}: one object has more than {MAX_PAGE_BYTES} bytes")
            page = watching.read_page(body, self._kind)
            for item in page.items:
                names.add(item.name)
                await self._hear(item)
            if not (more := page.more):
                break
            most = watching.next_limit(most, self._page, len(body), MAX_PAGE_BYTES)
        self._listed(names)
        self._state = watching.listed(self._state, page.version)

    async def _watch(self) -> None:
        response = await self._ask(watching.asked(self._state, random.random()))
        self._began_s = time.monotonic()
        self._hearing.reached(self._began_s)
        async with aclosing(response):
            lines, chunks = LineReader(), aiter(response.aiter_bytes())
            while True:
                try:
                    async with timeout(SILENCE_S):
                        chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise Trouble(
                        f"watch of {self._kind.__name__}: it has said nothing for {SILENCE_S:.0f} s"
                    ) from None
                for line in lines.feed(chunk):
                    item = watching.read_event(line, self._kind)
                    await self._hear(item)
                    self._state = watching.happened(self._state, item, self._lasted_s())

    async def _ask(self, query: Mapping[str, str]) -> httpx2.Response:
        """An answer that has begun, and is no error.

        lightkube's own watch asks again at once when an answer ends, for ever, and nobody learns of it.
        """
        request = self._client.prepare_request("list", res=self._kind, params={**self._query, **query})
        request.timeout = httpx2.Timeout(CONNECT_S, read=None)
        async with timeout(ANSWER_S):
            response: httpx2.Response = await self._client.send(
                self._client.build_adapter_request(request), stream=True
            )
            if response.is_error:
                async with aclosing(response):
                    await response.aread()
                self._client.raise_for_status(response)  # with the words of the API server
        return response

    async def _hear(self, item: Item[T]) -> None:
        if self._unread.is_news(item):
            self._log.warning(
                "object_unreadable",
                kind=self._kind.__name__,
                name=item.name,
                error=item.problem,
                consequence="left out: what was read of it last holds",
            )
        self._changed(item)
        await sleep(0)  # what has come at once is not worked off at once


async def _body(response: httpx2.Response) -> bytearray | None:
    """What the answer says; None: that is more than `MAX_PAGE_BYTES`."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_PAGE_BYTES:
            return None
    return body
