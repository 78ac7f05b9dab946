"""Reports to systemd how the daemon is: sd_notify, by hand, one datagram per message. Source: sd_notify(3)."""

import socket
from collections.abc import Mapping
from typing import Final

from criproxy.concurrency.clock import Clock


class Notifier:
    """Messages to the service manager named by `address` (NOTIFY_SOCKET); None: there is none, and nothing is sent.

    No method raises or blocks: each returns whether the message was taken.
    """

    def __init__(self, address: str | None, clock: Clock) -> None:
        self._address: Final = "\0" + address[1:] if address and address.startswith("@") else address or None
        self._clock: Final = clock

    def ready(self, status: str) -> bool:
        return self._send("READY=1", _status(status))

    def reloading(self) -> bool:
        """To be followed by `ready`. Source: systemd.service(5), Type=notify-reload."""
        return self._send("RELOADING=1", f"MONOTONIC_USEC={int(self._clock.monotonic_s() * 1e6)}")

    def stopping(self) -> bool:
        return self._send("STOPPING=1")

    def main_pid(self, pid: int) -> bool:
        """From now on the service is process `pid`, whose messages count and ours no more."""
        return self._send(f"MAINPID={pid}")

    def watchdog(self) -> bool:
        return self._send("WATCHDOG=1")

    def status(self, text: str) -> bool:
        """One line for `systemctl status`."""
        return self._send(_status(text))

    def _send(self, *assignments: str) -> bool:
        if self._address is None:
            return False
        message = "\n".join(assignments).encode("utf-8", "backslashreplace")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(message, self._address)
        except OSError:
            return False
        return True


def notify_address(environ: Mapping[str, str]) -> str | None:
    """NOTIFY_SOCKET: a path, or @name for an abstract socket; None when it is unset or of another kind."""
    address = environ.get("NOTIFY_SOCKET", "")
    return address if address.startswith(("/", "@")) else None


def watchdog_interval_s(environ: Mapping[str, str], pid: int) -> float | None:
    """How often to send WATCHDOG=1: half of WATCHDOG_USEC. None when systemd does not watch process `pid`."""
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    usec = environ.get("WATCHDOG_USEC", "")
    return int(usec) / 1_000_000 / 2 if usec.isascii() and usec.isdigit() and int(usec) > 0 else None


def _status(text: str) -> str:
    # A line break would begin another assignment.
    return "STATUS=" + " ".join(text.split())
