"""A loose guard: a text that anybody may write costs what its length says, not the square of that."""

import contextlib
import time
from collections.abc import Callable
from typing import Final

LONGEST: Final = 64 * 1024
"""Characters of the texts that are tried. A pattern that is quadratic in them takes minutes."""

_MOST_S: Final = 0.05


def assert_cheap(job: Callable[[], object]) -> None:
    """What `job` costs in CPU time of its thread, whether it raises ValueError or not, is next to nothing."""
    began_s = time.thread_time()
    with contextlib.suppress(ValueError):
        job()
    assert time.thread_time() - began_s <= _MOST_S
