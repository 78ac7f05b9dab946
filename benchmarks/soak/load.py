"""Runs jobs side by side, a thread and a connection each, and keeps count of what came out right and what did not."""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc

from benchmarks.node import connect
from benchmarks.soak.jobs import Job, Way, WrongError

_LAST_ROUND_S: Final = 30.0


@dataclass
class Tally:
    """Calls that came out right, by job, and what did not, in words."""

    calls: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(tuple(self.calls.values()))


class Load:
    """Within this, all jobs run over and over. Each job's count is its own thread's alone."""

    def __init__(self, socket: Path, prefix: str, jobs: Mapping[str, tuple[Job, float]]) -> None:
        self.tally = Tally()
        self._socket = socket
        self._prefix = prefix
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(name, job, pause_s), name=name, daemon=True)
            for name, (job, pause_s) in jobs.items()
        ]
        self.tally.calls.update(dict.fromkeys(jobs, 0))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(_LAST_ROUND_S)
            if thread.is_alive():
                self.tally.failures.append(f"{thread.name}: its last round does not end")

    def _run(self, name: str, job: Job, pause_s: float) -> None:
        with connect(self._socket) as channel:
            way = Way(self._socket, channel, self._prefix)
            while not self._ended.is_set():
                self._round(name, job, way)
                self._ended.wait(pause_s)

    def _round(self, name: str, job: Job, way: Way) -> None:
        began_s = time.monotonic()
        try:
            with closing(job(way)) as steps:  # type: ignore[type-var]  # a generator, which can be closed
                for _ in steps:
                    self.tally.calls[name] += 1
                    if self._ended.is_set():
                        return
        except grpc.RpcError as error:
            took_s = time.monotonic() - began_s
            self._fail(name, f"{error.code().name} after {took_s:.1f} s: {error.details()}")
        except (WrongError, OSError) as error:
            self._fail(name, str(error))

    def _fail(self, name: str, why: str) -> None:
        self.tally.failures.append(f"{time.strftime('%H:%M:%S')} {name}: {why}")
