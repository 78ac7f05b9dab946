"""A file with manifests, as kubectl reads it."""

import sys
from pathlib import Path

import yaml

from criproxy_cluster.vocabulary.manifests import MOST_BYTES, ManifestDocument, UnreadableManifestError, documents


class ManifestError(ValueError):
    """The file can't be read or converted; the message names it and the remedy."""


def read_documents(file: str) -> list[ManifestDocument]:
    """The documents of a YAML or JSON file, without empty ones. Raises ManifestError."""
    try:
        if file == "-":
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"{file}: it can't be read: {error.strerror}: name a file, or - for the input") from error
    try:
        return documents(data, yaml)
    except UnreadableManifestError as error:
        raise ManifestError(f"{file}: {error}: correct it, or split it") from error
