"""What the runtime's calls mean: which there are, and bytes to `pods.placing` and back.

| event                          | what becomes of it                                                                  |
|--------------------------------|-------------------------------------------------------------------------------------|
| RunPodSandbox                  | as CRI's: online passes, offline is let into the box or refused. The sandbox itself |
|                                | is made by then, in kubelet's own cgroup of the pod, and stays there                |
| CreateContainer                | as CRI's: in a pod of the box, it is made there, or refused                         |
| UpdateContainer,               | as CRI's                                                                            |
| UpdatePodSandbox               |                                                                                     |
| Synchronize                    | placements are found again: a pod is in the box if its cgroup there exists          |
| the end of pods and containers | the inventory learns it                                                             |

A pod whose start we missed (the runtime had started before us, or had thrown us out) is let in with its next
container; what of it runs already stays outside, and the placement check finds it. What ran before this process did
stays where it is: it may have been online when it started.

A process that waits for its turn in a hand-over places no pod. What the other one was too slow for comes to it alone:
then it has the containers of pods in the box made there, and refuses those of offline pods that nobody has judged.

An online pod's call is answered at once: nothing is waited for, no file is read.
"""

from __future__ import annotations  # the messages in them are not imported yet

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from criproxy.cgroup.driver import CgroupError
from criproxy.control.interference.victim import OWNERS
from criproxy.fronts.cri.interception import code_of
from criproxy.fronts.http2.codes import Code
from criproxy.fronts.nri import codec
from criproxy.fronts.nri import messages as nri
from criproxy.fronts.nri.codec import NriCall
from criproxy.model import STARTS, Operation, Pod
from criproxy.pods.admission import kubelets_place
from criproxy.pods.inventory import Inventory, described
from criproxy.pods.placing import Made, Placing, PlacingOutcome, Proceed, RefusedCall
from criproxy.pods.runtime import ListedSandbox
from criproxy.vocabulary.names import (
    EVICTION_ENABLED,
    EVICTION_PRIORITY,
    EXTENDED_SPEC,
    KEEP_REQUESTS,
    KOORDINATOR_CLASS,
    KOORDINATOR_PRIORITY,
    MOST_RECORDED,
    NOTICE_SECONDS,
    PLUGIN,
    PRIORITY,
    REQUIRED_PLUGINS,
    RESOURCES,
    TIER,
)

_EVENTS: Final[Mapping[str, int]] = {
    "RunPodSandbox": 1,
    "StopPodSandbox": 2,
    "RemovePodSandbox": 3,
    "CreateContainer": 4,
    "PostStartContainer": 7,
    "UpdateContainer": 8,
    "RemoveContainer": 11,
    "UpdatePodSandbox": 12,
}
"""Those that we subscribe to, with their numbers. Source: containerd/nri, api.proto, Event."""

EVENTS_ASKED: Final = sum(1 << number - 1 for number in _EVENTS.values())
"""As Configure answers it, where the runtime knows them all."""

_NAMES: Final = {number: name for name, number in _EVENTS.items()}

_RESIZES_SINCE: Final[Mapping[str, tuple[int, int]]] = {"containerd": (2, 2), "cri-o": (1, 34), "": (0, 10)}
"""The versions of runtimes that know UpdatePodSandbox; of NRI's own: ""."""

_REGISTERS_SAFELY: Final = (1, 7, 16)

_OBSERVED: Final[Mapping[str, Callable[[Inventory, str], None]]] = {
    "StopPodSandbox": Inventory.sandbox_stopped,
    "RemovePodSandbox": Inventory.sandbox_removed,
    "PostStartContainer": Inventory.container_started,
    "RemoveContainer": Inventory.container_removed,
}

_OPERATIONS: Final = {
    "RunPodSandbox": Operation.RUN_POD_SANDBOX,
    "CreateContainer": Operation.CREATE_CONTAINER,
    "UpdateContainer": Operation.UPDATE_CONTAINER_RESOURCES,
    "UpdatePodSandbox": Operation.UPDATE_POD_SANDBOX_RESOURCES,
}
_READ: Final = frozenset(
    (
        *(RESOURCES, EXTENDED_SPEC, KEEP_REQUESTS, NOTICE_SECONDS, TIER, KOORDINATOR_CLASS),
        *(PRIORITY, KOORDINATOR_PRIORITY, EVICTION_ENABLED, EVICTION_PRIORITY, *OWNERS),
    )
)
"""What is read of the labels and annotations of a pod in the box, beside what rules read: `inventory.described`, and
who goes first."""

_UPDATES: Final = ("UpdatePodSandbox", "UpdateContainer")

_NAMES_US: Final = re.compile(rf"(?<![\w-]){PLUGIN}(?![\w-])")

_NOTHING: Final = b""

_LIVES: Final = (1, 2, 3)
"""Source: containerd/nri, api.proto, ContainerState: created, paused, running."""


class NriRefusal(Struct, frozen=True):
    """The call is answered with an error. `code`: see `fronts.http2.codes`."""

    code: int
    words: str


NriAnswer = bytes | NriRefusal


class RuntimeSeen(Struct, frozen=True):
    """What the runtime says of itself in Configure; `nri` is "" before 0.12, `request_timeout_s` 0 before 0.8."""

    name: str = ""
    version: str = ""
    nri: str = ""
    request_timeout_s: float = 0.0

    @property
    def knows_resizes(self) -> bool:
        """Whether it knows UpdatePodSandbox. One that does not closes the connection of who asks for it."""
        name = self.name.lower()
        since = _RESIZES_SINCE[""] if self.nri else _RESIZES_SINCE.get(name)
        return since is not None and _version(self.nri or self.version) >= since

    @property
    def locks_up(self) -> bool:
        """Whether a plugin that registers may lock it up for good. Source: containerd/containerd#10085."""
        return self.name.lower() == "containerd" and _version(self.version) < _REGISTERS_SAFELY

    @property
    def may_require_plugins(self) -> bool:
        """Whether it has the validator of required plugins, which came with that."""
        return self.knows_resizes


class PluginMemory(Struct, frozen=True):
    """What a process knows of a runtime that it was registered with, for the one that goes on there.

    `there`: all sandboxes, `placed`: those in the box, of which the runtime may list some only later. `heard`: see
    NriPlugin. `told`: containers outside the box.
    """

    runtime: RuntimeSeen
    asks_resizes: bool
    there: tuple[str, ...]
    heard: tuple[str, ...]
    placed: tuple[ListedSandbox, ...]
    told: tuple[str, ...]
    missed: int
    required: int
    started: int


class Pending(Struct):
    """A call that is not decided at once. `late` decides it when its time is over."""

    outcome: Awaitable[NriAnswer]
    late: Callable[[float], NriAnswer]


def is_required(pod: Pod) -> bool:
    """Whether the runtime's validator waits for us with each container of the pod: see REQUIRED_PLUGINS."""
    annotations = pod.annotations
    for_all = annotations.get(f"{REQUIRED_PLUGINS}/pod", annotations.get(REQUIRED_PLUGINS, ""))
    own = [text for key, text in annotations.items() if key.startswith(f"{REQUIRED_PLUGINS}/container.")]
    return all(_NAMES_US.search(text) for text in (for_all, *own))


class NriPlugin(Struct, eq=False):
    """Answers the runtime's calls. It acts while `acts`: before, another process of ours does.

    `missed`: how many containers of offline pods were made outside the box while the runtime did not ask us.
    `required`: of the pods of the box that have started here, how many carry the annotation that makes the runtime wait
    for us; `started`: how many these are.
    """

    placing: Placing
    log: FilteringBoundLogger
    acts: bool = False
    runtime: RuntimeSeen = RuntimeSeen()
    asks_resizes: bool = True
    missed: int = 0
    required: int = 0
    started: int = 0
    _heard: set[str] = field(default_factory=set)
    """The sandboxes of the runtime whose start was judged, or that ran before us."""
    _unplaced: dict[str, Pod] = field(default_factory=dict)
    """Of offline pods, those that were not in the box when the runtime first named them."""
    _told: set[str] = field(default_factory=set)
    """The containers outside the box that the runtime has named."""
    _synchronized: bool = False
    _parts: list[nri.SynchronizeRequest] = field(default_factory=list)
    """Of a Synchronize that is too large for one message; pods and containers are cut independently."""

    @property
    def awaits_more(self) -> bool:
        """Whether the runtime has told only a part of what there is."""
        return bool(self._parts)

    # --- calls ------------------------------------------------------------------------------------------------------

    def call(self, method: str, payload: bytes) -> NriAnswer | Pending:
        """The answer, at once where nothing is to be waited for."""
        try:
            return self._call(method, payload)
        except codec.CodecError as error:
            operation = Operation.RUN_POD_SANDBOX if method == "StateChange" else _OPERATIONS.get(method)
            if operation is None or not self.acts:
                return NriRefusal(Code.INTERNAL, f"criproxy can't read {method}: {error}")
            return self._verdict(self.placing.undecodable(operation, str(error)))

    def _call(self, method: str, payload: bytes) -> NriAnswer | Pending:
        if method == "Configure":
            return self._configure(codec.decode(nri.ConfigureRequest, payload))
        if method == "Synchronize":
            return self._synchronize(codec.decode(nri.SynchronizeRequest, payload))
        if method == "StateChange":
            change = codec.decode(nri.StateChangeEvent, payload)
            return self._event(_NAMES.get(change.event, ""), change.pod, change.container)
        if method in _UPDATES:
            return self._update(method, payload)
        if method in _EVENTS:
            event = codec.decode(nri.PodEvent, payload)
            return self._event(method, event.pod, event.container)
        return _NOTHING if method == "Shutdown" else NriRefusal(Code.UNIMPLEMENTED, f"no such method: {method[:40]!r}")

    def _configure(self, asked: nri.ConfigureRequest) -> bytes:
        self._parts.clear()
        self.runtime = RuntimeSeen(
            codec.text(asked.runtime_name),
            codec.text(asked.runtime_version),
            codec.text(asked.NRI_version),
            asked.request_timeout / 1000,
        )
        wanted = dict(_EVENTS)
        if not (self.asks_resizes and self.runtime.knows_resizes):
            del wanted["UpdatePodSandbox"]
        return nri.ConfigureResponse(events=sum(1 << number - 1 for number in wanted.values())).SerializeToString()

    def _update(self, method: str, payload: bytes) -> NriAnswer | Pending:
        operation = _OPERATIONS[method]
        if method == "UpdatePodSandbox":
            resize = codec.decode(nri.UpdatePodSandboxEvent, payload)
            asked, overhead = resize.linux_resources, resize.overhead_linux_resources
            sandbox, call = resize.pod, NriCall(operation, resize.pod, None, asked, overhead)
        else:
            update = codec.decode(nri.UpdateContainerEvent, payload)
            sandbox, call = update.pod, NriCall(operation, update.pod, update.container, update.linux_resources)
        return self._follow(call, sandbox) if self.acts else _NOTHING

    def _event(self, method: str, sandbox: nri.NriPodSandbox, container: nri.NriContainer) -> NriAnswer | Pending:
        sandbox_id = codec.text(sandbox.id)
        if (learn := _OBSERVED.get(method)) is not None:
            of_container = method.endswith("Container")
            learn(self.placing.inventory, codec.text(container.id) if of_container else sandbox_id)
            if method == "RemoveContainer":
                self._told.discard(codec.text(container.id))
            if method == "RemovePodSandbox":
                self._heard.discard(sandbox_id)
                self._unplaced.pop(sandbox_id, None)
            return _NOTHING
        if method == "RunPodSandbox":
            if self.acts:
                return self._judged(NriCall(Operation.RUN_POD_SANDBOX, sandbox))
            if self._find(sandbox):
                self._heard.add(sandbox_id)
            return _NOTHING
        if method == "CreateContainer":
            return self._create(sandbox, container) if self.acts else self._stand_in(sandbox, container)
        return _NOTHING

    # --- starts and what follows ------------------------------------------------------------------------------------

    def _judged(self, call: NriCall) -> NriAnswer | Pending:
        """A start is heard of once it is decided: the runtime may have thrown us out meanwhile."""
        begun = self._start(call)
        if isinstance(begun, Pending):
            return Pending(self._judged_later(call, begun), begun.late)
        return self._judged_so(call, begun)

    async def _judged_later(self, call: NriCall, begun: Pending) -> NriAnswer:
        return self._judged_so(call, await begun.outcome)

    def _judged_so(self, call: NriCall, answer: NriAnswer) -> NriAnswer:
        """The runtime takes down a sandbox that is refused, and tells nobody of its end."""
        if not (call.late or isinstance(answer, NriRefusal)):
            self._heard.add(call.sandbox_id)
        return answer

    def _start(self, call: NriCall) -> NriAnswer | Pending:
        return self._settled(call, self.placing.start(call))

    def _create(self, sandbox: nri.NriPodSandbox, container: nri.NriContainer) -> NriAnswer | Pending:
        call = NriCall(Operation.CREATE_CONTAINER, sandbox, container)
        if codec.text(sandbox.id) in self._heard:
            return self._follow(call, sandbox)
        start = NriCall(Operation.RUN_POD_SANDBOX, sandbox)
        if self._find(sandbox):
            self._heard.add(start.sandbox_id)
            return self._follow(call, sandbox)
        begun = self._start(start)
        if isinstance(begun, bytes):
            self._heard.add(start.sandbox_id)
            return self._follow(call, sandbox)
        if isinstance(begun, NriRefusal):
            return begun
        return Pending(self._create_later(begun, call, sandbox), lambda limit_s: self._late(call, limit_s))

    def _stand_in(self, sandbox: nri.NriPodSandbox, container: nri.NriContainer) -> NriAnswer | Pending:
        """Before our turn: for what the process whose turn it is has not placed. It was too slow, so the runtime has
        thrown it out, and asks nobody but us.
        """
        call, sandbox_id = NriCall(Operation.CREATE_CONTAINER, sandbox, container), codec.text(sandbox.id)
        if self._find(sandbox):
            known = self.placing.inventory.known(sandbox_id)
            placement = None if known is None else known.placement
            placed = placement is not None and codec.lies_in(codec.text(container.linux.cgroups_path), placement)
            return _NOTHING if placed else self._follow(call, sandbox)
        if self.placing.settings.admission.dry_run or sandbox_id not in self._unplaced or sandbox_id in self._heard:
            return _NOTHING
        return self._verdict(self.placing.not_placed(call))

    async def _create_later(self, begun: Pending, call: NriCall, sandbox: nri.NriPodSandbox) -> NriAnswer:
        if isinstance(answer := await begun.outcome, NriRefusal):
            return answer
        self._heard.add(call.sandbox_id)
        followed = self._follow(call, sandbox)
        return await followed.outcome if isinstance(followed, Pending) else followed

    def _follow(self, call: NriCall, sandbox: nri.NriPodSandbox) -> NriAnswer | Pending:
        if call.sandbox_id in self._unplaced or self.placing.inventory.known(call.sandbox_id) is None:
            self._find(sandbox)
        return self._settled(call, self.placing.follow(call))

    def _settled(self, call: NriCall, outcome: PlacingOutcome | Awaitable[PlacingOutcome]) -> NriAnswer | Pending:
        if isinstance(outcome, Proceed | RefusedCall):
            return self._done(call, outcome)
        return Pending(self._settled_later(call, outcome), lambda limit_s: self._late(call, limit_s))

    async def _settled_later(self, call: NriCall, outcome: Awaitable[PlacingOutcome]) -> NriAnswer:
        return self._done(call, await outcome)

    def _late(self, call: NriCall, limit_s: float) -> NriAnswer:
        return self._verdict(self.placing.late(call, limit_s))

    def _done(self, call: NriCall, outcome: PlacingOutcome) -> NriAnswer:
        """What is answered is as good as done: where the runtime fails afterwards, a later listing says so."""
        if isinstance(outcome, Proceed) and outcome.learns and not call.late:
            containers = [(call.container_id, part.container) for part in call.parts] if call.container_id else []
            self.placing.done(call, outcome, Made(call.sandbox_id, containers))
            if call.operation in STARTS and outcome.place is not None and call.pod is not None:
                self.started += 1
                self.required += is_required(call.pod)
        return self._verdict(outcome)

    def _verdict(self, outcome: PlacingOutcome) -> NriAnswer:
        if isinstance(outcome, RefusedCall):
            return NriRefusal(code_of(outcome.cause), outcome.words)
        return outcome.message or _NOTHING

    # --- what is there already --------------------------------------------------------------------------------------

    def _synchronize(self, now: nri.SynchronizeRequest) -> bytes:
        self._parts.append(now)
        if not now.more:
            pods = [pod for part in self._parts for pod in part.pods]
            self._judge_all(pods, [container for part in self._parts for container in part.containers])
            self._parts.clear()
        return nri.SynchronizeResponse(more=now.more).SerializeToString()

    def _judge_all(self, pods: Sequence[nri.NriPodSandbox], containers: Sequence[nri.NriContainer]) -> None:
        """All that the runtime has."""
        starts, begun = [], {codec.text(container.pod_sandbox_id) for container in containers}
        for sandbox in pods:
            sandbox_id = codec.text(sandbox.id)
            missed = not self._find(sandbox) and sandbox_id not in self._heard and sandbox_id in self._unplaced
            if missed and self._synchronized:
                starts.append(str(self._unplaced[sandbox_id].ref))  # made up for with its next container
            elif not missed or sandbox_id in begun:  # what has no container can still be placed, with its first
                self._heard.add(sandbox_id)
        outside = [self._whose(one) for one in containers if self._is_outside(one)]
        for container in containers:
            self.placing.inventory.container_created(
                *map(codec.text, (container.id, container.pod_sandbox_id, container.name))
            )
        if starts or outside:
            self.missed += len(outside)
            self.log.warning("nri_missed", pods=starts, containers=outside, reason="the runtime did not ask criproxy")
        sandbox_ids = {codec.text(one.id) for one in pods}
        self._heard &= sandbox_ids
        self._unplaced = {id: pod for id, pod in self._unplaced.items() if id in sandbox_ids}
        self._told &= {codec.text(one.id) for one in containers}
        self._synchronized = self.placing.inventory.places_known = True

    def _is_outside(self, container: nri.NriContainer) -> bool:
        """Whether it lives outside the box, while its pod is in it, or has started while nobody asked us."""
        if container.state not in _LIVES or codec.text(container.id) in self._told:
            return False
        sandbox_id = codec.text(container.pod_sandbox_id)
        known = self.placing.inventory.known(sandbox_id)
        if known is not None and known.placement is not None:
            outside = not codec.lies_in(codec.text(container.linux.cgroups_path), known.placement)
        else:
            outside = sandbox_id in self._unplaced and sandbox_id not in self._heard
        if outside:
            self._told.add(codec.text(container.id))
        return outside

    def _whose(self, container: nri.NriContainer) -> str:
        known = self.placing.inventory.known(codec.text(container.pod_sandbox_id))
        return f"{'' if known is None else known.pod}, container {codec.text(container.name)}"

    def memory(self) -> PluginMemory:
        inventory, settings = self.placing.inventory, self.placing.settings
        places = {one.id: one.placement for one in inventory.placed if one.placement is not None}
        rules = (*settings.admission.rules.every, *settings.hardening.allow)
        read = _READ | {rule.key for rule in rules}
        return PluginMemory(
            self.runtime,
            self.asks_resizes,
            inventory.ids,
            tuple(self._heard),
            tuple(
                replace(
                    one,
                    placement=places[one.id],
                    labels=_cut(one.labels, read),
                    annotations=_cut(one.annotations, read),
                )
                for one in inventory.marked
            ),
            tuple(self._told),
            self.missed,
            self.required,
            self.started,
        )

    def recall(self, before: PluginMemory) -> None:
        """That of the process whose connection this one goes on with, instead of Configure and Synchronize."""
        self.runtime, self.asks_resizes = before.runtime, before.asks_resizes
        self._heard.update(before.heard)
        self._told.update(before.told)
        self.missed += before.missed
        self.required += before.required
        self.started += before.started
        inventory = self.placing.inventory
        inventory.no_others(before.there)
        for one in before.placed:
            self._know(one.id, Pod(one.pod, one.labels, one.annotations), one.placement)
        self._synchronized = inventory.places_known = True

    def act(self) -> None:
        """From now on, it is this process that places pods; what another has placed until now is found again."""
        if self.acts:
            return
        self.acts = True
        for sandbox_id, pod in list(self._unplaced.items()):
            self._place(sandbox_id, pod)

    def _find(self, sandbox: nri.NriPodSandbox) -> bool:
        """Have the inventory know a sandbox; whether it is in the box."""
        sandbox_id = codec.text(sandbox.id)
        known = self.placing.inventory.known(sandbox_id)
        if known is not None and known.placement is not None:
            return True
        pod = codec.pod_of(sandbox)
        if self._place(sandbox_id, pod):
            return True
        if known is None:
            self._know(sandbox_id, pod, None)
        return False

    def _place(self, sandbox_id: str, pod: Pod) -> bool:
        """Whether the pod is in the box, which the inventory then knows."""
        if (place := self._place_of(pod)) is None:
            if self.placing.settings.admission.why_offline(pod) is not None:
                self._unplaced[sandbox_id] = pod
            return False
        self._unplaced.pop(sandbox_id, None)
        self._know(sandbox_id, pod, place)
        return True

    def _know(self, sandbox_id: str, pod: Pod, place: str | None) -> None:
        sandbox = described(sandbox_id, pod.ref, place, pod.labels, pod.annotations)
        self.placing.inventory.sandbox_found(sandbox, pod)

    def _place_of(self, pod: Pod) -> str | None:
        """Where the pod is in the box, by the cgroup of its own that is there: a stat of a kernel's file system."""
        if (place := codec.in_box_by_cri(pod)) is not None:
            return place
        try:
            place = kubelets_place(pod).in_box
            return place if self.placing.inventory.cgroups.exists(place) else None
        except (ValueError, CgroupError):
            return None


def _cut(texts: Mapping[str, str], keys: frozenset[str]) -> dict[str, str]:
    """Of a pod's labels or annotations, those that are read, as far as they are: the others may be of any length."""
    return {key: texts[key][: MOST_RECORDED + 1] for key in keys if key in texts}


def _version(said: str) -> tuple[int, ...]:
    """Of the form 1.7.27; (): it says something else."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", said)
    return tuple(map(int, found[1].split("."))) if found else ()
