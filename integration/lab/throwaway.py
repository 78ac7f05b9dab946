"""Whether this machine is a throwaway node of integration/node, where tests may change what they like."""

from pathlib import Path

AGENT = Path("/usr/local/lib/node-agent")
"""In no other machine's image."""
CONTAINERD_SOCKET = Path("/run/containerd/containerd.sock")
IMAGE = "localhost/busybox:1"
"""What the node's own containerd has. Source: integration/node/prepare-image.sh."""


def is_throwaway() -> bool:
    return AGENT.exists()


SLOWER = 15 if is_throwaway() else 1
"""How many times as long a program takes on such a node, as QEMU emulates its processor."""
