"""A service's unit file and drop-ins, merged as systemd merges them, as far as its command and environment go.

Source: systemd.syntax(7); systemd.unit(5), drop-ins; systemd.service(5), ExecStart=.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

_SECTION: Final = "[Service]"
_LISTS: Final = ("Environment", "EnvironmentFile", "ExecStart", "UnsetEnvironment")


class Setting(Struct, frozen=True):
    """One assignment. `value` is as it is written, its continued lines joined; `file` is where."""

    key: str
    value: str
    file: str


class Service(Struct, frozen=True):
    """What is in force of [Service], in order."""

    settings: tuple[Setting, ...]

    def of(self, key: str) -> tuple[Setting, ...]:
        return tuple(setting for setting in self.settings if setting.key == key)


def merge(files: Iterable[tuple[str, str]]) -> Service:
    """The service of (path, text) in systemd's order: the unit file, then its drop-ins. An empty value resets."""
    held: list[Setting] = []
    for path, text in files:
        for setting in _settings(path, text):
            if setting.value:
                held.append(setting)
            else:
                held = [one for one in held if one.key != setting.key]
    return Service(tuple(held))


def _settings(path: str, text: str) -> Iterator[Setting]:
    section = ""
    for line in logical_lines(text):
        if line.startswith("["):
            section = line
        elif section == _SECTION:
            key, equals, value = line.partition("=")
            if equals and key.rstrip() in _LISTS:
                yield Setting(key.rstrip(), value.strip(), path)


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
