"""A walk through README's install section, as a user of a fresh node with a kubelet would take it; and a removal.

The commands are README's own: the code blocks after `<!-- apt -->`, `<!-- install -->` and `<!-- uninstall -->`.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
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
APT_HELPER = "/usr/lib/apt/apt-helper"
"""It fetches what README has curl fetch, as the nodes have no curl."""
JOURNAL_CHARACTERS = 6000
KUBELET_LOOKS_S = 75
"""Kubelet looks at each pod, and at the cgroups of each, once a minute at least."""


def commands(marker: str) -> str:
    """README's code block after the marker."""
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(rf"<!-- {marker} -->\n```sh\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1, f"README.md has {len(blocks)} code blocks after <!-- {marker} -->"
    return str(blocks[0])


def walk(script: str, directory: Path) -> str:
    """Run the script in `directory`, ending with the first command that fails; returns what it prints."""
    done = subprocess.run(
        ["sh", "-ex", "-c", script],
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
    output = walk(commands("install"), node)
    assert kubelet.endpoint() == kubelet.ON_PROXY
    assert "colocation    on" in output + package.criproxy("status").stdout
    assert kubelet.told_pod() == pod
    walk(commands("uninstall"), node)
    assert (kubelet.endpoint(), kubelet.files()) == (kubelet.ON_RUNTIME, before)
    assert systemctl("list-units", "--all", "--plain", "--no-legend", "criproxy*", "*offline*") == ""
    assert not any(path.exists() for path in (package.CODE, Path("/etc/criproxy"), Path("/var/lib/criproxy")))
    assert kubelet.told_pod() == pod


def versions_of(package_name: str) -> list[str]:
    """What apt can install, the newest first."""
    told = subprocess.run(["apt-cache", "madison", package_name], capture_output=True, text=True, check=True).stdout
    return [line.split("|")[1].strip() for line in told.splitlines()]


def installed(package_name: str) -> str:
    told = subprocess.run(["dpkg-query", "-Wf${Version}", package_name], capture_output=True, text=True, check=True)
    return told.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[str]:
    """README's commands of the apt repository, which a web server of this node serves."""
    place = package.DEBS / "repository"
    assert place.is_dir(), f"{place} is not there: run integration/setup debs"
    port = str(package.REPOSITORY_PORT)
    with (tmp_path / "served").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", place, port],
            stdout=log,
            stderr=log,
        )
        try:
            wait_until(lambda: answers(int(port)), service.START_S, "the repository's web server")
            script = commands("apt").replace("https://packages.example.com", f"http://127.0.0.1:{port}")
            yield f'curl() {{ {APT_HELPER} download-file "$3" "$2"; }}\n{script}'
        finally:
            server.terminate()
            server.wait()


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


def test_readmes_two_lines_install_from_a_signed_repository_and_a_node_can_go_back(node: Path, repository: str) -> None:
    try:
        walk(repository, node)
        new, old = versions_of("criproxy")
        assert installed("criproxy") == new
        package.wait_status("ready, containerd")
        walk(f"apt-get install -y --allow-downgrades criproxy={old}", node)
        assert installed("criproxy") == old
        package.wait_status("ready, containerd")
        walk(repository, node)
        assert installed("criproxy") == new
        package.wait_status("ready, containerd")
    finally:
        Path("/etc/apt/sources.list.d/criproxy.sources").unlink(missing_ok=True)
        assert package.dpkg("--purge", "criproxy").returncode == 0


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
    walk(commands("install"), node)
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
