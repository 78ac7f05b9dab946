"""Where this node's containerd puts offline pods is verified, in slices and scopes, also when its driver is wrong."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.lab import naming
from integration.lab.cgroups import Tree, hierarchies, version
from integration.lab.client import CriClient
from integration.lab.process import wait_until
from integration.systemd import pods, service
from integration.systemd.service import LISTEN, RUNTIME, systemctl

CONTAINERD = Path("/etc/containerd/config.toml")
WAIT_S = 120


@pytest.fixture(scope="module", autouse=True)
def criproxy() -> None:
    service.install(pods.STATIC)
    service.fresh()
    service.start()


@pytest.fixture
def client() -> Iterator[CriClient]:
    """A client of criproxy; the pods go after the test."""
    with CriClient(LISTEN) as client:
        yield client
        client.remove_all_pods()


@pytest.fixture
def cgroupfs() -> Iterator[None]:
    """A containerd whose cgroup driver is not kubelet's."""
    before = CONTAINERD.read_text()
    CONTAINERD.write_text(re.sub(r"SystemdCgroup = true", "SystemdCgroup = false", before))
    _restart_containerd()
    yield
    CONTAINERD.write_text(before)
    _restart_containerd()


def _restart_containerd() -> None:
    systemctl("restart", "containerd.service")
    with CriClient(RUNTIME) as client:
        wait_until(client.is_ready, WAIT_S, "containerd", poll_s=0.2)
    with CriClient(LISTEN) as client:
        wait_until(client.is_ready, WAIT_S, "containerd, through criproxy", poll_s=0.2)


def placement() -> dict[str, Any]:
    placement: dict[str, Any] = json.loads(service.ask("/status"))["placement"]
    return placement


def wait_placement(holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
    def held() -> dict[str, Any] | None:
        return found if holds(found := placement()) else None

    found = wait_until(held, WAIT_S, what, poll_s=0.5)
    assert found is not None
    return found


def test_scopes_in_the_box_are_verified_and_a_process_that_is_moved_out_is_found(client: CriClient) -> None:
    container = pods.run_offline(client, "there")
    verified = wait_placement(lambda found: found["verified"] == 2, "two verified")
    assert (verified["misplaced"], verified["unknown"]) == ([], [])
    Tree("/elsewhere").make()
    pid = client.pid(container)
    for hierarchy in hierarchies():
        if version() == 2 or "memory" in hierarchy.controllers:
            (hierarchy.directory("/elsewhere") / "cgroup.procs").write_text(str(pid))
    systemctl("kill", "--signal=HUP", "--kill-who=main", "criproxy.service")  # a look at everything
    (found,) = wait_placement(lambda found: bool(found["misplaced"]), "the moved one")["misplaced"]
    assert (found["name"], found["container"]) == ("there", "main")
    where = naming.spelled("/elsewhere")
    assert found["detail"] == (where if version() == 2 else f"{where} (memory)")


def test_containerd_with_the_other_driver_is_found_at_the_first_pod(client: CriClient, cgroupfs: None) -> None:
    pods.run_offline(client, "astray")
    found = wait_placement(lambda found: len(found["misplaced"]) == 2, "both misplaced")["misplaced"]
    assert {one["container"] for one in found} == {"", "main"}
    assert all("offline-podastray_uid.slice:cri-containerd:" in one["detail"] for one in found)
    wait_until(
        lambda: "SystemdCgroup = true" in service.journal("criproxy.service"), WAIT_S, "the remedy in the log", poll_s=1
    )
