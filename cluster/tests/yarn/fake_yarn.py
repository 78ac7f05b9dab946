"""A ResourceManager in memory, with the traits that were found of Hadoop 3.4 (see docs/yarn.md)."""

import json

import httpx2


class FakeYarn:
    """`sizes`, `used`: by a node's id, [MiB, virtual cores]. `sent`: all that was posted. `fails`: it does not
    answer, or with this status.

    `unlisted`: it fails where it is to list its nodes.
    `standby`: the host that only redirects. `broken`: the id of a node for which it fails.
    """

    def __init__(self):
        self.sizes, self.used, self.sent = {}, {}, []
        self.states = {}
        self.fails = self.deaf = self.unlisted = False
        self.standby = self.broken = ""
        self.asked = []

    def node(self, node_id, mib, vcores):
        self.sizes[node_id], self.used[node_id] = [mib, vcores], [0, 0]

    def client(self):
        return httpx2.AsyncClient(transport=httpx2.MockTransport(self.answer), verify=False)

    def answer(self, request):
        if self.fails is True:
            raise httpx2.ConnectError("refused")
        return httpx2.Response(self.fails, text="not now") if self.fails else self._answer(request)

    def _answer(self, request):
        if request.url.host == self.standby:
            return httpx2.Response(307, headers={"Location": "http://other"})
        path = request.url.path.removeprefix("/ws/v1/cluster/")
        self.asked.append(path)
        if path == "nodes":
            all_nodes = {"nodes": {"node": [self._shown(one) for one in self.sizes]}}
            return httpx2.Response(500 if self.unlisted else 200, json=all_nodes)
        node_id = path.removeprefix("nodes/").removesuffix("/resource")
        if node_id not in self.sizes:
            return httpx2.Response(404, json={"RemoteException": {"message": "unknown"}})
        if node_id == self.broken:
            return httpx2.Response(500, text="NullPointerException")
        if request.method == "GET":
            return httpx2.Response(200, json={"node": self._shown(node_id)})
        body = json.loads(request.content)
        self.sent.append((node_id, body))
        assert body.keys() == {"resource", "overCommitTimeout"} and body["resource"].keys() == {"memory", "vCores"}
        if not self.deaf:
            self.sizes[node_id] = [body["resource"]["memory"], body["resource"]["vCores"]]
        return httpx2.Response(200, json=body["resource"])

    def _shown(self, node_id):
        (mib, vcores), (used_mib, used_vcores) = self.sizes[node_id], self.used[node_id]
        return {
            "id": node_id, "state": self.states.get(node_id, "RUNNING"), "usedMemoryMB": used_mib,
            "availMemoryMB": mib - used_mib, "usedVirtualCores": used_vcores,
            "availableVirtualCores": vcores - used_vcores,
        }  # fmt: skip
