"""Attach, step by step: look, check, remember, change, restart, wait, and undo all of it when a step fails."""

import contextlib
import functools

from msgspec.structs import replace

from criproxy.commands.attach import byhand
from criproxy.commands.attach.edits import EditPlan, NodeError
from criproxy.commands.attach.host import Host
from criproxy.commands.attach.kubelet import NodeKubelet, command_of, look
from criproxy.commands.attach.plan import attach_plan, begun, finished
from criproxy.commands.attach.steps import Steps, say
from criproxy.kubelet.attachment import DROPIN, AttachRecord, same_socket
from criproxy.kubelet.flags import ENDPOINT_FLAG, UNIT, socket_path
from criproxy.kubelet.process import command_line


def attach(steps: Steps) -> None:
    """Send this node's kubelet through criproxy. Raises NodeError."""
    _check_rootless(steps.host)
    with steps.alone():
        steps.repair()
        kubelet = look(steps.host)
        if kubelet is None:
            raise NodeError(byhand.advice(steps.proxy.listen, list(steps.host.processes())))
        known, listen = steps.host.load(), steps.proxy.listen
        _check_record(steps, known)
        before = kubelet.endpoint
        uses_us = same_socket(steps.host.root, socket_path(before) or "", listen)
        if uses_us:
            before = known.endpoint if known else f"unix://{steps.proxy.runtime}"
        plan = attach_plan(kubelet, listen, before, steps.host.read, uses_us=uses_us)
        if not plan.edits and uses_us:
            _follow(steps, known, kubelet)
            say(f"already attached: kubelet uses {kubelet.endpoint}, by {kubelet.origin}")
            return
        say(f"kubelet uses {before}, by {kubelet.origin}")
        _check_proxy(steps, before)
        if kubelet.unit.active == "active":
            steps.check_well(kubelet)
        if steps.dry_run:
            steps.preview(plan, kubelet.unit)
        else:
            _change(steps, plan, kubelet, before)


def _follow(steps: Steps, known: AttachRecord | None, kubelet: NodeKubelet) -> None:
    """Note where the command that was copied is now: a package may move it to another file as it is."""
    command = kubelet.command
    if known is None or command is None or command.text != known.copied or steps.dry_run:
        return
    steps.host.save(replace(known, copied_file=command.file))


def _check_rootless(host: Host) -> None:
    """Neither kubelet nor we may be in a user namespace: the cgroups of offline pods are root's."""
    if uid_map := host.rootless("/proc/self"):
        raise NodeError(
            f"this runs in a user namespace (/proc/self/uid_map has {uid_map}), where nothing can be done for the "
            "node's kubelet: run it as root on the host"
        )
    if kubelet := host.rootless_kubelet():
        raise NodeError(
            f"kubelet is rootless: it runs in a user namespace ({kubelet}), as those of usernetes and k3s --rootless "
            "do, and criproxy can't bound pods in there: leave it at its runtime, or run Kubernetes as root"
        )


def _check_record(steps: Steps, known: AttachRecord | None) -> None:
    if (
        known is not None
        and known.phase == "attached"
        and not same_socket(steps.host.root, known.listen, steps.proxy.listen)
    ):
        raise NodeError(
            f"kubelet is attached to {known.listen}, and {steps.proxy.config_file} says {steps.proxy.listen}: "
            "`criproxy detach` first"
        )


def _check_proxy(steps: Steps, before: str) -> None:
    """Kubelet must find the same runtime behind criproxy that it uses now."""
    kubelets, proxy = socket_path(before) or "", steps.proxy
    if kubelets != proxy.listen and not same_socket(steps.host.root, kubelets, proxy.runtime):
        raise NodeError(
            f"kubelet uses the runtime at {kubelets}, and criproxy the one at {proxy.runtime}: set "
            f'proxy.runtime = "{kubelets}" in {proxy.config_file} and restart criproxy'
        )
    say(f"criproxy answers at {proxy.listen} for {proxy.check(steps.host)}")


def _change(steps: Steps, plan: EditPlan, kubelet: NodeKubelet, before: str) -> None:
    host, proxy, active = steps.host, steps.proxy, kubelet.unit.active
    record = begun(plan, kubelet, before=before, listen=proxy.listen, previous=host.load())
    calls = proxy.calls(host)
    _remember(steps, record)
    try:
        steps.write(plan)
        _check_loaded(steps, plan)
        if active == "active":
            host.restart(kubelet.unit.name)
            steps.wait_until_well(kubelet, functools.partial(proxy.unseen, host, calls))
            _check_process(steps, plan)
        host.save(finished(record))
    except BaseException as error:
        steps.failed(error)
        steps.roll_back(record)
        raise NodeError("rolled back: kubelet is as it was") from error
    if active != "active":
        say(f"attached: kubelet does not run ({active}); it will use criproxy from its start on")
    else:
        say("attached: kubelet is well, and calls come through criproxy")


def _remember(steps: Steps, record: AttachRecord) -> None:
    """Before anything is changed, so that whoever comes after a kill can undo it."""
    try:
        steps.host.save(record)
    except BaseException:
        with contextlib.suppress(NodeError):
            steps.host.save(record.previous)
        raise


def _check_loaded(steps: Steps, plan: EditPlan) -> None:
    """Systemd must have taken the drop-in, and nothing after it may set another command."""
    if not plan.writes(DROPIN):
        return
    files = steps.host.unit(UNIT).files
    if DROPIN not in files:
        raise NodeError(f"systemd does not read {DROPIN}: is {UNIT} masked, or are drop-ins for it disabled?")
    command = command_of(steps.host, files)
    if command is None or command.file != DROPIN:
        other = command.file if command else f"one of {', '.join(files)}"
        raise NodeError(f"{other} sets another command after {DROPIN}: take ExecStart= out of it")


def _check_process(steps: Steps, plan: EditPlan) -> None:
    flag, words = f"{ENDPOINT_FLAG}=unix://{steps.proxy.listen}", command_line(steps.host.root)
    if plan.writes(DROPIN) and words and flag not in words:
        raise NodeError(f"kubelet was started without {flag}")
