"""What an ELF file is of: its machine, and the libraries that it names. Source: elf(5)."""

import re
import subprocess
from pathlib import Path
from typing import Final

_MACHINES: Final = {62: "x86_64", 183: "aarch64"}
_MAGIC: Final = b"\x7fELF"


def is_elf(file: Path) -> bool:
    with file.open("rb") as content:
        return content.read(4) == _MAGIC


def machine(file: Path) -> str:
    """The machine that a 64-bit little-endian ELF file is of, as `uname -m` calls it. Raises KeyError for another."""
    header = file.read_bytes()[:20]
    assert header[:4] == _MAGIC, f"{file} is no ELF file"
    return _MACHINES[int.from_bytes(header[18:20], "little")]


def needed(file: Path) -> list[str]:
    """The libraries that it names, on whatever machine this runs."""
    done = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True)
    return re.findall(r"\(NEEDED\).*\[(.*)\]", done.stdout)
