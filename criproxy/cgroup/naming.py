"""Cgroup paths as kubelet writes them, and where the box lies beside them. Pure text, no files.

The box is a sibling of kubelet's `kubepods`, because weights compare siblings only. Its own name must not contain
"pod": kubelet's orphan sweep kills every process under such a name in its tree.
"""

import enum
import re
from functools import lru_cache
from typing import Final

from msgspec import Struct

BOX: Final = "offline"
_QOS_CLASSES: Final = ("besteffort", "burstable")
_KEPT: Final = 512
"""Paths whose parts are kept: a start of a pod, and each look at it, takes the same few apart again and again."""

LONGEST: Final = 1024
_LONGEST_UNIT: Final = 255
# No dot in a pod's name: with one it could end in ".slice", which has another meaning.
_POD_NAME: Final = re.compile(r"pod[0-9A-Za-z][0-9A-Za-z_-]{0,120}")
_DIRECTORY: Final = re.compile(r"(?!\.{1,2}$)[0-9A-Za-z_:@.-]{1,255}")
_SLICE_PART: Final = re.compile(r"[0-9A-Za-z_:@.\\]+")


class Driver(enum.StrEnum):
    """Kubelet's cgroup driver, by the shape of the paths that it sends."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


class BoxPath(Struct, frozen=True):
    """The box's cgroup: `path` below the hierarchy's root, or a slice."""

    path: str

    @property
    def driver(self) -> Driver:
        return Driver.SYSTEMD if is_slice(self.path) else Driver.CGROUPFS

    def pod(self, name: str) -> str:
        """The cgroup_parent, in the box, of the pod whose cgroup kubelet calls `name` (`pod<uid>`)."""
        return child_of(self.path, name)

    @property
    def online(self) -> str:
        """Kubelet's own cgroup beside the box, in the same shape."""
        suffix = ".slice" if is_slice(self.path) else ""
        return f"{self.path.removesuffix(BOX + suffix)}kubepods{suffix}"

    @property
    def online_parents(self) -> tuple[str, ...]:
        """The cgroups that kubelet makes pods' cgroups in: `online` (guaranteed pods), and those of the QoS classes."""
        return (self.online, *(child_of(self.online, qos) for qos in _QOS_CLASSES))


DEFAULT_BOXES: Final = (BoxPath(f"/{BOX}"), BoxPath(f"{BOX}.slice"))
"""Where the box is unless kubelet has a --cgroup-root."""


class PodParent(Struct, frozen=True):
    """A pod's cgroup_parent, taken apart: its `box` and its own `name` there."""

    box: BoxPath
    name: str

    @property
    def in_box(self) -> str:
        return self.box.pod(self.name)

    @property
    def at_kubelet(self) -> tuple[str, ...]:
        """What kubelet's own cgroup of the pod may be: one of these, by its QoS class, the likeliest first."""
        guaranteed, *others = self.box.online_parents
        return tuple(child_of(parent, self.name) for parent in (*others, guaranteed))

    def is_of(self, uid: str) -> bool:
        return self.name in pod_names(uid)


def default_places(uid: str) -> tuple[str, str]:
    """The cgroups of this pod in `DEFAULT_BOXES`, as they would be."""
    directory, slice_ = DEFAULT_BOXES
    name, of_slice = pod_names(uid)
    return directory.pod(name), slice_.pod(of_slice)


def pod_names(uid: str) -> tuple[str, str]:
    """What kubelet calls the cgroup of the pod with this uid; systemd's names have "_" for "-"."""
    return f"pod{uid}", f"pod{uid.replace('-', '_')}"


@lru_cache(_KEPT)
def parse_kubelet_parent(cgroup_parent: str) -> PodParent:
    """Take apart the cgroup_parent that kubelet sends for a pod.

    `/kubepods/besteffort/pod<uid>` and `/kubelet/kubepods/pod<uid>` (cgroupfs), or
    `…/kubepods-burstable-pod<uid>.slice` (systemd, of which the runtime uses the last element only).
    Raises ValueError on everything else.
    """
    _check_length(cgroup_parent)
    last = cgroup_parent.rpartition("/")[2]
    if is_slice(last):
        *prefix, name = _without_qos(_slice_parts(last, cgroup_parent), cgroup_parent)
    elif cgroup_parent.startswith("/"):
        *prefix, name = _without_qos(_directories(cgroup_parent), cgroup_parent)
    else:
        raise ValueError(f"cgroup_parent {cgroup_parent!r} is neither an absolute path nor a slice")
    if not prefix or prefix[-1] != "kubepods":
        raise ValueError(f"cgroup_parent {cgroup_parent!r} is not directly below a kubepods cgroup")
    beside = [*prefix[:-1], BOX]
    box = f"{'-'.join(beside)}.slice" if is_slice(last) else "/".join(["", *beside])
    return PodParent(BoxPath(box), _pod_name(name, cgroup_parent))


def driver_of_process(cgroups: str) -> Driver | None:
    """Kubelet's driver, if this /proc/PID/cgroup is of a process in one of its pods; None: it is not.

    Source: cgroups(7), /proc/pid/cgroup.
    """
    for line in cgroups.split("\n"):
        path = line.split(":", 2)[-1]
        while path:
            try:
                return parse_kubelet_parent(path).box.driver
            except ValueError:
                path = path.rpartition("/")[0]
    return None


@lru_cache(_KEPT)
def parse_placement(placement: str) -> PodParent:
    """Take apart a cgroup_parent that `PodParent.in_box` made. Raises ValueError on everything else."""
    _check_length(placement)
    if is_slice(placement):
        head, _, name = placement.removesuffix(".slice").rpartition("-")
        return PodParent(parse_box(f"{head}.slice"), _pod_name(name, placement))
    head, _, name = placement.rpartition("/")
    return PodParent(parse_box(head), _pod_name(name, placement))


@lru_cache(_KEPT)
def parse_box(path: str) -> BoxPath:
    """The box that `BoxPath.path` names. Raises ValueError on everything else."""
    _check_length(path)
    parts = _slice_parts(path, path) if is_slice(path) else _directories(path)
    if parts[-1] != BOX:
        raise ValueError(f"{path!r} is not the path of a box, which ends in {BOX!r}")
    return BoxPath(path)


def directory_of(path: str) -> str:
    """The cgroup's directory below the hierarchy's root: of `a-b.slice`, /a.slice/a-b.slice. Source: systemd.slice(5).

    Raises ValueError when `path` is neither a slice nor an absolute path that does not climb.
    """
    if is_slice(path) and "/" not in path:
        parts = _slice_parts(path, path)
        return "".join(f"/{'-'.join(parts[:length])}.slice" for length in range(1, len(parts) + 1))
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise ValueError(f"{path!r} is not an absolute cgroup path")
    return path


def is_slice(path: str) -> bool:
    """Whether systemd makes this cgroup: one made by hand below a slice loses its controllers."""
    return path.endswith(".slice")


def child_of(parent: str, name: str) -> str:
    """The cgroup of this name right below another, in the same shape."""
    return f"{parent.removesuffix('.slice')}-{name}.slice" if is_slice(parent) else f"{parent}/{name}"


def pod_named(box: str, directory: str) -> str | None:
    """What the pod is called whose cgroup in the box is this directory; None: it is no pod's."""
    try:
        pod = parse_placement(directory if is_slice(box) else f"{box}/{directory}")
    except ValueError:
        return None
    return pod.name if pod.box.path == box else None


def _check_length(path: str) -> None:
    if len(path) > LONGEST:
        raise ValueError(f"cgroup path {path[:64]!r}… has {len(path)} characters, more than {LONGEST}")


def _directories(path: str) -> list[str]:
    root, *parts = path.split("/")
    if root or not parts or not all(_DIRECTORY.fullmatch(part) for part in parts):
        raise ValueError(f"{path!r} is not an absolute cgroup path of plain names")
    return parts


def _slice_parts(unit: str, whole: str) -> list[str]:
    parts = unit.removesuffix(".slice").split("-")
    if len(unit) > _LONGEST_UNIT or not all(_SLICE_PART.fullmatch(part) for part in parts):
        raise ValueError(f"{whole!r} does not end in the name of a systemd slice")
    return parts


def _without_qos(parts: list[str], cgroup_parent: str) -> list[str]:
    if len(parts) < 2:
        raise ValueError(f"cgroup_parent {cgroup_parent!r} names no pod below kubepods")
    return [*parts[:-2], parts[-1]] if parts[-2] in _QOS_CLASSES else parts


def _pod_name(name: str, whole: str) -> str:
    if not _POD_NAME.fullmatch(name):
        raise ValueError(f"{whole!r} does not end in the name of a pod's cgroup (pod<uid>)")
    return name
