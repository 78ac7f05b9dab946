"""A unit of systemd's by its files alone: the command that it starts, and the environment that it gives to it.

For what a process does not say of itself: k3s overwrites its own command line, and who is not its user, or has fewer
rights, may not read its environment. Specifiers but for the unit's name are left as they are.
Source: systemd.unit(5), "Unit File Load Path"; systemd.exec(5), Environment= and EnvironmentFile=.
"""

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_DIRECTORIES: Final = (
    "etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system",
    "lib/systemd/system",
)  # fmt: skip
"""The first that has a file of a name has the last word."""

_VARIABLE: Final = re.compile(r"\$\{?(\w+)\}?")
_ASSIGNMENT: Final = re.compile(r"^[ \t]*(\w+)=(.*)$", re.MULTILINE)


def commands(unit: bytes) -> list[str]:
    """The values of ExecStart= of a unit file or a drop-in, as they are written; "" takes back those before it.

    Source: systemd.service(5), ExecStart=.
    """
    return [value for key, value in _service(unit) if key == "ExecStart"]


def started(root: Path, name: str) -> tuple[list[str], dict[str, str]]:
    """The words of the unit's command, and its environment; both empty when it has no file. Raises OSError."""
    command, variables, patterns = "", dict[str, str](), list[str]()
    for path in _files(root, name):
        for key, value in _service(path.read_bytes()):
            if key == "ExecStart":
                command = value
            elif key == "Environment":
                variables = variables | _words_assigned(value) if value else {}
            elif key == "EnvironmentFile":
                patterns = [*patterns, value] if value else []
    for pattern in patterns:
        below = pattern.removeprefix("-").lstrip("/").replace("%n", name).replace("%N", name.removesuffix(".service"))
        for path in sorted(root.glob(below)) if below else ():
            variables |= assignments(path.read_text(errors="surrogateescape"))
    with contextlib.suppress(ValueError):
        return words(command, variables), variables
    return [], variables


def assignments(text: str) -> dict[str, str]:
    """The variables of an environment file."""
    found = {}
    for name, value in _ASSIGNMENT.findall(text.replace("\\\n", "")):
        with contextlib.suppress(ValueError):
            found[name] = " ".join(shlex.split(value))
    return found


def words(command: str, variables: Mapping[str, str]) -> list[str]:
    """The words of a command with its variables put in, near enough to find flags. Raises ValueError."""
    return shlex.split(_VARIABLE.sub(lambda found: variables.get(found[1], ""), command))


def logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blank ones, stripped; a backslash at the end joins the next by a blank."""
    held = ""
    for line in text.splitlines():
        if line.lstrip().startswith(("#", ";")):
            continue  # also between continued lines
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        if joined := (held + line).strip():
            yield joined
        held = ""
    if joined := held.strip():
        yield joined


def _service(unit: bytes) -> Iterator[tuple[str, str]]:
    """The keys and values of the section [Service], in their order."""
    section = ""
    for line in logical_lines(unit.decode(errors="surrogateescape")):
        key, _, value = (part.strip() for part in line.partition("="))
        section = line if line.startswith("[") else section
        if section == "[Service]":
            yield key, value


def _files(root: Path, name: str) -> list[Path]:
    """The unit's file and its drop-ins, in systemd's order."""
    units = [path for directory in _DIRECTORIES if (path := root / directory / name).is_file()]
    dropins: dict[str, Path] = {}
    for directory in reversed(_DIRECTORIES):
        dropins |= {path.name: path for path in (root / directory / f"{name}.d").glob("*.conf")}
    return [*units[:1], *(dropins[one] for one in sorted(dropins))]


def _words_assigned(value: str) -> dict[str, str]:
    with contextlib.suppress(ValueError):
        return {key: given for key, equals, given in (word.partition("=") for word in shlex.split(value)) if equals}
    return {}
