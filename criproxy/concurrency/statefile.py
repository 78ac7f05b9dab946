"""Files that criproxy keeps from one run to the next: read with a bound, written for its own user alone."""

import os
import stat
from pathlib import Path


def read(path: Path, most_bytes: int) -> bytes:
    """The file's content. Never waits for a writer, as a FIFO would have it.

    Raises ValueError for what is no regular file or has more bytes, and OSError.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise ValueError("it is no regular file")
        data = opened.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"it has more than {most_bytes >> 20} MiB")
    return data


def private(path: str, flags: int) -> int:
    """An opener for `open`: the file has mode 0600, also if it was there before."""
    file = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    os.fchmod(file, 0o600)
    return file


def make_directory(path: Path) -> None:
    """With mode 0700, unless it is there. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write(path: Path, content: bytes, *, durable: bool = True) -> None:
    """The old file or the new one is there, whole, whenever the power fails; not `durable`: whenever the process ends,
    which is enough in /run, and waits for no disk. Raises OSError.
    """
    make_directory(path.parent)
    temporary = path.with_name(f"{path.name}.tmp")
    with open(temporary, "wb", opener=private) as file:
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    temporary.replace(path)
