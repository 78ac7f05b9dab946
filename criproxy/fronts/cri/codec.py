"""Hooked requests as facts, and adjustments back into them. The only module that knows how CRI messages are built.

A rewrite keeps every byte of content that it does not name: fields that our messages do not declare stay in them as
unknown fields. Messages of runtime.v1 and runtime.v1alpha2 are the same on the wire.
"""

from __future__ import annotations  # the messages in them are not imported yet

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from functools import cache, cached_property
from itertools import chain, islice
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message
from msgspec import Struct

from criproxy.fronts.cri import messages as cri
from criproxy.hooks.hardening import MASKED_PATHS, READONLY_PATHS
from criproxy.model import (
    EVERY,
    NO_LIMIT_BYTES,
    PLACEMENT_ANNOTATION,
    Adjustment,
    HostMount,
    Operation,
    Pod,
    PodRef,
    Resources,
    Security,
    Target,
)
from criproxy.pods.placing import Made
from criproxy.pods.runtime import ListedContainer, ListedSandbox
from criproxy.vocabulary.unboundable import MOST_CAPABILITIES, MOST_CAPABILITY_BYTES

_M = TypeVar("_M", bound=Message)
_L = TypeVar("_L", ListedSandbox, ListedContainer)

_KEPT: Final = "surrogateescape"
"""What is no UTF-8 comes out again as it came in."""

_SANDBOX_READY: Final = 0
_CONTAINER_RUNNING: Final = 1
"""Source: CRI PodSandboxState, ContainerState."""

_NONE_KNOWN: Final[Mapping[str, Any]] = MappingProxyType({})

_NAMESPACES: Final = ("network", "pid", "ipc")
_NODE: Final = 2
"""Source: CRI NamespaceOption, NamespaceMode."""

_UNCONFINED: Final = 1
"""Source: CRI SecurityProfile, ProfileType."""

_POD: Final = 0
"""Source: CRI UserNamespace, NamespaceMode."""

_MASKED: Final = frozenset(one.encode() for one in MASKED_PATHS)
_READONLY: Final = frozenset(one.encode() for one in READONLY_PATHS)

_NO_PROFILE: Final = (b"", b"unconfined")

_PIECE_BYTES: Final = 64 * 1024
_FIRST_FIELD: Final = b"\x0a"
"""The tag of a message in field 1."""
_LENGTH_BYTES: Final = 5


class CodecError(ValueError):
    """Bytes that are no message of their method, or one that a runtime's protobuf may read otherwise than ours.

    Go's runtimes take some that ours refuses: fields with numbers from 2^29 on, tags and lengths in over five bytes,
    groups over 100 deep, text that runs on behind the map's entry that it began in. Kubelet writes none of them.
    """


class MessagePart(Struct, frozen=True):
    """A `placing.CallPart`: its facts, and the protobuf messages that adjustments go into."""

    target: Target
    container: str
    resources: Resources
    sandbox_message: cri.PodSandboxConfig | None
    resources_message: cri.LinuxContainerResources
    container_message: cri.ContainerConfig | None = None
    security: Security = Security()

    def reaches(self, adjustment: Adjustment) -> bool:
        return True

    def apply(self, adjustment: Adjustment) -> str | int | None:
        match adjustment.field:
            case "annotations" if self.sandbox_message is not None:
                return _set_entry(self.sandbox_message.annotations, adjustment)
            case "unified":
                return _set_entry(self.resources_message.unified, adjustment)
            case "seccomp" if (config := self.container_message or self.sandbox_message) is not None:
                return _set_seccomp(config.linux.security_context)
            case "drop_capabilities" | "add_capabilities" | "proc_mount" if self.container_message is not None:
                changes = {"drop_capabilities": _add_dropped, "add_capabilities": _set_added, "proc_mount": _mask}
                return changes[adjustment.field](self.container_message, adjustment)
            case "cgroup_parent" if self.sandbox_message is not None:
                return _set_scalar(self.sandbox_message.linux, adjustment)
            case _:
                return _set_scalar(self.resources_message, adjustment)


class Request:
    """A `placing.Call`, decoded; its fields are read on demand. Raises CodecError when `data` does not decode."""

    late: bool = False

    def __init__(self, operation: Operation, data: bytes) -> None:
        self.operation = operation
        kind: type[Message] = getattr(cri, f"{operation}Request")
        self._message = decode(kind, data)
        self._entries: list[cri.StringEntry] = []
        """Kept, as whoever reads the maps gets these very objects again; to make them anew takes longest."""
        _add_entries(self._message, self._entries)
        # gogo's code takes a map's key and value under any wire type, where ours sees an unknown field.
        # Source: gogo/protobuf, plugin/unmarshal.
        if any(map(len, map(cri.UnknownFieldSet, self._entries))):
            raise CodecError("an entry of one of its maps has more than a key and a value")

    @cached_property
    def pod(self) -> Pod | None:
        """As kubelet sent it. None where the request does not carry the pod: the two updates."""
        match self._message:
            case cri.RunPodSandboxRequest(config=config) | cri.RestorePodRequest(config=config):
                return _pod(config)
            case cri.CreateContainerRequest(sandbox_config=config):
                return _pod(config)
            case _:
                return None

    @property
    def sandbox_id(self) -> str:
        """ "" where the request does not carry it."""
        return text(getattr(self._message, "pod_sandbox_id", b""))

    @property
    def container_id(self) -> str:
        """ "" where the request does not carry it."""
        return text(getattr(self._message, "container_id", b""))

    @cached_property
    def parts(self) -> tuple[MessagePart, ...]:
        """Their facts are those that came, whatever was applied."""
        match self._message:
            case cri.RunPodSandboxRequest(config=config):
                return (_sandbox_part(config),)
            case cri.CreateContainerRequest(config=config, sandbox_config=sandbox):
                return (_container_part(config, sandbox),)
            case cri.UpdateContainerResourcesRequest(linux=resources):
                return (MessagePart(Target.CONTAINER, "", _resources(resources), None, resources),)
            case cri.UpdatePodSandboxResourcesRequest(resources=resources):
                return (MessagePart(Target.SANDBOX, "", _resources(resources), None, resources),)
            case cri.RestorePodRequest(config=config, container_configs=containers):
                return (_sandbox_part(config), *(_container_part(container, None) for container in containers))
            case _:
                return ()

    @property
    def pod_resources(self) -> Resources:
        """CPU and memory of the pod as a whole, with its overhead; what is not set, or no limit at all, is 0, but for a
        quota: that is -1 where there is none.

        In a resize it is what kubelet sets on its own cgroup of the pod, now or in a moment. In a start the memory
        limit is the sum of the limits that containers have, also where one of them has none, and kubelet's cgroup of
        the pod neither.
        Source: kubelet, kuberuntime_sandbox_linux.go, calculateSandboxResources; cm, ResourceConfigForPod;
        kuberuntime_container_linux.go, generateUpdatePodSandboxResourcesRequest.
        """
        message = self._message
        match message:
            case cri.RunPodSandboxRequest() | cri.RestorePodRequest():
                resources, overhead = message.config.linux.resources, message.config.linux.overhead
            case cri.UpdatePodSandboxResourcesRequest():
                resources, overhead = message.resources, message.overhead
            case _:
                return Resources()
        memory_bytes, quota_us, shares = resources.memory_limit_in_bytes, resources.cpu_quota, resources.cpu_shares
        memory_bytes += overhead.memory_limit_in_bytes if memory_bytes > 0 else 0
        return Resources(
            cpu_period_us=max(0, resources.cpu_period),
            cpu_quota_us=quota_us + overhead.cpu_quota if quota_us > 0 else max(-1, quota_us),
            cpu_shares=shares + overhead.cpu_shares if shares > 0 else 0,
            memory_limit_bytes=memory_bytes if 0 < memory_bytes < NO_LIMIT_BYTES else 0,
        )

    def encode(self) -> bytes:
        return self._message.SerializeToString()

    def made(self, answer: bytes) -> Made:
        """What was made, by the answer to this; those to updates say nothing. Raises CodecError."""
        match self._message:
            case cri.RunPodSandboxRequest():
                return Made(text(decode(cri.RunPodSandboxResponse, answer).pod_sandbox_id))
            case cri.CreateContainerRequest(config=config):
                container_id = text(decode(cri.CreateContainerResponse, answer).container_id)
                return Made(containers=[(container_id, text(config.metadata.name))])
            case cri.RestorePodRequest():
                restored = decode(cri.RestorePodResponse, answer)
                containers = [(text(c.container_id), text(c.name)) for c in restored.restored_containers]
                return Made(text(restored.pod_sandbox_id), containers)
            case _:
                return Made()


def listed_sandboxes(data: bytes, known: Mapping[str, ListedSandbox] = _NONE_KNOWN) -> list[ListedSandbox]:
    """The sandboxes of a ListPodSandboxResponse. One that is as it is in `known` (by id) is that very object."""
    found, keys = list[ListedSandbox](), dict[bytes, str]()
    for piece in _pieces(data):
        for sandbox in decode(cri.ListPodSandboxResponse, piece).items:
            one = ListedSandbox(
                text(sandbox.id),
                _pod_ref(sandbox.metadata),
                (annotations := _map(sandbox.annotations, keys)).get(PLACEMENT_ANNOTATION, ""),
                running=sandbox.state == _SANDBOX_READY,
                labels=_map(sandbox.labels, keys),
                annotations=annotations,
                created_s=sandbox.created_at / 1e9,
            )
            found.append(_same(one, known))
    return found


def listed_containers(data: bytes, known: Mapping[str, ListedContainer] = _NONE_KNOWN) -> list[ListedContainer]:
    """The containers of a ListContainersResponse; `known` as in `listed_sandboxes`."""
    found = list[ListedContainer]()
    for piece in _pieces(data):
        for container in decode(cri.ListContainersResponse, piece).containers:
            one = ListedContainer(
                text(container.id),
                text(container.pod_sandbox_id),
                text(container.metadata.name),
                running=container.state == _CONTAINER_RUNNING,
            )
            found.append(_same(one, known))
    return found


def _same(one: _L, known: Mapping[str, _L]) -> _L:
    """The known one, if this says the same."""
    before = known.get(one.id)
    return before if before is not None and before == one else one


def _pieces(data: bytes) -> Iterator[bytes]:
    """A message that is nothing but a list, in messages of some of it: a whole one takes several times its bytes.

    Fields that follow each other are a message of their own, wherever the bytes are cut between them. What is written
    otherwise comes as it is, for protobuf to judge. Source: protobuf.dev, encoding (Message Structure).
    """
    begin = at = 0
    while len(data) - begin > _PIECE_BYTES:
        while at - begin < _PIECE_BYTES:
            behind = _behind_field(data, at)
            if behind is None:
                yield data[begin:]
                return
            at = behind
        yield data[begin:at]
        begin = at
    yield data[begin:]


def _behind_field(data: bytes, at: int) -> int | None:
    """Where the field that begins here ends; None: it is no message in field 1."""
    if data[at : at + 1] != _FIRST_FIELD:
        return None
    size = 0
    for number, byte in enumerate(data[at + 1 : at + 1 + _LENGTH_BYTES]):
        size |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return at + 2 + number + size
    return None


def requested_id(method: str, data: bytes) -> str:
    """The id in a request that names a sandbox or container and no more (`StartContainer`)."""
    request = decode(getattr(cri, f"{method}Request"), data)
    return text(request.container_id if method.endswith("Container") else request.pod_sandbox_id)


def decode(kind: type[_M], data: bytes) -> _M:
    """Raises CodecError."""
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise CodecError(f"{len(data)} bytes are no {kind.__name__}: {error}") from error
    return message


def _add_entries(message: Message, entries: list[cri.StringEntry]) -> None:
    """The entries of all maps in the message and in those in it."""
    kind: Any = type(message)
    read_maps, repeated = _places_of_maps(kind)
    for found in read_maps(message):
        entries += found
    for read in repeated:
        for part in read(message):
            _add_entries(part, entries)


@cache
def _places_of_maps(kind: type[Message]) -> tuple[Callable[[Message], Any], tuple[Callable[[Message], Any], ...]]:
    """What reads all maps of such a message, and what the messages that repeat in it and may have others.

    Found once, as to look through each message takes half as long again.
    """
    maps, repeated = list[str](), list[str]()

    def find(descriptor: Any, path: str) -> None:
        for field in descriptor.fields:
            if (below := field.message_type) is None:
                continue
            if below.name == "StringEntry":
                maps.append(f"{path}{field.name}")
            elif not field.is_repeated:
                find(below, f"{path}{field.name}.")
            elif _has_maps(below):
                repeated.append(f"{path}{field.name}")

    find(kind.DESCRIPTOR, "")
    first, *more = map(attrgetter, maps)
    return attrgetter(*maps) if more else lambda message: (first(message),), tuple(map(attrgetter, repeated))


def _has_maps(descriptor: Any) -> bool:
    below = [field.message_type for field in descriptor.fields if field.message_type is not None]
    return any(one.name == "StringEntry" or _has_maps(one) for one in below)


def text(data: bytes) -> str:
    return data.decode("utf-8", _KEPT)


def _capability(data: bytes) -> str:
    return text(data[:MOST_CAPABILITY_BYTES])


def wire(value: str) -> bytes:
    return value.encode("utf-8", _KEPT)


def _map(entries: Iterable[cri.StringEntry], keys: dict[bytes, str] | None = None) -> dict[str, str]:
    """As `text` does it, but without a call for each. `keys`: what was read of others, which often have the same."""
    if keys is None:
        return {entry.key.decode("utf-8", _KEPT): entry.value.decode("utf-8", _KEPT) for entry in entries}
    found = {}
    for entry in entries:
        if (key := keys.get(raw := entry.key)) is None:
            key = keys[raw] = raw.decode("utf-8", _KEPT)
        found[key] = entry.value.decode("utf-8", _KEPT)
    return found


def _pod_ref(metadata: cri.PodSandboxMetadata) -> PodRef:
    return PodRef(uid=text(metadata.uid), namespace=text(metadata.namespace), name=text(metadata.name))


def _pod(config: cri.PodSandboxConfig) -> Pod:
    parent = text(config.linux.cgroup_parent)
    return Pod(_pod_ref(config.metadata), _map(config.labels), _map(config.annotations), parent)


def _resources(message: cri.LinuxContainerResources) -> Resources:
    return Resources(
        cpu_period_us=message.cpu_period,
        cpu_quota_us=message.cpu_quota,
        cpu_shares=message.cpu_shares,
        memory_limit_bytes=message.memory_limit_in_bytes,
        oom_score_adj=message.oom_score_adj,
        cpuset_cpus=text(message.cpuset_cpus),
        unified=_map(message.unified),
    )


def _sandbox_part(config: cri.PodSandboxConfig) -> MessagePart:
    resources, context = config.linux.resources, config.linux.security_context
    security = _security(context, host_ports=tuple(one.host_port for one in config.port_mappings if one.host_port > 0))
    return MessagePart(Target.SANDBOX, "", _resources(resources), config, resources, None, security)


def _container_part(config: cri.ContainerConfig, sandbox: cri.PodSandboxConfig | None) -> MessagePart:
    name, resources = text(config.metadata.name), config.linux.resources
    context = config.linux.security_context
    asked = context.capabilities
    named = islice(chain(asked.add_capabilities, asked.add_ambient_capabilities), MOST_CAPABILITIES + 1)
    added = tuple(map(_capability, named))
    mounts = tuple(
        HostMount(text(one.host_path), one.readonly, one.recursive_read_only) for one in config.mounts if one.host_path
    )
    security = _security(context, added, mounts, unmasked=_is_unmasked(context))
    return MessagePart(Target.CONTAINER, name, _resources(resources), sandbox, resources, config, security)


def _security(
    context: cri.LinuxSandboxSecurityContext | cri.LinuxContainerSecurityContext,
    added_capabilities: tuple[str, ...] = (),
    host_mounts: tuple[HostMount, ...] = (),
    host_ports: tuple[int, ...] = (),
    *,
    unmasked: bool = False,
) -> Security:
    options = context.namespace_options
    shared = tuple(name for name in _NAMESPACES if getattr(options, name) == _NODE)
    unconfined = _is_unconfined(context)
    return Security(context.privileged, shared, unconfined, added_capabilities, host_mounts, host_ports, unmasked)


def _is_unconfined(context: cri.LinuxSandboxSecurityContext | cri.LinuxContainerSecurityContext) -> bool:
    """The path is what kubelets before 1.19 send; the runtime looks at it where there is no profile."""
    if context.HasField("seccomp"):
        return context.seccomp.profile_type == _UNCONFINED
    return context.seccomp_profile_path in _NO_PROFILE


def _is_unmasked(context: cri.LinuxContainerSecurityContext) -> bool:
    """Not where it has users of its own, who may write none of it; of a privileged one, the runtime masks nothing."""
    options = context.namespace_options
    has_own_users = options.HasField("userns_options") and options.userns_options.mode == _POD
    is_masked = _MASKED.issubset(context.masked_paths) and _READONLY.issubset(context.readonly_paths)
    return not (is_masked or has_own_users or context.privileged)


def _set_scalar(message: Message, adjustment: Adjustment) -> str | int:
    if adjustment.field not in message.DESCRIPTOR.fields_by_name:
        raise ValueError(f"{message.DESCRIPTOR.name} has no field {adjustment.field!r} to change")
    old, value = getattr(message, adjustment.field), adjustment.value
    if value is None:
        message.ClearField(adjustment.field)
    else:
        setattr(message, adjustment.field, wire(value) if isinstance(value, str) else value)
    return text(old) if isinstance(old, bytes) else int(old)


def _add_dropped(config: cri.ContainerConfig, adjustment: Adjustment) -> str:
    dropped = config.linux.security_context.capabilities.drop_capabilities
    old = ", ".join(map(text, dropped))
    dropped.append(wire(str(adjustment.value)))
    return old


def _set_added(config: cri.ContainerConfig, adjustment: Adjustment) -> str:
    """Those that the request names stay; the others are added. An author may name any number of them."""
    asked = config.linux.security_context.capabilities
    kept = dict.fromkeys(wire(one) for one in str(adjustment.value).split(", ") if one)
    old = dict.fromkeys((*asked.add_capabilities, *asked.add_ambient_capabilities))
    for entries in (asked.add_capabilities, asked.add_ambient_capabilities):
        stay = [one for one in entries if one in kept]
        del entries[:]
        entries.extend(stay)
    asked.add_capabilities.extend(one for one in kept if one not in old)
    return ", ".join(map(_capability, old))


def _mask(config: cri.ContainerConfig, _: Adjustment) -> str:
    context = config.linux.security_context
    context.masked_paths.extend(sorted(_MASKED.difference(context.masked_paths)))
    context.readonly_paths.extend(sorted(_READONLY.difference(context.readonly_paths)))
    return "Unmasked"


def _set_seccomp(context: cri.LinuxSandboxSecurityContext | cri.LinuxContainerSecurityContext) -> str:
    """RuntimeDefault, in both fields that runtimes read."""
    for field in ("profile_type", "localhost_ref"):
        context.seccomp.ClearField(field)
    context.seccomp.SetInParent()
    if context.seccomp_profile_path in _NO_PROFILE:
        context.seccomp_profile_path = b"runtime/default"
    return "Unconfined"


def _set_entry(entries: MutableSequence[cri.StringEntry], adjustment: Adjustment) -> str | None:
    """Set or drop one key of a map, or drop all that begin so; the order of the others stays, and so do their bytes."""
    key = wire(adjustment.key)
    if adjustment.key.endswith(EVERY):
        begins = wire(adjustment.key.removesuffix(EVERY))
        old = [index for index, entry in enumerate(entries) if entry.key.startswith(begins)]
    else:
        old = [index for index, entry in enumerate(entries) if entry.key == key]
    value = text(entries[old[-1]].value) if old else None
    for index in reversed(old):
        del entries[index]
    if adjustment.value is not None:
        entries.append(cri.StringEntry(key=key, value=wire(str(adjustment.value))))
    return value
