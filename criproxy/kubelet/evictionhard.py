"""kubelet's evictionHard and evictionSoft for memory, as its running process was given them.

They stand in flags, in the file of --config and in those of --config-dir.

Only files are read: those of kubelet's own mount namespace, where that is allowed.

Source: kubelet.config.k8s.io/v1beta1, KubeletConfiguration (evictionHard, evictionSoft,
mergeDefaultEvictionSettings); apimachinery, resource.Quantity; kubelet, pkg/kubelet/eviction/helpers.go
(parseThresholdStatement).
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from criproxy.control.memory_pressure import EvictionHard
from criproxy.kubelet.configuration import TRUE, YamlValue, parsed
from criproxy.kubelet.flags import flag
from criproxy.kubelet.process import KubeletSearch, configuration
from criproxy.vocabulary.quantities import parse_quantity

SIGNAL: Final = "memory.available"

HARD: Final = "evictionHard"
SOFT: Final = "evictionSoft"
_FLAGS: Final = {HARD: "--eviction-hard", SOFT: "--eviction-soft"}


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


def of_file(data: bytes) -> Thresholds:
    """Raises ValueError where the file or `hard` is not to be read."""
    root = parsed(data)
    hard, merged = _texts(root, HARD), root.get("mergeDefaultEvictionSettings") in TRUE
    try:
        return Thresholds(hard, _texts(root, SOFT), merged)
    except ValueError as error:
        return Thresholds(hard, None, merged, str(error))


def _texts(root: Mapping[str, YamlValue], key: str) -> dict[str, str] | None:
    found = root.get(key)
    if found is None:
        return None
    if not isinstance(found, dict):
        raise ValueError(f"{key} is no mapping of texts")
    texts = {name: value for name, value in found.items() if isinstance(value, str)}
    if len(texts) < len(found):
        raise ValueError(f"{key} is no mapping of texts")
    return texts


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
            there = of_file((root / path.lstrip("/")).read_bytes())
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
