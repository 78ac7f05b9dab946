"""Detach, step by step: the inverse of attach, also when criproxy is dead, its config broken or its record lost."""

import contextlib
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from criproxy.commands.attach import byhand
from criproxy.commands.attach.edits import Edit, EditPlan, NodeError
from criproxy.commands.attach.host import TimedOutError, UnitState
from criproxy.commands.attach.kubelet import UNNAMED, NodeKubelet, look
from criproxy.commands.attach.plan import detach_plan
from criproxy.commands.attach.steps import Steps, hold, say
from criproxy.kubelet import rancher
from criproxy.kubelet.attachment import AttachRecord, same_socket
from criproxy.kubelet.flags import EMBEDDING, UNIT, socket_path


def detach(steps: Steps) -> None:
    """Send this node's kubelet back to its runtime. Raises NodeError."""
    with steps.alone():
        steps.repair()
        kubelet = look(steps.host)
        if kubelet is None:
            _detach_unseen(steps)
            return
        record, proxy = steps.host.load(), steps.proxy
        listens = _listens(steps, record)
        kubelets = socket_path(kubelet.endpoint) or ""
        if _leads_to_us(steps.host.root, listens, kubelet.endpoint):
            listens.add(kubelets)  # by a link on its way, perhaps
        plan = detach_plan(kubelet, record, listens, f"unix://{proxy.runtime}", steps.host.read)
        # Kubelet may run on criproxy whatever its files say by now: an earlier detach was ended there.
        reads_file = record is not None and not record.copied
        runs_on_criproxy = bool(kubelet.unit.pid) and (kubelets in listens or reads_file)
        if not plan.edits and not runs_on_criproxy:
            if kubelet.unit.active != "active":  # it may lie unused beside the kubelet of another set-up
                _check_nobody_calls(steps, kubelet.unit, listens, asks=True)
            say("not attached: kubelet does not use criproxy")
            if not steps.dry_run:
                steps.host.save(None)
        elif not plan.edits and _is_sent_by_a_script(kubelet):
            raise NodeError(
                f"kubelet is sent to criproxy by {UNNAMED}, which no file of {kubelet.unit.name} gives: set its "
                "runtime's endpoint by hand where it is from, and restart it"
            )
        elif steps.dry_run:
            steps.preview(plan, kubelet.unit)
        else:
            _change(steps, plan, kubelet, listens)


def _listens(steps: Steps, record: AttachRecord | None) -> set[str]:
    """All sockets of criproxy's."""
    return {steps.proxy.listen, *([record.listen] if record else [])}


def _leads_to_us(root: Path, listens: Collection[str], endpoint: str) -> bool:
    path = socket_path(endpoint)
    return path is not None and any(same_socket(root, path, one) for one in listens)


def _is_sent_by_a_script(kubelet: NodeKubelet) -> bool:
    """Whether the endpoint is a flag of what starts kubelet: then a restart would change nothing."""
    with contextlib.suppress(NodeError):
        takes_a_flag = kubelet.command is not None and not kubelet.command.obstacle()
        return kubelet.origin == UNNAMED and not takes_a_flag
    return False


def _change(steps: Steps, plan: EditPlan, kubelet: NodeKubelet, listens: Collection[str]) -> None:
    done: list[Edit] = []
    try:
        for edit in plan.edits:
            done.append(edit)
            steps.host.apply(edit)
        hold()
        steps.host.reload()
    except TimedOutError as error:  # forward only: systemd goes on with it
        again = "run `criproxy detach` again when the node has less to do"
        raise NodeError(f"kubelet's files no longer name criproxy, but {error}: {again}") from error
    except BaseException as error:
        steps.failed(error)
        undone = [Edit(edit.path, edit.after, edit.before) for edit in reversed(done)]
        steps.put_back(undone, ran=kubelet.unit.active == "active")
        raise NodeError("rolled back: kubelet is still attached") from error
    steps.report(plan)
    _use_runtime(steps, kubelet.unit.active, listens)
    steps.host.save(None)
    for line in steps.proxy.offline_pods(steps.host):
        say(line)


def _use_runtime(steps: Steps, active: str, listens: Collection[str]) -> None:
    """Forward only: whoever detaches does not want kubelet back on criproxy."""
    if active not in ("active", "activating"):
        say(f"detached: kubelet does not run ({active})")
        return
    try:
        kubelet = steps.restart_and_wait()
    except NodeError as error:
        if active == "active":
            raise NodeError(f"kubelet's files no longer name criproxy, but {error}") from error
        say(f"detached, but kubelet is not well, as it was not before: {error}")
        return
    if _leads_to_us(steps.host.root, listens, kubelet.endpoint):
        raise NodeError(f"kubelet is still sent to criproxy by {kubelet.origin}: set its runtime's endpoint by hand")
    say(f"detached: kubelet is well on {kubelet.endpoint}")


def _detach_unseen(steps: Steps) -> None:
    """There is no kubelet.service (any more), or nobody can tell by which words another unit runs kubelet."""
    host, record = steps.host, steps.host.load()
    listens = _listens(steps, record)
    plan = detach_plan(None, record, listens, f"unix://{steps.proxy.runtime}", host.read)
    unit, was_attached = host.kubelet_unit(), bool(plan.edits) or record is not None
    if was_attached and steps.dry_run:
        steps.preview(plan, unit)
        return
    restarts = was_attached and unit.active in ("active", "activating")
    if was_attached:
        hold()
        steps.write(plan)
    if restarts:
        host.restart(unit.name)
    _check_nobody_calls(steps, unit, listens, asks=not restarts)  # criproxy's answer may be from before the restart
    if not steps.dry_run:
        host.save(None)
    if not was_attached or not unit.loaded:
        say(f"not attached: there is no {UNIT}")
        return
    say(f"detached: {unit.name} has its files of before, and was started anew if it ran")
    for line in steps.proxy.offline_pods(host):
        say(line)


def _check_nobody_calls(steps: Steps, unit: UnitState, listens: Collection[str], asks: bool) -> None:
    """Raise NodeError where a kubelet whose words nobody can tell uses criproxy; if it `asks`, also by its status."""
    processes = list(steps.host.processes())
    if found := _sent_by_hand(steps, unit, listens, processes) or (steps.proxy.caller(steps.host) if asks else ""):
        raise NodeError(f"a kubelet uses criproxy by somebody's hand ({found}); {byhand.way_back(processes)}")


def _sent_by_hand(
    steps: Steps, unit: UnitState, listens: Collection[str], processes: Sequence[tuple[str, Sequence[str], str]]
) -> str:
    """What names criproxy's socket to a kubelet whose words nobody can tell; "": nothing. Raises NodeError."""
    host = steps.host
    if byhand.is_sent_to(partial(_leads_to_us, host.root, listens), processes):
        return "an argument of its process names criproxy's socket"
    files = byhand.files_of_arguments(processes)
    try:
        files += rancher.config_files(host.root, unit.name) if unit.name in EMBEDDING else ()
    except OSError as error:
        raise NodeError(f"{error.filename}: {error.strerror}: run this as root, and check the file") from error
    for path in files:
        lines = [line for line in host.text(path).splitlines() if not line.lstrip().startswith("#")]
        if any(listen in line for line in lines for listen in listens):
            return f"{path} names criproxy's socket"
    return ""
