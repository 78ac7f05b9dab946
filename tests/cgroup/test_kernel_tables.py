"""How full the kernel's tables are, and what pods may have of them, in a /proc that is a folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from criproxy.cgroup.kernel_tables import TABLES, Holding, KernelTables, Use, epoll, inotify
from criproxy.cgroup.tree import Tree

PROC = {
    "key-users": "    0:    15 14/14 9/1000000 460/25000000\n 1000:     1 1/1 200/200 20000/20000\n",
    "sys/fs/file-nr": "1775\t0\t2466177\n",
    "sys/fs/aio-nr": "60000\n",
    "sys/fs/aio-max-nr": "65536\n",
    "sys/kernel/pty/nr": "3\n",
    "sys/kernel/pty/max": "4096\n",
    "sys/kernel/pty/reserve": "1024\n",
    "self/status": "Name:\tx\nSigQ:\t90/100\n",
    "net/sockstat": "sockets: used 9\nTCP: inuse 4 orphan 1 tw 2 alloc 5 mem 70\nUDP: inuse 3 mem 8\nFRAG: inuse 0\n",
    "sys/net/ipv4/tcp_mem": "50\t100\t150\n",
    "sys/net/ipv4/tcp_max_orphans": "4096\n",
    "sys/net/ipv4/udp_mem": "50\t100\t160\n",
    "net/stat/arp_cache": "entries  allocs\n0000000a  00000100\n0000000a  00000001\n",
    "sys/net/ipv4/neigh/default/gc_thresh3": "1024\n",
    "self/mountinfo": "1 1 0:1 / {root}/cgroup rw - cgroup2 cgroup2 rw\n",
}
STATUS = "Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nFDSize:\t{files}\nSeccomp:\t{seccomp}\n"


class Node:
    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in PROC.items():
            self.write(f"proc/{name}", text.format(root=root) if "{root}" in text else text)

    def write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def process(self, pid: int, uid: int = 0, files: int = 64, seccomp: int = 2, sockets: int = 0) -> None:
        self.write(f"proc/{pid}/status", STATUS.format(uid=uid, files=files, seccomp=seccomp))
        stat = f"sockets: used 99\nTCP: inuse {sockets} orphan 0 tw 1 alloc 9 mem 1\nUDP: inuse 2 mem 1\nRAW: inuse 7\n"
        self.write(f"proc/{pid}/net/sockstat", stat)

    @property
    def tables(self) -> KernelTables:
        counted = {name: read for name, read in TABLES.items() if name not in ("inotify", "epoll")}
        return KernelTables(Tree(), self.root / "proc", counted)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_tables_are_read_and_what_this_kernel_has_not_is_left_out(node: Node) -> None:
    assert node.tables.read() == {
        "keys": Use(460, 25_000_000),
        "files": Use(1775, 2_466_177),
        "aio": Use(60_000, 65_536),
        "signals": Use(90, 100),
        "tcp": Use(70, 100),
        "udp": Use(8, 160),
        "neighbours": Use(10, 1024),
        "ptys": Use(3, 3072),
    }


def test_of_two_kinds_of_a_table_the_fuller_one_counts(node: Node) -> None:
    node.write("proc/net/sockstat", "TCP: inuse 4 orphan 4000 tw 2 alloc 5 mem 70\nUDP: inuse 3\n")
    node.write("proc/net/stat/ndisc_cache", "entries  allocs\n000003ff  00000100\n")
    node.write("proc/sys/net/ipv6/neigh/default/gc_thresh3", "1024\n")
    found = node.tables.read()
    assert (found["tcp"], found["neighbours"]) == (Use(4000, 4096), Use(1023, 1024))
    assert "udp" not in found


@pytest.mark.parametrize("name", ["self/status", "net/sockstat", "net/stat/arp_cache", "sys/net/ipv4/tcp_mem"])
@pytest.mark.parametrize("text", ["", "\n", "x", "TCP: inuse\n", "TCP: a b\n", "SigQ:\tx\n"])
def test_text_of_another_form_is_no_table_and_hides_none(node: Node, name: str, text: str) -> None:
    node.write(f"proc/{name}", text)
    assert node.tables.read().keys() >= {"keys", "files", "aio", "ptys"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("    0: 15 14/14 950/1000 460/25000000\n", Use(950, 1000), id="their-number"),
        pytest.param("    0: 15 14/14 9/1000000 24000/25000\n", Use(24_000, 25_000), id="their-bytes"),
        pytest.param(" 1000: 1 1/1 200/200 20000/20000\n", None, id="another-user-s"),
        pytest.param("nonsense\n    0: 1\n", None, id="nonsense"),
        pytest.param("    0: 15 14/14 x/y 1/2\n", None, id="no-numbers"),
    ],
)
def test_quota_of_root_s_keys_is_what_is_nearer_to_its_end(node: Node, text: str, expected: Use | None) -> None:
    node.write("proc/key-users", text)
    assert node.tables.read().get("keys") == expected


def test_holdings_are_those_of_all_processes_of_a_pod(node: Node) -> None:
    node.process(10, files=64, sockets=5)
    node.process(11, files=4096, sockets=5)
    node.process(12, uid=0, seccomp=0)
    node.process(13, uid=1000, seccomp=0)
    node.write("cgroup/offline/pod1/c1/cgroup.procs", "10\n11\n")
    node.write("cgroup/offline/pod2/c1/cgroup.procs", "12\n999\n")
    node.write("cgroup/offline/pod3/c1/cgroup.procs", "13\n")
    found = node.tables.holdings({"s1": "/offline/pod1", "s2": "/offline/pod2", "s3": "/offline/pod3"})
    assert found == {
        "s1": Holding(files=4160, sockets=8, keys=False),
        "s2": Holding(files=64, sockets=3, keys=True),
        "s3": Holding(files=64, sockets=3, keys=False),
    }


@pytest.mark.parametrize("probe", [inotify, epoll])
def test_table_of_this_machine_is_not_used_up_and_nothing_stays_open(probe: Callable[[Path], Use | None]) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert probe(Path("/proc")) == Use(0, 1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
