"""Kubelets that are no kubelet.service: which there are, and what their users do by hand."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from criproxy.kubelet.process import UNIT


class Kind(Struct, frozen=True):
    """A way of running kubelet. `units` is a pattern of its units' names; `steps` has {listen} and {unit} in it."""

    name: str
    units: str
    runtime: str
    steps: tuple[str, ...]


_RANCHER: Final = (
    "in /etc/rancher/{product}/config.yaml.d/criproxy.yaml write",
    '    kubelet-arg+: ["container-runtime-endpoint=unix://{listen}"]',
    "then `systemctl restart {unit}` (not the product's own option container-runtime-endpoint: it would switch the "
    "built-in containerd off)",
)

KINDS: Final = (
    Kind(
        "k3s",
        r"k3s(-agent)?\.service",
        "/run/k3s/containerd/containerd.sock",
        tuple(s.replace("{product}", "k3s") for s in _RANCHER),
    ),
    Kind(
        "RKE2",
        r"rke2-(server|agent)\.service",
        "/run/k3s/containerd/containerd.sock",
        tuple(s.replace("{product}", "rke2") for s in _RANCHER),
    ),
    Kind(
        "MicroK8s",
        r"snap\.microk8s\.daemon-kubel(et|ite)\.service",
        "/var/snap/microk8s/common/run/containerd.sock",
        (
            "in /var/snap/microk8s/current/args/kubelet set --container-runtime-endpoint=unix://{listen}",
            "then `snap restart microk8s`",
        ),
    ),
    Kind(
        "k0s",
        r"k0s(controller|worker)\.service",
        "/run/k0s/containerd.sock",
        (
            'install the worker with --kubelet-extra-args="--container-runtime-endpoint=unix://{listen}"',
            "then `systemctl restart {unit}`",
        ),
    ),
    Kind(
        "a snap",
        r"snap\..*kubelet.*\.service",
        "",
        ("`snap set NAME container-runtime-endpoint=unix://{listen}` with the snap's name", "`snap restart NAME`"),
    ),
)

_CONTAINER: Final = re.compile(r"(docker|crio|libpod|cri-containerd)[-:]|/docker/|/libpod|/kubepods|/machine\.slice/")
_UNIT: Final = re.compile(r"/([^/]+\.service)(?=/|$)", re.MULTILINE)


def kind_of(units: Iterable[str]) -> tuple[Kind, str] | None:
    """The first known way among the names of the node's services, with the unit."""
    for unit in units:
        for kind in KINDS:
            if re.fullmatch(kind.units, unit):
                return kind, unit
    return None


def advice(listen: str, units: Sequence[str], processes: Sequence[tuple[str, Sequence[str], str]]) -> str:
    """Why this node's kubelet cannot be attached, and what to do. `processes` are (name, arguments, cgroup)."""
    if found := kind_of(units):
        kind, unit = found
        runtime = (f'set proxy.runtime = "{kind.runtime}" in criproxy\'s config and restart criproxy',)
        steps = (*(runtime if kind.runtime else ()), *kind.steps)
        return _by_hand(f"this node's kubelet is {kind.name}'s ({unit})", steps, listen, unit)
    for name, arguments, cgroup in processes:
        if not name.startswith("kubelet") and not any("kubelet" in word for word in arguments[:2]):
            continue
        if _CONTAINER.search(cgroup):
            steps = (
                "mount /run/criproxy into that container",
                "add --container-runtime-endpoint=unix://{listen} to kubelet's flags where the container is defined",
            )
            return _by_hand("this node's kubelet runs in a container", steps, listen, "")
        unit = (_UNIT.findall(cgroup) or [""])[-1]
        steps = ("add --container-runtime-endpoint=unix://{listen} to its flags", "restart it")
        return _by_hand(
            f"this node's kubelet is no {UNIT} but {unit or 'a process of no service'}", steps, listen, unit
        )
    return f"this node has no {UNIT}, and no kubelet runs: install kubelet first"


def is_sent_to(listen: str, processes: Iterable[tuple[str, Sequence[str], str]]) -> bool:
    """Whether some process has the socket `listen` among its arguments as an endpoint."""
    wanted = re.compile(rf"(?:.*=)?(?:unix:/*)?{re.escape(listen)}")
    return any(wanted.fullmatch(word) for _, arguments, _ in processes for word in arguments)


def _by_hand(what: str, steps: Iterable[str], listen: str, unit: str) -> str:
    lines = [step.replace("{listen}", listen).replace("{unit}", unit) for step in steps]
    return "\n  ".join((f"{what}, which `criproxy attach` does not change; by hand:", *lines))
