"""The bypass as criproxy sees it: it writes down what the switch must know, and reports what the switch did.

The switch is packaging/criproxy-bypass.sh, since it must work when this does not run: when criproxy is down for longer
than a restart takes, the symlink that kubelet dials points at a byte forwarder to the runtime.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct

from criproxy.fronts.socket import ListenSocket, SocketError
from criproxy.observe.status import BypassStatus

DIRECTORY: Final = Path("/run/criproxy")
"""Where the unit's RuntimeDirectory= is. The forwarder's socket lies there, wherever criproxy itself listens."""

SOCKET: Final = DIRECTORY / "bypass.sock"
_FACTS: Final = "bypass.env"
_USES: Final = "bypass.uses"
_ESCAPED: Final = str.maketrans({c: f"\\{c}" for c in '"\\`$'})


class BypassError(Exception):
    """What the switch must know could not be written; it goes by what it knew."""


class Bypass(Struct, frozen=True):
    """`directories`: where the switch reads; the last one's word counts. None: nobody would open a bypass."""

    directories: tuple[Path, ...]

    @property
    def socket(self) -> Path | None:
        """The forwarder's socket; None: there is no bypass."""
        return self.directories[-1] / SOCKET.name if self.directories else None

    def tell(self, listen: Path, runtime: Path, after_s: float | None) -> None:
        """Write down what the switch must know. Raises BypassError, after all directories were tried."""
        after = "never" if after_s is None else f"{after_s:g}"
        facts = {"LISTEN": str(listen), "RUNTIME": str(runtime), "BYPASS_AFTER_S": after}
        text = "".join(f'CRIPROXY_{name}="{value.translate(_ESCAPED)}"\n' for name, value in facts.items())
        failures = []
        for directory in self.directories:
            try:
                _write(directory / _FACTS, text)
            except OSError as error:
                failures.append(f"{directory / _FACTS}: {error.strerror}: make room there, or let criproxy write")
        if failures:
            raise BypassError("; ".join(failures))

    def status(self, listen: Path, after_s: float | None) -> BypassStatus | None:
        """How it is; None: there is no bypass."""
        if self.socket is None:
            return None
        uses, last_s = _uses(self.socket.with_name(_USES))
        return BypassStatus(after_s, open_since_s(listen, self.socket), uses, last_s)


class ServiceBypass:
    """The bypass as a part of the daemon that serves at `listen`: it opens when that is away for `after_s`.

    None: it never opens. `runtime` is the runtime's socket. Sockets that wait for a restart are not in force yet.
    """

    def __init__(
        self,
        bypass: Bypass,
        listen: ListenSocket,
        runtime: Path,
        after_s: float | None,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._bypass = bypass
        self._listen = listen
        self._runtime = runtime
        self._after_s = after_s
        self._log = log

    def configure(self, after_s: float | None) -> None:
        """In force for the status at once, and for the switch with the next `write`."""
        self._after_s = after_s

    def status(self) -> BypassStatus | None:
        """How it is; None: there is no bypass."""
        return self._bypass.status(self._listen.path, self._after_s)

    def write(self) -> None:
        """Tell the switch. Blocks on the disk."""
        try:
            self._bypass.tell(self._listen.path, self._runtime, self._after_s)
        except BypassError as error:
            self._log.warning("bypass_not_told", error=str(error))

    def leave(self) -> None:
        """The bypass may have opened at the moment of our return: then its switch had no more reason to shut it."""
        if not self._listen.is_bypassed:
            return
        try:
            self._listen.publish()
        except SocketError as error:
            self._log.warning("bypass_stays", error=str(error))
        else:
            self._log.info("bypass_left", socket=str(self._listen.path))


def of_service(environ: Mapping[str, str]) -> Bypass:
    """The bypass of the service that this process is: it is there where systemd gave us a runtime directory of ours.

    Source: systemd.exec(5), RUNTIME_DIRECTORY and STATE_DIRECTORY.
    """
    runtime = environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    state = environ.get("STATE_DIRECTORY", "").split(":")[0]
    return Bypass(tuple(Path(d) for d in (state, runtime) if d)) if runtime else Bypass(())


def open_since_s(listen: Path, socket: Path = SOCKET) -> float | None:
    """Since when `listen` leads into the bypass, by the wall clock; None: it does not."""
    with contextlib.suppress(OSError):
        if os.readlink(listen) == str(socket):
            return listen.lstat().st_mtime
    return None


def while_away(listen: Path, runtime: Path, after_s: float | None, bypass: Bypass) -> str | None:
    """Where calls to `listen` end now that no criproxy answers, in words; None: nothing is known of a bypass."""
    if (status := bypass.status(listen, after_s)) is None or not bypass.directories[-1].is_dir():
        return None
    if status.open_since_s is not None:
        return f"the bypass is open: calls to {listen} reach {runtime}, and pods that start now are not bounded"
    if after_s is None:
        return f"calls to {listen} fail until criproxy is back: the bypass is off (proxy.bypass_after_s)"
    return f"calls to {listen} fail: the bypass opens {after_s:g} s after criproxy's end"


def _write(file: Path, text: str) -> None:
    """Replace the file, unless it says so already: a full disk must not cost what is there."""
    with contextlib.suppress(OSError):
        if file.read_text(encoding="utf-8") == text:
            return
    new = file.with_suffix(".new")
    try:
        new.write_text(text, encoding="utf-8")
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
