"""The nodes that the suites of integration/ run on, and what can't run on one of them, with its reason."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

HOST = "host"

CGROUPFS = """\
sed -i 's/SystemdCgroup = true/SystemdCgroup = false/' /etc/containerd/config.toml
systemctl restart containerd
"""


@dataclass(frozen=True, slots=True)
class Node:
    """A throwaway machine: a Debian release, what its kernel is told, and what a shell does on it before its snapshot.

    `words` describe it for whoever watches. `today`: of the nodes that ./test runs on; the others are by command.
    `containerd`: the one of integration/programs takes the place of Debian's. `cpus`: QEMU's -smp, `processor`: its
    -cpu, "": as they all have it. With a `cpus` of its own, a node is for tests that ask for it. `architecture`: as
    Debian calls it.
    """

    release: str
    words: str
    kernel_arguments: str = ""
    prepare: str = ""
    cpus: str = ""
    processor: str = ""
    architecture: str = "amd64"
    today: bool = False
    containerd: bool = False


NODES: Mapping[str, Node] = {
    "trixie-v2": Node("trixie", "cgroup v2, systemd driver, containerd 1.7"),
    "forky-v2": Node("forky", "cgroup v2, systemd driver, containerd 2.1 (CRI v1 alone)"),
    "trixie-v2-containerd-2.4": Node(
        "trixie", "cgroup v2, systemd driver, containerd 2.4 (CRI v1 alone)", today=True, containerd=True
    ),
    "bookworm-v2": Node("bookworm", "cgroup v2, systemd driver, containerd 1.6"),
    "bookworm-v2-cgroupfs": Node("bookworm", "cgroup v2, cgroupfs driver, containerd 1.6", prepare=CGROUPFS),
    "bookworm-v1": Node("bookworm", "cgroup v1, systemd driver, containerd 1.6", "systemd.unified_cgroup_hierarchy=0"),
    "bookworm-v2-threads": Node(
        "bookworm",
        "cgroup v2, systemd driver, two cores of two hyperthreads",
        cpus="4,sockets=1,cores=2,threads=2",
        processor="max,vendor=GenuineIntel",
    ),
    "trixie-v2-arm64": Node("trixie", "cgroup v2, systemd driver, containerd 1.7, arm64", architecture="arm64"),
}
"""Beside them, the suites run on the host as it is."""

PYTHONS = {"bookworm": "3.11", "trixie": "3.13", "forky": "3.14"}
"""Each release's Python."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Tests that can't run on the nodes whose name `nodes` matches; `tests` is searched for in their ids."""

    nodes: str
    tests: str
    reason: str


LEFT_OUT = (
    LeftOut(".*-.*", r"^integration/test_demo\.py", "the demo shows pictures of a machine's own speed"),
    LeftOut(
        ".*-.*",
        r"^integration/control_plane/test_(clocks|node|whole)\.py",
        "they are the cluster's, which does not see a node's kernel; emulated, its programs are slow",
    ),
    LeftOut("bookworm-v2-cgroupfs", r"^integration/systemd/", "they look for the systemd driver's slices"),
    LeftOut(".*-.*", r"^integration/test_critest\.py", "critest and its containerd are not brought to the nodes"),
    LeftOut(
        ".*-.*",
        r"^integration/test_(advise|alerts|descheduler|harm_alert|monitoring)\.py",
        "Prometheus is not brought to the nodes",
    ),
    LeftOut(
        ".*-.*",
        r"^integration/test_hardening\.py::test_offline_container_can_not_fill",
        "its probe of the kernel's keys is compiled, and the nodes have no C compiler",
    ),
    LeftOut(
        ".*-.*",
        r"^integration/test_handover\.py::test_upgrades_under_load",
        "its six clients leave an emulated node no processor: a hand-over takes minutes, or is given up",
    ),
    LeftOut(
        ".*-(containerd-2.4|cgroupfs|v1|threads)",
        r"^integration/systemd/test_reboot\.py",
        "what makes such a node of Debian's is done after its boot, or told to its first kernel alone",
    ),
    LeftOut("bookworm-.*", r"^integration/test_(nri|sentry)\.py", "containerd 1.6 has no NRI"),
    LeftOut(
        "(bookworm|forky)-.*",
        r"^integration/systemd/test_installer_job\.py",
        "its image has the package for Debian 13 alone, to be small",
    ),
    LeftOut("forky-v2|.*-containerd-2.4", r"v1alpha2", "containerd 2 serves CRI v1 alone"),
    LeftOut(
        ".*-arm64",
        r"^integration/(control_plane/"
        r"|test_(eviction|exclusive_cpus|gates|kubelet|kubelet_start|kubelets_mounts|pin_pods)\.py"
        r"|systemd/test_(attach|install|installer_job|reboot)\.py|(test_(handover|lab|nri)|systemd/test_bypass)\.py::test_kubelet_"
        r"|test_pids\.py::test_\w+_real_kubelet_)",
        "Kubernetes is compiled for this machine's own architecture alone",
    ),
)


def entries_of(node: str) -> tuple[LeftOut, ...]:
    """All that is left out on a node."""
    return tuple(entry for entry in LEFT_OUT if re.fullmatch(entry.nodes, node))


def left_out(node: str, test: str) -> LeftOut | None:
    """Why the test of this id (`integration/test_x.py::test_y[z]`) can't run on the node; None when it can."""
    return next((entry for entry in entries_of(node) if re.search(entry.tests, test)), None)
