"""The threads for what may block: which there are, what each may wait for, and how all of them rest and end.

Things of different health have threads of their own: a disk that hangs takes neither the operator's brake nor the box's
limits. A thread that hangs fails whoever asks at once, so that no try begins one more.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from criproxy.concurrency.worker import StuckError, Worker


class WorkerRow(Struct, frozen=True):
    """`timeout_s` bounds each job. `writes`: it changes what a successor of this process will be in charge of."""

    may_wait_for: str
    timeout_s: float = 10.0
    writes: bool = False


TABLE: Final[Mapping[str, WorkerRow]] = {
    "cgroup-writer": WorkerRow("systemd, a cgroup lock", writes=True),
    "cgroup-reader": WorkerRow("a cgroup lock"),
    "cgroup-reclaimer": WorkerRow("the kernel's reclaim", writes=True),
    "cgroup-killer": WorkerRow("a pod of many processes, where the kernel has no cgroup.kill", writes=True),
    "cgroup-reaper": WorkerRow("an orphaned pod of many processes, where the kernel has no cgroup.kill", writes=True),
    "cgroup-disks": WorkerRow("a disk's queue, for bounds on disks", writes=True),
    "disk-keepers": WorkerRow("a disk's queue, for its scheduler", writes=True),
    "node-looks": WorkerRow("the kernel's files of threads and disks"),
    "cache-share": WorkerRow("the kernel's files of caches", writes=True),
    "pods-logs": WorkerRow("a disk with pods' logs"),
    "kubelets-config": WorkerRow("the disk with kubelet's config"),
    "cpu-manager": WorkerRow("the disk with the state of kubelet's CPU manager", 5.0),
    "sentry-rules": WorkerRow("the disk with criproxy's state", 5.0, writes=True),
    "hold-offs": WorkerRow("/run, for what operators have said"),
    "pods-online": WorkerRow("/run, for which pods were online", writes=True),
}

REST_S: Final = 3.0
"""How long a hand-over waits for what is under way: nobody bounds the box meanwhile."""


class Workers:
    """Those of `TABLE`, each begun with its first use. For the event loop."""

    def __init__(self, timeout_s: float | None = None) -> None:
        """`timeout_s`: of all of them, in place of the table's."""
        self._timeout_s = timeout_s
        self._begun: dict[str, Worker] = {}

    def __getitem__(self, name: str) -> Worker:
        if name not in self._begun:
            self._begun[name] = Worker(name, self._timeout_s or TABLE[name].timeout_s)
        return self._begun[name]

    @property
    def timeouts(self) -> int:
        """How many calls have hung so far."""
        return sum(one.timeouts for one in self._begun.values())

    @property
    def stuck(self) -> tuple[str, ...]:
        """Those that hang now. For any thread."""
        return tuple(name for name, one in list(self._begun.items()) if one.stuck)

    async def drained(self, *names: str) -> None:
        """Wait until these have done all their jobs so far; those that were never begun have. Raises
        StuckError.
        """
        for name in names:
            if name in self._begun:
                await self._begun[name].drained()

    async def rest(self) -> None:
        """Have those that write take no jobs until `resume`, and wait for those that they have. Raises StuckError when
        that takes longer than `REST_S`: then something may be written yet.
        """
        writers = {name: one for name, one in self._begun.items() if TABLE[name].writes}
        for one in writers.values():
            one.resting = True
        for name, one in writers.items():
            try:
                async with asyncio.timeout(REST_S):
                    await one.drained()
            except TimeoutError as error:
                raise StuckError(f"{name} still waits for {TABLE[name].may_wait_for}") from error

    def resume(self) -> None:
        for one in self._begun.values():
            one.resting = False

    def close(self) -> None:
        """End them, each after the jobs that wait for it."""
        for one in self._begun.values():
            one.close()
