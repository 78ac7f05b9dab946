"""Waits until kubelet is well: its unit runs and keeps running, it says so itself, and what else was asked holds."""

from collections.abc import Callable
from typing import Final

from criproxy.commands.attach.endpoint import Use
from criproxy.commands.attach.machine import NodeError
from criproxy.commands.attach.node import Node

_WELL_S: Final = 120.0
"""Kubelet is up within seconds, but a node may be busy, and its disk slow."""

_STEADY_S: Final = 3.0
"""It must stay well for so long; a kubelet that does not like its runtime ends within a second or two."""

_POLL_S: Final = 0.5


class Wellness:
    """Of the kubelet of `unit`."""

    def __init__(self, node: Node, unit: str) -> None:
        self._node = node
        self._unit = unit

    def check_now(self, use: Use) -> None:
        """Raises NodeError when it is not well already, before anything is changed."""
        try:
            self._healthz(use)
        except NodeError as error:
            raise NodeError(f"kubelet is not well as it is ({error}): repair it first") from error

    def wait(self, use: Use, also: Callable[[], bool], otherwise: str) -> int:
        """Wait after a restart; returns its pid. Raises NodeError when it fails, or after two minutes.

        `also` must hold too; `otherwise` says what it means that it does not. It may raise NodeError for a while.
        """
        machine = self._node.machine
        give_up_s = machine.now_s() + _WELL_S
        restarts = self._node.unit(self._unit).restarts
        well_s, well_pid, problem = 0.0, 0, ""
        while machine.now_s() < give_up_s:
            pid, problem = self._look(use, restarts, also, otherwise)
            if problem or pid != well_pid:
                well_s, well_pid = machine.now_s(), 0 if problem else pid
            elif machine.now_s() - well_s >= _STEADY_S:
                return pid
            machine.sleep(_POLL_S)
        raise NodeError(f"kubelet was not well within {_WELL_S:.0f} s: {problem or 'it does not stay so'}{self._log()}")

    def _look(self, use: Use, restarts: int, also: Callable[[], bool], otherwise: str) -> tuple[int, str]:
        """Its pid and "", or what is not right yet. Raises NodeError when it has ended."""
        state = self._node.unit(self._unit)
        if state.active == "failed" or state.sub == "auto-restart" or state.restarts > restarts:
            raise NodeError(f"kubelet has ended after its restart ({state.active}, {state.sub}){self._log()}")
        if state.active != "active" or not state.pid:
            return 0, f"{self._unit} is {state.active} ({state.sub})"
        try:
            self._healthz(use)
            return state.pid, "" if also() else otherwise
        except NodeError as error:
            return state.pid, str(error)

    def _healthz(self, use: Use) -> None:
        host, port = use.healthz
        if port:
            self._node.machine.get(host, port, "/healthz")

    def _log(self) -> str:
        tail = self._node.log_tail(self._unit)
        return f"; the end of its log:\n{tail}" if tail else ""
