"""The steps that attach and detach share: write, go back, and undo what a run that was killed left half done."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from criproxy.commands.attach import health
from criproxy.commands.attach.criproxy_side import RunningCriproxy
from criproxy.commands.attach.edits import Edit, EditPlan, difference
from criproxy.commands.attach.host import Host
from criproxy.commands.attach.kubelet import NodeKubelet, Use, look
from criproxy.commands.attach.machine import NodeError
from criproxy.commands.attach.record import rollback_plan
from criproxy.kubelet.attachment import AttachRecord
from criproxy.kubelet.process import UNIT


class FailedError(Exception):
    """It was begun and did not work out; the message says in which state the node is left."""


class Terms(Struct, frozen=True):
    """`say` prints a line for the user; `hold` has the process ignore signals from then on, while it cleans up."""

    say: Callable[[str], None]
    hold: Callable[[], None]
    dry_run: bool


class Steps:
    """On `host`, for the criproxy `proxy`. They raise NodeError when the node does not do what it must."""

    def __init__(self, host: Host, proxy: RunningCriproxy, terms: Terms) -> None:
        self.host = host
        self.proxy = proxy
        self.terms = terms
        self.say = terms.say

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else attaches or detaches meanwhile; a dry run does not mind."""
        with contextlib.nullcontext() if self.terms.dry_run else self.host.lock():
            yield

    def write(self, plan: EditPlan) -> None:
        """Make the edits, and have systemd read them."""
        for edit in plan.edits:
            self.host.apply(edit)
        self.host.reload()
        self.report(plan)

    def restart_and_wait(self) -> Use:
        """Start kubelet anew, and wait until it is well; returns what it uses then."""
        use = None
        with contextlib.suppress(NodeError):  # nothing may keep the restart: kubelet may be down
            use = self._use()
        self.host.restart(UNIT)
        health.wait(self.host, use or self._use(), lambda: True, "")
        return self._use()

    def _use(self) -> Use:
        kubelet = look(self.host)
        if kubelet is None:
            raise NodeError(f"there is no {UNIT} any more")
        return kubelet.use

    def repair(self) -> None:
        """Undo what a run that was killed has left half done."""
        record = self.host.load()
        if record is None or record.phase != "changing":
            return
        self.say("an earlier `criproxy attach` was ended in the middle: what it did is undone first")
        if not self.terms.dry_run:
            self.roll_back(record)

    def roll_back(self, record: AttachRecord) -> None:
        """Undo an attach that is not finished. Raises FailedError when that fails too."""
        plan = rollback_plan(record, self.host.read)
        self.put_back(plan.edits, ran=record.ran)
        for note in plan.notes:
            self.say(f"note: {note}")
        self.host.save(record.previous)

    def put_back(self, edits: Sequence[Edit], *, ran: bool) -> None:
        """Put files back, and kubelet onto them. Raises FailedError when that fails too.

        A kubelet that did not run (`ran`) is not started, nor waited for; one that somebody else has started meanwhile
        is started anew, as it may have read our files.
        """
        try:
            for edit in edits:
                if self.host.read(edit.path) == edit.before:
                    self.host.apply(edit)
            self.host.reload()
            now = self.host.unit(UNIT).active
            if ran and now in ("active", "activating", "failed"):
                self.restart_and_wait()
            elif now in ("active", "activating"):
                self.host.restart(UNIT)
        except NodeError as error:
            raise FailedError(f"not rolled back completely: {error}") from error

    def report(self, plan: EditPlan) -> None:
        """Say what was done."""
        for edit in plan.edits:
            self.say(f"{'removed' if edit.after is None else 'wrote'} {edit.path}")
        for note in plan.notes:
            self.say(f"note: {note}")

    def preview(self, plan: EditPlan, kubelet: NodeKubelet) -> None:
        """Say what would be done."""
        if plan.edits:
            self.say(difference(plan.edits).rstrip("\n"))
        for note in plan.notes:
            self.say(f"note: {note}")
        self.say("would run: systemctl daemon-reload")
        if kubelet.unit.active == "active":
            self.say(f"would run: systemctl restart {UNIT}")


def in_words(error: BaseException) -> str:
    return str(error) or type(error).__name__
