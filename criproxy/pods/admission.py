"""What becomes of kubelet's calls about pods: they pass as they came, are refused, or are adjusted to the box.

Pure: facts and settings in, a judgement out. A front gathers the facts, does what the judgement says, and has no rule
of its own. All rules are here:

| call                     | whose                                       | judgement                                |
|--------------------------|---------------------------------------------|------------------------------------------|
| start of a pod           | online, or colocation is off                | Pass                                     |
|                          | offline                                     | Admit, once the box has admitted it      |
|                          | offline, and its cgroup_parent is no pod's  | Refuse (no_place)                        |
|                          | offline, and it asks for what would let it  | Refuse (unboundable)                     |
|                          | leave the box (`hooks.hardening`)           |                                          |
|                          | offline, while the node is closed to it     | Refuse (closed)                          |
|                          | offline, in a dry run                       | Pass, which says what would be otherwise |
| container, update        | the sandbox is in the box                   | Admit: a pod keeps the placement that it |
|                          |                                             | started with, whatever the config says   |
|                          | the sandbox is not in the box, or unknown   | Pass                                     |
|                          | the sandbox is in the box, and we fail      | Refuse (hook_failed)                     |
| container                | the sandbox is in the box, and its pod was  | Refuse (closed): kubelet would start in  |
|                          | just stopped                                | it anew what was killed                  |
|                          | the sandbox is in the box, and it asks for  | Refuse (unboundable)                     |
|                          | what would let it leave                     |                                          |
|                          | offline, and the runtime does not answer    | Refuse (unknown_sandbox)                 |
| update                   | the runtime does not answer                 | Pass: its container is already bounded   |
| can't be decoded         | pods are placed, or may be by this call     | Refuse (undecodable): runtimes read some |
|                          |                                             | bytes that our protobuf does not         |
|                          | otherwise                                   | Pass                                     |

To be refused is the better end for an offline pod: kubelet tries again, whereas an unbounded pod hurts online ones.
"""

import contextlib
import enum
from collections.abc import Iterable
from typing import Final, Protocol

from msgspec import Struct

from criproxy.cgroup.naming import PodParent, parse_kubelet_parent, parse_placement
from criproxy.hooks.offline import OfflineRules
from criproxy.model import STARTS, UPDATES, Operation, Pod, Resources, Sandbox
from criproxy.model.cpulist import Cpus, parse_cpus

_FOLLOWS: Final = "its sandbox is in the box"


class AdmissionSettings(Struct, frozen=True):
    """What a reload may change. `closed`: why no new offline pod is let in now, "" when pods are let in.

    With `dry_run`, no new pod is placed; pods that are in the box already, from a run before, are kept there.
    """

    enabled: bool
    rules: OfflineRules
    dry_run: bool = False
    closed: str = ""

    def why_offline(self, pod: Pod) -> str | None:
        """Why the pod is to be treated as offline; None when it is online, or colocation is off."""
        return self.rules.why(pod) if self.enabled else None


class Facts(Struct, frozen=True):
    """What is known of a call when it is judged.

    `pod`: as the request describes it; None when it does not (the updates). `sandbox`: the one that the call is about,
    as the inventory knows it; None for a start, and when nobody knows it. The others are "" or say, in words, why the
    request can't be decoded, why the sandbox can't be asked for, why the pod may not start for now (of a container: why
    its pod itself is held), which fault of our own kept us from finding out, and why what is asked for would let the
    pod leave the box. `any_placed`: whether any pod is in the box.
    """

    operation: Operation
    pod: Pod | None = None
    sandbox: Sandbox | None = None
    undecodable: str = ""
    unknown: str = ""
    held: str = ""
    fault: str = ""
    unboundable: str = ""
    any_placed: bool = False


class Cause(enum.StrEnum):
    """Why a call is refused, as metrics and log have it."""

    NO_PLACE = "no_place"
    CLOSED = "closed"
    UNBOUNDABLE = "unboundable"
    NOT_ADMITTED = "not_admitted"
    NOT_RESIZED = "not_resized"
    NO_CPUS = "no_cpus"
    UNKNOWN_SANDBOX = "unknown_sandbox"
    UNDECODABLE = "undecodable"
    HOOK_FAILED = "hook_failed"
    LATE = "late"


class BoxStep(enum.Enum):
    """What has to be done before a request goes on; the value is the cause when it can't.

    CHECK_PATHS finds out what the host paths lead to that containers mount.
    """

    CHECK_PATHS = Cause.UNBOUNDABLE
    ADMIT = Cause.NOT_ADMITTED
    RESIZE = Cause.NOT_RESIZED
    FIND_CPUS = Cause.NO_CPUS


class Refuse(Struct, frozen=True):
    """Answer with an error; `detail` is for an operator."""

    cause: Cause
    detail: str


class Admit(Struct, frozen=True):
    """After these `steps` of the box, adjust the request by the hooks, for the pod's place in the box."""

    parent: PodParent
    why: str
    steps: tuple[BoxStep, ...] = ()


class Pass(Struct, frozen=True):
    """Forward the very bytes that came. `otherwise`: what would be without the dry run; None when the same."""

    otherwise: Refuse | Admit | None = None


Judgement = Pass | Refuse | Admit


def judge(facts: Facts, settings: AdmissionSettings) -> Judgement:
    """What becomes of a call; see the table above."""
    if facts.undecodable:
        return _judge_undecodable(facts, settings)
    if facts.operation in STARTS:
        return _judge_start(facts, settings)
    return _judge_follower(facts, settings)


def cpus_asked(parts: Iterable[Resources]) -> Cpus:
    """All CPUs that a request asks for; what is no list of CPUs is the runtime's to refuse."""
    asked: Cpus = frozenset()
    for resources in parts:
        with contextlib.suppress(ValueError):
            asked |= parse_cpus(resources.cpuset_cpus)
    return asked


def kubelets_place(pod: Pod) -> PodParent:
    """Where kubelet puts the pod, and so where the box would have it. Raises ValueError."""
    parent = parse_kubelet_parent(pod.cgroup_parent)
    if not parent.is_of(pod.ref.uid):  # such a placement would not be believed after a restart
        raise ValueError(f"cgroup_parent {pod.cgroup_parent!r} is not the cgroup of a pod with uid {pod.ref.uid!r}")
    return parent


def _judge_undecodable(facts: Facts, settings: AdmissionSettings) -> Judgement:
    places = settings.enabled and not settings.dry_run
    if not places and (facts.operation in STARTS or not facts.any_placed):
        return Pass()
    return Refuse(Cause.UNDECODABLE, f"it can't be told whether its pod is offline, as {facts.undecodable}")


def _judge_start(facts: Facts, settings: AdmissionSettings) -> Judgement:
    assert facts.pod is not None
    why = settings.why_offline(facts.pod)
    if why is None:
        return Pass()
    judged = _judge_offline_start(facts, facts.pod, settings, why)
    return Pass(otherwise=judged) if settings.dry_run else judged


def _judge_offline_start(facts: Facts, pod: Pod, settings: AdmissionSettings, why: str) -> Refuse | Admit:
    if facts.fault:
        return Refuse(Cause.HOOK_FAILED, facts.fault)
    try:
        parent = kubelets_place(pod)
    except ValueError as error:
        return Refuse(Cause.NO_PLACE, f"{error}; the pod is offline: {why}")
    if facts.unboundable:
        return Refuse(Cause.UNBOUNDABLE, f"{facts.unboundable}; the pod is offline: {why}")
    if closed := settings.closed or facts.held:
        return _closed(closed)
    paths = [BoxStep.CHECK_PATHS] if facts.operation is Operation.RESTORE_POD else []
    return Admit(parent, why, (*paths, BoxStep.ADMIT, BoxStep.FIND_CPUS))


def _closed(why: str) -> Refuse:
    return Refuse(Cause.CLOSED, f"{why}; kubelet tries again by itself")


def _judge_follower(facts: Facts, settings: AdmissionSettings) -> Judgement:
    if facts.unknown:
        follows_offline = facts.pod is not None and settings.why_offline(facts.pod) is not None
        return Refuse(Cause.UNKNOWN_SANDBOX, facts.unknown) if follows_offline else Pass()
    if facts.sandbox is None or facts.sandbox.placement is None:
        return Pass()
    if facts.fault:
        return Refuse(Cause.HOOK_FAILED, facts.fault)
    if not settings.dry_run and (facts.held or facts.unboundable):
        return _closed(facts.held) if facts.held else Refuse(Cause.UNBOUNDABLE, facts.unboundable)
    # Kubelet resizes its own cgroup, we the box's.
    first = BoxStep.RESIZE if facts.operation in UPDATES else BoxStep.CHECK_PATHS
    steps = (first, BoxStep.FIND_CPUS)
    try:
        parent = parse_placement(facts.sandbox.placement)
    except ValueError as error:
        return Refuse(Cause.HOOK_FAILED, str(error))
    return Admit(parent, _FOLLOWS, () if settings.dry_run else steps)


class AdmitsPods(Protocol):
    """The box, as far as requests need it."""

    async def admit(self, place: PodParent, memory_bytes: int, cpu_shares: int = 0, *, mid: bool = False) -> None:
        """Bound the box and make the pod's cgroup in it, with what kubelet has set on its own one.

        `memory_bytes`: the memory limit that it asks for where kubelet has set none, 0: none. `cpu_shares`: what it
        asks for where kubelet has given it the lowest. `mid`: it is of the higher tier. Raises AdmissionError.
        """

    async def update_pod(self, place: PodParent, resized: Resources) -> None:
        """Give the pod what kubelet's request says, and beside that what kubelet has set on its own cgroup of the pod.

        Raises AdmissionError.
        """

    def forget(self, name: str) -> None:
        """The pod's start is over: the inventory knows its sandbox."""
