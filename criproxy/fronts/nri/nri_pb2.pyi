from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TtrpcRequest(_message.Message):
    __slots__ = ("service", "method", "payload", "timeout_nano")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NANO_FIELD_NUMBER: _ClassVar[int]
    service: bytes
    method: bytes
    payload: bytes
    timeout_nano: int
    def __init__(self, service: _Optional[bytes] = ..., method: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., timeout_nano: _Optional[int] = ...) -> None: ...

class TtrpcStatus(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: bytes
    def __init__(self, code: _Optional[int] = ..., message: _Optional[bytes] = ...) -> None: ...

class TtrpcResponse(_message.Message):
    __slots__ = ("status", "payload")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    status: TtrpcStatus
    payload: bytes
    def __init__(self, status: _Optional[_Union[TtrpcStatus, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class TextEntry(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class OptionalNumber(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...

class LinuxMemory(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: OptionalNumber
    def __init__(self, limit: _Optional[_Union[OptionalNumber, _Mapping]] = ...) -> None: ...

class LinuxCPU(_message.Message):
    __slots__ = ("shares", "quota", "period", "cpus")
    SHARES_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    shares: OptionalNumber
    quota: OptionalNumber
    period: OptionalNumber
    cpus: bytes
    def __init__(self, shares: _Optional[_Union[OptionalNumber, _Mapping]] = ..., quota: _Optional[_Union[OptionalNumber, _Mapping]] = ..., period: _Optional[_Union[OptionalNumber, _Mapping]] = ..., cpus: _Optional[bytes] = ...) -> None: ...

class LinuxDeviceCgroup(_message.Message):
    __slots__ = ("allow", "type", "major", "minor", "access")
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    allow: bool
    type: bytes
    major: OptionalNumber
    minor: OptionalNumber
    access: bytes
    def __init__(self, allow: _Optional[bool] = ..., type: _Optional[bytes] = ..., major: _Optional[_Union[OptionalNumber, _Mapping]] = ..., minor: _Optional[_Union[OptionalNumber, _Mapping]] = ..., access: _Optional[bytes] = ...) -> None: ...

class LinuxResources(_message.Message):
    __slots__ = ("memory", "cpu", "unified", "devices")
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    UNIFIED_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    memory: LinuxMemory
    cpu: LinuxCPU
    unified: _containers.RepeatedCompositeFieldContainer[TextEntry]
    devices: _containers.RepeatedCompositeFieldContainer[LinuxDeviceCgroup]
    def __init__(self, memory: _Optional[_Union[LinuxMemory, _Mapping]] = ..., cpu: _Optional[_Union[LinuxCPU, _Mapping]] = ..., unified: _Optional[_Iterable[_Union[TextEntry, _Mapping]]] = ..., devices: _Optional[_Iterable[_Union[LinuxDeviceCgroup, _Mapping]]] = ...) -> None: ...

class LinuxNamespace(_message.Message):
    __slots__ = ("type",)
    TYPE_FIELD_NUMBER: _ClassVar[int]
    type: bytes
    def __init__(self, type: _Optional[bytes] = ...) -> None: ...

class LinuxPodSandbox(_message.Message):
    __slots__ = ("pod_overhead", "pod_resources", "cgroup_parent", "namespaces")
    POD_OVERHEAD_FIELD_NUMBER: _ClassVar[int]
    POD_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    CGROUP_PARENT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    pod_overhead: LinuxResources
    pod_resources: LinuxResources
    cgroup_parent: bytes
    namespaces: _containers.RepeatedCompositeFieldContainer[LinuxNamespace]
    def __init__(self, pod_overhead: _Optional[_Union[LinuxResources, _Mapping]] = ..., pod_resources: _Optional[_Union[LinuxResources, _Mapping]] = ..., cgroup_parent: _Optional[bytes] = ..., namespaces: _Optional[_Iterable[_Union[LinuxNamespace, _Mapping]]] = ...) -> None: ...

class NriPodSandbox(_message.Message):
    __slots__ = ("id", "name", "uid", "namespace", "labels", "annotations", "linux")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    LINUX_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    name: bytes
    uid: bytes
    namespace: bytes
    labels: _containers.RepeatedCompositeFieldContainer[TextEntry]
    annotations: _containers.RepeatedCompositeFieldContainer[TextEntry]
    linux: LinuxPodSandbox
    def __init__(self, id: _Optional[bytes] = ..., name: _Optional[bytes] = ..., uid: _Optional[bytes] = ..., namespace: _Optional[bytes] = ..., labels: _Optional[_Iterable[_Union[TextEntry, _Mapping]]] = ..., annotations: _Optional[_Iterable[_Union[TextEntry, _Mapping]]] = ..., linux: _Optional[_Union[LinuxPodSandbox, _Mapping]] = ...) -> None: ...

class NriMount(_message.Message):
    __slots__ = ("type", "source", "options")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    type: bytes
    source: bytes
    options: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, type: _Optional[bytes] = ..., source: _Optional[bytes] = ..., options: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LinuxContainer(_message.Message):
    __slots__ = ("resources", "oom_score_adj", "cgroups_path")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    OOM_SCORE_ADJ_FIELD_NUMBER: _ClassVar[int]
    CGROUPS_PATH_FIELD_NUMBER: _ClassVar[int]
    resources: LinuxResources
    oom_score_adj: OptionalNumber
    cgroups_path: bytes
    def __init__(self, resources: _Optional[_Union[LinuxResources, _Mapping]] = ..., oom_score_adj: _Optional[_Union[OptionalNumber, _Mapping]] = ..., cgroups_path: _Optional[bytes] = ...) -> None: ...

class NriContainer(_message.Message):
    __slots__ = ("id", "pod_sandbox_id", "name", "state", "mounts", "linux")
    ID_FIELD_NUMBER: _ClassVar[int]
    POD_SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MOUNTS_FIELD_NUMBER: _ClassVar[int]
    LINUX_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    pod_sandbox_id: bytes
    name: bytes
    state: int
    mounts: _containers.RepeatedCompositeFieldContainer[NriMount]
    linux: LinuxContainer
    def __init__(self, id: _Optional[bytes] = ..., pod_sandbox_id: _Optional[bytes] = ..., name: _Optional[bytes] = ..., state: _Optional[int] = ..., mounts: _Optional[_Iterable[_Union[NriMount, _Mapping]]] = ..., linux: _Optional[_Union[LinuxContainer, _Mapping]] = ...) -> None: ...

class RegisterPluginRequest(_message.Message):
    __slots__ = ("plugin_name", "plugin_idx", "NRI_version")
    PLUGIN_NAME_FIELD_NUMBER: _ClassVar[int]
    PLUGIN_IDX_FIELD_NUMBER: _ClassVar[int]
    NRI_VERSION_FIELD_NUMBER: _ClassVar[int]
    plugin_name: bytes
    plugin_idx: bytes
    NRI_version: bytes
    def __init__(self, plugin_name: _Optional[bytes] = ..., plugin_idx: _Optional[bytes] = ..., NRI_version: _Optional[bytes] = ...) -> None: ...

class ConfigureRequest(_message.Message):
    __slots__ = ("runtime_name", "runtime_version", "registration_timeout", "request_timeout", "NRI_version")
    RUNTIME_NAME_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_VERSION_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    NRI_VERSION_FIELD_NUMBER: _ClassVar[int]
    runtime_name: bytes
    runtime_version: bytes
    registration_timeout: int
    request_timeout: int
    NRI_version: bytes
    def __init__(self, runtime_name: _Optional[bytes] = ..., runtime_version: _Optional[bytes] = ..., registration_timeout: _Optional[int] = ..., request_timeout: _Optional[int] = ..., NRI_version: _Optional[bytes] = ...) -> None: ...

class ConfigureResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: int
    def __init__(self, events: _Optional[int] = ...) -> None: ...

class SynchronizeRequest(_message.Message):
    __slots__ = ("pods", "containers", "more")
    PODS_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    pods: _containers.RepeatedCompositeFieldContainer[NriPodSandbox]
    containers: _containers.RepeatedCompositeFieldContainer[NriContainer]
    more: bool
    def __init__(self, pods: _Optional[_Iterable[_Union[NriPodSandbox, _Mapping]]] = ..., containers: _Optional[_Iterable[_Union[NriContainer, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class SynchronizeResponse(_message.Message):
    __slots__ = ("more",)
    MORE_FIELD_NUMBER: _ClassVar[int]
    more: bool
    def __init__(self, more: _Optional[bool] = ...) -> None: ...

class PodEvent(_message.Message):
    __slots__ = ("pod", "container")
    POD_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    pod: NriPodSandbox
    container: NriContainer
    def __init__(self, pod: _Optional[_Union[NriPodSandbox, _Mapping]] = ..., container: _Optional[_Union[NriContainer, _Mapping]] = ...) -> None: ...

class StateChangeEvent(_message.Message):
    __slots__ = ("event", "pod", "container")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    event: int
    pod: NriPodSandbox
    container: NriContainer
    def __init__(self, event: _Optional[int] = ..., pod: _Optional[_Union[NriPodSandbox, _Mapping]] = ..., container: _Optional[_Union[NriContainer, _Mapping]] = ...) -> None: ...

class UpdatePodSandboxEvent(_message.Message):
    __slots__ = ("pod", "overhead_linux_resources", "linux_resources")
    POD_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_LINUX_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    LINUX_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    pod: NriPodSandbox
    overhead_linux_resources: LinuxResources
    linux_resources: LinuxResources
    def __init__(self, pod: _Optional[_Union[NriPodSandbox, _Mapping]] = ..., overhead_linux_resources: _Optional[_Union[LinuxResources, _Mapping]] = ..., linux_resources: _Optional[_Union[LinuxResources, _Mapping]] = ...) -> None: ...

class UpdateContainerEvent(_message.Message):
    __slots__ = ("pod", "container", "linux_resources")
    POD_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    LINUX_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    pod: NriPodSandbox
    container: NriContainer
    linux_resources: LinuxResources
    def __init__(self, pod: _Optional[_Union[NriPodSandbox, _Mapping]] = ..., container: _Optional[_Union[NriContainer, _Mapping]] = ..., linux_resources: _Optional[_Union[LinuxResources, _Mapping]] = ...) -> None: ...

class LinuxContainerAdjustment(_message.Message):
    __slots__ = ("resources", "cgroups_path", "oom_score_adj")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    CGROUPS_PATH_FIELD_NUMBER: _ClassVar[int]
    OOM_SCORE_ADJ_FIELD_NUMBER: _ClassVar[int]
    resources: LinuxResources
    cgroups_path: bytes
    oom_score_adj: OptionalNumber
    def __init__(self, resources: _Optional[_Union[LinuxResources, _Mapping]] = ..., cgroups_path: _Optional[bytes] = ..., oom_score_adj: _Optional[_Union[OptionalNumber, _Mapping]] = ...) -> None: ...

class ContainerAdjustment(_message.Message):
    __slots__ = ("linux",)
    LINUX_FIELD_NUMBER: _ClassVar[int]
    linux: LinuxContainerAdjustment
    def __init__(self, linux: _Optional[_Union[LinuxContainerAdjustment, _Mapping]] = ...) -> None: ...

class CreateContainerAnswer(_message.Message):
    __slots__ = ("adjust",)
    ADJUST_FIELD_NUMBER: _ClassVar[int]
    adjust: ContainerAdjustment
    def __init__(self, adjust: _Optional[_Union[ContainerAdjustment, _Mapping]] = ...) -> None: ...

class LinuxContainerUpdate(_message.Message):
    __slots__ = ("resources",)
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    resources: LinuxResources
    def __init__(self, resources: _Optional[_Union[LinuxResources, _Mapping]] = ...) -> None: ...

class ContainerUpdate(_message.Message):
    __slots__ = ("container_id", "linux")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    LINUX_FIELD_NUMBER: _ClassVar[int]
    container_id: bytes
    linux: LinuxContainerUpdate
    def __init__(self, container_id: _Optional[bytes] = ..., linux: _Optional[_Union[LinuxContainerUpdate, _Mapping]] = ...) -> None: ...

class UpdateContainerAnswer(_message.Message):
    __slots__ = ("update",)
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    update: _containers.RepeatedCompositeFieldContainer[ContainerUpdate]
    def __init__(self, update: _Optional[_Iterable[_Union[ContainerUpdate, _Mapping]]] = ...) -> None: ...
