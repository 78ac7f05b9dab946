"""Edits of files: as each is and as it shall be, several as one plan, their difference as text; and the one error."""

import difflib
from collections.abc import Iterator, Sequence

from msgspec import Struct


class NodeError(Exception):
    """It cannot be done, or has not worked out; the message says why, how the node is left, and what to do."""


class Edit(Struct, frozen=True):
    """A file as it is and as it shall be; None: there is none."""

    path: str
    before: bytes | None
    after: bytes | None


class EditPlan(Struct, frozen=True):
    """Edits in their order, and what the user should know of them."""

    edits: tuple[Edit, ...]
    notes: tuple[str, ...] = ()

    def writes(self, path: str) -> bool:
        return any(edit.path == path for edit in self.edits)


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
