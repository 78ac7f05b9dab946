"""The threads of the box: what may wait in the kernel is done there, and what of it hangs blinds nothing else."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, TypeVar

from criproxy.cgroup.driver import CgroupError
from criproxy.concurrency.worker import StuckError, Worker
from criproxy.concurrency.workers import Workers
from criproxy.model import AdmissionError

T = TypeVar("T")

_DISK_S: Final = 1.0


class BoxThreads:
    """What each thread does stands in the package's docstring, and what it may wait for in `concurrency.workers`."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.writer = workers["cgroup-writer"]
        self.reader = workers["cgroup-reader"]
        self.reclaimer = workers["cgroup-reclaimer"]

    def apart(self, name: str) -> Worker:
        """A thread of this name, which begins with its first use."""
        return self._workers[name]

    @property
    def timeouts(self) -> int:
        """How many calls have hung so far."""
        return self._workers.timeouts

    async def drained(self) -> None:
        """Wait until all requests so far are done, but for reclaim. What hangs at a disk is not waited for long.
        Raises StuckError.
        """
        await self._workers.drained("cgroup-writer", "cgroup-reader", "cgroup-killer", "cgroup-reaper")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISK_S):
                await self._workers.drained("cgroup-disks")

    def close(self) -> None:
        """End the threads, each after the jobs that wait for it."""
        self._workers.close()


async def for_request(what: str, job: Callable[[], None], worker: Worker, *, first: bool = False) -> None:
    """Do a job for a call of kubelet's. Raises AdmissionError."""
    try:
        await worker.run(what, job, first=first)
    except (CgroupError, StuckError) as error:
        raise AdmissionError(str(error)) from error
