"""What an API server or a scheduler asks over HTTP, and how it is answered. Pure.

| path | request | answer |
|---|---|---|
| /bind | AdmissionReview of a Binding | it is allowed, or refused with 409 and what the node has free |
| /filter | ExtenderArgs of kube-scheduler: a pod, the names of nodes | the nodes with room for it, and why not others |

Source: admission.k8s.io/v1 AdmissionReview; core/v1 Binding; k8s.io/kube-scheduler/extender/v1.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from criproxy_cluster.ledger.law import Pod
from criproxy_cluster.ledger.pods import PodObject, pod_of

VERSION: Final = "admission.k8s.io/v1"
CONFLICT: Final = 409


class ReviewError(ValueError):
    """What came is not what this path is for."""


class Asked(Struct, frozen=True, gc=False):
    """A pod is to be bound. `uid` "": the Binding does not say which. `review` is the AdmissionReview's own uid."""

    review: str
    namespace: str
    name: str
    uid: str
    node: str
    dry_run: bool


class _Meta(Struct, frozen=True, gc=False):
    name: str = ""
    uid: str = ""


class _Target(Struct, frozen=True, gc=False):
    name: str = ""


class _Binding(Struct, frozen=True, gc=False):
    metadata: _Meta = _Meta()
    target: _Target = _Target()


class _Request(Struct, frozen=True, gc=False, rename="camel"):
    uid: str
    object: _Binding
    namespace: str = ""
    name: str = ""
    dry_run: bool = False


class _Review(Struct, frozen=True, gc=False, rename="camel"):
    api_version: str
    kind: str
    request: _Request


_REVIEW: Final = msgspec.json.Decoder(_Review)


class _ExtenderArgs(Struct, frozen=True):
    pod: PodObject = msgspec.field(name="Pod", default_factory=PodObject)
    nodes: tuple[str, ...] | None = msgspec.field(name="NodeNames", default=None)


def read_review(body: bytes | bytearray) -> Asked:
    """Raises ReviewError."""
    try:
        review = _REVIEW.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReviewError(f"it is no AdmissionReview of a Binding: {str(error)[:200]}") from error
    if review.api_version != VERSION or review.kind != "AdmissionReview":
        raise ReviewError(f"it is {review.kind} of {review.api_version}, not AdmissionReview of {VERSION}")
    request, binding = review.request, review.request.object
    name = request.name or binding.metadata.name
    return Asked(request.uid, request.namespace, name, binding.metadata.uid, binding.target.name, request.dry_run)


def answer(review: str, refusal: str = "") -> bytes:
    """`refusal` "": it is allowed."""
    response: dict[str, Any] = {"uid": review, "allowed": not refusal}
    if refusal:
        response["status"] = {"code": CONFLICT, "reason": "Conflict", "message": f"criproxy: {refusal}"}
    return msgspec.json.encode({"apiVersion": VERSION, "kind": "AdmissionReview", "response": response})


def read_filter(body: bytes | bytearray) -> tuple[Pod, Sequence[str]]:
    """The pod, and the nodes to choose from. Raises ReviewError."""
    try:
        args = msgspec.json.decode(body, type=_ExtenderArgs)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReviewError(f"these are no ExtenderArgs: {str(error)[:200]}") from error
    if args.nodes is None:
        raise ReviewError("NodeNames is missing: set nodeCacheCapable: true for this extender")
    return pod_of(args.pod), args.nodes


def filtered(nodes: Sequence[str], refused: Mapping[str, str]) -> bytes:
    """`refused` has why, by node."""
    left = [name for name in nodes if name not in refused]
    return msgspec.json.encode({"NodeNames": left, "FailedNodes": refused, "Error": ""})
