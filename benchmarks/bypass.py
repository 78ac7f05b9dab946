"""How long kubelet is without its runtime when the bypass opens, and how it comes back: `python -m benchmarks.bypass`.

Two ways to bypass are compared: the symlink pointed at a byte forwarder, and pointed at the runtime itself. Clients
redial at kubelet's pace, or at gRPC's own. Needs root, for the box.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import grpc

from benchmarks.table import table
from integration.lab import cri_client_pb2 as cri
from integration.lab.clean import clean
from integration.lab.criproxy import CHECKOUT, Criproxy
from integration.lab.directory import claimed, socket_path
from integration.lab.process import Process, wait_until
from integration.systemd.calls import KUBELET, PATIENT, By

Way = Literal["forwarder", "runtime"]

FORWARDER = Path("/usr/lib/systemd/systemd-socket-proxyd")
PACES = {"kubelet": KUBELET, "gRPC's own": PATIENT}
_EVERY_S = 0.005
_STAYS_S = 10.0
"""Who has not come back to criproxy after this stays away."""


@dataclass(frozen=True, slots=True)
class Row:
    """In ms: from the opening of the bypass to the first answer, and from criproxy's return to its first answer.

    NaN: it does not come back. `failed`: calls that failed as criproxy came back, in all rounds.
    """

    bypass_leads_to: str
    client_redials_at_pace_of: str
    outage_s: float
    recovery_p50_ms: float
    recovery_max_ms: float
    back_p50_ms: float
    back_max_ms: float
    failed: int


class Client(threading.Thread):
    """Calls all the time, and notes who answered when: criproxy refuses the call, the runtime takes it."""

    def __init__(self, socket: Path, options: Sequence[tuple[str, object]]) -> None:
        super().__init__(daemon=True)
        self.answers: list[tuple[float, By]] = []
        self._left = threading.Event()
        self._channel = grpc.insecure_channel(f"unix://{socket}", options=list(options))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self.join()
        self._channel.close()

    def run(self) -> None:
        linux = cri.LinuxPodSandboxConfig(cgroup_parent="nowhere")
        config = cri.PodSandboxConfig(labels={"colocation.criproxy.io/class": "offline"}, linux=linux)
        request = cri.RunPodSandboxRequest(config=config).SerializeToString()
        call = self._channel.unary_unary("/runtime.v1.RuntimeService/RunPodSandbox")
        while not self._left.wait(_EVERY_S):
            by: By = "runtime"
            try:
                call(request, timeout=30)
            except grpc.RpcError as error:
                by = "criproxy" if error.code() is grpc.StatusCode.FAILED_PRECONDITION else "nobody"
            self.answers.append((time.monotonic(), by))

    def first(self, by: By, since_s: float, timeout_s: float = 60) -> float | None:
        """How long after `since_s`, in s; None: not in time."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            for at_s, who in self.answers[-400:]:
                if who == by and at_s >= since_s:
                    return at_s - since_s
            time.sleep(_EVERY_S)
        return None

    def failed(self, from_s: float) -> int:
        return sum(by == "nobody" for at_s, by in self.answers if at_s >= from_s)


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
    with Client(node.listen, PACES[pace]) as client:
        client.first("criproxy", 0)
        node.kill()
        time.sleep(outage_s)
        node.open(way)
        opened_s = time.monotonic()
        recovery_s = client.first("runtime", opened_s)
        assert recovery_s is not None, "kubelet found no runtime"
        if way == "runtime":  # it is not criproxy's own bypass, so criproxy would refuse to take its place
            node.listen.unlink()
        node.start()
        returned_s = time.monotonic()
        node.shut(way)
        back_s = client.first("criproxy", returned_s, _STAYS_S)
        return Round(recovery_s, back_s, client.failed(returned_s))


def row(node: Node, way: Way, pace: str, outage_s: float, rounds: int) -> Row:
    done = [one_round(node, way, pace, outage_s) for _ in range(rounds)]
    recovery = [one.recovery_s * 1000 for one in done]
    back = [float("nan") if one.back_s is None else one.back_s * 1000 for one in done]
    return Row(
        way,
        pace,
        outage_s,
        statistics.median(recovery),
        max(recovery),
        statistics.median(back),
        max(back),
        sum(one.failed for one in done),
    )


def report(rounds: int) -> None:
    with claimed() as directory:
        node = Node(directory)
        try:
            node.start()
            ways: tuple[Way, ...] = ("forwarder", "runtime")
            rows = [
                row(node, way, pace, outage_s, rounds if way == "forwarder" else 1)
                for way in ways
                for pace in PACES
                for outage_s in (2.0, 10.0)
            ]
            node.end()
        finally:
            clean(directory)
    sys.stdout.write(table(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bypass", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    report(parser.parse_args().rounds)
