"""Kubelet's command line: its words, the flags among them, and the sockets that they name."""

import posixpath
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

ENDPOINT_FLAG: Final = "--container-runtime-endpoint"


class Argument(Struct, frozen=True):
    """A word of a command line. `file` holds its text; `variable` is its name there, "" for the command itself."""

    text: str
    file: str
    variable: str = ""

    @property
    def origin(self) -> str:
        return f"{self.variable} in {self.file}" if self.variable else self.file


def flag(words: Sequence[Argument], name: str) -> Argument | None:
    """The last value of a flag (with its dashes), in either spelling; None when it is not given."""
    found = None
    for at, word in enumerate(words):
        if word.text == "--":
            break
        key, equals, value = word.text.partition("=")
        if not key.startswith("--") or key.replace("_", "-") != name:
            continue
        if equals:
            found = Argument(value, word.file, word.variable)
        elif at + 1 < len(words):
            found = words[at + 1]
    return found


def socket_path(endpoint: str) -> str | None:
    """The path of a unix socket's endpoint, normalised; None for another kind."""
    path = endpoint.removeprefix("unix:") if endpoint.startswith("unix:") else endpoint
    if not path.startswith("/"):
        return None
    return posixpath.normpath("/" + path.lstrip("/"))
