"""The lab's two container images, made of the machine's static busybox: nothing is pulled.

Source: OCI image-spec v1.0 (image layout, index, manifest, config).
"""

import hashlib
import io
import json
import os
import struct
import tarfile
from pathlib import Path

from integration.lab.process import LabError

BUSYBOX = "localhost/criproxy/busybox:1"
PAUSE = "localhost/criproxy/pause:1"
NAMES = (BUSYBOX, PAUSE)

APPLETS = """\
ash awk cat chmod cp cut date dd df echo env expr false free grep head hostname id kill ls md5sum mkdir mv nc
nice nproc od ps pwd readlink renice rm seq sh sha256sum sleep sort stat sync tail taskset tee test timeout
top touch tr true uname usleep wc wget yes
"""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PT_INTERP = 3


def read_busybox(busybox: Path = Path("/bin/busybox")) -> bytes:
    """The machine's busybox. Raises LabError when it is missing or not static."""
    remedy = "install Debian's busybox-static"
    try:
        content = busybox.read_bytes()
    except OSError as error:
        raise LabError(f"{busybox}: {error.strerror}; {remedy}") from error
    if PT_INTERP in _program_header_types(content):
        raise LabError(f"{busybox} is linked dynamically and can't run alone in an image: {remedy}")
    return content


def write_archive(file: Path) -> None:
    """Write an OCI archive of one image under both `NAMES`; the same busybox gives the same bytes.

    Raises LabError when busybox is missing or not static.
    """
    layer = _layer(read_busybox())
    config = _json(
        {
            "architecture": _architecture(),
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": ["sleep", "2147483647"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("config.v1+json", config),
            "layers": [_descriptor("layer.v1.tar", layer)],
        }
    )
    described = _descriptor("manifest.v1+json", manifest)
    manifests = [described | {"annotations": {"io.containerd.image.name": name}} for name in NAMES]
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", _json({"schemaVersion": 2, "manifests": manifests}))
        for blob in (layer, config, manifest):
            _add(archive, f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}", blob)


def _program_header_types(elf: bytes) -> list[int]:
    """The types of a 64-bit little-endian ELF file's program headers. Source: elf(5)."""
    (offset,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    return [struct.unpack_from("<I", elf, offset + index * size)[0] for index in range(count)]


def _architecture() -> str:
    machine = os.uname().machine
    return ARCHITECTURES.get(machine, machine)


def _layer(busybox: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as layer:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("proc", 0o555), ("sys", 0o555), ("tmp", 0o1777)):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, mode
            layer.addfile(directory)
        _add(layer, "bin/busybox", busybox, 0o755)
        for name in APPLETS.split():
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(link)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _descriptor(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": _digest(blob), "size": len(blob)}
