"""What an offline pod may not ask for, as by that it could leave every bound: the webhook says so first, the node last.

Pure.
"""

import posixpath
from collections.abc import Collection, Iterable
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
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/var/lib/containers",
)
"""Folders of the kernel's, kubelet's and runtimes', which an offline pod may not even read."""

WRITABLE_HOST_PATHS: Final = (
    "/etc",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/boot",
    "/root",
    "/home/*/.*",
    "/home/kubernetes",
    "/opt/bin",
    "/opt/cni",
    "/opt/containerd",
    "/opt/criproxy",
    "/opt/nri",
    "/var/lib/cloud",
    "/var/lib/criproxy",
    "/var/lib/dkms",
    "/var/lib/dpkg",
    "/var/lib/k0s",
    "/var/lib/rancher/*/agent",
    "/var/lib/rancher/*/data",
    "/var/lib/rancher/*/server",
    "/var/lib/rpm",
    "/var/lib/snapd",
    "/var/lib/systemd",
    "/var/snap",
    "/var/spool/at",
    "/var/spool/cron",
)
"""Folders of which the node runs what is there with root's rights, or that say what it runs and who may log in.

Folders of jobs' data are none: of /opt and /var/lib, these are what packages, the runtime, k3s and k0s keep there, and
of a home, what sshd and shells read; but /home/kubernetes has kubelet on GKE, and /var/snap MicroK8s. Source:
Filesystem Hierarchy Standard 3.0; k3s and k0s, --data-dir.
"""

JOBS_FOLDERS: Final = ("/usr/local/vgpu/containers", "/var/snap/microk8s/common/default-storage")
"""Folders in `WRITABLE_HOST_PATHS` that have one for each container or volume, of which the node runs nothing.

Source: HAMi and Volcano, vGPU device plugin, Allocate: it mounts one into each container that asks for a vGPU;
MicroK8s, hostpath-storage.
"""

EVERY: Final = "*"
"""At the end of a name of a listed folder: it stands for all names that begin so."""

MOST_CAPABILITIES: Final = 256
"""Names that a container adds. Linux has some forty capabilities, each with two spellings that people use."""
MOST_CAPABILITY_BYTES: Final = 64
"""No capability's name is so long: of a longer text, so much is read, which is none either."""

SYS_NICE: Final = "SYS_NICE"
"""The capability to run in real time: neither cpu.idle nor a weight nor a quota holds such a thread."""
_GIVING: Final = frozenset({SYS_NICE, "ALL"})

SHOWN: Final = 320
"""Characters of a path that an answer repeats."""

ESCAPE: Final = "by that it could leave every bound of the box"
RUNS: Final = "the node runs what is there, or goes by it, outside the box"
TAKES: Final = "by that it takes what is sent to the node, kubelet's and online pods' ports too"
COSTS: Final = "Linux has some forty, and the node would spend its time on the others"
RESTORES: Final = "its processes come back with whatever rights, seccomp and scheduling policy the checkpoint says"
OUTSIDE: Final = "what it does there, no limit of the box holds"


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
    """The same of one that leads to `found`, of `WRITABLE_HOST_PATHS`, and is not read-only."""
    remedy = "mount it read-only (readOnly: true)"
    return _refused(f"a writable hostPath volume of {_leading(path, found)}", RUNS, by, remedy)


def writable_below(path: str, point: str, by: str) -> str:
    """The same of one that is read-only, while what is mounted at `point` in it is not."""
    remedy = "mount it with recursiveReadOnly: Enabled"
    return _refused(f"a hostPath volume of {_shown(path)}, in which {_shown(point)} stays writable", RUNS, by, remedy)


def related(path: str, folder: str) -> bool:
    """Whether one of two absolute paths is the other, or lies in it, as they are written; see `first_related`."""
    return first_related(path, (folder,)) is not None


def first_related(path: str, folders: Iterable[str]) -> str | None:
    """The first of the folders that is the path, lies in it or has it in it, as they are written; None: there is none.

    A name of a folder that ends with `*` stands for all names that begin so. A pod may have thousands of paths, and the
    folders are always the same.
    """
    names = _names(path)
    for folder in folders:
        for name, listed in zip(names, _known_names(folder), strict=False):  # one of them may have the other in it
            if name != listed and not (listed[-1] == EVERY and name.startswith(listed[:-1])):
                break
        else:
            return folder
    return None


def first_run(path: str, folders: Iterable[str]) -> str | None:
    """The same of a path that is mounted writable; None also for what lies in one of `JOBS_FOLDERS`."""
    names = _names(path)
    of_jobs = any(len(names) > len(one) and names[: len(one)] == one for one in map(_known_names, JOBS_FOLDERS))
    return None if of_jobs else first_related(path, folders)


def _names(path: str) -> tuple[str, ...]:
    return tuple(filter(None, posixpath.normpath(f"/{path}").split("/")))


_known_names = lru_cache(128)(_names)


def _leading(path: str, found: str) -> str:
    return _shown(path) if path == found else f"{_shown(path)}, which leads to {found}"


def _shown(path: str) -> str:
    return path if len(path) <= SHOWN else f"{path[:SHOWN]}..."


def _refused(what: str, why: str, by: str, remedy: str = "take it away") -> str:
    return f"an offline pod may not have {what}, as {why}: {remedy}, or have an administrator allow the pod ({by})"
