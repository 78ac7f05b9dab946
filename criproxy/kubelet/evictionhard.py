"""kubelet's evictionHard for memory, as its running process was given it: by a flag, its --config, its --config-dir.

Only files are read, without a YAML parser, as the daemon has none: what is not certain is an error. The files
are those of kubelet's own mount namespace, where that is allowed.

Source: kubelet.config.k8s.io/v1beta1, KubeletConfiguration (evictionHard, mergeDefaultEvictionSettings);
apimachinery, resource.Quantity; kubelet, pkg/kubelet/eviction/helpers.go (parseThresholdStatement).
"""

import itertools
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from criproxy.control.memory_pressure import EvictionHard
from criproxy.kubelet.flags import ENDPOINT_FLAG, flag, socket_path
from criproxy.kubelet.process import configuration, words_of
from criproxy.model.quantity import parse_quantity

SIGNAL: Final = "memory.available"

_KEY: Final = re.compile(r"""["']?evictionHard["']?\s*:(.*)""")
_MERGED: Final = re.compile(r"""^["']?mergeDefaultEvictionSettings["']?\s*:\s*true\b""", re.MULTILINE)
_ENTRY: Final = re.compile(r"""["']?([\w.]+)["']?\s*:\s*["']?([^\s"',#{}&*|>]+)["']?""")
_COMMENT: Final = re.compile(r"(?:^|[ \t])#.*$", re.MULTILINE)
_KUBELET: Final = b"kubelet"


def read(listen: str, root: Path = Path("/")) -> EvictionHard:
    """The threshold of the kubelet that uses the socket `listen`, else of any here. Never raises."""
    try:
        found = _kubelet(listen, root)
        if found is None:
            return EvictionHard(problem="no kubelet runs here by that name")
        process, words = found
        return _threshold(words, _root_of(process) or root)
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


def of_file(text: str) -> tuple[dict[str, str] | None, bool]:
    """evictionHard of a KubeletConfiguration (None: not set), and whether defaults are merged in. Raises ValueError."""
    if text.lstrip().startswith("{"):
        return _of_json(text)
    merged = bool(_MERGED.search(text))
    block = _COMMENT.sub("", _block(text)).strip()
    if block in ("", "null", "~"):
        return None, merged
    entries = dict(_ENTRY.findall(block))
    left = re.sub(r"[\s{},]", "", _ENTRY.sub("", block))
    if left:
        raise ValueError(f"evictionHard is written in a way that criproxy does not read: {block[:60]!r}")
    return entries, merged


def _of_json(text: str) -> tuple[dict[str, str] | None, bool]:
    root = json.loads(text)
    hard = root.get("evictionHard")
    if hard is not None and not (isinstance(hard, dict) and all(isinstance(one, str) for one in hard.values())):
        raise ValueError("evictionHard is no mapping of texts")
    return hard, root.get("mergeDefaultEvictionSettings") is True


def _block(text: str) -> str:
    """What stands behind the key at the top level of a YAML file, and in the lines below it; "" when there is none."""
    lines = iter(text.splitlines())
    for line in lines:
        if match := _KEY.match(line):
            below = itertools.takewhile(lambda one: not one.strip() or one[0] in " \t#}", lines)
            return "\n".join([match[1], *below])
    return ""


def _root_of(process: Path) -> Path | None:
    """The files as the process sees them; None when that is not allowed."""
    own = process / "root"
    return own if os.access(own / "proc", os.R_OK) or os.access(own / "etc", os.R_OK) else None


def _threshold(words: Sequence[str], root: Path) -> EvictionHard:
    """A flag wins over all files; of these, a later one adds to those before."""
    if (given := flag(words, "--eviction-hard")) is not None:
        pairs = (one.partition("<") for one in given.split(",") if one)
        return _memory({key.strip(): value.strip() for key, _, value in pairs}, "--eviction-hard", merged=False)
    hard: dict[str, str] | None = None
    merged, source = False, ""
    for path in configuration(words, root):
        set_there, merge = of_file((root / path.lstrip("/")).read_text(errors="replace"))
        merged |= merge
        if set_there is not None:
            hard = {**(hard or {}), **set_there}
            source = f"evictionHard in {path}"
    return EvictionHard() if hard is None else _memory(hard, source, merged=merged)


def _memory(hard: Mapping[str, str], source: str, *, merged: bool) -> EvictionHard:
    if SIGNAL in hard:
        return threshold(hard[SIGNAL], source)
    # Who sets one threshold has unset kubelet's defaults of all others.
    return EvictionHard() if merged else EvictionHard(0, 0.0, f"{source}, without {SIGNAL}")


def _kubelet(listen: str, root: Path) -> tuple[Path, list[str]] | None:
    """Pods may run what they call so: only root's own processes outside of all PID namespaces are the node's.

    One of another name must use us.
    """
    found = None
    for process in (root / "proc").glob("[0-9]*"):
        try:
            name = (process / "comm").read_bytes().strip()
            if not name.startswith(_KUBELET) or not _is_the_nodes(process):
                continue
            words = words_of(process)
        except (FileNotFoundError, ProcessLookupError):
            continue
        given = flag(words, ENDPOINT_FLAG)
        if socket_path(given or "") == listen:
            return process, words
        if name == _KUBELET:
            found = found or (process, words)
    return found


def _is_the_nodes(process: Path) -> bool:
    """By what everybody may read; its namespace's link needs a right to trace it. Source: proc_pid_status(5)."""
    fields = dict(line.partition(":")[::2] for line in (process / "status").read_text().splitlines())
    return len(fields.get("NSpid", "1").split()) == 1 and fields.get("Uid", "0").split()[0] == "0"
