"""Detach, step by step: the inverse of attach, also when criproxy is dead, its config broken or its record lost."""

from criproxy.commands.attach import byhand, dropin
from criproxy.commands.attach.edits import Edit, Plan, RefusedError, difference
from criproxy.commands.attach.machine import NodeError
from criproxy.commands.attach.node import UnitState
from criproxy.commands.attach.plan import with_ours
from criproxy.commands.attach.steps import DROPIN, UNIT, FailedError, Steps, in_words
from criproxy.commands.attach.undo import Attached, detach_plan
from criproxy.kubelet.flags import socket_path


def detach(steps: Steps) -> None:
    """Send this node's kubelet back to its runtime. Raises RefusedError, NodeError and FailedError."""
    with steps.alone():
        steps.repair()
        state = steps.loaded()
        if state is None:
            _detach_nobody(steps)
            return
        known = _known(steps, state)
        plan = detach_plan(known, steps.node)
        if not plan.edits and not _is_on_proxy(steps, known, state):
            steps.say("not attached: kubelet does not use criproxy")
            if not steps.terms.dry_run:
                steps.node.save(None)
        elif steps.terms.dry_run:
            steps.preview(plan, state)
        else:
            _change(steps, plan, state)


def _known(steps: Steps, state: UnitState) -> Attached:
    record, proxy = steps.node.load(), steps.proxy
    return Attached(
        unit=UNIT,
        unit_files=with_ours(UNIT, state.files),
        running=steps.words(state),
        program=steps.program(state),
        record=record,
        listens={proxy.listen, *([record.listen] if record else [])},
        runtime=f"unix://{proxy.runtime}",
    )


def _is_on_proxy(steps: Steps, known: Attached, state: UnitState) -> bool:
    """Whether kubelet runs on criproxy still, whatever its files say by now: an earlier detach was ended there."""
    try:
        running = steps.running(state, known.program)
    except ValueError:  # it could not start anew
        return False
    if running is None:
        return False
    read_from_file = known.record is not None and not known.record.copied
    return socket_path(running.endpoint) in known.listens or read_from_file


def _change(steps: Steps, plan: Plan, state: UnitState) -> None:
    done: list[Edit] = []
    try:
        for edit in plan.edits:
            done.append(edit)
            steps.node.apply(edit)
        steps.terms.hold()
        steps.node.reload()
    except BaseException as error:
        steps.terms.hold()
        steps.say(f"failed: {in_words(error)}")
        steps.say("putting back what was there")
        undone = [Edit(edit.path, edit.after, edit.before) for edit in reversed(done)]
        steps.put_back(undone, ran=state.active == "active")
        raise FailedError("rolled back: kubelet is still attached") from error
    steps.tell(plan)
    _use_runtime(steps, state)
    steps.node.save(None)
    for line in steps.proxy.offline_pods(steps.node):
        steps.say(line)


def _use_runtime(steps: Steps, state: UnitState) -> None:
    """Forward only: whoever detaches does not want kubelet back on criproxy."""
    if state.active not in ("active", "activating"):
        steps.say(f"detached: kubelet does not run ({state.active})")
        return
    try:
        use = steps.restart_and_wait()
    except NodeError as error:
        if state.active == "active":
            raise FailedError(f"kubelet's files no longer name criproxy, but {error}") from error
        steps.say(f"detached, but kubelet is not well, as it was not before: {error}")
    else:
        steps.say(f"detached: kubelet is well on {use.endpoint}")


def _detach_nobody(steps: Steps) -> None:
    """There is no kubelet.service (any more)."""
    node = steps.node
    content = node.read(DROPIN)
    ours = content is not None and bool(dropin.listen_of(content.decode(errors="surrogateescape")))
    plan = Plan((Edit(DROPIN, content, None),) if ours else ())
    if steps.terms.dry_run and ours:
        steps.say(difference(plan.edits).rstrip("\n"))
    elif ours:
        steps.write(plan)
    if byhand.is_sent_to(steps.proxy.listen, list(node.processes())):
        raise RefusedError(
            f"a kubelet that is no {UNIT} uses criproxy, by somebody's hand: set its runtime's endpoint there"
        )
    if not steps.terms.dry_run:
        node.save(None)
    steps.say(f"not attached: there is no {UNIT}")
