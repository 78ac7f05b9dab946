"""Where a container's hostPath volumes lead to on the node, past symbolic links, bind mounts and kubelet's subPaths.

A path has many names: as it is written, at each symbolic link on its way, once all are resolved, and those that mounts
of its file system give it. By any of them it is refused that is a refused folder, lies in one or has one in it; and by
a file system of the kernel's own (sysfs, proc, a cgroup hierarchy, …), there or below. One that is not read-only is
refused unless its names once links are resolved, by these and by mounts, are all in lent folders, and so are those that
mounts give parts of it. What is mounted in a path counts as the path itself; but it is not read-only with it, unless
the node has it so, or the pod asks for that.

These mounts give no names:

- those in refused folders and in kubelet's: what is mounted there from a disk is often elsewhere as well;
- one that shows all of the disk that the system is on (OSTree's /sysroot), if others show the path, too;
- those of NFS, but to subPaths: its mounts don't say what they show.

Kubelet's own files for a pod (its volumes, /etc/hosts, the termination log) lie in a refused folder, /var/lib/kubelet,
and pass: all that is in pods/UID there. But for subPaths: of a volume's `subPath`, kubelet hands on a bind mount in
pods/UID/volume-subpaths, whose own name says nothing. It passes where it is of a volume of the pod's own; else it goes
by its other names, and is refused where mounts in refused folders alone give it any.

What a path leads to can change before the runtime mounts it. Whoever gets out so, the placement check finds.
Source: kubelet, kubelet_pods.go, makeMounts, and subpath_linux.go; proc(5), /proc/PID/mountinfo and /proc/PID/root.
"""

import asyncio
import contextlib
import errno
import os
import posixpath
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from criproxy.cgroup.files import kernel_text, lines_of, unescaped
from criproxy.concurrency.worker import StuckError, Worker
from criproxy.hooks.hardening import BY, Hardening
from criproxy.model import AdmissionError, HostMount
from criproxy.model.shown import Gauge, Shows
from criproxy.vocabulary.unboundable import (
    EVERY,
    SHOWN,
    first_holding,
    first_related,
    host_path,
    related,
    writable_below,
    writable_host_path,
)

_TIMEOUT_S: Final = 10.0

_MOST_READERS: Final = 16
"""Threads, of which one looks at a time, unless it takes long."""

_LONG: Final = 0.1
"""Of its time-out, after which another thread looks at what other pods mount."""

_MOST_LINKS: Final = 40
"""On one path. Source: path_resolution(7)."""

_NO_LINK: Final = (errno.EINVAL, errno.ENOENT, errno.ENOTDIR)
"""What readlink says of a path that is no link, or not there. Source: readlink(2)."""

_WHOSE: Final = "Where its spec has no such volume, a PersistentVolume or a device plugin asks for the mount"

_LONGEST: Final = 4096
"""Characters of a path. Source: limits.h, PATH_MAX."""

_MOST_PARTS: Final = 8192
"""Names on the way of all paths of a container, and of links there."""

_SUBPATHS: Final = "/volume-subpaths/"

_CSI: Final = "kubernetes.io~csi"
"""Of a volume by such a driver, kubelet's folder has what is mounted, by the name `mount`, and a file of kubelet's own.

Source: Kubernetes, pkg/volume/csi.
"""

_VGPU: Final = "/usr/local/vgpu/containers"
"""A folder of UID_CONTAINER in it is mounted into each container that asks for a virtual GPU.

Source: HAMi and Volcano, vGPU device plugin, Allocate.
"""

_SYSTEM: Final = ("/", "/etc", "/usr", "/var")
"""Where the disk that the system is on is mounted, in part; what shows more of it shows all."""

_KERNELS_OWN: Final = frozenset(
    {"sysfs", "proc", "cgroup", "cgroup2", "devtmpfs", "debugfs", "tracefs", "securityfs", "configfs", "bpf", "pstore"}
    | {"efivarfs", "resctrl", "binfmt_misc", "fusectl", "selinuxfs"}
)
"""File systems that are the kernel's settings and devices, wherever they are mounted."""


_ROOTLESS: Final = frozenset({"nfs", "nfs4"})
"""File systems of which each mount is shown as the root, whatever of them is mounted. Source: Linux, nfs_show_path."""

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devpts", "hugetlbfs", "mqueue"})

_NEAR: Final = _IN_MEMORY | {"btrfs", "zfs", "overlay"}
"""File systems of a node's own without a device of their own, which most others without one don't have: NFS, FUSE, …"""


class MountPoint(Struct, frozen=True):
    """A line of mountinfo: the folder `root` of the file system on `device` is seen at `point`. `id`: of the mount.

    `readonly`: the mount itself, as which the kernel mounts it elsewhere, too, whatever is above it.
    """

    id: str
    device: str
    root: str
    point: str
    kind: str
    readonly: bool


def parse_mount_table(mountinfo: str) -> tuple[MountPoint, ...]:
    """In the kernel's order. A line of another form is skipped."""
    found = []
    for line in lines_of(mountinfo):
        mount, _, filesystem = line.partition(" - ")
        match mount.split(" "), filesystem.split(" "):
            case [id, _, device, root, point, options, *_], [kind, *_] if kind:
                readonly = "ro" in options.split(",")
                found.append(MountPoint(id, device, unescaped(root), unescaped(point), kind, readonly))
    return tuple(found)


class MountTable:
    """The mounts of a node in the kernel's order, `at` by where each is, and on which one a path is."""

    def __init__(self, mounts: Iterable[MountPoint]) -> None:
        self.mounts = tuple(mounts)
        self.at = {one.point: one for one in self.mounts}  # of several in one place, the last hides the others
        self._on = dict(self.at)

    def of(self, path: str) -> MountPoint:
        """What a path is on by its name, found from the folder above it; `_NOWHERE`: nothing that is known."""
        mount, unknown = self._on.get(path), list[str]()
        while mount is None:
            unknown.append(path)
            above = posixpath.dirname(path)
            mount, path = _NOWHERE if above == path else self._on.get(above), above
        self._on.update(dict.fromkeys(unknown, mount))
        return mount


class NodePaths:
    """What paths of a pod lead to. `link_at` reads the symbolic link there, see `names_of`, and `links_in` gives the
    names of those in a folder. Pure but for these.

    `own` is kubelet's folder for the pod, `…/pods/UID`. A container may mount thousands of paths, and a node has
    thousands of mounts: what is the same for all paths is found once.
    """

    def __init__(
        self,
        mounts: MountTable,
        link_at: Callable[[str], str],
        links_in: Callable[[str], Iterable[str]],
        own: str,
        hardening: Hardening,
    ) -> None:
        self._mounts, self._link_at, self._links_in = mounts, link_at, links_in
        self._kernels = {one.point: one.kind for one in mounts.at.values() if one.kind in _KERNELS_OWN}
        self._points, self._kernels_points = sorted(mounts.at), sorted(self._kernels)
        self._subpaths = f"/pods/{posixpath.basename(own)}{_SUBPATHS}"
        """In the names of its subPaths, wherever kubelet's folder is: no spec has the pod's uid but in a subPath."""
        self._volumes = f"{names_of(own, link_at)[-1]}/volumes"
        self._kubelets = names_of(posixpath.dirname(posixpath.dirname(own)), link_at)[-1]
        refused, lent = hardening.refuse_host_paths, hardening.writable_host_paths
        self._refused = dict[str, str]()
        """Where each refused folder is, and as what it is listed."""
        for one in refused:
            for place in self._places(one):
                self._refused.setdefault(place, one)
        self._lent = frozenset(place for one in lent for place in self._places(one, lent))
        self._views = self._sorted()
        self._shown_at, self._listed_at, self._unlent_at = cache(self._shown), cache(self._listed), cache(self._unlent)

    def refusal(self, mount: HostMount) -> str:
        """Why this one is refused, in words; "": it is not."""
        path = mount.path
        if len(path) > _LONGEST:
            return f"a hostPath volume of {path[:SHOWN]}... has more than {_LONGEST} characters, which no kernel takes"
        names = names_of(path, self._link_at)
        resolved = names[-1]
        points = self._points[_inside(resolved, self._points)]
        listed = chain(map(self._named, names), map(self._listed_at, (resolved, *points)))
        if (found := next(filter(None, listed), None) or self._kernel_s(resolved)) is not None:
            return host_path(path, found, BY)
        if not mount.readonly and (found := self._unlent_at(resolved)) is not None:
            return writable_host_path(path, found, BY)
        if mount.readonly and mount.recursive_read_only:
            return ""
        for point in points:
            if not self._mounts.at[point].readonly and (found := self._unlent_at(point)) is not None:
                words = writable_below(path, point, BY)
                return words if mount.readonly else writable_host_path(path, found, BY)
        return ""

    def _named(self, name: str) -> str | None:
        """As what the refused folder is listed that this is, or lies in, or has in it; None: there is none."""
        found = None if self._subpaths in name else first_related(name, self._refused)
        return None if found is None else self._refused[found]

    def _listed(self, resolved: str) -> str | None:
        """The same by what mounts show there, or only show in refused folders."""
        shown = self._shown_at(resolved)
        if shown.own or shown.kind in _KERNELS_OWN:
            return None
        if (named := next(filter(None, map(self._named, (*shown.names, *shown.parts))), None)) is not None:
            return named
        return None if shown.names else next(filter(None, map(self._named, shown.apart)), None)

    def _kernel_s(self, resolved: str) -> str | None:
        """The file system of the kernel's that the path is on, or has in it, in words; None: there is none."""
        if (kind := self._mounts.of(resolved).kind) not in _KERNELS_OWN:
            if not (below := self._kernels_points[_inside(resolved, self._kernels_points)]):
                return None
            kind = self._kernels[below[0]]
        return f"a file system of the kernel's, {kind}"

    def _unlent(self, resolved: str) -> str | None:
        """A name that is in no lent folder; None: it may be written."""
        shown = self._shown_at(resolved)
        if shown.own:
            return None
        if not shown.names:
            return next(iter(shown.apart), resolved)
        return next((one for one in (*shown.names, *shown.parts) if first_holding(one, self._lent) is None), None)

    def _shown(self, resolved: str) -> "_Shown":
        """Once links are resolved."""
        mount = self._mounts.of(resolved)
        if mount.kind in _ROOTLESS and self._subpaths not in resolved:
            return _Shown(mount.kind, (resolved,))
        root = _below(mount.root, resolved[len(mount.point) :])
        views = self._views.get(mount.device, _Views())
        names = views.names(views.seen, root) or views.names(views.of_all, root)
        own = any(map(self._is_own, views.names(views.own, root)))
        parts = tuple(one.point for one in views.seen if _is_in(one.root, root))
        itself = () if self._subpaths in resolved else (resolved,)
        return _Shown(mount.kind, (*itself, *names), parts, views.names(views.apart, root), own)

    def _sorted(self) -> dict[str, "_Views"]:
        """By their device, all mounts but those that kubelet makes of subPaths."""
        system = [one for point in _SYSTEM if (one := self._mounts.at.get(point)) is not None]
        found = dict[str, _Views]()
        for one in self._mounts.mounts:
            point = one.point
            if _SUBPATHS in point:
                continue
            views = found.setdefault(one.device, _Views())
            if _holds(self._volumes, point) or _holds(point, self._volumes):
                views.own.append(one)
            if _is_in(point, self._kubelets) or (one.kind not in _IN_MEMORY and self._is_in_refused(point)):
                views.apart.append(one)
            elif point not in _SYSTEM and any(
                one.device == its.device and _holds(one.root, its.root) for its in system
            ):
                views.of_all.append(one)
            else:
                views.seen.append(one)
        return found

    def _is_in_refused(self, point: str) -> bool:
        return first_holding(posixpath.dirname(point), self._refused) is not None

    def _is_own(self, name: str) -> bool:
        """Whether it is in a volume that kubelet has made for the pod: in pods/UID/volumes/PLUGIN/NAME."""
        if not _is_in(name, self._volumes):
            return False
        plugin, *rest = name.removeprefix(f"{self._volumes}/").split("/")
        return rest[1:2] == ["mount"] if plugin == _CSI else bool(rest)

    def _places(self, listed: str, lent: Collection[str] = ()) -> Iterator[str]:
        """Where a listed folder is: as it is written, where links lead, and, of a name that stands for many, where
        those lead that are links themselves. Links in a lent folder may be offline pods', and are not followed.
        """
        yield listed
        written, rest = _fixed(listed)
        folder = self._led_to(written, lent)
        yield posixpath.join(folder, *rest)
        if rest and self._is_near(folder):
            for name in self._links_in(folder):
                link = posixpath.join(folder, name)
                if related(link, posixpath.join(folder, rest[0])):
                    yield posixpath.join(self._led_to(link, lent), *rest[1:])

    def _led_to(self, folder: str, lent: Collection[str]) -> str:
        """Where a folder of the node's is, as far as that is known without a look at what may be of a server that is
        gone. A mount point is no link.
        """

        def link_at(at: str) -> str:
            is_left = at in self._mounts.at or not self._is_near(at)
            return "" if is_left or first_holding(posixpath.dirname(at), lent) is not None else self._link_at(at)

        try:
            return names_of(folder, link_at)[-1]
        except OSError:
            return folder

    def _is_near(self, path: str) -> bool:
        """Whether a path is on a disk or in memory of the node's own."""
        mount = self._mounts.of(path)
        return not mount.device.startswith("0:") or mount.kind in _NEAR or mount == self._mounts.of("/")


class _Shown(Struct, frozen=True):
    """What a path is on a node: the file system's `kind`, and its `names`. `parts`: where mounts show parts of it;
    `apart`: its names in refused folders; `own`: whether it is in a volume that kubelet has made for the pod.
    """

    kind: str
    names: Sequence[str]
    parts: Sequence[str] = ()
    apart: Sequence[str] = ()
    own: bool = False


class _Views(Struct):
    """Mounts of one device: `apart` are those in refused folders, `of_all` show all of the disk that the system is on.
    `own`: by which the pod's own volumes may be seen, among others.
    """

    seen: list[MountPoint] = []
    of_all: list[MountPoint] = []
    apart: list[MountPoint] = []
    own: list[MountPoint] = []

    def names(self, mounts: Iterable[MountPoint], root: str) -> tuple[str, ...]:
        """What they call the folder `root` of the device."""
        return tuple(_below(one.point, root[len(one.root) :]) for one in mounts if _holds(one.root, root))


def _fixed(listed: str) -> tuple[str, Sequence[str]]:
    """The part of a listed folder whose names stand for one each, and its other names."""
    names = listed.rstrip("/").split("/")
    fixed = next((number for number, name in enumerate(names) if name.endswith(EVERY)), len(names))
    return "/".join(names[:fixed]) or "/", names[fixed:]


def _inside(folder: str, points: Sequence[str]) -> slice:
    """Of sorted mount points, those that lie in the folder."""
    name = folder.rstrip("/")
    return slice(bisect_right(points, f"{name}/"), bisect_left(points, f"{name}0"))  # 0 is what follows the slash


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/") and path != folder


def _holds(folder: str, path: str) -> bool:
    return path == folder or _is_in(path, folder)


def _below(folder: str, rest: str) -> str:
    return posixpath.join(folder, rest.lstrip("/")) if rest.strip("/") else folder


_NOWHERE: Final = MountPoint("", "", "", "", "", False)


class _Reader(Struct, eq=False):
    """A thread that looks at paths, of one pod at a time. `at`: the mount that it looks at.

    `looking`: for a pod that waits for the answer, since `since_s`, in the event loop's time.
    """

    worker: Worker
    at: MountPoint = _NOWHERE
    looking: asyncio.Task[str] | None = None
    since_s: float = 0.0

    @property
    def idle(self) -> bool:
        return self.looking is None and not self.worker.stuck


class _OccupiedError(Exception):
    """Another reader has been busy for long, and is at a mount that this one would look at."""

    def __init__(self, reader: _Reader, point: str) -> None:
        super().__init__(f"{point[:SHOWN]} has not answered an earlier pod yet")
        self.reader = reader


_ReaderJob = Callable[[_Reader, Mapping[str, _Reader]], str]
"""What a reader does for a pod. The mapping: the others that take long, by the id of the mount that they are at."""


class HostPaths(Shows):
    """Asks the node, in threads of its own: a path may be on a disk or a server that does not answer.

    A thread that hangs is left to it, and other pods have others, so that one server that is gone only keeps out the
    pods that mount something of it. Where a thread takes long, no other looks at the same mount: pods that come
    together wait for the one that came first. `root_dir` is kubelet's. Mounts and links are those of the process whose
    folder in /proc `process` is, as kubelet and the runtime see them. As a pod, criproxy has another root; where it may
    not look at that process's, as a service of systemd's, it has the same.
    """

    GAUGES = (
        Gauge(
            "host_paths_hanging",
            "Threads that wait for a disk or server of which offline pods mount paths",
            lambda one: len(one._hanging()),
        ),
    )

    def __init__(self, root_dir: str, process: Path = Path("/proc/1"), *, timeout_s: float = _TIMEOUT_S) -> None:
        self._pods = f"{root_dir}/pods"
        self._process = process
        self._timeout_s = timeout_s
        self._readers: tuple[_Reader, ...] = (self._begun(),)
        self._next: Final = asyncio.Lock()
        """Of the pod whose turn it is to have a reader."""
        self._ended: Final = asyncio.Event()
        """Set as a reader has done with a pod."""
        self._mounted: frozenset[str] = frozenset()
        """The ids of mounts, as of the last look."""

    def suspects(self, uid: str, mounts: Sequence[HostMount]) -> tuple[HostMount, ...]:
        """Those that are not plainly kubelet's own for this pod, wherever its folder is, nor a device plugin's."""
        plain = dict.fromkeys(replace(one, path=posixpath.normpath(one.path)) for one in dict.fromkeys(mounts))
        own, subpaths, vgpu = f"/pods/{uid}/", f"/pods/{uid}{_SUBPATHS}", f"{_VGPU}/{uid}_"
        suspects = (one for one in plain if own not in one.path or subpaths in one.path)
        return tuple(one for one in suspects if not one.path.startswith(vgpu))

    async def check(self, uid: str, suspects: Sequence[HostMount], hardening: Hardening) -> None:
        """Raises AdmissionError for a path that is refused, and where the node does not tell."""
        look = partial(self._look, mounted=suspects, own=f"{self._pods}/{uid}", hardening=hardening)
        try:
            refusal = await self._answer(look)
        except OSError as error:
            raise AdmissionError(f"it is not known what its hostPath volumes lead to: {error}") from error
        if refusal:
            raise AdmissionError(f"{refusal}. {_WHOSE}")

    def problems(self) -> Iterator[str]:
        for point in sorted({one.at.point for one in self._hanging() if one.at.id in self._mounted}):
            yield f"{point[:SHOWN]} does not answer: no offline pod is let in that mounts a path of it"

    def close(self) -> None:
        for one in self._readers:
            one.worker.close()

    def _begun(self) -> _Reader:
        return _Reader(Worker("host-paths", self._timeout_s))

    def _hanging(self) -> list[_Reader]:
        return [one for one in self._readers if one.worker.stuck]

    def _takes_long(self, reader: _Reader) -> bool:
        busy_s = 0.0 if reader.looking is None else asyncio.get_running_loop().time() - reader.since_s
        return reader.worker.stuck or busy_s > self._timeout_s * _LONG

    async def _answer(self, look: _ReaderJob) -> str:
        """Waits for another pod's look at the same mount, if need be: that ends by its time-out. Raises OSError."""
        reader = await self._free()
        occupied = {one.at.id: one for one in self._readers if self._takes_long(one)}
        job = partial(look, reader, occupied)
        looking = asyncio.create_task(reader.worker.run("find what hostPath volumes lead to", job))
        reader.looking, reader.since_s = looking, asyncio.get_running_loop().time()
        looking.add_done_callback(partial(self._looked, reader))
        await asyncio.wait((looking,))  # a caller that is cancelled leaves the look running
        try:
            return looking.result()
        except _OccupiedError as error:
            other = error.reader
            if other.worker.stuck:
                raise StuckError(str(error)) from error
            if other.looking is not None:
                await asyncio.wait((other.looking,))
            return await self._answer(look)

    async def _free(self) -> _Reader:
        """An idle one, or a new one; where there is none to be had, the next that is. Raises OSError."""
        async with self._next, asyncio.timeout(self._timeout_s):
            while (reader := self._idle() or self._another()) is None:
                self._ended.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._timeout_s * _LONG):
                        await self._ended.wait()
        return reader

    def _idle(self) -> _Reader | None:
        return next((one for one in self._readers if one.idle), None)

    def _another(self) -> _Reader | None:
        """None: there are too many already, or one that may soon be idle. Raises StuckError."""
        full = len(self._readers) >= _MOST_READERS
        if full and all(one.worker.stuck for one in self._readers):
            raise StuckError(f"{len(self._readers)} earlier looks have not been answered yet")
        if full or not all(map(self._takes_long, self._readers)):
            return None
        try:
            begun = self._begun()
        except RuntimeError as error:
            raise StuckError("the machine has no more threads") from error
        self._readers = (*self._readers, begun)
        return begun

    def _looked(self, reader: _Reader, looking: asyncio.Task[str]) -> None:
        reader.looking = None
        self._ended.set()
        self._end_idle()
        if not looking.cancelled():
            looking.exception()  # nobody else may be there to see it

    def _end_idle(self) -> None:
        """All but one."""
        surplus = [one for one in self._readers if one.idle][1:]
        for one in surplus:
            one.worker.close()
        self._readers = tuple(one for one in self._readers if one not in surplus)

    def _look(
        self,
        reader: _Reader,
        occupied: Mapping[str, _Reader],
        *,
        mounted: Sequence[HostMount],
        own: str,
        hardening: Hardening,
    ) -> str:
        table = MountTable(parse_mount_table(kernel_text((self._process / "mountinfo").read_bytes())))
        self._mounted = frozenset(one.id for one in table.mounts)
        root = f"{self._process}/root"
        if not os.access(root, os.X_OK):
            root = ""
        parts = 0

        def pass_by(path: str) -> None:
            reader.at = table.of(path)
            if (other := occupied.get(reader.at.id)) is not None:
                raise _OccupiedError(other, reader.at.point)

        @cache
        def read(path: str) -> str:
            pass_by(path)
            return _link_at(path, root)

        def link_at(path: str) -> str:
            nonlocal parts
            parts += 1
            if parts > _MOST_PARTS:
                raise OSError(f"with the links there, their paths have more than {_MOST_PARTS} parts in all")
            return read(path)

        @cache
        def links_in(folder: str) -> list[str]:
            pass_by(folder)
            try:
                with os.scandir(f"{root}{folder}") as found:
                    return [one.name for one in found if one.is_symlink()]
            except OSError:
                return []

        node = NodePaths(table, link_at, links_in, own, hardening)
        return next((why for one in mounted if (why := node.refusal(one))), "")


def names_of(path: str, link_at: Callable[[str], str]) -> list[str]:
    """What an absolute path is called at each symbolic link on its way, and last where it leads to, whether it exists
    or not. `link_at` reads the link that a part of it is, "" where it is none, and may take for ever. A link that leads
    nowhere is its own end. A name that is too long for a path is left out.

    Raises OSError where a part can't be looked at, or more than 40 links are on the way: runtimes may follow more than
    the kernel does, and the kernel gets to parts whose whole name is too long for it.
    """
    rest, found, links, names = path.split("/")[::-1], "/", 0, list[str]()
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            found = posixpath.dirname(found)
            continue
        part = posixpath.join(found, name)
        target = link_at(part)
        if not target:
            found = part
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(f"more than {_MOST_LINKS} symbolic links are on the way of {path[:SHOWN]}")
        if len(rest) < _LONGEST:
            names.append(posixpath.normpath(posixpath.join(part, *reversed(rest))))
        rest += target.split("/")[::-1]
        if target.startswith("/"):
            found = "/"
    return [*names, found]


def _link_at(path: str, root: str) -> str:
    """Of the symbolic link there, below the folder `root`; "": it is none, or nothing is there. Raises OSError."""
    try:
        return os.readlink(f"{root}{path}")
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise OSError(f"{path[:SHOWN]}: {error.strerror}") from error
        return ""
