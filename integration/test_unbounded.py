"""Offline pods, and containers of offline pods, that started past criproxy: found, told of, and stopped when asked."""

from pathlib import Path
from typing import Any

import pytest

from integration.lab.cgroups import Tree
from integration.lab.client import Container, CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Config, Criproxy
from integration.lab.directory import cgroup_root
from integration.lab.process import wait_until

WAIT_S = 180
"""The runtime is listed once a minute."""

OFFLINE = {"colocation.criproxy.io/class": "offline"}
ON: Config = {"colocation": {"enabled": True}}
EVICT: Config = {"colocation": {"enabled": True, "on_unbounded": "evict"}}


def told(status: Any) -> tuple[list[str], list[str]]:
    """The unbounded pods, and the misplaced containers of pods in the box."""
    return status["unbounded"], [one["container"] for one in status["placement"]["misplaced"]]


@pytest.mark.timeout(900)
def test_what_started_past_criproxy_is_found_told_of_and_evicted(lab: Path) -> None:
    containerd = Containerd(lab)
    proxy = Criproxy(lab, containerd.socket, ON)
    containerd.start()

    def run(client: CriClient, name: str, labels: dict[str, str]) -> Container:
        parent = f"{cgroup_root(lab)}/kubepods/besteffort/pod{name}"
        Tree(parent).make()
        container = client.create_container(client.run_pod(name, uid=name, labels=labels, cgroup_parent=parent), "main")
        client.start(container)
        return container

    proxy.start()
    with CriClient(proxy.socket) as client:
        inside = run(client, "inside", OFFLINE)
    proxy.kill()
    with CriClient(containerd.socket) as client:
        outside, online = run(client, "outside", OFFLINE), run(client, "online", {})
        late = client.create_container(inside.pod, "late")
        client.start(late)
        proxy.start()
        wait_until(lambda: told(proxy.status()) == (["default/outside"], ["late"]), WAIT_S, "both to be told of")
        assert "criproxy_unbounded_pods 1.0" in proxy.http("/metrics")[1]
        assert all(client.pid(one) for one in (inside, outside, late, online))
        proxy.configure(EVICT)
        wait_until(lambda: not any(client.pid(one) for one in (inside, outside, late)), WAIT_S, "both to be evicted")
        wait_until(lambda: told(proxy.status()) == ([], []), WAIT_S, "nothing to be told of")
        assert client.pid(online)
        client.remove_all_pods()
    events = [(event["event"], event.get("pod")) for event in proxy.events()]
    assert events.count(("offline_pod_unbounded", "default/outside")) == 1
    assert {pod for event, pod in events if event == "stop"} == {"default/inside", "default/outside"}
