"""Counters, gauges and histograms, and how Prometheus reads them.

Not prometheus_client: it brings an HTTP server and TLS, 8 MB and a fifth of the time that criproxy takes to start. The
tests read what this writes with prometheus_client's parser. Source: prometheus.io, exposition formats, text 0.0.4.
"""

import abc
import math
import os
import resource
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Sample(NamedTuple):
    """One line: `suffix` goes after the metric's name."""

    suffix: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Registry:
    """The metrics of a process. They may be changed and rendered from any thread."""

    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        self.metrics: Final[list[Metric]] = []

    def render(self) -> bytes:
        """The text format 0.0.4."""
        lines: list[str] = []
        for metric in self.metrics:
            lines += (f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}")
            with self.lock:
                samples = metric.samples()
            lines += (f"{metric.name}{s.suffix}{_labels(s.labels)} {_number(s.value)}" for s in samples)
        return ("\n".join(lines) + "\n").encode()


class Metric(abc.ABC):
    """What a metric is: its name, its words, its kind and the names of its labels; and what it is now."""

    kind: str

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), *, registry: Registry) -> None:
        self.name = name
        self.text = text
        self.labels = tuple(labels)
        self._lock: Final = registry.lock
        registry.metrics.append(self)

    @abc.abstractmethod
    def samples(self) -> list[Sample]: ...


class Value(Metric):
    """One value per combination of labels: a gauge's goes up and down, a counter's only grows."""

    def __init__(self, kind: str, name: str, text: str, labels: Sequence[str] = (), *, registry: Registry) -> None:
        super().__init__(name, text, labels, registry=registry)
        self.kind = kind
        self._values: Final[dict[tuple[str, ...], float]] = {} if labels else {(): 0.0}

    def set(self, value: float, *labels: str) -> None:
        with self._lock:
            self._values[labels] = value

    def replace(self, values: Mapping[str, float]) -> None:
        """These are all values, by the one label that there is: what is not among them is shown no more."""
        with self._lock:
            self._values.clear()
            self._values.update({(label,): value for label, value in values.items()})

    def inc(self, *labels: str, by: float = 1.0) -> None:
        with self._lock:
            self._values[labels] = self._values.get(labels, 0.0) + by

    def samples(self) -> list[Sample]:
        return [Sample("", tuple(zip(self.labels, key, strict=True)), value) for key, value in self._values.items()]


class Histogram(Metric):
    """How often what was observed was within each of `bounds`, which grow; by one label, or none."""

    kind = "histogram"

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), *, bounds: Sequence[float], registry: Registry
    ) -> None:
        super().__init__(name, text, labels, registry=registry)
        self._bounds: Final = (*bounds, math.inf)
        self._counts: Final[dict[tuple[str, ...], list[int]]] = {}
        self._sums: Final[dict[tuple[str, ...], float]] = {}
        if not labels:
            self._begin(())

    def observe(self, value: float, *labels: str) -> None:
        with self._lock:
            if labels not in self._counts:
                self._begin(labels)
            self._counts[labels][bisect_left(self._bounds, value)] += 1
            self._sums[labels] += value

    def samples(self) -> list[Sample]:
        found = []
        for key, counts in self._counts.items():
            labels, total = tuple(zip(self.labels, key, strict=True)), 0
            for bound, count in zip(self._bounds, counts, strict=True):
                total += count
                found.append(Sample("_bucket", (*labels, ("le", _number(bound))), total))
            found += (Sample("_count", labels, total), Sample("_sum", labels, self._sums[key]))
        return found

    def _begin(self, labels: tuple[str, ...]) -> None:
        self._counts[labels] = [0] * len(self._bounds)
        self._sums[labels] = 0.0


class Reading(Metric):
    """A metric that each scrape reads anew."""

    def __init__(self, kind: str, name: str, text: str, read: Callable[[], float], *, registry: Registry) -> None:
        super().__init__(name, text, registry=registry)
        self.kind = kind
        self._read = read

    def samples(self) -> list[Sample]:
        return [Sample("", (), self._read())]


def add_process_metrics(registry: Registry) -> None:
    """What the kernel says of this process, under the names that all Prometheus clients use. Source: proc(5)."""
    for name, text, kind, read in (
        ("virtual_memory_bytes", "Virtual memory size", "gauge", lambda: _stat(22)),
        ("resident_memory_bytes", "Resident memory size", "gauge", lambda: _stat(23) * _PAGE_BYTES),
        ("start_time_seconds", "Start time since 1970", "gauge", _start_s),
        ("cpu_seconds_total", "User and system CPU time spent", "counter", lambda: (_stat(13) + _stat(14)) / _TICKS),
        ("open_fds", "Open file descriptors", "gauge", lambda: len(os.listdir("/proc/self/fd"))),
        ("max_fds", "Most file descriptors", "gauge", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    ):
        Reading(kind, f"process_{name}", text, read, registry=registry)


def _stat(number: int) -> int:
    """A field of /proc/self/stat, counted from 0."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[number - 2])


def _start_s() -> float:
    """The same at each time that it is read."""
    boot = next(line for line in Path("/proc/stat").read_bytes().split(b"\n") if line.startswith(b"btime "))
    return int(boot.split()[1]) + _stat(21) / _TICKS


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in labels) + "}" if labels else ""


def _quoted(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(float(value))
