"""Answers an AdmissionReview: the API server's question about a pod. Pure.

| the pod | the answer |
|---|---|
| is offline | allowed, with the patch that converts it |
| is not, or nothing is to change | allowed |
| is offline, with a quantity that can't be meant | refused, 422, with the remedy |
| is offline, and could leave every bound (`hardening`) | refused, 403, with the remedy |

A question that can't be read raises `ReviewError`; then, as when nobody answers, the API server does what the webhook's
failurePolicy says, which is of marked pods only.

Source: admission.k8s.io/v1, AdmissionReview.
"""

import base64
from typing import Any, Final

import msgspec
from msgspec import Struct

from criproxy_cluster.objects import Json
from criproxy_cluster.webhook.conversion import ConversionError, ConversionSettings, converted, refusal_of, warnings
from criproxy_cluster.webhook.jsonpatch import difference

VERSION: Final = "admission.k8s.io/v1"
MAX_WARNING: Final = 240
"""Characters; the API server cuts those that are longer than 256."""


class ReviewError(ValueError):
    """What came is no AdmissionReview of a pod."""


class Question(Struct, frozen=True):
    """Source: AdmissionRequest."""

    uid: str
    operation: str
    object: Json | None = None
    namespace: str = ""


class Review(Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    request: Question


class Answered(Struct, frozen=True):
    """The AdmissionReview with the response, as JSON; `outcome`: converted, unchanged or refused."""

    body: bytes
    outcome: str


def answer(body: bytes | bytearray, settings: ConversionSettings) -> Answered:
    """Raises ReviewError."""
    try:
        review = msgspec.json.decode(body, type=Review)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReviewError(f"it is no AdmissionReview: {str(error)[:200]}") from error
    if review.api_version != VERSION or review.kind != "AdmissionReview":
        raise ReviewError(f"it is {review.kind} of {review.api_version}, not AdmissionReview of {VERSION}")
    verdict = _verdict(review.request, settings)
    outcome = "refused" if not verdict["allowed"] else "converted" if "patch" in verdict else "unchanged"
    response = {"uid": review.request.uid, **verdict}
    said = msgspec.json.encode({"apiVersion": VERSION, "kind": "AdmissionReview", "response": response})
    return Answered(said, outcome)


def _verdict(question: Question, settings: ConversionSettings) -> dict[str, Any]:
    pod = question.object
    if question.operation != "CREATE" or pod is None:  # what a pod asks for can't be changed later
        return {"allowed": True}
    try:
        if why := refusal_of(pod, question.namespace, settings):
            return {"allowed": False, "status": {"code": 403, "reason": "Forbidden", "message": f"criproxy: {why}"}}
        patch = list(difference(pod, converted(pod, settings)))
        said = [words[:MAX_WARNING] for words in warnings(pod, settings)]
    except ConversionError as error:
        return {"allowed": False, "status": {"code": 422, "reason": "Invalid", "message": f"criproxy: {error}"}}
    verdict: dict[str, Any] = {"allowed": True}
    if patch:
        verdict["patchType"] = "JSONPatch"
        verdict["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
    if said:
        verdict["warnings"] = said
    return verdict
