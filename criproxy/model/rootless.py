"""Whether a process is rootless: in a user namespace of its own, where root is root of no more than it was given.

Rootless Kubernetes (usernetes, k3s --rootless, kind and minikube without root) runs kubelet so. Its feature gate
KubeletInUserNamespace tells nothing, as it is on by default since 1.37.
"""

from typing import Final

_ALL: Final = ["0", "0", "4294967295"]


def is_rootless(uid_map: str) -> bool:
    """By the process's /proc/PID/uid_map: that of the machine's own user namespace maps all users to themselves.

    Source: user_namespaces(7), User and group ID mappings.
    """
    return uid_map.split() != _ALL


def in_words(uid_map: str) -> str:
    """The map on one line."""
    return "; ".join(" ".join(line.split()) for line in uid_map.strip().split("\n")) or "nothing"
