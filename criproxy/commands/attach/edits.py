"""Files as they are and as they shall be: edits, a view of the node with them made, and their difference as text."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct


class Files(Protocol):
    """The node's files."""

    def read(self, path: str) -> bytes | None:
        """The content; None: there is no such file."""
        ...

    def matching(self, pattern: str) -> Sequence[str]:
        """The paths that a shell pattern matches, sorted."""
        ...

    def below(self, directory: str) -> Sequence[str]:
        """The files below a directory, at any depth, in the order of `walk.walk`."""
        ...


class RefusedError(Exception):
    """It cannot be done here; the message says why and what to do."""


class Edit(Struct, frozen=True):
    """A file as it is and as it shall be; None: there is none."""

    path: str
    before: bytes | None
    after: bytes | None


class Plan(Struct, frozen=True):
    """Edits in their order, and what the user should know of them."""

    edits: tuple[Edit, ...]
    notes: tuple[str, ...] = ()


class Overlay:
    """The node's files as they will be after edits; a file that is None is not there."""

    def __init__(self, files: Files, changed: Mapping[str, bytes | None]) -> None:
        self._files = files
        self._changed = dict(changed)

    def read(self, path: str) -> bytes | None:
        return self._changed[path] if path in self._changed else self._files.read(path)

    def matching(self, pattern: str) -> Sequence[str]:
        return self._left(self._files.matching(pattern))

    def below(self, directory: str) -> Sequence[str]:
        return self._left(self._files.below(directory))

    def _left(self, paths: Sequence[str]) -> Sequence[str]:
        return [path for path in paths if self._changed.get(path, b"") is not None]

    def put(self, path: str, content: bytes | None) -> None:
        self._changed[path] = content

    def edits(self) -> tuple[Edit, ...]:
        """What differs from the node's files."""
        found = [Edit(path, self._files.read(path), after) for path, after in self._changed.items()]
        return tuple(edit for edit in found if edit.before != edit.after)


def difference(edits: Sequence[Edit]) -> str:
    """The edits as a unified diff."""
    return "".join(line for edit in edits for line in _difference(edit))


def _difference(edit: Edit) -> Iterator[str]:
    before, after = (_lines(content) for content in (edit.before, edit.after))
    old = "/dev/null" if edit.before is None else edit.path
    new = "/dev/null" if edit.after is None else edit.path
    for line in difflib.unified_diff(before, after, old, new):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(content: bytes | None) -> list[str]:
    return (content or b"").decode(errors="replace").splitlines(keepends=True)
