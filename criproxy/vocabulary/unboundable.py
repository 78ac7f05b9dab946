"""What an offline pod may not ask for, as by that it could leave every bound: the webhook says so first, the node last.

Pure.
"""

import posixpath
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Final

HOST_NAMESPACES: Final = {"network": "hostNetwork", "pid": "hostPID", "ipc": "hostIPC"}
"""By CRI's name, what a pod's author writes."""

HOST_PATHS: Final = (
    "/sys",
    "/proc",
    "/dev",
    "/run",
    "/var/run",
    "/etc/kubernetes",
    "/etc/srv/kubernetes",
    "/srv/kubernetes",
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/etcd",
    "/var/lib/k0s",
    "/var/lib/rancher/*/agent",
    "/var/lib/rancher/*/server",
    "/var/snap/microk8s/common/run",
    "/var/snap/microk8s/common/var/lib",
    "/var/snap/microk8s/current",
)
"""Folders of the kernel's, the cluster's, kubelet's and runtimes', which an offline pod may not even read.

kops and GCE have the cluster's keys in srv.
"""

FOLDER: Final = r"^(/[^/*\x00]*\*?)+$"
"""A folder of these lists: an absolute path. A name that ends with `*` stands for all that begin so."""

WRITABLE_HOST_PATHS: Final = (
    "/data*",
    "/disk*",
    "/grid*",
    "/hadoop*",
    "/local-*",
    "/localdisk*",
    "/mnt*",
    "/nvme*",
    "/scratch*",
    "/ssd*",
    "/opt/local-path-provisioner",
    "/var/local-path-provisioner",
    "/var/lib/rancher/*/storage",
    "/var/mnt",
    "/var/openebs/local",
    "/var/snap/microk8s/common/default-storage",
)
"""Folders for jobs' data, and those of provisioners of node-local volumes: of what a node has, an offline pod may write
to these alone.

Not /local, which is all that Bottlerocket may write to, /srv, where kops and Salt have what nodes go by, nor /media,
where overlayroot has the root file system's layers. Source: Filesystem Hierarchy Standard 3.0 (/mnt); the provisioners
of Rancher (k3s and kind have others of it), OpenEBS (Local PV Hostpath) and MicroK8s; /var/mnt: Talos, user volumes.
"""

EVERY: Final = "*"
"""At the end of a name of a listed folder: it stands for all names that begin so."""

CAPABILITIES: Final = (
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
    "SYS_PTRACE",
)
"""Those that runtimes give anyway, and two that stay in the pod: IPC_LOCK (what is locked counts against its memory)
and SYS_PTRACE (it sees its own processes alone). Source: containerd, oci.defaultUnixCaps.
"""

ALL: Final = "ALL"

MOST_CAPABILITIES: Final = 256
"""Names that a container adds. Linux has some forty capabilities, each with two spellings that people use."""
MOST_CAPABILITY_BYTES: Final = 64
"""No capability's name is so long: of a longer text, so much is read, which is none either."""

SYS_NICE: Final = "SYS_NICE"
"""The capability to run in real time: neither cpu.idle nor a weight nor a quota holds such a thread."""
_GIVING: Final = frozenset({SYS_NICE, ALL})

SHOWN: Final = 320
"""Characters of a path that an answer repeats."""

ESCAPE: Final = "by that it could leave every bound of the box"
RUNS: Final = "the node may run what is there, or go by it, outside the box"
TAKES: Final = "by that it takes what is sent to the node, kubelet's and online pods' ports too"
COSTS: Final = "Linux has some forty, and the node would spend its time on the others"
RESTORES: Final = "its processes come back with whatever rights, seccomp and scheduling policy the checkpoint says"
OUTSIDE: Final = "what it does there, no limit of the box holds"

_LEND: Final = (
    "have an administrator lend the folder (hardening.writable_host_paths in the nodes' files, --writable-host-path of "
    "the webhook)"
)


def privileged(by: str) -> str:
    """Why such a pod is refused, and what to do; `by` is where an administrator may allow it."""
    return _refused("privileged", ESCAPE, by)


def restored(by: str) -> str:
    """The same of a pod that is restored from a checkpoint."""
    return _refused("a checkpoint to restore", RESTORES, by)


def host_namespace(name: str, by: str) -> str:
    """The same of a pod in one of `HOST_NAMESPACES`."""
    return _refused(HOST_NAMESPACES[name], OUTSIDE, by)


def host_port(port: int, by: str) -> str:
    """The same of a pod that a port of the node leads to."""
    return _refused(f"hostPort {port}", TAKES, by)


def capabilities(by: str) -> str:
    """The same of a container that adds more than `MOST_CAPABILITIES`."""
    return _refused(f"more than {MOST_CAPABILITIES} added capabilities in a container", COSTS, by)


def may_run_in_real_time(added: Collection[str]) -> bool:
    """Whether a container that adds these capabilities has `SYS_NICE`, by itself or with all others, so that it is to
    be dropped: what is dropped wins over what is added. One with more than are looked through may have it among them.
    Source: containerd, internal/cri/opts, WithCapabilities.
    """
    return len(added) > MOST_CAPABILITIES or any(plain(one) in _GIVING for one in added)


def plain(capability: str) -> str:
    """As CRI names it: `SYS_NICE`."""
    return capability.upper().removeprefix("CAP_")


def host_path(path: str, found: str, by: str) -> str:
    """The same of a hostPath volume that leads to `found`."""
    return _refused(f"a hostPath volume of {_leading(path, found)}", ESCAPE, by)


def writable_host_path(path: str, found: str, by: str) -> str:
    """The same of one that leads to `found`, which is not lent, and is not read-only."""
    remedy = f"mount it read-only (readOnly: true), {_LEND}"
    return _refused(f"a writable hostPath volume of {_leading(path, found)}", RUNS, by, remedy)


def writable_below(path: str, point: str, by: str) -> str:
    """The same of one that is read-only, while what is mounted at `point` in it is not."""
    remedy = f"mount it with recursiveReadOnly: Enabled, {_LEND}"
    return _refused(f"a hostPath volume of {_shown(path)}, in which {_shown(point)} stays writable", RUNS, by, remedy)


def host_path_refusal(path: str, by: str, refused: Iterable[str], lent: Iterable[str], *, readonly: bool) -> str:
    """The same of a hostPath volume by its name alone; "": it is not refused. `refused` are as `HOST_PATHS`, `lent` as
    `WRITABLE_HOST_PATHS`.
    """
    if (found := first_related(path, refused)) is not None:
        return host_path(path, found, by)
    return "" if readonly or first_holding(path, lent) is not None else writable_host_path(path, path, by)


def related(path: str, folder: str) -> bool:
    """Whether one of two absolute paths is the other, or lies in it, as they are written; see `first_related`."""
    return first_related(path, (folder,)) is not None


def first_related(path: str, folders: Iterable[str]) -> str | None:
    """The first of the folders that is the path, lies in it or has it in it, as they are written; None: there is none.

    A name of a folder that ends with `*` stands for all names that begin so. A pod may have thousands of paths, and the
    folders are always the same.
    """
    names = _names(path)
    return next((one for one in folders if _begin_alike(names, _known_names(one))), None)


def first_holding(path: str, folders: Iterable[str]) -> str | None:
    """The first of the folders that is the path, or has it in it; None: there is none."""
    names = _names(path)
    shorter = (one for one in folders if len(_known_names(one)) <= len(names))
    return next((one for one in shorter if _begin_alike(names, _known_names(one))), None)


def _begin_alike(names: Sequence[str], listed: Sequence[str]) -> bool:
    """Whether one of them may have the other in it."""
    return all(
        one == other or (other[-1] == EVERY and one.startswith(other[:-1]))
        for one, other in zip(names, listed, strict=False)
    )


def _names(path: str) -> tuple[str, ...]:
    return tuple(filter(None, posixpath.normpath(f"/{path}").split("/")))


_known_names = lru_cache(1024)(_names)


def _leading(path: str, found: str) -> str:
    return _shown(path) if path == found else f"{_shown(path)}, which leads to {found}"


def _shown(path: str) -> str:
    return path if len(path) <= SHOWN else f"{path[:SHOWN]}..."


def _refused(what: str, why: str, by: str, remedy: str = "take it away") -> str:
    return f"an offline pod may not have {what}, as {why}: {remedy}, or have an administrator allow the pod ({by})"
