"""The kinds that the client asks for, decoded to what `objects` needs of them."""

from lightkube.core.resource import ApiInfo, GlobalResource, GlobalSubResource, ResourceDef

from criproxy_cluster.objects import NodeObject, PolicyObject

GROUP = "colocation.criproxy.io"

_NODE = ResourceDef("", "v1", "Node")
_POLICY = ResourceDef(GROUP, "v1alpha1", "ColocationPolicy")
_VERBS = ["get", "list", "watch", "patch", "global_list", "global_watch"]


class NodeStatusResource(GlobalSubResource, NodeObject):
    _api_info = ApiInfo(_NODE, plural="nodes", verbs=["patch"], parent=_NODE, action="status")


class NodeResource(GlobalResource, NodeObject):
    _api_info = ApiInfo(_NODE, plural="nodes", verbs=_VERBS)


class PolicyResource(GlobalResource, PolicyObject):
    _api_info = ApiInfo(_POLICY, plural="colocationpolicies", verbs=_VERBS)


class PolicyStatusResource(GlobalSubResource, PolicyObject):
    _api_info = ApiInfo(_POLICY, plural="colocationpolicies", verbs=["patch"], parent=_POLICY, action="status")
