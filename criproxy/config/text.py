"""How a value looks in a config file: for the example (`docs.config_example`), and, cut to a short line, for errors."""

import datetime
import itertools
import json
import reprlib
from typing import Final

import msgspec

SHOWN: Final = 60
"""Characters of a string or number, and a few items of a list or table, that are shown."""

_ITEMS: Final = 3
_DEPTH: Final = 3
_DECIMAL_BITS: Final = 1024
"""A larger number is shown in hexadecimal: Python refuses decimals of more than 4300 digits."""
_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = SHOWN
_SHORT.maxlevel = 2


def toml(value: object, depth: int = _DEPTH) -> str:
    """`value` as it would stand in a file, on one short line of ASCII; "" for None. `depth`: tables and lists shown."""
    match value:
        case None:
            text = ""
        case bool():
            text = str(value).lower()
        case str():
            text = json.dumps(value if len(value) <= SHOWN else value[:SHOWN] + "...")
        case list() | tuple() | dict() if value and not depth:
            text = "{ ... }" if isinstance(value, dict) else "[...]"
        case list() | tuple():
            text = "[" + ", ".join(_cut([toml(item, depth - 1) for item in value[: _ITEMS + 1]])) + "]"
        case msgspec.Struct():
            text = toml({name: given for name in value.__struct_fields__ if (given := getattr(value, name))}, depth)
        case dict():
            items = itertools.islice(value.items(), _ITEMS + 1)
            pairs = [f"{bare(str(name))} = {toml(item, depth - 1)}" for name, item in items]
            text = "{ " + ", ".join(_cut(pairs)) + " }"
        case datetime.date() | datetime.time():
            text = value.isoformat()
        case int() if value.bit_length() < 64:
            text = f"{value:_}"
        case int() if value.bit_length() > _DECIMAL_BITS:
            text = f"{hex(value)[:SHOWN]}..."
        case _:
            text = _SHORT.repr(value)
    return text


def bare(key: str) -> str:
    """A key, made short and plain."""
    return toml(key)[1:-1]


def _cut(items: list[str]) -> list[str]:
    return [*items[:_ITEMS], "..."] if len(items) > _ITEMS else items
