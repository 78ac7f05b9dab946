"""What is placed where: the sandboxes and containers that the runtime knows, and which of them are in the box.

The runtime holds the truth (an annotation on each placed sandbox); this is a copy of it, learned from answers that
pass, asked for when something is missing, and rebuilt by listing when the runtime comes back.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from criproxy.model import PodRef, Sandbox
from criproxy.proxy import codec

Query = Callable[[str, bytes], Awaitable[bytes]]
"""Calls a RuntimeService method of the runtime, bytes in and out; raises ConnectionError when it gives no answer."""

_Edit = Callable[["Inventory"], object]


class Inventory:
    """Sandboxes and containers by id. `in_box` tells whether a placement exists in the kernel: an annotation alone
    proves nothing, since a pod may carry any.
    """

    def __init__(self, query: Query, in_box: Callable[[str], bool]) -> None:
        self._query: Final = query
        self._in_box: Final = in_box
        self._sandboxes: dict[str, Sandbox] = {}
        self._containers: dict[str, str] = {}
        self._journals: list[list[_Edit]] = []

    @property
    def placed(self) -> tuple[Sandbox, ...]:
        """The sandboxes in the box."""
        return tuple(s for s in self._sandboxes.values() if s.placement is not None)

    def __len__(self) -> int:
        return len(self._sandboxes) + len(self._containers)

    async def refresh(self) -> None:
        """List everything anew. What is learned while the lists are on their way wins over them."""
        journal: list[_Edit] = []
        self._journals.append(journal)
        try:
            sandboxes = codec.listed_sandboxes(await self._query("ListPodSandbox", codec.list_sandboxes()))
            containers = codec.listed_containers(await self._query("ListContainers", codec.list_containers()))
        finally:
            self._journals.remove(journal)
        self._sandboxes = {listed[0]: self._sandbox(*listed) for listed in sandboxes}
        self._containers = dict(containers)
        for edit in journal:
            edit(self)

    async def sandbox(self, sandbox_id: str) -> Sandbox | None:
        """A sandbox, asked for at the runtime when it is not known; None when the runtime does not know it either."""
        if known := self._sandboxes.get(sandbox_id):
            return known
        answer = codec.listed_sandboxes(await self._query("ListPodSandbox", codec.list_sandboxes(sandbox_id)))
        for found, pod, placement in answer:
            if found == sandbox_id:
                return self._sandboxes.setdefault(found, self._sandbox(found, pod, placement))
        return None

    async def sandbox_of(self, container_id: str) -> Sandbox | None:
        """The sandbox of a container, asked for like `sandbox`."""
        if container_id not in self._containers:
            answer = codec.listed_containers(await self._query("ListContainers", codec.list_containers(container_id)))
            self._containers.update(entry for entry in answer if entry[0] == container_id)
        sandbox_id = self._containers.get(container_id)
        return await self.sandbox(sandbox_id) if sandbox_id is not None else None

    def sandbox_started(self, sandbox: Sandbox) -> None:
        self._edit(lambda inventory: inventory._sandboxes.__setitem__(sandbox.id, sandbox))

    def container_created(self, container_id: str, sandbox_id: str) -> None:
        self._edit(lambda inventory: inventory._containers.__setitem__(container_id, sandbox_id))

    def sandbox_removed(self, sandbox_id: str) -> Sandbox | None:
        """Forget a sandbox and its containers; returns it if it was known."""
        known = self._sandboxes.get(sandbox_id)
        self._edit(lambda inventory: inventory._forget(sandbox_id))
        return known

    def container_removed(self, container_id: str) -> None:
        self._edit(lambda inventory: inventory._containers.pop(container_id, None))

    def _edit(self, edit: _Edit) -> None:
        edit(self)
        for journal in self._journals:
            journal.append(edit)

    def _forget(self, sandbox_id: str) -> None:
        self._sandboxes.pop(sandbox_id, None)
        for container in [c for c, owner in self._containers.items() if owner == sandbox_id]:
            del self._containers[container]

    def _sandbox(self, sandbox_id: str, pod: PodRef, placement: str) -> Sandbox:
        return Sandbox(sandbox_id, pod, placement if placement and self._in_box(placement) else None)
