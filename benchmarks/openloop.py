"""An open-loop client of memcached: requests go out when they are due, whatever has become of those before.

A request's latency counts from when it was due, so that a server (or this client) that is held up can't hide it.
`python -m benchmarks.openloop SOCKET` reads lines `RATE SECONDS`, and answers each with the latencies as JSON.
"""

import gc
import json
import random
import select
import socket
import sys
import time
from collections import deque

KEYS = 20
VALUE_BYTES = 4096
_CONNECTIONS = 16
_GRACE_S = 5.0
_END = b"END\r\n"
_REQUEST = b"get " + b" ".join(b"k%d" % key for key in range(KEYS)) + b"\r\n"


class Connection:
    """`due` are the times of the requests under way, oldest first."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.due: deque[float] = deque()
        self._tail = b""

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, due_s: float) -> None:
        self.due.append(due_s)
        self.socket.sendall(_REQUEST)

    def receive(self) -> list[float]:
        """The latencies of what has been answered, in s. A value has no line break, so that END is the answer's."""
        data = self._tail + self.socket.recv(1 << 20)
        self._tail = data[-len(_END) + 1 :]
        now_s = time.monotonic()
        return [now_s - self.due.popleft() for _ in range(data.count(_END))]


def fill(path: str) -> None:
    """Store what the requests ask for."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        for key in range(KEYS):
            server.sendall(b"set k%d 0 0 %d\r\n%s\r\n" % (key, VALUE_BYTES, b"x" * VALUE_BYTES))
            assert server.recv(64) == b"STORED\r\n"


def run(connections: list[Connection], rate: float, seconds: float) -> list[float]:
    """The latencies of a phase; its arrivals are Poisson's. A request without an answer counts as the grace."""
    latencies: list[float] = []
    start_s = due_s = time.monotonic() + 0.01
    sent = 0
    while True:
        now_s = time.monotonic()
        while due_s <= now_s and due_s < start_s + seconds:
            connections[sent % len(connections)].send(due_s)
            sent += 1
            due_s += random.expovariate(rate)
        over = due_s >= start_s + seconds
        if over and (len(latencies) == sent or now_s > start_s + seconds + _GRACE_S):
            break
        readable, _, _ = select.select(connections, (), (), 0.1 if over else max(0.0, due_s - time.monotonic()))
        for connection in readable:
            latencies += connection.receive()
    return latencies + [_GRACE_S] * (sent - len(latencies))


def main() -> None:
    fill(sys.argv[1])
    connections = [Connection(sys.argv[1]) for _ in range(_CONNECTIONS)]
    gc.disable()
    print("ready", flush=True)
    for line in sys.stdin:
        latencies = sorted(run(connections, *map(float, line.split())))
        quantiles = {str(q): latencies[int(q * (len(latencies) - 1))] for q in (0.5, 0.99, 0.999)}
        print(json.dumps({"requests": len(latencies), **quantiles}), flush=True)


if __name__ == "__main__":
    main()
