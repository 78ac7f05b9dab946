"""What the daemon imports only after it serves, so that it serves soon; but then all of it, so that nothing is left.

An upgrade of the package removes this version's files while this process still finishes its calls.
"""

import asyncio
import contextlib
import importlib
from typing import Final

from criproxy.daemon import footprint
from criproxy.daemon.apart import run_apart
from criproxy.daemon.event_loop import EventLoop

MODULES: Final = (
    "criproxy.kubelet.evictionhard",
    "criproxy.kubelet.attachment",
    "criproxy.fronts.cri.cri_pb2",
    "jeepney",
    "jeepney.bus",
    "jeepney.bus_messages",
    "jeepney.io.blocking",
)
"""What functions of the daemon import. The standard library is not ours, and stays."""


_SOON_S: Final = 1.0
"""The first calls are not to share the interpreter with this."""


async def load_soon() -> None:
    """In a thread, a moment from now; then the event loop, too, is as it stays."""
    while True:
        await asyncio.sleep(_SOON_S)
        with contextlib.suppress(RuntimeError):  # the machine has no more threads
            await run_apart("late-imports", load)
            break
    if isinstance(loop := asyncio.get_running_loop(), EventLoop):
        loop.use_timerfd()


def load() -> None:
    for name in MODULES:
        importlib.import_module(name)
    footprint.settle()
