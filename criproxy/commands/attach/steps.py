"""The steps that attach and detach share: look, write, go back, and undo what a run that was killed left half done."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from criproxy.commands.attach import byhand, dropin
from criproxy.commands.attach.criproxy_side import Proxy
from criproxy.commands.attach.edits import Edit, Plan, difference
from criproxy.commands.attach.endpoint import (
    Program,
    Use,
    command,
    of_process,
    program_of,
    program_path,
    resolve,
    runs_kubelet,
)
from criproxy.commands.attach.machine import NodeError
from criproxy.commands.attach.node import Node, UnitState
from criproxy.commands.attach.undo import rollback_plan
from criproxy.commands.attach.wellness import Wellness
from criproxy.kubelet.attachment import AttachRecord

UNIT: Final = byhand.UNIT
DROPIN: Final = dropin.path(UNIT)


class FailedError(Exception):
    """It was begun and did not work out; the message says what the node is left in."""


class Terms(Struct, frozen=True):
    """`say` tells the user a line; `hold` makes the process deaf to signals from then on, while it cleans up."""

    say: Callable[[str], None]
    hold: Callable[[], None]
    dry_run: bool


class Steps:
    """On `node`, for the criproxy `proxy`. They raise NodeError when the node does not do what it must."""

    def __init__(self, node: Node, proxy: Proxy, terms: Terms) -> None:
        self.node = node
        self.proxy = proxy
        self.terms = terms
        self.say = terms.say
        self.wellness = Wellness(node, UNIT)

    # --- look -------------------------------------------------------------------------------------------------------

    def loaded(self) -> UnitState | None:
        """Kubelet's unit; None: there is none."""
        state = self.node.unit(UNIT)
        return state if state.loaded and state.files else None

    def words(self, state: UnitState) -> tuple[str, ...]:
        """The command line of the kubelet that runs; () when none does."""
        return self.node.command_line(state.pid)

    def program(self, state: UnitState) -> Program:
        """What kubelet's program can do; a current one, when it cannot be asked."""
        words = self.words(state)
        path = words[0] if words and words[0].startswith("/") else ""
        with contextlib.suppress(ValueError):
            service, _ = resolve(state.files, self.node, Program())
            setting = command(service)
            if setting is not None and runs_kubelet(setting):
                path = program_path(setting) or path
        return program_of(self.node.help_text(path))

    def running(self, state: UnitState, program: Program) -> Use | None:
        """What the kubelet that runs uses; None when none does."""
        words = self.words(state)
        return of_process(words, self.node, program) if words else None

    def use(self) -> Use:
        """What kubelet's files say now. Raises ValueError when it could not read them."""
        state = self.node.unit(UNIT)
        return resolve(state.files, self.node, self.program(state), self.words(state))[1]

    # --- change -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else attaches or detaches meanwhile; a dry run does not mind."""
        with contextlib.nullcontext() if self.terms.dry_run else self.node.lock():
            yield

    def write(self, plan: Plan) -> None:
        """Make the edits, and have systemd read them."""
        for edit in plan.edits:
            self.node.apply(edit)
        self.node.reload()
        self.tell(plan)

    def restart_and_wait(self) -> Use:
        """Kubelet anew, on what its files say."""
        self.node.restart(UNIT)
        try:
            use = self.use()
        except ValueError as error:
            raise NodeError(f"{UNIT}: {error}") from error
        self.wellness.wait(use, lambda: True, "")
        return use

    def repair(self) -> None:
        """Undo what a run that was killed has left half done."""
        record = self.node.load()
        if record is None or record.phase != "changing":
            return
        self.say("an earlier `criproxy attach` was ended in the middle: what it did is undone first")
        if not self.terms.dry_run:
            self.roll_back(record)

    def roll_back(self, record: AttachRecord) -> None:
        """Undo an attach that is not finished. Raises FailedError when that fails too."""
        plan = rollback_plan(record, self.node)
        self.put_back(plan.edits, ran=record.ran)
        for note in plan.notes:
            self.say(f"note: {note}")
        self.node.save(record.previous)

    def put_back(self, edits: Sequence[Edit], *, ran: bool) -> None:
        """Put files back, and kubelet onto them. Raises FailedError when that fails too.

        A kubelet that did not run (`ran`) is not started, nor waited for; one that somebody else has started meanwhile
        is started anew, as it may have read our files.
        """
        try:
            for edit in edits:
                if self.node.read(edit.path) == edit.before:
                    self.node.apply(edit)
            self.node.reload()
            now = self.node.unit(UNIT).active
            if ran and now in ("active", "activating", "failed"):
                self.restart_and_wait()
            elif now in ("active", "activating"):
                self.node.restart(UNIT)
        except NodeError as error:
            raise FailedError(f"not rolled back completely: {error}") from error

    # --- tell -------------------------------------------------------------------------------------------------------

    def tell(self, plan: Plan) -> None:
        for edit in plan.edits:
            self.say(f"{'removed' if edit.after is None else 'wrote'} {edit.path}")
        for note in plan.notes:
            self.say(f"note: {note}")

    def preview(self, plan: Plan, state: UnitState) -> None:
        """What would be done."""
        if plan.edits:
            self.say(difference(plan.edits).rstrip("\n"))
        for note in plan.notes:
            self.say(f"note: {note}")
        self.say("would run: systemctl daemon-reload")
        if state.active == "active":
            self.say(f"would run: systemctl restart {UNIT}")


def in_words(error: BaseException) -> str:
    return str(error) or type(error).__name__
