"""What each path answers: over TCP, for everybody on this machine; at the status socket, for root.

| path | TCP | status socket |
|---|---|---|
| / | a line or two, without pods' names | the same |
| /metrics, /healthz, /readyz | yes; metrics up to a second old | yes, as they are now |
| /status | where it is; with observe.pod_names the answer, up to a second old | yes, as it is now |
| /why | where it is | yes |
| POST /hold-off?of=&seconds=&reason=, POST /release?of= | no | done before the answer |

An answer that reads files of others (kubelet's, a disk's) is made in a thread: no call waits for it.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import parse_qs

from msgspec import Struct, field

from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.worker import StuckError, Worker
from criproxy.observe import why
from criproxy.observe.http import Answer
from criproxy.observe.report import Reporter
from criproxy.observe.status import to_json

METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
JSON: Final = "application/json"

PUBLIC_S: Final = 5.0
PRIVATE_S: Final = 15.0
"""What a client has for all of its connection; on a node that is starved, a status takes long."""

_RECENT_S: Final = 1.0
_EVERY_S: Final = 0.1
_BUILD_S: Final = 10.0
"""Less than root's client waits, so that it gets an answer."""

_PATHS: Final = "/metrics /healthz /readyz"


class TakesHoldOffs(Protocol):
    """Where an operator's commands end. `of` is "box", or a pod's namespace/name, name or uid.

    Both return what was done, in words. They raise ValueError for what makes no sense, and OSError or CgroupError for
    what can't be done now; then nothing has changed.
    """

    async def hold(self, of: str, seconds: float, reason: str) -> str: ...

    async def release(self, of: str) -> str: ...


class Routes:
    """`public` answers over TCP, `private` at the socket `private_path`. `pod_names`: TCP has /status as well.

    `obey` does what root asks for there.

    The reporter's `status` and `why` are called from a thread, the others from the event loop.
    """

    def __init__(
        self,
        reporter: Reporter,
        private_path: Path,
        *,
        pod_names: bool,
        hold_offs: TakesHoldOffs,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reporter = reporter
        self._pod_names = pod_names
        self._hold_offs = hold_offs
        self._clock = clock
        self._moved = f"ask at {private_path}, as root: `criproxy status`, or curl --unix-socket {private_path} "
        self._worker: Worker | None = None
        with contextlib.suppress(RuntimeError):  # it is tried again when there is a question
            self._worker = self._thread()
        self._status = _Shared(self._build_status, clock)
        self._recent: dict[str, tuple[float, Answer]] = {}
        """The last answer to a path, and when it was made."""

    async def public(self, path: str, query: str) -> Answer:
        match path:
            case "/metrics":
                return self._of_late(path) or self._built_metrics()
            case "/status" if self._pod_names:
                return self._of_late(path) or await self._status.get()
            case "/status" | "/why":
                return Answer.text(HTTPStatus.GONE, f"{self._moved}http://localhost{path}")
        return self._common(path, _PATHS)

    async def private(self, path: str, query: str) -> Answer:
        match path:
            case "/metrics":
                return self._built_metrics()
            case "/status":
                return await self._status.get()
            case "/why":
                return await self._why(query)
        return self._common(path, f"{_PATHS} /status /why")

    async def obey(self, path: str, query: str) -> Answer:
        asked = {name: values[-1] for name, values in parse_qs(query).items()}
        of = asked.get("of", "")
        try:
            if path == "/hold-off":
                done = await self._hold_offs.hold(of, float(asked.get("seconds", "nan")), asked.get("reason", ""))
            elif path == "/release":
                done = await self._hold_offs.release(of)
            else:
                return Answer.text(HTTPStatus.NOT_FOUND, "POST takes /hold-off and /release")
        except ValueError as error:
            return Answer.text(HTTPStatus.BAD_REQUEST, str(error))
        except (OSError, CgroupError) as error:
            return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return Answer.text(HTTPStatus.OK, done)

    def _common(self, path: str, paths: str) -> Answer:
        match path:
            case "/":
                return Answer.text(HTTPStatus.OK, f"{self._reporter.page()}\n{paths}")
            case "/healthz":
                return _probe(self._reporter.unhealthy())
            case "/readyz":
                return _probe(self._reporter.unready())
        return Answer.text(HTTPStatus.NOT_FOUND, paths)

    def _built_metrics(self) -> Answer:
        answer = Answer(HTTPStatus.OK, METRICS, self._reporter.metrics())
        self._recent["/metrics"] = self._clock(), answer
        return answer

    def _of_late(self, path: str) -> Answer | None:
        made_s, answer = self._recent.get(path, (-math.inf, None))
        return answer if self._clock() - made_s < _RECENT_S else None

    async def _build_status(self) -> Answer:
        answer = await self._aside(lambda: Answer(HTTPStatus.OK, JSON, to_json(self._reporter.status()).encode()))
        if answer.status is HTTPStatus.OK:
            self._recent["/status"] = self._clock(), answer
        return answer

    async def _why(self, query: str) -> Answer:
        """`?at=SECONDS`, since 1970, for another moment than now."""
        try:
            at_s = [float(value) for value in parse_qs(query).get("at", ())]
        except ValueError:
            at_s = [math.nan]
        if len(at_s) > 1 or not all(math.isfinite(moment) for moment in at_s):
            return Answer.text(HTTPStatus.BAD_REQUEST, "at is a moment in seconds since 1970")
        asked_s = at_s[0] if at_s else None
        return await self._aside(lambda: Answer(HTTPStatus.OK, JSON, why.to_json(self._reporter.why(asked_s)).encode()))

    async def _aside(self, build: Callable[[], Answer]) -> Answer:
        """What `build` makes, in a thread."""
        try:
            worker = self._thread()
        except RuntimeError as error:
            return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}: ask again later")
        try:
            return await worker.run("make the answer", build)
        except StuckError as error:
            return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}: a file that it reads hangs")

    def _thread(self) -> Worker:
        """Raises RuntimeError while the machine has none left."""
        if self._worker is None:
            self._worker = Worker("observe", _BUILD_S)
        return self._worker


class _Shared(Struct):
    """One answer for all who wait for it, begun after the last of them has asked; at most ten a second."""

    build: Callable[[], Awaitable[Answer]]
    clock: Callable[[], float]
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _not_before_s: float = -math.inf
    _next: asyncio.Task[Answer] | None = None

    async def get(self) -> Answer:
        if self._next is None:
            self._next = asyncio.create_task(self._begin())
        return await asyncio.shield(self._next)

    async def _begin(self) -> Answer:
        async with self._turn:
            await asyncio.sleep(max(0.0, self._not_before_s - self.clock()))
            self._next = None
            self._not_before_s = self.clock() + _EVERY_S
            return await self.build()


def _probe(problem: str | None) -> Answer:
    if problem is None:
        return Answer.text(HTTPStatus.OK, "ok")
    return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, problem)
