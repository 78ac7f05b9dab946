"""`criproxy upgrade`: have the running criproxy start the one that is installed now, and wait for that to take over."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from criproxy.fronts.http2 import codes
from criproxy.fronts.http2.client.connection import CallError, Connection
from criproxy.observe import client
from criproxy.observe.status import Status, from_json

_LIMIT_S: Final = 90.0
"""Longer than the old process waits for the new one, so that its word on it is heard."""

_ANSWER_S: Final = 10.0
_POLL_S: Final = 0.05
_ANSWERS_S: Final = 3.0
_VERSION: Final = "/runtime.v1.RuntimeService/Version"
_UNANSWERED: Final = (codes.UNAVAILABLE, codes.DEADLINE_EXCEEDED)


class NotUpgradedError(Exception):
    """Why there is no new process; the message says what to do."""


class Upgraded(Struct, frozen=True):
    """From process `old` to `new`, which answers since `seconds` after it was asked for. Versions: "": not known."""

    old: int
    old_version: str
    new: int
    new_version: str
    seconds: float

    def __str__(self) -> str:
        return (
            f"criproxy {self.old_version}, pid {self.old} -> {self.new_version}, pid {self.new}: took over in "
            f"{self.seconds:.1f} s; pid {self.old} finishes its calls"
        )


class Upgrader:
    """Has the criproxy that serves at `listen` upgraded, whose status is asked for at the socket `asked_at`."""

    def __init__(self, listen: Path, asked_at: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._listen = listen
        self._asked_at = asked_at
        self._clock = clock

    def upgrade(self) -> Upgraded:
        """Raises NotUpgradedError."""
        started_s = self._clock()
        before = self._status()
        old = self._pid()
        if old is None:
            raise NotUpgradedError(self._why_nobody_serves(before))
        if not _takes_the_signal(old):
            raise NotUpgradedError(f"pid {old} is of a version that can't hand over: restart criproxy")
        os.kill(old, signal.SIGUSR2)
        new = self._successor(old, before.upgrade.failed if before else 0)
        self._await_answer(new)
        after = self._status()
        return Upgraded(
            old,
            before.version if before else "",
            new,
            after.version if after and after.pid == new else "",
            self._clock() - started_s,
        )

    def _pid(self) -> int | None:
        """Who serves now; None: nobody, or no criproxy."""
        try:
            target = os.readlink(self._listen)
        except OSError:
            return None
        named = re.fullmatch(re.escape(self._listen.name) + r"\.(\d+)", target)
        return int(named[1]) if named and int(named[1]) == _listener(self._listen) else None

    def _why_nobody_serves(self, status: Status | None) -> str:
        if status is None:
            return (
                f"no criproxy serves at {self._listen}: start it; where proxy.listen has changed since it started, "
                "restart it, and kubelet with its new endpoint"
            )
        return (
            f"pid {status.pid} does not serve at {self._listen}: has proxy.listen changed since it started? Restart "
            "criproxy, and kubelet with its new endpoint"
        )

    def _successor(self, old: int, failed: int) -> int:
        for _ in self._polls(_LIMIT_S):
            if (new := self._pid()) not in (None, old):
                assert new is not None
                return new
            status = self._status()
            if status is not None and status.pid == old and status.upgrade.failed > failed:
                raise NotUpgradedError(f"pid {old} goes on: {status.upgrade.problem}")
            if not Path(f"/proc/{old}").exists():
                raise NotUpgradedError(f"pid {old} has ended, and no other serves at {self._listen}: see its log")
        raise NotUpgradedError(f"pid {old} still serves after {_LIMIT_S:g} s: see its log")

    def _await_answer(self, new: int) -> None:
        error: OSError | None = None
        for _ in self._polls(_ANSWER_S):
            try:
                asyncio.run(_ask_version(self._listen))
            except OSError as failure:
                if isinstance(failure, CallError) and failure.code not in _UNANSWERED:
                    return
                error = failure
            else:
                return
        raise NotUpgradedError(f"pid {new} has taken over, and the runtime does not answer through it: {error}")

    def _status(self) -> Status | None:
        with contextlib.suppress(*client.ERRORS, ValueError):
            return from_json(client.ask(self._asked_at, "/status", _ANSWERS_S))
        return None

    def _polls(self, limit_s: float) -> Iterator[None]:
        end_s = self._clock() + limit_s
        while self._clock() < end_s:
            yield
            time.sleep(_POLL_S)


async def _ask_version(socket: Path) -> None:
    async with await Connection.dial(socket) as connection:
        await connection.call(_VERSION, b"", _ANSWER_S)


def _listener(path: Path) -> int | None:
    """The process that listens at a unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_ANSWERS_S)
        try:
            probe.connect(str(path))
            return client.peer(probe)[0]
        except OSError:
            return None


def _takes_the_signal(pid: int) -> bool:
    """Whether it handles SIGUSR2, which would end it otherwise. Source: proc(5), SigCgt."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGUSR2 - 1) & 1)
