"""The kinds that YARN's operator asks for."""

from lightkube.core.resource import ApiInfo, GlobalResource, ResourceDef
from msgspec import Struct

from criproxy_cluster.yarn.managers import ManagerObject

_VERBS = ["list", "watch", "global_list", "global_watch"]


class ManagerResource(GlobalResource, ManagerObject):
    """Of all namespaces."""

    _api_info = ApiInfo(ResourceDef("", "v1", "Pod"), plural="pods", verbs=_VERBS)


class SwitchedMeta(Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None


class SwitchedObject(Struct):
    """A Node, of which its switch is enough."""

    metadata: SwitchedMeta = SwitchedMeta()


class SwitchedResource(GlobalResource, SwitchedObject):
    _api_info = ApiInfo(ResourceDef("", "v1", "Node"), plural="nodes", verbs=[*_VERBS, "patch"])
