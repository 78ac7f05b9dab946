"""What is made once for a machine and kept outside the repository, until nobody has used it for a week."""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

UNUSED_S = 7 * 86400


def folder() -> Path:
    """Where all of it is."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "criproxy"


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One at a time makes what is to be in the directory, which need not exist; the kernel unlocks with its process."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def use(directory: Path) -> None:
    """It stays for another week."""
    with contextlib.suppress(OSError):  # somebody else's
        os.utime(directory)


def forget_unused(cache: Path) -> None:
    """Remove the directories that nobody has used for a week."""
    for entry in os.scandir(cache):
        with contextlib.suppress(FileNotFoundError):
            if entry.is_dir() and time.time() - entry.stat().st_mtime > UNUSED_S:
                shutil.rmtree(entry.path, ignore_errors=True)
