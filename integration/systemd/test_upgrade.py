"""Upgrades of the package, and restarts of the service, on a node under a steady load of calls.

No call fails for an upgrade, and systemd follows; a restart costs UNAVAILABLE and nothing else. UPGRADES and RESTARTS
say how many: 100 for the figure.
"""

import os
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from integration.lab import cri_client_pb2 as cri
from integration.lab.churn import Churn, RecordingClient, Spec
from integration.lab.client import Container, CriClient
from integration.lab.criproxy import toml_file
from integration.lab.cut import strange
from integration.lab.load import Job, Load
from integration.lab.process import is_running, wait_until
from integration.systemd import package, pods, service
from integration.systemd.service import LISTEN, journal, main_pid, show, systemctl

pytestmark = pytest.mark.timeout(7200)

Say = Callable[[str], object]

UPGRADES = int(os.environ.get("UPGRADES", "2"))
RESTARTS = int(os.environ.get("RESTARTS", "5"))
RETIRED_S = 120
"""A process that was replaced ends after 11 s and its last call; more on an emulated node."""


@pytest.fixture(scope="module", autouse=True)
def node() -> Iterator[None]:
    service._import_images()
    package.install(package.deb())
    package.configure(toml_file(pods.STATIC))
    package.restart()
    with CriClient(LISTEN) as client:
        wait_until(client.is_ready, service.START_S, "criproxy to answer", poll_s=0.2)
    yield
    package.configure("")


def jobs(container: Container) -> dict[str, Job]:
    def exec_for(seconds: int) -> Job:
        def job(client: CriClient) -> None:
            answer = client.exec_sync(container, ["sh", "-c", f"sleep {seconds}; echo x"], timeout_s=120)
            assert (answer.stdout, answer.exit_code) == (b"x\n", 0)

        return job

    return {
        "Version": lambda client: client.call("Version", cri.VersionRequest()),
        "lists": lambda client: (client.list_pods(), client.call("ListContainers", cri.ListContainersRequest())),
        "exec": exec_for(0),
        "exec of 20 s": exec_for(20),
    }


def test_upgrades_of_the_package_under_load_fail_no_call(say: Say) -> None:
    restarts, began = show("criproxy.service", "NRestarts"), show("criproxy.service", "ExecMainStartTimestampMonotonic")
    with CriClient(LISTEN) as client:
        container = pods.run_offline(client, "standing")
        pods.wait_bounded()
        times = []
        with Load(LISTEN, jobs(container), pause_s=0.1) as load:
            time.sleep(3)
            for number in range(UPGRADES):
                old = main_pid()
                began_s = time.monotonic()
                said = package.install(package.deb(newer=number % 2 == 0))
                times.append(time.monotonic() - began_s)
                assert "took over in" in said, said
                wait_until(lambda old=old: main_pid() not in (0, old), service.START_S, "MAINPID to follow", poll_s=0.2)  # type: ignore[misc]
                assert package.is_mapped(main_pid(), package.code())
                assert pods.is_bounded()
                say(f"{number + 1}/{UPGRADES}: dpkg -i took {times[-1]:.1f} s; {len(load.failures)} calls failed")
            wait_until(lambda: service.processes() == {main_pid()}, RETIRED_S, "the others to end", poll_s=0.5)
        say(f"dpkg -i, s: median {statistics.median(times):.1f}, max {max(times):.1f}\n    {load.summary()}")
        assert load.failures == []
        assert pods.is_in_box(client, container)
    assert show("criproxy.service", "ActiveState") == "active"
    assert show("criproxy.service", "NRestarts") == restarts, "systemd was to notice nothing"
    assert began != "0"
    assert "not our child" not in journal("criproxy.service")


def test_restarts_of_the_service_under_load_cost_unavailable_alone_and_no_pod(say: Say) -> None:
    with RecordingClient(LISTEN) as client:
        container = pods.run_offline(client, "through-restarts")
        pods.wait_bounded()
        client.failures.clear()
        churns = [Churn(f"{kind} pods", client, churned(kind), f"restarts/{kind}") for kind in ("offline", "online")]
        with Load(LISTEN, jobs(container), pause_s=0.1) as load:
            for churn in churns:
                churn.start()
            for _ in range(RESTARTS):
                time.sleep(5)
                systemctl("restart", "criproxy.service")
                assert pods.is_bounded()
            for churn in churns:
                churn.finish()
        say(
            f"{RESTARTS} restarts, {sum(churn.pods for churn in churns)} pods meanwhile; their calls that failed: "
            f"{Counter(failure.code for failure in client.failures)}\n    {load.summary()}"
        )
        assert {call.code for call in load.failures} <= {"UNAVAILABLE"}
        assert strange(client.failures) == []
        assert [churn.error for churn in churns] == [None, None]
        assert min(churn.pods for churn in churns) > 0
        assert pods.is_in_box(client, container)


def churned(kind: str) -> Callable[[int], Spec]:
    def spec(number: int) -> Spec:
        uid = f"{kind}-{number}"
        return Spec(uid, f"/kubepods/besteffort/pod{uid}", dict.fromkeys(pods.LABELS, kind))

    return spec


def test_watchdog_and_death_of_the_new_process_are_seen(say: Say) -> None:
    """The process that took over is systemd's main process like any other: hung or killed, it is started anew."""
    done = subprocess.run(["criproxy", "upgrade"], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, f"{done.stderr}{journal('criproxy.service')[-5000:]}"
    say(done.stdout.strip())
    pid = main_pid()
    interval_s = int(show("criproxy.service", "WatchdogUSec").removesuffix("s"))
    time.sleep(interval_s + 5)
    assert main_pid() == pid, "it feeds the watchdog"
    systemctl("kill", "--kill-whom=main", "--signal=KILL", "criproxy.service")
    say(f"killed: another after {service.wait_restarted(pid):.1f} s")
    with CriClient(LISTEN) as client:
        wait_until(client.is_ready, service.START_S, "criproxy to answer", poll_s=0.2)


def test_stop_in_the_middle_of_an_upgrade_ends_all(say: Say) -> None:
    old = main_pid()
    systemctl("kill", "--kill-whom=main", "--signal=USR2", "criproxy.service")
    wait_until(lambda: len(service.processes()) > 1, 60, "a new process", poll_s=0.1)
    systemctl("stop", "criproxy.service")
    assert not is_running(old)
    assert show("criproxy.service", "Result") == "success"
    assert not [path for path in LISTEN.parent.glob("criproxy.sock.*") if path.is_socket()]
    systemctl("start", "criproxy.service")
