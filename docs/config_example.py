"""The example config file, made from the settings. `docs.generate` writes it."""

import textwrap
from collections.abc import Iterator
from typing import Final

import msgspec

from criproxy.config.schema import Setting, settings
from criproxy.config.settings import Config
from criproxy.config.text import toml

_WIDTH: Final = 100
_ON_A_LINE: Final = 3
"""Items of a list."""

_HEAD: Final = """\
criproxy's settings, each at its default: an empty file means the same as this one.
Files in config.d beside it (config.d/*.toml, by name) override it, key by key: a package upgrade then never asks.
Units are in the names: _s seconds, _cores CPUs, _bytes bytes, _ratio a share from 0 to 1.
`criproxy check` tells what is wrong with a file. A change is taken up at once, but for the keys that say otherwise."""


def render() -> str:
    """The text of config.example.toml."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from _comment(_HEAD)
    by_section: dict[str, list[Setting]] = {}
    for setting in settings():
        by_section.setdefault(setting.section, []).append(setting)
    for section in msgspec.structs.fields(Config):
        yield ""
        yield ""
        yield from _comment(section.type.__doc__)
        yield f"[{section.name}]"
        for setting in by_section[section.name]:
            yield ""
            yield from _comment(_about(setting))
            yield from _assignment(setting)


def _about(setting: Setting) -> str:
    text = f"{setting.description} {setting.expects[0].upper()}{setting.expects[1:]}."
    if setting.item_example and not setting.default:
        text += f"\nFor example: [{setting.item_example}]"
    return f"{text} Takes effect after a restart." if setting.needs_restart else text


def _assignment(setting: Setting) -> Iterator[str]:
    if setting.default is None:
        yield f"# {setting.name} ="
    elif setting.item_example and setting.default:
        yield f"{setting.name} = ["
        yield from (f"    {toml(rule)}," for rule in setting.default)
        yield "]"
    elif isinstance(setting.default, tuple) and len(setting.default) > _ON_A_LINE:
        items = ", ".join(map(toml, setting.default))
        yield f"{setting.name} = ["
        indent = "    "
        yield from textwrap.wrap(
            f"{items},", _WIDTH - 4, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )
        yield "]"
    else:
        yield f"{setting.name} = {toml(setting.default)}"


def _comment(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield from (f"# {wrapped}" for wrapped in textwrap.wrap(line, _WIDTH - 2))
