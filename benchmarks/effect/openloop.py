"""An open-loop client of a Unix socket: requests go out when they are due, whatever has become of those before.

`python -m benchmarks.effect.openloop PROTOCOL SOCKET` reads lines `FILE SEED RATE SECONDS [RATE SECONDS]...`: Poisson
arrivals at these rates, one after the other; the same seed makes the same arrivals. It writes the latencies (float32,
in s, from when a request was due) into FILE, and answers with JSON: how many were sent and never answered, how late
they were sent (the 99th percentile, in s) and the CPU time that this process took. When it is late by a second it
gives up.
"""

import contextlib
import gc
import json
import random
import select
import socket
import sys
import time
from array import array
from collections import deque
from collections.abc import Sequence
from pathlib import Path

_CONNECTIONS = 16
_GRACE_S = 5.0
"""For so long an answer is awaited after the last request; one that does not come counts as this."""

_HOPELESS_S = 1.0

_LIST = 4000
_VALUE = b"x" * 50
_KEYS = 400


class Protocol:
    """How a server is filled and asked. Each answer has `mark` once, and nothing else has it."""

    request: bytes
    fills: Sequence[bytes]
    mark: bytes

    def count(self, data: bytes | bytearray, end: int) -> tuple[int, bytes]:
        """How many answers the data has up to `end`, and what of it may be the beginning of one more mark."""
        return data.count(self.mark, 0, end), bytes(data[max(0, end - len(self.mark) + 1) : end])


class Memcached(Protocol):
    """400 values of 50 bytes in one request, so that the server has more to do than the generator. A value has no line
    break, so that END is the answer's.
    """

    request = b"get " + b" ".join(b"k%d" % key for key in range(_KEYS)) + b"\r\n"
    fills = tuple(b"set k%d 0 0 %d\r\n%s\r\n" % (key, len(_VALUE), _VALUE) for key in range(_KEYS))
    mark = b"END\r\n"


class Redis(Protocol):
    """SORT of a list of 4,000 numbers, the ten smallest of them: 0.3 ms of CPU and more, and a small answer."""

    request = b"*5\r\n$4\r\nSORT\r\n$4\r\nlist\r\n$5\r\nLIMIT\r\n$1\r\n0\r\n$2\r\n10\r\n"
    fills = (
        b"*%d\r\n$5\r\nRPUSH\r\n$4\r\nlist\r\n" % (_LIST + 2)
        + b"".join(b"$%d\r\n%d\r\n" % (len(str(n)), n) for n in random.Random(1).sample(range(10**6), _LIST)),
    )
    mark = b"*10\r\n"


class Nginx(Protocol):
    """A page that is compressed for each answer: 1.0 ms of CPU. The last chunk of an answer is empty.

    Source: RFC 9112, 7.1.
    """

    request = b"GET /page.json HTTP/1.1\r\nHost: online\r\nAccept-Encoding: gzip\r\n\r\n"
    fills = ()
    mark = b"\r\n0\r\n\r\n"


PROTOCOLS = {"memcached": Memcached, "redis": Redis, "nginx": Nginx}


class Connection:
    """`due` are the times of the requests under way, oldest first. `unsent`: what the socket did not take yet.

    It never waits to send: a server that does not read as long as nobody reads its answers would wait for ever, too.
    """

    def __init__(self, path: str, protocol: Protocol) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.setblocking(False)
        self.due: deque[float] = deque()
        self.unsent = bytearray()
        self._protocol = protocol
        self._tail = b""

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, due_s: float) -> None:
        self.due.append(due_s)
        self.unsent += self._protocol.request
        self.flush()

    def flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            del self.unsent[: self.socket.send(self.unsent)]

    def receive(self, buffer: bytearray) -> list[float]:
        """The latencies of what has been answered, in s. Into a buffer, as a new one of this size costs page faults."""
        begins = len(self._tail)
        buffer[:begins] = self._tail
        with memoryview(buffer) as view:
            ends = begins + self.socket.recv_into(view[begins:])
        answered, self._tail = self._protocol.count(buffer, ends)
        now_s = time.monotonic()
        return [now_s - self.due.popleft() for _ in range(answered)]


def fill(path: str, protocol: Protocol) -> None:
    """Store what the requests ask for."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        for command in protocol.fills:
            server.sendall(command)
            assert server.recv(64)


def arrivals(segments: Sequence[tuple[float, float]], start_s: float, seed: int) -> list[float]:
    """When the requests are due: a Poisson process whose rate changes from segment to segment."""
    due: list[float] = []
    dice = random.Random(seed)
    for rate, seconds in segments:
        at_s = start_s
        while (at_s := at_s + dice.expovariate(rate)) < start_s + seconds:
            due.append(at_s)
        start_s += seconds
    return due


def run(
    connections: list[Connection], segments: Sequence[tuple[float, float]], seed: int
) -> tuple[list[float], list[float], int]:
    """The latencies, how late each request was sent, and how many were not answered."""
    due = deque(arrivals(segments, time.monotonic() + 0.01, seed))
    latencies: list[float] = []
    late: list[float] = []
    buffer = bytearray(1 << 20)
    sent, last_s = 0, due[-1] if due else time.monotonic()
    while True:
        now_s = time.monotonic()
        if due and now_s - due[0] > _HOPELESS_S:
            late += [now_s - due[0]] * len(due)  # none of the others is sent
            due.clear()
        while due and due[0] <= now_s:
            late.append(now_s - due[0])
            connections[sent % len(connections)].send(due.popleft())
            sent += 1
        if not due and (len(latencies) == sent or now_s > last_s + _GRACE_S):
            break
        unsent = [connection for connection in connections if connection.unsent]
        wait_s = max(0.0, due[0] - time.monotonic()) if due else 0.1
        readable, writable, _ = select.select(connections, unsent, (), wait_s)
        for connection in readable:
            latencies += connection.receive(buffer)
        for connection in writable:
            connection.flush()
    unanswered = sent - len(latencies)
    return latencies + [_GRACE_S] * unanswered, late, unanswered


def main() -> None:
    protocol = PROTOCOLS[sys.argv[1]]()
    fill(sys.argv[2], protocol)
    gc.disable()
    print("ready", flush=True)
    for line in sys.stdin:
        file, seed, *numbers = line.split()
        values = list(map(float, numbers))
        connections = [Connection(sys.argv[2], protocol) for _ in range(_CONNECTIONS)]
        before_s = time.process_time()
        latencies, late, unanswered = run(connections, list(zip(values[::2], values[1::2], strict=True)), int(seed))
        cpu_s = time.process_time() - before_s
        for connection in connections:
            connection.socket.close()
        Path(file).write_bytes(array("f", latencies).tobytes())
        late.sort()
        late_s = late[int(0.99 * (len(late) - 1))] if late else 0.0
        print(json.dumps({"unanswered": unanswered, "late_s": late_s, "cpu_s": cpu_s}), flush=True)


if __name__ == "__main__":
    main()
