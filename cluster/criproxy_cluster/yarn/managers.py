"""The NodeManagers, by their pods. Pure.

The label and the annotations are those of Koordinator's yarn-copilot, so that a NodeManager that was made for it is
found as it is.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from criproxy_cluster.vocabulary.names import CLASS, OFFLINE

SELECTOR: Final = f"app.kubernetes.io/component=node-manager,{CLASS}={OFFLINE}"
NODE_ID: Final = "yarn.hadoop.apache.org/node-id"
"""HOST:PORT, as the ResourceManager calls the NodeManager."""

CLUSTER_ID: Final = "yarn.hadoop.apache.org/cluster-id"
_ENDED: Final = ("Succeeded", "Failed")


class ManagerMeta(Struct, frozen=True):
    """As in the ledger, a pod goes by its uid."""

    name: str = msgspec.field(name="uid", default="")
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    pod_name: str = msgspec.field(name="name", default="")
    namespace: str = ""
    annotations: dict[str, str] | None = None
    created: str = msgspec.field(name="creationTimestamp", default="")
    deleted: str | None = msgspec.field(name="deletionTimestamp", default=None)


class ManagerSpec(Struct, frozen=True, rename="camel"):
    node_name: str = ""
    hostname: str = ""


class ManagerStatus(Struct, frozen=True):
    phase: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")


class ManagerObject(Struct):
    """Source: core/v1 Pod."""

    metadata: ManagerMeta = ManagerMeta()
    spec: ManagerSpec = ManagerSpec()
    status: ManagerStatus = ManagerStatus()


class Manager(Struct, frozen=True):
    """`node_id` "": its annotation does not say, and it is one of `hosts`. `ends`: its pod is being deleted."""

    uid: str
    node: str
    node_id: str
    hosts: frozenset[str]
    created: str = ""
    ends: bool = False

    def find(self, known: Iterable[str]) -> str:
        """Its id among those that the ResourceManager knows; "": none, or more than one."""
        if self.node_id:
            return self.node_id
        found = [one for one in known if self._is(one.rpartition(":")[0])]
        return found[0] if len(found) == 1 else ""

    def _is(self, host: str) -> bool:
        return host in self.hosts or host.partition(".")[0] in self.hosts


class Managers:
    """Those of one YARN. `cluster_id` "": whichever it is that they name. `namespaces` (): in all."""

    def __init__(self, cluster_id: str, namespaces: Collection[str]) -> None:
        self._cluster_id = cluster_id
        self._namespaces = namespaces
        self._by_uid: dict[str, Manager] = {}

    def see(self, found: ManagerObject) -> None:
        self.forget(found.metadata.name)
        if self._namespaces and found.metadata.namespace not in self._namespaces:
            return
        annotations: Mapping[str, str] = found.metadata.annotations or {}
        ours = not self._cluster_id or annotations.get(CLUSTER_ID, self._cluster_id) == self._cluster_id
        if found.spec.node_name and found.status.phase not in _ENDED and ours:
            hosts = {found.status.pod_ip, found.spec.hostname, found.metadata.pod_name, found.spec.node_name} - {""}
            uid, node = found.metadata.name, found.spec.node_name
            created, ends = found.metadata.created, found.metadata.deleted is not None
            self._by_uid[uid] = Manager(uid, node, annotations.get(NODE_ID, ""), frozenset(hosts), created, ends)

    def forget(self, uid: str) -> None:
        self._by_uid.pop(uid, None)

    def keep(self, uids: set[str]) -> None:
        """A list has these alone."""
        for uid in self._by_uid.keys() - uids:
            self.forget(uid)

    def by_node(self) -> dict[str, Manager]:
        """One for each node, and for each id. Of several, who does not end goes before who does, then the oldest.

        Anybody may make a pod with these labels: what comes later takes nothing from one that is there.
        """
        found: dict[str, Manager] = {}
        ids: set[str] = set()
        for one in sorted(self._by_uid.values(), key=lambda one: (one.ends, one.created, one.uid)):
            if one.node not in found and one.node_id not in ids:
                found[one.node] = one
                ids |= {one.node_id} - {""}
        return found
