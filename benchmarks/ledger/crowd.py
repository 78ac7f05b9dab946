"""`./bench ledger --crowd SECONDS`: stock schedulers on full nodes, without a ledger and with one, for as long each."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from integration.lab import control_plane, ledger_side
from integration.lab.control_plane import ControlPlane, wait_for
from integration.lab.crowd import Crowd, Tally
from integration.lab.ledger_side import LedgerReplica

NODES: Final = 50
LIFE_S: Final = 30.0
SCHEDULERS: Final = ("sched-0", "sched-1")
SETTLED_S: Final = 5.0
READY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table, for people."""

    what: str
    placed: int
    failed: int
    failed_percent: float
    wait_p50_s: float


def measure(folder: Path, seconds: float) -> Sequence[Row]:
    plane = ControlPlane(folder)
    try:
        plane.start(lifecycle=False, scheduler=False)
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "criproxy-system"}})
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        wait_for(lambda: plane.exists(account), READY_S, "the default account")
        crowd = Crowd(plane, NODES, SCHEDULERS, LIFE_S)
        crowd.fill()
        crowd.start()
        crowd.run(SETTLED_S)
        without = crowd.run(seconds)
        ledger_side.install(plane)
        ledger = LedgerReplica(plane, "ledger")
        ledger.start()
        wait_for(ledger.is_ready, READY_S, "the ledger")
        time.sleep(SETTLED_S)
        ledger.take_binds()
        crowd.run(SETTLED_S)
        found = crowd.run(seconds)
        crowd.end()
        ledger.process.stop()
        return [_row("without", without), _row("with", found)]
    finally:
        control_plane.end(folder)


def _row(what: str, tally: Tally) -> Row:
    wait_s = tally.waits_s[len(tally.waits_s) // 2] if tally.waits_s else float("nan")
    return Row(what, tally.placed, tally.failed, 100 * tally.failed_ratio, wait_s)
