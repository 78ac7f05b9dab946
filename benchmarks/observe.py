"""What clients of the metrics port cost kubelet's calls: `python -m benchmarks.observe [--rounds N] [--json F]`.

Rounds of calls through criproxy, in turns: nobody else asks, and so many clients ask for /metrics as often as they can.
"""

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from benchmarks.node import backend, labs
from benchmarks.wire import Client
from integration.lab.criproxy import Criproxy

_VERSION: Final = "/runtime.v1.RuntimeService/Version"
_CALLS: Final = 1000
_SETTLE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians over the rounds, in ms; the ratio is of each round's own pair.

    `answers_per_s` are to the clients, from their start on until the last call is answered.
    """

    clients: int
    p50_alone_ms: float
    p50_ms: float
    p99_alone_ms: float
    p99_ms: float
    p99_ratio: float
    answers_per_s: float


def ask_forever(address: str) -> None:
    """GET /metrics, again and again; a line for each answer."""
    while True:
        with suppress(OSError, http.client.HTTPException):
            with closing(http.client.HTTPConnection(address, timeout=10)) as connection:
                connection.request("GET", "/metrics")
                answered = connection.getresponse().read()
            sys.stdout.write("x" if answered else "")
            sys.stdout.flush()


class Asking:
    """Clients that ask for /metrics for as long as it is entered; `answers_per_s` is known afterwards."""

    def __init__(self, clients: int, address: str) -> None:
        self._clients = clients
        self._command = (sys.executable, "-m", "benchmarks.observe", "--ask", address)
        self.answers_per_s = 0.0

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
        self._asking = [subprocess.Popen(self._command, stdout=subprocess.PIPE) for _ in range(self._clients)]
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.monotonic() - self._began_s
        for process in self._asking:
            process.kill()
        self.answers_per_s = sum(len(process.communicate()[0]) for process in self._asking) / seconds


def _calls_ms(client: Client) -> list[float]:
    taken = []
    for request in client.requests(_VERSION, (b"",) * _CALLS):
        started = time.perf_counter()
        answer = client.call(request)
        taken.append((time.perf_counter() - started) * 1000)
        client.check(answer)
    return sorted(taken)


def measure(clients: int, rounds: int) -> Cost:
    with ExitStack() as ends:
        directory = ends.enter_context(labs(["observe"]))["observe"]
        proxy = Criproxy(directory, ends.enter_context(backend(directory)).socket, {"colocation": {"enabled": True}})
        proxy.start()
        ends.callback(proxy.stop)
        client = ends.enter_context(Client(proxy.socket))
        time.sleep(_SETTLE_S)
        _calls_ms(client)
        alone, beside, answers_per_s = [], [], []
        for _ in range(rounds):
            alone.append(_calls_ms(client))
            with Asking(clients, proxy.address) as asking:
                time.sleep(_SETTLE_S)
                beside.append(_calls_ms(client))
            answers_per_s.append(asking.answers_per_s)
    p99 = [[times[int(len(times) * 0.99)] for times in side] for side in (alone, beside)]
    return Cost(
        clients=clients,
        p50_alone_ms=statistics.median(map(statistics.median, alone)),
        p50_ms=statistics.median(map(statistics.median, beside)),
        p99_alone_ms=statistics.median(p99[0]),
        p99_ms=statistics.median(p99[1]),
        p99_ratio=statistics.median(b / a for a, b in zip(*p99, strict=True)),
        answers_per_s=statistics.median(answers_per_s),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=7)
    parser.add_argument("--json", metavar="F", type=Path)
    parser.add_argument("--ask", metavar="ADDRESS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        ask_forever(options.ask)
    cost = asdict(measure(options.clients, options.rounds))
    print(json.dumps(cost, indent=1))
    if options.json:
        options.json.write_text(json.dumps(cost) + "\n")


if __name__ == "__main__":
    main()
