"""The lab's nodes: containerd, criproxy before it, and pods that the test starts in kubelet's place, or a kubelet."""

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from integration.lab import kubelet_cgroup
from integration.lab.cgroups import Tree, of_process
from integration.lab.clean import clean, leftovers
from integration.lab.client import Container, CriClient, PatientClient, Pod
from integration.lab.containerd import Containerd
from integration.lab.criproxy import QUICK, Config, Criproxy, merged
from integration.lab.directory import cgroup_root, claimed
from integration.lab.kubelet import Kubelet, PodStatus
from integration.lab.naming import told
from integration.lab.throwaway import is_throwaway
from integration.lab.usage import Cgroup

CLASS = "colocation.criproxy.io/class"
OFFLINE: Mapping[str, str] = {CLASS: "offline"}
FOREVER = ("sleep", "2147483647")
FAVOURED = 262144
"""CPU shares of a node's root: the machine's other work hardly counts beside it."""


@dataclass(frozen=True)
class Node:
    """A criproxy before a runtime; the test plays kubelet, with pods' cgroups below `root`.

    `client` speaks to criproxy, `direct` to the runtime. `mounts`: what of the host every container sees where.
    """

    containerd: Containerd
    proxy: Criproxy
    root: str
    client: CriClient
    direct: CriClient
    mounts: Mapping[Path, Path] = field(default_factory=dict)

    @classmethod
    @contextlib.contextmanager
    def before(
        cls,
        runtime: Containerd | Path,
        config: Config | None = None,
        *,
        directory: Path | None = None,
        socket: Path | None = None,
        root: str = "",
        starts: bool = True,
        mounts: Mapping[Path, Path] | None = None,
        **limits: int,
    ) -> Iterator[Self]:
        """A node before a runtime that runs, or before one of its own in a lab's directory; its pods go at the end.

        criproxy lives in `directory`, the runtime's unless it is given, reaches the runtime at `socket`, and is started
        unless `starts` is False. `root` is by default the lab's cgroup, or one of the node's own in that of a runtime
        that runs; `limits` are the root's: kubelet_cgroup.make.
        """
        if isinstance(runtime, Path):
            containerd = Containerd(runtime)
            containerd.start()
            root = root or cgroup_root(runtime)
        else:
            containerd = runtime
            root = root or f"{cgroup_root(containerd.directory)}/{uuid.uuid4().hex[:8]}"
        kubelet_cgroup.make(root, **limits)
        proxy = Criproxy(directory or containerd.directory, socket or containerd.socket, config)
        proxy.log.unlink(missing_ok=True)
        if starts:
            proxy.start()
        runtimes = PatientClient if is_throwaway() else CriClient  # criproxy has 0.45 s for a call by NRI
        with CriClient(proxy.socket) as client, runtimes(containerd.socket) as direct:
            try:
                yield cls(containerd, proxy, root, client, direct, mounts or {})
            finally:
                if containerd.is_alive():
                    direct.remove_all_pods()
                if proxy.is_alive():
                    proxy.stop()

    @property
    def box(self) -> Cgroup:
        return Cgroup(f"{self.root}/offline")

    @property
    def kubepods(self) -> Cgroup:
        return Cgroup(f"{self.root}/kubepods")

    def run_pod(
        self, kind: str, uid: str = "", *, qos: str = "besteffort", limits: Mapping[str, int] | None = None, **pod: Any
    ) -> Pod:
        """Start a pod of a class (online, offline) as kubelet would: its cgroup with its `limits`, its sandbox.

        The uid is its name, too; a new one unless it is given. `pod`: CriClient.run_pod.
        """
        uid = uid or str(uuid.uuid4())
        parent = kubelet_cgroup.make(f"{self.root}/kubepods/{qos}/pod{uid}", **(limits or {}))
        labels = {CLASS: kind, **pod.pop("labels", {})}
        return self.client.run_pod(uid, uid=uid, labels=labels, cgroup_parent=parent, **pod)

    def run(
        self,
        kind: str,
        uid: str = "",
        command: Sequence[str] = FOREVER,
        *,
        container: Mapping[str, Any] | None = None,
        **pod: Any,
    ) -> Container:
        """`run_pod`, and a container in it. `container`: CriClient.create_container."""
        more = {"mounts": self.mounts, **(container or {})}
        return self.client.run_container(self.run_pod(kind, uid, **pod), "main", command, **more)

    def is_in_box(self, what: Pod | Container) -> bool:
        """In the pod's own place, in the box or where kubelet wants it; anywhere else, or split, is a failure."""
        pod = what.pod if isinstance(what, Container) else what
        where = {os.path.dirname(path) for path in of_process(self.direct.pid(what)).values()}
        boxed = f"{self.box.path}/pod{pod.config.metadata.uid}"
        assert where in ({boxed}, {told(pod.config.linux.cgroup_parent)})
        return where == {boxed}

    def pods_in_box(self) -> set[str]:
        """The names of the pods' directories in the box, in any hierarchy."""
        return {name for name in Tree(self.box.path).children() if name.startswith("pod")}


@dataclass(frozen=True)
class KubeletNode:
    """A kubelet before a runtime, with criproxy between them or not (`criproxy` None). `client` is the runtime's."""

    containerd: Containerd
    criproxy: Criproxy | None
    kubelet: Kubelet
    client: CriClient

    @classmethod
    @contextlib.contextmanager
    def up(
        cls,
        config: Config | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        proxied: bool = True,
        starts: bool = True,
        programs: Path | None = None,
        nri: bool = False,
    ) -> Iterator[Self]:
        """A node in a lab of its own, started unless `starts` is False; nothing of it is left at the end.

        `config` is criproxy's, beside colocation; `settings` kubelet's; `programs` containerd's directory. `nri`:
        criproxy is the runtime's plugin, and kubelet asks the runtime itself.
        """
        with claimed() as lab:
            try:
                containerd = Containerd(lab, programs=programs)
                criproxy, socket = None, containerd.socket
                if proxied:
                    kubelets = {"root_dir": str(Kubelet(lab, socket).root_dir)}
                    own: Config = {"colocation": {"enabled": True}, "control": QUICK, "kubelet": kubelets}
                    if nri:
                        own = merged(own, {"proxy": {"front": "nri", "nri": str(containerd.nri)}})
                    criproxy = Criproxy(lab, socket, {**own, **(config or {})})
                    socket = socket if nri else criproxy.socket
                with CriClient(containerd.socket) as client:
                    node = cls(containerd, criproxy, Kubelet(lab, socket, settings=settings), client)
                    if starts:
                        containerd.start()
                        if proxied:
                            node.proxy.start()
                        node.kubelet.start()
                    yield node
            finally:
                clean(lab)
        assert leftovers(lab) == []

    @property
    def proxy(self) -> Criproxy:
        assert self.criproxy is not None
        return self.criproxy

    @property
    def root(self) -> str:
        return self.kubelet.cgroup_root

    @property
    def box(self) -> str:
        return f"{self.root}/offline"

    def pids_of(self, pod: PodStatus) -> set[int]:
        """The processes of an offline pod, its sandbox's too."""
        return Tree(f"{self.box}/pod{pod.uid}").pids()
