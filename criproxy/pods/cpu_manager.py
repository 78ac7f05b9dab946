"""Follows kubelet's CPU manager: keeps the box off the CPUs that online pods have for themselves.

With its static policy, kubelet gives whole CPUs to single containers, or to a pod for all of its containers, and
leaves the others, the shared pool, to everybody else. Before a container that gets CPUs is started, they are in
kubelet's state file. So the box's CPUs are the shared pool of that file, and the CPUs of offline pods' own: what nobody
online has alone. What kubelet asks for a container of the box passes on to the runtime, within these.

The file is looked at each second while the policy is static, otherwise each minute; and when pods start.
"""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from structlog.typing import FilteringBoundLogger

from criproxy.cgroup.box import Box
from criproxy.cgroup.driver import CgroupError
from criproxy.concurrency.clock import Clock, Wake
from criproxy.concurrency.closing import all_tried
from criproxy.concurrency.worker import StuckError, Worker
from criproxy.model import UNLIMITED, AdmissionError, Pod, Unlimited
from criproxy.model.cpulist import Cpus, format_cpus
from criproxy.pods.cpu_assignments import CpusOfBox, parse_state
from criproxy.pods.part import Part, Ports

STATIC_EVERY_S: Final = 1.0
"""From one look at the file to the next, while kubelet gives CPUs away."""

IDLE_EVERY_S: Final = 60.0
"""The same while it does not: a change of policy takes a restart of kubelet, and CPUs are given to pods that start."""

TOGETHER_S: Final = 0.02
"""Starts within this time share a look while nobody is bound to CPUs. No pod's first container runs so soon: its
sandbox has to be made first.
"""

_LARGEST_BYTES: Final = 16 << 20

STATE_FILE: Final = "cpu_manager_state"


class CpuManager(Part, Struct, eq=False):
    """Kubelet's CPU manager, as far as its `file` in kubelet's --root-dir says; keeps the box to `of_box`.

    While nobody is bound to CPUs, starts that come together share a look, behind the first one's way to the runtime: it
    comes before a container that was given CPUs can run, also when kubelet has just come back with another policy.
    `rests`: another process keeps the box's CPUs.
    """

    NAME = "keeping the box to the CPUs that kubelet leaves it"
    SLACK_S = 0.0

    file: Path
    of_box: CpusOfBox
    box: Box
    clock: Clock
    log: FilteringBoundLogger
    worker: Worker
    rests: bool = False
    _seen: tuple[int, int, int] | None = None
    _in_force: Cpus | Unlimited = UNLIMITED
    _starts: bool = False
    """A pod has started since the last look."""
    _looked_s: float = -math.inf
    _wake: Wake = field(default_factory=Wake)

    @classmethod
    def made(cls, ports: Ports) -> "CpuManager":
        shared = ports.shared
        file, worker = ports.kubelet_path / STATE_FILE, ports.workers["cpu-manager"]
        return cls(file, ports.cpus, ports.box, shared.clock, shared.log, worker)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from filter(None, (self.of_box.contradicted, self._not_understood))

    @property
    def _not_understood(self) -> str:
        unread = self.of_box.state.unread
        return unread and (
            f"{self.file} names CPUs in a way that this criproxy does not know ({unread}): offline pods keep off them, "
            "also a pod that has them for itself; update criproxy"
        )

    # --- for requests -----------------------------------------------------------------------------------------------

    def pod_starts(self, _: Pod) -> None:
        """A pod, online or not, is about to start: it may have been given CPUs just now."""
        if not self._starts:
            self._starts = True
            self._wake.set()

    async def within(self, asked: Cpus) -> Cpus | Unlimited:
        """Within which CPUs a container can be kept (`Box.kept_to`), now that kubelet wants `asked` for it.

        What kubelet's CPU manager leaves to the box is in force then. Raises AdmissionError, also when that is none
        of `asked`.
        """
        cpus = self.of_box.cpus()
        if cpus is UNLIMITED or not asked <= cpus:
            await self.refresh()
            cpus = self.of_box.cpus()
        if cpus is UNLIMITED:
            self.of_box.contradicted = (
                f"kubelet bounds containers to CPUs, and {self.file} does not say that its CPU manager is static, so "
                "offline pods may start on others: set kubelet.root_dir to kubelet's --root-dir"
            )
            return self.box.pods.kept_to(cpus)
        self.of_box.contradicted = ""
        if not asked & cpus:
            raise AdmissionError(
                f"kubelet asks for the CPUs {format_cpus(asked)}, and {self.file} leaves {format_cpus(cpus) or 'none'} "
                "to offline pods: if that file is not this kubelet's, set kubelet.root_dir"
            )
        if cpus != self._in_force:
            if self.rests:
                raise AdmissionError("another criproxy keeps the box's CPUs by now: kubelet tries again by itself")
            try:
                await self._confine(cpus)
            except (CgroupError, StuckError) as error:
                raise AdmissionError(str(error)) from error
        return self.box.pods.kept_to(cpus)

    # --- in the background ------------------------------------------------------------------------------------------

    @property
    def wake(self) -> Wake:
        return self._wake

    @property
    def pause_s(self) -> float:
        if self._starts:
            return self._shares_look_s
        return IDLE_EVERY_S if self._is_idle else STATIC_EVERY_S

    @property
    def _is_idle(self) -> bool:
        return self._in_force is UNLIMITED and self.of_box.cpus() is UNLIMITED

    @property
    def _shares_look_s(self) -> float:
        """How long starts still wait, to share the next look."""
        return max(0.0, self._looked_s + TOGETHER_S - self.clock.monotonic_s()) if self._is_idle else 0.0

    async def look(self) -> None:
        """Keep the box within its CPUs, as the file says them now. Raises OSError and CgroupError."""
        if self._starts and self._shares_look_s > 0.0:
            return
        self.rests = self._starts = False
        self._looked_s = self.clock.monotonic_s()
        await all_tried(self._learn(), self._follow())

    def cease(self) -> None:
        self.rests = True

    async def refresh(self) -> None:
        """Read the file if it has changed. What can't be read leaves all as it was, and the next look tells of it."""
        with contextlib.suppress(OSError):
            await self._learn()

    async def _learn(self) -> None:
        try:
            await self.worker.run(f"read {self.file}", self._read)
        except (OSError, ValueError, RecursionError) as error:
            raise OSError(
                f"{self.file} is not to be read, so the CPUs that it named last are offline pods': {error}"
            ) from error

    async def _follow(self) -> None:
        cpus = self.of_box.cpus()
        if cpus == self._in_force:
            return
        try:
            await self._confine(cpus)
        except (CgroupError, StuckError) as error:
            raise CgroupError(f"offline pods are not kept to the CPUs that kubelet leaves them: {error}") from error

    async def _confine(self, cpus: Cpus | Unlimited) -> None:
        await self.box.confine()
        self._in_force = cpus
        self.log.info("box_confined", cpus="all" if cpus is UNLIMITED else format_cpus(cpus), source=str(self.file))

    def _read(self) -> None:
        """On the thread. A file that is gone comes back when kubelet starts."""
        try:
            status = os.stat(self.file)
        except FileNotFoundError:
            return
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen == self._seen:
            return
        if status.st_size > _LARGEST_BYTES:
            raise ValueError(f"it has {status.st_size} bytes")
        before, self.of_box.state = self.of_box.state.unread, parse_state(self.file.read_bytes())
        self._seen = seen
        if (unread := self.of_box.state.unread) and unread != before:
            self.log.warning("cpu_manager_state_unknown", file=str(self.file), unread=unread)
