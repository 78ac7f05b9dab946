"""What the daemon imports only after it serves, so that it serves soon; but then all of it, so that nothing is left.

An upgrade of the package removes this version's files while this process still finishes its calls.
"""

import importlib
from typing import Final

from criproxy import lean

MODULES: Final = (
    "criproxy.attach.seen",
    "jeepney",
    "jeepney.bus",
    "jeepney.bus_messages",
    "jeepney.io.blocking",
)
"""What functions of the daemon import. The standard library is not ours, and stays."""


def load() -> None:
    for name in MODULES:
        importlib.import_module(name)
    lean.trim()
