"""The client of systemd's D-Bus API, against a bus of the test's own: answers, errors, silence, restarts."""

import contextlib
import itertools
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jeepney import HeaderFields, Message, Parser, new_error, new_method_return

from criproxy.cgroup.systemd import units
from criproxy.cgroup.systemd.units import INVALID_ARGS, SystemdUnits, UnitError

EXISTS = "org.freedesktop.systemd1.UnitExists"
NO_UNIT = "org.freedesktop.systemd1.NoSuchUnit"
NO_REPLY = "org.freedesktop.DBus.Error.NoReply"
UNIT = "offline.slice"

Answer = str | tuple[str, tuple[Any, ...]] | None
"""An error's name, a signature with a body, or None: the connection is closed."""


class Bus:
    """`answer` is asked for each call but Hello; `calls` are the methods in order, with their bodies."""

    def __init__(self, path: Path) -> None:
        self.answer: Callable[[str, tuple[Any, ...]], Answer] = lambda method, body: ("", ())
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.greeted = 0
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.calls]

    def drop(self) -> None:
        """Close all connections, as a bus that is restarted."""
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.drop()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            said = b""
            while b"BEGIN\r\n" not in said:
                data = connection.recv(4096)
                if not data:
                    return
                said += data
                if b"AUTH" in data:
                    connection.sendall(b"OK 00000000000000000000000000000000\r\n")
            data = said.partition(b"BEGIN\r\n")[2]
            parser, serials = Parser(), itertools.count(1)
            while True:
                parser.add_data(data)
                while (message := parser.get_next_message()) is not None:
                    answer = self._answer(message)
                    if answer is None:
                        return
                    connection.sendall(answer.serialise(serial=next(serials)))
                data = connection.recv(4096)
                if not data:
                    return

    def _answer(self, message: Message) -> Message | None:
        method = message.header.fields[HeaderFields.member]
        if method == "Hello":
            self.greeted += 1
            return new_method_return(message, "s", (":1.7",))
        self.calls.append((method, message.body))
        answer = self.answer(method, message.body)
        if answer is None:
            return None
        if isinstance(answer, str):
            return new_error(message, answer, "s", ("because",))
        return new_method_return(message, *answer)


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bus]:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/bus")
    monkeypatch.setattr(units, "_PRIVATE", f"{tmp_path}/private")
    served = Bus(tmp_path / "bus")
    yield served
    served.close()


@pytest.fixture
def systemd() -> SystemdUnits:
    return SystemdUnits(time.monotonic, time.sleep)


def manager(state: str = "active", **answers: Answer) -> Callable[[str, tuple[Any, ...]], Answer]:
    usual: dict[str, Answer] = {
        "GetUnit": ("o", ("/unit",)),
        "Get": ("v", (("s", state),)),
        "SetUnitProperties": ("", ()),
    }
    jobs: dict[str, Answer] = dict.fromkeys(("StartTransientUnit", "StartUnit", "StopUnit"), ("o", ("/job",)))
    return lambda method, _: {**usual, **jobs, **answers}[method]


def test_start_makes_a_transient_unit_and_waits_until_it_is_active(bus: Bus, systemd: SystemdUnits) -> None:
    states = itertools.chain(["inactive", "activating"], itertools.repeat("active"))
    bus.answer = lambda method, body: manager(next(states) if method == "Get" else "")(method, body)

    systemd.start(UNIT, {"CPUWeight": 0, "CPUAccounting": True, "AllowedCPUs": b"\x05"})

    method, (unit, mode, properties, auxiliary) = bus.calls[0]
    assert (method, unit, mode, auxiliary) == ("StartTransientUnit", UNIT, "fail", [])
    told = dict(properties)
    assert (told["CPUWeight"], told["CPUAccounting"]) == (("t", 0), ("b", True))
    assert bytes(told["AllowedCPUs"][1]) == b"\x05"
    assert bus.methods.count("Get") == 3


def test_start_of_a_unit_that_is_there_sets_its_properties(bus: Bus, systemd: SystemdUnits) -> None:
    bus.answer = manager(StartTransientUnit=EXISTS)

    systemd.start(UNIT, {"CPUWeight": 1})

    assert bus.methods == ["StartTransientUnit", "SetUnitProperties", "GetUnit", "Get"]
    assert bus.calls[1][1] == (UNIT, True, [("CPUWeight", ("t", 1))])


def test_start_of_a_unit_with_a_file_starts_it(bus: Bus, systemd: SystemdUnits) -> None:
    states = itertools.chain(["inactive"], itertools.repeat("active"))
    bus.answer = lambda method, body: manager(next(states) if method == "Get" else "", StartTransientUnit=EXISTS)(
        method, body
    )

    systemd.start(UNIT, {})

    assert "StartUnit" in bus.methods


def test_start_that_takes_too_long_is_an_error(bus: Bus) -> None:
    now = itertools.count(0.0, 0.5)
    bus.answer = manager("activating")

    with pytest.raises(UnitError, match=r"offline\.slice did not start within 5 s"):
        SystemdUnits(lambda: next(now), lambda _: None).start(UNIT, {})


@pytest.mark.parametrize("answer", [("o", ("/job",)), NO_UNIT], ids=["stopping", "no-such-unit"])
def test_stop_waits_until_the_unit_is_inactive(bus: Bus, systemd: SystemdUnits, answer: Answer) -> None:
    bus.answer = manager("inactive", StopUnit=answer)

    assert systemd.stop(UNIT)
    assert bus.calls[0] == ("StopUnit", (UNIT, "replace"))


def test_stop_of_a_unit_that_was_forgotten_meanwhile_is_done(bus: Bus, systemd: SystemdUnits) -> None:
    bus.answer = manager(GetUnit=NO_UNIT)

    assert systemd.stop(UNIT)


def test_stop_that_does_not_end_says_so(bus: Bus) -> None:
    now = itertools.count(0.0, 0.5)
    bus.answer = manager("deactivating")

    assert not SystemdUnits(lambda: next(now), lambda _: None).stop(UNIT)


def test_refusal_names_call_and_unit_and_reason(bus: Bus, systemd: SystemdUnits) -> None:
    bus.answer = lambda method, body: INVALID_ARGS

    with pytest.raises(UnitError, match=r"SetUnitProperties\(offline\.slice\): because") as caught:
        systemd.set(UNIT, {"CPUWeight": 10**9})

    assert caught.value.name == INVALID_ARGS


def test_connection_is_made_once_and_anew_when_it_was_lost(bus: Bus, systemd: SystemdUnits) -> None:
    systemd.set(UNIT, {})
    systemd.set(UNIT, {})
    once = bus.greeted
    bus.drop()
    systemd.set(UNIT, {})

    assert (once, bus.greeted) == (1, 2)
    assert bus.methods == ["SetUnitProperties"] * 3


@pytest.mark.parametrize("fault", [NO_REPLY, "org.freedesktop.DBus.Error.ServiceUnknown", None], ids=str)
def test_call_that_a_restart_of_systemd_cuts_off_is_made_again(
    bus: Bus, systemd: SystemdUnits, fault: str | None
) -> None:
    faults = iter([fault, fault])
    bus.answer = lambda method, body: next(faults, ("", ()))

    systemd.set(UNIT, {"CPUWeight": 1})

    assert bus.methods == ["SetUnitProperties"] * 3


def test_bus_without_systemd_is_an_error_with_the_remedy(bus: Bus) -> None:
    now = itertools.count(0.0, 0.3)
    bus.answer = lambda method, body: "org.freedesktop.DBus.Error.ServiceUnknown"

    with pytest.raises(UnitError, match="cgroupDriver: cgroupfs"):
        SystemdUnits(lambda: next(now), lambda _: None).set(UNIT, {})


def test_no_bus_is_an_error_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, systemd: SystemdUnits
) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    monkeypatch.setattr(units, "_PRIVATE", f"{tmp_path}/neither")

    with pytest.raises(UnitError, match=r"no systemd can be reached .* cgroupDriver: cgroupfs"):
        systemd.start(UNIT, {})


def test_node_without_a_bus_is_asked_on_systemds_own_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, systemd: SystemdUnits
) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    monkeypatch.setattr(units, "_PRIVATE", f"{tmp_path}/private")
    private = Bus(tmp_path / "private")

    systemd.set(UNIT, {})

    assert (private.methods, private.greeted) == (["SetUnitProperties"], 0)
    private.close()


def test_silence_is_an_error_in_time(bus: Bus, systemd: SystemdUnits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "CALL_S", 0.2)
    over = threading.Event()
    bus.answer = lambda method, body: "late" if over.wait(60) else None

    with pytest.raises(UnitError, match=r"SetUnitProperties\(offline\.slice\): no answer"):
        systemd.set(UNIT, {})

    over.set()
    bus.answer = manager()
    systemd.set(UNIT, {})  # on a connection of its own: the late answer is not taken for this one's


def test_library_is_imported_with_the_first_call_only() -> None:
    code = "import sys, criproxy.cgroup.detect, criproxy.cgroup.systemd.units; print('jeepney' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"
