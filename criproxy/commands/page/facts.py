"""What the page shows, asked of the running criproxy: one value, which becomes JSON."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, convert, to_builtins

from criproxy.control.interference.ladder import Rung
from criproxy.control.resources import RESOURCES
from criproxy.model.modes import Mode, in_words
from criproxy.observe import client
from criproxy.observe.status import ResourceStatus, Status, from_json

_ASK_S: Final = 12.0


class State(Struct, frozen=True):
    """How it is, in one sentence, and what to do about it or to know of it, a line each."""

    well: bool
    sentence: str
    details: tuple[str, ...] = ()


class _ShownRung(Struct, frozen=True):
    resource: str
    rung: str
    reason: str


class _ShownLadder(Struct, frozen=True):
    """What is read here of the section; see `criproxy.pods.interference`."""

    rungs: tuple[_ShownRung, ...] = ()


def state_of(status: Status) -> State:
    """Problems come first; each names its remedy where there is one.

    Raises ValueError where a section is no criproxy's.
    """
    modes = (*(in_words(mode) for mode in Mode if mode.value in status.modes), *_held_back(status))
    if status.problems:
        count = len(status.problems)
        many = "One thing needs" if count == 1 else f"{count} things need"
        return State(False, f"{many} somebody to look at it: {status.problems[0]}", (*status.problems[1:], *modes))
    if status.schedule.closed:
        return State(True, f"All is well, and no new offline pod is let in: {status.schedule.closed}", modes)
    cpu = status.box.resources.get("cpu")
    if status.colocation != "on" or cpu is None:
        return State(True, f"All is well; colocation is {status.colocation}.", modes)
    return State(True, f"All is well: {_shared(cpu, len(status.pods))}.", modes)


def _held_back(status: Status) -> Iterator[str]:
    """What the ladder holds back now."""
    for one in convert(status.sections.get("interference", {}), _ShownLadder).rungs:
        if one.rung != Rung.OPEN:
            yield f"{one.resource} of offline pods is {one.rung}: {one.reason}"


def _shared(cpu: ResourceStatus, pods: int) -> str:
    words = RESOURCES["cpu"].words

    def amount(value: float | str | None) -> str:
        return "an amount that is not known" if value is None else value if isinstance(value, str) else words(value)

    limit = "all that online leaves" if isinstance(cpu.limit, str) else amount(cpu.limit)
    return (
        f"of {amount(cpu.capacity)}, online uses {amount(cpu.online)} and {pods} offline pods use {amount(cpu.box)}; "
        f"they may have {limit}"
    )


def facts(socket: Path, since_s: float | None = None) -> dict[str, Any]:
    """What is newer than `since_s` (UTC) of the history, None: all; and the rest as it is now.

    Raises AskError, and ValueError when what answers is no such criproxy.
    """
    status = client.ask(socket, "/status", _ASK_S)
    why = client.ask(socket, "/why", _ASK_S)
    history = client.ask(socket, "/history" if since_s is None else f"/history?since={since_s}", _ASK_S)
    return {
        "state": to_builtins(state_of(from_json(status))),
        "status": client.read_json(status),
        "why": client.read_json(why),
        "history": client.read_json(history),
    }
