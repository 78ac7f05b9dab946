"""What becomes of the calls that hooks name: open, judge, admit into the box, rewrite, learn from the answer.

The promises, as they are kept here:
  - a call of a pod that is not offline is forwarded as the very bytes that came, also when something here fails;
  - a call of an offline pod that can't be rewritten is refused (kubelet retries): unbounded is worse than late. So is,
    while pods are placed, one that can't be decoded: runtimes read some bytes that our protobuf does not;
  - a pod keeps the placement that it started with: containers follow their sandbox, whatever the config says now.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import structlog
from msgspec import Struct

from criproxy.cgroup.naming import Driver, PodParent, parse_kubelet_parent, parse_placement
from criproxy.fronts.cri import codec
from criproxy.fronts.engine import Forward, Refuse, Verdict
from criproxy.hooks import Chain
from criproxy.hooks.offline import OfflineRules
from criproxy.model import UNLIMITED, AdmissionError, Call, Operation, Pod, PodRef, Sandbox, type_unlimited
from criproxy.model.cpulist import Cpus, parse_cpus
from criproxy.pods.inventory import Inventory
from criproxy.pods.runtime import Running

FAILED_PRECONDITION: Final = 9
INTERNAL: Final = 13
UNAVAILABLE: Final = 14

_SHOWN_NAME: Final = 320  # namespace and name are at most 63 and 253 characters
_SHOWN_TEXT: Final = 2048

_SERVICES: Final = tuple(f"{slash}runtime.{api}.RuntimeService" for slash in ("/", "") for api in ("v1", "v1alpha2"))
"""gRPC-Go serves a path without its first slash as well. Source: google.golang.org/grpc, Server.handleStream."""

_OBSERVED: Final = ("StartContainer", "StopPodSandbox", "RemovePodSandbox", "RemoveContainer")
_OPERATIONS: Final[Mapping[str, Operation]] = {
    f"{service}/{operation}": operation for service in _SERVICES for operation in Operation
}
_METHODS: Final = frozenset(_OPERATIONS) | {f"{service}/{method}" for service in _SERVICES for method in _OBSERVED}


class Admission(Protocol):
    """The box, as far as requests need it. Both raise AdmissionError."""

    async def admit(self, place: PodParent, memory_bytes: int) -> None:
        """Bound the box and make the pod's cgroup in it, with what kubelet has set on its own one.

        `memory_bytes`: the pod's memory limit by the request, 0: it names none.
        """
        ...

    async def update_pod(self, place: PodParent, memory_bytes: int) -> None:
        """Take up what kubelet has set on its own cgroup of the pod by now; `memory_bytes` as in `admit`."""
        ...

    def forget(self, name: str) -> None:
        """The pod's start is over: the inventory knows its sandbox."""
        ...


class CpuManager(Protocol):
    """Kubelet's CPU manager, as far as requests need it."""

    def pod_starts(self) -> None:
        """A pod, online or not, is about to start: it may have been given CPUs just now."""
        ...

    async def within(self, asked: Cpus) -> Cpus | type_unlimited:
        """The CPUs of the box, now that kubelet wants `asked` for a container in it; raises AdmissionError."""
        ...


class Counters(Protocol):
    """Where interception counts what it did."""

    def on_rewrite(self, operation: str) -> None: ...

    def on_refusal(self, operation: str, reason: str) -> None: ...


class Settings(Struct, frozen=True):
    """What a reload may change. With `dry_run`, what would be placed is logged, and the bytes that came go on;
    pods that are in the box already, from a run before, are kept there.

    `closed`: why no new offline pod is let in now; "": it is.
    """

    enabled: bool
    rules: OfflineRules
    dry_run: bool = False
    closed: str = ""


class _Learn(Struct, frozen=True):
    """The ticket of a call: what to do with its OK answer."""

    learn: Callable[[bytes], None]


class HookInterceptor:
    """The `engine.Interceptor` that applies the hook chain. `settings` may be replaced at any time.

    `child_quota`: see model.Call. `on_started` is called with what the runtime has started in the box, `on_removed`
    with a placed sandbox that it has removed. `held` says why a pod may not start in the box for now, "" when it may.
    """

    def __init__(
        self,
        settings: Settings,
        chain: Chain,
        inventory: Inventory,
        admission: Admission,
        counters: Counters,
        *,
        child_quota: bool,
        on_started: Callable[[Running], None],
        on_removed: Callable[[Sandbox], None],
        held: Callable[[PodRef], str],
        cpu_manager: CpuManager,
    ) -> None:
        self.settings = settings
        self.kubelets_driver: Driver | None = None
        """Kubelet's cgroup driver, as the last start of any pod tells, before it a running pod; None: none has told."""
        self._told_below = ""
        """The cgroup that the pod which told was in."""
        self._chain = chain
        self._inventory = inventory
        self._admission = admission
        self._cpu_manager = cpu_manager
        self._counters = counters
        self._child_quota = child_quota
        self._on_started = on_started
        self._on_removed = on_removed
        self._held = held
        self._log = structlog.get_logger()

    def wants(self, method: str) -> bool:
        return method in _METHODS

    def request(self, method: str, message: bytes) -> Verdict | Awaitable[Verdict]:
        operation = _OPERATIONS.get(method)
        if operation is None:
            return Forward(message, _Learn(lambda _: self._observe(method, message)))
        try:
            request = codec.Request(operation, message)
        except codec.CodecError as error:
            return self._undecodable(operation, message, error)
        match operation:
            case Operation.RUN_POD_SANDBOX | Operation.RESTORE_POD:
                return self._start(request, message)
            case Operation.CREATE_CONTAINER:
                return self._create(request, message)
            case _:
                return self._update(request, message)

    def answered(self, ticket: object, message: bytes) -> None:
        assert isinstance(ticket, _Learn)
        try:
            ticket.learn(message)
        except codec.CodecError as error:
            self._log.warning("answer_undecodable", error=str(error))

    def _undecodable(self, operation: Operation, message: bytes, error: codec.CodecError) -> Verdict:
        """The runtime may read it all the same, and see an offline pod there: it passes where no pod is placed."""
        placing = self.settings.enabled and not self.settings.dry_run
        starts = operation in (Operation.RUN_POD_SANDBOX, Operation.RESTORE_POD)
        passes = not placing and (starts or not self._inventory.placed)
        self._log.warning("request_undecodable", method=operation, error=str(error), refused=not passes)
        if passes:
            return Forward(message)
        self._counters.on_refusal(operation, "undecodable")
        return Refuse(
            INTERNAL, f"criproxy refuses {operation}: it can't be told whether its pod is offline, as {error}"
        )

    def _why_offline(self, pod: Pod) -> str | None:
        return self.settings.rules.why(pod) if self.settings.enabled else None

    def _start(self, request: codec.Request, message: bytes) -> Verdict | Awaitable[Verdict]:
        """RunPodSandbox, RestorePod: the one moment at which a pod is placed."""
        asked = request.pod
        assert asked is not None
        pod = asked.ref
        self._learn_driver(asked)
        self._cpu_manager.pod_starts()
        why = self._why_offline(asked)
        if why is None:
            return Forward(message, self._learn_sandbox(request, pod, None))
        try:
            return self._start_offline(request, message, asked, why)
        except Exception as error:
            if not self.settings.dry_run:
                return self._failed(request, pod, error)
            self._complain(error)
            return Forward(message)

    def _start_offline(
        self, request: codec.Request, message: bytes, asked: Pod, why: str
    ) -> Verdict | Awaitable[Verdict]:
        pod = asked.ref
        try:
            place = _place(asked)
        except ValueError as error:
            return self._refuse(request, pod, FAILED_PRECONDITION, "no_place", f"{error}; the pod is offline: {why}")
        closed = self.settings.closed or self._held(pod)
        if self.settings.dry_run:
            if closed:
                self._log.info("would_refuse", pod=str(pod), pod_uid=pod.uid, method=request.operation, error=closed)
            else:
                self._rewrite(request, pod, place.in_box, why, None, event="would_rewrite")
            return Forward(message, self._learn_sandbox(request, pod, None))
        if closed:
            return self._refuse(request, pod, FAILED_PRECONDITION, "closed", f"{closed}; kubelet tries again by itself")
        return self._admit(request, pod, place, why)

    def _learn_driver(self, pod: Pod) -> None:
        below = pod.cgroup_parent.rpartition("/")[0]
        if self.kubelets_driver is None or below != self._told_below:
            with contextlib.suppress(ValueError):
                self.kubelets_driver, self._told_below = _place(pod).box.driver, below

    async def _admit(self, request: codec.Request, pod: PodRef, place: PodParent, why: str) -> Verdict:
        try:
            await self._admission.admit(place, request.pod_memory_bytes)
        except AdmissionError as error:
            return self._refuse(request, pod, FAILED_PRECONDITION, "not_admitted", str(error))
        except Exception as error:
            return self._failed(request, pod, error)
        return await self._rewrite_within(request, pod, place.in_box, why, self._learn_sandbox(request, pod, place))

    async def _create(self, request: codec.Request, message: bytes) -> Verdict:
        """CreateContainer: a container follows its sandbox."""
        try:
            sandbox = await self._inventory.sandbox(request.sandbox_id)
        except Exception as error:
            self._complain(error)
            pod = request.pod
            if pod is not None and self._why_offline(pod) is not None:
                reason = f"the runtime does not tell where sandbox {request.sandbox_id} is: {error}"
                return self._refuse(request, pod.ref, UNAVAILABLE, "unknown_sandbox", reason)
            return Forward(message)

        def learn(answer: bytes) -> None:
            owner = request.sandbox_id if sandbox is None else sandbox.id
            self._inventory.container_created(codec.created_container(answer), owner, request.parts[0].container)

        if sandbox is None or sandbox.placement is None:
            return Forward(message, _Learn(learn))
        why = "its sandbox is in the box"
        return await self._rewrite_within(request, sandbox.pod, sandbox.placement, why, _Learn(learn))

    async def _update(self, request: codec.Request, message: bytes) -> Verdict:
        """UpdateContainerResources, UpdatePodSandboxResources: in the box, the same rules hold as at the start."""
        try:
            if request.operation is Operation.UPDATE_POD_SANDBOX_RESOURCES:
                sandbox = await self._inventory.sandbox(request.sandbox_id)
            else:
                sandbox = await self._inventory.sandbox_of(request.container_id)
        except Exception as error:
            self._complain(error)
            self._log.warning("update_not_judged", method=request.operation, error=str(error))
            return Forward(message)
        if sandbox is None or sandbox.placement is None:
            return Forward(message)
        if request.operation is Operation.UPDATE_POD_SANDBOX_RESOURCES and not self.settings.dry_run:
            # Kubelet resizes the pod's cgroup in its own tree; the one in the box is ours to resize.
            try:
                await self._admission.update_pod(parse_placement(sandbox.placement), request.pod_memory_bytes)
            except AdmissionError as error:
                return self._refuse(request, sandbox.pod, FAILED_PRECONDITION, "not_resized", str(error))
            except Exception as error:
                return self._failed(request, sandbox.pod, error)
        return await self._rewrite_within(request, sandbox.pod, sandbox.placement, "its sandbox is in the box", None)

    async def _rewrite_within(
        self, request: codec.Request, pod: PodRef, placement: str, why: str, ticket: _Learn | None
    ) -> Verdict:
        """Rewrite, once the box has the CPUs that are asked for, as far as they are offline pods' to have."""
        cpus: Cpus | type_unlimited = UNLIMITED
        if not self.settings.dry_run and (asked := _cpus_asked(request)):
            try:
                cpus = await self._cpu_manager.within(asked)
            except AdmissionError as error:
                return self._refuse(request, pod, FAILED_PRECONDITION, "no_cpus", str(error))
            except Exception as error:
                return self._failed(request, pod, error)
        return self._rewrite(request, pod, placement, why, ticket, cpus=cpus)

    def _rewrite(
        self,
        request: codec.Request,
        pod: PodRef,
        placement: str,
        why: str,
        ticket: _Learn | None,
        *,
        event: str = "rewrite",
        cpus: Cpus | type_unlimited = UNLIMITED,
    ) -> Verdict:
        try:
            entries: list[dict[str, object]] = []
            for part in request.parts:
                changes = self._chain.adjust(self._call(request, part, pod, placement, cpus))
                entries += [_audit_fields(part, entry) for entry in request.apply(part, changes)]
            message = request.encode()
        except Exception as error:
            return self._failed(request, pod, error)
        if event == "rewrite":
            self._counters.on_rewrite(request.operation)
        self._log.info(
            event, pod=str(pod), pod_uid=pod.uid, method=request.operation, offline_because=why, changes=entries
        )
        return Forward(message, ticket)

    def _call(
        self, request: codec.Request, part: codec.Part, pod: PodRef, placement: str, cpus: Cpus | type_unlimited
    ) -> Call:
        return Call(
            operation=request.operation,
            target=part.target,
            pod=pod,
            placement=placement,
            resources=part.resources,
            child_quota=self._child_quota,
            container=part.container,
            added_capabilities=part.added_capabilities,
            cpus=cpus,
        )

    def _failed(self, request: codec.Request, pod: PodRef, error: Exception) -> Refuse:
        """A fault of our own amid an offline pod's call, logged with where it arose."""
        self._log.error("hook_failed", pod=str(pod), pod_uid=pod.uid, method=request.operation, exc_info=error)
        return self._refuse(request, pod, INTERNAL, "hook_failed", f"{type(error).__name__}: {error}")

    def _complain(self, error: Exception) -> None:
        """Log where an error arose, unless it is one that the runtime's silence or the box explains."""
        if not isinstance(error, ConnectionError | codec.CodecError | AdmissionError):
            self._log.error("interceptor_failed", exc_info=error)

    def _refuse(self, request: codec.Request, pod: PodRef, code: int, reason: str, text: str) -> Refuse:
        self._counters.on_refusal(request.operation, reason)
        self._log.warning("refused", pod=str(pod), pod_uid=pod.uid, method=request.operation, reason=reason, error=text)
        shown = f"{_shown(str(pod), _SHOWN_NAME)}: {_shown(text, _SHOWN_TEXT)}"
        return Refuse(code, f"criproxy refuses {request.operation} of offline pod {shown}")

    def _learn_sandbox(self, request: codec.Request, pod: PodRef, place: PodParent | None) -> _Learn:
        def learn(answer: bytes) -> None:
            sandbox_id, containers = codec.started_sandbox(request.operation, answer)
            self._started(self._inventory.sandbox_started(Sandbox(sandbox_id, pod, place.in_box if place else None)))
            for container_id, name in containers:
                self._inventory.container_created(container_id, sandbox_id, name)
                self._started(self._inventory.container_started(container_id))
            if place:
                self._admission.forget(place.name)

        return _Learn(learn)

    def _started(self, running: Running | None) -> None:
        if running is not None:
            self._on_started(running)

    def _observe(self, method: str, request: bytes) -> None:
        """The runtime has done what `request` asked for."""
        if method.endswith("/StartContainer"):
            self._started(self._inventory.container_started(codec.started_container(request)))
        elif method.endswith("/StopPodSandbox"):
            self._inventory.sandbox_stopped(codec.stopped_sandbox(request))
        elif method.endswith("/RemoveContainer"):
            self._inventory.container_removed(codec.removed_container(request))
        else:
            sandbox = self._inventory.sandbox_removed(codec.removed_sandbox(request))
            if sandbox is not None and sandbox.placement is not None:
                self._on_removed(sandbox)


def _place(pod: Pod) -> PodParent:
    """Where kubelet puts the pod, in the box's terms. Raises ValueError."""
    place = parse_kubelet_parent(pod.cgroup_parent)
    if not place.is_of(pod.ref.uid):  # such a placement would not be believed after a restart
        raise ValueError(f"cgroup_parent {pod.cgroup_parent!r} is not the cgroup of a pod with uid {pod.ref.uid!r}")
    return place


def _cpus_asked(request: codec.Request) -> Cpus:
    """All CPUs that a request asks for; what is no list of CPUs is the runtime's to refuse."""
    asked: Cpus = frozenset()
    for part in request.parts:
        with contextlib.suppress(ValueError):
            asked |= parse_cpus(part.resources.cpuset_cpus)
    return asked


def _shown(text: str, characters: int) -> str:
    """What a status may carry: a pod's text can be of any length, and is not always UTF-8."""
    cut = text if len(text) <= characters else f"{text[:characters]}..."
    return cut.encode("ascii", "backslashreplace").decode()


def _audit_fields(part: codec.Part, entry: codec.AuditEntry) -> dict[str, object]:
    where = {"container": part.container} if part.container else {}
    return {**where, "field": entry.field, "old": entry.old, "new": entry.new, "reason": entry.reason}
