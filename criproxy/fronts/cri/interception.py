"""CRI's calls about pods, opened: facts for `pods.admission.judge`, then what its judgement says.

There is no rule here on who is placed, refused or left alone. A call that passes is forwarded as the very bytes that
came, also when something here fails; when something fails amid the call of an offline pod, the call is refused.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy.fronts.cri import codec
from criproxy.fronts.cri.methods import APIS
from criproxy.fronts.engine import AnswerError, Forward, Learner, Verdict
from criproxy.fronts.http2.codes import Code
from criproxy.hooks.batch import asked_by, of_pod
from criproxy.hooks.tiers import is_mid
from criproxy.model import (
    STARTS,
    UNLIMITED,
    AdmissionError,
    Asked,
    Counters,
    Operation,
    Pod,
    PodRef,
    PodRequest,
    Sandbox,
    Unlimited,
)
from criproxy.model.cpulist import Cpus
from criproxy.pods import admission
from criproxy.pods.cpu_manager import CpuManager
from criproxy.pods.inventory import Inventory, described
from criproxy.pods.kubelets_driver import KubeletsDriver
from criproxy.pods.placing import PlacingSettings
from criproxy.pods.stopping import Holds

_CODES: Final = {
    admission.Cause.UNDECODABLE: Code.INTERNAL,
    admission.Cause.HOOK_FAILED: Code.INTERNAL,
    admission.Cause.UNKNOWN_SANDBOX: Code.UNAVAILABLE,
}

_NOBODY: Final = PodRef("", "", "")

_SHOWN_NAME: Final = 320  # namespace and name are at most 63 and 253 characters
_SHOWN_TEXT: Final = 2048

_SERVICES: Final = tuple(f"{slash}{api}.RuntimeService" for slash in ("/", "") for api in APIS)
"""gRPC-Go serves a path without its first slash as well. Source: google.golang.org/grpc, Server.handleStream."""

_OPERATIONS: Final[Mapping[str, Operation]] = {
    f"{service}/{operation}": operation for service in _SERVICES for operation in Operation
}


_OBSERVED: Final[Mapping[str, Callable[[Inventory, str], None]]] = {
    f"{service}/{method}": learn
    for service in _SERVICES
    for method, learn in (
        ("StartContainer", Inventory.container_started),
        ("StopPodSandbox", Inventory.sandbox_stopped),
        ("RemovePodSandbox", Inventory.sandbox_removed),
        ("RemoveContainer", Inventory.container_removed),
    )
}


class HookInterceptor(Struct, eq=False):
    """The `engine.Interceptor` that judges, and applies the hook chain."""

    settings: PlacingSettings
    inventory: Inventory
    box: admission.AdmitsPods
    cpu_manager: CpuManager
    kubelets_driver: KubeletsDriver
    holds: Holds
    counters: Counters
    log: FilteringBoundLogger

    def configure(self, settings: PlacingSettings) -> None:
        self.settings = settings

    def wants(self, method: str) -> bool:
        return method in _OPERATIONS or method in _OBSERVED

    def request(self, method: str, message: bytes) -> Verdict | Awaitable[Verdict]:
        operation = _OPERATIONS.get(method)
        if operation is None:
            learn, name = _OBSERVED[method], method.rpartition("/")[2]
            return Forward(message, self._reads(lambda _: learn(self.inventory, codec.requested_id(name, message))))
        try:
            request = codec.Request(operation, message)
        except codec.CodecError as error:
            return self._undecodable(operation, message, error)
        return self._start(request, message) if operation in STARTS else self._follow(request, message)

    # --- the kinds of calls -----------------------------------------------------------------------------------------

    def _undecodable(self, operation: Operation, message: bytes, error: codec.CodecError) -> Verdict:
        facts = admission.Facts(operation, undecodable=str(error), any_placed=bool(self.inventory.placed))
        judgement = admission.judge(facts, self.settings.admission)
        self.log.warning(
            "request_undecodable", method=operation, error=str(error), refused=not isinstance(judgement, admission.Pass)
        )
        if not isinstance(judgement, admission.Refuse):
            return Forward(message)
        self.counters.count("refusals", operation, judgement.cause)
        return AnswerError(_CODES[judgement.cause], f"criproxy refuses {operation}: {judgement.detail}")

    def _start(self, request: codec.Request, message: bytes) -> Verdict | Awaitable[Verdict]:
        """RunPodSandbox, RestorePod."""
        pod = request.pod
        assert pod is not None
        self.kubelets_driver.pod_starts(pod)
        self.cpu_manager.pod_starts(pod)
        match self._judge_start(request.operation, pod):
            case admission.Admit() as place:
                return self._place(request, pod.ref, place, self._learn_sandbox(request, pod.ref, place))
            case admission.Refuse() as refusal:
                return self._refuse(request, pod.ref, refusal)
            case admission.Pass(otherwise):
                if otherwise is not None:
                    self._log_dry_run(request, pod.ref, otherwise)
                return Forward(message, self._learn_sandbox(request, pod.ref, None))

    def _judge_start(self, operation: Operation, pod: Pod) -> admission.Judgement:
        try:
            return admission.judge(
                admission.Facts(operation, pod, held=self.holds.held(pod.ref)), self.settings.admission
            )
        except Exception as error:
            self.log.error("interceptor_failed", method=operation, exc_info=error)
            return admission.judge(admission.Facts(operation, pod, fault=_fault(error)), self.settings.admission)

    async def _follow(self, request: codec.Request, message: bytes) -> Verdict:
        """CreateContainer and the updates: containers follow their sandbox."""
        unknown, sandbox, pod = "", None, None
        creates = request.operation is Operation.CREATE_CONTAINER
        try:
            if request.operation is Operation.UPDATE_CONTAINER_RESOURCES:
                sandbox = await self.inventory.sandbox_of(request.container_id)
            else:
                sandbox = await self.inventory.sandbox(request.sandbox_id)
        except Exception as error:
            unknown = f"the runtime does not tell where sandbox {request.sandbox_id} is: {error}"
            pod = request.pod
            if not isinstance(error, ConnectionError | codec.CodecError):
                self.log.error("interceptor_failed", method=request.operation, exc_info=error)
            if not creates:
                self.log.warning("update_not_judged", method=request.operation, error=str(error))
        held = self.holds.held_itself(sandbox.pod) if creates and sandbox is not None else ""
        facts = admission.Facts(request.operation, pod, sandbox, unknown=unknown, held=held)
        judgement = admission.judge(facts, self.settings.admission)
        learn = self._learn_container(request, sandbox) if creates and not unknown else None
        if not creates and sandbox is not None and sandbox.placement is not None:
            self.inventory.resize_asked(sandbox)
            learn = self._learn_resize(sandbox)
        whose = sandbox.pod if sandbox is not None else pod.ref if pod is not None else _NOBODY
        match judgement:
            case admission.Admit():
                return await self._place(request, whose, judgement, learn)
            case admission.Refuse():
                return self._refuse(request, whose, judgement)
            case admission.Pass():
                return Forward(message, learn)

    # --- what a judgement says --------------------------------------------------------------------------------------

    async def _place(
        self, request: codec.Request, pod: PodRef, place: admission.Admit, learn: Learner | None
    ) -> Verdict:
        """Have the box do its steps, then adjust the request."""
        cause = admission.Cause.HOOK_FAILED
        cpus: Cpus | Unlimited = UNLIMITED
        try:
            for step in place.steps:
                cause = step.value
                if step is admission.BoxStep.ADMIT:
                    asked = self._asked(request)
                    # Kubelet names the sum of the limits also where a container has none, and the pod neither: what the
                    # pod's limit is, its own cgroup of the pod says. A sum beside an annotation is of a container that
                    # the annotation may not name: then the limit that it asks for is not that of all containers.
                    memory_bytes = 0 if request.pod_resources.memory_limit_bytes else asked.memory_bytes
                    mid = request.pod is not None and is_mid(request.pod.labels)
                    await self.box.admit(place.parent, memory_bytes, asked.cpu_shares, mid=mid)
                elif step is admission.BoxStep.RESIZE:
                    await self.box.update_pod(place.parent, request.pod_resources)
                elif wanted := admission.cpus_asked(part.resources for part in request.parts):
                    cpus = await self.cpu_manager.within(wanted)
            return Forward(self._adjust(request, pod, place, cpus), learn)
        except AdmissionError as error:
            return self._refuse(request, pod, admission.Refuse(cause, str(error)))
        except Exception as error:
            self.log.error("hook_failed", pod=str(pod), pod_uid=pod.uid, method=request.operation, exc_info=error)
            return self._refuse(request, pod, admission.Refuse(admission.Cause.HOOK_FAILED, _fault(error)))

    def _asked(self, request: codec.Request) -> Asked:
        """What a pod that starts asks for in its annotations; what makes no sense is ignored, and told."""
        pod = request.pod
        assert pod is not None
        try:
            return of_pod(asked_by(pod.annotations))
        except ValueError as error:
            consequence = "ignored: it shares CPU as one that asked for nothing, and has no memory limit of its own"
            self.log.warning(
                "annotation_ignored", pod=str(pod.ref), pod_uid=pod.ref.uid, error=str(error), consequence=consequence
            )
            return Asked()

    def _adjust(
        self,
        request: codec.Request,
        pod: PodRef,
        place: admission.Admit,
        cpus: Cpus | Unlimited,
        event: str = "rewrite",
    ) -> bytes:
        entries: list[dict[str, object]] = []
        described = request.pod
        for part in request.parts:
            facts = PodRequest(
                operation=request.operation,
                target=part.target,
                placement=place.parent.in_box,
                resources=part.resources,
                container=part.container,
                added_capabilities=part.added_capabilities,
                cpus=cpus,
                annotations=described.annotations if described is not None else {},
            )
            entries += [codec.apply(part, adjustment) for adjustment in self.settings.chain.adjust(facts)]
        message = request.encode()
        if event == "rewrite":
            self.counters.count("rewrites", request.operation)
        self.log.info(
            event, pod=str(pod), pod_uid=pod.uid, method=request.operation, offline_because=place.why, changes=entries
        )
        return message

    def _log_dry_run(self, request: codec.Request, pod: PodRef, otherwise: admission.Refuse | admission.Admit) -> None:
        try:
            if isinstance(otherwise, admission.Admit):
                self._adjust(request, pod, otherwise, UNLIMITED, event="would_rewrite")
                return
        except Exception as error:
            self.log.error("hook_failed", pod=str(pod), pod_uid=pod.uid, method=request.operation, exc_info=error)
            otherwise = admission.Refuse(admission.Cause.HOOK_FAILED, _fault(error))
        self.log.info("would_refuse", pod=str(pod), pod_uid=pod.uid, method=request.operation, error=otherwise.detail)

    def _refuse(self, request: codec.Request, pod: PodRef, refusal: admission.Refuse) -> AnswerError:
        operation = request.operation
        self.counters.count("refusals", operation, refusal.cause)
        self.log.warning(
            "refused", pod=str(pod), pod_uid=pod.uid, method=operation, reason=str(refusal.cause), error=refusal.detail
        )
        shown = f"{_shown(str(pod), _SHOWN_NAME)}: {_shown(refusal.detail, _SHOWN_TEXT)}"
        code = _CODES.get(refusal.cause, Code.FAILED_PRECONDITION)
        return AnswerError(code, f"criproxy refuses {operation} of offline pod {shown}")

    # --- what the inventory learns ----------------------------------------------------------------------------------

    def _learn_sandbox(self, request: codec.Request, pod: PodRef, place: admission.Admit | None) -> Learner:
        def learn(answer: bytes) -> None:
            sandbox_id, containers = codec.started_sandbox(request.operation, answer)
            placement = place.parent.in_box if place else None
            labels, annotations = (request.pod.labels, request.pod.annotations) if request.pod else ({}, {})
            started = described(sandbox_id, pod, placement, labels, annotations)
            self.inventory.sandbox_started(started, request.pod)
            for container_id, name in containers:
                self.inventory.container_created(container_id, sandbox_id, name)
                self.inventory.container_started(container_id)
            if place:
                self.box.forget(place.parent.name)

        return self._reads(learn)

    def _learn_container(self, request: codec.Request, sandbox: Sandbox | None) -> Learner:
        def learn(answer: bytes) -> None:
            owner = request.sandbox_id if sandbox is None else sandbox.id
            self.inventory.container_created(codec.created_container(answer), owner, request.parts[0].container)

        return self._reads(learn)

    def _learn_resize(self, sandbox: Sandbox) -> Learner:
        return lambda _: self.inventory.resize_done(sandbox)

    def _reads(self, learn: Learner) -> Learner:
        """`learn`, for which an answer that can't be read is a warning."""

        def read(answer: bytes) -> None:
            try:
                learn(answer)
            except codec.CodecError as error:
                self.log.warning("answer_undecodable", error=str(error))

        return read


def _fault(error: Exception) -> str:
    """A fault of our own, in words."""
    return f"{type(error).__name__}: {error}"


def _shown(text: str, characters: int) -> str:
    """What a status may carry: a pod's text can be of any length, and is not always UTF-8."""
    cut = text if len(text) <= characters else f"{text[:characters]}..."
    return cut.encode("ascii", "backslashreplace").decode()
