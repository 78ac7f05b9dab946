"""What may go wrong with a request to the API server, as one exception with words; and how long to wait then."""

import random
import socket
import struct
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import httpx2
import msgspec
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError, LoadResourceError
from lightkube.types import PatchType
from structlog.typing import FilteringBoundLogger

FORBIDDEN, NOT_FOUND, CONFLICT = 403, 404, 409
"""Of `Trouble.code`."""

FIRST_PAUSE_S: Final = 0.5
MOST_PAUSE_S: Final = 30.0
REFUSED_S: Final = 10.0
MOST_REFUSED_S: Final = 120.0
FORGOTTEN_S: Final = 60.0

_SOCKET: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
    (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)),
)
"""A peer that is gone without a word is noticed within a minute. What was not sent when a connection is closed never
is: a write that was given up must not arrive when a broken network is whole again. Source: tcp(7), socket(7).
"""


def prepare(client: AsyncClient) -> None:
    """Its connections are made so from now on. lightkube has no setting for it beside a transport of one's own."""
    inner: Any = client._client._client
    pool = getattr(inner._transport, "_pool", None)
    if pool is not None:
        pool._socket_options = _SOCKET


LONGEST_WORDS: Final = 1000
"""Characters of what the API server says of an object: it may quote it, and so whatever its author has written."""


class Trouble(Exception):
    """Something could not be read or written. `code` is the API server's; 0: it did not answer."""

    def __init__(self, words: str, code: int = 0) -> None:
        super().__init__(words)
        self.code: Final = code

    @property
    def concerns_all(self) -> bool:
        """Whether other objects would fare no better: no answer, no right, or a server that can't now."""
        has_no_right = self.code == 403 and "is forbidden: User " in str(self)  # a webhook's has other words
        return has_no_right or self.may_be_done or self.code in (401, 429, 502, 503)

    @property
    def may_be_done(self) -> bool:
        """Whether what was asked for may be done all the same: only the answer is missing."""
        return self.code in (0, 504)


@contextmanager
def trouble_of(what: str) -> Iterator[None]:
    """Makes one kind of exception of all that a client raises."""
    try:
        yield
    except ApiError as error:
        said = str(error.status.message)[:LONGEST_WORDS]
        raise Trouble(f"{what}: {error.status.code} {said}", error.status.code or 0) from error
    except httpx2.HTTPStatusError as error:
        code = error.response.status_code
        raise Trouble(f"{what}: {code} from what is no API server", code) from error
    except (httpx2.HTTPError, OSError) as error:
        raise Trouble(f"{what}: the API server does not answer: {error!r}") from error
    # KeyError: without Content-Type
    except (msgspec.MsgspecError, ValueError, LoadResourceError, KeyError, RecursionError) as error:
        raise Trouble(f"{what}: the answer can't be read: {error}") from error


async def patch(
    client: AsyncClient,
    kind: Any,
    name: str,
    body: Any,
    patch_type: PatchType,
    *,
    what: str,
    namespace: str | None = None,
) -> None:
    """Write a part of an object, which is `what` to people. The answer is not read: it may hold anything.

    Raises Trouble.
    """
    inner: Any = client._client
    headers = {"Content-Type": patch_type.value}
    request = inner.prepare_request("patch", res=kind, name=name, namespace=namespace, obj=body, headers=headers)
    with trouble_of(what):
        inner.raise_for_status(await inner.send(inner.build_adapter_request(request)))


def pause_s(failures: int) -> float:
    """Seconds to wait after so many failures in a row, 1 or more: doubled each time, and half of it by chance."""
    grown_s = min(FIRST_PAUSE_S * 2.0 ** min(max(failures, 1) - 1, 30), MOST_PAUSE_S)
    return grown_s * (0.5 + 0.5 * random.random())


class HasProblem(Protocol):
    """What there is to be seen of something that is kept. `problem` "": all is well."""

    failures: int
    problem: str


class Attempts:
    """Attempts at one thing, again and again: after a failure, the next one waits for a pause that grows.

    `state` counts failures and has the problem as it is now. The log has `WHAT_trouble` for each other problem, and
    `WHAT_well_again` at its end, each with `fields`.
    """

    def __init__(
        self, state: HasProblem, log: FilteringBoundLogger, what: str, consequence: str, **fields: str
    ) -> None:
        self._state = state
        self._log = log
        self._what = what
        self._consequence = consequence
        self._fields = fields
        self._failures = 0
        """In a row."""
        self._next_s = 0.0

    @property
    def left_s(self) -> float:
        """Seconds until the next attempt is due."""
        return max(self._next_s - time.monotonic(), 0.0)

    def failed(self, error: Exception) -> None:
        self._failures += 1
        self._state.failures += 1
        self._next_s = time.monotonic() + pause_s(self._failures)
        self._say(str(error) if isinstance(error, Trouble) else repr(error))

    def done(self, problem: str = "") -> None:
        """`problem`: what is not well, though the attempt has not failed; "": nothing."""
        self._failures = 0
        self._say(problem)

    def forget(self) -> None:
        """What was, without a word."""
        self._failures, self._next_s, self._state.problem = 0, 0.0, ""

    def _say(self, problem: str) -> None:
        if problem and problem != self._state.problem:
            self._log.warning(f"{self._what}_trouble", **self._fields, error=problem, consequence=self._consequence)
        elif self._state.problem and not problem:
            self._log.info(f"{self._what}_well_again", **self._fields)
        self._state.problem = problem


class Refusals:
    """What the API server has refused of single objects, which are left alone for a while: none holds up another."""

    def __init__(self) -> None:
        self._pauses: dict[Hashable, tuple[float, float, str]] = {}
        """By object, how long it is left alone, until when, and why."""

    def __contains__(self, key: Hashable) -> bool:
        return key in self._pauses and time.monotonic() < self._pauses[key][1]

    def add(self, key: Hashable, trouble: Trouble) -> None:
        """Leaves the object alone, for twice as long as the last time. Raises `trouble` where it concerns others, too.

        No answer may come of this object alone, as of a webhook that hangs: another one is next.
        """
        if trouble.concerns_all and not trouble.may_be_done:
            raise trouble
        now_s = time.monotonic()
        before_s, _, _ = self._pauses.get(key, (REFUSED_S / 2, 0.0, ""))
        rests_s = min(before_s * 2, MOST_REFUSED_S)
        self._pauses[key] = rests_s, now_s + rests_s, str(trouble)
        if trouble.concerns_all:
            raise trouble

    def done(self, key: Hashable) -> None:
        self._pauses.pop(key, None)

    @property
    def problem(self) -> str:
        """Of the first that is refused still; "": none is. One that is not asked for any more is forgotten."""
        now_s = time.monotonic()
        self._pauses = {key: one for key, one in self._pauses.items() if now_s < one[1] + FORGOTTEN_S}
        return next((why for _, _, why in self._pauses.values()), "")
