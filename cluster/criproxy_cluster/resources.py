"""The kinds that the client asks for, decoded to what `objects` needs of them."""

from typing import Final

from lightkube.core.resource import ApiInfo, GlobalResource, GlobalSubResource, NamespacedResource, ResourceDef

from criproxy_cluster.objects import CohortObject, FlavorObject, NodeObject, PolicyObject, WorkloadObject
from criproxy_cluster.vocabulary.policy import GROUP, KIND, PLURAL, VERSION

_NODE = ResourceDef("", "v1", "Node")
_POLICY = ResourceDef(GROUP, VERSION, KIND)
KUEUE: Final = ("kueue.x-k8s.io", "v1beta2")
_WORKLOAD = ResourceDef(*KUEUE, "Workload")
_VERBS = ["get", "list", "watch", "patch", "global_list", "global_watch"]


class NodeStatusResource(GlobalSubResource, NodeObject):
    _api_info = ApiInfo(_NODE, plural="nodes", verbs=["patch"], parent=_NODE, action="status")


class NodeResource(GlobalResource, NodeObject):
    _api_info = ApiInfo(_NODE, plural="nodes", verbs=_VERBS)


class PolicyResource(GlobalResource, PolicyObject):
    _api_info = ApiInfo(_POLICY, plural=PLURAL, verbs=_VERBS)


class PolicyStatusResource(GlobalSubResource, PolicyObject):
    _api_info = ApiInfo(_POLICY, plural=PLURAL, verbs=["patch"], parent=_POLICY, action="status")


class CohortResource(GlobalResource, CohortObject):
    _api_info = ApiInfo(ResourceDef(*KUEUE, "Cohort"), plural="cohorts", verbs=["get", "patch"])


class FlavorResource(GlobalResource, FlavorObject):
    _api_info = ApiInfo(ResourceDef(*KUEUE, "ResourceFlavor"), plural="resourceflavors", verbs=_VERBS)


class WorkloadsResource(GlobalResource, WorkloadObject):
    """Those of all namespaces."""

    _api_info = ApiInfo(_WORKLOAD, plural="workloads", verbs=_VERBS)


class WorkloadResource(NamespacedResource, WorkloadObject):
    _api_info = ApiInfo(_WORKLOAD, plural="workloads", verbs=["patch"])
