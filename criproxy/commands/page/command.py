"""`criproxy page`: serves the page until Ctrl-C, or saves it."""

import functools
import os
import sys
import time
from pathlib import Path
from typing import Final

from criproxy.commands.page.document import document
from criproxy.commands.page.facts import facts
from criproxy.commands.page.server import HOST, PageServer, host_name

_FOR_OWNER: Final = 0o600
"""It has pods' names."""


def save(socket: Path, file: Path) -> str:
    """Write the page with its data inside; returns what was done, in words. Raises as `facts` does, and OSError."""
    page, _ = document(host_name(), facts(socket))
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(file, flags, _FOR_OWNER), "w", encoding="utf-8") as out:
        out.write(page)
    return f"{file}: {len(page.encode()) / 1e6:.2f} MB, with names of pods; it opens in any browser, without a network"


def serve(socket: Path) -> None:
    """Until Ctrl-C. Raises as `facts` does while there is nothing to show yet, and OSError."""
    facts(socket, since_s=time.time())
    page, policy = document(host_name())
    with PageServer(page, policy, functools.partial(facts, socket)) as server:
        sys.stdout.write(
            f"{server.url}\n"
            f"On another machine, run ssh -L {server.port}:{HOST}:{server.port} root@{host_name()}\n"
            "and open the same address there. Who has it sees names of pods. Ctrl-C ends it.\n"
        )
        sys.stdout.flush()
        server.serve_forever()
