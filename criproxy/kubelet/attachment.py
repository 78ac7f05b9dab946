"""Whether kubelet uses criproxy, and the record that `criproxy attach` keeps of how it was before.

The record lets another process undo an attachment, after whatever death.
"""

import os
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from criproxy.kubelet.flags import ENDPOINT_FLAG, UNIT, flag, socket_path
from criproxy.kubelet.process import command_line, configured, read
from criproxy.kubelet.units import commands
from criproxy.model import AttachStatus

STATE: Final = "/var/lib/criproxy/attach.json"
"""Where the record is kept."""

NAME: Final = "zz-criproxy.conf"
"""Drop-ins are read in the order of their names: ours is the last, else another one's ExecStart= would win."""

DROPIN: Final = f"/etc/systemd/system/{UNIT}.d/{NAME}"
ENDPOINT_KEY: Final = "containerRuntimeEndpoint"
VERSION: Final = 1


class SavedFile(Struct, frozen=True):
    """A file that was changed: its bytes before (None: there was none), and the hash of what was written."""

    path: str
    before: bytes | None
    after_sha256: str


class AttachRecord(Struct, frozen=True):
    """An attachment. `phase` "changing": whoever wrote this has not finished, and what it did must be undone.

    `endpoint` is what kubelet had; `listen` is the socket it got. `copied` is the command that was
    copied, from the file `copied_file` ("" for both: none was). `previous` is the attachment that is being renewed.
    `ran`: kubelet ran before.
    """

    phase: Literal["changing", "attached"]
    listen: str
    endpoint: str
    saved: tuple[SavedFile, ...]
    copied: str = ""
    copied_file: str = ""
    previous: "AttachRecord | None" = None
    version: int = VERSION
    ran: bool = True


def to_json(record: AttachRecord) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def from_json(content: bytes) -> AttachRecord:
    """Raises ValueError for what is no record of this version."""
    record = msgspec.json.decode(content, type=AttachRecord)
    if record.version != VERSION:
        raise ValueError(f"version {record.version} is not {VERSION}")
    return record


def attachment(listen: str, root: Path = Path("/")) -> AttachStatus:
    """Whether kubelet uses the socket `listen`, and by what. Never raises."""
    try:
        words = command_line(root)
        if not words:
            return AttachStatus("unknown", f"no {UNIT} runs")
        given = flag(words, ENDPOINT_FLAG)
        endpoint, path = configured(words, root, ENDPOINT_KEY) if given is None else (given, "")
        if not same_socket(root, socket_path(endpoint) or "", listen):
            used = f"kubelet uses {endpoint or 'its default'}"
            return AttachStatus("no", f"{used}; see `criproxy attach`", _lost(root, listen, used))
        return AttachStatus("yes", f"by {ENDPOINT_KEY} in {path}" if given is None else _by_flag(root))
    except (OSError, ValueError) as error:
        return AttachStatus("unknown", str(error))


def same_socket(root: Path, one: str, other: str) -> bool:
    """Whether two paths in `root` are one socket, by whatever links, and whether it is there or not."""
    at_one, at_other = (root / path.lstrip("/") for path in (one, other))
    try:
        return at_one.samefile(at_other)
    except OSError:
        return os.path.realpath(at_one) == os.path.realpath(at_other)


def _lost(root: Path, listen: str, used: str) -> str:
    """What is wrong with it that kubelet does not use `listen`; "": nothing, as nobody has attached it."""
    try:
        record = from_json(read(root, STATE))
    except ValueError:  # there is none, or none that can be read: nothing is known for sure
        return ""
    if record.phase != "attached":
        return ""
    if not same_socket(root, record.listen, listen):
        return f"kubelet is attached to {record.listen}, not to {listen}: `criproxy detach`, then `criproxy attach`"
    return (
        f"{used}, though it was attached, so new offline pods are not bounded: `criproxy attach` again, or "
        "`criproxy detach` to forget the attachment"
    )


def _by_flag(root: Path) -> str:
    """The command that our drop-in copies may have been changed since, by a package or by somebody."""
    if not read(root, DROPIN):
        return "by a flag"
    record = read(root, STATE)
    copied = from_json(record) if record else None
    if not copied or not copied.copied_file or commands(read(root, copied.copied_file))[-1:] == [copied.copied]:
        return f"by {DROPIN}"
    return f"by {DROPIN}; the command in {copied.copied_file} has changed since: `criproxy attach` again takes that up"
