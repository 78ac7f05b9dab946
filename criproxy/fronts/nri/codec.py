"""The runtime's events as facts, and adjustments as answers to them. The only module that knows how NRI's messages are
built.

A call of NRI tells of a pod and, of most, a container, as the runtime is about to make it. Its answer says what is to
be otherwise; nothing that came is sent back.

What a front of CRI reads of kubelet's request is not all there. Whether a container is privileged, and whether a pod
shares a namespace of the node, is seen by what the runtime has made of it. Seccomp profiles and capabilities are not
told, or can't be set: `reaches` says what can.
Source: containerd/nri, pkg/api; containerd, internal/cri/server, container_create.
"""

from __future__ import annotations  # the messages in them are not imported yet

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

from msgspec import Struct

from criproxy.cgroup.naming import directory_of, is_slice, parse_placement
from criproxy.fronts.cri.codec import CodecError, decode, text, wire
from criproxy.fronts.nri import messages as nri
from criproxy.model import NO_LIMIT_BYTES, Adjustment, HostMount, Operation, Pod, PodRef, Resources, Security, Target

__all__ = ("CodecError", "decode", "text")

_NODES: Final = (b"network", b"pid", b"ipc")
"""The kinds of namespaces that a pod has of its own, unless it shares the node's. Source: CRI, NamespaceOption."""

_ALL_DEVICES: Final = (b"", b"a")
_MEMBER: Final = "member"
"""What `cpuset.cpus.partition` is by itself: an entry can be set, but not taken away."""

_AT_CREATION: Final = frozenset({"cgroup_parent", "oom_score_adj"})
_ALWAYS: Final = frozenset({"cpu_quota", "cpuset_cpus", "unified"})


def reaches(operation: Operation, target: Target, adjustment: Adjustment) -> bool:
    """Whether an answer to this call can bring that about."""
    if target is Target.SANDBOX:  # it is made by now
        return False
    return adjustment.field in _ALWAYS or (operation is Operation.CREATE_CONTAINER and adjustment.field in _AT_CREATION)


class NriPart(Struct):
    """A `placing.CallPart`: the sandbox or the container of a call, and what is to be otherwise of it.

    `cgroups_path` is the container's, as the runtime is about to make it.
    """

    operation: Operation
    target: Target
    container: str
    resources: Resources
    security: Security
    cgroups_path: str
    wanted: nri.LinuxContainerAdjustment

    def reaches(self, adjustment: Adjustment) -> bool:
        return reaches(self.operation, self.target, adjustment)

    def apply(self, adjustment: Adjustment) -> str | int | None:
        value, now, resources = adjustment.value, self.resources, self.wanted.resources
        match adjustment.field:
            case "cgroup_parent":
                self.wanted.cgroups_path = wire(path_below(self.cgroups_path, str(value)))
                return self.cgroups_path
            case "oom_score_adj":
                self.wanted.oom_score_adj.value = int(value or 0)
                return now.oom_score_adj
            case "cpu_quota":
                if (quota_us := -1 if value is None else int(value)) != now.cpu_quota_us:
                    resources.cpu.quota.value = quota_us
                return now.cpu_quota_us
            case "cpuset_cpus":
                resources.cpu.cpus = wire(str(value))
                return now.cpuset_cpus
            case "unified":
                entry = _MEMBER if value is None else str(value)
                if entry != now.unified.get(adjustment.key):
                    resources.unified.add(key=wire(adjustment.key), value=wire(entry))
                return now.unified.get(adjustment.key)
            case _:
                raise ValueError(f"an event of NRI has no field {adjustment.field!r} to change")


class NriCall:
    """A `placing.Call` of an event. What is not asked of it is not read."""

    def __init__(
        self,
        operation: Operation,
        sandbox: nri.NriPodSandbox,
        container: nri.NriContainer | None = None,
        resources: nri.LinuxResources | None = None,
        overhead: nri.LinuxResources | None = None,
    ) -> None:
        """`resources`: what an update asks for, `overhead`: what of the pod's is for the runtime itself."""
        self.operation = operation
        self.late = False
        self._sandbox = sandbox
        self._container = container
        self._resources = resources
        self._overhead = overhead

    @cached_property
    def pod(self) -> Pod | None:
        """None in updates, as in those of CRI: a pod is judged when it starts."""
        return (
            pod_of(self._sandbox) if self.operation in (Operation.RUN_POD_SANDBOX, Operation.CREATE_CONTAINER) else None
        )

    @property
    def sandbox_id(self) -> str:
        return text(self._sandbox.id)

    @property
    def container_id(self) -> str:
        return "" if self._container is None else text(self._container.id)

    @cached_property
    def parts(self) -> Sequence[NriPart]:
        wanted, container = nri.LinuxContainerAdjustment(), self._container
        match self.operation:
            case Operation.RUN_POD_SANDBOX:
                shared = _shared_namespaces(self._sandbox)
                security = Security(host_namespaces=shared)
                return (NriPart(self.operation, Target.SANDBOX, "", Resources(), security, "", wanted),)
            case Operation.CREATE_CONTAINER if container is not None:
                oom_score_adj = container.linux.oom_score_adj.value
                resources = _resources(container.linux.resources, oom_score_adj)
                security = _security(container, self._sandbox)
            case Operation.UPDATE_CONTAINER_RESOURCES if container is not None and self._resources is not None:
                resources, security = _resources(self._resources), Security()
            case _:
                return ()
        name, path = text(container.name), text(container.linux.cgroups_path)
        return (NriPart(self.operation, Target.CONTAINER, name, resources, security, path, wanted),)

    @cached_property
    def pod_resources(self) -> Resources:
        """As `cri.codec.Request.pod_resources`."""
        match self.operation:
            case Operation.RUN_POD_SANDBOX:
                given, overhead = self._sandbox.linux.pod_resources, self._sandbox.linux.pod_overhead
            case Operation.UPDATE_POD_SANDBOX_RESOURCES if self._resources is not None and self._overhead is not None:
                given, overhead = self._resources, self._overhead
            case _:
                return Resources()
        now, more = _resources(given), _resources(overhead)
        memory_bytes = now.memory_limit_bytes + (more.memory_limit_bytes if now.memory_limit_bytes > 0 else 0)
        quota_us = now.cpu_quota_us
        return Resources(
            cpu_period_us=max(0, now.cpu_period_us),
            cpu_quota_us=quota_us + more.cpu_quota_us if quota_us > 0 else max(-1, quota_us),
            cpu_shares=now.cpu_shares + more.cpu_shares if now.cpu_shares > 0 else 0,
            memory_limit_bytes=memory_bytes if 0 < memory_bytes < NO_LIMIT_BYTES else 0,
        )

    def encode(self) -> bytes:
        """The answer that asks for what was applied. One whose container is in the box already asks for nothing:
        another process of ours has answered before, in a hand-over, and two plugins that set one field fail the call.
        """
        for part in self.parts:
            if part.target is Target.SANDBOX:
                continue
            if self.operation is Operation.CREATE_CONTAINER:
                if part.cgroups_path == text(part.wanted.cgroups_path):
                    break
                return nri.CreateContainerAnswer(adjust={"linux": part.wanted}).SerializeToString()
            if part.wanted.HasField("resources"):
                update = nri.ContainerUpdate(
                    container_id=wire(self.container_id), linux={"resources": part.wanted.resources}
                )
                return nri.UpdateContainerAnswer(update=[update]).SerializeToString()
        return b""


def path_below(cgroups_path: str, parent: str) -> str:
    """A container's cgroup below another parent, named as the runtime has named it.

    `/kubepods/podA/ID` (cgroupfs) or `kubepods-podA.slice:cri-containerd:ID` (systemd). Raises ValueError where the
    runtime's driver is not that of the parent, a directory below the hierarchy's root.
    """
    head, colon, rest = cgroups_path.partition(":")
    if colon and is_slice(head):
        if not is_slice(parent):
            raise ValueError(f"the runtime names cgroups as systemd does ({cgroups_path}), kubelet does not ({parent})")
        return f"{parent.rpartition('/')[2]}:{rest}"
    own = cgroups_path.rpartition("/")[2]
    if not own or is_slice(parent):
        raise ValueError(f"the runtime's cgroup {cgroups_path!r} can't be put below {parent!r}: their drivers differ")
    return f"{parent}/{own}"


def lies_in(cgroups_path: str, placement: str) -> bool:
    """Whether a container's cgroup is right below that of its pod in the box."""
    try:
        return path_below(cgroups_path, directory_of(placement)) == cgroups_path
    except ValueError:
        return False


def pod_of(sandbox: nri.NriPodSandbox) -> Pod:
    ref = PodRef(text(sandbox.uid), text(sandbox.namespace), text(sandbox.name))
    return Pod(ref, _map(sandbox.labels), _map(sandbox.annotations), text(sandbox.linux.cgroup_parent))


def in_box_by_cri(pod: Pod) -> str | None:
    """The place of a pod that the CRI front has put into the box, as its whole sandbox is there; None: it is not."""
    try:
        return pod.cgroup_parent if parse_placement(pod.cgroup_parent).is_of(pod.ref.uid) else None
    except ValueError:
        return None


def _map(entries: Iterable[nri.TextEntry]) -> dict[str, str]:
    return {text(entry.key): text(entry.value) for entry in entries}


def _resources(message: nri.LinuxResources, oom_score_adj: int = 0) -> Resources:
    cpu = message.cpu
    return Resources(
        cpu_period_us=cpu.period.value,
        cpu_quota_us=cpu.quota.value,
        cpu_shares=cpu.shares.value,
        memory_limit_bytes=message.memory.limit.value,
        oom_score_adj=oom_score_adj,
        cpuset_cpus=text(cpu.cpus),
        unified=_map(message.unified),
    )


def _security(container: nri.NriContainer, sandbox: nri.NriPodSandbox) -> Security:
    return Security(
        privileged=_is_privileged(container),
        host_namespaces=_shared_namespaces(sandbox),
        host_mounts=_host_mounts(container, text(sandbox.id)),
    )


def _is_privileged(container: nri.NriContainer) -> bool:
    """Such a container may use every device, or has the kernel's own files to write."""
    for device in container.linux.resources.devices:
        numbered = device.HasField("major") or device.HasField("minor")
        if device.allow and device.type in _ALL_DEVICES and not numbered and b"w" in device.access:
            return True
    return any(mount.type in (b"sysfs", b"cgroup") and b"ro" not in mount.options for mount in container.mounts)


def _shared_namespaces(sandbox: nri.NriPodSandbox) -> tuple[str, ...]:
    """None, where the runtime does not tell the pod's own."""
    own = {one.type for one in sandbox.linux.namespaces}
    return tuple(text(kind) for kind in _NODES if own and kind not in own)


def _host_mounts(container: nri.NriContainer, sandbox_id: str) -> tuple[HostMount, ...]:
    """What it mounts of the node. What lies in a folder named after the pod or the container is the runtime's own for
    it: nobody knows such a name before.
    """
    ours = (sandbox_id, text(container.id))
    found = (_host_mount(mount) for mount in container.mounts if mount.source.startswith(b"/"))
    return tuple(mount for mount in found if not any(one and f"/{one}/" in mount.path for one in ours))


def _host_mount(mount: nri.NriMount) -> HostMount:
    """Runtimes write one of the options; where one says that it is writable, it counts as that.

    Source: OCI runtime specification, config.md, mounts; CRI-O, server/container_create_linux.go.
    """
    options = frozenset(mount.options)
    recursive = b"rro" in options
    readonly = (recursive or b"ro" in options) and options.isdisjoint((b"rw", b"rrw"))
    return HostMount(text(mount.source), readonly, readonly and recursive)
