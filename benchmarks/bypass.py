"""How long kubelet is without its runtime when the bypass opens, and how it comes back: `python -m benchmarks.bypass`.

Two ways to bypass are compared: the symlink pointed at a byte forwarder, and pointed at the runtime itself. Clients
redial at kubelet's pace, or at gRPC's own. Needs root, for the box.
"""

import argparse
import contextlib
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.table import table
from integration.lab.clean import clean
from integration.lab.criproxy import CHECKOUT, Criproxy
from integration.lab.directory import claimed, socket_path
from integration.lab.process import LabError, Process, wait_until
from integration.systemd.calls import KUBELET, PATIENT, Load

Way = Literal["forwarder", "runtime"]

FORWARDER = Path("/usr/lib/systemd/systemd-socket-proxyd")
PACES = {"kubelet": KUBELET, "gRPC's own": PATIENT}
_EVERY_S = 0.005
_STAYS_S = 10.0
"""Who has not come back to criproxy after this stays away."""


@dataclass(frozen=True, slots=True)
class Row:
    """In ms: from the opening of the bypass to the first answer, and from criproxy's return to its first answer.

    inf: it does not come back. `failed`: calls that failed as criproxy came back, in all rounds.
    """

    bypass_leads_to: str
    client_redials_at_pace_of: str
    outage_s: float
    recovery_p50_ms: float
    recovery_max_ms: float
    back_p50_ms: float
    back_max_ms: float
    failed: int


class Node:
    """criproxy before a runtime of no work, in a lab's directory, and the bypass beside it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._runtime = socket_path(directory, "runtime.sock")
        self._bypass = directory / "bypass.sock"
        command: list[str | Path] = [sys.executable, "-m", "benchmarks.backend", self._runtime]
        log = directory / "backend.log"
        self._backend = Process("backend", command, log, {"PYTHONPATH": str(CHECKOUT)})
        wait_until(self._runtime.exists, 60, "the runtime to listen", log)
        self._criproxy = Criproxy(directory, self._runtime, {"colocation": {"enabled": True}})
        self.listen = self._criproxy.socket
        self._forwarder: Process | None = None

    def start(self) -> None:
        self._criproxy.start(env={"RUNTIME_DIRECTORY": str(self._directory)})

    def kill(self) -> None:
        self._criproxy.kill()

    def open(self, way: Way) -> None:
        if way == "forwarder":
            command: list[str | Path] = [
                "systemd-socket-activate",
                f"--listen={self._bypass}",
                FORWARDER,
                self._runtime,
            ]
            self._forwarder = Process("forwarder", command, self._directory / "forwarder.log")
            wait_until(self._bypass.exists, 10, "the forwarder to listen")
        new = self.listen.with_name("new")
        new.symlink_to(self._bypass if way == "forwarder" else self._runtime)
        new.rename(self.listen)

    def shut(self, way: Way) -> None:
        """As the service does it once criproxy is ready. The symlink is criproxy's again by then."""
        if self._forwarder is not None and way == "forwarder":
            self._forwarder.kill()
            self._bypass.unlink()

    def end(self) -> None:
        self._criproxy.stop()
        self._backend.stop()


@dataclass(frozen=True, slots=True)
class Round:
    recovery_s: float
    back_s: float | None
    failed: int


def one_round(node: Node, way: Way, pace: str, outage_s: float) -> Round:
    with Load(node.listen, PACES[pace], _EVERY_S) as client:
        client.wait_for("criproxy", 0.0)
        node.kill()
        time.sleep(outage_s)
        node.open(way)
        opened_s = time.monotonic()
        recovery_s = client.wait_for("runtime", opened_s).at_s - opened_s
        if way == "runtime":  # it is not criproxy's own bypass, so criproxy would refuse to take its place
            node.listen.unlink()
        node.start()
        returned_s = time.monotonic()
        node.shut(way)
        back_s = None
        with contextlib.suppress(LabError):
            back_s = client.wait_for("criproxy", returned_s, _STAYS_S).at_s - returned_s
        failed = [one for one in client.between(returned_s, time.monotonic()) if one.by == "nobody"]
        return Round(recovery_s, back_s, len(failed))


def row(way: Way, pace: str, outage_s: float, rounds: Sequence[Round]) -> Row:
    recovery = [one.recovery_s * 1000 for one in rounds]
    back = [math.inf if one.back_s is None else one.back_s * 1000 for one in rounds]
    return Row(
        way,
        pace,
        outage_s,
        statistics.median(recovery),
        max(recovery),
        statistics.median(back),
        max(back),
        sum(one.failed for one in rounds),
    )


def measure(node: Node, rounds: int) -> list[Row]:
    """As many rounds of each way as of the other, in turns, so that what else the machine does meets all alike."""
    ways: tuple[Way, ...] = ("forwarder", "runtime")
    done: dict[tuple[Way, str, float], list[Round]] = {
        (way, pace, outage_s): [] for pace in PACES for outage_s in (2.0, 10.0) for way in ways
    }
    for _ in range(rounds):
        for case, found in done.items():
            found.append(one_round(node, *case))
    return [row(*case, found) for case, found in sorted(done.items())]


def report(rounds: int) -> None:
    with claimed() as directory:
        node = Node(directory)
        try:
            node.start()
            rows = measure(node, rounds)
            node.end()
        finally:
            clean(directory)
    sys.stdout.write(table(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bypass", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    report(parser.parse_args().rounds)
