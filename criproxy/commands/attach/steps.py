"""The steps that attach and detach share: write, go back, undo what a run that was killed left half done, and wait.

Kubelet is well when its unit runs and keeps running, it says so itself, and all other checks pass.
"""

import contextlib
import signal
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from criproxy.commands.attach.criproxy_side import RunningCriproxy
from criproxy.commands.attach.edits import Edit, EditPlan, NodeError, difference
from criproxy.commands.attach.host import Host, UnitState
from criproxy.commands.attach.kubelet import NodeKubelet, look
from criproxy.commands.attach.plan import rollback_plan
from criproxy.kubelet.attachment import AttachRecord
from criproxy.kubelet.flags import UNIT

_WELL_S: Final = 120.0
"""Kubelet is up within seconds, but a node may be busy, and its disk slow."""

_STEADY_S: Final = 3.0
"""How long it must stay well: a kubelet that does not like its runtime ends within a second or two."""

_POLL_S: Final = 0.5


SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def hold() -> None:
    """Ignore signals from now on, while what was done is undone."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def say(line: str) -> None:
    print(line, flush=True)


class Steps(Struct, frozen=True):
    """On `host`, for the criproxy `proxy`. They raise NodeError when the node does not do what it must."""

    host: Host
    proxy: RunningCriproxy
    dry_run: bool

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Nobody else attaches or detaches meanwhile; a dry run does not mind."""
        return contextlib.nullcontext() if self.dry_run else self.host.lock()

    def write(self, plan: EditPlan) -> None:
        """Make the edits, and have systemd read them."""
        for edit in plan.edits:
            self.host.apply(edit)
        self.host.reload()
        self.report(plan)

    def restart_and_wait(self) -> NodeKubelet:
        """Start kubelet anew, and wait until it is well; returns it as it is then."""
        kubelet = None
        with contextlib.suppress(NodeError):  # nothing may keep the restart: kubelet may be down
            kubelet = look(self.host)
        self.host.restart(self.host.kubelet_unit().name)
        if kubelet := kubelet or look(self.host):
            self.wait_until_well(kubelet)
            kubelet = look(self.host)
        if kubelet is None:
            raise NodeError(f"there is no {UNIT} any more")
        return kubelet

    def repair(self) -> None:
        """Undo what a run that was killed has left half done."""
        record = self.host.load()
        if record is None or record.phase != "changing":
            return
        say("an earlier `criproxy attach` was ended in the middle: what it did is undone first")
        if not self.dry_run:
            self.roll_back(record)

    def roll_back(self, record: AttachRecord) -> None:
        """Undo an attach that is not finished. Raises NodeError when that fails too."""
        plan = rollback_plan(record, self.host.read)
        self.put_back(plan.edits, ran=record.ran)
        self._note(plan)
        self.host.save(record.previous)

    def put_back(self, edits: Sequence[Edit], *, ran: bool) -> None:
        """Put files back, and kubelet onto them. Raises NodeError when that fails too.

        A kubelet that did not run (`ran`) is not started, nor waited for; one that somebody else has started meanwhile
        is started anew, as it may have read our files.
        """
        try:
            for edit in edits:
                if self.host.read(edit.path) == edit.before:
                    self.host.apply(edit)
            self.host.reload()
            unit = self.host.kubelet_unit()
            if ran and unit.active in ("active", "activating", "failed"):
                self.restart_and_wait()
            elif unit.active in ("active", "activating"):
                self.host.restart(unit.name)
        except NodeError as error:
            raise NodeError(f"not rolled back completely: {error}") from error

    def failed(self, error: BaseException) -> None:
        """What is undone now is not to be interrupted."""
        hold()
        say(f"failed: {str(error) or type(error).__name__}")
        say("putting back what was there")

    def report(self, plan: EditPlan) -> None:
        """Say what was done."""
        for edit in plan.edits:
            say(f"{'removed' if edit.after is None else 'wrote'} {edit.path}")
        self._note(plan)

    def preview(self, plan: EditPlan, unit: UnitState) -> None:
        """Say what would be done."""
        if plan.edits:
            say(difference(plan.edits).rstrip("\n"))
        self._note(plan)
        say("would run: systemctl daemon-reload")
        if unit.active == "active":
            say(f"would run: systemctl restart {unit.name}")

    def _note(self, plan: EditPlan) -> None:
        for note in plan.notes:
            say(f"note: {note}")

    # --- kubelet's health -------------------------------------------------------------------------------------------

    def check_well(self, kubelet: NodeKubelet) -> None:
        """Raises NodeError when kubelet is not well already, before anything is changed."""
        try:
            self._ask_healthz(kubelet)
        except NodeError as error:
            raise NodeError(f"kubelet is not well as it is ({error}): repair it first") from error

    def wait_until_well(self, kubelet: NodeKubelet, also: Callable[[], str] = str) -> None:
        """Wait after a restart. Raises NodeError when it fails, or after two minutes.

        `also` says what else is not right yet, "": nothing. It may raise NodeError for a while.
        """
        machine = self.host.machine
        give_up_s = machine.now_s() + _WELL_S
        restarts = self.host.unit(kubelet.unit.name).restarts
        well_s, well_pid, problem = 0.0, 0, ""
        while machine.now_s() < give_up_s:
            pid, problem = self._look(kubelet, restarts, also)
            if problem or pid != well_pid:
                well_s, well_pid = machine.now_s(), 0 if problem else pid
            elif machine.now_s() - well_s >= _STEADY_S:
                return
            machine.sleep(_POLL_S)
        problem = problem or "it does not stay so"
        raise NodeError(
            f"kubelet was not well within {_WELL_S:.0f} s: {problem}{self.host.log_tail(kubelet.unit.name)}"
        )

    def _look(self, kubelet: NodeKubelet, restarts: int, also: Callable[[], str]) -> tuple[int, str]:
        """Kubelet's pid and "", or what is not right yet. Raises NodeError when it has ended."""
        unit = self.host.unit(kubelet.unit.name)
        if unit.active == "failed" or unit.sub == "auto-restart" or unit.restarts > restarts:
            raise NodeError(
                f"kubelet has ended after its restart ({unit.active}, {unit.sub}){self.host.log_tail(unit.name)}"
            )
        if unit.active != "active" or not unit.pid:
            return 0, f"{unit.name} is {unit.active} ({unit.sub})"
        try:
            self._ask_healthz(kubelet)
            return unit.pid, also()
        except NodeError as error:
            return unit.pid, str(error)

    def _ask_healthz(self, kubelet: NodeKubelet) -> None:
        name, port = kubelet.healthz
        if port:
            self.host.machine.get(name, port, "/healthz")
