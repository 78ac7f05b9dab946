"""sd_notify datagrams, received by a socket of our own."""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from criproxy.observe.notify import Notifier, notify_address, watchdog_interval_s
from tests.fakes.clock import FakeClock


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    path = str(tmp_path / "notify")
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as receiver:
        receiver.settimeout(5)
        receiver.bind("\0" + path if request.param == "abstract" else path)
        yield "@" + path if request.param == "abstract" else path, receiver


@pytest.mark.parametrize(
    ("send", "datagram"),
    [
        pytest.param(lambda n: n.ready("box at 2 cores"), "READY=1\nSTATUS=box at 2 cores", id="ready"),
        pytest.param(lambda n: n.reloading(), "RELOADING=1\nMONOTONIC_USEC=42000001", id="reloading"),
        pytest.param(lambda n: n.stopping(), "STOPPING=1", id="stopping"),
        pytest.param(lambda n: n.main_pid(42), "MAINPID=42", id="main-pid"),
        pytest.param(lambda n: n.watchdog(), "WATCHDOG=1", id="watchdog"),
        pytest.param(lambda n: n.status("a\nSTOPPING=1\n"), "STATUS=a STOPPING=1", id="status-stays-one-line"),
        pytest.param(lambda n: n.status("\udcff"), "STATUS=\\udcff", id="status-of-raw-bytes"),
    ],
)
def test_message_is_one_datagram(
    manager: tuple[str, socket.socket], send: Callable[[Notifier], bool], datagram: str
) -> None:
    address, receiver = manager
    assert send(Notifier(address, FakeClock(boottime_s=42.000001)))
    assert receiver.recv(4096).decode() == datagram


@pytest.mark.parametrize(
    "address",
    [
        pytest.param(None, id="unset"),
        pytest.param("/nonexistent/notify", id="nobody-there"),
        pytest.param("/" + "x" * 200, id="too-long"),
    ],
)
def test_message_that_nobody_takes_is_false(address: str | None) -> None:
    assert not Notifier(address, FakeClock()).ready("x")


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        pytest.param({}, None, id="unset"),
        pytest.param({"NOTIFY_SOCKET": ""}, None, id="empty"),
        pytest.param({"NOTIFY_SOCKET": "vsock:2:3"}, None, id="other-kind"),
        pytest.param({"NOTIFY_SOCKET": "/run/x"}, "/run/x", id="path"),
        pytest.param({"NOTIFY_SOCKET": "@x"}, "@x", id="abstract"),
    ],
)
def test_address_is_read_from_the_environment(environ: dict[str, str], address: str | None) -> None:
    assert notify_address(environ) == address


@pytest.mark.parametrize(
    ("environ", "interval_s"),
    [
        pytest.param({}, None, id="unset"),
        pytest.param({"WATCHDOG_USEC": "30000000"}, 15.0, id="half"),
        pytest.param({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 15.0, id="ours"),
        pytest.param({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None, id="another-process"),
        pytest.param({"WATCHDOG_USEC": "0"}, None, id="zero"),
        pytest.param({"WATCHDOG_USEC": "x"}, None, id="no-number"),
    ],
)
def test_watchdog_interval_is_half_of_the_limit(environ: dict[str, str], interval_s: float | None) -> None:
    assert watchdog_interval_s(environ, 7) == interval_s
