"""Child processes that never outlive the command that started them, and the error that it ends with."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class NodeError(Exception):
    """The node itself failed, not what runs on it; the message says why and, where one is known, the remedy."""


class GuestKernelError(NodeError):
    """The guest's kernel panicked, or stands still."""


def start(argv: Sequence[str | Path], **options: Any) -> subprocess.Popen[bytes]:
    """A child that the kernel kills with this process; `options` are Popen's. Raises NodeError when it is not there.

    Source: prctl(2), PR_SET_PDEATHSIG.
    """
    try:
        return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *map(str, argv)], **options)
    except OSError as error:
        raise NodeError(f"{argv[0]}: {error.strerror}; integration/setup nodes installs what is missing") from error


def output(argv: Sequence[str]) -> str:
    """What a program prints. Raises NodeError when it fails or is not there."""
    try:
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise NodeError(f"{error}; integration/setup nodes installs what is missing") from error
