"""Gives an offline pod's network the most that the node allows one, as annotations that the runtime hands to CNI.

The runtime reads them from the sandbox and passes them on to a plugin that has the capability `bandwidth`; without one
in the node's CNI configuration they do nothing. They count bits per second:

    kubernetes.io/egress-bandwidth: "10M"     from the pod
    kubernetes.io/ingress-bandwidth: "10M"    to the pod

What a pod asks for itself stays where it is less. What is there and is no amount is replaced, too: a runtime may ignore
it. Source: Kubernetes, "Network Plugins", support traffic shaping; containerd, pkg/cri/sbserver/sandbox_run.go,
toCNIBandWidth.
"""

from collections.abc import Iterator
from typing import ClassVar, Final

from msgspec import Struct

from criproxy.model import STARTS, Adjustment, PodRequest, Target
from criproxy.vocabulary.quantities import parse_quantity

EGRESS: Final = "kubernetes.io/egress-bandwidth"
INGRESS: Final = "kubernetes.io/ingress-bandwidth"

LEAST_BITS_PER_S: Final = 1_000
MOST_BITS_PER_S: Final = 10**15
"""The runtime refuses a pod that asks for less or more. Source: Kubernetes, pkg/util/bandwidth, validateBandwidth."""


class Bandwidth(Struct, frozen=True):
    """The most that an offline pod's network may do, from the pod and to it, in bits per second; None: not bounded."""

    egress: int | None = None
    ingress: int | None = None


class BandwidthHook(Struct, frozen=True):
    """Sets the annotations of a pod that starts; see the module. `most` is what the node allows one."""

    most: Bandwidth
    name: ClassVar[str] = "bandwidth"

    def adjust(self, request: PodRequest) -> Iterator[Adjustment]:
        if request.operation not in STARTS or request.target is not Target.SANDBOX:
            return
        for key, most in ((EGRESS, self.most.egress), (INGRESS, self.most.ingress)):
            if most is not None and not _is_within(request.annotations.get(key), most):
                yield Adjustment("annotations", str(most), "no offline pod may take more of the network", key)


def _is_within(asked: str | None, most_bits_per_s: int) -> bool:
    """Whether a pod asks for an amount that is no more than this."""
    try:
        return asked is not None and parse_quantity(asked) <= most_bits_per_s
    except ValueError:
        return False
