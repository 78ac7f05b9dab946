"""Kubelets that attach does not change: which there are, and what their users do by hand."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from criproxy.cgroup.naming import BOX
from criproxy.kubelet.flags import ENDPOINT_FLAG, UNIT, flag

_ARGUMENTS_FLAG: Final = "--kubelet-args-file"
_FLAG: Final = "--container-runtime-endpoint=unix://{listen}"


class _KubeletKind(Struct, frozen=True):
    """A way of running kubelet: the pattern of its units' names, its runtime's socket, and what to do, there and back.

    `runtime` "": it is known by no one path. `root_dir` "": kubelet's is the usual one.
    """

    name: str
    pattern: str
    runtime: str
    steps: str
    back: str
    root_dir: str = ""


_RANCHERS_FILE: Final = "/etc/rancher/{product}/config.yaml.d/criproxy.yaml"


def _rancher(name: str, pattern: str) -> _KubeletKind:
    return _KubeletKind(
        f"{name} before Kubernetes 1.32, or by a command that criproxy can't read",
        pattern,
        "/run/k3s/containerd/containerd.sock",
        f"""\
in {_RANCHERS_FILE} write
    kubelet-arg+: ["container-runtime-endpoint=unix://{{listen}}"]
then `systemctl restart {{unit}}` (not the product's own option container-runtime-endpoint: it would switch the \
built-in containerd off)""",
        f"""\
take container-runtime-endpoint out of kubelet-arg in {_RANCHERS_FILE}, or wherever you have written it
then `systemctl restart {{unit}}`""",
    )


_KINDS: Final = (
    _rancher("k3s", r"(?P<product>k3s)(-agent)?\.service"),
    _rancher("RKE2", r"(?P<product>rke2)-(server|agent)\.service"),
    _KubeletKind(
        "MicroK8s",
        r"snap\.microk8s\.daemon-kubel(et|ite)\.service",
        "/var/snap/microk8s/common/run/containerd.sock",
        f"in /var/snap/microk8s/current/args/kubelet set {_FLAG}\nthen `snap restart microk8s`",
        f"in /var/snap/microk8s/current/args/kubelet set {_FLAG}\nthen `snap restart microk8s`",
        "/var/snap/microk8s/common/var/lib/kubelet",
    ),
    _KubeletKind(
        "k0s",
        r"k0s(controller|worker)\.service",
        "/run/k0s/containerd.sock",
        f'install the worker with --kubelet-extra-args="{_FLAG}"\nthen `systemctl restart {{unit}}`',
        f"install the worker without {_FLAG.partition('=')[0]} in its --kubelet-extra-args\n"
        "then `systemctl restart {unit}`",
        "/var/lib/k0s/kubelet",
    ),
    _KubeletKind(
        "a snap",
        r"snap\..*kubelet.*\.service",
        "",
        f"`snap set NAME {_FLAG[2:]}` with the snap's name\n`snap restart NAME`",
        "`snap set NAME container-runtime-endpoint=...` with the snap's name and its runtime's endpoint\n"
        "`snap restart NAME`",
    ),
)

_CONTAINER: Final = re.compile(r"(docker|crio|libpod|cri-containerd)[-:]|/docker/|/libpod|/kubepods|/machine\.slice/")
_PODS: Final = re.compile(rf"[/-](kubepods|{BOX})(\.slice)?/")
_UNIT: Final = re.compile(r"/([^/]+\.service)(?=/|$)", re.MULTILINE)


def advice(listen: str, processes: Sequence[tuple[str, Sequence[str], str]]) -> str:
    """Why this node's kubelet cannot be attached, and what to do. `processes` are (name, arguments, cgroup)."""
    for kind, unit, product in _found(processes):
        keys = {"proxy.runtime": kind.runtime, "kubelet.root_dir": kind.root_dir}
        given = " and ".join(f'{key} = "{value}"' for key, value in keys.items() if value)
        steps = (f"set {given} in criproxy's config and restart criproxy\n" if given else "") + kind.steps
        return _by_hand(f"that of {kind.name} ({unit})", steps, listen=listen, unit=unit, product=product)
    for name, arguments, cgroup in processes:
        if not name.startswith("kubelet") and not any("kubelet" in word for word in arguments[:2]):
            continue
        if _CONTAINER.search(cgroup):
            steps = f"mount /run/criproxy into it\nadd {_FLAG} to kubelet's flags where the container is defined"
            return _by_hand("one that runs in a container", steps, listen=listen)
        unit = (_UNIT.findall(cgroup) or ["a process of no service"])[-1]
        return _by_hand(f"no {UNIT} but {unit}", f"add {_FLAG} to its flags\nrestart it", listen=listen)
    return f"this node has no {UNIT}, and no kubelet runs: start it, or install it first"


def way_back(processes: Sequence[tuple[str, Sequence[str], str]]) -> str:
    """How a kubelet that was sent to criproxy by hand is given its runtime back: lines, each below the one before."""
    steps = "set its runtime's endpoint where you have set criproxy's, and restart it"
    for kind, unit, product in _found(processes):
        steps = kind.back.format(listen=kind.runtime, unit=unit, product=product)
        break
    return f"by hand:\n{steps}".replace("\n", "\n  ")


def files_of_arguments(processes: Iterable[tuple[str, Sequence[str], str]]) -> list[str]:
    """The files that processes of the node have kubelet's arguments from, as MicroK8s' does."""
    nodes = (arguments for _, arguments, cgroup in processes if not _PODS.search(cgroup))
    return [path for words in nodes if (path := flag(words, _ARGUMENTS_FLAG))]


def is_sent_to(leads: Callable[[str], bool], processes: Iterable[tuple[str, Sequence[str], str]]) -> bool:
    """Whether a process of the node has an endpoint among its arguments that `leads` to criproxy's socket.

    Of nothing else is it asked, as a path may be on a file system that is away.
    """
    nodes = [arguments for _, arguments, cgroup in processes if not _PODS.search(cgroup)]
    endpoints = {value for words in nodes for word in words if (value := word.rpartition("=")[2]).startswith("unix:")}
    endpoints |= {given for words in nodes if (given := flag(words, ENDPOINT_FLAG))}
    return any(map(leads, endpoints))


def _found(processes: Iterable[tuple[str, Sequence[str], str]]) -> Iterator[tuple[_KubeletKind, str, str]]:
    """The kinds that run here, each with its unit and the product that the unit's name has, or ""."""
    for unit in (unit for _, _, cgroup in processes for unit in _UNIT.findall(cgroup)):
        for kind in _KINDS:
            if found := re.fullmatch(kind.pattern, unit):
                yield kind, unit, found.groupdict().get("product", "")


def _by_hand(what: str, steps: str, **names: str) -> str:
    text = f"this node's kubelet is {what}, which `criproxy attach` does not change; by hand:\n{steps.format(**names)}"
    return text.replace("\n", "\n  ")
