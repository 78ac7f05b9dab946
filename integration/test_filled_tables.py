"""Offline pods that fill what all pods of a node share: what of it hardening keeps from them, and who is named.

A setting of the kernel's is lowered for some seconds, to what the machine uses and a little more. Containers of other
programs could fail meanwhile, so this runs by command alone.
"""

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from criproxy.cgroup.kernel_tables import KernelTables
from criproxy.cgroup.tree import Tree
from criproxy.pods.kernel_tables import ROWS
from integration.lab.client import Container
from integration.lab.containerd import Containerd
from integration.lab.criproxy import LETS_THE_LAB, static
from integration.lab.node import Node
from integration.lab.process import wait_until

pytestmark = pytest.mark.by_command

WAIT_S = 60
WATCH_S = 150
PROC = Path("/proc")
FILL = Path("/fill")
ROOM = 1_000_000
"""Bytes of keys beyond those that the machine has; 50,000 stay free, so that others' containers start."""


class FillNode(Node):
    @property
    def folder(self) -> Path:
        """Where the program that fills is, and the pods' logs."""
        return self.mounts[FILL]

    def fill(self, *words: str) -> Container:
        pod = self.run_pod("offline", log_directory=str(self.folder))
        command = [str(FILL / "fill"), *words]
        return self.client.run_container(pod, "main", command, mounts=self.mounts, log_path=f"{pod.id}.log")

    def said(self, container: Container, word: str) -> int:
        """With which errno it stopped to fill."""
        log = self.folder / f"{container.pod.id}.log"

        def found() -> list[list[str]]:
            return [line.split() for line in log.read_text().splitlines() if f" {word} " in line]

        wait_until(lambda: log.exists() and bool(found()), WAIT_S, f"the pod to say {word}", self.proxy.log)
        return int(found()[0][-1])

    def remove(self, container: Container) -> None:
        self.direct.stop_and_remove(container.pod)

    def start_fails(self) -> str:
        """Why an online pod's container does not start; "": it does."""
        try:
            container = self.run("online")
        except grpc.RpcError as error:
            return str(error.details())
        self.remove(container)
        return ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fill")
    source = Path(__file__).parent / "lab" / "fill.c"
    subprocess.run(["cc", "-static", "-o", made / "fill", source], check=True)
    return made


@contextlib.contextmanager
def node_with(containerd: Containerd, folder: Path, *, seccomp: bool) -> Iterator[FillNode]:
    lets = {"refuse_host_namespaces": LETS_THE_LAB["refuse_host_namespaces"]}
    config = static(0.5, hardening={**lets, "seccomp": seccomp})
    with FillNode.before(containerd, config, mounts={FILL: folder}) as node:
        yield node


@contextlib.contextmanager
def setting(name: str, value: int) -> Iterator[None]:
    file = PROC / "sys" / name
    before = file.read_text()
    file.write_text(str(value))
    try:
        yield
    finally:
        file.write_text(before)


def keys_in_bytes() -> int:
    line = next(line for line in (PROC / "key-users").read_text().splitlines() if line.split()[0] == "0:")
    return int(line.split()[-1].partition("/")[0])


def test_pod_without_a_profile_fills_root_s_keys_and_is_named(containerd: Containerd, folder: Path) -> None:
    with setting("kernel/keys/root_maxbytes", keys_in_bytes() + ROOM):
        with node_with(containerd, folder, seccomp=True) as node:
            assert node.said(node.fill("keys", str(ROOM), "/fill/go"), "full") == errno.EPERM
            assert node.start_fails() == ""
        with node_with(containerd, folder, seccomp=False) as node:
            filler = node.fill("keys", str(ROOM - 50_000), "/fill/go")
            assert node.said(filler, "some") == 0

            def told() -> list[dict[str, Any]]:
                return [one for one in node.proxy.events("kernel_table_full") if one["table"] == "keys"]

            wait_until(lambda: bool(told()), WATCH_S, "the watch to tell", node.proxy.log)
            assert filler.pod.config.metadata.uid in told()[0]["pod"]
            assert "no container starts on this node" in told()[0]["reason"]
            node.remove(filler)
            assert node.start_fails() == ""


@pytest.mark.parametrize(
    ("table", "lowered", "count"),
    [
        pytest.param("inotify", None, 0, id="inotify"),
        pytest.param("aio", ("fs/aio-max-nr", 4096), 0, id="aio"),
        pytest.param("ptys", ("kernel/pty/max", 1024 + 200), 0, id="ptys"),
        pytest.param("files", ("fs/file-max", 10_000), 50_000, id="files"),
    ],
)
def test_table_that_a_pod_fills_is_seen_and_the_pod_is_named(
    containerd: Containerd, folder: Path, *, table: str, lowered: tuple[str, int] | None, count: int
) -> None:
    """A profile does not keep a pod from these. `lowered`: a setting, and how far beyond the machine's own use."""
    tables = KernelTables(Tree())
    with node_with(containerd, folder, seccomp=True) as node, contextlib.ExitStack() as settings:
        bystander = node.run("offline")
        filler = None
        if lowered is not None:
            name, more = lowered
            settings.enter_context(setting(name, tables.read()[table].used + more))
        try:
            filler = node.fill(table, *([str(count)] if count else []))
            node.said(filler, "full")
            use = tables.read()[table]
            uids = (filler.pod.config.metadata.uid, bystander.pod.config.metadata.uid)
            placements = {uid: f"{node.box.path}/pod{uid}" for uid in uids}
            held = tables.holdings(placements)
        finally:
            if filler is not None:
                node.remove(filler)
        assert use.ratio >= 0.8
        of = ROWS[table].of
        if of is not None:
            assert of(held[uids[0]]) > of(held[uids[1]])
