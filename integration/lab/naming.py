"""Cgroup paths as the lab speaks them, `/a/b/pod-x/ID`, and as this node's cgroup driver spells them.

The lab's are those of cgroupfs on every node. Under systemd, `/a/b/pod-x/ID` is
`/a.slice/a-b.slice/a-b-pod_x.slice/cri-containerd-ID.scope`.
Source: kubelet, CgroupName.ToSystemd; systemd.slice(5); containerd, the cgroupsPath of its CRI plugin.
"""

import enum
import os
import re
from functools import cache
from pathlib import Path

CONTAINERD_CONFIG = Path("/etc/containerd/config.toml")
_ID = re.compile(r"[0-9a-f]{64}")
_SCOPE = re.compile(r"cri-containerd-([0-9a-f]{64})\.scope")


class Driver(enum.StrEnum):
    """What kubelet and the runtime make cgroups with, by kubelet's names for it (cgroupDriver)."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


@cache
def driver() -> Driver:
    """This node's: systemd where it is init and the node's own containerd uses it."""
    if not Path("/run/systemd/system").is_dir() or not CONTAINERD_CONFIG.exists():
        return Driver.CGROUPFS
    uses_systemd = re.search(r"^\s*SystemdCgroup = true$", CONTAINERD_CONFIG.read_text(), re.MULTILINE)
    return Driver.SYSTEMD if uses_systemd else Driver.CGROUPFS


def spelled(path: str, kind: Driver | None = None) -> str:
    """Where the cgroup is below a hierarchy's mount; also the cgroup_parent that kubelet sends for it."""
    if (kind or driver()) is Driver.CGROUPFS or not path.startswith("/"):
        return path
    parts = [part.replace("-", "_") for part in path.split("/") if part]
    scope = [f"cri-containerd-{parts.pop()}.scope"] if parts and _ID.fullmatch(parts[-1]) else []
    slices = [f"{'-'.join(parts[:depth])}.slice" for depth in range(1, len(parts) + 1)]
    return "/" + "/".join(slices + scope)


def placement(path: str, kind: Driver | None = None) -> str:
    """What criproxy calls a cgroup in the box: under systemd, its slice alone."""
    return os.path.basename(spelled(path, kind)) if (kind or driver()) is Driver.SYSTEMD else path


def told(spelling: str, kind: Driver | None = None) -> str:
    """The inverse of `spelled`. What the driver would not have spelled so stays as it is, and matches no path."""
    if (kind or driver()) is Driver.CGROUPFS:
        return spelling
    above, _, last = spelling.rpartition("/")
    scope = _SCOPE.fullmatch(last)
    unit = os.path.basename(above) if scope else last
    parts = [part.replace("_", "-") for part in unit.removesuffix(".slice").split("-")]
    path = "/".join(["", *parts, *([scope[1]] if scope else [])])
    return path if spelled(path, Driver.SYSTEMD) == spelling else spelling


def told_of_spec(cgroups_path: str) -> str:
    """The path of a container, from linux.cgroupsPath in its bundle: `/parent/ID`, or `parent.slice:prefix:ID`.

    Source: runc, docs/systemd.md.
    """
    unit, *rest = cgroups_path.split(":")
    if not rest:
        return cgroups_path
    parts = [part.replace("_", "-") for part in unit.removesuffix(".slice").split("-")]
    return "/".join(["", *parts, rest[-1]])
