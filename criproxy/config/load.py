"""Reads a config file: every error at once, and whatever of the file is sound beside them."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from criproxy.config.schema import Setting, conflicts, settings, value_of
from criproxy.config.settings import Config
from criproxy.config.text import SHOWN, bare, toml

MAX_FILE_BYTES: Final = 1 << 20
_MAX_CUTS: Final = 20
_FAILED_LINE: Final = re.compile(r"\(at line (\d+), column \d+\)$")
_STATEMENT: Final = re.compile(r"\s*(\[|[^\s#{=\[\]]+[^={]*=|#|$)")


@dataclass(frozen=True, slots=True)
class ConfigError:
    """One thing wrong with a config file. `key` is `section.name` ("" for the whole file), `value` as it was given."""

    file: str
    key: str
    value: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        given = f"{self.key} = {self.value}" if self.key and self.value else self.key
        return ": ".join(part for part in (self.file, given, self.problem) if part) + f"; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a config file says. With `errors`, `config` is what could be salvaged: every bad key is at its default.

    A salvaged config tells where the sockets are; it is not what the operator wants of the box.
    """

    config: Config
    errors: tuple[ConfigError, ...]


def load(path: Path) -> Loaded:
    """Read `path`. Never raises for what is in the file, or for its absence: see `Loaded`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        missing = ConfigError(
            str(path), "", "", "there is no such file", "copy config.example.toml there (without it, colocation is off)"
        )
        return Loaded(Config(), (missing,))
    except OSError as error:
        reason = error.strerror or str(error)
        return Loaded(Config(), (ConfigError(str(path), "", "", reason, "make it a file that criproxy may read"),))
    return parse(data, str(path))


def parse(data: bytes, file: str) -> Loaded:
    """Like `load`, for the bytes of a config file; `file` is its name in errors."""
    document, syntax_error = _salvage(data)
    errors = [syntax_error] if syntax_error else []
    errors += _unknown_keys(document)
    config, value_errors = _convert(document)
    errors += value_errors
    config, conflict_errors = _resolve(config)
    errors += conflict_errors
    return Loaded(config, tuple(replace(error, file=file) for error in errors))


def _error(key: str, value: object, problem: str, remedy: str) -> ConfigError:
    return ConfigError("", key, toml(value), problem, remedy)


# --- text to tables --------------------------------------------------------------------------------------------------


def _salvage(data: bytes) -> tuple[Mapping[str, Any], ConfigError | None]:
    """The tables of the file, or of the lines before the first one that is no TOML, with the error."""
    if len(data) > MAX_FILE_BYTES:
        return {}, _error("", None, f"has more than {MAX_FILE_BYTES} bytes", "this is no config file of criproxy's")
    try:
        return tomllib.loads(data.decode()), None
    except UnicodeDecodeError as error:
        text = data[: error.start].decode()
        failure = f"is not UTF-8 (at line {_failed_line('', text)})"
        lines = text.split("\n")[:-1]
    except (ValueError, RecursionError) as error:
        text, failure = data.decode(), _first_line(str(error))
        lines = text.split("\n")[: _failed_line(failure, text) - 1]
    problem = _error("", None, failure, "correct it; until then only the lines before it count")
    return _longest_sound(lines), problem


def _longest_sound(lines: list[str]) -> Mapping[str, Any]:
    """The tables of the leading lines that are TOML; {} when too many would have to be cut off to find them."""
    for _ in range(_MAX_CUTS):
        text = "\n".join(lines)
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            del lines[max(0, min(len(lines), _failed_line(str(error), text)) - 1) :]
            # An array or a string that never ends fails far below its start, so go back to where it may have begun.
            while lines and not _STATEMENT.match(lines[-1]):
                lines.pop()
    return {}


def _failed_line(message: str, text: str) -> int:
    """The line (from 1) that tomllib blames; the last one where it blames the end."""
    match = _FAILED_LINE.search(message)
    return int(match[1]) if match else text.count("\n") + 1


# --- tables to settings ----------------------------------------------------------------------------------------------


def _unknown_keys(document: Mapping[str, Any]) -> list[ConfigError]:
    known: dict[str, list[str]] = {}
    for setting in settings():
        known.setdefault(setting.section, []).append(setting.name)
    errors = []
    for section, table in document.items():
        if section not in known:
            errors.append(_unknown(section, section, table, [*known, *_everywhere(known, section)]))
        elif not isinstance(table, dict):
            errors.append(_error(section, table, "is a section, not a key", f"write [{section}] and its keys below it"))
        else:
            errors += [
                _unknown(f"{section}.{name}", name, value, known[section])
                for name, value in table.items()
                if name not in known[section]
            ]
    return errors


def _everywhere(known: Mapping[str, list[str]], name: str) -> list[str]:
    """Where a key that was written outside of its section belongs."""
    return [f"{section}.{name}" for section, names in known.items() if name in names]


def _unknown(key: str, name: str, value: object, known: Iterable[str]) -> ConfigError:
    names = list(known)
    # Bounded: difflib takes quadratic time.
    near = difflib.get_close_matches(name[:SHOWN], names, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]}?" if near else f"remove it (known: {', '.join(names)})"
    return _error(bare(key), value, "there is no such key", remedy)


def _convert(document: Mapping[str, Any]) -> tuple[Config, list[ConfigError]]:
    """Setting by setting, since msgspec stops at a table's first error."""
    errors: list[ConfigError] = []
    found: dict[str, dict[str, Any]] = {}
    for setting in settings():
        table = document.get(setting.section)
        if not isinstance(table, dict) or setting.name not in table:
            continue
        given = table[setting.name]
        try:
            value = msgspec.convert(given, setting.type)
        except (msgspec.ValidationError, RecursionError) as error:
            value, problems = _convert_bad(setting, given, error)
            errors += problems
        found.setdefault(setting.section, {})[setting.name] = value
    sections = {s.name: s.type(**found.get(s.name, {})) for s in msgspec.structs.fields(Config)}
    return Config(**sections), errors


def _convert_bad(setting: Setting, given: object, error: Exception) -> tuple[Any, list[ConfigError]]:
    """The default, or of a list its good items, with what is wrong."""
    if setting.item_type is None or not isinstance(given, list):
        return setting.default, [_expected(setting, setting.key, given)]
    good, errors = [], []
    for index, item in enumerate(given):
        key = f"{setting.key}[{index}]"
        try:
            good.append(msgspec.convert(item, setting.item_type))
        except (msgspec.ValidationError, RecursionError) as item_error:
            errors += _item_errors(setting, key, item, item_error)
    return tuple(good), errors


def _item_errors(setting: Setting, key: str, item: object, error: Exception) -> list[ConfigError]:
    if not setting.item_example or not isinstance(item, dict):
        return [_expected(setting, key, item)]
    known = setting.item_type.__struct_fields__
    if unknown := [_unknown(f"{key}.{name}", name, item[name], known) for name in item if name not in known]:
        return unknown
    problem = _first_line(str(error)).replace(" - at `$.", " at `").replace("`", "")
    return [_error(key, item, problem, f"write, for example, {setting.item_example}")]


def _expected(setting: Setting, key: str, given: object) -> ConfigError:
    default = "leave it out" if setting.default is None else f"leave it out for {toml(setting.default)}"
    return _error(key, given, f"expected {setting.expects}", f"correct it, or {default}")


def _resolve(config: Config) -> tuple[Config, list[ConfigError]]:
    """Report conflicts, and set the keys in them to their defaults until there are none."""
    errors = [
        _error(conflict.keys[0], value_of(config, conflict.keys[0]), conflict.problem, conflict.remedy)
        for conflict in conflicts(config)
    ]
    defaults = {setting.key: setting.default for setting in settings()}
    while keys := {key for conflict in conflicts(config) for key in conflict.keys}:
        for key in keys:
            section, _, name = key.partition(".")
            changed = msgspec.structs.replace(getattr(config, section), **{name: defaults[key]})
            config = msgspec.structs.replace(config, **{section: changed})
    return config, errors


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0][:200]
