"""The one way to clean up: each step is done, whatever one of them raises, and a cancel is passed on at the end."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Final

from structlog.typing import FilteringBoundLogger

CleaningStep = tuple[str, Callable[[], object]]
"""What a step does, in words, and the function, or coroutine function, that does it."""


STRAY: Final = "it was cancelled, though nobody has cancelled it"


def is_cancelled() -> bool:
    """Whether somebody cancels the task that asks. A CancelledError without that is a fault of what was awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def done_all(log: FilteringBoundLogger, *steps: CleaningStep) -> None:
    """Do each of these, in order. What one of them raises is logged, and keeps no other from being done.

    A cancel ends the step that is under way; it is raised once the steps after it are done. So cleaning up replaces no
    cancel, and whoever cleans up on the way of one need not care.
    """
    cancel: asyncio.CancelledError | None = None
    for what, step in steps:
        try:
            done = step()
            if inspect.isawaitable(done):
                await done
        except asyncio.CancelledError as error:
            if is_cancelled():
                cancel = error
            else:
                log.error("cleaning_up_failed", step=what, error=STRAY)
        except Exception as error:
            log.error("cleaning_up_failed", step=what, error=str(error) or type(error).__name__, exc_info=error)
    if cancel is not None:
        raise cancel
