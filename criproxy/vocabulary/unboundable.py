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
"""Folders of the kernel's, kubelet's and runtimes'."""

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
    leads = "" if path == found else f", which leads to {found}"
    shown = path if len(path) <= SHOWN else f"{path[:SHOWN]}..."
    return _refused(f"a hostPath volume of {shown}{leads}", ESCAPE, by)


def related(path: str, other: str) -> bool:
    """Whether one of two absolute paths is the other, or lies in it, as they are written."""
    return first_related(path, (other,)) is not None


def first_related(path: str, folders: Iterable[str]) -> str | None:
    """The first of the folders that is the path, lies in it or has it in it, as they are written; None: there is none.

    A pod may have thousands of paths, and the folders are always the same.
    """
    one = _as_folder(path)
    return next((each for each in folders if one.startswith(two := _known_folder(each)) or two.startswith(one)), None)


def _as_folder(path: str) -> str:
    return f"{posixpath.normpath('/' + path.lstrip('/')).rstrip('/')}/"


_known_folder = lru_cache(128)(_as_folder)


def _refused(what: str, why: str, by: str) -> str:
    return f"an offline pod may not have {what}, as {why}: take it away, or have an administrator allow the pod ({by})"
