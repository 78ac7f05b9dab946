"""A criproxy in a user namespace, as rootless Kubernetes starts it: calls pass, and no offline pod is let in."""

import sys
from pathlib import Path

import grpc
import pytest

from integration.lab.cgroups import Tree
from integration.lab.client import CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import ENGINES, Criproxy
from integration.lab.directory import cgroup_root

OFFLINE = {"colocation.criproxy.io/class": "offline"}


@pytest.mark.parametrize("engine", ENGINES)
def test_rootless_criproxy_lets_in_no_offline_pod_and_passes_all_else(lab: Path, engine: str) -> None:
    lab.mkdir(parents=True, exist_ok=True)
    python = lab / "python"
    python.write_text(f'#!/bin/sh\nexec unshare --user --map-root-user {sys.executable} "$@"\n')
    python.chmod(0o755)
    containerd = Containerd(lab)
    proxy = Criproxy(lab, containerd.socket, {"colocation": {"enabled": True}, "proxy": {"engine": engine}}, python)
    containerd.start()
    proxy.start()
    parents = {name: f"{cgroup_root(lab)}/kubepods/besteffort/pod{name}" for name in ("online", "offline")}
    for parent in parents.values():
        Tree(parent).make()

    with CriClient(proxy.socket) as client:
        online = client.create_container(
            client.run_pod("online", uid="online", cgroup_parent=parents["online"]), "main"
        )
        client.start(online)
        with pytest.raises(grpc.RpcError) as caught:
            client.run_pod("offline", uid="offline", labels=OFFLINE, cgroup_parent=parents["offline"])
        assert client.pid(online)
        client.remove_all_pods()

    assert "in a user namespace" in caught.value.details()
    (problem,) = [one for one in proxy.status()["problems"] if "no box can be made" in one]
    assert "/proc/self/uid_map has 0 0 1" in problem
    assert [event["error"] for event in proxy.events() if event["event"] == "no_cgroups"] == [
        problem.partition("refused: ")[2]
    ]
