"""Packs directories into one read-only squashfs that lives in memory: a node's /dev/vdb."""

import contextlib
import os
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from integration.node.spawn import NodeError, start

SKIPPED = frozenset(
    {".git", "__pycache__", "node_modules", ".tox", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"}
)
SKIPPED_PREFIX = ".venv"
DISK_BYTES = 1 << 30
"""The sparse size of a disk: a snapshot takes any content into the same one."""


def pack(trees: Sequence[Path]) -> int:
    """Pack each tree under its index (/0, /1, …), owned by root; returns the file descriptor of the squashfs.

    Raises NodeError when that fails. What vanishes meanwhile is left out: somebody may be at work in the tree.
    """
    for tree in trees:
        if not tree.exists():
            raise NodeError(f"{tree}: no such file or directory")
    disk = os.memfd_create("trees")
    command = ["sqfstar", "-quiet", "-no-progress", "-noI", "-noD", "-noF", "-noX", "-force", f"/proc/self/fd/{disk}"]
    packer = start(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[disk])
    assert packer.stdin is not None
    with packer.stdin, tarfile.open(fileobj=packer.stdin, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        for number, tree in enumerate(trees):
            _add_tree(archive, tree, str(number))
    if packer.wait() != 0:
        raise NodeError(f"packing {', '.join(map(str, trees))} failed: sqfstar ended with {packer.returncode}")
    os.ftruncate(disk, DISK_BYTES)
    return disk


def _add_tree(archive: tarfile.TarFile, tree: Path, name: str) -> None:
    tree = tree.resolve()
    _add(archive, tree, name)
    for path in _walk(tree):
        _add(archive, path, f"{name}/{path.relative_to(tree)}")


def _walk(directory: Path) -> Iterator[Path]:
    """All that is below a directory and not skipped, parents first."""
    if directory.is_symlink() or not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        if path.name not in SKIPPED and not path.name.startswith(SKIPPED_PREFIX):
            yield path
            with contextlib.suppress(FileNotFoundError):
                yield from _walk(path)


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        entry = archive.gettarinfo(path, name)
        if entry is None:  # a socket
            return
        entry.uid = entry.gid = 0
        if entry.isreg():
            with path.open("rb") as content:
                archive.addfile(entry, content)
        else:
            archive.addfile(entry)
