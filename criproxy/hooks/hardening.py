"""What no cgroup bounds is kept from offline pods: what they may not ask for, and what is taken from them.

| what a pod asks for                   | by default       | why                                                      |
|---------------------------------------|------------------|----------------------------------------------------------|
| `privileged`                          | refused          | it may write cgroups, run in real time, use every device |
| to be restored from a checkpoint      | refused          | its processes come back with the rights that it says     |
| `hostNetwork`, `hostPID`, `hostIPC`   | refused          | what it does there is the node's, not the pod's          |
| a hostPath of the kernel's or the     | refused          | by these it leaves its cgroup, or others start what is   |
| runtime's folders, in or above one    |                  | in none                                                  |
| a writable hostPath that is in none   | refused          | what it writes there, the node may run outside the box,  |
| of the folders for jobs' data         |                  | or go by                                                 |
| a `hostPort`                          | refused          | what is sent to that port of the node goes to the pod,   |
|                                       |                  | also where kubelet or a login waits for it               |
| no seccomp profile, or `Unconfined`   | `RuntimeDefault` | one pod can fill the quota of root's keys, and then no   |
|                                       |                  | container of the node's starts                           |
| added capabilities                    | cut to a list    | most reach past the pod's own namespaces                 |
| more than 256 of them in a container  | refused          | to look through them would take the node's time          |
| `procMount: Unmasked`, without users  | `Default`        | root writes the kernel's settings, and reads its memory  |
| of its own                            |                  |                                                          |
| a class of the runtime's for the last | taken away       | a share of the cache and of the memory's bandwidth is no |
| level's cache (an annotation)         |                  | cgroup's, and a class may be that of online pods         |
| a class, a balloon or CPUs of         | taken away       | real time goes before every limit, and these CPUs may be |
| nri-plugins (annotations)             |                  | online pods'                                             |

A rule of the node's own file lets a pod pass all of it. What a hostPath leads to on the node, `pods.host_paths` finds
out; here paths are compared as they are written. Pure.

The runtime can't tell `Unconfined` from no profile: kubelet sends the one for the other, unless its `seccompDefault` is
on. Source: kubelet, kuberuntime helpers, fieldSeccompProfile; Kubernetes, Pod Security Standards.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final

from msgspec import Struct

from criproxy.hooks.offline import Rule
from criproxy.model import EVERY, Adjustment, HostMount, Operation, Pod, PodRequest, Security, Target
from criproxy.vocabulary import unboundable
from criproxy.vocabulary.unboundable import (
    ALL,
    CAPABILITIES,
    HOST_NAMESPACES,
    HOST_PATHS,
    MOST_CAPABILITIES,
    WRITABLE_HOST_PATHS,
    host_path_refusal,
    plain,
)

MASKED_PATHS: Final = (
    *(f"/proc/{name}" for name in ("acpi", "kcore", "keys", "latency_stats", "timer_list", "timer_stats")),
    *("/proc/sched_debug", "/proc/scsi", "/sys/firmware"),
)
READONLY_PATHS: Final = tuple(f"/proc/{name}" for name in ("bus", "fs", "irq", "sys", "sysrq-trigger"))
"""What each kubelet since 1.12 keeps from a container whose procMount is Default; later ones keep more.

Source: Kubernetes, pkg/securitycontext/util.go.
"""

CACHE_CLASS: Final = "rdt.resources.beta.kubernetes.io/"
"""Before `pod`, or `container.NAME`. Source: goresctrl (containerd, CRI-O), pkg/rdt, ContainerClassFromAnnotations.
"""

NRI_PLUGINS: Final = tuple(
    f"{name}.resource-policy.nri.io"
    for name in (
        "balloon.balloons",
        "prefer-cpu-priority",
        "prefer-isolated-cpus",
        "prefer-reserved-cpus",
        "rdtclass",
        "require-isolated-cpus",
        "scheduling-class",
    )
)
"""By themselves, or before `/pod` or `/container.NAME`. Those stay that leave a pod's CPUs alone or share them. Source:
nri-plugins, topology-aware and balloons, which go by the annotations of the sandbox.
"""

BY: Final = "hardening.allow in the node's file"
"""Where an administrator lets a pod have it."""


class Hardening(Struct, frozen=True):
    """What a node keeps from its offline pods; see the module. `capabilities` with `ALL`: none is cut."""

    seccomp: bool = True
    capabilities: frozenset[str] = frozenset(CAPABILITIES)
    refuse_privileged: bool = True
    refuse_host_namespaces: frozenset[str] = frozenset(HOST_NAMESPACES)
    refuse_host_paths: tuple[str, ...] = HOST_PATHS
    writable_host_paths: tuple[str, ...] = WRITABLE_HOST_PATHS
    refuse_host_ports: bool = True
    proc_mount: bool = True
    cache_classes: bool = True
    allow: tuple[Rule, ...] = ()

    def lets(self, pod: Pod) -> str | None:
        """By which rule a pod passes all of this, in words; None: by none."""
        return next((why for rule in self.allow if (why := rule.why(pod)) is not None), None)

    def refusal(self, asked: Security) -> str:
        """Why a pod that asks for this is refused, in words; "": it is not. Of its paths, nothing is said."""
        if asked.privileged and self.refuse_privileged:
            return unboundable.privileged(BY)
        for name in asked.host_namespaces:
            if name in self.refuse_host_namespaces:
                return unboundable.host_namespace(name, BY)
        if asked.host_ports and self.refuse_host_ports:
            return unboundable.host_port(asked.host_ports[0], BY)
        if len(asked.added_capabilities) > MOST_CAPABILITIES:
            return unboundable.capabilities(BY)
        return ""

    @property
    def looks_at_mounts(self) -> bool:
        """Whether any hostPath volume is refused."""
        return bool(self.refuse_host_paths) or "/" not in self.writable_host_paths

    def refusal_of_mounts(self, mounts: Iterable[HostMount]) -> str:
        """The same of a pod's hostPath volumes, as they are written."""
        lists = self.refuse_host_paths, self.writable_host_paths
        refusals = (host_path_refusal(one.path, BY, *lists, readonly=one.readonly) for one in mounts)
        return next(filter(None, refusals), "")


class HardeningHook(Struct, frozen=True):
    """Gives the runtime's seccomp profile to what has none, masks /proc, and cuts what is added; see the module."""

    hardening: Hardening
    name: ClassVar[str] = "hardening"

    def adjust(self, request: PodRequest) -> Iterator[Adjustment]:
        if request.pod is None or self.hardening.lets(request.pod) is not None:
            return
        if request.security.unconfined and self.hardening.seccomp:
            yield Adjustment(
                "seccomp", "RuntimeDefault", "without it, one pod can use up the kernel's keys of the node"
            )
        if request.security.unmasked and self.hardening.proc_mount:
            yield Adjustment("proc_mount", "Default", "it could write the settings of the node's kernel")
        if self.hardening.cache_classes:
            for key in _cache_classes(request):
                yield Adjustment("annotations", None, "it chooses a share of the cache, maybe online pods'", key)
            for key in _asked_of_nri_plugins(request):
                yield Adjustment("annotations", None, "it chooses CPUs or a class, maybe online pods'", key)
        asked = request.security.added_capabilities
        if (kept := self._kept(asked)) != tuple(asked):
            yield Adjustment("add_capabilities", ", ".join(kept), "hardening.capabilities lists no others")

    def _kept(self, asked: Sequence[str]) -> tuple[str, ...]:
        """Of `ALL`, the list itself is what stays."""
        allowed = self.hardening.capabilities
        if ALL in allowed:
            return tuple(asked)
        if ALL in map(plain, asked):
            return tuple(sorted(allowed))
        return tuple(one for one in asked if plain(one) in allowed)


def _cache_classes(request: PodRequest) -> Iterator[str]:
    """The annotations of the pod's that choose one for this sandbox or container; see `Adjustment.key`.

    From a sandbox, those of all containers are taken: CRI-O keeps its annotations, and goes by them. Source: CRI-O,
    server/container_create.go, rdt.ContainerClassFromAnnotations.
    """
    containers = f"{CACHE_CLASS}container."
    keys = [f"{CACHE_CLASS}pod"]
    if request.operation is Operation.CREATE_CONTAINER:
        keys.append(f"{containers}{request.container}")
    elif request.target is not Target.SANDBOX:  # of a pod that is restored, the sandbox's part has them
        return
    elif any(one.startswith(containers) for one in request.annotations):
        yield f"{containers}{EVERY}"
    yield from (key for key in keys if key in request.annotations)


def _asked_of_nri_plugins(request: PodRequest) -> Iterator[str]:
    """Of `NRI_PLUGINS`, what the annotations of a sandbox have, for the pod or for any container."""
    if request.target is not Target.SANDBOX:
        return
    for key in NRI_PLUGINS:
        if key in request.annotations or any(one.startswith(f"{key}/") for one in request.annotations):
            yield f"{key}{EVERY}"
