"""What is placed where: the sandboxes and containers that the runtime knows, and which of them are in the box.

The runtime holds the truth (an annotation on each placed sandbox); this is a copy of it, learned from answers that
pass, asked for when something is missing, and rebuilt by listing when the runtime comes back.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from criproxy.cgroup.driver import CgroupDriver, CgroupError
from criproxy.cgroup.naming import default_places, parse_placement
from criproxy.concurrency.clock import Clock
from criproxy.hooks.batch import asked_by, of_pod, once_initialized
from criproxy.hooks.notice import notice_asked_s
from criproxy.hooks.tiers import is_mid
from criproxy.model import Asked, ContainerKind, Pod, PodRef, Sandbox
from criproxy.pods.runtime import ListedContainer, ListedSandbox, Running, Runtime

UNLISTED_S: Final = 60.0
"""By NRI, a runtime tells of a sandbox or container before it lists it; of one that then fails, it tells the end."""


def _asked_in(annotations: Mapping[str, str]) -> dict[str, Asked]:
    """What a pod asks for in its annotations for each container; what makes no sense is nothing."""
    try:
        return asked_by(annotations)
    except ValueError:
        return {}


def described(
    id: str, pod: PodRef, placement: str | None, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Sandbox:
    """A sandbox, with what its pod's labels and annotations ask for; of what nodes lend, only a pod in the box does."""
    containers = {} if placement is None else _asked_in(annotations)
    asked, notice_s, mid = of_pod(containers), notice_asked_s(annotations), is_mid(labels)
    return Sandbox(id, pod, placement, asked.cpu_shares, notice_s, mid, asked.cpu_limit_millicores, containers)


def _as_listed(sandbox: Sandbox, pod: Pod | None) -> ListedSandbox:
    """One that runs, as the runtime would list it. `pod` None: without labels and annotations."""
    labels, annotations = (pod.labels, pod.annotations) if pod else ({}, {})
    return ListedSandbox(sandbox.id, sandbox.pod, sandbox.placement or "", True, labels, annotations)


def asked_now(sandbox: Sandbox, running: Collection[ListedContainer]) -> Asked:
    """What the pod asks for in its annotations: once a container of these runs, that of its init containers is over."""
    asked = sandbox.containers
    if any(one.kind is ContainerKind.INIT for one in asked.values()):
        started = (asked.get(one.name) for one in running)
        if any(one is not None and one.kind is ContainerKind.MAIN for one in started):
            later = once_initialized(asked)
            return replace(later, cpu_shares=min(later.cpu_shares, sandbox.cpu_shares))
    return Asked(sandbox.cpu_shares, cpu_limit_millicores=sandbox.cpu_limit_millicores)


_T = TypeVar("_T")


def _of(ids: Iterable[str], known: Mapping[str, _T]) -> dict[str, _T]:
    """Those of `known` that have these ids."""
    return {id: known[id] for id in ids if id in known}


_Change = Callable[["Inventory"], object]


class PodObserver:
    """What happens to the pods of the box, as it happens, on the event loop. Observers override what they need."""

    def pod_started(self, running: Running) -> None:
        """The runtime has started this in the box."""

    def resize_asked(self, sandbox: Sandbox) -> None:
        """Kubelet asks for other resources of this pod of the box, or of a container of it."""

    def resize_done(self, sandbox: Sandbox) -> None:
        """The runtime has done a request of these values."""

    def pod_removed(self, sandbox: Sandbox) -> None:
        """The runtime has removed this sandbox of the box."""

    def pods_listed(self) -> None:
        """Everything was listed anew."""


class Inventory(Struct, eq=False):
    """Sandboxes and containers by id. A placement must exist in `cgroups`.

    An annotation alone proves nothing, since a pod may carry any: it must also name the pod's own cgroup in a box.
    """

    runtime: Runtime
    cgroups: CgroupDriver
    holds_sandboxes: bool = True
    """Whether the front puts a pod's sandbox into the box, with an annotation that says so, and not its containers
    alone.
    """
    places_known: bool = True
    """Whether a listed pod without a placement is outside the box: by NRI, only the runtime's own list tells of all."""
    clock: Clock = field(default_factory=Clock)
    _observers: list[PodObserver] = []
    _sandboxes: dict[str, Sandbox] = {}
    _containers: dict[str, ListedContainer] = {}
    _running: set[str] = set()
    _listed: dict[str, ListedSandbox] = {}
    """With their pods' labels and annotations: all of the last listing, and those that started in the box since."""
    _unlisted_s: dict[str, float] = {}
    """Since when it is known by the runtime's own word, of what no listing has had yet; by NRI alone."""
    _journals: list[list[_Change]] = []
    _changes: int = 0
    """How many there were; it is counted after each."""
    _boxed_as_of: tuple[int, tuple[Sandbox, ...], tuple[Sandbox, ...]] = (-1, (), ())
    """`_changes` before they were looked for, the sandboxes in the box, and those of them that run."""
    _outside_as_of: tuple[int, Mapping[str, Pod]] = (-1, {})
    """Likewise, of the pods outside the box."""

    @property
    def placed(self) -> tuple[Sandbox, ...]:
        """The sandboxes in the box. Safe to ask for from any thread."""
        return self._in_box()[1]

    @property
    def running_pods(self) -> tuple[Sandbox, ...]:
        """Those of `placed` that run: an ended pod's sandbox stays until kubelet removes it. Safe as `placed` is."""
        return self._in_box()[2]

    @property
    def ended_pods(self) -> tuple[Sandbox, ...]:
        """Those of `placed` of which nothing runs any more: neither the sandbox nor, without it, a container."""
        containers = tuple(self._containers.values())
        left = {one.sandbox_id for one in containers if one.id in self._running}
        return tuple([one for one in self.placed if one.id not in self._running and one.id not in left])

    def _in_box(self) -> tuple[int, tuple[Sandbox, ...], tuple[Sandbox, ...]]:
        """They are read many times a second, and change seldom."""
        found, changes = self._boxed_as_of, self._changes
        if found[0] != changes:
            placed = tuple([one for one in tuple(self._sandboxes.values()) if one.placement is not None])
            running = self._running
            found = self._boxed_as_of = changes, placed, tuple([one for one in placed if one.id in running])
        return found

    @property
    def uids(self) -> frozenset[str]:
        """Of all pods that the runtime knows, in the box or not."""
        return frozenset(sandbox.pod.uid for sandbox in self._sandboxes.values())

    @property
    def running(self) -> tuple[Running, ...]:
        """What runs in the box: sandboxes and their containers, each under its own id."""
        return self.running_of((*(self._sandboxes if self.holds_sandboxes else ()), *self._containers))

    def running_of(self, ids: Iterable[str]) -> tuple[Running, ...]:
        """Those of `running` that have these ids."""
        found = (self._boxed(id) for id in ids if id in self._running)
        return tuple(one for one in found if one is not None)

    def _boxed(self, id: str) -> Running | None:
        container = self._containers.get(id)
        if container is None and not self.holds_sandboxes:
            return None
        sandbox = self._sandboxes.get(id if container is None else container.sandbox_id)
        if sandbox is None or sandbox.placement is None:
            return None
        return Running(sandbox, id, "" if container is None else container.name)

    def containers_of(self, sandbox_id: str) -> tuple[ListedContainer, ...]:
        """The containers of any sandbox that run, as far as known."""
        its = tuple(self._containers.values())
        return tuple(one for one in its if one.sandbox_id == sandbox_id and one.id in self._running)

    def notice_s(self, sandbox_id: str) -> int:
        """How much notice a pod asks for before it is stopped, in or outside the box; 0: none."""
        known = self._sandboxes.get(sandbox_id)
        return 0 if known is None else known.notice_s

    @property
    def marked(self) -> tuple[ListedSandbox, ...]:
        """The sandboxes in the box with their pods' labels and annotations, as of their start or the last listing.

        Safe as `placed` is.
        """
        found = [self._listed.get(one.id) for one in self.placed]
        return tuple([one for one in found if one is not None])

    @property
    def outside(self) -> Mapping[str, Pod]:
        """All pods, online ones too, that run outside the box, by sandbox id, as of their start or the last listing.

        The same object until something has changed. The pods' cgroup_parent is not known. Safe as `placed` is.
        """
        found, changes = self._outside_as_of, self._changes
        if found[0] != changes:
            pods = {
                one.id: Pod(one.pod, one.labels, one.annotations)
                for one in tuple(self._listed.values())
                if one.id in self._running
                and (known := self._sandboxes.get(one.id)) is not None
                and known.placement is None
            }
            found = self._outside_as_of = changes, pods
        return found[1]

    def runs(self, id: str) -> bool:
        """Whether this sandbox or container runs, as far as known."""
        return id in self._running

    def watch(self, observer: PodObserver) -> None:
        """Call the observer from now on."""
        self._observers.append(observer)

    def __len__(self) -> int:
        return len(self._sandboxes) + len(self._containers)

    async def refresh(self) -> None:
        """List everything anew. What is learned while the lists are on their way wins over them."""
        journal: list[_Change] = []
        self._journals.append(journal)
        try:
            sandboxes = await self.runtime.sandboxes()
            containers = await self.runtime.containers()
        finally:
            self._journals = [other for other in self._journals if other is not journal]
        there = {one.id for one in sandboxes} | {one.id for one in containers}
        oldest_s = self.clock.monotonic_s() - UNLISTED_S
        awaited = {id: since for id, since in self._unlisted_s.items() if id not in there and since > oldest_s}
        self._unlisted_s = awaited
        # A sandbox keeps the placement it is known by, also when its cgroup has vanished meanwhile.
        self._sandboxes = _of(awaited, self._sandboxes) | {
            listed.id: self._sandboxes.get(listed.id) or self._sandbox(listed) for listed in sandboxes
        }
        self._containers = _of(awaited, self._containers) | {listed.id: listed for listed in containers}
        running = {s.id for s in sandboxes if s.running} | {c.id for c in containers if c.running}
        self._running = self._running.intersection(awaited) | running
        self._listed = _of(awaited, self._listed) | {listed.id: listed for listed in sandboxes}
        for edit in journal:
            edit(self)
        self._changes += 1
        for observer in self._observers:
            observer.pods_listed()

    def known(self, sandbox_id: str, container_id: str = "") -> Sandbox | None:
        """The sandbox with this id, or the one of this container, unless only the runtime knows it."""
        if not sandbox_id and (container := self._containers.get(container_id)):
            sandbox_id = container.sandbox_id
        return self._sandboxes.get(sandbox_id)

    async def sandbox(self, sandbox_id: str) -> Sandbox | None:
        """A sandbox, asked for at the runtime when it is not known; None when the runtime does not know it either.

        Runtimes also take the beginning of an id, if there is no other with it: so does this.
        """
        if known := self._sandboxes.get(sandbox_id):
            return known
        if not sandbox_id:
            return None
        for listed in await self.runtime.sandboxes(sandbox_id):
            if listed.id.startswith(sandbox_id):
                found = self._sandboxes.setdefault(listed.id, self._sandbox(listed))
                self._changes += 1
                return found
        return None

    async def sandbox_of(self, container_id: str) -> Sandbox | None:
        """The sandbox of a container, asked for like `sandbox`."""
        known = self._containers.get(container_id)
        if known is None and container_id:
            for listed in await self.runtime.containers(container_id):
                if listed.id.startswith(container_id):
                    known = self._containers.setdefault(listed.id, listed)
        return await self.sandbox(known.sandbox_id) if known is not None else None

    def sandbox_started(self, sandbox: Sandbox, pod: Pod | None = None) -> None:
        """`pod`: with what its request said of it; None: nothing."""
        self._awaits(sandbox.id)
        self._edit(lambda inventory: inventory._sandboxes.__setitem__(sandbox.id, sandbox))
        asked = _as_listed(sandbox, pod)
        self._edit(lambda inventory: inventory._listed.__setitem__(sandbox.id, asked))
        self._edit(lambda inventory: inventory._running.add(sandbox.id))
        self._tell_started(sandbox, sandbox.id, "")

    def sandbox_found(self, sandbox: Sandbox, pod: Pod) -> None:
        """A sandbox that had started before it was known, or whose place was not known until now."""
        if sandbox.id not in self._sandboxes:
            self._awaits(sandbox.id)
        self._edit(lambda inventory: inventory._sandboxes.__setitem__(sandbox.id, sandbox))
        asked = _as_listed(sandbox, pod)
        self._edit(lambda inventory: inventory._listed.setdefault(sandbox.id, asked))

    @property
    def ids(self) -> tuple[str, ...]:
        """Of all sandboxes, in the box or not."""
        return tuple(self._sandboxes)

    def no_others(self, ids: Collection[str]) -> None:
        """Forget all sandboxes but these: another process, which has heard of their ends until now, knows no others."""
        for sandbox_id in self._sandboxes.keys() - ids:
            self._edit(partial(Inventory._forget, sandbox_id=sandbox_id))

    def lower_shares(self, sandbox_id: str, cpu_shares: int) -> None:
        """The pod counts as one that asks for no more than so many CPU shares."""

        def lower(inventory: "Inventory") -> None:
            if (known := inventory._sandboxes.get(sandbox_id)) is not None:
                lowered = replace(known, cpu_shares=min(known.cpu_shares, cpu_shares))
                inventory._sandboxes[sandbox_id] = lowered

        self._edit(lower)

    def container_created(self, container_id: str, sandbox_id: str, name: str) -> None:
        self._awaits(container_id)
        created = ListedContainer(container_id, sandbox_id, name, running=False)
        self._edit(lambda inventory: inventory._containers.__setitem__(container_id, created))

    def container_started(self, container_id: str) -> None:
        self._edit(lambda inventory: inventory._running.add(container_id))
        if container := self._containers.get(container_id):
            self._tell_started(self._sandboxes.get(container.sandbox_id), container_id, container.name)

    def resize_asked(self, sandbox: Sandbox) -> None:
        """Of a pod of the box."""
        for observer in self._observers:
            observer.resize_asked(sandbox)

    def resize_done(self, sandbox: Sandbox) -> None:
        """Of a pod of the box."""
        for observer in self._observers:
            observer.resize_done(sandbox)

    def sandbox_stopped(self, sandbox_id: str) -> None:
        """Nothing of it runs any more."""
        self._edit(lambda inventory: inventory._stop(sandbox_id))

    def sandbox_removed(self, sandbox_id: str) -> None:
        """Forget a sandbox and its containers."""
        known = self._sandboxes.get(sandbox_id)
        self._edit(lambda inventory: inventory._forget(sandbox_id))
        if known is not None and known.placement is not None:
            for observer in self._observers:
                observer.pod_removed(known)

    def container_removed(self, container_id: str) -> None:
        self._edit(lambda inventory: inventory._forget_container(container_id))

    def _tell_started(self, sandbox: Sandbox | None, id: str, container: str) -> None:
        if sandbox is not None and sandbox.placement is not None:
            for observer in self._observers:
                observer.pod_started(Running(sandbox, id, container))

    def _awaits(self, id: str) -> None:
        if not self.holds_sandboxes:
            self._unlisted_s[id] = self.clock.monotonic_s()

    def _edit(self, edit: _Change) -> None:
        edit(self)
        self._changes += 1
        for journal in self._journals:
            journal.append(edit)

    def _stop(self, sandbox_id: str) -> None:
        its = [c for c, container in self._containers.items() if container.sandbox_id == sandbox_id]
        self._running.difference_update([sandbox_id, *its])

    def _forget(self, sandbox_id: str) -> None:
        for known in (self._sandboxes, self._listed, self._unlisted_s):
            known.pop(sandbox_id, None)
        self._running.discard(sandbox_id)
        for container_id in [c for c, container in self._containers.items() if container.sandbox_id == sandbox_id]:
            self._forget_container(container_id)

    def _forget_container(self, container_id: str) -> None:
        self._containers.pop(container_id, None)
        self._unlisted_s.pop(container_id, None)
        self._running.discard(container_id)

    def _sandbox(self, listed: ListedSandbox) -> Sandbox:
        places = (listed.placement,) if self.holds_sandboxes else (listed.placement, *default_places(listed.pod.uid))
        placement = next((place for place in places if self._is_placed(listed.pod, place)), None)
        return described(listed.id, listed.pod, placement, listed.labels, listed.annotations)

    def _is_placed(self, pod: PodRef, placement: str) -> bool:
        try:
            return parse_placement(placement).is_of(pod.uid) and self.cgroups.exists(placement)
        except (ValueError, CgroupError):
            return False
