"""The kinds that the client asks for, decoded to what `objects` needs of them."""

from lightkube.core.resource import ApiInfo, GlobalResource, GlobalSubResource, ResourceDef

from criproxy_cluster.objects import NodeObject, PolicyObject
from criproxy_cluster.vocabulary.policy import GROUP, KIND, PLURAL, VERSION

_NODE = ResourceDef("", "v1", "Node")
_POLICY = ResourceDef(GROUP, VERSION, KIND)
_VERBS = ["get", "list", "watch", "patch", "global_list", "global_watch"]


class NodeStatusResource(GlobalSubResource, NodeObject):
    _api_info = ApiInfo(_NODE, plural="nodes", verbs=["patch"], parent=_NODE, action="status")


class NodeResource(GlobalResource, NodeObject):
    _api_info = ApiInfo(_NODE, plural="nodes", verbs=_VERBS)


class PolicyResource(GlobalResource, PolicyObject):
    _api_info = ApiInfo(_POLICY, plural=PLURAL, verbs=_VERBS)


class PolicyStatusResource(GlobalSubResource, PolicyObject):
    _api_info = ApiInfo(_POLICY, plural=PLURAL, verbs=["patch"], parent=_POLICY, action="status")
