"""The lab's two container images, made of the machine's static busybox: nothing is pulled."""

import io
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path

from cluster.image import oci
from integration.lab.process import LabError

BUSYBOX = "localhost/criproxy/busybox:1"
PAUSE = "localhost/criproxy/pause:1"
NAMES = (BUSYBOX, PAUSE)

APPLETS = """\
ash awk cat chmod cp cut date dd df echo env expr false free grep head hostname id kill ls md5sum mkdir mv nc
nice nproc od ps pwd readlink renice rm seq sh sha256sum sleep sort stat sync tail taskset tee test timeout
top touch tr true uname usleep wc wget yes
"""
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
    settings = {"Env": ["PATH=/bin"], "Cmd": ["sleep", "2147483647"]}
    oci.write_archive(file, {oci.architecture(): [layer(APPLETS, {})]}, settings, NAMES)


def layer(applets: str, files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """The layer of an image: the machine's busybox, links to it for its applets, and files, each with its mode.

    Raises LabError when busybox is missing or not static.
    """
    busybox = read_busybox()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("proc", 0o555), ("sys", 0o555), ("tmp", 0o1777)):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, mode
            archive.addfile(directory)
        oci.add(archive, "bin/busybox", busybox, 0o755)
        for name in applets.split():
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        for name, (content, mode) in files.items():
            oci.add(archive, name, content, mode)
    return buffer.getvalue()


def _program_header_types(elf: bytes) -> list[int]:
    """The types of a 64-bit little-endian ELF file's program headers. Source: elf(5)."""
    (offset,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    return [struct.unpack_from("<I", elf, offset + index * size)[0] for index in range(count)]
