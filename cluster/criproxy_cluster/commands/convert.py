"""`criproxy-cluster convert FILE`: what the webhook would make of the pods in a manifest, without a cluster."""

from collections.abc import Iterator
from typing import Any, Final

import yaml

from criproxy_cluster.commands.manifests import ManifestError, read_documents
from criproxy_cluster.objects import Json
from criproxy_cluster.vocabulary.names import CLASS, OFFLINE
from criproxy_cluster.webhook.conversion import ConversionError, ConversionSettings, converted, is_offline, warnings

_TEMPLATES: Final = {
    "Pod": (),
    "PodTemplate": ("template",),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    **dict.fromkeys(
        ("DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"), ("spec", "template")
    ),
}
"""Where a kind has its pod."""


def convert(file: str, settings: ConversionSettings) -> tuple[str, tuple[str, ...]]:
    """The manifest as YAML, and what its author should know. "-" is the standard input. Raises ManifestError."""
    notes: list[str] = []
    made = [_document(file, document, settings, notes) for document in read_documents(file)]
    return yaml.safe_dump_all(made, sort_keys=False, allow_unicode=True), tuple(notes)


def _document(file: str, document: Any, settings: ConversionSettings, notes: list[str]) -> Any:
    if not isinstance(document, dict):
        raise ManifestError(f"{file}: {str(document)[:40]!r} is no object: write apiVersion, kind and metadata")
    if document.get("kind") == "List":
        items = [_document(file, item, settings, notes) for item in document.get("items") or []]
        return {**document, "items": items}
    steps = _TEMPLATES.get(str(document.get("kind")))
    if steps is None:
        return document
    shown = f"{file}: {document['kind']} {_name(document)}"
    try:
        return _below(document, steps, shown, settings, notes)
    except ConversionError as error:
        raise ManifestError(f"{shown}: {'.'.join((*steps, ''))}{error}") from error


def _name(document: Json) -> str:
    meta = document.get("metadata")
    return str(meta.get("name") or meta.get("generateName") or "") if isinstance(meta, dict) else ""


def _below(place: Json, steps: tuple[str, ...], shown: str, settings: ConversionSettings, notes: list[str]) -> Json:
    """`place` with the pod that is found by these steps converted."""
    if steps:
        inner = place.get(steps[0])
        if not isinstance(inner, dict):
            raise ConversionError(steps[0], "it is missing", "write the pod's template")
        return {**place, steps[0]: _below(inner, steps[1:], shown, settings, notes)}
    if not is_offline(place):
        notes.append(f"{shown}: it is not offline and stays as it is; the label {CLASS}: {OFFLINE} makes it so")
    notes.extend(f"{shown}: {words}" for words in warnings(place, settings))
    return converted(place, settings)


def lines(notes: tuple[str, ...]) -> Iterator[str]:
    """As they are shown, beside the manifest."""
    return (f"criproxy-cluster: {note}" for note in notes)
