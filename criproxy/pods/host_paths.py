"""Where a container's hostPath volumes lead to on the node, past symbolic links, bind mounts and kubelet's subPaths.

A path is refused that is a refused folder, lies in one or has one in it, by any of these:

1. its name, as it is written, at each symbolic link on its way, and once all are resolved;
2. the file system that it leads to: one of the kernel's own (sysfs, proc, a cgroup hierarchy, …), there or below;
3. what it is on its device: a bind mount of /run is a folder of the same file system as /run, or as what is mounted in
   memory below it.

A path that leads to what the node runs is refused by the same (but for 2) unless it is read-only. What is mounted in a
path counts as the path itself; but it is not read-only with it, unless the node has it so, or the pod asks for that.

Kubelet's own files for a pod (its volumes, /etc/hosts, the termination log) lie in a refused folder, /var/lib/kubelet,
and pass: all that is in pods/UID there. But for subPaths: of a volume's `subPath`, kubelet hands on a bind mount in
pods/UID/volume-subpaths, so that these go by 2 and 3, where what lies in the pod's own folder passes.

What a path leads to can change before the runtime mounts it. Whoever gets out so, the placement check finds.
Source: kubelet, kubelet_pods.go, makeMounts, and subpath_linux.go; proc(5), /proc/PID/mountinfo.
"""

import asyncio
import contextlib
import errno
import os
import posixpath
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
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
    JOBS_FOLDERS,
    SHOWN,
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

_SUBPATHS: Final = "volume-subpaths"

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


class NodePaths:
    """What paths of a pod lead to. `link_at` reads the symbolic link there, see `names_of`, and `links_in` gives the
    names of those in a folder. Pure but for these.

    `own` is kubelet's folder for the pod. A container may mount thousands of paths, and a node has thousands of mounts:
    what is the same for all paths is found once, and what a path is on by its folders, from the nearest upwards.
    """

    def __init__(
        self,
        mounts: Sequence[MountPoint],
        link_at: Callable[[str], str],
        links_in: Callable[[str], Iterable[str]],
        own: str,
        hardening: Hardening,
    ) -> None:
        self._link_at, self._links_in, self._own = link_at, links_in, own
        self._at = {one.point: one for one in mounts}  # of several in one place, the last hides the others
        self._kernels = {one.point: one.kind for one in mounts if one.kind in _KERNELS_OWN}
        self._points, self._kernels_points = sorted(self._at), sorted(self._kernels)
        self._home = self._source(names_of(own, link_at)[-1])
        kubelets = names_of(posixpath.dirname(posixpath.dirname(own)), link_at)[-1]
        in_memory = (point for point, one in self._at.items() if one.kind in _IN_MEMORY)
        self._in_memory = frozenset(point for point in in_memory if not _is_in(point, kubelets))
        """What is mounted from a disk is often elsewhere as well."""
        jobs = (self._source(self._led_to(one)) for one in JOBS_FOLDERS)
        self._refused = self._folders(hardening.refuse_host_paths)
        self._refused_writable = replace(
            self._folders(hardening.refuse_writable_host_paths),
            jobs=[one for one in jobs if one.kind not in _ROOTLESS],
        )
        self._refused_at = cache(partial(self._listed_at, self._refused))
        self._refused_writable_at = cache(partial(self._listed_at, self._refused_writable))

    def refusal(self, mount: HostMount) -> str:
        """Why this one is refused, in words; "": it is not."""
        path = mount.path
        if len(path) > _LONGEST:
            return f"a hostPath volume of {path[:SHOWN]}... has more than {_LONGEST} characters, which no kernel takes"
        names = names_of(path, self._link_at)
        resolved = names[-1]
        source = self._source(resolved)
        found = self._listed(self._refused, path, names, source) or self._kernel_s(resolved, source)
        if found is not None:
            return host_path(path, found, BY)
        if not mount.readonly and (found := self._listed(self._refused_writable, path, names, source)) is not None:
            return writable_host_path(path, found, BY)
        return self._refusal_below(mount, self._points[_inside(resolved, self._points)])

    def _refusal_below(self, mount: HostMount, points: Sequence[str]) -> str:
        """The same of what is mounted in it."""
        if (found := next(filter(None, map(self._refused_at, points)), None)) is not None:
            return host_path(mount.path, found, BY)
        if mount.readonly and mount.recursive_read_only:
            return ""
        for point in points:
            if not self._at[point].readonly and (found := self._refused_writable_at(point)) is not None:
                below = writable_below(mount.path, point, BY)
                return below if mount.readonly else writable_host_path(mount.path, found, BY)
        return ""

    def _listed(self, folders: "_Folders", path: str, names: Sequence[str], source: MountPoint) -> str | None:
        """As what a folder is listed that the path leads to; None: to none."""
        if any(one.device == source.device and _is_in(source.root, one.root) for one in folders.jobs):
            return None
        named = None if _is_in(path, self._own) else folders.named(names)
        if named is not None or (source.device == self._home.device and _is_in(source.root, self._home.root)):
            return named
        return None if source.kind in _KERNELS_OWN else folders.holding(source)

    def _kernel_s(self, resolved: str, source: MountPoint) -> str | None:
        """The file system of the kernel's that the path is on, or has in it, in words; None: there is none."""
        if (kind := source.kind) not in _KERNELS_OWN:
            if not (below := self._kernels_points[_inside(resolved, self._kernels_points)]):
                return None
            kind = self._kernels[below[0]]
        return f"a file system of the kernel's, {kind}"

    def _listed_at(self, folders: "_Folders", point: str) -> str | None:
        """The same of what is mounted there."""
        return self._listed(folders, point, (point,), self._source(point))

    def _folders(self, listed: Sequence[str]) -> "_Folders":
        names, on_devices = dict[str, str](), dict[str, list[tuple[str, str]]]()
        node_s = self._at.get("/", _NOWHERE)
        for one in listed:
            for folder in dict.fromkeys(self._places(one)):
                names.setdefault(folder, one)
                for source in self._sources(folder):
                    if source.kind not in _ROOTLESS or source.root == "/" or source.id == node_s.id:
                        on_devices.setdefault(source.device, []).append((source.root, one))
        return _Folders(names, on_devices)

    def _places(self, listed: str) -> Iterator[str]:
        """Where a listed folder is: as it is written, where links lead, and, of a name that stands for many, where
        those lead that are links themselves.
        """
        yield listed
        written, rest = _fixed(listed)
        folder = self._led_to(written)
        yield posixpath.join(folder, *rest)
        if rest and self._is_near(folder):
            for name in self._links_in(folder):
                link = posixpath.join(folder, name)
                if related(link, posixpath.join(folder, rest[0])):
                    yield posixpath.join(self._led_to(link), *rest[1:])

    def _sources(self, folder: str) -> Iterator[MountPoint]:
        """What a listed folder is on devices: itself, what is mounted in memory in it, and, of a name that stands for
        many, what is mounted where any of them is.
        """
        yield self._source(folder)
        written, _ = _fixed(folder)
        names = folder.rstrip("/").split("/")
        for point in self._points[_inside(written, self._points)]:
            depth = point.count("/") + 1
            if (depth <= len(names) or point in self._in_memory) and related(point, folder):
                yield self._source(posixpath.join(point, *names[depth:]))

    def _led_to(self, folder: str) -> str:
        """Where a folder of the node's is, as far as that is known without a look at what may be of a server that is
        gone. A mount point is no link.
        """
        try:
            return names_of(folder, lambda at: "" if at in self._at or not self._is_near(at) else self._link_at(at))[-1]
        except OSError:
            return folder

    def _is_near(self, path: str) -> bool:
        """Whether a path is on a disk or in memory of the node's own."""
        mount = _mount_of(path, self._at)
        return not mount.device.startswith("0:") or mount.kind in _NEAR or mount == self._at.get("/")

    def _source(self, path: str) -> MountPoint:
        """The mount that a path is on; its `root` is the path's own on the device."""
        mount = _mount_of(path, self._at)
        if mount is _NOWHERE:
            return replace(_NOWHERE, root=path, point=path)
        rest = path[len(mount.point) :].lstrip("/")
        root = posixpath.join(mount.root, rest) if rest else mount.root
        return replace(mount, root=root, point=path)


class _Folders(Struct, frozen=True):
    """Folders of a list that are refused. `names`: by where each is, as what it is listed; `on_devices`: by the device,
    what each is there, and as what it is listed; `jobs`: folders in them of which what they have in them is not.
    """

    names: Mapping[str, str]
    on_devices: Mapping[str, Sequence[tuple[str, str]]]
    jobs: Sequence[MountPoint] = ()

    def named(self, names: Iterable[str]) -> str | None:
        """As what the folder is listed that a path is, or lies in, or has in it, by its names; None: there is none."""
        found = (first_related(one, self.names) for one in names)
        return next((self.names[one] for one in found if one is not None), None)

    def holding(self, source: MountPoint) -> str | None:
        """The same by what the path is on its device."""
        there = self.on_devices.get(source.device, ())
        return next((listed for root, listed in there if related(source.root, root)), None)


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
    together wait for the one that came first. `root_dir` is kubelet's. The mounts are those of process 1, as kubelet
    and the runtime see them.
    """

    GAUGES = (
        Gauge(
            "host_paths_hanging",
            "Threads that wait for a disk or server of which offline pods mount paths",
            lambda one: len(one._hanging()),
        ),
    )

    def __init__(
        self, root_dir: str, mountinfo: Path = Path("/proc/1/mountinfo"), *, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self._pods = f"{root_dir}/pods"
        self._mountinfo = mountinfo
        self._timeout_s = timeout_s
        self._readers: tuple[_Reader, ...] = (self._begun(),)
        self._next: Final = asyncio.Lock()
        """Of the pod whose turn it is to have a reader."""
        self._ended: Final = asyncio.Event()
        """Set as a reader has done with a pod."""
        self._mounted: frozenset[str] = frozenset()
        """The ids of mounts, as of the last look."""

    def suspects(self, uid: str, mounts: Sequence[HostMount]) -> tuple[HostMount, ...]:
        """Those that are not plainly kubelet's own for this pod."""
        own = f"{self._pods}/{uid}/"
        plain = dict.fromkeys(replace(one, path=posixpath.normpath(one.path)) for one in dict.fromkeys(mounts))
        return tuple(one for one in plain if not one.path.startswith(own) or one.path.startswith(f"{own}{_SUBPATHS}/"))

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
        mounts = parse_mount_table(kernel_text(self._mountinfo.read_bytes()))
        self._mounted = frozenset(one.id for one in mounts)
        points = {one.point: one for one in mounts}

        def pass_by(path: str) -> None:
            reader.at = _mount_of(path, points)
            if (other := occupied.get(reader.at.id)) is not None:
                raise _OccupiedError(other, reader.at.point)

        @cache
        def link_at(path: str) -> str:
            pass_by(path)
            return _link_at(path)

        def links_in(folder: str) -> list[str]:
            pass_by(folder)
            try:
                with os.scandir(folder) as found:
                    return [one.name for one in found if one.is_symlink()]
            except OSError:
                return []

        node = NodePaths(mounts, link_at, links_in, own, hardening)
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


def _link_at(path: str) -> str:
    """Of the symbolic link there; "": it is none, or nothing is there. Raises OSError."""
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise OSError(f"{path[:SHOWN]}: {error.strerror}") from error
        return ""


def _mount_of(path: str, points: Mapping[str, MountPoint]) -> MountPoint:
    """What a path is on by its name; `_NOWHERE`: nothing that is known."""
    point = path
    while point not in points:
        above = posixpath.dirname(point)
        if above == point:
            return _NOWHERE
        point = above
    return points[point]
