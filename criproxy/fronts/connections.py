"""The connections that this process has accepted at a unix socket, found among its file descriptors.

gRPC neither lists its connections nor closes them but by cancelling what comes meanwhile, which clients see as
CANCELLED: an end that says nothing of the server.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path


def cut(path: Path) -> None:
    """Break all connections to `path`: their clients' calls end with UNAVAILABLE."""
    for connection in accepted(path):
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def accepted(path: Path) -> Iterator[socket.socket]:
    """The open ones, each a duplicate that is closed when the next is taken."""
    for entry in os.listdir("/proc/self/fd"):
        try:
            descriptor = os.dup(int(entry))
        except OSError:  # the listing's own
            continue
        try:
            one = socket.socket(fileno=descriptor)
        except OSError:  # no socket
            os.close(descriptor)
            continue
        with one:
            if one.family is socket.AF_UNIX and _is_accepted(one, path):
                yield one


def _is_accepted(one: socket.socket, path: Path) -> bool:
    try:
        one.getpeername()  # a listening socket has none
    except OSError:
        return False
    name: object = one.getsockname()
    return name == str(path)
