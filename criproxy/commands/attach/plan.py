"""Decides by which bytes of which files kubelet is sent to criproxy, and taken off it again; touches none.

An attachment's record is made before anything is changed, finished afterwards, and undone from.
"""

import hashlib
import posixpath
from collections.abc import Callable, Collection
from typing import Final

from msgspec.structs import replace

from criproxy.commands.attach import dropin, kubeletconfig
from criproxy.commands.attach.edits import Edit, EditPlan, NodeError
from criproxy.commands.attach.kubelet import UNNAMED, NodeKubelet, renamed
from criproxy.kubelet.attachment import DROPIN, ENDPOINT_KEY, NAME, AttachRecord, SavedFile
from criproxy.kubelet.flags import EMBEDDING, ENDPOINT_FLAG, UNIT, socket_path

CRIO_SUFFIX: Final = "run/crio/crio.sock"
"""Kubelet recognises CRI-O by this, and takes its statistics from cAdvisor. Source: pkg/kubelet/cadvisor/util.go."""

RESTARTS: Final = "{unit} is more than kubelet: while it restarts, a server's API does not answer; pods run on"

Read = Callable[[str], bytes | None]
"""A file's content; None: there is no such file. Raises NodeError."""


def attach_plan(kubelet: NodeKubelet, listen: str, before: str, read: Read, *, uses_us: bool) -> EditPlan:
    """How to send this kubelet to the socket `listen`; no edits: its files send it there. Raises NodeError.

    `uses_us`: its endpoint is that socket already, by whatever links.
    """
    command, text = kubelet.command, text_of(read(DROPIN))
    obstacle = "it has no one command" if command is None else command.obstacle()
    is_stale = command is not None and dropin.is_stale(text, command, socket_path(kubelet.endpoint) or "")
    # What starts kubelet where no flag can be added, such as a script, may name the endpoint itself.
    is_lasting = kubelet.origin != UNNAMED or bool(obstacle)
    if uses_us and is_lasting and not is_stale:
        return EditPlan(())
    _check(kubelet, listen, before)
    if kubelet.has_flag and command is not None and not obstacle:
        return _written(kubelet, DROPIN, read, dropin.write(command, listen, before))
    if kubelet.by_flag and kubelet.unit.name in EMBEDDING:
        raise NodeError(
            f"{kubelet.unit.name} gives kubelet its endpoint as a flag, by {kubelet.origin}: take "
            f"{ENDPOINT_FLAG[2:]} out of its kubelet-arg, restart it, and run `criproxy attach` again"
        )
    if kubelet.by_flag or not kubelet.reads_files:
        raise NodeError(
            f"{UNIT} does not start kubelet by a command that a flag can be added to ({obstacle}): by hand, set "
            f"{ENDPOINT_FLAG}=unix://{listen} where it gets its flags ({kubelet.origin}), and restart it"
        )
    try:
        return _config_plan(kubelet, listen, read)
    except ValueError as error:
        raise NodeError(f"{kubelet.config_file}: {error}") from error


def _config_plan(kubelet: NodeKubelet, listen: str, read: Read) -> EditPlan:
    endpoint = f"unix://{listen}"
    if kubelet.config_dir:
        path = posixpath.join(kubelet.config_dir, NAME)
        notes = (RESTARTS.format(unit=kubelet.unit.name),) if kubelet.unit.name in EMBEDDING else ()
        return _written(kubelet, path, read, kubeletconfig.drop_in(endpoint), *notes)
    content = read(kubelet.config_file) if kubelet.config_file else None
    if content is None:
        raise NodeError(
            "kubelet has neither a command that a flag can be added to nor a configuration file: by hand, set "
            f"{ENDPOINT_KEY}: {endpoint} where it gets its configuration, and restart it"
        )
    note = f"`kubeadm upgrade` writes {kubelet.config_file} anew: run `criproxy attach` again after one"
    return _written(kubelet, kubelet.config_file, read, kubeletconfig.with_endpoint(content.decode(), endpoint), note)


def _check(kubelet: NodeKubelet, listen: str, before: str) -> None:
    if not kubelet.remote:
        raise NodeError(
            f"{UNIT}: this kubelet uses its built-in dockershim: move the node to containerd or CRI-O "
            "(--container-runtime=remote) first"
        )
    if kubelet.unread and not kubelet.by_flag:
        raise NodeError(f"{kubelet.unread}: write it as kubeadm does, so that kubelet's endpoint is known")
    if socket_path(before) is None:
        raise NodeError(f"{UNIT}: its endpoint {before!r} is no unix socket")
    if before.endswith(CRIO_SUFFIX) and not listen.endswith(CRIO_SUFFIX):
        raise NodeError(
            f"kubelet recognises CRI-O by an endpoint that ends with {CRIO_SUFFIX}, for its statistics: "
            f'set proxy.listen = "/run/criproxy/{CRIO_SUFFIX}" in criproxy\'s config and restart criproxy first'
        )


def _written(kubelet: NodeKubelet, path: str, read: Read, text: str, *notes: str) -> EditPlan:
    now, after = read(path), _bytes(text)
    if kubelet.image_endpoint:
        notes = (*notes, f"image calls stay on {kubelet.image_endpoint}: criproxy has no need of them")
    return EditPlan(() if now == after else (Edit(path, now, after),), notes)


def detach_plan(
    kubelet: NodeKubelet | None, record: AttachRecord | None, listens: Collection[str], runtime: str, read: Read
) -> EditPlan:
    """How to take this kubelet off criproxy; no edits: no file sends it there. Raises NodeError.

    `kubelet` None: it is gone, or its words can't be told, so that what we wrote is all that there is to go by.
    `listens` are all sockets of criproxy; `runtime` is the endpoint to go back to where no record has one. What nobody
    has changed since goes back to the bytes that were there; else only what is ours is taken out. Where there is no
    record, every file that kubelet has its endpoint from is looked at.
    """
    changed: dict[str, bytes | None] = {}
    notes: list[str] = []
    text = text_of(read(DROPIN))
    if listen := dropin.listen_of(text):
        copied = (record.copied if record else "") or (kubelet.command.text if kubelet and kubelet.command else "")
        left = dropin.taken_out(text, listen, copied) if kubelet else None
        changed[DROPIN] = None if left is None else _bytes(left)
        if left is not None:
            notes.append(f"{DROPIN} was changed since: only what criproxy wrote is taken out")
    if record is not None:
        runtime = record.endpoint or runtime
        for saved in record.saved:
            now = read(saved.path)
            is_ours = now is not None and sha256(now) == saved.after_sha256
            changed.setdefault(saved.path, saved.before if is_ours else now)
    for path in dict.fromkeys((*changed, *(kubelet.files if kubelet else ()))):
        changed[path], note = _off_criproxy(path, changed.get(path, read(path)), listens, runtime)
        notes += note
    edits = (Edit(path, read(path), after) for path, after in changed.items())
    return EditPlan(tuple(edit for edit in edits if edit.before != edit.after), tuple(notes))


def _off_criproxy(
    path: str, content: bytes | None, listens: Collection[str], runtime: str
) -> tuple[bytes | None, tuple[str, ...]]:
    """A file that names criproxy: set by hand, changed since attach, or by an attach whose record is lost."""
    text, target = text_of(content), socket_path(runtime)
    listen = next((one for one in listens if renamed(text, one, "") != text), None)
    if listen is None:
        return content, ()
    if text == kubeletconfig.drop_in(f"unix://{listen}"):
        return None, ()
    if target is None or target in listens:
        raise NodeError(f"kubelet is sent to criproxy by {path}: set its runtime's endpoint there by hand")
    note = f"{path} names criproxy's socket, and is not as `criproxy attach` has left it: only that is set, to {target}"
    return _bytes(renamed(text, listen, target)), (note,)


def begun(
    plan: EditPlan, kubelet: NodeKubelet, *, before: str, listen: str, previous: AttachRecord | None
) -> AttachRecord:
    """What must be known to undo a plan, before it is done; `before` is the endpoint that kubelet had."""
    copied = kubelet.command if plan.writes(DROPIN) else None
    return AttachRecord(
        phase="changing",
        listen=listen,
        endpoint=before,
        saved=tuple(SavedFile(edit.path, edit.before, sha256(edit.after or b"")) for edit in plan.edits),
        copied=copied.text if copied else "",
        copied_file=copied.file if copied else "",
        previous=previous,
        ran=kubelet.unit.active == "active",
    )


def finished(record: AttachRecord) -> AttachRecord:
    """The record of an attach that is done; what the one that it renews has changed elsewhere is still remembered."""
    previous = record.previous
    if previous is not None and not record.saved:
        return replace(previous, phase="attached")
    written = {saved.path for saved in record.saved}
    kept = (saved for saved in (previous.saved if previous else ()) if saved.path not in written)
    return replace(record, phase="attached", previous=None, saved=(*record.saved, *kept))


def rollback_plan(record: AttachRecord, read: Read) -> EditPlan:
    """Back to the bytes that were there; what somebody else wrote meanwhile stays, and is noted."""
    edits, notes = [], []
    for saved in reversed(record.saved):
        now = read(saved.path)
        if now == saved.before:
            continue
        if now is not None and sha256(now) == saved.after_sha256:
            edits.append(Edit(saved.path, now, saved.before))
        else:
            notes.append(f"{saved.path} was changed by somebody else meanwhile, and is left as it is")
    return EditPlan(tuple(edits), tuple(notes))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def text_of(content: bytes | None) -> str:
    return (content or b"").decode(errors="surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
