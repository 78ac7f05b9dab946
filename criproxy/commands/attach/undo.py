"""Decides how a kubelet is taken off criproxy, and how half an attach is undone; touches no file."""

import contextlib
import re
from collections.abc import Collection, Iterator
from typing import Final

from msgspec import Struct

from criproxy.commands.attach import dropin, kubeletconfig
from criproxy.commands.attach.edits import Edit, Files, Overlay, Plan, RefusedError
from criproxy.commands.attach.endpoint import Program, command, resolve
from criproxy.kubelet.attachment import AttachRecord, SavedFile, sha256
from criproxy.kubelet.flags import ENDPOINT_FLAG, socket_path

_MOST_PLACES: Final = 8


class Attached(Struct, frozen=True):
    """What is known of a kubelet that may be attached.

    `unit_files` are in systemd's order, our drop-in the last.
    `running` is its command line, () when it does not run. `listens` are all sockets of criproxy; `runtime` is the
    endpoint to go back to where nothing on the node tells.
    """

    unit: str
    unit_files: tuple[str, ...]
    running: tuple[str, ...]
    program: Program
    record: AttachRecord | None
    listens: Collection[str]
    runtime: str


def rollback_plan(record: AttachRecord, files: Files) -> Plan:
    """Back to the bytes that were there; what somebody else wrote meanwhile stays, and is told."""
    edits, notes = [], []
    for saved in reversed(record.saved):
        now = files.read(saved.path)
        if now == saved.before:
            continue
        if now is not None and sha256(now) == saved.after_sha256:
            edits.append(Edit(saved.path, now, saved.before))
        else:
            notes.append(f"{saved.path} was changed by somebody else meanwhile, and is left as it is")
    return Plan(tuple(edits), tuple(notes))


def detach_plan(known: Attached, files: Files) -> Plan:
    """How to take this kubelet off criproxy; no edits: it is not on it. Raises RefusedError.

    Without a record, what is on the node tells. What kubelet itself could not read is told, and keeps nobody here.
    """
    view, notes, runtime = Overlay(files, {}), list[str](), known.runtime
    path = dropin.path(known.unit)
    text = _text(files.read(path))
    if text is not None and (listen := dropin.listen_of(text) or _listen_in(text, known.listens)):
        runtime = dropin.endpoint_before(text) or runtime
        notes += _undo_dropin(known, view, text, listen)
    if known.record is not None:
        runtime = known.record.endpoint or runtime
        for saved in known.record.saved:
            if saved.path != path:
                notes += _undo_config(view, saved, known.record.listen)
    notes += _undo_rest(known, view, runtime)
    return Plan(view.edits(), tuple(notes))


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="surrogateescape")


def _listen_in(text: str, listens: Collection[str]) -> str:
    """For a drop-in of ours whose head somebody has rewritten."""
    return next((listen for listen in listens if f"{ENDPOINT_FLAG}=unix://{listen}" in text), "")


def _undo_dropin(known: Attached, view: Overlay, text: str, listen: str) -> Iterator[str]:
    path, record = dropin.path(known.unit), known.record
    saved = next((one for one in record.saved if one.path == path), None) if record else None
    view.put(path, None)
    if saved is not None and sha256(_bytes(text)) == saved.after_sha256:
        return
    left = dropin.taken_out(text, listen, (record.copied if record else "") or _own_command(known, view))
    if left is not None:
        view.put(path, _bytes(left))
        yield f"{path} was changed since: only what criproxy wrote is taken out"


def _own_command(known: Attached, view: Overlay) -> str:
    """The command of the unit as it is without us."""
    with contextlib.suppress(ValueError):
        service, _ = resolve(known.unit_files, view, known.program, known.running)
        if setting := command(service):
            return setting.value
    return ""


def _undo_config(view: Overlay, saved: SavedFile, listen: str) -> Iterator[str]:
    now = view.read(saved.path)
    if now is None or now == saved.before:
        return
    if sha256(now) == saved.after_sha256:
        view.put(saved.path, saved.before)
        return
    try:
        text, before = now.decode(), (saved.before or b"").decode()
        if socket_path(kubeletconfig.values(text).get(kubeletconfig.ENDPOINT_KEY, "")) != listen:
            return  # it is somebody else's by now
        had = kubeletconfig.values(before).get(kubeletconfig.ENDPOINT_KEY) or None
        view.put(saved.path, kubeletconfig.with_endpoint(text, had).encode())
    except ValueError as error:
        raise RefusedError(f"{saved.path}: {error}: set containerRuntimeEndpoint back in it by hand") from error
    yield f"{saved.path} was changed since: only containerRuntimeEndpoint is set back"


def _undo_rest(known: Attached, view: Overlay, runtime: str) -> Iterator[str]:
    """Places that no record knows: set by hand, or by an attach whose record is lost."""
    target = socket_path(runtime)
    for _ in range(_MOST_PLACES):
        try:
            _, use = resolve(known.unit_files, view, known.program, known.running)
        except ValueError as error:  # kubelet cannot start either
            yield f"{error}: whether kubelet's files name criproxy elsewhere cannot be told"
            return
        places = ((use.endpoint, use.file), (use.image_endpoint, use.image_file))
        held = [(path, file) for endpoint, file in places if (path := socket_path(endpoint)) in known.listens]
        if not held:
            return
        listen, file = held[0]
        content = (view.read(file) if file else None) or b""
        if content.startswith(kubeletconfig.MARK.encode()):
            view.put(file, None)
            continue
        edited = _renamed(content, listen or "", target or "")
        if target is None or target in known.listens or edited == content:
            raise RefusedError(f"kubelet is sent to criproxy by {use.origin}: set its runtime's endpoint there by hand")
        view.put(file, edited)
        yield f"{file} names criproxy's socket, though no record of `criproxy attach` tells so: set to {target}"


def _renamed(content: bytes, path: str, new: str) -> bytes:
    """A socket's path exchanged wherever it stands alone."""
    return re.sub(re.escape(_bytes(path)) + rb"(?![\w./-])", lambda _: _bytes(new), content)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
