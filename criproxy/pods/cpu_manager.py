"""Follows kubelet's CPU manager: keeps the box off the CPUs that online pods have for themselves.

With its static policy, kubelet gives whole CPUs to single containers, or to a pod for all of its containers, and
leaves the others, the shared pool, to everybody else. Before a container that gets CPUs is started, they are in
kubelet's state file. So the box's CPUs are the shared pool of that file, and the CPUs of offline pods' own: what nobody
online has alone. What kubelet asks for a container of the box passes on to the runtime, within these.

The file is looked at each second while the policy is static, otherwise each minute; and when pods start.

Source: kubernetes/pkg/kubelet/cm/cpumanager/state/checkpoint.go; policy_static.go.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field
from structlog.typing import FilteringBoundLogger

from criproxy.cgroup.box import Box
from criproxy.cgroup.driver import CgroupError
from criproxy.concurrency.worker import StuckError, Worker
from criproxy.model import UNLIMITED, AdmissionError, Pod, Unlimited
from criproxy.model.cpulist import Cpus, format_cpus, parse_cpus
from criproxy.model.shown import Shows
from criproxy.pods.inventory import Inventory

STATIC_EVERY_S: Final = 1.0
"""From one look at the file to the next, while kubelet gives CPUs away."""

IDLE_EVERY_S: Final = 60.0
"""The same while it does not: a change of policy takes a restart of kubelet, and CPUs are given to pods that start."""

TOGETHER_S: Final = 0.02
"""Starts within this time share a look while nobody is bound to CPUs. No pod's first container runs so soon: its
sandbox has to be made first.
"""

_READ_S: Final = 5.0
_LARGEST_BYTES: Final = 16 << 20
_SHOWN: Final = 3
"""How many of the entries that are not understood are named."""

STATE_FILE: Final = "cpu_manager_state"
_STATIC: Final = "static"


class CpuAssignments(Struct, frozen=True):
    """What kubelet's CPU manager has decided. `shared`: its shared pool, None when it bounds nobody (policy none).

    `exclusive`: the CPUs that a pod or its containers have for themselves, by the uid of the pod, or, before Kubernetes
    1.18, by the container's id. `unread` names what the file says of such CPUs in a way that is not known here; "":
    nothing.
    """

    shared: Cpus | None
    exclusive: Mapping[str, Cpus] = field(default_factory=dict)
    unread: str = ""


NOBODY_BOUND: Final = CpuAssignments(None)


class _Envelope(Struct):
    """The file since Kubernetes 1.37: the checkpoint is the text `data` within it.

    Beside it stands a checkpoint as of 1.18, for a kubelet that is rolled back: without pods' own CPUs.
    """

    data: str = ""


class _Checkpoint(Struct, rename="camel"):
    """The checkpoint. `entries` holds the CPUs of containers, `pod_entries` those of whole pods:

    | Kubernetes | entries                      | podEntries                  |
    | ---------- | ---------------------------- | --------------------------- |
    | to 1.17    | {container id: cpus}         |                             |
    | from 1.18  | {pod uid: {container: cpus}} |                             |
    | from 1.36  | {pod uid: {container: cpus}} | {pod uid: {"cpuSet": cpus}} |

    Kubelet gives CPUs to whole pods by its feature gate PodLevelResourceManagers alone. A container's id names no pod,
    so its CPUs are taken for an online pod's.
    """

    policy_name: str
    default_cpu_set: str = ""
    entries: dict[str, object] = {}
    pod_entries: dict[str, object] = {}


def parse_state(content: bytes) -> CpuAssignments:
    """The state that a cpu_manager_state file holds, in any version since its first. Raises ValueError.

    A pod's own pool is all its own: those of its containers that have no CPUs for themselves share what is left of it.
    """
    data = msgspec.json.decode(content, type=_Envelope).data
    try:
        checkpoint = msgspec.json.decode(data or content, type=_Checkpoint)
    except ValueError as error:
        raise ValueError(f"in its data, {error}" if data else str(error)) from error
    if checkpoint.policy_name != _STATIC:
        return NOBODY_BOUND
    shared = parse_cpus(checkpoint.default_cpu_set)
    exclusive: dict[str, Cpus] = {}
    unread = []
    for key, entries in (("entries", checkpoint.entries), ("podEntries", checkpoint.pod_entries)):
        for id, entry in entries.items():
            lists = list(entry.values()) if isinstance(entry, dict) else [entry]
            texts = [one for one in lists if isinstance(one, str)]
            exclusive[id] = exclusive.get(id, frozenset()).union(*map(parse_cpus, texts))
            if len(texts) < len(lists):
                unread.append(f"{key} of {id}")
    return CpuAssignments(shared, exclusive, ", ".join(unread[:_SHOWN]))


class CpusOfBox(Struct):
    """The CPUs that kubelet's CPU manager leaves to the box, by the state that was read last. Safe in any thread."""

    inventory: Inventory
    state: CpuAssignments = NOBODY_BOUND

    def cpus(self) -> Cpus | Unlimited:
        """All CPUs but those that online pods have alone. Empty when kubelet has given away all there are."""
        state = self.state
        return UNLIMITED if state.shared is None else state.shared | self._own(state)

    def own(self) -> Cpus:
        """The CPUs that offline pods have alone."""
        return self._own(self.state)

    def exclusive(self) -> Cpus:
        """The CPUs that online pods have alone; those that kubelet reserves are not among them."""
        state = self.state
        return frozenset().union(*state.exclusive.values()) - self._own(state)

    def _own(self, state: CpuAssignments) -> Cpus:
        uids = {sandbox.pod.uid for sandbox in self.inventory.placed} if state.exclusive else set()
        return frozenset().union(*(state.exclusive[uid] for uid in uids & state.exclusive.keys()))


class CpuManager(Shows, Struct):
    """Kubelet's CPU manager, as far as its `file` in kubelet's --root-dir says; keeps the box to `of_box`."""

    file: Path
    of_box: CpusOfBox
    box: Box
    log: FilteringBoundLogger
    resting: bool = False
    _reader: Worker = field(default_factory=lambda: Worker("cpu-manager-reader", _READ_S))
    _seen: tuple[int, int, int] | None = None
    _in_force: Cpus | Unlimited = UNLIMITED
    _due: asyncio.Event = field(default_factory=asyncio.Event)
    _unreadable: str = ""
    _unfollowed: str = ""
    _contradicted: str = ""

    @property
    def problem(self) -> str:
        """What is wrong, in words; "": nothing."""
        return self._unreadable or self._unfollowed or self._contradicted or self._not_understood

    def problems(self) -> Iterator[str]:
        if self.problem:
            yield self.problem

    @property
    def is_contradicted(self) -> bool:
        """Whether kubelet names CPUs for containers, of which its file says nothing."""
        return bool(self._contradicted)

    @property
    def _not_understood(self) -> str:
        unread = self.of_box.state.unread
        return unread and (
            f"{self.file} names CPUs in a way that this criproxy does not know ({unread}): offline pods keep off them, "
            "also a pod that has them for itself; update criproxy"
        )

    def rest(self) -> None:
        """Until `resume`, another process keeps the box's CPUs."""
        self.resting = True

    def resume(self) -> None:
        self.resting = False

    # --- for requests -----------------------------------------------------------------------------------------------

    def pod_starts(self, _: Pod) -> None:
        """A pod, online or not, is about to start: it may have been given CPUs just now."""
        self._due.set()

    async def within(self, asked: Cpus) -> Cpus | Unlimited:
        """Within which CPUs a container can be kept (`Box.kept_to`), now that kubelet wants `asked` for it.

        What kubelet's CPU manager leaves to the box is in force then. Raises AdmissionError, also when that is none
        of `asked`.
        """
        cpus = self.of_box.cpus()
        if cpus is UNLIMITED or not asked <= cpus:
            await self.look()
            cpus = self.of_box.cpus()
        if cpus is UNLIMITED:
            self._contradicted = (
                f"kubelet bounds containers to CPUs, and {self.file} does not say that its CPU manager is static, so "
                "offline pods may start on others: set kubelet.root_dir to kubelet's --root-dir"
            )
            return self.box.pods.kept_to(cpus)
        self._contradicted = ""
        if not asked & cpus:
            raise AdmissionError(
                f"kubelet asks for the CPUs {format_cpus(asked)}, and {self.file} leaves {format_cpus(cpus) or 'none'} "
                "to offline pods: if that file is not this kubelet's, set kubelet.root_dir"
            )
        if cpus != self._in_force:
            if self.resting:
                raise AdmissionError("another criproxy keeps the box's CPUs by now: kubelet tries again by itself")
            try:
                await self._confine(cpus)
            except (CgroupError, StuckError) as error:
                raise AdmissionError(str(error)) from error
        return self.box.pods.kept_to(cpus)

    # --- in the background ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look at each interval and at each start of a pod, and keep the box within its CPUs, until cancelled.

        While nobody is bound to CPUs, starts that come together share a look: it comes before a container that was
        given CPUs can run, also when kubelet has just come back with another policy.
        """
        while True:
            every_s = await self.round()
            if every_s == IDLE_EVERY_S:
                await asyncio.sleep(TOGETHER_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await self._due.wait()

    async def round(self) -> float:
        """One look and what follows from it; returns in how many s to look again. Never raises."""
        self._due.clear()
        await self.look()
        cpus = self.of_box.cpus()
        unfollowed = ""
        try:
            if cpus != self._in_force:
                await self._confine(cpus)
        except (CgroupError, StuckError) as error:
            unfollowed = f"offline pods are not kept to the CPUs that kubelet leaves them: {error}"
            if unfollowed != self._unfollowed:
                self.log.error("box_not_confined", error=str(error))
        self._unfollowed = unfollowed
        return IDLE_EVERY_S if cpus is UNLIMITED and not unfollowed else STATIC_EVERY_S

    async def look(self) -> None:
        """Read the file if it has changed. Never raises: what is not to be read leaves all as it was."""
        unreadable = ""
        try:
            await self._reader.run(f"read {self.file}", self._read)
        except (OSError, ValueError, RecursionError) as error:
            unreadable = f"{self.file} is not to be read, so the CPUs that it named last are offline pods': {error}"
            if unreadable != self._unreadable:
                self.log.error("cpu_manager_state_unreadable", file=str(self.file), error=str(error))
        self._unreadable = unreadable

    def close(self) -> None:
        self._reader.close()

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
