"""The service and an API server: what lets criproxy reach it, and who asks it once criproxy has ended.

The server is on an address of this node that is not loopback's, and speaks no TLS: who comes is counted, and sent away.
"""

import json
import re
import shlex
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.lab.cgroups import version
from integration.lab.process import wait_until
from integration.systemd import package
from integration.systemd.service import START_S, UNITS, journal, main_pid, show, systemctl

ADDRESS, PORT = "10.99.99.99", 6443
KUBECONFIG = Path("/etc/criproxy/kubelet.conf")
CONFIG = f'[kubernetes]\nenabled = true\nkubeconfig = "{KUBECONFIG}"\n'
ACCESS = f"""\
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "https://{ADDRESS}:{PORT}"}}}}]
users: [{{name: u, user: {{token: secret}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""
SET_PROPERTIES = Path("/etc/systemd/system.control/criproxy.service.d")
SOON = "[Timer]\nOnActiveSec=\nOnActiveSec=3s\nAccuracySec=1s\n"
"""For criproxy-withdraw.timer, instead of a quarter of an hour."""


class Server:
    """`came` counts the connections."""

    def __init__(self) -> None:
        self.came = 0
        self._socket = socket.create_server((ADDRESS, PORT))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            self.came += 1
            connection.close()

    def wait_asked(self, whom: str) -> None:
        before = self.came
        wait_until(lambda: self.came > before, START_S, f"{whom} to ask the API server", poll_s=0.5)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The package is installed, and Kubernetes is switched on with this server."""
    subprocess.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"], check=True)
    found = Server()
    package.dpkg("--purge", "criproxy")
    package.install(package.deb())
    KUBECONFIG.write_text(ACCESS)
    package.configure(CONFIG)
    package.restart()
    yield found
    package.configure("")


def trouble() -> str:
    """What status says of Kubernetes; "": criproxy does not answer yet."""
    said = package.criproxy("status", "--json").stdout
    return str(json.loads(said)["kubernetes"]["trouble"]) if said else ""


@pytest.mark.skipif(version() == 1, reason="systemd bounds addresses on cgroup v2 alone")
def test_api_server_is_reached_once_the_command_that_status_names_was_given(server: Server) -> None:
    wait_until(lambda: "IPAddressAllow" in trouble(), START_S, "status to say what keeps criproxy from it", poll_s=1.0)
    found = re.search(r"`(systemctl set-property criproxy.service IPAddressAllow=\"(\S+)\")`", trouble())
    assert found and found[2] == ADDRESS
    command = found[1]
    assert command in package.criproxy("status").stdout, "in one line"
    logged = command.replace('"', '\\"')
    wait_until(lambda: logged in journal("criproxy.service"), START_S, "the journal to have it", poll_s=1.0)
    assert server.came == 0

    pid = main_pid()
    subprocess.run(shlex.split(command), check=True)
    server.wait_asked("criproxy")
    assert main_pid() == pid, "it needs no restart"
    wait_until(lambda: "IPAddressAllow" not in trouble(), START_S, "what publishes to try again, too", poll_s=1.0)
    package.restart()
    server.wait_asked("criproxy that was restarted")
    allowed = show("criproxy.service", "IPAddressAllow")
    assert "127.0.0.0/8" in allowed and f"{ADDRESS}/32" in allowed


def test_timer_waits_while_criproxy_is_away_and_asks_until_it_is_back(server: Server) -> None:
    assert show("criproxy-withdraw.timer", "ActiveState") == "inactive"
    systemctl("stop", "criproxy.service")
    wait_until(lambda: show("criproxy-withdraw.timer", "ActiveState") == "active", START_S, "the timer to wait")
    assert "15min" in systemctl("cat", "criproxy-withdraw.timer")
    systemctl("start", "criproxy.service")
    wait_until(lambda: show("criproxy-withdraw.timer", "ActiveState") == "inactive", START_S, "the timer to stop")

    directory = UNITS / "criproxy-withdraw.timer.d"
    directory.mkdir(exist_ok=True)
    (directory / "test.conf").write_text(SOON)
    systemctl("daemon-reload")
    systemctl("stop", "criproxy.service")
    server.wait_asked("criproxy withdraw")
    wait_until(lambda: "not withdrawn" in journal("criproxy-withdraw.service"), START_S, "it to say so")
    assert show("criproxy-withdraw.service", "ActiveState") == "activating"  # it is tried again in a minute
    systemctl("start", "criproxy.service")
    wait_until(lambda: show("criproxy-withdraw.service", "ActiveState") == "inactive", START_S, "it to stop")
    (directory / "test.conf").unlink()
    systemctl("daemon-reload")


def test_removal_of_the_package_withdraws_or_says_that_it_could_not(server: Server) -> None:
    before = server.came
    done = package.dpkg("-r", "criproxy")
    assert done.returncode == 0, done.stdout
    assert server.came > before
    assert "set what this node lends to 0 yourself" in done.stdout
    assert show("criproxy-withdraw.timer", "ActiveState") == "inactive"
    package.dpkg("--purge", "criproxy")
    assert not SET_PROPERTIES.exists()
