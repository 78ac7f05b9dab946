"""The kinds that the ledger asks for."""

from lightkube.core.resource import ApiInfo, GlobalResource, NamespacedResource, ResourceDef

from criproxy_cluster.ledger.pods import PodObject, UnplacedObject

_POD = ResourceDef("", "v1", "Pod")


class PodResource(GlobalResource, PodObject):
    """Of all namespaces."""

    _api_info = ApiInfo(_POD, plural="pods", verbs=["list", "watch", "global_list", "global_watch"])


class UnplacedResource(GlobalResource, UnplacedObject):
    _api_info = ApiInfo(_POD, plural="pods", verbs=["list", "watch", "global_list", "global_watch"])


class OnePodResource(NamespacedResource, PodObject):
    _api_info = ApiInfo(_POD, plural="pods", verbs=["get"])
