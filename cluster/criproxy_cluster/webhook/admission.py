"""Answers an AdmissionReview: the API server's question about a pod. Pure.

| the pod | the answer |
|---|---|
| is offline | allowed, with the patch that converts it |
| is offline, and is to overflow (`overflow`) | allowed, with the patch that leaves it for virtual nodes; a warning |
| is not, or nothing is to change | allowed |
| is offline, with a quantity that makes no sense | refused, 422, with the remedy |
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
from criproxy_cluster.webhook.conversion import (
    ConversionError,
    ConversionSettings,
    converted,
    left_before,
    left_for_virtual_nodes,
    may_overflow,
    refusal_of,
    stays_offline,
    warnings,
)
from criproxy_cluster.webhook.jsonpatch import difference
from criproxy_cluster.webhook.overflow import NEVER, Decides

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
    dryRun: bool | None = None


class Review(Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    request: Question


class Answered(Struct, frozen=True):
    """The AdmissionReview with the response, as JSON; `outcome`: converted, overflowed, unchanged or refused."""

    body: bytes
    outcome: str


def answer(body: bytes | bytearray, settings: ConversionSettings, overflow: Decides = NEVER) -> Answered:
    """Raises ReviewError."""
    try:
        review = msgspec.json.decode(body, type=Review)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReviewError(f"it is no AdmissionReview: {str(error)[:200]}") from error
    if review.api_version != VERSION or review.kind != "AdmissionReview":
        raise ReviewError(f"it is {review.kind} of {review.api_version}, not AdmissionReview of {VERSION}")
    verdict, outcome = _verdict(review.request, settings, overflow)
    response = {"uid": review.request.uid, **verdict}
    said = msgspec.json.encode({"apiVersion": VERSION, "kind": "AdmissionReview", "response": response})
    return Answered(said, outcome)


def _verdict(question: Question, settings: ConversionSettings, overflow: Decides) -> tuple[dict[str, Any], str]:
    """The response, and its outcome."""
    pod = question.object
    if question.operation != "CREATE" or pod is None:  # what a pod asks for can't be changed later
        return {"allowed": True}, "unchanged"
    try:
        if why := refusal_of(pod, question.namespace, settings):
            return _refusal(403, "Forbidden", why), "refused"
        why = _overflows(pod, question, overflow)
        made = left_for_virtual_nodes(pod, why, settings) if why else converted(pod, settings)
        patch = list(difference(pod, made))
        said = warnings(pod, settings) if not why else (f"it is left for virtual nodes, which are billed: {why}",)
    except ConversionError as error:
        return _refusal(422, "Invalid", str(error)), "refused"
    verdict: dict[str, Any] = {"allowed": True}
    if patch:
        verdict["patchType"] = "JSONPatch"
        verdict["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
    if said:
        verdict["warnings"] = [words[:MAX_WARNING] for words in said]
    return verdict, "overflowed" if why else "converted" if patch else "unchanged"


def _refusal(code: int, reason: str, why: str) -> dict[str, Any]:
    return {"allowed": False, "status": {"code": code, "reason": reason, "message": f"criproxy: {why}"}}


def _overflows(pod: Json, question: Question, overflow: Decides) -> str:
    """Why it does; "": it does not. What an earlier call about the same pod has made of it stays."""
    if not stays_offline(pod):
        return ""
    if why := left_before(pod):
        return why
    return overflow.why(pod, question.namespace, counts=not question.dryRun) if may_overflow(pod) else ""
