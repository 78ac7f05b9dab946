"""Steady load on a CRI socket: clients that call again and again, and note what failed and how long it took."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from integration.lab.client import CriClient

Job = Callable[[CriClient], object]

RETRY_S = 0.02
LAST_CALL_S = 10.0


@dataclass(frozen=True, slots=True)
class Call:
    """A call, or a job of several, that ended after `began_s` (CLOCK_MONOTONIC) with a status code's name."""

    job: str
    began_s: float
    seconds: float
    code: str
    details: str


class Load:
    """Within this, each job of `jobs` runs over and over, by a thread and a connection of its own.

    A job raises grpc.RpcError, or AssertionError for a wrong answer. `pause_s` lies between two runs of a job.
    """

    def __init__(self, socket: Path, jobs: Mapping[str, Job], pause_s: float = 0.0) -> None:
        self.calls: list[Call] = []
        self._pause_s = pause_s
        self._ended = threading.Event()
        self._clients = {name: CriClient(socket) for name in jobs}
        self._threads = [
            threading.Thread(target=self._run, args=(name, job), name=name, daemon=True) for name, job in jobs.items()
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(LAST_CALL_S)
            self._clients[thread.name].close()  # ends a call that never ends by itself
            thread.join()

    @property
    def failures(self) -> list[Call]:
        return [call for call in tuple(self.calls) if call.code != "OK"]

    def seconds(self, job: str) -> list[float]:
        """How long the calls of this job took, the quickest first."""
        return sorted(call.seconds for call in tuple(self.calls) if call.job == job)

    def summary(self) -> str:
        """A line per job: calls, failures by code, median and slowest, in ms."""
        lines = []
        for thread in self._threads:
            times = self.seconds(thread.name)
            failed = Counter(call.code for call in self.failures if call.job == thread.name)
            if times:
                middle, last = times[len(times) // 2] * 1000, times[-1] * 1000
                counts = f"{thread.name:16} {len(times):6} calls, failed {dict(failed)}"
                lines.append(f"{counts}, ms: p50 {middle:.2f}, max {last:.1f}")
        return "\n    ".join(lines)

    def _run(self, name: str, job: Job) -> None:
        while not self._ended.is_set():
            began_s = time.monotonic()
            code, details = "OK", ""
            try:
                job(self._clients[name])
            except grpc.RpcError as error:
                code, details = error.code().name, error.details() or ""
            except AssertionError as error:
                code, details = "wrong", str(error)
            if self._ended.is_set() and code == "CANCELLED":
                return
            self.calls.append(Call(name, began_s, time.monotonic() - began_s, code, details))
            self._ended.wait(self._pause_s if code == "OK" else max(self._pause_s, RETRY_S))
