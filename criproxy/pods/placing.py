"""How a call about a pod is placed: all that stands between the judgement of it and a front's bytes.

A front is a codec and a transport. It opens a call, hands it over as a `Call`, does what the `PlacingOutcome` says, and
tells `done` what the runtime has made of it. For each call, in this order:

1. Facts are gathered: the call's own, what the inventory knows of its sandbox, and whether a hold keeps its pod out.
2. `admission.judge` says from them whether the call passes, is refused, or is adjusted to the pod's place in the box.
   There is no rule here on who is placed, refused or left alone.
3. For a call that is adjusted, the box does its steps: it lets the pod in or resizes it, and the CPUs that are asked
   for are compared with those that are left to it.
4. The hooks return adjustments, which the call applies to its parts, and the call is encoded.
5. Once the runtime has done it, the inventory learns what there is now, and observers of the pods hear of it.

A call that passes goes on as the very bytes that came, also when something here fails. When something fails amid the
call of an offline pod, the call is refused: that pod would start outside the box. `adjust` and `asked_of_box` are pure,
and `criproxy explain` says what they say.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final, Protocol

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy.cgroup.naming import PodParent
from criproxy.hooks import Chain
from criproxy.hooks.batch import asked_by, of_pod
from criproxy.hooks.hardening import BY, Hardening
from criproxy.hooks.tiers import is_mid
from criproxy.model import (
    STARTS,
    UNLIMITED,
    UPDATES,
    Adjustment,
    AdmissionError,
    Asked,
    Counters,
    HostMount,
    Operation,
    Pod,
    PodRef,
    PodRequest,
    Resources,
    Sandbox,
    Security,
    Target,
    Unlimited,
)
from criproxy.model.cpulist import Cpus
from criproxy.pods.admission import (
    AdmissionSettings,
    Admit,
    AdmitsPods,
    BoxStep,
    Cause,
    Facts,
    Judgement,
    Pass,
    Refuse,
    cpus_asked,
    judge,
)
from criproxy.pods.inventory import Inventory, described
from criproxy.vocabulary.unboundable import restored

_NOBODY: Final = PodRef("", "", "")

_SHOWN_NAME: Final = 320  # namespace and name are at most 63 and 253 characters
_SHOWN_TEXT: Final = 2048


# --- what a front brings -------------------------------------------------------------------------------------------


class CallPart(Protocol):
    """One sandbox or container of a call, as it came; see `PodRequest`."""

    @property
    def target(self) -> Target: ...
    @property
    def container(self) -> str: ...
    @property
    def resources(self) -> Resources: ...
    @property
    def security(self) -> Security: ...

    def reaches(self, adjustment: Adjustment) -> bool:
        """Whether this front can change it at all, in such a call."""

    def apply(self, adjustment: Adjustment) -> str | int | None:
        """Write it into the call; returns the value before, None: there was none.

        Raises ValueError for a field that this part does not have.
        """


class Opened(Protocol):
    """What a call says of a pod: enough to adjust it. `pod` is None where the call does not carry the pod (updates)."""

    @property
    def operation(self) -> Operation: ...
    @property
    def pod(self) -> Pod | None: ...
    @property
    def parts(self) -> Sequence[CallPart]: ...


class Call(Opened, Protocol):
    """A call of a front. `sandbox_id` and `container_id` are "" where it carries none; one that follows a sandbox has
    either. `pod_resources` are those of the pod as a whole, with its overhead; 0: not set, or no limit. `late`: it was
    refused, as it took too long (`Placing.late`), so what is decided afterwards happens to nobody.
    """

    late: bool

    @property
    def sandbox_id(self) -> str: ...
    @property
    def container_id(self) -> str: ...
    @property
    def pod_resources(self) -> Resources: ...

    def encode(self) -> bytes:
        """The message to go on instead of the one that came, with what was applied."""


class Made(Struct, frozen=True):
    """What the runtime has made of a call: the sandbox of a start, and containers' ids and names in the pod."""

    sandbox_id: str = ""
    containers: Sequence[tuple[str, str]] = ()


# --- what a front learns -------------------------------------------------------------------------------------------


class Proceed(Struct, frozen=True):
    """The call goes on to the runtime: as the very bytes that came, or as `message`, unless that is None.

    `learns` is whether its success goes to `done`. `place` is that of a pod that starts in the box, `sandbox`
    the one that the call was found to be about.
    """

    message: bytes | None = None
    learns: bool = True
    place: PodParent | None = None
    sandbox: Sandbox | None = None


class RefusedCall(Struct, frozen=True):
    """The call is answered with an error. `words` say why, in ASCII and at no great length."""

    cause: Cause
    words: str


PlacingOutcome = Proceed | RefusedCall

_AS_IT_CAME: Final = Proceed()


# --- what others do for it -----------------------------------------------------------------------------------------


class ChecksPaths(Protocol):
    """Knows what paths of the node lead to, as far as requests need it."""

    def suspects(self, uid: str, mounts: Sequence[HostMount]) -> Sequence[HostMount]:
        """Those that have to be checked: all that are not plainly kubelet's own for the pod with this uid."""

    async def check(self, uid: str, suspects: Sequence[HostMount], hardening: Hardening) -> None:
        """Raises AdmissionError for what the pod may not mount, or not so, and where nobody can tell."""


class SeesStarts(Protocol):
    """Whoever is to know of each pod that is about to start, online or not."""

    def pod_starts(self, pod: Pod) -> None: ...


class LeavesCpus(SeesStarts, Protocol):
    """Kubelet's CPU manager, as far as requests need it."""

    async def within(self, asked: Cpus) -> Cpus | Unlimited:
        """Within which CPUs a container can be kept that requests these. Raises AdmissionError."""


class HoldsPods(Protocol):
    """Why a pod may not start in the box now; "": it may."""

    def held(self, pod: PodRef) -> str: ...

    def held_itself(self, pod: PodRef) -> str:
        """As `held`, but whatever holds for all pods alike."""


# --- what is pure --------------------------------------------------------------------------------------------------


class PlacingSettings(Struct, frozen=True):
    """`admission` says who is let into the box, `chain` what is adjusted in the calls of those that are.

    `hardening`: what such a pod may not ask for.
    """

    admission: AdmissionSettings
    chain: Chain
    hardening: Hardening = Hardening()


class AppliedAdjustment(Struct, frozen=True):
    """What an adjustment has changed in a part. `old`: None, there was none."""

    part: CallPart
    adjustment: Adjustment
    old: str | int | None

    def logged(self) -> dict[str, object]:
        """As fields of the log."""
        where = {"container": _shown(self.part.container, _SHOWN_NAME)} if self.part.container else {}
        one = self.adjustment
        place = _shown(one.place, _SHOWN_NAME)
        old = _shown(self.old, _SHOWN_NAME) if isinstance(self.old, str) else self.old
        new = _shown(one.value, _SHOWN_TEXT) if isinstance(one.value, str) else one.value
        return {**where, "field": place, "old": old, "new": new, "reason": one.reason}


def adjust(call: Opened, place: PodParent, chain: Chain, cpus: Cpus | Unlimited = UNLIMITED) -> list[AppliedAdjustment]:
    """Apply to each part of a call what the hooks say of it. `cpus`: see `PodRequest`. Raises what a hook does."""
    changes: list[AppliedAdjustment] = []
    for part in call.parts:
        request = PodRequest(
            operation=call.operation,
            target=part.target,
            placement=place.in_box,
            resources=part.resources,
            container=part.container,
            security=part.security,
            cpus=cpus,
            pod=call.pod,
        )
        wanted = (adjustment for adjustment in chain.adjust(request) if part.reaches(adjustment))
        changes += [AppliedAdjustment(part, adjustment, part.apply(adjustment)) for adjustment in wanted]
    return changes


def unboundable(call: Opened, hardening: Hardening) -> str:
    """Why what a call asks for would let an offline pod leave the box, in words, but for its paths; "": it does not."""
    if call.pod is None or hardening.lets(call.pod) is not None:
        return ""
    if call.operation is Operation.RESTORE_POD and hardening.refuse_privileged:
        return restored(BY)
    return next((why for part in call.parts if (why := hardening.refusal(part.security))), "")


def asked_of_box(pod: Pod, resources: Resources) -> Asked:
    """What a pod that starts with these `resources` (see `Call`) asks for beside them, in its annotations.

    Kubelet names the sum of the limits on memory also where a container has none, and the pod neither: what the pod's
    limit is, its own cgroup of the pod says. A sum beside an annotation is of a container that the annotation may not
    name: then the limit that it asks for is not that of all containers.

    Raises ValueError for an annotation that makes no sense.
    """
    asked = of_pod(asked_by(pod.annotations))
    return Asked(asked.cpu_shares, 0 if resources.memory_limit_bytes else asked.memory_bytes)


# --- what acts -----------------------------------------------------------------------------------------------------


class Placing(Struct, eq=False):
    """Judges calls, has the box admit and resize, and adjusts calls by the chain. One for all fronts of a node."""

    settings: PlacingSettings
    inventory: Inventory
    box: AdmitsPods
    cpu_manager: LeavesCpus
    kubelets_driver: SeesStarts
    holds: HoldsPods
    host_paths: ChecksPaths
    counters: Counters
    log: FilteringBoundLogger

    def configure(self, settings: PlacingSettings) -> None:
        self.settings = settings

    # --- the kinds of calls -----------------------------------------------------------------------------------------

    def undecodable(self, operation: Operation, error: str) -> PlacingOutcome:
        """A call that the front can't open, with the `error` of that; there is nothing to be learned of it."""
        facts = Facts(operation, undecodable=error, any_placed=bool(self.inventory.placed))
        judgement = judge(facts, self.settings.admission)
        refused = not isinstance(judgement, Pass)
        self.log.warning("request_undecodable", method=operation, error=error, refused=refused)
        if not isinstance(judgement, Refuse):
            return Proceed(learns=False)
        self.counters.count("refusals", operation, judgement.cause)
        return RefusedCall(judgement.cause, f"criproxy refuses {operation}: {_shown(judgement.detail, _SHOWN_TEXT)}")

    def late(self, call: Call, limit_s: float) -> RefusedCall:
        """A call that was not decided within the time that its front has for it."""
        known = self.inventory.known(call.sandbox_id, call.container_id)
        pod = call.pod.ref if call.pod is not None else _NOBODY if known is None else known.pod
        why = f"the node did not make room for it within {limit_s:g} s; kubelet tries again by itself"
        refused = self._refuse(call, pod, Refuse(Cause.LATE, why))
        call.late = True
        return refused

    def not_placed(self, call: Call) -> RefusedCall:
        """A container of an offline pod that the process which hands over to this one has not let in."""
        assert call.pod is not None
        why = "criproxy hands over to a new process, and the old one was too slow for it; kubelet tries again by itself"
        return self._refuse(call, call.pod.ref, Refuse(Cause.LATE, why))

    def start(self, call: Call) -> PlacingOutcome | Awaitable[PlacingOutcome]:
        """RunPodSandbox, RestorePod; at once, where nothing is to be waited for."""
        pod = call.pod
        assert pod is not None
        self.kubelets_driver.pod_starts(pod)
        self.cpu_manager.pod_starts(pod)
        match self._judge_start(call, pod):
            case Pass(otherwise):
                if otherwise is not None:
                    self._log_dry_run(call, pod.ref, otherwise)
                return _AS_IT_CAME
            case Refuse() as refusal:
                return self._refuse(call, pod.ref, refusal)
            case Admit() as admitted:
                return self._place(call, pod.ref, admitted, None)

    def _judge_start(self, call: Call, pod: Pod) -> Judgement:
        operation, settings = call.operation, self.settings
        try:
            if settings.admission.why_offline(pod) is None:
                return Pass()
            asked = unboundable(call, settings.hardening)
            return judge(Facts(operation, pod, held=self.holds.held(pod.ref), unboundable=asked), settings.admission)
        except Exception as error:
            self.log.error("interceptor_failed", method=operation, exc_info=error)
            return judge(Facts(operation, pod, fault=_fault(error)), self.settings.admission)

    def follow(self, call: Call) -> PlacingOutcome | Awaitable[PlacingOutcome]:
        """CreateContainer and the updates: containers follow their sandbox. At once, as `start`."""
        sandbox = self.inventory.known(call.sandbox_id, call.container_id)
        return self._follow_unknown(call) if sandbox is None else self._follow(call, sandbox)

    async def _follow_unknown(self, call: Call) -> PlacingOutcome:
        """Ask the runtime for the sandbox first."""
        try:
            sandbox_id, container_id = call.sandbox_id, call.container_id
            by_container = self.inventory.sandbox_of(container_id) if not sandbox_id else None
            sandbox = await (by_container or self.inventory.sandbox(sandbox_id))
        except Exception as error:
            return self._not_told(call, error)
        outcome = self._follow(call, sandbox)
        return outcome if isinstance(outcome, Proceed | RefusedCall) else await outcome

    def _not_told(self, call: Call, error: Exception) -> PlacingOutcome:
        """The runtime does not tell of the call's sandbox."""
        if not isinstance(error, ConnectionError | ValueError):
            self.log.error("interceptor_failed", method=call.operation, exc_info=error)
        if call.operation in UPDATES:
            self.log.warning("update_not_judged", method=call.operation, error=str(error))
        pod, unknown = call.pod, f"the runtime does not tell where sandbox {call.sandbox_id} is: {error}"
        judgement = judge(Facts(call.operation, pod, unknown=unknown), self.settings.admission)
        if isinstance(judgement, Refuse):
            return self._refuse(call, _NOBODY if pod is None else pod.ref, judgement)
        return Proceed(learns=False)

    def _follow(self, call: Call, sandbox: Sandbox | None) -> PlacingOutcome | Awaitable[PlacingOutcome]:
        creates, whose, resizes = call.operation is Operation.CREATE_CONTAINER, _NOBODY, False
        held = fault = asked = ""
        if sandbox is not None:
            whose, resizes = sandbox.pod, not creates and sandbox.placement is not None
            try:
                held = self.holds.held_itself(whose) if creates else ""
                if creates and sandbox.placement is not None:
                    asked = unboundable(call, self.settings.hardening)
                if resizes:
                    self.inventory.resize_asked(sandbox)
            except Exception as error:
                self.log.error("interceptor_failed", method=call.operation, exc_info=error)
                fault = _fault(error)
        facts = Facts(call.operation, sandbox=sandbox, held=held, fault=fault, unboundable=asked)
        judgement = judge(facts, self.settings.admission)
        match judgement:
            case Pass():
                return Proceed(None, creates or resizes, None, sandbox)
            case Refuse():
                return self._refuse(call, whose, judgement)
            case Admit():
                return self._place(call, whose, judgement, sandbox)

    # --- what a judgement says --------------------------------------------------------------------------------------

    def _place(
        self, call: Call, pod: PodRef, admitted: Admit, sandbox: Sandbox | None
    ) -> PlacingOutcome | Awaitable[PlacingOutcome]:
        """Have the box do its steps, then adjust the call; at once, where no step has anything to do."""
        try:
            finds = BoxStep.FIND_CPUS in admitted.steps
            wanted: Cpus = cpus_asked(part.resources for part in call.parts) if finds else frozenset()
            mounts = self._mounts_to_check(call) if BoxStep.CHECK_PATHS in admitted.steps else ()
        except Exception as error:
            return self._refuse(call, pod, self._hook_failed(call, pod, error))
        if wanted or mounts or any(step not in (BoxStep.FIND_CPUS, BoxStep.CHECK_PATHS) for step in admitted.steps):
            return self._place_later(call, pod, admitted, sandbox, _AskedOfNode(wanted, mounts))
        return self._adjusted(call, pod, admitted, sandbox, UNLIMITED)

    async def _place_later(
        self, call: Call, pod: PodRef, admitted: Admit, sandbox: Sandbox | None, asked: "_AskedOfNode"
    ) -> PlacingOutcome:
        cause = Cause.HOOK_FAILED
        cpus: Cpus | Unlimited = UNLIMITED
        try:
            for step in admitted.steps:
                cause = step.value
                if step is BoxStep.CHECK_PATHS:
                    if asked.mounts and call.pod is not None:
                        await self.host_paths.check(call.pod.ref.uid, asked.mounts, self.settings.hardening)
                elif step is BoxStep.ADMIT:
                    await self._admit(call, admitted.parent)
                elif step is BoxStep.RESIZE:
                    # A runtime without the method ends the call before it has the request, and kubelet resizes all the
                    # same: what has begun is done to the end.
                    await asyncio.shield(self.box.update_pod(admitted.parent, call.pod_resources))
                elif asked.cpus:
                    cpus = await self.cpu_manager.within(asked.cpus)
        except AdmissionError as error:
            return self._refuse(call, pod, Refuse(cause, str(error)))
        except Exception as error:
            return self._refuse(call, pod, self._hook_failed(call, pod, error))
        return self._adjusted(call, pod, admitted, sandbox, cpus)

    def _adjusted(
        self, call: Call, pod: PodRef, admitted: Admit, sandbox: Sandbox | None, cpus: Cpus | Unlimited
    ) -> PlacingOutcome:
        try:
            changes = adjust(call, admitted.parent, self.settings.chain, cpus)
            message = call.encode()
        except Exception as error:
            return self._refuse(call, pod, self._hook_failed(call, pod, error))
        if not call.late:
            self.counters.count("rewrites", call.operation)
            self.log.info("rewrite", **_rewrite(call, pod, admitted, changes))
        return Proceed(message, True, admitted.parent, sandbox)

    def _mounts_to_check(self, call: Call) -> Sequence[HostMount]:
        """What containers mount of the node that is not plainly kubelet's own for the pod."""
        pod, hardening = call.pod, self.settings.hardening
        mounts = [one for part in call.parts for one in part.security.host_mounts]
        if pod is None or not mounts or not hardening.looks_at_mounts or hardening.lets(pod) is not None:
            return ()
        return self.host_paths.suspects(pod.ref.uid, mounts)

    async def _admit(self, call: Call, parent: PodParent) -> None:
        """Let a pod that starts into the box, with what it asks for; an annotation that makes no sense is ignored."""
        pod = call.pod
        assert pod is not None
        try:
            asked = asked_of_box(pod, call.pod_resources)
        except ValueError as error:
            asked = Asked()
            consequence = "ignored: it shares CPU as one that asked for nothing, and has no memory limit of its own"
            self.log.warning(
                "annotation_ignored", pod=str(pod.ref), pod_uid=pod.ref.uid, error=str(error), consequence=consequence
            )
        await self.box.admit(parent, asked.memory_bytes, asked.cpu_shares, mid=is_mid(pod.labels))

    def _log_dry_run(self, call: Call, pod: PodRef, otherwise: Refuse | Admit) -> None:
        try:
            if isinstance(otherwise, Admit):
                changes = adjust(call, otherwise.parent, self.settings.chain)
                call.encode()
                self.log.info("would_rewrite", **_rewrite(call, pod, otherwise, changes))
                return
        except Exception as error:
            otherwise = self._hook_failed(call, pod, error)
        self.log.info("would_refuse", pod=str(pod), pod_uid=pod.uid, method=call.operation, error=otherwise.detail)

    def _hook_failed(self, call: Call, pod: PodRef, error: Exception) -> Refuse:
        self.log.error("hook_failed", pod=str(pod), pod_uid=pod.uid, method=call.operation, exc_info=error)
        return Refuse(Cause.HOOK_FAILED, _fault(error))

    def _refuse(self, call: Call, pod: PodRef, refusal: Refuse) -> RefusedCall:
        operation, cause = call.operation, refusal.cause
        if not call.late:
            self.counters.count("refusals", operation, cause)
            self.log.warning(
                "refused", pod=str(pod), pod_uid=pod.uid, method=operation, reason=str(cause), error=refusal.detail
            )
        shown = f"{_shown(str(pod), _SHOWN_NAME)}: {_shown(refusal.detail, _SHOWN_TEXT)}"
        return RefusedCall(cause, f"criproxy refuses {operation} of offline pod {shown}")

    # --- what the inventory learns ----------------------------------------------------------------------------------

    def done(self, call: Call, outcome: Proceed, made: Made) -> None:
        """The runtime has done a call that proceeded."""
        if call.operation in STARTS:
            self._sandbox_started(call, outcome.place, made)
        elif call.operation is Operation.CREATE_CONTAINER:
            owner = call.sandbox_id if outcome.sandbox is None else outcome.sandbox.id
            for container_id, name in made.containers:
                self.inventory.container_created(container_id, owner, name)
        elif outcome.sandbox is not None:
            self.inventory.resize_done(outcome.sandbox)

    def _sandbox_started(self, call: Call, place: PodParent | None, made: Made) -> None:
        pod = call.pod
        assert pod is not None
        placement = None if place is None else place.in_box
        sandbox = described(made.sandbox_id, pod.ref, placement, pod.labels, pod.annotations)
        self.inventory.sandbox_started(sandbox, pod)
        for container_id, name in made.containers:
            self.inventory.container_created(container_id, made.sandbox_id, name)
            self.inventory.container_started(container_id)
        if place is not None:
            self.box.forget(place.name)


class _AskedOfNode(Struct, frozen=True):
    """What a call's containers ask for of the node's CPUs and files, as far as it has to be looked at."""

    cpus: Cpus
    mounts: Sequence[HostMount]


def _rewrite(call: Call, pod: PodRef, admitted: Admit, changes: Sequence[AppliedAdjustment]) -> dict[str, object]:
    """What the log says of a call that is adjusted, or would be."""
    return {
        "pod": str(pod),
        "pod_uid": pod.uid,
        "method": call.operation,
        "offline_because": admitted.why,
        "changes": [change.logged() for change in changes],
    }


def _fault(error: Exception) -> str:
    """A fault of our own, in words."""
    return f"{type(error).__name__}: {error}"


def _shown(text: str, characters: int) -> str:
    """What an answer may carry: a pod's text can be of any length, and is not always UTF-8."""
    cut = text if len(text) <= characters else f"{text[:characters]}..."
    return cut.encode("ascii", "backslashreplace").decode()
