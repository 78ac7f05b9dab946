"""Kubelet reaches its runtime while criproxy is down, whatever keeps it down, and comes back to it: on a node."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.lab.client import CriClient
from integration.lab.criproxy import Config
from integration.lab.kubelet import Kubelet, static_pod
from integration.lab.process import wait_until
from integration.systemd import pods, service
from integration.systemd.calls import KUBELET, PATIENT, Load
from integration.systemd.service import FORWARDER, LISTEN, RUN, RUNTIME, systemctl

AFTER_S = 2
CONFIG: Config = {**pods.STATIC, "proxy": {"bypass_after_s": AFTER_S}}


@pytest.fixture(scope="module", autouse=True)
def node() -> None:
    service.install(CONFIG)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    service.fresh()
    service.configure(CONFIG)
    yield
    service.drop_in("")


def wait_open(timeout_s: float = 60) -> float:
    """Returns when the bypass opened, by CLOCK_MONOTONIC."""
    wait_until(lambda: LISTEN.is_symlink() and LISTEN.readlink() == FORWARDER, timeout_s, "the bypass to open")
    return time.monotonic()


def uses() -> int:
    file = RUN / "bypass.uses"
    return int(file.read_text()) if file.exists() else 0


def criproxy(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "criproxy", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


# --- what keeps it down ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [pytest.param(KUBELET, id="kubelet-pace"), pytest.param(PATIENT, id="grpc-pace")])
def test_deliberate_stop_opens_the_bypass_and_start_hands_back(
    options: tuple[tuple[str, object], ...], capsys: pytest.CaptureFixture[str]
) -> None:
    service.start()
    with Load(LISTEN, options) as load:
        load.wait_for("criproxy", 0)
        systemctl("stop", "criproxy.service")
        stopped_s = time.monotonic()
        opened_s = wait_open()
        past = load.wait_for("runtime", stopped_s)
        time.sleep(2)
        assert not [answer for answer in load.between(past.at_s, time.monotonic()) if answer.by == "nobody"]
        began_s = time.monotonic()
        systemctl("start", "criproxy.service")
        back_s = time.monotonic()
        back = load.wait_for("criproxy", began_s)
        lost = load.longest_gap_s(past.at_s, back.at_s + 0.01, lambda answer: answer.by != "nobody")
    status = criproxy("status")
    assert "opened 1 times" in status.stdout, status
    assert not FORWARDER.exists()
    told = (
        f"stopped to open {opened_s - stopped_s:.2f} s ({AFTER_S} s are asked for), "
        f"open to first answer {max(0.0, past.at_s - opened_s) * 1000:.0f} ms; "
        f"start to first answer by criproxy {back.at_s - began_s:.2f} s (of which start {back_s - began_s:.2f} s), "
        f"the longest gap between two answers {lost * 1000:.0f} ms"
    )
    with capsys.disabled():
        sys.stdout.write(f"\n{told}\n")


def test_broken_python_opens_the_bypass_and_does_not_flood_the_journal() -> None:
    with Load(LISTEN) as load, service.changed("ExecStart=\nExecStart=/nowhere/python3"):
        systemctl("start", "--no-block", "criproxy.service")
        wait_open()
        load.wait_for("runtime", 0)
        time.sleep(10)
        assert service.journal().count("/nowhere/python3") < 2 * 10
        service.drop_in("")
        began_s = time.monotonic()
        systemctl("restart", "criproxy.service")  # by somebody who has mended it: at once, not after the hold
        load.wait_for("criproxy", began_s)
        assert time.monotonic() - began_s < 25


def test_start_that_never_gets_ready_opens_the_bypass() -> None:
    service.start()
    with Load(LISTEN) as load, service.changed("ExecStart=\nExecStart=/bin/sleep 1000"):
        systemctl("restart", "--no-block", "criproxy.service")
        wait_open()
        load.wait_for("runtime", 0)
        assert service.show("criproxy.service", "ActiveState") == "activating"
    systemctl("stop", "criproxy.service")


def test_boot_with_a_criproxy_that_does_not_start_goes_by_what_it_wrote_when_it_ran() -> None:
    listen = Path('/run/od d/k$b"`l.sock')
    runtime = RUN.parent / "r t" / "r.sock"
    runtime.parent.mkdir(exist_ok=True)
    runtime.unlink(missing_ok=True)
    runtime.symlink_to(RUNTIME)
    proxy = {"bypass_after_s": 1, "listen": str(listen), "runtime": str(runtime)}
    service.configure({**CONFIG, "proxy": proxy})
    systemctl("start", "criproxy.service")
    service.fresh()
    shutil.rmtree(listen.parent)
    systemctl("start", "criproxy-bypass-arm.service")  # what multi-user.target does once the unit is enabled
    wait_until(listen.is_symlink, 30, "the bypass to open")
    with CriClient(Path("/run/short.sock")) as client:
        Path("/run/short.sock").unlink(missing_ok=True)
        Path("/run/short.sock").symlink_to(listen)
        wait_until(client.is_ready, 30, "an answer through the bypass", poll_s=0.2)
    assert os.path.samestat(runtime.stat(), RUNTIME.stat())
    systemctl("enable", "criproxy-bypass-arm.service")
    assert "multi-user.target" in service.show("criproxy-bypass-arm.service", "WantedBy")


# --- what must not open it -------------------------------------------------------------------------------------------


def test_restarts_and_a_crash_do_not_open_the_bypass() -> None:
    service.configure({**CONFIG, "proxy": {"bypass_after_s": 10}})  # the node is emulated, 20 times as slow
    service.start()
    for _ in range(2):
        systemctl("restart", "criproxy.service")
        pid = service.main_pid()
        os.kill(pid, 9)
        service.wait_restarted(pid)
    time.sleep(11)
    assert (uses(), LISTEN.readlink().name) == (0, f"{LISTEN.name}.{service.main_pid()}")


def test_never_keeps_it_shut() -> None:
    service.configure({**CONFIG, "proxy": {"bypass_after_s": "never"}})
    service.start()
    systemctl("stop", "criproxy.service")
    time.sleep(AFTER_S + 3)
    assert uses() == 0
    status = criproxy("status")
    assert status.returncode != 0
    assert "the bypass is off" in status.stderr


def test_bypass_that_opens_as_criproxy_returns_does_not_stay() -> None:
    service.start()
    new = LISTEN.with_name("new")
    new.symlink_to(FORWARDER)
    new.rename(LISTEN)
    wait_until(lambda: LISTEN.readlink() != FORWARDER, 30, "criproxy to take its place back")


# --- what is told and done afterwards --------------------------------------------------------------------------------


def stray() -> tuple[list[str], list[str]]:
    """Whom `criproxy status` calls unbounded, and which containers of pods in the box it calls misplaced."""
    try:
        status = json.loads(criproxy("status", "--json").stdout)
    except ValueError:
        return [], []
    return status["unbounded"], [one["container"] for one in status["placement"]["misplaced"]]


def test_offline_pods_and_containers_of_a_bypass_are_found_told_and_evicted() -> None:
    service.start()
    with CriClient(LISTEN) as client:
        inside = pods.run_offline(client, "inside")
        assert pods.is_in_box(client, inside)
    systemctl("stop", "criproxy.service")
    wait_open()
    status = criproxy("status")
    assert status.returncode != 0
    assert "the bypass is open" in status.stderr
    with CriClient(LISTEN) as client:
        wait_until(client.is_ready, 60, "an answer through the bypass", poll_s=0.2)
        outside = pods.run_offline(client, "outside")
        late = client.create_container(inside.pod, "late")
        client.start(late)
        assert not any(pods.is_in_box(client, one) for one in (outside, late))
        assert pods.is_in_box(client, inside)
    systemctl("start", "criproxy.service")
    wait_until(lambda: stray() == (["default/outside"], ["late"]), 90, "both to be told of", poll_s=1)
    service.configure({**CONFIG, "colocation": {"enabled": True, "on_unbounded": "evict"}})
    with CriClient(RUNTIME) as client:
        wait_until(lambda: not (client.pid(outside) or client.pid(late)), 90, "both to be evicted", poll_s=1)
        client.remove_all_pods()
    wait_until(lambda: stray() == ([], []), 90, "nothing to be told of", poll_s=1)
    assert service.journal().count("offline_pod_unbounded") == 1


# --- the other way that was weighed ----------------------------------------------------------------------------------


def test_symlink_at_the_runtime_would_keep_kubelet_there() -> None:
    """Why the bypass is a forwarder: what is connected to the runtime itself can't be cut off by us."""
    service.configure({**CONFIG, "proxy": {"bypass_after_s": "never"}})
    service.start()
    with Load(LISTEN) as load:
        load.wait_for("criproxy", 0)
        systemctl("stop", "criproxy.service")
        new = LISTEN.with_name("new")
        new.symlink_to(RUNTIME)
        new.rename(LISTEN)
        load.wait_for("runtime", 0)
        LISTEN.unlink()
        service.start()
        began_s = time.monotonic()
        time.sleep(10)
        assert {answer.by for answer in load.between(began_s, time.monotonic())} == {"runtime"}


# --- the client that matters -----------------------------------------------------------------------------------------


def connections(path: Path) -> int:
    """How many clients are connected to a unix socket. Source: proc_net_unix(5); 3: it is connected."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return sum(line.endswith(f" {path}") and line.split()[5] == "03" for line in lines)


def wait_connected(path: Path, timeout_s: float = 120) -> float:
    """Returns when kubelet was connected, by CLOCK_MONOTONIC."""
    wait_until(lambda: connections(path), timeout_s, f"kubelet to connect to {path}")
    return time.monotonic()


def own_socket() -> Path:
    return LISTEN.with_name(f"{LISTEN.name}.{service.main_pid()}")


@pytest.mark.parametrize("outage_s", [2, 10])
def test_kubelet_finds_the_bypass_and_comes_back(
    outage_s: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.configure({**CONFIG, "proxy": {"bypass_after_s": outage_s}})
    service.start()
    node = Kubelet(tmp_path, LISTEN, "/")
    node.start()
    try:
        wait_connected(own_socket())
        systemctl("stop", "criproxy.service")
        found_s = wait_open() * -1 + wait_connected(FORWARDER)
        node.add_pod(static_pod(f"past-{outage_s}"))
        node.wait_running(f"past-{outage_s}")
        systemctl("start", "criproxy.service")
        returned_s = time.monotonic()
        back_s = wait_connected(own_socket()) - returned_s
        node.add_pod(static_pod(f"back-{outage_s}"))
        node.wait_running(f"back-{outage_s}")
        assert connections(FORWARDER) == 0
    finally:
        node.stop()
    told = f"kubelet connected {found_s:.2f} s after the bypass opened, and {back_s:.2f} s after criproxy's return"
    with capsys.disabled():
        sys.stdout.write(f"\nafter {outage_s} s: {told}\n")
    with CriClient(RUNTIME) as client:
        client.remove_all_pods()
