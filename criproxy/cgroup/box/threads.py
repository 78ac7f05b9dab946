"""The threads of the box: what may wait in the kernel is done there, and what of it hangs blinds nothing else."""

from collections.abc import Callable
from typing import TypeVar

from criproxy.cgroup.driver import CgroupError
from criproxy.concurrency.worker import StuckError, Worker
from criproxy.model import AdmissionError

T = TypeVar("T")


class BoxThreads:
    """`timeout_s` bounds each call. What each thread does stands in the package's docstring."""

    def __init__(self, timeout_s: float) -> None:
        self.writer = Worker("cgroup-writer", timeout_s)
        self.reader = Worker("cgroup-reader", timeout_s)
        self.reclaimer = Worker("cgroup-reclaimer", timeout_s)
        self._apart: dict[str, Worker] = {}
        self._timeout_s = timeout_s

    def apart(self, name: str) -> Worker:
        """A thread of this name, which begins when it is asked for first."""
        if name not in self._apart:
            self._apart[name] = Worker(name, self._timeout_s)
        return self._apart[name]

    @property
    def timeouts(self) -> int:
        """How many calls have hung so far."""
        return sum(one.timeouts for one in self._all)

    def close(self) -> None:
        """End the threads, each after the jobs that wait for it."""
        for one in self._all:
            one.close()

    @property
    def _all(self) -> tuple[Worker, ...]:
        return (self.writer, self.reader, self.reclaimer, *self._apart.values())


async def for_request(what: str, job: Callable[[], None], worker: Worker) -> None:
    """Do a job for a call of kubelet's. Raises AdmissionError."""
    try:
        await worker.run(what, job)
    except (CgroupError, StuckError) as error:
        raise AdmissionError(str(error)) from error
