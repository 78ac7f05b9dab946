"""A file with manifests, as kubectl reads it."""

import sys
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml

MAX_BYTES: Final = 8 << 20


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
