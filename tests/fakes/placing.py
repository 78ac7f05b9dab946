"""A front's calls as plain data, and a Placing with everything around it scripted."""

import asyncio
import json
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field

import structlog

from criproxy.cgroup.naming import Driver
from criproxy.hooks import Chain, HookSettings, offline_chain
from criproxy.hooks.hardening import Hardening
from criproxy.hooks.offline import OfflineRules, Rule, Subject, Test
from criproxy.model import (
    UNLIMITED,
    Adjustment,
    AdmissionError,
    HostMount,
    Operation,
    Pod,
    PodRef,
    Resources,
    Sandbox,
    Security,
    Target,
    Unlimited,
)
from criproxy.model.cpulist import Cpus, format_cpus
from criproxy.pods.admission import AdmissionSettings
from criproxy.pods.inventory import Inventory, PodObserver
from criproxy.pods.kubelets_driver import KubeletsDriver
from criproxy.pods.placing import Made, Placing, PlacingOutcome, PlacingSettings, Proceed, RefusedCall
from criproxy.pods.runtime import ListedContainer, ListedSandbox, Running
from tests.fakes.box import FakeAdmissions
from tests.fakes.counters import FakeCounters

RULES = OfflineRules((Rule(Subject.LABEL, "class", Test.EQUALS, "offline"),))
CHAIN = offline_chain(HookSettings(child_quota=False))
ON, OFF, DRY = AdmissionSettings(True, RULES), AdmissionSettings(False, RULES), AdmissionSettings(True, RULES, True)

REF = PodRef("1", "batch", "job")
KUBELET = "/kubepods/besteffort/pod1"
BOXED = "/offline/pod1"


def pod(offline: bool, parent: str = KUBELET, **annotations: str) -> Pod:
    return Pod(REF, {"class": "offline" if offline else "online"}, annotations, parent)


# --- a front -------------------------------------------------------------------------------------------------------


@dataclass
class FakePart:
    """`fields`: what was applied, by its place."""

    target: Target = Target.CONTAINER
    container: str = ""
    resources: Resources = field(default_factory=Resources)
    security: Security = field(default_factory=Security)
    fields: dict[str, str | int | None] = field(default_factory=dict)

    def reaches(self, adjustment: Adjustment) -> bool:
        return True

    def apply(self, adjustment: Adjustment) -> str | int | None:
        if adjustment.field == "no_such_field":
            raise ValueError("there is no such field")
        self.fields[adjustment.place] = adjustment.value
        return None


@dataclass
class FakeCall:
    """Encoded, it is the fields of its parts, as JSON. `stuck`: it can't be."""

    operation: Operation
    pod: Pod | None = None
    sandbox_id: str = ""
    container_id: str = ""
    pod_resources: Resources = field(default_factory=Resources)
    parts: list[FakePart] = field(default_factory=list)
    stuck: bool = False
    late: bool = False

    def encode(self) -> bytes:
        if self.stuck:
            raise RuntimeError("boom")
        return json.dumps([part.fields for part in self.parts]).encode()


def start(pod: Pod, memory_limit_bytes: int = 0) -> FakeCall:
    resources = Resources(memory_limit_bytes=memory_limit_bytes)
    return FakeCall(Operation.RUN_POD_SANDBOX, pod, pod_resources=resources, parts=[FakePart(Target.SANDBOX)])


def create(pod: Pod, sandbox_id: str = "s1", container: str = "main", cpus: str = "") -> FakeCall:
    part = FakePart(container=container, resources=Resources(cpu_quota_us=5000, cpuset_cpus=cpus))
    return FakeCall(Operation.CREATE_CONTAINER, pod, sandbox_id, parts=[part])


def update(container_id: str = "c1", cpus: str = "") -> FakeCall:
    part = FakePart(resources=Resources(cpuset_cpus=cpus))
    return FakeCall(Operation.UPDATE_CONTAINER_RESOURCES, container_id=container_id, parts=[part])


def resize(sandbox_id: str = "s1", memory_limit_bytes: int = 100) -> FakeCall:
    wanted = Resources(memory_limit_bytes=memory_limit_bytes)
    part = FakePart(Target.SANDBOX)
    return FakeCall(Operation.UPDATE_POD_SANDBOX_RESOURCES, sandbox_id=sandbox_id, pod_resources=wanted, parts=[part])


# --- what stands around it ------------------------------------------------------------------------------------------


@dataclass
class ScriptedRuntime:
    """The runtime's lists: placements by sandbox id, sandbox ids by container id. `error`: why there are none."""

    placements: dict[str, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    error: Exception | None = None
    ready: bool = True
    pid: int = 0

    async def sandboxes(self, sandbox_id: str = "") -> list[ListedSandbox]:
        self._answer()
        found = ((one, place) for one, place in self.placements.items() if sandbox_id in ("", one))
        return [ListedSandbox(one, REF, place, True, {}, {}) for one, place in found]

    async def containers(self, container_id: str = "") -> list[ListedContainer]:
        self._answer()
        found = ((one, owner) for one, owner in self.owners.items() if container_id in ("", one))
        return [ListedContainer(one, owner, "", True) for one, owner in found]

    def _answer(self) -> None:
        if self.error is not None:
            raise self.error


@dataclass
class FakeCpuManager:
    """`leaves`: the CPUs of the box; `looks`: what it was asked for, "" for a pod that starts."""

    leaves: Cpus | Unlimited = UNLIMITED
    error: str = ""
    looks: list[str] = field(default_factory=list)

    def pod_starts(self, pod: Pod) -> None:
        self.looks.append("")

    async def within(self, asked: Cpus) -> Cpus | Unlimited:
        self.looks.append(format_cpus(asked))
        if self.error:
            raise AdmissionError(self.error)
        return self.leaves


@dataclass
class FakeHolds:
    """`by_uid`: why a pod is held. `broken`: it can't be told."""

    by_uid: dict[str, str] = field(default_factory=dict)
    broken: bool = False

    def held(self, pod: PodRef) -> str:
        if self.broken:
            raise RuntimeError("boom")
        return self.by_uid.get(pod.uid, "")

    held_itself = held


@dataclass
class FakeHostPaths:
    """`refused`: what leads where no offline pod may go; `asked`: the mounts that it was asked for."""

    refused: frozenset[str] = frozenset()
    asked: list[HostMount] = field(default_factory=list)

    def suspects(self, uid: str, mounts: Sequence[HostMount]) -> Sequence[HostMount]:
        return [one for one in mounts if not one.path.startswith("/var/lib/kubelet/")]

    async def check(self, uid: str, suspects: Sequence[HostMount], hardening: Hardening) -> None:
        self.asked += suspects
        if found := self.refused.intersection(one.path for one in suspects):
            raise AdmissionError(f"{sorted(found)} lead out of the box")


@dataclass
class FakeCgroups:
    """`has`: the pods' cgroups in the box; None: all that are asked for. `root`: what the box lies below."""

    has: set[str] | None = None
    root: str = ""

    def exists(self, path: str) -> bool:
        return path.startswith(f"{self.root}/offline/") and (self.has is None or path in self.has)


@dataclass
class PlacingBench(PodObserver):
    """A Placing, and what its observers hear of pods."""

    admission: AdmissionSettings = ON
    chain: Chain = CHAIN
    runtime: ScriptedRuntime = field(default_factory=ScriptedRuntime)
    box: FakeAdmissions = field(default_factory=FakeAdmissions)
    counters: FakeCounters = field(default_factory=FakeCounters)
    cpu_manager: FakeCpuManager = field(default_factory=FakeCpuManager)
    holds: FakeHolds = field(default_factory=FakeHolds)
    host_paths: FakeHostPaths = field(default_factory=FakeHostPaths)
    cgroups: FakeCgroups = field(default_factory=FakeCgroups)
    started: list[Running] = field(default_factory=list)
    removed: list[Sandbox] = field(default_factory=list)
    resizes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        log = structlog.get_logger()
        self.inventory = Inventory(self.runtime, self.cgroups)  # type: ignore[arg-type]
        self.inventory.watch(self)
        self.kubelets_driver = KubeletsDriver(self.inventory, self.runtime, None, log)  # type: ignore[arg-type]
        self.placing = Placing(
            PlacingSettings(self.admission, self.chain),
            self.inventory,
            self.box,
            self.cpu_manager,
            self.kubelets_driver,
            self.holds,
            self.host_paths,
            self.counters,
            log,
        )

    def configure(self, admission: AdmissionSettings, hooks: HookSettings | None = None) -> None:
        hooks = hooks or HookSettings(child_quota=False)
        self.placing.configure(PlacingSettings(admission, offline_chain(hooks), hooks.hardening))

    @property
    def driver(self) -> Driver | None:
        return self.kubelets_driver.driver

    def resize_asked(self, sandbox: Sandbox) -> None:
        self.resizes.append(f"asked {sandbox.id}")

    def resize_done(self, sandbox: Sandbox) -> None:
        self.resizes.append(f"done {sandbox.id}")

    def pod_started(self, running: Running) -> None:
        self.started.append(running)

    def pod_removed(self, sandbox: Sandbox) -> None:
        self.removed.append(sandbox)

    def place(self, call: FakeCall, made: Made | None = None) -> PlacingOutcome:
        """What becomes of a call. With `made`, the runtime does what proceeds."""
        starts = call.operation in (Operation.RUN_POD_SANDBOX, Operation.RESTORE_POD)
        found = self.placing.start(call) if starts else self.placing.follow(call)
        outcome = found if isinstance(found, Proceed | RefusedCall) else asyncio.run(_wait(found))
        if made is not None and isinstance(outcome, Proceed) and outcome.learns:
            self.placing.done(call, outcome, made)
        return outcome

    def run_pod(self, pod: Pod, sandbox_id: str = "s1") -> PlacingOutcome:
        return self.place(start(pod), Made(sandbox_id))


async def _wait(found: Awaitable[PlacingOutcome]) -> PlacingOutcome:
    return await found
