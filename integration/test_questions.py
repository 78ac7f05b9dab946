"""Questions to a real criproxy: what others on the machine can't make it say, nor keep others from asking."""

import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.lab.client import CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import ANSWER_S, QUICK, Criproxy
from integration.lab.process import wait_until
from integration.lab.upgrades import pids, stop_all, upgrade

NOBODY = 65534
UPGRADES = 5
CLASS = "colocation.criproxy.io/class"


@pytest.fixture
def proxy(lab: Path, containerd: Containerd) -> Iterator[Criproxy]:
    proxy = Criproxy(lab, containerd.socket, {"colocation": {"enabled": True}, "control": QUICK})
    yield proxy
    stop_all(proxy)


def get(proxy: Criproxy, path: str) -> tuple[int, str]:
    """Over TCP."""
    try:
        with urllib.request.urlopen(f"http://{proxy.address}{path}", timeout=ANSWER_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def place(proxy: Criproxy) -> tuple[str, int]:
    host, _, port = proxy.address.rpartition(":")
    return host, int(port)


GRAB = """
import os, socket, sys
os.setresuid({uid}, {uid}, {uid})
while True:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind({place})
        listener.listen()
    except OSError:
        listener.close()
    else:
        print("bound", flush=True)
"""


@contextmanager
def grabbing(proxy: Criproxy) -> Iterator["subprocess.Popen[str]"]:
    """A user of this machine who tries to have criproxy's port, all the time."""
    command = [sys.executable, "-c", GRAB.format(uid=NOBODY, place=place(proxy))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_port_is_nobody_elses_during_a_hand_over_and_every_question_is_answered(proxy: Criproxy) -> None:
    proxy.start()
    answers: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            answers.append(get(proxy, "/healthz")[0])

    asking = threading.Thread(target=ask)
    with grabbing(proxy) as grabber:
        asking.start()
        for _ in range(UPGRADES):
            upgrade(proxy)
            wait_until(lambda: len(pids(proxy)) == 1, 60, "the one before to end", proxy.log)
        stop.set()
        asking.join()
        grabber.kill()
        assert grabber.communicate()[0] == ""
    assert set(answers) == {200}
    assert proxy.status()["problems"] == []


def test_port_of_somebody_else_is_a_problem_until_it_is_free(proxy: Criproxy) -> None:
    with socket.create_server(place(proxy)):
        proxy.start()
        (problem,) = proxy.status()["problems"]
        assert f"criproxy cannot listen at {proxy.address} (Address already in use), and tries again" in problem
    wait_until(lambda: proxy.status()["problems"] == [], 30, "the port", proxy.log)
    assert get(proxy, "/healthz")[0] == 200
    events = [event["event"] for event in proxy.events()]
    assert events.count("observe_not_listening") == 1


def test_names_of_pods_are_for_root_alone(proxy: Criproxy, cgroup_parent: str) -> None:
    proxy.start()
    uid, name = cgroup_parent.rpartition("/pod")[2], "secretive"
    with CriClient(proxy.socket) as client:
        pod = client.run_pod(name, uid=uid, labels={CLASS: "offline"}, cgroup_parent=cgroup_parent)
        assert [one["name"] for one in proxy.status()["pods"]] == [name]
        for path in ("/", "/metrics", "/healthz", "/readyz", "/status", "/why"):
            code, body = get(proxy, path)
            assert (code, name in body, uid in body) == (410 if path in ("/status", "/why") else 200, False, False)
        client.stop_and_remove(pod)
    assert oct(os.stat(proxy.asked_at).st_mode & 0o777) == "0o600"


def test_slow_clients_by_the_dozen_keep_nobody_from_asking(proxy: Criproxy) -> None:
    proxy.start()
    slow = [socket.create_connection(place(proxy)) for _ in range(50)]
    for client in slow:
        client.sendall(b"GET /metr")
    assert get(proxy, "/metrics")[0] == 200
    assert proxy.status()["problems"] == []
    for client in slow:
        client.close()


def test_status_survives_what_kills_and_follows_it(proxy: Criproxy) -> None:
    """A dead process's socket is in nobody's way."""
    proxy.start()
    proxy.kill()
    proxy.start()
    assert proxy.status()["pid"] == proxy.pid
    proxy.stop()
    assert not proxy.asked_at.exists()
