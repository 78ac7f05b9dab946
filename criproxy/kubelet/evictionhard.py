"""kubelet's evictionHard and evictionSoft for memory, as its running process was given them.

They stand in flags, in the file of --config and in those of --config-dir.

Only files are read, without a YAML parser, as the daemon has none: what is not certain is an error. The files
are those of kubelet's own mount namespace, where that is allowed.

Source: kubelet.config.k8s.io/v1beta1, KubeletConfiguration (evictionHard, evictionSoft,
mergeDefaultEvictionSettings); apimachinery, resource.Quantity; kubelet, pkg/kubelet/eviction/helpers.go
(parseThresholdStatement).
"""

import itertools
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from criproxy.control.memory_pressure import EvictionHard
from criproxy.kubelet.flags import flag
from criproxy.kubelet.process import KubeletSearch, configuration
from criproxy.vocabulary.quantities import parse_quantity

SIGNAL: Final = "memory.available"

HARD: Final = "evictionHard"
SOFT: Final = "evictionSoft"
_FLAGS: Final = {HARD: "--eviction-hard", SOFT: "--eviction-soft"}

_MERGED: Final = re.compile(r"""^["']?mergeDefaultEvictionSettings["']?\s*:\s*true\b""", re.MULTILINE)
_ENTRY: Final = re.compile(r"""["']?(?<![\w.])([\w.]++)["']?\s*:\s*["']?([^\s"',#{}&*|>]+)["']?""")
_BEFORE: Final = re.compile(r"\A\ufeff?(?:[ \t]*(?:(?:---[ \t]*)?(?:#.*)?)(?:\r?\n|\Z))*+[ \t]*+(?=\{)|\A\ufeff")
"""What may stand before a file's content, where that is JSON: comments, the document's begin, and a byte order mark."""

_KEY: Final = re.compile(r"""["']?(\w+)["']?[ \t]*:(?:\s|$)|(---)[ \t]*(?:#|$)""", re.ASCII)
_BELOW: Final = re.compile(r"[ \t#}\]]|- |-?$|\.\.\.")
"""A line that is no key: indented, empty, a comment, the end of what began above, or an item of a list."""

_COMMENT: Final = re.compile(r"(?:^|[ \t])#.*$", re.MULTILINE)


def read(search: KubeletSearch) -> EvictionHard:
    """The threshold of the kubelet that is found. Never raises."""
    try:
        kubelet = search.find()
        if kubelet is None:
            return EvictionHard(problem="no kubelet runs here by that name")
        return _threshold(kubelet.words, _root_of(kubelet.directory) or search.root)
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        return EvictionHard(problem=str(error))


def threshold(quantity: str, source: str) -> EvictionHard:
    """From a quantity ("100Mi") or a percentage ("5%"). Raises ValueError."""
    if quantity.endswith("%"):
        ratio = float(quantity[:-1]) / 100
        if not 0.0 <= ratio <= 1.0:
            raise ValueError(f"{SIGNAL} is {quantity!r} in {source}: not a percentage from 0% to 100%")
        return EvictionHard(0, ratio if ratio < 1.0 else 0.0, source)  # kubelet takes 100% for none, too
    try:
        size = parse_quantity(quantity)
    except ValueError as error:
        raise ValueError(f"{SIGNAL} is {quantity!r} in {source}: neither a quantity nor a percentage") from error
    if size == math.inf:
        raise ValueError(f"{SIGNAL} is {quantity!r} in {source}: more than any node has")
    return EvictionHard(math.ceil(size), 0.0, source)


class Thresholds(Struct, frozen=True):
    """What a KubeletConfiguration says, by signal; None: nothing. `merged`: defaults are merged into `hard`.

    `problem`: why `soft` could not be read; "": it was.
    """

    hard: dict[str, str] | None = None
    soft: dict[str, str] | None = None
    merged: bool = False
    problem: str = ""


def of_file(text: str) -> Thresholds:
    """Raises ValueError where `hard` is not to be read, or may be there in a form that is not read here."""
    text = _BEFORE.sub("", text)
    if text.startswith("{"):
        root = json.loads(text)
        of, merged = partial(_of_json, root), root.get("mergeDefaultEvictionSettings") is True
    else:
        _check_keys(text)
        of, merged = partial(_of_yaml, text), bool(_MERGED.search(text))
    hard = of(HARD)
    try:
        return Thresholds(hard, of(SOFT), merged)
    except ValueError as error:
        return Thresholds(hard, None, merged, str(error))


def _check_keys(text: str) -> None:
    """Each line at the edge is a key, once each, or belongs to the one before, so that a key not found is not there.

    Raises ValueError.
    """
    keys = set[str]()
    for line in text.splitlines():
        if _BELOW.match(line) and (keys or not line.strip() or line[0] == "#"):
            continue
        key = _KEY.match(line)
        if key is not None and key[2] and not keys:
            continue
        if key is None or key[2] or key[1] in keys:
            raise ValueError(f"it is written in a way that criproxy does not read: {line[:60]!r}")
        keys.add(key[1])


def _of_yaml(text: str, key: str) -> dict[str, str] | None:
    block = _COMMENT.sub("", _block(text, key)).strip()
    if block in ("", "null", "~"):
        return None
    left = re.sub(r"[\s{},]", "", _ENTRY.sub("", block))
    if left:
        raise ValueError(f"{key} is written in a way that criproxy does not read: {block[:60]!r}")
    return dict(_ENTRY.findall(block))


def _of_json(root: dict[str, object], key: str) -> dict[str, str] | None:
    found = root.get(key)
    if found is None:
        return None
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise ValueError(f"{key} is no mapping of texts")
    return found


def _block(text: str, key: str) -> str:
    """What stands behind the key at the top level of a YAML file, and in the lines below it; "" when there is none."""
    lines, wanted = iter(text.splitlines()), re.compile(rf"""["']?{key}["']?\s*:(.*)""")
    for line in lines:
        if match := wanted.match(line):
            below = itertools.takewhile(lambda one: not one.strip() or one[0] in " \t#}", lines)
            return "\n".join([match[1], *below])
    return ""


def _root_of(process: Path) -> Path | None:
    """The files as the process sees them; None when that is not allowed."""
    own = process / "root"
    return own if os.access(own / "proc", os.R_OK) or os.access(own / "etc", os.R_OK) else None


def _threshold(words: Sequence[str], root: Path) -> EvictionHard:
    """A flag wins over all files; of these, a later one adds to those before."""
    found: dict[str, dict[str, str] | None] = {HARD: None, SOFT: None}
    sources: dict[str, str] = {}
    merged, problem = False, ""
    for path in configuration(words, root):
        try:
            there = of_file((root / path.lstrip("/")).read_text(errors="replace"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from error
        merged |= there.merged
        problem = problem or (there.problem and f"{path}: {there.problem}")
        for key, entries in ((HARD, there.hard), (SOFT, there.soft)):
            if entries is not None:
                found[key] = {**(found[key] or {}), **entries}
                sources[key] = f"{key} in {path}"
    for key, name in _FLAGS.items():
        if (given := flag(words, name)) is not None:
            pairs = (one.partition("<") for one in given.split(",") if one)
            found[key] = {signal.strip(): value.strip() for signal, _, value in pairs}
            sources[key] = name
            if key == HARD:
                merged = False
            else:
                problem = ""
    hard, quantity = _hard(found[HARD], sources.get(HARD, ""), merged=merged), (found[SOFT] or {}).get(SIGNAL)
    if quantity is None:
        return structs.replace(hard, problem=problem)
    try:
        soft = threshold(quantity, sources[SOFT])
    except ValueError as error:
        return structs.replace(hard, problem=str(error))
    hard = structs.replace(hard, problem=problem)
    source = f"{hard.source}; {soft.source}"
    return structs.replace(hard, source=source, soft_bytes=soft.size_bytes, soft_ratio=soft.ratio)


def _hard(hard: Mapping[str, str] | None, source: str, *, merged: bool) -> EvictionHard:
    if hard is None:
        return EvictionHard()
    if SIGNAL in hard:
        return threshold(hard[SIGNAL], source)
    # Who sets one threshold has unset kubelet's defaults of all others.
    return EvictionHard() if merged else EvictionHard(0, 0.0, f"{source}, without {SIGNAL}")
