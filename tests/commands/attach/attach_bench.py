"""A node in a directory, and the two commands on it."""

import json
from pathlib import Path

import pytest

from criproxy.commands.attach.command import run
from tests.fakes.node import CONFIG, LISTEN, RUNTIME, STATE, UNIT, FakeNode

KUBEADM = "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf"
FLAGS = "/var/lib/kubelet/kubeadm-flags.env"
KUBELET_CONFIG = "/var/lib/kubelet/config.yaml"
ON_PROXY, ON_RUNTIME = f"unix://{LISTEN}", f"unix://{RUNTIME}"
UNIT_WITH_FLAG = f"""\
[Service]
ExecStart=/usr/bin/kubelet \\
  --container-runtime-endpoint={ON_RUNTIME} \\
  --v=2
"""
DROPIN_WITH_FLAG = f"""\
[Service]
Environment="KUBELET_EXTRA_ARGS=--container-runtime-endpoint={ON_RUNTIME}"
"""


class Bench:
    """A node, and the two commands on it. `out` and `err` are what the last one said."""

    def __init__(self, node: FakeNode, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.node = node
        self.config = config
        self._capsys = capsys
        self.out = self.err = ""

    def attach(self, dry_run: bool = False) -> int:
        return self._run("attach", dry_run)

    def detach(self, dry_run: bool = False) -> int:
        return self._run("detach", dry_run)

    def _run(self, verb: str, dry_run: bool) -> int:
        status = run(verb, self.config, dry_run, self.node, self.node.root)
        self.out, self.err = self._capsys.readouterr()
        return status

    def record(self) -> dict[str, object] | None:
        text = self.node.text(STATE)
        return None if text is None else json.loads(text)


def shell_node(node: FakeNode, flags: str) -> object:
    """A kubelet that a flag cannot be added to."""
    node.write(f"/etc/systemd/system/{UNIT}", f"[Service]\nExecStart=/bin/sh -c 'exec /usr/bin/kubelet {flags}'\n")
    node.write(KUBELET_CONFIG, CONFIG)
    return node.boot()
