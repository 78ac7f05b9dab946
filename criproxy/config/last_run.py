"""The sockets that criproxy.service ran with last: they hold where a config with errors does not say which they are.

Kubelet is attached to them. With the defaults in their place, it would lose its runtime with criproxy's next start.
"""

import re
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from criproxy.config.load import Loaded, load
from criproxy.config.settings import Proxy, Socket

FACTS: Final = "bypass.env"
"""Where criproxy writes them down, in its state directory: see `criproxy.daemon.bypass`."""

_CONFIG: Final = Path("/etc/criproxy/config.toml")
_STATE: Final = Path("/var/lib/criproxy")
_LINE: Final = re.compile(r'^CRIPROXY_(LISTEN|RUNTIME)="(.*)"$', re.MULTILINE)
_ESCAPED: Final = re.compile(r"\\(.)")


def load_as_it_runs(path: Path) -> Loaded:
    """The config at `path`, for a command that asks the criproxy that runs by it. Never raises; blocks."""
    return as_it_runs(load(path), path)


def as_it_runs(loaded: Loaded, path: Path) -> Loaded:
    """What was loaded from `path`, with the sockets of the criproxy that runs by it. Blocks."""
    return with_last_sockets(loaded, _STATE) if path == _CONFIG else loaded


def with_last_sockets(loaded: Loaded, state: Path) -> Loaded:
    """With errors, `proxy.listen` and `proxy.runtime` are those of the last run, unless they are given, rightly.

    `state` is criproxy's state directory. Without a file of the last run's in it, nothing changes. Blocks.
    """
    unsure = [name for name in ("listen", "runtime") if f"proxy.{name}" not in loaded.sure]
    if not loaded.errors or not unsure:
        return loaded
    try:
        text = (state / FACTS).read_text(encoding="utf-8")
        found = {key.lower(): _ESCAPED.sub(r"\1", value) for key, value in _LINE.findall(text)}
        sockets = {name: msgspec.convert(found[name], Socket) for name in unsure if name in found}
    except (OSError, ValueError):  # a ValidationError, too
        return loaded
    proxy: Proxy = replace(loaded.config.proxy, **sockets)
    return replace(loaded, config=replace(loaded.config, proxy=proxy))
