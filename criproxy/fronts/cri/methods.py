"""CRI's methods by name: which take one message and answer with one, and which answer with a stream.

Source: cri-api v1, services RuntimeService and ImageService; v1alpha2 has a subset under the same names.
"""

from typing import Final

APIS: Final = ("runtime.v1", "runtime.v1alpha2")
"""The packages of CRI, the preferred one first."""

_RUNTIME_UNARY: Final = (
    "Attach",
    "CheckpointContainer",
    "CheckpointPod",
    "ContainerStats",
    "ContainerStatus",
    "CreateContainer",
    "Exec",
    "ExecSync",
    "ListContainerStats",
    "ListContainers",
    "ListMetricDescriptors",
    "ListPodSandbox",
    "ListPodSandboxMetrics",
    "ListPodSandboxStats",
    "PodSandboxStats",
    "PodSandboxStatus",
    "PortForward",
    "RemoveContainer",
    "RemovePodSandbox",
    "ReopenContainerLog",
    "RestorePod",
    "RunPodSandbox",
    "RuntimeConfig",
    "StartContainer",
    "Status",
    "StopContainer",
    "StopPodSandbox",
    "UpdateContainerResources",
    "UpdatePodSandboxResources",
    "UpdateRuntimeConfig",
    "Version",
)
_RUNTIME_STREAMING: Final = (
    "GetContainerEvents",
    "StreamContainerStats",
    "StreamContainers",
    "StreamPodSandboxMetrics",
    "StreamPodSandboxStats",
    "StreamPodSandboxes",
)
_IMAGE_UNARY: Final = ("ImageFsInfo", "ImageStatus", "ListImages", "PullImage", "RemoveImage")
_IMAGE_STREAMING: Final = ("StreamImages",)


def _paths(service: str, names: tuple[str, ...]) -> dict[str, str]:
    return {f"/{api}.{service}/{name}": name for api in APIS for name in names}


_UNARY: Final = _paths("RuntimeService", _RUNTIME_UNARY) | _paths("ImageService", _IMAGE_UNARY)
_STREAMING: Final = _paths("RuntimeService", _RUNTIME_STREAMING) | _paths("ImageService", _IMAGE_STREAMING)
_KNOWN: Final = _UNARY | _STREAMING


def is_unary(path: str) -> bool:
    """Whether the call of this path (`/runtime.v1.RuntimeService/Version`) is known to be one message each way."""
    return path in _UNARY


def is_server_streaming(path: str) -> bool:
    """Whether the call of this path is known to be one message there and a stream back."""
    return path in _STREAMING


def is_endless(path: str) -> bool:
    """Whether the call of this path lasts until one side breaks it off; a client of it is used to calling again."""
    return _STREAMING.get(path) == "GetContainerEvents"


def label(path: str) -> str:
    """The method's name, as a metric's label: one of CRI's, or "other", so that no client can add more."""
    return _KNOWN.get(path, "other")
