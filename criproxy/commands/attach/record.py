"""What `attach` remembers of the node as it was, so that it can be undone by another process, after any death."""

from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

STATE: Final = "/var/lib/criproxy/attach.json"
"""Where it is kept."""

VERSION: Final = 1


class Saved(Struct, frozen=True):
    """A file that was changed: its bytes before (None: there was none), and the hash of what was written."""

    path: str
    before: bytes | None
    after_sha256: str


class Record(Struct, frozen=True):
    """An attachment. `phase` "changing": whoever wrote this has not finished, and what it did must be undone.

    `endpoint` is what kubelet had, from `origin`; `listen` is the socket it got. `copied` is the command that was
    copied, from the file `copied_file`, which had the hash `copied_sha256` ("" for all three: none was).
    `previous` is the attachment that is being renewed. `ran`: kubelet ran before.
    """

    phase: Literal["changing", "attached"]
    unit: str
    listen: str
    endpoint: str
    origin: str
    saved: tuple[Saved, ...]
    copied: str = ""
    copied_file: str = ""
    copied_sha256: str = ""
    previous: "Record | None" = None
    version: int = VERSION
    ran: bool = True


def sha256(content: bytes) -> str:
    import hashlib  # it brings OpenSSL, 4 MB, and the daemon seldom needs it

    return hashlib.sha256(content).hexdigest()


def finished(record: Record) -> Record:
    """The record of an attach that is done. What it renewed goes back to what was there before the first one."""
    previous = record.previous
    if previous is None:
        return replace(record, phase="attached")
    if not record.saved:
        return replace(previous, phase="attached")
    earlier = {saved.path: saved for saved in previous.saved}
    saved = tuple(_original(one, earlier.pop(one.path, None)) for one in record.saved)
    return replace(record, phase="attached", previous=None, saved=(*saved, *earlier.values()))


def _original(saved: Saved, earlier: Saved | None) -> Saved:
    ours = earlier is not None and saved.before is not None and sha256(saved.before) == earlier.after_sha256
    return replace(saved, before=earlier.before) if ours and earlier is not None else saved


def to_json(record: Record) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def from_json(content: bytes) -> Record:
    """Raises ValueError for what is no record of this version."""
    record = msgspec.json.decode(content, type=Record)
    if record.version != VERSION:
        raise ValueError(f"version {record.version} is not {VERSION}")
    return record
