"""`criproxy-cluster convert FILE`: what the webhook would make of the pods in a manifest, without a cluster."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml

from criproxy_cluster.conversion import ConversionError, ConversionSettings, Json, converted, is_offline, warnings
from criproxy_cluster.vocabulary.names import CLASS, OFFLINE

MAX_BYTES: Final = 8 << 20

_TEMPLATES: Final = {
    "Pod": (),
    "PodTemplate": ("template",),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    **dict.fromkeys(
        ("DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"), ("spec", "template")
    ),
}
"""Where a kind has its pod."""


class ManifestError(ValueError):
    """The file can't be read or converted; the message names it and the remedy."""


def _number(loader: Any, node: yaml.ScalarNode) -> Any:
    if ":" in node.value:
        return loader.construct_scalar(node)
    return yaml.SafeLoader.yaml_constructors[node.tag](loader, node)


class _Loader(yaml.SafeLoader):
    """Reads plain words as kubectl does: 53:53 is no number to the base of 60, and 2024-01-01 no date, but texts."""

    yaml_constructors: ClassVar[Any] = {
        **yaml.SafeLoader.yaml_constructors,
        **{f"tag:yaml.org,2002:{kind}": _number for kind in ("int", "float")},
        **{
            f"tag:yaml.org,2002:{kind}": yaml.SafeLoader.construct_scalar for kind in ("timestamp", "value")
        },  # "value": a plain =
    }


def convert(file: str, settings: ConversionSettings) -> tuple[str, tuple[str, ...]]:
    """The manifest as YAML, and what its author should know. "-" is the standard input. Raises ManifestError."""
    notes: list[str] = []
    made = [_document(file, document, settings, notes) for document in read_documents(file)]
    return yaml.safe_dump_all(made, sort_keys=False, allow_unicode=True), tuple(notes)


def read_documents(file: str) -> list[Any]:
    """The documents of a YAML or JSON file, without empty ones. Raises ManifestError."""
    try:
        if file == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"{file}: it can't be read: {error.strerror}: name a file, or - for the input") from error
    if len(data) > MAX_BYTES:
        raise ManifestError(f"{file}: it has more than {MAX_BYTES >> 20} MiB: split it")
    try:
        return [document for document in yaml.load_all(data, Loader=_Loader) if document is not None]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        words = " ".join(str(error).split())
        raise ManifestError(f"{file}: it is neither YAML nor JSON: {words[:300]}: correct it") from error


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
