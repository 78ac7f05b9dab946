"""Writes an OCI image layout as one tar, which `ctr images import` and others read; the same input, the same bytes.

Source: OCI image-spec v1.0 (image layout, index, manifest, config).
"""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
"""The architectures that images are for, and the kernel's words for them."""
INDEX: Final = "application/vnd.oci.image.index.v1+json"
"""The media type of the manifests of several architectures."""
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
"""The media type of a manifest."""


def architecture() -> str:
    """This machine's, in OCI's words."""
    machine = os.uname().machine
    return next((name for name, one in MACHINES.items() if one == machine), machine)


def layer(directory: Path) -> bytes:
    """A tar of all below a directory: sorted, root's, of time 0. Files that may be run have 755, others 644."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(directory.rglob("*")):
            entry = tarfile.TarInfo(str(path.relative_to(directory)))
            if path.is_symlink():
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
                archive.addfile(entry)
            elif path.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if path.stat().st_mode & 0o1000 else 0o755
                archive.addfile(entry)
            elif path.is_file():
                add(archive, entry.name, path.read_bytes(), 0o755 if path.stat().st_mode & 0o111 else 0o644)
    return buffer.getvalue()


def write_archive(
    file: Path, images: Mapping[str, Sequence[bytes]], settings: Mapping[str, Any], names: Sequence[str]
) -> str:
    """Write the image under these names, and return its digest. `settings` are the `config` of its config.

    `images` has the layers of each architecture. Of one, the digest is its manifest's, of several their index's.
    """
    blobs: dict[str, bytes] = {}
    listed = []
    for name, layers in images.items():
        config, manifest = describe(layers, settings, name)
        blobs |= {digest(blob): blob for blob in (*layers, config, manifest)}
        listed.append(_descriptor("manifest.v1+json", manifest))
    described = listed[0]
    if len(images) > 1:
        platforms = [{"platform": {"architecture": name, "os": "linux"}} for name in images]
        entries = [one | platform for one, platform in zip(listed, platforms, strict=True)]
        index = _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})
        blobs[digest(index)] = index
        described = _descriptor("index.v1+json", index)
    manifests = [described | {"annotations": {"io.containerd.image.name": name}} for name in names]
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        add(archive, "index.json", _json({"schemaVersion": 2, "manifests": manifests}))
        for name, blob in blobs.items():
            add(archive, f"blobs/sha256/{name.removeprefix('sha256:')}", blob)
    return str(described["digest"])


def describe(layers: Sequence[bytes], settings: Mapping[str, Any], architecture: str) -> tuple[bytes, bytes]:
    """The config and the manifest of an image; `settings` are the `config` of its config."""
    config = _json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [digest(one) for one in layers]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor("config.v1+json", config),
            "layers": [_descriptor("layer.v1.tar", one) for one in layers],
        }
    )
    return config, manifest


def add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    """A file of root's, of time 0."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _descriptor(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(blob), "size": len(blob)}
