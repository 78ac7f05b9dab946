"""Watches the kernel's tables that no cgroup bounds, as only a user namespace would, and names who may fill them.

Each minute. That costs a dozen small files, unless a table is nearly full: then the pods' processes are looked at, too.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from criproxy.cgroup.kernel_tables import Holding, KernelTables, Use
from criproxy.cgroup.tree import Tree
from criproxy.concurrency.worker import Worker
from criproxy.model import PodRef
from criproxy.model.shown import Counter, Gauge
from criproxy.pods.part import Part, Ports
from criproxy.pods.shared import PodsShared

FULL_RATIO: Final = 0.8
"""From here on it is a problem."""


class _TableWords(Struct, frozen=True):
    """What a table is called, what becomes of it, what tells who fills it, and the remedy."""

    what: str
    then: str
    remedy: str
    of: Callable[[Holding], int] | None = None
    sign: str = ""


ROWS: Final[Mapping[str, _TableWords]] = {
    "keys": _TableWords(
        "the quota of root's keys",
        "when it is used up, no container starts on this node",
        "give its containers a seccomp profile, or raise kernel.keys.root_maxkeys and root_maxbytes",
        lambda holding: int(holding.keys),
        "runs as root without a seccomp profile",
    ),
    "files": _TableWords(
        "the node's open files",
        "when they are used up, nobody but root opens a file",
        "stop it, or raise fs.file-max",
        lambda holding: holding.files,
        "has most of them, as far as its processes' tables of files say",
    ),
    "aio": _TableWords(
        "the node's requests of asynchronous I/O",
        "when they are used up, no database starts that needs some",
        "raise fs.aio-max-nr",
    ),
    "inotify": _TableWords(
        "root's inotify instances or watches",
        "kubelet and others can't watch files any more",
        "stop it, or raise fs.inotify.max_user_instances and max_user_watches",
        lambda holding: holding.files,
        "has most files open, of which they may be some",
    ),
    "epoll": _TableWords(
        "the files that root's processes may have watched by epoll",
        "servers that run as root take no connection any more",
        "stop it, or raise fs.epoll.max_user_watches",
        lambda holding: holding.files,
        "has most files open, of which they may be some",
    ),
    "signals": _TableWords(
        "the queue of root's signals and timers",
        "when it is full, timers and queued signals of root's processes fail",
        "raise what processes may queue (ulimit -i)",
    ),
    "tcp": _TableWords(
        "the node's memory for TCP, or of its connections that no process has",
        "when it is used up, connections of all pods are slowed and broken",
        "stop it, or raise net.ipv4.tcp_mem and tcp_max_orphans",
        lambda holding: holding.sockets,
        "has most connections",
    ),
    "udp": _TableWords(
        "the node's memory for UDP",
        "when it is used up, packets of all pods are dropped",
        "stop it, or raise net.ipv4.udp_mem",
        lambda holding: holding.sockets,
        "has most connections",
    ),
    "neighbours": _TableWords(
        "the node's table of neighbours in its networks",
        "when it is full, nobody reaches a new address there",
        "raise net.ipv4.neigh.default.gc_thresh3 and net.ipv6.neigh.default.gc_thresh3",
    ),
    "ptys": _TableWords(
        "the pseudo-terminals that pods can have",
        "when they are used up, `kubectl exec -it` works in no pod",
        "stop it, or raise kernel.pty.max",
        lambda holding: holding.files,
        "has most files open, of which they may be some",
    ),
    "conntrack": _TableWords(
        "the node's table of connections",
        "when it is full, new connections are dropped",
        "stop it, or raise net.netfilter.nf_conntrack_max",
        lambda holding: holding.sockets,
        "has most connections",
    ),
}
"""By the names of `cgroup.kernel_tables`."""


class FullTable(Struct, frozen=True):
    """A table that is nearly full. `pod`: who may be the cause; None: no offline pod, or the kernel does not tell."""

    used: int
    most: int
    pod: PodRef | None

    def in_words(self, name: str) -> str:
        row = ROWS[name]
        some = f"{100 * self.used // self.most} % are used" if self.most > 1 else "all are used"
        if self.pod is not None:
            answer = f"offline pod {self.pod} {row.sign}: {row.remedy}"
        elif row.of is None:
            answer = f"the kernel does not tell whose they are: {row.remedy}"
        else:
            answer = f"no offline pod seems to be the cause: {row.remedy}"
        return f"of {row.what} {some}; {row.then}; {answer}"


class KernelTablesWatch(Part, Struct):
    """See the module."""

    NAME = "reading how full the kernel's tables are"
    EVERY_S = FIRST_S = 60.0
    GAUGES = (
        Gauge(
            "kernel_table_used_ratio",
            "How full a table of the kernel's is that no cgroup bounds (of inotify: 1, root can have no more)",
            lambda part: {name: use.ratio for name, use in part.uses.items()},
            "table",
        ),
    )
    COUNTERS = (
        Counter(
            "kernel_tables_full", "How often a table of the kernel's was found to be nearly full", {"table": (*ROWS,)}
        ),
    )

    shared: PodsShared
    tables: KernelTables
    worker: Worker
    uses: Mapping[str, Use] = {}
    full: Mapping[str, FullTable] = {}

    @classmethod
    def made(cls, ports: Ports) -> "KernelTablesWatch":
        return cls(ports.shared, KernelTables(Tree()), ports.workers["node-looks"])

    async def look(self) -> None:
        self.uses = await self.worker.run("read the kernel's tables", self.tables.read)
        full = {name: use for name, use in self.uses.items() if use.ratio >= FULL_RATIO}
        pods = {one.id: one for one in self.shared.inventory.running_pods if one.placement is not None} if full else {}
        held: dict[str, Holding] = {}
        if pods:
            placements = {id: str(one.placement) for id, one in pods.items()}
            held = await self.worker.run("see who fills a table", lambda: self.tables.holdings(placements))
        before, self.full = (
            self.full,
            {
                name: FullTable(use.used, use.most, _cause(name, {pods[id].pod: one for id, one in held.items()}))
                for name, use in full.items()
            },
        )
        for name in self.full.keys() - before.keys():
            self._found(name, self.full[name])

    def _found(self, name: str, table: FullTable) -> None:
        self.shared.counters.count("kernel_tables_full", name)
        pod, uid = (str(table.pod), table.pod.uid) if table.pod is not None else ("", "")
        self.shared.log.warning("kernel_table_full", table=name, reason=table.in_words(name), pod=pod, pod_uid=uid)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for name, table in self.full.items():
            yield table.in_words(name)

    def section(self) -> Mapping[str, Any]:
        return {"kernel_tables": {name: {"used": use.used, "most": use.most} for name, use in self.uses.items()}}


def _cause(name: str, held: Mapping[PodRef, Holding]) -> PodRef | None:
    """The pod that has most; None: none has any, or nothing tells it."""
    of = ROWS[name].of
    if of is None or not held:
        return None
    pod, most = max(((pod, of(holding)) for pod, holding in held.items()), key=lambda one: one[1])
    return pod if most else None
