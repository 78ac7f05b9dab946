"""The units that run kubelet, the flags of its command line, and the sockets that they name."""

import posixpath
from collections.abc import Sequence
from typing import Final

UNIT: Final = "kubelet.service"
EMBEDDING: Final = {
    "k3s.service": "k3s",
    "k3s-agent.service": "k3s",
    "rke2-server.service": "rke2",
    "rke2-agent.service": "rke2",
}
"""The units that bring a kubelet of their own, and the distribution that each is of."""

ENDPOINT_FLAG: Final = "--container-runtime-endpoint"


def flag(words: Sequence[str], name: str) -> str | None:
    """The last value of a flag (with its dashes), in either spelling; None when it is not given."""
    found = None
    for at, word in enumerate(words):
        if word == "--":
            break
        key, equals, value = word.partition("=")
        if not key.startswith("--") or key.replace("_", "-") != name:
            continue
        if equals:
            found = value
        elif at + 1 < len(words):
            found = words[at + 1]
    return found


def socket_path(endpoint: str) -> str | None:
    """The path of a unix socket's endpoint, normalised; None for another kind."""
    path = endpoint.removeprefix("unix:") if endpoint.startswith("unix:") else endpoint
    if not path.startswith("/"):
        return None
    return posixpath.normpath("/" + path.lstrip("/"))
