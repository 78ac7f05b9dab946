"""What is placed where: the sandboxes and containers that the runtime knows, and which of them are in the box.

The runtime holds the truth (an annotation on each placed sandbox); this is a copy of it, learned from answers that
pass, asked for when something is missing, and rebuilt by listing when the runtime comes back.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from criproxy.cgroup.naming import parse_placement
from criproxy.model import PodRef, Sandbox
from criproxy.proxy import codec

Query = Callable[[str, bytes], Awaitable[bytes]]
"""Calls a RuntimeService method of the runtime, bytes in and out; raises ConnectionError when it gives no answer."""

_Edit = Callable[["Inventory"], object]


class Inventory:
    """Sandboxes and containers by id. `in_box` tells whether a placement exists in the kernel.

    An annotation alone proves nothing, since a pod may carry any: it must name the pod's own cgroup in a box, and that
    must be there.
    """

    def __init__(self, query: Query, in_box: Callable[[str], bool]) -> None:
        self._query: Final = query
        self._in_box: Final = in_box
        self._sandboxes: dict[str, Sandbox] = {}
        self._containers: dict[str, str] = {}
        self._journals: list[list[_Edit]] = []

    @property
    def placed(self) -> tuple[Sandbox, ...]:
        """The sandboxes in the box. Safe to ask for from any thread."""
        return tuple(s for s in tuple(self._sandboxes.values()) if s.placement is not None)

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
        # A sandbox keeps the placement it is known by, also when its cgroup has vanished meanwhile.
        self._sandboxes = {listed[0]: self._sandboxes.get(listed[0]) or self._sandbox(*listed) for listed in sandboxes}
        self._containers = dict(containers)
        for edit in journal:
            edit(self)

    async def sandbox(self, sandbox_id: str) -> Sandbox | None:
        """A sandbox, asked for at the runtime when it is not known; None when the runtime does not know it either.

        Runtimes also take the beginning of an id, if there is no other with it: so does this.
        """
        if known := self._sandboxes.get(sandbox_id):
            return known
        if not sandbox_id:
            return None
        answer = codec.listed_sandboxes(await self._query("ListPodSandbox", codec.list_sandboxes(sandbox_id)))
        for found, pod, placement in answer:
            if found.startswith(sandbox_id):
                return self._sandboxes.setdefault(found, self._sandbox(found, pod, placement))
        return None

    async def sandbox_of(self, container_id: str) -> Sandbox | None:
        """The sandbox of a container, asked for like `sandbox`."""
        sandbox_id = self._containers.get(container_id)
        if sandbox_id is None and container_id:
            answer = codec.listed_containers(await self._query("ListContainers", codec.list_containers(container_id)))
            for found, owner in answer:
                if found.startswith(container_id):
                    sandbox_id = self._containers.setdefault(found, owner)
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
        return Sandbox(sandbox_id, pod, placement if self._is_placed(pod, placement) else None)

    def _is_placed(self, pod: PodRef, placement: str) -> bool:
        try:
            place = parse_placement(placement)
        except ValueError:
            return False
        return place.is_of(pod.uid) and self._in_box(placement)
