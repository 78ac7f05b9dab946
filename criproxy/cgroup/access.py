"""Reads and settles the kernel files of `kernel_files`, by their rows: read, compare, write, verify.

It remembers what each file held after the last write, so that it can count what somebody else has changed.
"""

import contextlib
import errno
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.kernel_files import Column, FileFamily, KernelFile
from criproxy.cgroup.tree import Tree, if_there
from criproxy.model import LimitChange


class FileAccess:
    """The files of one version of cgroups. `mounts`: by controller for v1; of v2, there is one, under the name "".

    `roots`: the mount points of all hierarchies that a cgroup has a directory in. Paths are directories below these.
    One thread settles files; another may lower a memory limit meanwhile (`lowering`).
    """

    def __init__(self, version: int, mounts: Mapping[str, str], roots: Collection[str], tree: Tree) -> None:
        self.version = version
        self.roots = tuple(sorted(roots))
        self.tree = tree
        self._mounts = mounts
        self._often: frozenset[str] = frozenset()
        self._last: dict[str, dict[str, str]] = {}
        """By directory, and by file of it."""
        self._lowering: str | None = None

    def read_often(self, paths: Collection[str]) -> None:
        """These cgroups are read again and again, each second and with each start of a pod: their files stay open."""
        if not self._often.issuperset(paths):
            self._often = frozenset(paths)

    def mount(self, controller: str) -> str | None:
        """None: there is no such hierarchy."""
        return self._mounts.get(controller if self.version == 1 else "")

    def directory(self, controller: str, path: str) -> str:
        mount = self.mount(controller)
        if mount is None:
            raise CgroupError(f"there is no cgroup v1 mount of {controller}")
        return mount + path

    def file(self, row: KernelFile, path: str) -> str:
        """Raises CgroupError when there is no such file in this version, or no such hierarchy."""
        name = _column(row, self.version).name
        return f"{self.directory(name.partition('.')[0], path)}/{name}"

    def has(self, row: KernelFile, path: str) -> bool:
        column = row.column(self.version)
        if column is None or self.mount(column.name.partition(".")[0]) is None:
            return False
        return self.tree.exists(self.file(row, path))

    def read(self, row: KernelFile, path: str) -> Any:
        """The value that the kernel holds. None: the file is optional, and not there."""
        held = self._held(row, path)
        return None if held is None else self.value(row, held)

    def value(self, row: KernelFile, text: str) -> Any:
        """What such a file's text says."""
        return _column(row, self.version).format.value(text)

    def _held(self, row: KernelFile, path: str) -> str | None:
        """The text that the kernel holds; None: the file is optional, and not there."""
        column = row.column(self.version)
        if row.optional and (column is None or self.mount(column.name.partition(".")[0]) is None):
            return None
        read = self.tree.read_often if path in self._often else self.tree.read
        try:
            return read(self.file(row, path))
        except CgroupError as error:
            if row.optional and error.errno == errno.ENOENT:
                return None
            raise

    def _held_anew(self, row: KernelFile, value: Any) -> str | None:
        """What the file holds in a cgroup that was just made; None: it is to be read, or may be missing."""
        column = row.column(self.version)
        if column is None or (row.optional and column.new != column.format.text(value)):
            return None
        return column.new

    def read_if_there(self, row: KernelFile, path: str) -> Any:
        """As `read`; None, too, when the cgroup has gone."""
        with if_there():
            return self.read(row, path)
        return None

    def read_children(self, row: KernelFile, path: str) -> list[Any]:
        """What the cgroups right below this one hold, those that have gone left out."""
        directory = self.directory(_column(row, self.version).name.partition(".")[0], path)
        found = [self.read_if_there(row, f"{path}/{name}") for name in self.tree.children(directory)]
        return [value for value in found if value is not None]

    def text(self, row: KernelFile, value: Any) -> str:
        """A value as it is named in messages and in `LimitChange`."""
        return _column(row, self.version).format.text(value).strip()

    def write(self, row: KernelFile, path: str, value: Any) -> None:
        self.tree.write(self.file(row, path), _column(row, self.version).format.text(value))

    def copy(self, row: KernelFile, source: str, target: str) -> None:
        """Give a cgroup what another one holds."""
        if (held := self._held(row, source)) is not None:
            self.tree.write(self.file(row, target), held)

    def settle(self, row: KernelFile, path: str, value: Any, *, made: bool = False) -> list[LimitChange]:
        """Make the file hold the value; does nothing when the file is optional, and not there. Raises CgroupError.

        `made`: the cgroup was made just now, so what it holds need not be read, where that is known.
        """
        held = self._held_anew(row, value) if made else None
        if held is None and (held := self._held(row, path)) is None:
            return []
        file, form = self.file(row, path), _column(row, self.version).format
        want, old = form.text(value), form.held(held)
        if old == want:
            self._keep(file, old)
            return []
        self.tree.write(file, want)
        new = form.held(self.tree.read(file))
        if new != want and self._lowering != file:
            raise contested(file, want.strip(), new.strip())
        return [self._changed(file, old, new)]

    def settle_lowest(self, row: KernelFile, path: str, *, made: bool = False) -> list[LimitChange]:
        """As `settle`, with the lowest value; does nothing for a row that has none."""
        column = row.column(self.version)
        return [] if column is None or column.lowest is None else self.settle(row, path, column.lowest, made=made)

    def note(self, row: KernelFile, path: str, value: Any) -> None:
        """Remember that the file holds this value, so that `settle` does not take it for a change by somebody else."""
        self._keep(self.file(row, path), _column(row, self.version).format.text(value))

    def changed(self, row: KernelFile, path: str, old: Any, new: Any) -> LimitChange:
        """The file was brought from one value to the other."""
        form = _column(row, self.version).format
        return self._changed(self.file(row, path), form.text(old), form.text(new))

    @contextlib.contextmanager
    def lowering(self, row: KernelFile, path: str) -> Iterator[None]:
        """Within this, the file may change at any time, by our own doing."""
        self._lowering = self.file(row, path)
        try:
            yield
            self.note(row, path, self.read(row, path))
        finally:
            self._lowering = None

    def make(self, directory: str) -> bool:
        """Make one cgroup; False: it is there already."""
        made = self.tree.mkdir(directory)
        if made:
            self.forget(directory)
        return made

    def forget(self, directory: str) -> None:
        """The cgroup is gone; one of the same name starts anew."""
        self._last.pop(directory, None)

    # --- files that differ in a part of their names ------------------------------------------------------------------

    def read_family(self, family: FileFamily, path: str) -> dict[str, str]:
        """The texts of these files of a cgroup, by name; none where the controller is not there."""
        if self.mount(family.controller) is None:
            return {}
        directory = self.directory(family.controller, path)
        names = [name for name in self.tree.files(directory, family.controller) if family.has(self.version, name)]
        return {name: self.tree.read(f"{directory}/{name}") for name in names}

    def settle_family(self, family: FileFamily, path: str, texts: Mapping[str, str]) -> None:
        """Give a cgroup of ours these texts, as far as it has the files. Raises CgroupError."""
        held = self.read_family(family, path) if texts else {}
        for name in held.keys() & texts.keys():
            if held[name] != texts[name]:
                self.tree.write(f"{self.directory(family.controller, path)}/{name}", texts[name])

    def _changed(self, file: str, old: str, new: str) -> LimitChange:
        drift = self._keep(file, new) not in (None, old) and self._lowering != file
        return LimitChange(file, old.strip(), new.strip(), drift)

    def _keep(self, file: str, text: str) -> str | None:
        """Remember what the file holds; returns what it held before, None: that is not known."""
        directory, _, name = file.rpartition("/")
        last = self._last.setdefault(directory, {})
        before, last[name] = last.get(name), text
        return before


def contested(file: str, wrote: str, held: str) -> CgroupError:
    """The error when a written value does not stay."""
    return CgroupError(f"{file} holds {held!r} right after {wrote!r} was written: find out who else writes it")


def _column(row: KernelFile, version: int) -> Column:
    column = row.column(version)
    if column is None:
        raise CgroupError(f"cgroup v{version} has no file for {row}")
    return column
