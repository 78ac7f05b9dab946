"""Kubelets that attach does not change: which there are, and what their users do by hand."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from criproxy.cgroup.naming import BOX
from criproxy.kubelet.flags import ENDPOINT_FLAG, UNIT, flag

_FLAG: Final = "--container-runtime-endpoint=unix://{listen}"
_RANCHERS: Final = (
    "/run/k3s/containerd/containerd.sock",
    """\
in /etc/rancher/{product}/config.yaml.d/criproxy.yaml write
    kubelet-arg+: ["container-runtime-endpoint=unix://{listen}"]
then `systemctl restart {unit}` (not the product's own option container-runtime-endpoint: it would switch the \
built-in containerd off)""",
)
_KINDS: Final = (
    (
        "k3s before Kubernetes 1.32, or by a command that criproxy can't read",
        r"(?P<product>k3s)(-agent)?\.service",
        *_RANCHERS,
    ),
    (
        "RKE2 before Kubernetes 1.32, or by a command that criproxy can't read",
        r"(?P<product>rke2)-(server|agent)\.service",
        *_RANCHERS,
    ),
    (
        "MicroK8s",
        r"snap\.microk8s\.daemon-kubel(et|ite)\.service",
        "/var/snap/microk8s/common/run/containerd.sock",
        f"in /var/snap/microk8s/current/args/kubelet set {_FLAG}\nthen `snap restart microk8s`",
    ),
    (
        "k0s",
        r"k0s(controller|worker)\.service",
        "/run/k0s/containerd.sock",
        f'install the worker with --kubelet-extra-args="{_FLAG}"\nthen `systemctl restart {{unit}}`',
    ),
    (
        "a snap",
        r"snap\..*kubelet.*\.service",
        "",
        f"`snap set NAME {_FLAG[2:]}` with the snap's name\n`snap restart NAME`",
    ),
)
"""A way of running kubelet, by the pattern of its units' names; its runtime's socket, and what to do."""

_CONTAINER: Final = re.compile(r"(docker|crio|libpod|cri-containerd)[-:]|/docker/|/libpod|/kubepods|/machine\.slice/")
_PODS: Final = re.compile(rf"[/-](kubepods|{BOX})(\.slice)?/")
_UNIT: Final = re.compile(r"/([^/]+\.service)(?=/|$)", re.MULTILINE)


def advice(listen: str, processes: Sequence[tuple[str, Sequence[str], str]]) -> str:
    """Why this node's kubelet cannot be attached, and what to do. `processes` are (name, arguments, cgroup)."""
    for unit in (unit for _, _, cgroup in processes for unit in _UNIT.findall(cgroup)):
        for name, pattern, runtime, steps in _KINDS:
            if found := re.fullmatch(pattern, unit):
                first = (
                    f'set proxy.runtime = "{runtime}" in criproxy\'s config and restart criproxy\n' if runtime else ""
                )
                return _by_hand(
                    f"that of {name} ({unit})", first + steps, listen=listen, unit=unit, **found.groupdict()
                )
    for name, arguments, cgroup in processes:
        if not name.startswith("kubelet") and not any("kubelet" in word for word in arguments[:2]):
            continue
        if _CONTAINER.search(cgroup):
            steps = f"mount /run/criproxy into it\nadd {_FLAG} to kubelet's flags where the container is defined"
            return _by_hand("one that runs in a container", steps, listen=listen)
        unit = (_UNIT.findall(cgroup) or ["a process of no service"])[-1]
        return _by_hand(f"no {UNIT} but {unit}", f"add {_FLAG} to its flags\nrestart it", listen=listen)
    return f"this node has no {UNIT}, and no kubelet runs: start it, or install it first"


def is_sent_to(leads: Callable[[str], bool], processes: Iterable[tuple[str, Sequence[str], str]]) -> bool:
    """Whether a process of the node has an endpoint among its arguments that `leads` to criproxy's socket.

    Of nothing else is it asked, as a path may be on a file system that is away.
    """
    nodes = [arguments for _, arguments, cgroup in processes if not _PODS.search(cgroup)]
    endpoints = {value for words in nodes for word in words if (value := word.rpartition("=")[2]).startswith("unix:")}
    endpoints |= {given for words in nodes if (given := flag(words, ENDPOINT_FLAG))}
    return any(map(leads, endpoints))


def _by_hand(what: str, steps: str, **names: str) -> str:
    text = f"this node's kubelet is {what}, which `criproxy attach` does not change; by hand:\n{steps.format(**names)}"
    return text.replace("\n", "\n  ")
