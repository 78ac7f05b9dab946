"""The files below a directory in the order in which kubelet reads its --config-dir: the last one has the last word.

Source: kubelet, cmd/kubelet/app/server.go (mergeKubeletConfigurations); Go, filepath.WalkDir.
"""

import os
import posixpath
from pathlib import Path


def walk(root: Path, directory: str) -> list[str]:
    """The paths below `directory` that are no directories, hidden ones too; it is a path below `root`, as they are.

    Names are compared within each directory, so what is in `a` comes before `a.conf`. No link is followed, also not
    `directory` itself, unless it ends in a slash. Nothing is there: nothing.
    """
    top = f"{root}/{directory.lstrip('/')}"
    if os.path.islink(top):
        return []
    found = [os.path.relpath(f"{at}/{name}", top) for at, _, names in os.walk(top) for name in names]
    found.sort(key=lambda path: os.fsencode(path).split(b"/"))
    return [posixpath.join(directory, path) for path in found]
