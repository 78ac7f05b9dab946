"""The record of an attachment as `attach` finishes and writes it."""

import msgspec
from msgspec.structs import replace

from criproxy.kubelet.attachment import AttachRecord, SavedFile, sha256


def finished(record: AttachRecord) -> AttachRecord:
    """The record of an attach that is done. What it renewed goes back to what was there before the first one."""
    previous = record.previous
    if previous is None:
        return replace(record, phase="attached")
    if not record.saved:
        return replace(previous, phase="attached")
    earlier = {saved.path: saved for saved in previous.saved}
    saved = tuple(_original(one, earlier.pop(one.path, None)) for one in record.saved)
    return replace(record, phase="attached", previous=None, saved=(*saved, *earlier.values()))


def _original(saved: SavedFile, earlier: SavedFile | None) -> SavedFile:
    ours = earlier is not None and saved.before is not None and sha256(saved.before) == earlier.after_sha256
    return replace(saved, before=earlier.before) if ours and earlier is not None else saved


def to_json(record: AttachRecord) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
