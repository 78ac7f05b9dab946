"""Asks a running criproxy at its status socket; an answer is believed only of root, or of our own user."""

import contextlib
import json
import math
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any, Final, NoReturn

_CREDENTIALS: Final = struct.Struct("3i")
"""Source: unix(7), SO_PEERCRED: pid, uid, gid."""

_MAX_BYTES: Final = 16 * 1024 * 1024
"""The status of a node with 500 offline pods has a quarter of a megabyte, its history a half."""

_MOST_DIGITS: Final = 32
_READ_BYTES: Final = 64 * 1024


class AskError(Exception):
    """There is no answer. `exit_status`: with which `criproxy status` ends."""

    exit_status: int


class NotRunningError(AskError):
    """Nobody answers at the socket."""

    exit_status = 3


class NotAllowedError(AskError):
    """This user may not ask."""

    exit_status = 5


class NotCriproxyError(AskError):
    """The answer is not to be trusted, or is another one than requested."""

    exit_status = 4


class BusyError(AskError):
    """It is criproxy, and it can't answer this now."""

    exit_status = 1


def ask(path: Path, question: str, timeout_s: float) -> str:
    """The body of the answer to a GET of `question`, at the socket `path`.

    Raises NotRunningError, NotAllowedError, BusyError or NotCriproxyError, which name the socket and the remedy.
    """
    status, body = fetch(path, question, timeout_s)
    if status == 503:
        raise BusyError(f"{path} can't answer {question} now: {body.strip()[:200]}")
    if status != 200:
        raise NotCriproxyError(f"{path} answers {status} to {question}: {body.strip()[:200]}; its log may say more")
    return body


def read_json(text: str) -> Any:
    """An answer as a value. Raises ValueError for what is no JSON, nested too deeply, or has a number that is none."""
    try:
        return json.loads(text, parse_float=_float, parse_int=_int, parse_constant=_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _float(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _constant(text)


def _int(text: str) -> int:
    return int(text) if len(text) <= _MOST_DIGITS else _constant(text)


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text[:_MOST_DIGITS]} is no number that criproxy answers with")


def command(path: Path, words: str, timeout_s: float) -> str:
    """Have what `words` say done by a POST at the socket `path`; returns what was done, in words.

    Raises as `ask` does, and ValueError when they make no sense.
    """
    status, body = fetch(path, words, timeout_s, method="POST")
    said = body.strip()[:1000]
    if status == 400:
        raise ValueError(said)
    if status == 503:
        raise BusyError(f"{path} can't do it now: {said}")
    if status != 200:
        raise NotCriproxyError(f"{path} answers {status} to {words}: {said}; is that criproxy older than this one?")
    return said


def fetch(path: Path, question: str, timeout_s: float, method: str = "GET") -> tuple[int, str]:
    """The status and body. Raises as `ask` does."""
    end_s = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.settimeout(timeout_s)
            connection.connect(os.fspath(path))
            pid, uid = peer(connection)
            if uid not in (0, os.geteuid()):
                raise NotCriproxyError(
                    f"{path} is of user {uid} (pid {pid}), not of root's criproxy: it is not believed"
                )
            connection.sendall(f"{method} {question} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = _read(connection, end_s)
            if len(answer) > _MAX_BYTES:
                raise NotCriproxyError(
                    f"{path} answers with more than {_MAX_BYTES >> 20} MiB: is another program there?"
                )
            return _parsed(path, answer)
        except PermissionError as error:
            raise NotAllowedError(f"{path}: {error.strerror}: only root may ask: run this as root") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise NotRunningError(
                f"no criproxy answers at {path} ({reason}): is it running, with the proxy.listen of this config file?"
            ) from error


def peer(connection: socket.socket) -> tuple[int, int]:
    """The pid and user of the process that began to listen there, whoever accepts. Raises OSError."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def _read(connection: socket.socket, end_s: float) -> bytes:
    """All up to the end, or more than `_MAX_BYTES`. Raises OSError, also when it takes too long."""
    parts, size = [], 0
    while size <= _MAX_BYTES:
        connection.settimeout(max(0.001, end_s - time.monotonic()))
        try:
            part = connection.recv(_READ_BYTES)
        except TimeoutError:
            raise TimeoutError("no answer in time") from None
        if not part:
            break
        parts.append(part)
        size += len(part)
    if not size:
        raise ConnectionError("it ended without an answer")
    return b"".join(parts)


def _parsed(path: Path, answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    with contextlib.suppress(ValueError, IndexError):
        if words[0].startswith(b"HTTP/1."):
            return int(words[1]), body.decode()
    raise NotCriproxyError(f"{path} does not answer like criproxy: is another program there?")
