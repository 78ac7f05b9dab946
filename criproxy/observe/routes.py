"""What each path answers: over TCP, for everybody on this machine; at the status socket, for root. Over the network,
it is as over TCP (`criproxy.observe.remote`), but /status is never there.

| path | TCP | status socket |
|---|---|---|
| / | a line or two, without pods' names | the same |
| /metrics, /healthz, /readyz | yes; metrics up to a second old | yes, as they are now |
| /status | where it is; with observe.pod_names the answer, up to a second old | yes, as it is now |
| /why, /history | where it is | yes |
| POST /hold-off?of=&seconds=&reason=, POST /release?of= | no | done before the answer |

An answer that reads files of others (kubelet's, a disk's) is made in a thread: no call waits for it.
"""

import asyncio
import math
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import parse_qs

from msgspec import Struct, field

from criproxy.cgroup.driver import CgroupError
from criproxy.concurrency.clock import Clock
from criproxy.concurrency.worker import StuckError, Worker
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
"""At most ten statuses a second are made."""

_BUILD_S: Final = 10.0
"""Less than root's client waits, so that it gets an answer."""

_JUDGE_S: Final = 1.0
"""For what of the metrics is made in a thread; a scrape comes without it after that."""

_JUDGED_EVERY_S: Final = 5.0
"""It takes 5 ms of a core to look for kubelet, whoever asks for metrics all the time."""

_NEVER: Final = (-math.inf, Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, ""))

_PATHS: Final = "/metrics /healthz /readyz"


class TakesHoldOffs(Protocol):
    """Where an operator's commands end. `of` is "box", or a pod's namespace/name, name or uid.

    Both return what was done, in words. They raise ValueError for what makes no sense, and OSError or CgroupError for
    what can't be done now; then nothing has changed.
    """

    async def hold(self, of: str, seconds: float, reason: str) -> str: ...

    async def release(self, of: str) -> str: ...


class Routes(Struct, eq=False):
    """`public` answers over TCP, `private` at the socket `private_path`. `pod_names`: TCP has /status as well.

    `obey` does what root asks for there. The reporter's `status` and `why` are called from a thread, the others from
    the event loop. `_last`: by path, when the last answer was begun, and that answer.
    """

    reporter: Reporter
    private_path: Path
    pod_names: bool
    hold_offs: TakesHoldOffs
    clock: Clock
    _worker: Worker = field(default_factory=lambda: Worker("observe", _BUILD_S))
    _judging: Worker = field(default_factory=lambda: Worker("observe-metrics", _JUDGE_S))
    _judged_s: float = -math.inf
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _last: dict[str, tuple[float, Answer]] = {}

    async def public(self, path: str, query: str) -> Answer:
        match path:
            case "/metrics":
                begun_s, answer = self._last.get(path, _NEVER)
                return answer if self.clock.monotonic_s() - begun_s < _RECENT_S else await self._metrics()
            case "/status" if self.pod_names:
                return await self._status(self.clock.monotonic_s() - _RECENT_S)
            case "/status" | "/why" | "/history":
                words = f"ask at {self.private_path}, as root: `criproxy status`, or curl --unix-socket"
                return Answer.text(HTTPStatus.GONE, f"{words} {self.private_path} http://localhost{path}")
        return self._common(path, _PATHS)

    async def remote(self, path: str, query: str) -> Answer:
        """Over the network, for who has shown that it may ask."""
        if path == "/metrics":
            return await self.public(path, query)
        return self._common(path, _PATHS)

    async def private(self, path: str, query: str) -> Answer:
        match path:
            case "/metrics":
                return await self._metrics()
            case "/status":
                return await self._status(self.clock.monotonic_s())
            case "/why":
                return await self._why(query)
            case "/history":
                return await self._history(query)
        return self._common(path, f"{_PATHS} /status /why /history")

    async def obey(self, path: str, query: str) -> Answer:
        asked = {name: values[-1] for name, values in parse_qs(query).items()}
        of = asked.get("of", "")
        try:
            if path == "/hold-off":
                done = await self.hold_offs.hold(of, float(asked.get("seconds", "nan")), asked.get("reason", ""))
            elif path == "/release":
                done = await self.hold_offs.release(of)
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
                return Answer.text(HTTPStatus.OK, f"{self.reporter.page()}\n{paths}")
            case "/healthz":
                return _probe(self.reporter.unhealthy())
            case "/readyz":
                return _probe(self.reporter.unready())
        return Answer.text(HTTPStatus.NOT_FOUND, paths)

    async def _metrics(self) -> Answer:
        if self.clock.monotonic_s() - self._judged_s >= _JUDGED_EVERY_S:
            self._judged_s = self.clock.monotonic_s()
            try:
                await self._judging.run("judge how criproxy is", self.reporter.judge)
            except StuckError:
                self.reporter.not_judged()
        answer = Answer(HTTPStatus.OK, METRICS, self.reporter.metrics())
        self._last["/metrics"] = self.clock.monotonic_s(), answer
        return answer

    async def _status(self, since_s: float) -> Answer:
        """One that was begun then or later. Who waits shares it with all who came before it was begun."""
        async with self._turn:
            begun_s, answer = self._last.get("/status", _NEVER)
            if begun_s < since_s:
                await asyncio.sleep(max(0.0, begun_s + _EVERY_S - self.clock.monotonic_s()))
                begun_s = self.clock.monotonic_s()
                answer = await self._aside(lambda: to_json(self.reporter.status()))
                if answer.status is HTTPStatus.OK:
                    self._last["/status"] = begun_s, answer
            return answer

    async def _why(self, query: str) -> Answer:
        """`?at=SECONDS`, since 1970, for another moment than now."""
        try:
            asked_s = _moment(query, "at")
        except ValueError as error:
            return Answer.text(HTTPStatus.BAD_REQUEST, str(error))
        return await self._aside(lambda: why.to_json(self.reporter.why(asked_s)))

    async def _history(self, query: str) -> Answer:
        """`?since=SECONDS`, since 1970, for what is newer alone."""
        try:
            since_s = _moment(query, "since")
        except ValueError as error:
            return Answer.text(HTTPStatus.BAD_REQUEST, str(error))
        return await self._aside(lambda: self.reporter.past(-math.inf if since_s is None else since_s))

    async def _aside(self, build: Callable[[], str]) -> Answer:
        """The JSON that `build` makes, in a thread."""
        try:
            return Answer(HTTPStatus.OK, JSON, (await self._worker.run("make the answer", build)).encode())
        except StuckError as error:
            return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}: a file that it reads hangs")


def _moment(query: str, name: str) -> float | None:
    """None: it is not asked for. Raises ValueError, which says what it is."""
    try:
        found = [float(value) for value in parse_qs(query).get(name, ())]
    except ValueError:
        found = [math.nan]
    if len(found) > 1 or not all(math.isfinite(moment) for moment in found):
        raise ValueError(f"{name} is a moment in seconds since 1970")
    return found[0] if found else None


def _probe(problem: str | None) -> Answer:
    if problem is None:
        return Answer.text(HTTPStatus.OK, "ok")
    return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, problem)
