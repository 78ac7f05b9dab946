"""Asks the online service at a steady pace, whatever has become of earlier requests, and notes how long each took.

A process of its own, `python -m integration.demo.cluster.probe PORT RATE_FILE`, which has the CPU before all others, as
a client on another machine would. It reads the rate from the file, and writes a line for each request: when it was due
(CLOCK_MONOTONIC), and its latency, in s.
"""

import asyncio
import contextlib
import sys
import time
from pathlib import Path
from typing import Final

from integration.lab.criproxy import python_path
from integration.lab.process import Process

ANSWER_S: Final = 5.0
"""A request without an answer by then counts as this long."""

_MOST_OPEN: Final = 200


class Probe:
    """The process, and what it has written so far; its files are in `directory`."""

    def __init__(self, port: int, directory: Path) -> None:
        self._rate, self._answers = directory / "rate", directory / "answers"
        self.ask(0.0)
        command = (sys.executable, "-m", __name__, str(port), str(self._rate))
        self.pid = Process("probe", command, self._answers, {"PYTHONPATH": python_path()}).pid

    def ask(self, rate: float) -> None:
        """So many requests per s from now on."""
        unseen = self._rate.with_suffix(".new")
        unseen.write_text(str(rate))
        unseen.rename(self._rate)

    def answers(self) -> list[tuple[float, float]]:
        """When each request was due (CLOCK_MONOTONIC), and its latency from there, in s."""
        lines = (line.split() for line in self._answers.read_text().split("\n")[:-1])
        return [(float(due_s), float(latency_s)) for due_s, latency_s in lines]


async def ask(port: int, due_s: float) -> None:
    """One request; what goes wrong counts as no answer."""
    answered = False
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET /cgi-bin/work HTTP/1.0\r\n\r\n")
                answered = (await reader.read()).endswith(b"done\n")
            finally:
                writer.close()
    print(due_s, time.monotonic() - due_s if answered else ANSWER_S, flush=True)


async def run(port: int, rate_file: Path) -> None:
    """Until it is killed."""
    due_s, open_now = time.monotonic(), set[asyncio.Task[None]]()
    while True:
        if not (rate := float(rate_file.read_text())):  # noqa: ASYNC240  (a file of a few bytes)
            await asyncio.sleep(0.05)
            due_s = time.monotonic()
            continue
        due_s += 1.0 / rate
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        if len(open_now) < _MOST_OPEN:
            task = asyncio.create_task(ask(port, due_s))
            open_now.add(task)
            task.add_done_callback(open_now.discard)
        else:
            print(due_s, ANSWER_S, flush=True)


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), Path(sys.argv[2])))
