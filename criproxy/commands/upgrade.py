"""`criproxy upgrade`: have the running criproxy start the one that is installed now, and wait for that to take over."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from criproxy.clients.http2.connection import CallError
from criproxy.clients.link import version_at
from criproxy.commands.attach.edits import NodeError
from criproxy.commands.attach.host import Host, Machine
from criproxy.config import Loaded
from criproxy.fronts.http2.codes import Code
from criproxy.observe import client
from criproxy.observe.status import Status, from_json

_LIMIT_S: Final = 210.0
"""Longer than the old process waits for the new one, so that its word on it is heard."""

_ANSWER_S: Final = 10.0
_BEFORE_S: Final = 10.0
"""How long the old process is asked for its status before it is signalled: a failure of an earlier upgrade stays there.
"""

_POLL_S: Final = 0.05
_ANSWERS_S: Final = 3.0
_UNANSWERED: Final = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)


class NotUpgradedError(Exception):
    """Why there is no new process; the message says what to do."""

    exit_status = 1


class UpgradeRefusedError(NotUpgradedError):
    """The old process goes on well, and a restart would harm the node."""

    exit_status = 6


class SilentRuntimeError(NotUpgradedError):
    """The new process has taken over, and the runtime does not answer through it."""

    exit_status = 7


def run(loaded: Loaded, *, of_service: bool) -> str:
    """Have the criproxy upgraded that a config is of; says what came of it.

    `of_service`: where nobody serves at its proxy.listen, that is criproxy.service, which has served elsewhere since
    before the file was changed. Raises NotUpgradedError.
    """
    listen = wanted = Path(loaded.config.proxy.listen_path)
    if of_service and _pid(wanted) is None:
        listen = _listen_of_service() or wanted
    proxy = replace(loaded.config.proxy, listen=str(listen))
    try:
        return upgrade(listen, Path(proxy.status_path))
    except (UpgradeRefusedError, SilentRuntimeError):
        raise
    except NotUpgradedError as error:
        if _pid(listen) is None:
            raise
        if loaded.errors:
            raise UpgradeRefusedError(
                f"{error}; a restart would place no pod, as the config has errors: correct it (`criproxy check`)"
            ) from error
        if listen != wanted:
            raise UpgradeRefusedError(
                f"{error}; a restart would serve at {wanted}, where no client of {listen} would find it"
            ) from error
        raise


def upgrade(listen: Path, asked_at: Path) -> str:
    """Have the criproxy that serves at `listen` upgraded, which gives its status at `asked_at`; says what came of it.

    Raises NotUpgradedError.
    """
    started_s = time.monotonic()
    before, old = _status(asked_at), _pid(listen)
    if old is None:
        found = (
            f"pid {before.pid} does not serve at {listen}:" if before else f"no criproxy serves at {listen}: start it;"
        )
        raise NotUpgradedError(
            f"{found} where proxy.listen has changed since it started, restart it, and kubelet with its new endpoint"
        )
    if not _takes_the_signal(old):
        raise NotUpgradedError(f"pid {old} is of a version that can't hand over: restart criproxy")
    before = before or next(filter(None, (_status(asked_at) for _ in _polls(_BEFORE_S))), None)
    os.kill(old, signal.SIGUSR2)
    new = _successor(listen, asked_at, old, before.upgrade.failed if before and before.pid == old else None)
    _await_answer(listen, new)
    after = _status(asked_at)
    old_version, new_version = before.version if before else "", after.version if after and after.pid == new else ""
    return (
        f"criproxy {old_version}, pid {old} -> {new_version}, pid {new}: took over in "
        f"{time.monotonic() - started_s:.1f} s; pid {old} finishes its calls"
    )


def _listen_of_service() -> Path | None:
    """Where the main process of criproxy.service serves; None: systemd has none, or it does not serve."""
    try:
        pid = Host(Machine()).unit("criproxy.service").pid
        sockets = os.fsdecode(Path(f"/proc/{pid}/net/unix").read_bytes())
    except (NodeError, OSError, ValueError):
        return None
    named = re.finditer(rf"\s(/.*)\.{pid}$", sockets, re.MULTILINE)
    return next((listen for found in named if _pid(listen := Path(found[1])) == pid), None)


def _pid(listen: Path) -> int | None:
    """Who serves now; None: nobody, or no criproxy."""
    try:
        target = os.readlink(listen)
    except OSError:
        return None
    named = re.fullmatch(re.escape(listen.name) + r"\.(\d+)", target)
    return int(named[1]) if named and int(named[1]) == _listener(listen) else None


def _successor(listen: Path, asked_at: Path, old: int, failed: int | None) -> int:
    """`failed`: how many upgrades had failed before; None: the first answer says it."""
    for _ in _polls(_LIMIT_S):
        has_ended = not Path(f"/proc/{old}").exists()  # before it ends, another serves
        new = _pid(listen)
        if new is not None and new != old:
            return new
        if has_ended:
            raise NotUpgradedError(f"pid {old} has ended, and no other serves at {listen}: see its log")
        status = _status(asked_at)
        if status is None or status.pid != old:
            continue
        failed = status.upgrade.failed if failed is None else failed
        if status.upgrade.failed > failed:
            kind = UpgradeRefusedError if status.upgrade.refused else NotUpgradedError
            raise kind(f"pid {old} goes on: {status.upgrade.problem}")
    raise NotUpgradedError(f"pid {old} still serves after {_LIMIT_S:g} s: see its log")


def _await_answer(listen: Path, new: int) -> None:
    error: OSError | None = None
    for _ in _polls(_ANSWER_S):
        try:
            asyncio.run(version_at(listen, _ANSWER_S))
            return
        except OSError as failure:
            if isinstance(failure, CallError) and failure.code not in _UNANSWERED:
                return
            error = failure
    raise SilentRuntimeError(f"pid {new} has taken over, and the runtime does not answer through it: {error}")


def _status(asked_at: Path) -> Status | None:
    with contextlib.suppress(client.AskError, ValueError):
        return from_json(client.ask(asked_at, "/status", _ANSWERS_S))
    return None


def _polls(limit_s: float) -> Iterator[None]:
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        yield
        time.sleep(_POLL_S)


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
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return False
    caught = re.search(rb"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGUSR2 - 1) & 1)
