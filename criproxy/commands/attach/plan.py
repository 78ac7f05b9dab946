"""Decides by which bytes of which files kubelet is sent to criproxy, and taken off it again; touches none."""

import posixpath
from collections.abc import Callable, Collection, Iterator
from typing import Final

from msgspec import Struct

from criproxy.commands.attach import dropin, kubeletconfig
from criproxy.commands.attach.edits import Edit, EditPlan, RefusedError
from criproxy.commands.attach.kubelet import UNNAMED, NodeKubelet, Use, renamed
from criproxy.kubelet.attachment import DROPIN, ENDPOINT_KEY, NAME, AttachRecord, SavedFile, sha256
from criproxy.kubelet.flags import ENDPOINT_FLAG, socket_path
from criproxy.kubelet.process import UNIT

CRIO_SUFFIX: Final = "run/crio/crio.sock"
"""Kubelet takes CRI-O's statistics from cAdvisor, and tells CRI-O by this. Source: pkg/kubelet/cadvisor/util.go."""

Read = Callable[[str], bytes | None]
"""A file's content; None: there is no such file. Raises NodeError."""


class Attached(Struct, frozen=True):
    """What is known of a kubelet that may be attached.

    `files` may name its endpoint, and `command` is the unit's without us. `listens` are all sockets of criproxy;
    `runtime` is the endpoint to go back to where nothing on the node tells.
    """

    files: tuple[str, ...]
    command: str
    record: AttachRecord | None
    listens: Collection[str]
    runtime: str


def endpoint_before(use: Use, listen: str, runtime: str, read: Read) -> str:
    """The endpoint that kubelet had without us; `runtime` where it uses us already, and no drop-in of ours tells."""
    if socket_path(use.endpoint) != listen:
        return use.endpoint
    return dropin.endpoint_before(text_of(read(DROPIN))) or f"unix://{runtime}"


def attach_plan(kubelet: NodeKubelet, listen: str, before: str, read: Read) -> EditPlan:
    """How to send this kubelet to the socket `listen`; no edits: its files send it there. Raises RefusedError."""
    command, use, text = kubelet.command, kubelet.use, text_of(read(DROPIN))
    try:
        takes_a_flag = command is not None and command.takes_a_flag()
    except ValueError as error:
        raise RefusedError(f"{UNIT}: {error}: kubelet cannot start like this; correct it first") from error
    is_stale = command is not None and dropin.is_stale(text, command, listen)
    if socket_path(use.endpoint) == listen and use.origin != UNNAMED and not is_stale:
        return EditPlan(())
    _check(kubelet, listen, before)
    if kubelet.program.has_flag and command is not None and takes_a_flag:
        return EditPlan(_edits(DROPIN, read, dropin.write(command, listen, before)), _notes(use))
    if use.by_flag or (kubelet.program.has_runtime_flag and kubelet.program.has_flag):
        raise RefusedError(
            f"{UNIT} does not start kubelet by a command that a flag can be added to: by hand, set "
            f"{ENDPOINT_FLAG}=unix://{listen} where it gets its flags ({use.origin}), and restart it"
        )
    try:
        return _config_plan(use, listen, read)
    except ValueError as error:
        raise RefusedError(f"{use.config_file}: {error}") from error


def _config_plan(use: Use, listen: str, read: Read) -> EditPlan:
    endpoint = f"unix://{listen}"
    if use.config_dir:
        path = posixpath.join(use.config_dir, NAME)
        return EditPlan(_edits(path, read, kubeletconfig.drop_in(endpoint)), _notes(use))
    content = read(use.config_file) if use.config_file else None
    if content is None:
        raise RefusedError(
            "kubelet has neither a command that a flag can be added to nor a configuration file: by hand, set "
            f"{ENDPOINT_KEY}: {endpoint} where it gets its configuration, and restart it"
        )
    note = f"`kubeadm upgrade` writes {use.config_file} anew: run `criproxy attach` again after one"
    text = kubeletconfig.with_endpoint(content.decode(), endpoint)
    return EditPlan(_edits(use.config_file, read, text), (note, *_notes(use)))


def _check(kubelet: NodeKubelet, listen: str, before: str) -> None:
    if not kubelet.use.remote:
        raise RefusedError(
            f"{UNIT}: this kubelet uses its built-in dockershim: move the node to containerd or CRI-O "
            "(--container-runtime=remote) first"
        )
    if socket_path(before) is None:
        raise RefusedError(f"{UNIT}: its endpoint {before!r} is no unix socket")
    if before.endswith(CRIO_SUFFIX) and not listen.endswith(CRIO_SUFFIX):
        raise RefusedError(
            f"kubelet tells CRI-O by an endpoint that ends with {CRIO_SUFFIX}, and reads its statistics accordingly: "
            f'set proxy.listen = "/run/criproxy/{CRIO_SUFFIX}" in criproxy\'s config and restart criproxy first'
        )


def _notes(use: Use) -> tuple[str, ...]:
    if not use.image_endpoint:
        return ()
    return (f"image calls stay on {use.image_endpoint}: criproxy has no need of them",)


def _edits(path: str, read: Read, text: str) -> tuple[Edit, ...]:
    now, after = read(path), _bytes(text)
    return () if now == after else (Edit(path, now, after),)


def detach_plan(known: Attached, read: Read) -> EditPlan:
    """How to take this kubelet off criproxy; no edits: no file sends it there. Raises RefusedError.

    What nobody has changed since goes back to the bytes that were there; else only what is ours is taken out. Without
    a record, what is on the node tells.
    """
    changed: dict[str, bytes | None] = {}
    notes, runtime = list[str](), known.runtime
    dropped = read(DROPIN)
    text = text_of(dropped)
    if listen := dropin.listen_of(text) or _listen_in(text, known.listens):
        runtime = dropin.endpoint_before(text) or runtime
        changed[DROPIN] = _without_us(known, text, listen)
        if changed[DROPIN] is not None:
            notes.append(f"{DROPIN} was changed since: only what criproxy wrote is taken out")
    for saved in known.record.saved if known.record else ():
        if saved.path != DROPIN:
            notes += _undo_config(saved, read(saved.path), known.record.listen if known.record else "", changed)
    runtime = (known.record.endpoint if known.record else "") or runtime
    for path in dict.fromkeys(known.files):
        notes += _undo_rest(known, path, changed.get(path, read(path)), runtime, changed)
    edits = (Edit(path, read(path), after) for path, after in changed.items())
    return EditPlan(tuple(edit for edit in edits if edit.before != edit.after), tuple(notes))


def _listen_in(text: str, listens: Collection[str]) -> str:
    """For a drop-in of ours whose head somebody has rewritten."""
    return next((listen for listen in listens if f"{ENDPOINT_FLAG}=unix://{listen}" in text), "")


def _without_us(known: Attached, text: str, listen: str) -> bytes | None:
    record = known.record
    if record and any(saved.path == DROPIN and saved.after_sha256 == sha256(_bytes(text)) for saved in record.saved):
        return None
    left = dropin.taken_out(text, listen, (record.copied if record else "") or known.command)
    return None if left is None else _bytes(left)


def _undo_config(saved: SavedFile, now: bytes | None, listen: str, changed: dict[str, bytes | None]) -> Iterator[str]:
    if now is None or now == saved.before:
        return
    if sha256(now) == saved.after_sha256:
        changed[saved.path] = saved.before
        return
    try:
        text, before = now.decode(), (saved.before or b"").decode()
        if socket_path(kubeletconfig.endpoint_of(text)) != listen:
            return  # it is somebody else's by now
        changed[saved.path] = kubeletconfig.with_endpoint(text, kubeletconfig.endpoint_of(before) or None).encode()
    except ValueError as error:
        raise RefusedError(f"{saved.path}: {error}: set {ENDPOINT_KEY} back in it by hand") from error
    yield f"{saved.path} was changed since: only {ENDPOINT_KEY} is set back"


def _undo_rest(
    known: Attached, path: str, content: bytes | None, runtime: str, changed: dict[str, bytes | None]
) -> Iterator[str]:
    """A place that no record knows: set by hand, or by an attach whose record is lost."""
    text, target = text_of(content), socket_path(runtime)
    listen = next((one for one in known.listens if renamed(text, one, "") != text), None)
    if listen is None:
        return
    if text.startswith(dropin.MARK):
        changed[path] = None
        return
    if target is None or target in known.listens:
        raise RefusedError(f"kubelet is sent to criproxy by {path}: set its runtime's endpoint there by hand")
    changed[path] = _bytes(renamed(text, listen, target))
    yield f"{path} names criproxy's socket, though no record of `criproxy attach` tells so: set to {target}"


def text_of(content: bytes | None) -> str:
    return (content or b"").decode(errors="surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
