"""Decides how a kubelet is sent to criproxy: by which bytes of which file; touches none."""

import posixpath
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from criproxy.commands.attach import dropin, kubeletconfig
from criproxy.commands.attach.edits import Edit, Files, Overlay, Plan, RefusedError
from criproxy.commands.attach.endpoint import Program, Use, command, resolve, runs_kubelet
from criproxy.commands.attach.unitfile import Service
from criproxy.kubelet.attachment import AttachRecord, SavedFile, sha256
from criproxy.kubelet.flags import ENDPOINT_FLAG, socket_path

CRIO_SUFFIX: Final = "run/crio/crio.sock"
"""Kubelet takes CRI-O's statistics from cAdvisor, and tells CRI-O by this. Source: pkg/kubelet/cadvisor/util.go."""


class Sight(Struct, frozen=True):
    """A node's kubelet. `before`: as if we had no drop-in there; `now`: as its files say; `text`: our drop-in, if any.

    `unit_files` are the unit's, ours included.
    """

    unit: str
    unit_files: tuple[str, ...]
    service: Service
    before: Use
    now: Use
    program: Program
    text: str | None


def look(unit: str, unit_files: Sequence[str], files: Files, program: Program, running: Sequence[str]) -> Sight:
    """What there is; `running` is the command line of the kubelet that runs, () if none does.

    Raises RefusedError when systemd or kubelet could not read it either.
    """
    path = dropin.path(unit)
    content = files.read(path)
    bare = Overlay(files, {path: None})
    try:
        service, before = resolve(unit_files, bare, program, running)
        if before.config_dir:
            bare.put(posixpath.join(before.config_dir, dropin.NAME), None)
            service, before = resolve(unit_files, bare, program, running)
        _, now = resolve(with_ours(unit, unit_files), files, program, running)
    except ValueError as error:
        raise RefusedError(f"{unit}: {error}: kubelet cannot start like this; correct it first") from error
    text = None if content is None else content.decode(errors="surrogateescape")
    return Sight(unit, with_ours(unit, unit_files), service, before, now, program, text)


def with_ours(unit: str, unit_files: Sequence[str]) -> tuple[str, ...]:
    """Our drop-in comes last, and is read even while systemd has not seen it."""
    path = dropin.path(unit)
    return (*(one for one in unit_files if one != path), path)


def attach_plan(sight: Sight, listen: str, files: Files) -> Plan:
    """How to send this kubelet to the socket `listen`; no edits: it is sent there. Raises RefusedError."""
    setting = command(sight.service)
    copied = sight.text is not None and bool(dropin.listen_of(sight.text))
    if socket_path(sight.now.endpoint) == listen and not (
        copied and setting is not None and dropin.stale(sight.text or "", setting, listen)
    ):
        return Plan((), ())
    _check(sight, listen)
    before = sight.before
    if sight.program.has_flag and setting is not None and runs_kubelet(setting):
        text = dropin.write(setting, listen, before.endpoint)
        return Plan((_edit(files, dropin.path(sight.unit), text),), _notes(before))
    if before.by_flag or (sight.program.has_runtime_flag and sight.program.has_flag):
        raise RefusedError(
            f"{sight.unit} does not start kubelet by a command that a flag can be added to: by hand, set "
            f"{ENDPOINT_FLAG}=unix://{listen} where it gets its flags ({before.origin}), and restart it"
        )
    try:
        return _config_plan(before, listen, files)
    except ValueError as error:
        raise RefusedError(f"{before.config_file}: {error}") from error


def _config_plan(before: Use, listen: str, files: Files) -> Plan:
    endpoint = f"unix://{listen}"
    if before.config_dir:
        path = posixpath.join(before.config_dir, dropin.NAME)
        return Plan((_edit(files, path, kubeletconfig.drop_in(endpoint)),), _notes(before))
    content = files.read(before.config_file) if before.config_file else None
    if content is None:
        raise RefusedError(
            "kubelet has neither a command that a flag can be added to nor a configuration file: by hand, set "
            f"containerRuntimeEndpoint: {endpoint} where it gets its configuration, and restart it"
        )
    text = kubeletconfig.with_endpoint(content.decode(), endpoint)
    note = f"`kubeadm upgrade` writes {before.config_file} anew: run `criproxy attach` again after one"
    return Plan((_edit(files, before.config_file, text),), (note, *_notes(before)))


def _check(sight: Sight, listen: str) -> None:
    before = sight.before
    if not before.remote:
        raise RefusedError(
            f"{sight.unit}: this kubelet uses its built-in dockershim: move the node to containerd or CRI-O "
            "(--container-runtime=remote) first"
        )
    if socket_path(before.endpoint) is None:
        raise RefusedError(f"{sight.unit}: its endpoint {before.endpoint!r} is no unix socket")
    if before.endpoint.endswith(CRIO_SUFFIX) and not listen.endswith(CRIO_SUFFIX):
        raise RefusedError(
            f"kubelet tells CRI-O by an endpoint that ends with {CRIO_SUFFIX}, and reads its statistics accordingly: "
            f'set proxy.listen = "/run/criproxy/{CRIO_SUFFIX}" in criproxy\'s config and restart criproxy first'
        )


def _notes(before: Use) -> tuple[str, ...]:
    if not before.image_endpoint:
        return ()
    return (f"image calls stay on {before.image_endpoint}: criproxy has no need of them",)


def _edit(files: Files, path: str, text: str) -> Edit:
    return Edit(path, files.read(path), text.encode(errors="surrogateescape"))


def record_of(
    plan: Plan, sight: Sight, listen: str, files: Files, previous: AttachRecord | None, *, ran: bool
) -> AttachRecord:
    """What must be known to undo a plan, before it is done; `ran`: kubelet runs now."""
    setting = command(sight.service)
    is_copy = setting is not None and any(edit.path == dropin.path(sight.unit) for edit in plan.edits)
    return AttachRecord(
        phase="changing",
        unit=sight.unit,
        listen=listen,
        endpoint=sight.before.endpoint,
        origin=sight.before.origin,
        saved=tuple(SavedFile(edit.path, edit.before, sha256(edit.after or b"")) for edit in plan.edits),
        copied=setting.value if setting and is_copy else "",
        copied_file=setting.file if setting and is_copy else "",
        copied_sha256=sha256(files.read(setting.file) or b"") if setting and is_copy else "",
        previous=previous,
        ran=ran,
    )
