"""The node boots anew, with the package installed, kubelet attached, an online and an offline pod.

Each test runs on a boot of its own of one machine, whose disk is kept: see integration/node/suites.py, which has their
order. Between the first two, and before the last, systemd reboots it; before the third, its power is cut.
"""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from integration.lab.client import CriClient
from integration.lab.criproxy import LETS_THE_LAB, toml_file
from integration.lab.kubelet import find_kubelet, static_pod
from integration.lab.process import wait_until
from integration.systemd import package, pods, service
from integration.systemd import test_attach as kubelet
from integration.systemd.service import systemctl
from integration.systemd.test_install import commands, in_box, in_their_words, told, walk

pytestmark = pytest.mark.timeout(1800)

NOTES = Path("/var/lib/reboot-test.json")
"""What the boot before knew."""
SAVED_S = 75
"""A checkpoint is written each minute."""
RESTARTED = re.compile(r"kubelet\.service: Scheduled restart job")
BROKEN = '[colocation]\nenabled = "perhaps"\n'


def status() -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(service.ask("/status"))
    return answer


def boot_journal(*arguments: str) -> str:
    """What this boot has logged."""
    command = ["journalctl", "--no-pager", "--output=short-monotonic", "--boot", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def running() -> dict[str, str]:
    """The containers of both pods, by the name of the pod; waits until they run."""

    def both() -> dict[str, str] | None:
        web, batch = told("web"), told("batch")
        return {"web": web[0], "batch": batch[0]} if web and batch else None

    found = wait_until(both, kubelet.WELL_S, "both pods to run", poll_s=1)
    assert found is not None
    return found


def note(**notes: object) -> None:
    NOTES.write_text(json.dumps(notes))


def notes() -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(NOTES.read_text())
    return found


def check_node(box: bool = True) -> dict[str, str]:
    """All is as it was before this boot, and nobody had to try twice; returns the containers of the pods."""
    wait_until(kubelet.is_well, kubelet.WELL_S, "kubelet to be well", poll_s=0.5)
    assert kubelet.endpoint() == kubelet.ON_PROXY
    containers = running()
    with CriClient(service.RUNTIME) as client:
        assert not in_box(client, containers["web"])
        assert in_box(client, containers["batch"]) == box
    before = notes()
    assert {str(path): content.decode() for path, content in kubelet.files().items()} == before["files"]
    assert set(containers.values()).isdisjoint(before["containers"].values())
    words = boot_journal()
    assert "ordering cycle" not in words, words
    assert systemctl("list-units", "--failed", "--plain", "--no-legend") == ""
    assert not RESTARTED.search(words), "kubelet did not get on at its first start"
    assert service.show("criproxy.service", "NRestarts") == "0"
    assert not service.is_active("criproxy-bypass.service")
    return containers


def check_box() -> None:
    """The box is bounded, and criproxy has nothing to say against the node, nor against what it had written down."""
    limits = [pods.CPU / name for name in ("memory.max", "memory.swap.max", "pids.max")]
    wait_until(
        lambda: all(file.read_text() != "max\n" for file in limits), service.START_S, "a bounded box", poll_s=0.5
    )
    assert (pods.CPU / "cpu.idle").read_text() == "1\n"
    answer = status()
    assert (answer["colocation"], answer["problems"]) == ("on", [])
    assert "checkpoint_" not in boot_journal("--unit=criproxy.service")


def test_first_boot() -> None:
    Path("/var/log/journal").mkdir(exist_ok=True)
    systemctl("restart", "systemd-journald")
    service._import_images()
    shutil.copy(find_kubelet(), "/usr/bin/kubelet")  # what is mounted for a test is not there when a node boots
    kubelet.MANIFESTS.mkdir(parents=True)
    kubelet.KUBELET_CONFIG.parent.mkdir(parents=True, exist_ok=True)
    kubelet.KUBELET_CONFIG.write_text(json.dumps(kubelet._configuration()))
    (kubelet.MANIFESTS / "web.json").write_text(json.dumps(static_pod("web")))
    kubelet.set_up("kubeadm-flags")
    systemctl("add-wants", "multi-user.target", "kubelet.service")
    shutil.copy(package.deb(), "/root")
    walk(commands("install"), Path("/root"))
    package.configure(toml_file({"hardening": LETS_THE_LAB}))
    (kubelet.MANIFESTS / "batch.json").write_text(json.dumps(static_pod("batch", labels=pods.LABELS)))
    with in_their_words():
        containers = running()
        with CriClient(service.RUNTIME) as client:
            assert in_box(client, containers["batch"])
    files = {str(path): content.decode() for path, content in kubelet.files().items()}
    note(files=files, containers=containers)
    time.sleep(SAVED_S)


def test_after_a_reboot() -> None:
    with in_their_words():
        note(**{**notes(), "containers": check_node()})
        check_box()
    words = boot_journal("--boot=-1", "--unit=criproxy.service", "--unit=kubelet.service")
    assert "timed out" not in words, f"the shutdown waited: {words}"


def test_after_a_power_cut() -> None:
    with in_their_words():
        note(**{**notes(), "containers": check_node()})
        check_box()
    package.configure(BROKEN)


def test_after_a_reboot_with_a_config_that_has_an_error() -> None:
    with in_their_words():
        containers = check_node(box=False)
        answer = status()
        assert answer["colocation"] == "pass-through"
        assert any("colocation.enabled" in error for error in answer["config"]["errors"]), answer["config"]
        package.configure(toml_file({"hardening": LETS_THE_LAB}))
        package.wait_status("colocation    on")
        assert running() == containers
