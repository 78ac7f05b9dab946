"""Attach, step by step: look, check, remember, change, restart, wait, and undo all of it when a step fails."""

import contextlib

from criproxy.commands.attach import byhand
from criproxy.commands.attach.edits import Plan, RefusedError
from criproxy.commands.attach.endpoint import Program, resolve
from criproxy.commands.attach.machine import NodeError
from criproxy.commands.attach.node import UnitState
from criproxy.commands.attach.plan import Sight, attach_plan, look, record_of
from criproxy.commands.attach.record import finished
from criproxy.commands.attach.steps import DROPIN, UNIT, FailedError, Steps, in_words
from criproxy.kubelet.attachment import AttachRecord
from criproxy.kubelet.flags import ENDPOINT_FLAG, socket_path


def attach(steps: Steps) -> None:
    """Send this node's kubelet through criproxy. Raises RefusedError, NodeError and FailedError."""
    with steps.alone():
        steps.repair()
        state = steps.loaded()
        if state is None:
            raise RefusedError(_advice(steps))
        _check_record(steps)
        program = steps.program(state)
        sight = look(UNIT, state.files, steps.node, program, steps.words(state))
        plan = attach_plan(sight, steps.proxy.listen, steps.node)
        running = steps.running(state, program)
        if not plan.edits and (running is None or socket_path(running.endpoint) == steps.proxy.listen):
            steps.say(f"already attached: kubelet uses {sight.now.endpoint}, by {sight.now.origin}")
            return
        steps.say(f"kubelet uses {sight.before.endpoint}, by {sight.before.origin}")
        _check_proxy(steps, sight)
        if state.active == "active":
            steps.wellness.check_now(running or sight.now)
        if steps.terms.dry_run:
            steps.preview(plan, state)
        else:
            _change(steps, plan, sight, state)


def _advice(steps: Steps) -> str:
    command = ("systemctl", "list-units", "--plain", "--no-legend", "--all", "--type=service")
    status, output = steps.node.machine.run(command, 30.0)
    units = [line.split()[0] for line in output.splitlines() if line.split()] if status == 0 else []
    return byhand.advice(steps.proxy.listen, units, list(steps.node.processes()))


def _check_record(steps: Steps) -> None:
    record = steps.node.load()
    if record is not None and record.phase == "attached" and record.listen != steps.proxy.listen:
        raise RefusedError(
            f"kubelet is attached to {record.listen}, and {steps.proxy.config_file} says {steps.proxy.listen}: "
            "`criproxy detach` first"
        )


def _check_proxy(steps: Steps, sight: Sight) -> None:
    """Kubelet must find the same runtime behind criproxy that it uses now."""
    kubelets, proxy = socket_path(sight.before.endpoint) or "", steps.proxy
    if kubelets != proxy.listen and not steps.node.same_socket(kubelets, proxy.runtime):
        raise RefusedError(
            f"kubelet uses the runtime at {kubelets}, and criproxy the one at {proxy.runtime}: set "
            f'proxy.runtime = "{kubelets}" in {proxy.config_file} and restart criproxy'
        )
    steps.say(f"criproxy answers at {proxy.listen} for {proxy.check(steps.node)}")
    if proxy.is_blind(steps.node):
        steps.say("note: proxy.blind is on: calls are not counted, so whether kubelet's come is not waited for")


def _change(steps: Steps, plan: Plan, sight: Sight, state: UnitState) -> None:
    node, proxy = steps.node, steps.proxy
    record = record_of(plan, sight, proxy.listen, node, node.load(), ran=state.active == "active")
    blind, calls = proxy.is_blind(node), proxy.calls(node)
    _remember(steps, record)
    try:
        steps.write(plan)
        _check_loaded(steps, plan)
        if state.active == "active":
            node.restart(UNIT)
            pid = steps.wellness.wait(
                sight.now, lambda: blind or proxy.has_carried(node, calls), "criproxy has seen no call of kubelet's"
            )
            _check_process(steps, plan, pid)
        node.save(finished(record))
    except BaseException as error:
        steps.terms.hold()
        steps.say(f"failed: {in_words(error)}")
        steps.say("putting back what was there")
        steps.roll_back(record)
        raise FailedError("rolled back: kubelet is as it was") from error
    if state.active != "active":
        steps.say(f"attached: kubelet does not run ({state.active}); it will use criproxy from its start on")
    elif blind:
        steps.say("attached: kubelet is well; that its calls come through criproxy was not seen")
    else:
        steps.say("attached: kubelet is well, and calls come through criproxy")


def _remember(steps: Steps, record: AttachRecord) -> None:
    """Before anything is changed, so that whoever comes after a kill can undo it."""
    try:
        steps.node.save(record)
    except BaseException:
        with contextlib.suppress(NodeError):
            steps.node.save(record.previous)
        raise


def _check_loaded(steps: Steps, plan: Plan) -> None:
    """Systemd must have taken the drop-in, and nothing after it may set another command."""
    if not any(edit.path == DROPIN for edit in plan.edits):
        return
    files = steps.node.unit(UNIT).files
    if DROPIN not in files:
        raise NodeError(f"systemd does not read {DROPIN}: is {UNIT} masked, or are drop-ins for it disabled?")
    service, use = resolve(files, steps.node, Program())
    if socket_path(use.endpoint) != steps.proxy.listen:
        other = ", ".join(setting.file for setting in service.of("ExecStart"))
        raise NodeError(f"{other} sets another command after {DROPIN}: take ExecStart= out of it")


def _check_process(steps: Steps, plan: Plan, pid: int) -> None:
    if any(edit.path == DROPIN for edit in plan.edits):
        flag = f"{ENDPOINT_FLAG}=unix://{steps.proxy.listen}"
        words = steps.node.command_line(pid)
        if words and flag not in words:
            raise NodeError(f"kubelet (pid {pid}) was started without {flag}")
