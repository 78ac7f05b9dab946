"""The bypass as criproxy sees it: it writes down what the switch must know, and reports what the switch did.

The switch is packaging/criproxy-bypass.sh, since it must work when this does not run: when criproxy is down for longer
than a restart takes, the symlink that kubelet dials points at a byte forwarder to the runtime.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from criproxy.concurrency import statefile
from criproxy.config.last_run import FACTS
from criproxy.model import UNLIMITED
from criproxy.model.modes import Mode
from criproxy.model.shown import Gauge, Shows
from criproxy.pods.words import moment

DIRECTORY: Final = Path("/run/criproxy")
"""Where the unit's RuntimeDirectory= is. The forwarder's socket lies there, wherever criproxy itself listens."""

SOCKET: Final = DIRECTORY / "bypass.sock"
_USES: Final = "bypass.uses"
_ESCAPED: Final = str.maketrans({c: f"\\{c}" for c in '"\\`$'})


class BypassStatus(Struct, frozen=True):
    """`after_s`: how long criproxy is away before it opens; None: never. Times are wall clock, in s.

    `open_since_s`: None: it is shut. `uses` counts those since the machine's start. `last_s`: when the last
    one ended, or began while that is not known.
    """

    after_s: float | None
    open_since_s: float | None
    uses: int
    last_s: float | None


class Bypass(Shows, Struct):
    """The way past a criproxy that listens at `listen`, to `runtime`: it opens when that is away for `after_s`.

    None: it never opens. `directories`: where the switch reads; the last one's word counts. None: nobody would open it.
    """

    GAUGES = (
        Gauge(
            "bypass_after_seconds",
            "How long criproxy is away before the bypass opens; +Inf: never, NaN: there is none",
            lambda now: None if now is None else UNLIMITED if now.after_s is None else now.after_s,
        ),
        Gauge(
            "bypass_open",
            "Whether kubelet's calls pass by criproxy; NaN: there is none",
            lambda now: None if now is None else now.open_since_s is not None,
        ),
        Gauge(
            "bypass_uses",
            "Times that the bypass has opened since the machine's start",
            lambda now: None if now is None else now.uses,
        ),
        Gauge(
            "bypass_last_open_timestamp_seconds",
            "Until when the bypass was open last, since when while it is; NaN: not since the machine's start",
            lambda now: None if now is None else now.last_s,
        ),
    )

    directories: tuple[Path, ...]
    listen: Path
    runtime: Path
    after_s: float | None

    @property
    def socket(self) -> Path | None:
        """The forwarder's socket; None: there is no bypass."""
        return self.directories[-1] / SOCKET.name if self.directories else None

    def configure(self, after_s: float | None) -> None:
        """In force for the status at once, and for the switch with the next `tell`."""
        self.after_s = after_s

    def tell(self) -> str:
        """Write down what the switch must know. What failed, in words: there, it goes by what it knew. Blocks."""
        after = "never" if self.after_s is None else f"{self.after_s:g}"
        facts = {"LISTEN": str(self.listen), "RUNTIME": str(self.runtime), "BYPASS_AFTER_S": after}
        text = "".join(f'CRIPROXY_{name}="{value.translate(_ESCAPED)}"\n' for name, value in facts.items())
        failures = []
        for directory in self.directories:
            try:
                _write(directory / FACTS, text)
            except OSError as error:
                failures.append(f"{directory / FACTS}: {error.strerror}: make room there, or let criproxy write")
        return "; ".join(failures)

    def status(self) -> BypassStatus | None:
        """How it is; None: there is no bypass."""
        if self.socket is None:
            return None
        uses, last_s = _uses(self.socket.with_name(_USES))
        return BypassStatus(self.after_s, open_since_s(self.listen, self.socket), uses, last_s)

    def modes(self) -> Mapping[Mode, str]:
        if (now := self.status()) is None or now.open_since_s is None:
            return {}
        return {Mode.BYPASS: "kubelet's calls pass by criproxy: the bypass is open"}

    def now(self) -> BypassStatus | None:
        return self.status()

    def section(self) -> Mapping[str, Any]:
        return {"bypass": self.status()}

    def rows(self) -> Iterator[tuple[str, ...]]:
        if (now := self.status()) is None:
            return
        after = "never opens" if now.after_s is None else f"opens after {now.after_s:g} s without criproxy"
        if now.open_since_s is not None:
            after = f"open since {moment(now.open_since_s)}"
        used = f"; opened {now.uses} times, open last at {moment(now.last_s)}" if now.last_s is not None else ""
        yield "bypass", after + used

    def while_away(self) -> str | None:
        """Where calls end now that no criproxy answers, in words; None: nothing is known of a bypass."""
        if (status := self.status()) is None or not self.directories[-1].is_dir():
            return None
        if status.open_since_s is not None:
            reached = f"calls to {self.listen} reach {self.runtime}"
            return f"the bypass is open: {reached}, and pods that start now are not bounded"
        if self.after_s is None:
            return f"calls to {self.listen} fail until criproxy is back: the bypass is off (proxy.bypass_after_s)"
        return f"calls to {self.listen} fail: the bypass opens {self.after_s:g} s after criproxy's end"


def directories_of_service(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Where the switch of the service that this process is reads; none unless systemd gave us a directory of ours.

    Source: systemd.exec(5), RUNTIME_DIRECTORY and STATE_DIRECTORY.
    """
    runtime = environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    state = environ.get("STATE_DIRECTORY", "").split(":")[0]
    return tuple(Path(d) for d in (state, runtime) if d) if runtime else ()


def open_since_s(listen: Path, socket: Path = SOCKET) -> float | None:
    """Since when `listen` leads into the bypass, by the wall clock; None: it does not."""
    with contextlib.suppress(OSError):
        if os.readlink(listen) == str(socket):
            return listen.lstat().st_mtime
    return None


def _write(file: Path, text: str) -> None:
    """Replace the file, unless it says so already: a full disk must not cost what is there."""
    with contextlib.suppress(OSError):
        if file.read_text(encoding="utf-8") == text:
            return
    new = file.with_suffix(".new")
    try:
        with open(new, "w", encoding="utf-8", opener=statefile.private) as opened:
            opened.write(text)
        new.rename(file)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def _uses(file: Path) -> tuple[int, float | None]:
    try:
        return int(file.read_text(encoding="utf-8")), file.stat().st_mtime
    except (OSError, ValueError):
        return 0, None
