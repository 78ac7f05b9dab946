"""Kubelet's own files for an offline pod pass, though they lie in its folder; what its subPaths lead to does not."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from criproxy.vocabulary.unboundable import HOST_PATHS, WRITABLE_HOST_PATHS
from integration.lab.clean import clean
from integration.lab.containerd import Containerd
from integration.lab.criproxy import LETS_THE_LAB, QUICK, UNJUDGED, Config, Criproxy
from integration.lab.directory import claimed
from integration.lab.kubelet import Kubelet, static_pod
from integration.lab.process import wait_until

pytestmark = pytest.mark.timeout(600)

WAIT_S = 240
POLL_S = 0.5
OFFLINE = {"colocation.criproxy.io/class": "offline"}


@pytest.fixture(scope="module")
def kubelet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    with claimed() as lab:
        try:
            yield started(lab, tmp_path_factory.getbasetemp())
        finally:
            clean(lab)


def started(lab: Path, lent: Path) -> Kubelet:
    """Kubelet, before criproxy and containerd."""
    containerd = Containerd(lab)
    root = Kubelet(lab, containerd.socket).root_dir
    config: Config = {
        "colocation": {"enabled": True},
        "control": QUICK,
        "interference": UNJUDGED,
        "kubelet": {"root_dir": str(root)},
        "hardening": {
            **LETS_THE_LAB,
            "refuse_host_paths": HOST_PATHS,
            "writable_host_paths": [*WRITABLE_HOST_PATHS, str(lent)],
        },
    }
    criproxy = Criproxy(lab, containerd.socket, config)
    kubelet = Kubelet(lab, criproxy.socket)
    containerd.start()
    criproxy.start()
    kubelet.start()
    return kubelet


def manifest(name: str, volume: Mapping[str, Any], **mount: str) -> dict[str, Any]:
    pod = static_pod(name, labels=OFFLINE)
    pod["spec"]["volumes"] = [{"name": "v", **volume}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/v", **mount}]
    return pod


def test_volumes_that_kubelet_makes_for_the_pod_pass(kubelet: Kubelet, tmp_path: Path) -> None:
    """Beside them come /etc/hosts and the termination log, of every container."""
    named = {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}
    pods = {
        "plain": manifest("plain", {"emptyDir": {}}),
        "memory": manifest("memory", {"emptyDir": {"medium": "Memory"}}),
        "sub": manifest("sub", {"emptyDir": {}}, subPath="below/it"),
        "projected": manifest("projected", {"downwardAPI": {"items": [named]}}),
        "data": manifest("data", {"hostPath": {"path": f"{tmp_path}/data", "type": "DirectoryOrCreate"}}),
    }
    for pod in pods.values():
        kubelet.add_pod(pod)
    for name in pods:
        kubelet.wait_running(name)


@pytest.mark.parametrize(
    ("name", "path", "sub", "said"),
    [
        ("plainly", "/sys/fs/cgroup", "", "a hostPath volume of /sys/fs/cgroup"),
        ("root", "/", "sys/fs/cgroup", "a hostPath volume of"),
        ("runtime", "/", "var/lib/containerd", "a hostPath volume of"),
        ("volumes", "/", "$(ROOT)/pods/$(UID)/volumes/kubernetes.io~empty-dir", "a hostPath volume of"),
        ("writes", "/usr", "", "a writable hostPath volume of /usr, as"),
        ("links", "/", "var/log", "which leads to /var/log, as"),
    ],
)
def test_author_is_told_of_what_a_volume_leads_to(kubelet: Kubelet, name: str, path: str, sub: str, said: str) -> None:
    """As `kubectl describe pod` shows it."""
    pod = manifest(name, {"hostPath": {"path": path}}, **({"subPathExpr": sub} if sub else {}))
    uid = {"name": "UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    pod["spec"]["containers"][0]["env"] = [uid, {"name": "ROOT", "value": str(kubelet.root_dir).lstrip("/")}]
    pod["spec"]["volumes"].append({"name": "swapped", "emptyDir": {}})
    kubelet.add_pod(pod)

    def waits() -> dict[str, str]:
        (container,) = kubelet.statuses().get(name, {}).get("containerStatuses") or [{}]
        waiting: dict[str, str] = container.get("state", {}).get("waiting", {})
        return waiting

    wait_until(lambda: waits().get("reason") == "CreateContainerError", WAIT_S, "the refusal", kubelet.log, POLL_S)
    assert "criproxy refuses CreateContainer of offline pod" in waits()["message"]
    assert "an offline pod may not have a" in waits()["message"]
    assert said in waits()["message"]
    kubelet.remove_pod(name)
