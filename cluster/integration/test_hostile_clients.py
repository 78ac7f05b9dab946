"""The webhook as a real process, beside clients that never finish, and at its end."""

import json
import re
import signal
import ssl
import sys
import threading
import time
from datetime import UTC, datetime
from http.client import HTTPException, HTTPSConnection
from pathlib import Path

import pytest

from cluster.integration.objects import pod, until
from criproxy_cluster.certificates.authority import Tls, with_authority, with_certificate
from integration.lab.cluster_side import run
from integration.lab.criproxy import CHECKOUT
from integration.lab.ports import free_ports
from integration.lab.process import Process

pytestmark = pytest.mark.timeout(300)

HOSTILE = 700
BESIDE_S = 15.0
PROMPT_S = 1.0
MEMORY_MIB = 256
"""Of the container: cluster/manifests/base/deployments.yaml."""

REVIEW = json.dumps(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u", "operation": "CREATE", "object": pod("p", {"cpu": "1500m"})},
    }
)


class Served:
    def __init__(self, folder: Path):
        pair = with_certificate(with_authority(Tls(), datetime.now(UTC)), ("localhost",), datetime.now(UTC))
        for name, content in pair.of_server.items():
            (folder / name).write_bytes(content)
        self.context = ssl.create_default_context(cadata=pair.authorities.decode())
        (self.port,) = free_ports(1)
        arguments = ["webhook", "--port", str(self.port), "--certificates", str(folder)]
        self.log = folder / "log"
        self.process = run(arguments, self.log)

    def connect(self):
        return HTTPSConnection("localhost", self.port, context=self.context, timeout=30.0)

    def review(self, connection):
        """How long it took, and what it asks for now."""
        began_s = time.monotonic()
        connection.request("POST", "/convert", REVIEW, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = json.loads(answer.read())
        assert (answer.status, found["response"]["allowed"], "patch" in found["response"]) == (200, True, True)
        return time.monotonic() - began_s

    def answers(self):
        try:
            return self.review(self.connect())
        except (OSError, HTTPException):
            return None

    def rss_mib(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


@pytest.fixture
def served(tmp_path):
    made = Served(tmp_path)
    until(made.answers)
    yield made
    made.process.kill()


@pytest.mark.alone
def test_no_review_is_later_than_a_second_beside_700_hostile_connections(served, tmp_path):
    idle_mib = served.rss_mib()
    environment = {"PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'cluster'}"}
    command = ["nice", "-n", "10", sys.executable, "-m", "cluster.integration.hostile", str(served.port), str(HOSTILE)]
    hostile = Process("hostile", command, tmp_path / "hostile.log", environment)
    try:
        hostile.wait_until(lambda: "all are there" in (tmp_path / "hostile.log").read_text(), 30.0, "them to be there")
        kept, old_s, new_s = served.connect(), [], []
        end_s = time.monotonic() + BESIDE_S
        while time.monotonic() < end_s:
            old_s.append(served.review(kept))
            began_s = time.monotonic()
            served.review(served.connect())
            new_s.append(time.monotonic() - began_s)
            time.sleep(0.02)
        assert hostile.is_alive()
    finally:
        hostile.kill()
    print(
        f"{len(old_s)} reviews on a kept connection, the slowest {max(old_s):.3f} s; {len(new_s)} on new ones, "
        f"{max(new_s):.3f} s; {idle_mib:.0f} MiB idle, {served.rss_mib():.0f} at most"
    )
    assert max(old_s) < PROMPT_S and max(new_s) < PROMPT_S, (old_s[:20], new_s[:20])
    assert served.rss_mib() < MEMORY_MIB


def test_no_review_fails_while_a_replica_ends(served):
    """As clients do: a connection is kept, and made anew when it was closed with an answer."""
    failed, made, ends = [], [], threading.Event()

    def ask():
        connection = served.connect()
        while not ends.is_set():
            try:
                made.append(served.review(connection))
            except (OSError, HTTPException, AssertionError) as error:
                failed.append(repr(error))
            time.sleep(0.05)

    clients = [threading.Thread(target=ask) for _ in range(8)]
    for one in clients:
        one.start()
    time.sleep(1.0)
    served.process.signal(signal.SIGTERM)
    time.sleep(8.0)  # within the 10 s in which the Service forgets it
    ends.set()
    for one in clients:
        one.join()
    assert failed == [] and len(made) > 100
    until(lambda: not served.process.is_alive(), 30.0)
    assert served.process.exit_status == 0
