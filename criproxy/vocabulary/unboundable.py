"""What an offline pod may not ask for, as by that it could leave every bound: the webhook says so first, the node last.

Pure.
"""

import posixpath
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

SHOWN: Final = 320
"""Characters of a path that an answer repeats."""

ESCAPE: Final = "by that it could leave every bound of the box"
TAKES: Final = "by that it takes what is sent to the node, kubelet's and online pods' ports too"
OUTSIDE: Final = "what it does there, no limit of the box holds"


def privileged(by: str) -> str:
    """Why such a pod is refused, and what to do; `by` is where an administrator may allow it."""
    return _refused("privileged", ESCAPE, by)


def host_namespace(name: str, by: str) -> str:
    """The same of a pod in one of `HOST_NAMESPACES`."""
    return _refused(HOST_NAMESPACES[name], OUTSIDE, by)


def host_port(port: int, by: str) -> str:
    """The same of a pod that a port of the node leads to."""
    return _refused(f"hostPort {port}", TAKES, by)


def host_path(path: str, found: str, by: str) -> str:
    """The same of a hostPath volume that leads to `found`."""
    leads = "" if path == found else f", which leads to {found}"
    shown = path if len(path) <= SHOWN else f"{path[:SHOWN]}..."
    return _refused(f"a hostPath volume of {shown}{leads}", ESCAPE, by)


def related(path: str, other: str) -> bool:
    """Whether one of two absolute paths is the other, or lies in it, as they are written."""
    one, two = (f"{posixpath.normpath('/' + each.lstrip('/')).rstrip('/')}/" for each in (path, other))
    return one.startswith(two) or two.startswith(one)


def _refused(what: str, why: str, by: str) -> str:
    return f"an offline pod may not have {what}, as {why}: take it away, or have an administrator allow the pod ({by})"
