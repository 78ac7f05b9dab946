"""Waits until kubelet is well: its unit runs and keeps running, it says so itself, and what else was asked holds."""

from collections.abc import Callable
from typing import Final

from criproxy.commands.attach.host import Host
from criproxy.commands.attach.kubelet import Use
from criproxy.commands.attach.machine import NodeError
from criproxy.kubelet.process import UNIT

_WELL_S: Final = 120.0
"""Kubelet is up within seconds, but a node may be busy, and its disk slow."""

_STEADY_S: Final = 3.0
"""It must stay well for so long; a kubelet that does not like its runtime ends within a second or two."""

_POLL_S: Final = 0.5


def check_now(host: Host, use: Use) -> None:
    """Raises NodeError when kubelet is not well already, before anything is changed."""
    try:
        _ask(host, use)
    except NodeError as error:
        raise NodeError(f"kubelet is not well as it is ({error}): repair it first") from error


def wait(host: Host, use: Use, also: Callable[[], bool], otherwise: str) -> int:
    """Wait after a restart; returns kubelet's pid. Raises NodeError when it fails, or after two minutes.

    `also` must hold too; `otherwise` says what it means that it does not. It may raise NodeError for a while.
    """
    machine = host.machine
    give_up_s = machine.now_s() + _WELL_S
    restarts = host.unit(UNIT).restarts
    well_s, well_pid, problem = 0.0, 0, ""
    while machine.now_s() < give_up_s:
        pid, problem = _look(host, use, restarts, also, otherwise)
        if problem or pid != well_pid:
            well_s, well_pid = machine.now_s(), 0 if problem else pid
        elif machine.now_s() - well_s >= _STEADY_S:
            return pid
        machine.sleep(_POLL_S)
    raise NodeError(f"kubelet was not well within {_WELL_S:.0f} s: {problem or 'it does not stay so'}{_log(host)}")


def _look(host: Host, use: Use, restarts: int, also: Callable[[], bool], otherwise: str) -> tuple[int, str]:
    """Kubelet's pid and "", or what is not right yet. Raises NodeError when it has ended."""
    unit = host.unit(UNIT)
    if unit.active == "failed" or unit.sub == "auto-restart" or unit.restarts > restarts:
        raise NodeError(f"kubelet has ended after its restart ({unit.active}, {unit.sub}){_log(host)}")
    if unit.active != "active" or not unit.pid:
        return 0, f"{UNIT} is {unit.active} ({unit.sub})"
    try:
        _ask(host, use)
        return unit.pid, "" if also() else otherwise
    except NodeError as error:
        return unit.pid, str(error)


def _ask(host: Host, use: Use) -> None:
    name, port = use.healthz
    if port:
        host.machine.get(name, port, "/healthz")


def _log(host: Host) -> str:
    tail = host.log_tail(UNIT)
    return f"; the end of its log:\n{tail}" if tail else ""
