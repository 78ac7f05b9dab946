"""A walk through README's install section, as a user of a fresh node with a kubelet would take it.

The commands are README's own: the code block after `<!-- install -->`, and the one after `<!-- uninstall -->`.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from integration.lab.kubelet import find_kubelet, static_pod
from integration.systemd import package, service
from integration.systemd import test_attach as kubelet
from integration.systemd.service import CHECKOUT, systemctl

WALK_S = 600


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
