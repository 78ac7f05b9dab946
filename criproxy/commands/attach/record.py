"""The record of an attachment: made before anything is changed, finished afterwards, and undone from."""

from msgspec.structs import replace

from criproxy.commands.attach.edits import Edit, EditPlan
from criproxy.commands.attach.kubelet import NodeKubelet
from criproxy.commands.attach.plan import Read
from criproxy.kubelet.attachment import DROPIN, AttachRecord, SavedFile, sha256
from criproxy.kubelet.process import UNIT


def begun(
    plan: EditPlan, kubelet: NodeKubelet, read: Read, *, before: str, listen: str, previous: AttachRecord | None
) -> AttachRecord:
    """What must be known to undo a plan, before it is done; `before` is the endpoint that kubelet had."""
    copied = kubelet.command if plan.writes(DROPIN) else None
    return AttachRecord(
        phase="changing",
        unit=UNIT,
        listen=listen,
        endpoint=before,
        origin=kubelet.use.origin,
        saved=tuple(SavedFile(edit.path, edit.before, sha256(edit.after or b"")) for edit in plan.edits),
        copied=copied.text if copied else "",
        copied_file=copied.file if copied else "",
        copied_sha256=sha256(read(copied.file) or b"") if copied else "",
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
