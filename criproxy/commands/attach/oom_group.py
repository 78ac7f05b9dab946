"""Keeps memory.oom.group of running containers over a reload of systemd, which from version 262 on resets it.

Kubelet has runc write it into each container's scope, so that all processes of a container end together when its memory
ends. Systemd does not know of that: with each reload, whoever asks for it, it writes what the scope's OOMPolicy= means.
"""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

_FILE: Final = "memory.oom.group"
_SET: Final = "1"


def set_below(mount: Path) -> tuple[Path, ...]:
    """The files of the cgroups below `mount` that have it set; none on cgroup v1, which does not know it."""
    files = (Path(directory) / _FILE for directory, _, names in os.walk(mount) if _FILE in names)
    return tuple(file for file in files if _holds(file) == _SET)


def put_back(files: Collection[Path]) -> tuple[Path, ...]:
    """Set it where it is not; returns where that was. A cgroup that has gone meanwhile is left out."""
    changed = []
    for file in files:
        if _holds(file) not in (_SET, None):
            try:
                file.write_text(_SET)
            except OSError:  # it has just gone
                continue
            changed.append(file)
    return tuple(changed)


def _holds(file: Path) -> str | None:
    """None: it has gone."""
    try:
        return file.read_text().strip()
    except OSError:
        return None
