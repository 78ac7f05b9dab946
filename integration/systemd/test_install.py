"""A walk through README's install section, as a user of a fresh node with a kubelet would take it; and a removal.

The commands are README's own: the code block after `<!-- install -->`, and the one after `<!-- uninstall -->`.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.lab import cgroups
from integration.lab.client import CriClient
from integration.lab.criproxy import LETS_THE_LAB, toml_file
from integration.lab.kubelet import find_kubelet, static_pod
from integration.lab.process import wait_until
from integration.systemd import package, pods, service
from integration.systemd import test_attach as kubelet
from integration.systemd.service import CHECKOUT, systemctl
from integration.systemd.slice_lab import V1

ANCHOR = "kubepods-besteffort-criproxy.slice"
WALK_S = 600
JOURNAL_CHARACTERS = 6000
KUBELET_LOOKS_S = 75
"""Kubelet looks at each pod, and at the cgroups of each, once a minute at least."""


def commands(marker: str) -> str:
    """README's code block after the marker."""
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(rf"<!-- {marker} -->\n```sh\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1, f"README.md has {len(blocks)} code blocks after <!-- {marker} -->"
    return str(blocks[0])


def walk(marker: str, directory: Path) -> str:
    """Run the block in `directory`, ending with the first command that fails; returns what it prints."""
    done = subprocess.run(
        ["sh", "-ex", "-c", commands(marker)],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WALK_S,
        check=False,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node whose kubelet runs a pod, and a folder with the package in it."""
    service._import_images()
    Path("/usr/bin/kubelet").symlink_to(find_kubelet())
    kubelet.MANIFESTS.mkdir(parents=True)
    kubelet.KUBELET_CONFIG.parent.mkdir(parents=True, exist_ok=True)
    kubelet.KUBELET_CONFIG.write_text(json.dumps(kubelet._configuration()))
    (kubelet.MANIFESTS / "pod.json").write_text(json.dumps(static_pod("web")))
    kubelet.set_up("kubeadm-flags")
    directory = tmp_path_factory.mktemp("node")
    shutil.copy(package.deb(), directory)
    return directory


def test_readme_installs_attaches_and_takes_away_again(node: Path) -> None:
    pod, before = kubelet.told_pod(), kubelet.files()
    output = walk("install", node)
    assert kubelet.endpoint() == kubelet.ON_PROXY
    assert "colocation    on" in output + package.criproxy("status").stdout
    assert kubelet.told_pod() == pod
    walk("uninstall", node)
    assert (kubelet.endpoint(), kubelet.files()) == (kubelet.ON_RUNTIME, before)
    assert systemctl("list-units", "--all", "--plain", "--no-legend", "criproxy*", "*offline*") == ""
    assert not any(path.exists() for path in (package.CODE, Path("/etc/criproxy"), Path("/var/lib/criproxy")))
    assert kubelet.told_pod() == pod


@contextlib.contextmanager
def in_their_words() -> Iterator[None]:
    """On a failure, what criproxy and kubelet say is printed."""
    try:
        yield
    except Exception:
        print(package.criproxy("status").stdout)
        for unit in ("criproxy*", "kubelet.service"):
            print(f"{unit}:\n{service.journal(unit)[-JOURNAL_CHARACTERS:]}")
        raise


def told(name: str) -> tuple[str, int] | None:
    """The container of kubelet's pod of this name, and its restarts; None: it does not run."""
    with urllib.request.urlopen("http://127.0.0.1:10255/pods", timeout=30) as answer:
        found = [pod for pod in json.load(answer)["items"] or [] if pod["metadata"]["name"].startswith(name)]
    statuses = [status for pod in found for status in pod["status"].get("containerStatuses", [])]
    if not statuses or "running" not in statuses[0]["state"]:
        return None
    return statuses[0]["containerID"].rpartition("/")[2], statuses[0]["restartCount"]


def test_removal_without_detach_gives_kubelet_its_runtime_back_and_pods_run_on(node: Path) -> None:
    before = kubelet.files()
    walk("install", node)
    package.configure(toml_file({"hardening": LETS_THE_LAB}))
    manifest = kubelet.MANIFESTS / "batch.json"
    manifest.write_text(json.dumps(static_pod("batch", labels=pods.LABELS)))
    with in_their_words():
        batch = wait_until(lambda: told("batch"), kubelet.WELL_S, "the offline pod to run", poll_s=1)
    assert batch is not None
    web = told("web")
    with CriClient(service.RUNTIME) as client:
        assert in_box(client, batch[0])

        done = package.dpkg("-r", "criproxy")

        assert done.returncode == 0, done.stdout
        assert "still run in the box" in done.stdout
        assert (kubelet.endpoint(), kubelet.files()) == (kubelet.ON_RUNTIME, before)
        time.sleep(KUBELET_LOOKS_S)
        assert (told("web"), told("batch")) == (web, batch)
        assert in_box(client, batch[0])
        assert V1 or service.is_active(ANCHOR)
    manifest.unlink()
    wait_until(lambda: told("batch") is None, kubelet.WELL_S, "the offline pod to end", poll_s=1)
    assert package.dpkg("--purge", "criproxy").returncode == 0


def in_box(client: CriClient, container_id: str) -> bool:
    paths = cgroups.of_process(client.pid_of(container_id))
    return all(paths[controller].startswith("/offline/") for controller in (("cpu", "memory") if V1 else ("",)))
