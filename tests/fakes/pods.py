"""The pods of a node: an inventory that a test fills, and the runtime that it is the inventory of."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from criproxy.model import Pod, PodRef, Sandbox
from criproxy.pods.inventory import PodObserver
from criproxy.pods.runtime import ListedContainer, ListedSandbox


@dataclass
class FakeInventory:
    """Of the sandboxes that are `placed` in the box, those in `ended` do not run. `outside`: by sandbox id."""

    placed: tuple[Sandbox, ...] = ()
    outside: Mapping[str, Pod] = field(default_factory=dict)
    places_known: bool = True
    ended: set[str] = field(default_factory=set)
    containers: Mapping[str, tuple[ListedContainer, ...]] = field(default_factory=dict)
    """Those that run, by sandbox id."""
    created: Mapping[str, float] = field(default_factory=dict)

    def place(self, uid: str) -> None:
        self.placed = (*self.placed, Sandbox(uid, PodRef(uid, "batch", uid), f"/offline/pod{uid}"))

    @property
    def marked(self) -> tuple[ListedSandbox, ...]:
        """As `created` says when each was made (UTC)."""
        made = self.created
        return tuple(ListedSandbox(one.id, one.pod, "", True, {}, {}, made.get(one.id, 0.0)) for one in self.placed)

    @property
    def running_pods(self) -> tuple[Sandbox, ...]:
        return tuple(one for one in self.placed if one.id not in self.ended)

    @property
    def ended_pods(self) -> tuple[Sandbox, ...]:
        return tuple(one for one in self.placed if one.id in self.ended and not self.containers_of(one.id))

    @property
    def uids(self) -> frozenset[str]:
        return frozenset(one.pod.uid for one in self.placed)

    def containers_of(self, sandbox_id: str) -> tuple[ListedContainer, ...]:
        return self.containers.get(sandbox_id, ())

    def lower_shares(self, sandbox_id: str, cpu_shares: int) -> None:
        self.placed = tuple(replace(one, cpu_shares=cpu_shares) if one.id == sandbox_id else one for one in self.placed)

    def watch(self, observer: PodObserver) -> None:
        pass

    def notice_s(self, sandbox_id: str) -> int:
        return 0


@dataclass
class FakePodsRuntime(FakeInventory):
    """Both the port and its inventory. A pod in `stubborn` does not stop; while `down`, lists fail."""

    ready: bool = True
    down: bool = False
    lists: int = 0
    stopped: list[str] = field(default_factory=list)
    stubborn: set[str] = field(default_factory=set)

    async def refresh(self) -> None:
        self.lists += 1
        if self.down:
            raise ConnectionError("down")

    async def stop(self, sandbox_id: str) -> None:
        if sandbox_id in self.stubborn:
            raise ConnectionError(f"{sandbox_id} does not stop")
        self.stopped.append(sandbox_id)
