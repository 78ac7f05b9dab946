"""The kinds that the keeper of owners and the webhook ask for."""

from typing import Any, Final

from lightkube.core.resource import (
    ApiInfo,
    GlobalResource,
    NamespacedResource,
    NamespacedSubResource,
    ResourceDef,
)
from msgspec import Struct, field

from criproxy_cluster.objects import Meta
from criproxy_cluster.owners.pods import OwnedPodObject

_POD = ResourceDef("", "v1", "Pod")
BOOK: Final = "criproxy-owners"
"""The ConfigMap, in the namespace of the replicas."""

KEY: Final = "book"
WRITTEN: Final = "colocation.criproxy.io/written"


class BookObject(Struct):
    """Source: core/v1 ConfigMap."""

    metadata: Meta = field(default_factory=Meta)
    data: dict[str, str] | None = None


class EvictionObject(Struct):
    """Source: policy/v1 Eviction."""

    apiVersion: str | None = "policy/v1"
    kind: str | None = "Eviction"
    metadata: Meta = field(default_factory=Meta)
    deleteOptions: dict[str, Any] | None = None


class OwnedPodResource(GlobalResource, OwnedPodObject):
    """Of all namespaces."""

    _api_info = ApiInfo(_POD, plural="pods", verbs=["list", "watch", "global_list", "global_watch"])


class PodStatusResource(NamespacedSubResource, OwnedPodObject):
    _api_info = ApiInfo(_POD, plural="pods", verbs=["patch"], parent=_POD, action="status")


class PodEvictionResource(NamespacedSubResource, EvictionObject):
    _api_info = ApiInfo(
        ResourceDef("policy", "v1", "Eviction"), plural="pods", verbs=["post"], parent=_POD, action="eviction"
    )


class BookResource(NamespacedResource, BookObject):
    _api_info = ApiInfo(ResourceDef("", "v1", "ConfigMap"), plural="configmaps", verbs=["get", "list", "patch"])
