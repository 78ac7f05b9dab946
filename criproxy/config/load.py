"""Reads a config file and its drop-ins: every error at once, and whatever of them is sound beside the errors."""

import codecs
import os
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from criproxy.config.bounds import MAX_BYTES, MAX_DEPTH, MAX_DROPINS, MAX_ERRORS, MAX_FILE_BYTES, too_deep
from criproxy.config.schema import Setting, conflicts, settings, value_of
from criproxy.config.settings import Config
from criproxy.config.text import SHOWN, bare, toml

_MAX_CUTS: Final = 20
_NO_UTF8: Final = "\ufffd"
_FAILED_LINE: Final = re.compile(r"\(at line (\d+), column \d+\)$")
_HEADER: Final = re.compile(r"\s*\[\s*[\w-]+\s*\]\s*(#.*)?$", re.ASCII)
_STATEMENT: Final = re.compile(r"\s*(\[|[^\s#{=\[\]][^={]*=|#|$)")

_GONE: Final[Mapping[str, tuple[object, str]]] = {
    "proxy.blind": (False, 'remove it (for another engine: proxy.engine = "grpc"; past criproxy: `criproxy detach`)'),
    "guard.interval_ms": (50, "remove it (it is always 50)"),
    "interference.open_after_most_s": (600.0, "remove it (it is always 600, or open_after_s where that is more)"),
    "interference.evict_pause_s": (10.0, "remove it (it is always 10)"),
    "interference.evict_owner_s": (60.0, "remove it (it is always 60)"),
}
"""Keys that there were once. With the value that was the default, and asks for nothing, they do no harm: a package's
upgrade leaves a config that somebody has edited as it is, and it must not refuse it. For other values, the remedy.
"""


class ConfigError(Struct, frozen=True):
    """One thing wrong with `file`. `key` is `section.name` ("" for the whole file), `value` as it was given."""

    file: str
    key: str
    value: str
    problem: str
    remedy: str
    gives_way: str = ""
    """Where values don't go together: the origin of the override that is left out for it; "": none has a part."""

    def __str__(self) -> str:
        given = f"{self.key} = {self.value}" if self.key and self.value else self.key
        return ": ".join(part for part in (self.file, given, self.problem) if part) + f"; {self.remedy}"


class Override(Struct, frozen=True):
    """Settings that hold above those of the files, key by key. `origin` stands for the file's name in errors.

    `tables` is what a file with the same settings would be read as.
    """

    origin: str
    tables: Mapping[str, Any]


def switched_off(tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the tables of an override say of colocation that is off, and nothing else of them; {}: it is not off there.

    It holds also where the override is refused: an emergency may come amid an upgrade, with keys that this version does
    not know.
    """
    table = tables.get("colocation")
    if not isinstance(table, Mapping) or table.get("enabled") is not False:
        return {}
    return {"colocation": {"enabled": False} | ({"on_disable": "evict"} if table.get("on_disable") == "evict" else {})}


class Refused(Struct, frozen=True):
    """An override that is left out, and the errors that it adds."""

    override: Override
    errors: tuple[ConfigError, ...]


class Loaded(Struct, frozen=True):
    """What a config says. With `errors`, `config` is what could be salvaged: every bad key is at its default.

    A salvaged config tells where the sockets are; it is not what the operator wants of the box. `instead` is what holds
    while there are errors; None: whatever held before.
    """

    config: Config
    errors: tuple[ConfigError, ...]
    instead: Config | None = None
    sure: frozenset[str] = frozenset()
    """The keys that are given, rightly; none where a file that can't be read, or is no TOML, may say otherwise."""


def files_of(path: Path) -> tuple[Path, ...]:
    """The files of the config at `path`, later ones override: itself, then the drop-ins by name.

    The drop-ins are `*.toml` in the directory beside it, `config.d` for `config.toml`; hidden files are none. Of too
    many, `MAX_DROPINS` + 1 are returned. Raises OSError when there is such a directory, and it can't be listed.
    """
    directory = _dropins(path)
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        names = []
    found = (directory / name for name in names if name.endswith(".toml") and not name.startswith("."))
    return path, *islice(found, MAX_DROPINS + 1)


def _dropins(path: Path) -> Path:
    return path.parent / f"{path.stem}.d"


def _shown(path: Path) -> str:
    """As text that can be written anywhere: a name may be any bytes."""
    return str(path).encode(errors="backslashreplace").decode()


def load(path: Path, overrides: Sequence[Override] = ()) -> Loaded:
    """Read the config at `path`. Never raises for what is in its files, or for their absence: see `Loaded`.

    Overrides are checked as files are, and have only what needs no restart. Blocks on the disk, and takes up to a
    second for the longest config: not for the event loop.
    """
    return _together(path, *_sources(path), overrides)


_Sources = Sequence[tuple[str, bytes]]
"""Files by name, with their content."""


class OwnFiles:
    """The files of a node whose cluster sets something above them. Remembers them as they were when last in order.

    So the cluster's override holds, or ends, although an operator has just made a mistake in a file.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._in_order: _Sources | None = None
        self._errors: tuple[ConfigError, ...] = ()

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        """Of the files alone, while they were never in order since this was made; (): they were."""
        return self._errors if self._in_order is None else ()

    def load(self, overrides: Sequence[Override] = ()) -> Loaded:
        """Read the files. With errors in them, the overrides are set above what they were before (`Loaded.instead`).

        Each override that adds an error to those of the files is left out, but for a switch that is off: they may have
        changed since it was found right, and an operator's own file must not become a pass-through by that. The other
        overrides hold.

        Blocks as `load` does. To be called when the files are at rest: what is half written may be in order.
        """
        sources, unread = _sources(self.path)
        loaded, alone = self._above(sources, unread, overrides)
        self._errors = alone
        if not alone:
            self._in_order = sources
        if self._in_order is None or not loaded.errors:
            return loaded
        return replace(loaded, instead=self._above(self._in_order, (), overrides)[0].config)

    def refused(self, overrides: Sequence[Override]) -> tuple[Refused, ...]:
        """Those to leave out first, so that the others can hold above the files as they were when last in order.

        (): all of them can. Without these, others may not go together any more: ask again. Blocks for the parsing.
        """
        return _refused(overrides, _together(self.path, self._in_order or (), (), overrides).errors, ())

    def _above(
        self, sources: _Sources, unread: Sequence[ConfigError], overrides: Sequence[Override]
    ) -> tuple[Loaded, tuple[ConfigError, ...]]:
        """The config with all overrides above it that add no error, and the errors without them.

        Of one that adds some, what it says of a switch that is off stays (`switched_off`).
        """
        alone = _together(self.path, sources, unread)
        left = list(overrides)
        while left:
            loaded = _together(self.path, sources, unread, left)
            refused = _refused(left, loaded.errors, alone.errors)
            if not refused:
                return loaded, alone.errors
            for one in refused:
                at, switch = left.index(one.override), switched_off(one.override.tables)
                is_more = switch and switch != one.override.tables
                left[at : at + 1] = [replace(one.override, tables=switch)] if is_more else []
        return alone, alone.errors


def _refused(
    overrides: Sequence[Override], errors: Sequence[ConfigError], own: Sequence[ConfigError]
) -> tuple[Refused, ...]:
    """The overrides that have errors by themselves; if none has, the one that gives way first. `own` are the files'.

    So a default that stands in for a bad value is nobody's conflict.
    """
    added = [error for error in errors if error not in own]
    by_itself: dict[str, list[ConfigError]] = {}
    for error in added:
        if not error.gives_way:
            by_itself.setdefault(error.file, []).append(error)
    if bad := tuple(Refused(one, tuple(by_itself[one.origin])) for one in overrides if one.origin in by_itself):
        return bad
    if not added:
        return ()
    first = next((one for one in overrides if one.origin == added[0].gives_way), overrides[0])
    return (Refused(first, tuple(error for error in added if error.gives_way == first.origin) or tuple(added)),)


def _together(
    path: Path, sources: _Sources, unread: Sequence[ConfigError], overrides: Sequence[Override] = ()
) -> Loaded:
    loaded = _combine(sources, _shown(path), overrides)
    errors = (*unread, *loaded.errors)
    wrong = {error.key for error in errors}
    return replace(loaded, errors=_few(errors, _shown(path)), sure=frozenset() if "" in wrong else loaded.sure - wrong)


def _sources(path: Path) -> tuple[_Sources, Sequence[ConfigError]]:
    """What is in the files, and what is wrong with those that can't be read."""
    sources: list[tuple[str, bytes]] = []
    errors: list[ConfigError] = []
    try:
        files = files_of(path)
    except OSError as error:
        files = (path,)
        errors.append(_of_file(_dropins(path), error.strerror or str(error), "make it a directory of config files"))
    if len(files) > MAX_DROPINS + 1:
        remedy = "join them, or move those that are not criproxy's elsewhere"
        errors.append(_of_file(_dropins(path), f"has more than {MAX_DROPINS} drop-ins", remedy))
    room_bytes = MAX_BYTES
    for file in files[: MAX_DROPINS + 1]:
        data = _read(file)
        if isinstance(data, ConfigError):
            errors.append(data)
        elif len(data) <= MAX_FILE_BYTES and len(data) > room_bytes:
            problem = f"with the files before it, the config has more than {MAX_BYTES} bytes"
            errors.append(_of_file(file, problem, "shorten it"))
        else:
            sources.append((_shown(file), data))
            room_bytes -= min(len(data), room_bytes)
    return sources, errors


def parse(data: bytes, file: str) -> Loaded:
    """Like `load`, for the bytes of one config file; `file` is its name in errors."""
    loaded = _combine([(file, data)], file)
    return replace(loaded, errors=_few(loaded.errors, file))


def _few(errors: Sequence[ConfigError], main: str) -> tuple[ConfigError, ...]:
    """The first `MAX_ERRORS`, and how many there are besides."""
    if len(errors) <= MAX_ERRORS:
        return tuple(errors)
    more = ConfigError(main, "", "", f"{len(errors) - MAX_ERRORS} more errors are not shown", "correct these first")
    return (*errors[:MAX_ERRORS], more)


def _read(file: Path) -> bytes | ConfigError:
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a FIFO would wait for its writer, a device may do anything
            return _of_file(file, "is no regular file", "make it one, or remove it")
        with file.open("rb") as opened:
            return opened.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return _of_file(file, "there is no such file", "copy config.example.toml there (without it, colocation is off)")
    except OSError as error:
        return _of_file(file, error.strerror or str(error), "make it a file that criproxy may read")


def _of_file(file: Path, problem: str, remedy: str) -> ConfigError:
    return ConfigError(_shown(file), "", "", problem, remedy)


def _combine(sources: Sequence[tuple[str, bytes]], main: str, overrides: Sequence[Override] = ()) -> Loaded:
    """The config of the files (name, bytes), key by key the last that has it. `main` is blamed for what is in none."""
    errors: list[ConfigError] = []
    documents: list[tuple[str, Mapping[str, Any]]] = []
    for file, data in sources:
        document, syntax_error = _salvage(data)
        errors += [replace(syntax_error, file=file)] if syntax_error else []
        documents.append((file, document))
    for override in overrides:
        allowed, refused = _of_the_node(override)
        errors += refused
        documents.append((override.origin, allowed))
    tables: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    for file, document in documents:
        errors += [replace(error, file=file) for error in _unknown_keys(document)]
        for section, table in document.items():
            if isinstance(table, dict):
                tables.setdefault(section, {}).update(table)
                origins.update((f"{section}.{name}", file) for name in table)
    config, value_errors = _convert(tables)
    errors += [replace(error, file=origins.get(error.key.partition("[")[0], main)) for error in value_errors]
    config, conflict_errors = _resolve(config, origins, main, [override.origin for override in overrides])
    return Loaded(config, (*errors, *conflict_errors), sure=frozenset(origins))


def _of_the_node(override: Override) -> tuple[Mapping[str, Any], list[ConfigError]]:
    """The tables without what only the node's own files may say: its sockets, its addresses, where its state lies."""
    allowed: dict[str, Any] = dict(override.tables)
    errors: list[ConfigError] = []
    for setting in settings():
        table = allowed.get(setting.section)
        if setting.needs_restart and isinstance(table, dict) and setting.name in table:
            problem, remedy = "only this node's own file may set it", f"remove it from {override.origin}"
            errors.append(ConfigError(override.origin, setting.key, toml(table[setting.name]), problem, remedy))
            allowed[setting.section] = {name: value for name, value in table.items() if name != setting.name}
    return allowed, errors


def _error(key: str, value: object, problem: str, remedy: str) -> ConfigError:
    return ConfigError("", key, toml(value), problem, remedy)


# --- text to tables --------------------------------------------------------------------------------------------------


def _salvage(data: bytes) -> tuple[Mapping[str, Any], ConfigError | None]:
    """The tables of the file; where it is no TOML, of each section what is sound up to its first error, and the error.

    What follows the section with the error counts, too: it may say where criproxy's socket is, and what was published.
    """
    if len(data) > MAX_FILE_BYTES:
        return {}, _error("", None, f"has more than {MAX_FILE_BYTES} bytes", "this is no config file of criproxy's")
    data = data.removeprefix(codecs.BOM_UTF8)  # editors of Windows begin a file with it
    text = data.decode(errors="replace")
    sound_before: int | None = None
    if line := too_deep(text):
        failure = f"nests more than {MAX_DEPTH} deep (at line {line})"
        sound_before = line - 1
    else:
        try:
            return tomllib.loads(data.decode()), None
        except UnicodeDecodeError as error:
            failure = f"is not UTF-8 (at line {_failed_line('', data[: error.start].decode())})"
        except (ValueError, RecursionError) as error:
            failure = _first_line(str(error))
    problem = _error("", None, failure, "correct it; until then only what is sound beside it counts")
    lines = text.split("\n")[:sound_before]
    return _sound_sections(["" if _NO_UTF8 in line else line for line in lines]), problem


def _sound_sections(lines: Sequence[str]) -> Mapping[str, Any]:
    """Of each section, the keys before the first one that is no TOML."""
    starts = [0, *(at for at, line in enumerate(lines) if _HEADER.match(line)), len(lines)]
    found: dict[str, Any] = {}
    for start, end in pairwise(starts):
        for name, table in _longest_sound([*lines[start:end]]).items():
            before = found.get(name)
            found[name] = {**before, **table} if isinstance(before, dict) and isinstance(table, dict) else table
    return found


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
    errors: list[ConfigError] = []
    known: dict[str, list[str]] = {}
    for setting in settings():
        known.setdefault(setting.section, []).append(setting.name)
    for section, table in document.items():
        if section not in known:
            if elsewhere := [f"{one}.{section}" for one, names in known.items() if section in names]:
                *others, last = elsewhere
                which = f"{', '.join(others)} or {last}" if others else last
                errors.append(_error(section, table, "there is no such key", f"did you mean {which}?"))
            else:
                errors.append(_unknown(section, section, table, [*known], guess=len(errors) < MAX_ERRORS))
        elif not isinstance(table, dict):
            remedy = f"write [{section}] and its keys below it"
            errors.append(_error(section, table, "is a section, not a key", remedy))
        else:
            for name, value in table.items():
                gone = _GONE.get(f"{section}.{name}")
                if name not in known[section] and (gone is None or value != gone[0]):
                    guess = len(errors) < MAX_ERRORS
                    errors.append(_unknown(f"{section}.{name}", name, value, known[section], guess=guess))
    return errors


def _unknown(key: str, name: str, value: object, known: Sequence[str], *, guess: bool) -> ConfigError:
    """`guess` the right word: only for errors that are shown, as it takes time."""
    import difflib  # a config without mistakes does without

    # Bounded: difflib takes quadratic time.
    near = difflib.get_close_matches(name[:SHOWN], known, n=1, cutoff=0.5) if guess else ()
    _, gone = _GONE.get(key, (None, ""))
    remedy = gone or (f"did you mean {near[0]}?" if near else f"remove it (known: {', '.join(known)})")
    return _error(bare(key), value, "there is no such key", remedy)


def _convert(tables: Mapping[str, Mapping[str, Any]]) -> tuple[Config, list[ConfigError]]:
    """Setting by setting, since msgspec stops at a table's first error."""
    errors: list[ConfigError] = []
    found: dict[str, dict[str, Any]] = {}
    for setting in settings():
        table = tables.get(setting.section, {})
        if setting.name not in table:
            continue
        given = table[setting.name]
        try:
            value = msgspec.convert(given, setting.type)
        except (msgspec.ValidationError, RecursionError):
            value, problems = _convert_bad(setting, given)
            errors += problems
        found.setdefault(setting.section, {})[setting.name] = value
    sections = {s.name: s.type(**found.get(s.name, {})) for s in msgspec.structs.fields(Config)}
    return Config(**sections), errors


def _convert_bad(setting: Setting, given: object) -> tuple[Any, list[ConfigError]]:
    """The default, or of a list its good items, with what is wrong."""
    if setting.item_type is None or not isinstance(given, list):
        return setting.default, [_expected(setting, setting.key, given)]
    good: list[Any] = []
    errors: list[ConfigError] = []
    for index, item in enumerate(given):
        key = f"{setting.key}[{index}]"
        try:
            good.append(msgspec.convert(item, setting.item_type))
        except (msgspec.ValidationError, RecursionError) as item_error:
            errors += _item_errors(setting, key, item, item_error, guess=len(errors) < MAX_ERRORS)
    # Without an error of an item, there are too many.
    return tuple(good), errors or [_expected(setting, setting.key, given)]


def _item_errors(setting: Setting, key: str, item: object, error: Exception, *, guess: bool) -> list[ConfigError]:
    if not setting.item_example or not isinstance(item, dict):
        return [_expected(setting, key, item)]
    known = setting.item_type.__struct_fields__
    if strange := [name for name in item if name not in known]:
        guesses = [guess and at < MAX_ERRORS for at in range(len(strange))]
        return [_unknown(f"{key}.{n}", n, item[n], known, guess=one) for n, one in zip(strange, guesses, strict=True)]
    problem = _first_line(str(error)).replace(" - at `$.", " at `").replace("`", "")
    return [_error(key, item, problem, f"write, for example, {setting.item_example}")]


def _expected(setting: Setting, key: str, given: object) -> ConfigError:
    default = "leave it out" if setting.default is None else f"leave it out for {toml(setting.default)}"
    return _error(key, given, f"expected {setting.expects}", f"correct it, or {default}")


def _resolve(
    config: Config, origins: Mapping[str, str], main: str, overrides: Sequence[str]
) -> tuple[Config, list[ConfigError]]:
    """Report conflicts, and set the keys in them to their defaults until there are none.

    Of the overrides that have a part in a conflict, the first gives way, as each wins over those before it.
    """
    errors = []
    for conflict in conflicts(config):
        key = conflict.keys[0]
        files = [origins[key] for key in conflict.keys if key in origins]
        gives_way = next((origin for origin in overrides if origin in files), "")
        file, value = files[0] if files else main, toml(value_of(config, key))
        errors.append(ConfigError(file, key, value, conflict.problem, conflict.remedy, gives_way))
    defaults = {setting.key: setting.default for setting in settings()}
    while keys := {key for conflict in conflicts(config) for key in conflict.keys}:
        for key in keys:
            section, _, name = key.partition(".")
            changed = msgspec.structs.replace(getattr(config, section), **{name: defaults[key]})
            config = msgspec.structs.replace(config, **{section: changed})
    return config, errors


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0][:200]
