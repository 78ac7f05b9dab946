"""Starts, changes and stops systemd units over D-Bus: a thin blocking client, for the box's threads.

The library is imported, and the connection made, with the first unit: a node without slices pays
nothing. Every call is idempotent, so one that a restart of systemd has cut off is simply made again.

Source: org.freedesktop.systemd1(5); systemd.resource-control(5).
"""

import contextlib
import itertools
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.kernel_files import Properties, PropertyValue

if TYPE_CHECKING:
    from jeepney import Message

CALL_S: Final = 2.0
"""Systemd answers in under 1 ms; while it reloads or re-executes itself, calls wait or are cut off."""

START_S: Final = 5.0
STOP_S: Final = 2.0
"""For so long a job of an empty slice is waited for."""

_POLL_S: Final = 0.005
_RETRY_S: Final = 0.05

_SYSTEMD: Final = "org.freedesktop.systemd1"
_MANAGER: Final = "/org/freedesktop/systemd1"
_PRIVATE: Final = "/run/systemd/private"
INVALID_ARGS: Final = "org.freedesktop.DBus.Error.InvalidArgs"
_UNIT_EXISTS: Final = f"{_SYSTEMD}.UnitExists"
_NO_SUCH_UNIT: Final = f"{_SYSTEMD}.NoSuchUnit"

# What the bus answers for systemd while it re-executes itself.
_AWAY: Final = ("org.freedesktop.DBus.Error.NoReply", "org.freedesktop.DBus.Error.ServiceUnknown")
_SPAWN: Final = "org.freedesktop.DBus.Error.Spawn."

_REMEDY: Final = (
    "kubelet's cgroup driver is systemd, so the box is a slice: let criproxy reach the node's systemd at "
    "/run/dbus/system_bus_socket, or set cgroupDriver: cgroupfs for kubelet and for the container runtime"
)


class UnitError(CgroupError):
    """Systemd refused, or could not be reached. `name` is the D-Bus error's name, "" when there was no answer."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class SystemdUnits:
    """Systemd on the system bus, or, where there is no bus, on its own socket. `clock`: monotonic, in s.

    All methods raise UnitError.
    """

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._clock = clock
        self._sleep = sleep
        self._connection: _BusConnection | None = None

    def start(self, unit: str, properties: Properties) -> None:
        """Start a slice with these properties, or set them on one that is there, and start it if it is not active.

        They hold until the node's next start, or until the unit stops if it is of our making.
        """
        transient = [("Description", ("s", "Made by criproxy for offline pods")), *_typed(properties)]
        try:
            self._call("StartTransientUnit", "ssa(sv)a(sa(sv))", (unit, "fail", transient, []))
        except UnitError as error:
            if error.name != _UNIT_EXISTS:
                raise
            self.set(unit, properties)
            if self._state(unit) == "active":
                return
            self._call("StartUnit", "ss", (unit, "fail"))
        if not self._awaited(lambda: self._state(unit) == "active", START_S):
            raise UnitError(f"{unit} did not start within {START_S:g} s: see systemctl status {unit}")

    def set(self, unit: str, properties: Properties) -> None:
        """Set properties of a unit; the kernel's files hold them when this returns."""
        # Slices apply new properties before they answer. Source: src/core/dbus-slice.c, bus_slice_commit_properties
        self._call("SetUnitProperties", "sba(sv)", (unit, True, _typed(properties)))

    def stop(self, unit: str) -> bool:
        """Stop a unit; what runs in it gets SIGTERM. False: it has not stopped yet."""
        try:
            self._call("StopUnit", "ss", (unit, "replace"))
        except UnitError as error:
            if error.name == _NO_SUCH_UNIT:
                return True
            raise
        return self._awaited(lambda: self._state(unit) in ("inactive", "failed"), STOP_S)

    def _state(self, unit: str) -> str:
        try:
            path = str(self._call("GetUnit", "s", (unit,))[0])
        except UnitError as error:
            if error.name == _NO_SUCH_UNIT:
                return "inactive"
            raise
        asked = (f"{_SYSTEMD}.Unit", "ActiveState")
        answer = self._call("Get", "ss", asked, path=path, interface="org.freedesktop.DBus.Properties")
        return str(answer[0][1])  # type: ignore[index]  # a variant: its type and its value

    def _awaited(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        deadline_s = self._clock() + timeout_s
        while not condition():
            if self._clock() > deadline_s:
                return False
            self._sleep(_POLL_S)
        return True

    # --- calls -----------------------------------------------------------------------------------------------------

    def _call(
        self, method: str, signature: str, body: tuple[object, ...], *, path: str = _MANAGER, interface: str = ""
    ) -> tuple[object, ...]:
        """The answer's body. Asked again while systemd re-executes itself, for `CALL_S` from the first time."""
        from jeepney import DBusAddress, new_method_call

        address = DBusAddress(path, bus_name=_SYSTEMD, interface=interface or f"{_SYSTEMD}.Manager")
        message = new_method_call(address, method, signature, body)
        what = f"{method}({body[0]})"
        deadline_s = self._clock() + CALL_S
        while True:
            try:
                return self._once(what, message, max(_POLL_S, deadline_s - self._clock()))
            except UnitError as error:
                if not _is_away(error.name) or self._clock() + _RETRY_S > deadline_s:
                    raise
                self._sleep(_RETRY_S)

    def _once(self, what: str, message: "Message", timeout_s: float) -> tuple[object, ...]:
        try:
            if self._connection is None:
                self._connection = _connect()
            name, body = self._connection.call(message, timeout_s)
        except (OSError, ValueError) as error:  # ValueError: what answers there is no bus
            self._close()
            if isinstance(error, FileNotFoundError | ConnectionRefusedError):
                raise UnitError(f"no systemd can be reached ({error}): {_REMEDY}") from error
            lost = _AWAY[0] if isinstance(error, ConnectionError) else ""
            reason = "no answer" if isinstance(error, TimeoutError) else str(error)
            raise UnitError(f"systemd refused {what}: {reason}", lost) from error
        if name:
            remedy = f": {_REMEDY}" if _is_away(name) else ""
            raise UnitError(f"systemd refused {what}: {body[0] if body else ''} ({name}){remedy}", name)
        return body

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _BusConnection:
    """One socket: a call at a time, each bounded in time, which the library's own connections do not promise."""

    def __init__(self, sock: socket.socket) -> None:
        from jeepney import Parser

        self._socket = sock
        self._parser = Parser()
        self._serials: Iterator[int] = itertools.count(1)

    def call(self, message: "Message", timeout_s: float) -> tuple[str, tuple[object, ...]]:
        """The error's name ("" for none) and the body of the answer. Raises OSError."""
        from jeepney import HeaderFields, MessageType

        serial = next(self._serials)
        self._socket.settimeout(timeout_s)
        self._socket.sendall(message.serialise(serial=serial))
        while True:
            answer = self._parser.get_next_message()
            if answer is None:
                if not (data := self._socket.recv(1 << 16)):
                    raise ConnectionResetError("the bus has closed the connection")
                self._parser.add_data(data)
            elif answer.header.fields.get(HeaderFields.reply_serial) == serial:
                failed = answer.header.message_type is MessageType.error
                return str(answer.header.fields[HeaderFields.error_name]) if failed else "", answer.body

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


def _connect() -> _BusConnection:
    """Raises OSError."""
    from jeepney.bus import get_bus
    from jeepney.bus_messages import message_bus
    from jeepney.io.blocking import prep_socket

    try:
        connection = _BusConnection(prep_socket(get_bus("SYSTEM"), timeout=CALL_S))
    except (FileNotFoundError, ConnectionRefusedError):
        return _BusConnection(prep_socket(_PRIVATE, timeout=CALL_S))
    connection.call(message_bus.Hello(), CALL_S)
    return connection


def _is_away(name: str) -> bool:
    return name in _AWAY or name.startswith(_SPAWN)


def _typed(properties: Properties) -> list[tuple[str, tuple[str, PropertyValue]]]:
    signatures = {bool: "b", int: "t", bytes: "ay", str: "s"}
    return [(name, (signatures[type(value)], value)) for name, value in properties.items()]
