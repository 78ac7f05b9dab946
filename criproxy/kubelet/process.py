"""The kubelet that runs on this node: its process, its command line, and what its configuration files say.

Only files are read, and of processes only kubelet's own, so that it costs next to nothing to ask each second.
`KubeletSearch` alone goes through all processes, for a kubelet that no unit runs, and rarely.
"""

import contextlib
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

from msgspec import Struct

from criproxy.cgroup.processes import read_stat
from criproxy.cgroup.tree import TICKS_PER_S
from criproxy.kubelet import rancher
from criproxy.kubelet.configuration import parsed
from criproxy.kubelet.flags import EMBEDDING, ENDPOINT_FLAG, UNIT, flag, socket_path

_HIERARCHIES: Final = ("", "systemd/", "unified/")
"""Where systemd keeps its units below /sys/fs/cgroup: v2, v1, v1 with v2 beside it."""

_SLICES: Final = ("system.slice/", "", "*.slice/", "*.slice/*.slice/")
"""Where a unit is: systemd's default, or what its Slice= says (EKS: runtime.slice), the likeliest first.

A pod may have a kubelet.service too, but below a scope or a path that is no slice.
"""

_KUBELET: Final = b"kubelet"
_K3S: Final = b"k3s"
_COMM_BYTES: Final = 64
"""More than a name has, also a kernel thread's."""

_KUBEADMS: Final = "/var/lib/kubelet/config.yaml"
"""Where kubeadm has kubelet's configuration."""


def command_line(root: Path) -> list[str]:
    """The words of the unit's kubelet, which may have helpers; empty when none runs. Raises OSError.

    Of a kubelet that is part of k3s's own process, those that k3s gives it, as far as files say.
    """
    for process in _processes(root, _of_kubelet(root), _KUBELET):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return words_of(process)
    for unit in EMBEDDING:
        for process in _processes(root, _embedding(root, unit), (_KUBELET, _K3S)):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if (process / "comm").read_bytes().startswith(_KUBELET):
                    return words_of(process)
                return rancher.kubelet_words(root, unit)
    return []


def processes_of_unit(root: Path) -> Iterator[Path]:
    """The directories in /proc of the processes of the unit that are kubelet by name. Raises OSError."""
    yield from _processes(root, _of_kubelet(root), _KUBELET)
    for unit in EMBEDDING:
        yield from _processes(root, _embedding(root, unit), _KUBELET)


def _of_kubelet(root: Path) -> Iterator[Path]:
    """Where the processes of kubelet.service are listed."""
    units = (f"{hierarchy}{where}{UNIT}/cgroup.procs" for where in _SLICES for hierarchy in _HIERARCHIES)
    return (path for unit in units for path in (root / "sys/fs/cgroup").glob(unit))


def _embedding(root: Path, unit: str) -> Iterator[Path]:
    """Where the processes of a unit that brings a kubelet are listed: it is in systemd's default slice."""
    return (root / f"sys/fs/cgroup/{hierarchy}system.slice/{unit}/cgroup.procs" for hierarchy in _HIERARCHIES)


def _processes(root: Path, lists: Iterable[Path], name: bytes | tuple[bytes, ...]) -> Iterator[Path]:
    """Of the processes in such lists, those whose name begins so."""
    for path in lists:
        for pid in read(root, f"/{path.relative_to(root)}").split():
            if read(root, f"/proc/{int(pid)}/comm").startswith(name):
                yield root / f"proc/{int(pid)}"


def words_of(process: Path) -> list[str]:
    """The command line of a process, by its directory in /proc. Raises OSError."""
    return (process / "cmdline").read_bytes().decode(errors="surrogateescape").split("\0")


class KubeletProcess(Struct, frozen=True):
    """A kubelet of the node: its directory in /proc, which with `started` names it for good, and its command line.

    `uses_us`: its command line names criproxy's socket.
    """

    directory: Path
    started: int
    words: list[str]
    uses_us: bool


class KubeletSearch(Struct):
    """Finds the kubelet that uses the socket `listen`, else any of the node, whoever has started it.

    Which process that is, is remembered, as a walk through /proc reads a file of each process of the node. It is
    searched for anew once it has ended, was replaced (by another with its pid, or by exec), and, where it does not
    name `listen` on its command line, every `ANEW` looks: another one may have come that does. The units' processes
    are asked first. While there is no kubelet, as in k3s, whose kubelet is no process, only every `ANEW`th look walks;
    the first `ANEW` looks, and as many after one has ended, walk all, as one comes or another takes its place.
    """

    listen: str
    root: Path = Path("/")
    _known: KubeletProcess | None = None
    _until_walk: int = 0
    """Looks until the next walk that nothing else gives cause for."""

    ANEW: ClassVar[int] = 10

    _walks_at_once: int = ANEW
    """Looks that walk whatever `_until_walk` is: at first, and since a kubelet was known, at most `ANEW`."""

    def find(self) -> KubeletProcess | None:
        """None: there is none by that name. Raises OSError or ValueError."""
        known = self._known
        self._until_walk -= 1
        if known is not None and (known.uses_us or self._until_walk > 0):
            now = self._at(str(known.directory))
            if now is not None and now.started == known.started:
                return now
        found = self._best(str(process) for process in processes_of_unit(self.root))
        if (found is None or not found.uses_us) and (self._until_walk <= 0 or self._is_expected()):
            proc = str(self.root / "proc")  # of thousands of processes, a Path each triples the cost
            found = self._best(f"{proc}/{pid}" for pid in os.listdir(proc) if pid.isdecimal())
            self._until_walk, self._walks_at_once = self.ANEW, self._walks_at_once - 1
        if found is not None:
            self._walks_at_once = self.ANEW
        self._known = found
        return found

    def _is_expected(self) -> bool:
        """Whether a kubelet may come at any moment that is a process of its own."""
        return self._walks_at_once > 0 and not any(
            True for unit in EMBEDDING for _ in _processes(self.root, _embedding(self.root, unit), (_KUBELET, _K3S))
        )

    def _best(self, directories: Iterable[str]) -> KubeletProcess | None:
        """The first that uses us, else the first; directories in /proc."""
        found = None
        for directory in directories:
            if process := self._at(directory):
                if process.uses_us:
                    return process
                found = found or process
        return found

    def _at(self, directory: str) -> KubeletProcess | None:
        """The process, if it is a kubelet of the node.

        Pods may run what they call so: only root's own processes outside of all PID namespaces are the node's. One of
        another name, as kubelet-v1.20.2, must use us.
        """
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ProcessLookupError):
            comm = os.open(f"{directory}/comm", os.O_RDONLY | os.O_CLOEXEC)
            try:
                name = os.read(comm, _COMM_BYTES).strip()
            finally:
                os.close(comm)
            if not name.startswith(_KUBELET) or not _is_the_nodes(process := Path(directory)):
                return None
            words, stat = words_of(process), read_stat(process.parent, int(process.name), TICKS_PER_S)
            uses_us = socket_path(flag(words, ENDPOINT_FLAG) or "") == self.listen
            if stat is not None and (uses_us or name == _KUBELET):
                return KubeletProcess(process, stat.started, words, uses_us)
        return None


def _is_the_nodes(process: Path) -> bool:
    """By what everybody may read; its namespace's link needs a right to trace it. Source: proc_pid_status(5)."""
    fields = dict(line.partition(b":")[::2] for line in (process / "status").read_bytes().split(b"\n"))
    return len(fields.get(b"NSpid", b"1").split()) == 1 and fields.get(b"Uid", b"0").split()[0] == b"0"


def configured(words: Sequence[str], root: Path, key: str) -> tuple[str, str]:
    """The value that a key has in the configuration of this command line, and in which file; ("", "") if in none.

    Raises OSError, and ValueError for a file that is not understood.
    Source: kubelet, cmd/kubelet/app/server.go: --config-dir goes over --config.
    """
    found = "", ""
    for path in configuration(words, root):
        try:
            value = parsed(read(root, path)).get(key)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        if isinstance(value, str):
            found = value, path
    return found


def configuration(words: Sequence[str], root: Path) -> Iterator[str]:
    """The configuration files of a command line; a later one goes over those before it."""
    config, directory = flag(words, "--config"), flag(words, "--config-dir")
    if config:
        yield posixpath.join("/", config)
    if directory:
        yield from (path for path in walk(root, posixpath.join("/", directory)) if path.endswith(".conf"))


def walk(root: Path, directory: str) -> list[str]:
    """The files below `directory`, hidden ones too, in the order in which kubelet reads its --config-dir.

    All are paths below `root`. Names are compared within each directory, so what is in `a` comes before `a.conf`. No
    link is followed, also not `directory` itself, unless it ends in a slash. Nothing is there: nothing.
    Source: kubelet, cmd/kubelet/app/server.go (mergeKubeletConfigurations); Go, filepath.WalkDir.
    """
    top = f"{root}/{directory.lstrip('/')}"
    if os.path.islink(top):
        return []
    found = [os.path.relpath(f"{at}/{name}", top) for at, _, names in os.walk(top) for name in names]
    found.sort(key=lambda path: os.fsencode(path).split(b"/"))
    return [posixpath.join(directory, path) for path in found]


def cgroup_driver(root: Path = Path("/")) -> tuple[str, str]:
    """The cgroup driver that kubelet is set to, and by what; ("", "") when it is set to none, ("", why) when it is not
    known. Never raises.

    Source: kubelet, --cgroup-driver, which goes before cgroupDriver of its configuration.
    """
    try:
        words = command_line(root) or [f"--config={_KUBEADMS}"]
        if (given := flag(words, "--cgroup-driver")) is not None:
            return given, "a flag of kubelet's"
        driver, path = configured(words, root, "cgroupDriver")
    except (OSError, ValueError) as error:
        return "", str(error)
    return driver, f"cgroupDriver in {path}" if path else ""


def client(root: Path = Path("/")) -> tuple[str, str]:
    """The kubeconfig of the kubelet that runs, and the node's name that it was given; each "" when it is not said.

    Raises OSError. Source: kubelet, --kubeconfig and --hostname-override.
    """
    words = command_line(root)
    return flag(words, "--kubeconfig") or "", flag(words, "--hostname-override") or ""


def read(root: Path, path: str) -> bytes:
    """A file's content; empty when there is none. Raises OSError."""
    try:
        return (root / path.lstrip("/")).read_bytes()
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return b""
