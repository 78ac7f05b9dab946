"""What webhook, controller and ledger count, for Prometheus. Counts alone: no name of a pod, node or policy.

The webhook shows it at /metrics of its own port, controller and ledger at `--metrics-port`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from criproxy_cluster.exposition import Histogram, Reading, Registry, Value, add_process_metrics

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"

_REVIEW_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
OUTCOMES: Final = ("converted", "unchanged", "refused", "unreadable", "failed")
QUEUES: Final = ("nodes", "policies")


class Serves(Protocol):
    """The webhook's front: `connections` that are open, and how many were cut (`cuts`)."""

    @property
    def connections(self) -> int: ...

    @property
    def cuts(self) -> int: ...


class Certified(Protocol):
    """From when until when the certificate in use `holds`, in seconds since 1970; NaN: there is none."""

    @property
    def holds(self) -> tuple[float, float]: ...


class WebhookMetrics:
    """`front` and `certificate` are there as soon as they are."""

    def __init__(self) -> None:
        self.registry: Final = Registry()
        self.front: Serves | None = None
        self.certificate: Certified | None = None
        named, registry = "criproxy_cluster", self.registry
        words = "Reviews of pods that were answered, by what came of them"
        self._reviews = Value("counter", f"{named}_reviews_total", words, ("outcome",), registry=registry)
        for outcome in OUTCOMES:
            self._reviews.inc(outcome, by=0)
        self._seconds = Histogram(
            f"{named}_review_duration_seconds",
            "Time that a review took, from its last byte to its answer's first",
            registry=registry,
            bounds=_REVIEW_BUCKETS_S,
        )
        since, until = "Since when the certificate in use holds", "Until when the certificate in use holds"
        for kind, name, text, read in (
            ("gauge", "connections", "Connections that are open", self._connections),
            ("counter", "connections_cut_total", "Connections cut, as there were too many", self._cuts),
            ("gauge", "certificate_not_before_timestamp_seconds", since, lambda: self._holds()[0]),
            ("gauge", "certificate_not_after_timestamp_seconds", until, lambda: self._holds()[1]),
        ):
            Reading(kind, f"{named}_{name}", text, read, registry=registry)
        add_process_metrics(registry)

    def reviewed(self, outcome: str, seconds: float) -> None:
        """`outcome`: one of `OUTCOMES`."""
        self._reviews.inc(outcome)
        self._seconds.observe(seconds)

    def _connections(self) -> float:
        return self.front.connections if self.front else 0

    def _cuts(self) -> float:
        return self.front.cuts if self.front else 0

    def _holds(self) -> tuple[float, float]:
        return self.certificate.holds if self.certificate else (math.nan, math.nan)


class Leads(Protocol):
    """The leader's work, as far as it is shown."""

    def lengths(self) -> Mapping[str, int]:
        """How many names wait in each of `QUEUES`."""

    def known(self) -> tuple[int, int, int]:
        """Nodes, policies, and those of these that can't be read."""

    def unheard_s(self) -> float:
        """For how long in all nothing could be heard of nodes."""


class ControllerMetrics:
    """`work`: the leader's, None while another replica leads. `leads`, `trouble`: of the Lease."""

    def __init__(self) -> None:
        self.registry: Final = Registry()
        self.work: Leads | None = None
        self.leads: Callable[[], bool] = lambda: False
        self.trouble: Callable[[], bool] = lambda: False
        named, registry = "criproxy_cluster", self.registry
        for name, text, read in (
            ("leads", "Whether this replica leads", lambda: float(self.leads())),
            ("lease_trouble", "Whether the Lease can't be read or written now", lambda: float(self.trouble())),
            ("nodes", "Nodes that the leader knows; NaN: this replica does not lead", lambda: self._known(0)),
            ("policies", "Policies that the leader knows", lambda: self._known(1)),
            ("policies_unreadable", "Policies that can't be read: the one before holds", lambda: self._known(2)),
        ):
            Reading("gauge", f"{named}_{name}", text, read, registry=registry)
        words = "For how long in all the leader could hear nothing of nodes"
        unheard = f"{named}_nodes_unheard_seconds_total"
        Reading("counter", unheard, words, lambda: self.work.unheard_s() if self.work else 0.0, registry=registry)
        words = "Nodes, and statuses of policies, that wait to be written"
        self._lengths = Value("gauge", f"{named}_queue_length", words, ("queue",), registry=registry)
        words = "Writes to nodes, and to statuses of policies, by how they ended"
        self._writes = Value("counter", f"{named}_writes_total", words, ("queue", "outcome"), registry=registry)
        for queue in QUEUES:
            for outcome in ("written", "failed"):
                self._writes.inc(queue, outcome, by=0)
        add_process_metrics(registry)

    def wrote(self, queue: str, *, ok: bool) -> None:
        self._writes.inc(queue, "written" if ok else "failed")

    def render(self) -> bytes:
        self._lengths.replace(self.work.lengths() if self.work else {})
        return self.registry.render()

    def _known(self, which: int) -> float:
        return math.nan if self.work is None else self.work.known()[which]


class Amount(Protocol):
    """MiB, and virtual cores."""

    @property
    def mib(self) -> int: ...

    @property
    def vcores(self) -> int: ...


class Yarn(Protocol):
    """The operator's state, as far as it is shown. Amounts are sums over all nodes."""

    nodes: int
    unknown: int
    giving_back: int
    overdue: int
    grown: int
    shrunk: int
    failures: int
    problem: str

    @property
    def amounts(self) -> Mapping[str, Amount]:
        """By what they are."""


class LedgerMetrics:
    """`leads`, `trouble`: of the Lease. `yarn` None: it is left alone."""

    def __init__(self) -> None:
        self.registry: Final = Registry()
        self.yarn: Yarn | None = None
        self.leads: Callable[[], bool] = lambda: False
        self.trouble: Callable[[], bool] = lambda: False
        named, registry = "criproxy_cluster", self.registry
        for kind, name, text, read in (
            ("gauge", "leads", "Whether this replica leads", lambda: float(self.leads())),
            ("gauge", "lease_trouble", "Whether the Lease can't be read or written now", lambda: float(self.trouble())),
            ("gauge", "yarn_nodemanagers", "NodeManagers in offline pods; NaN: YARN is left alone", self._of("nodes")),
            ("gauge", "yarn_nodemanagers_unknown", "Of these, not known to the ResourceManager", self._of("unknown")),
            ("gauge", "yarn_giving_back", "Of these, told to give memory back", self._of("giving_back")),
            ("gauge", "yarn_overdue", "Of these, not given back in time", self._of("overdue")),
            ("gauge", "yarn_trouble", "Whether the ResourceManager can't be asked now", self._of("problem")),
            ("counter", "yarn_failures_total", "Looks that failed for the ResourceManager", self._of("failures")),
        ):
            Reading(kind, f"{named}_{name}", text, read, registry=registry)
        words = "YARN's memory on all nodes: wanted, size (the ResourceManager's), used, held (in the ledger)"
        self._memory = Value("gauge", f"{named}_yarn_memory_bytes", words, ("what",), registry=registry)
        words = "YARN's virtual cores on all nodes, likewise"
        self._cores = Value("gauge", f"{named}_yarn_cores", words, ("what",), registry=registry)
        words = "Sizes sent to the ResourceManager"
        self._sizes = Value("counter", f"{named}_yarn_sizes_sent_total", words, ("direction",), registry=registry)
        add_process_metrics(registry)

    def render(self) -> bytes:
        if self.yarn is not None:
            self._memory.replace({what: one.mib << 20 for what, one in self.yarn.amounts.items()})
            self._cores.replace({what: one.vcores for what, one in self.yarn.amounts.items()})
            self._sizes.replace({"down": self.yarn.shrunk, "up": self.yarn.grown})
        return self.registry.render()

    def _of(self, name: str) -> Callable[[], float]:
        def read() -> float:
            found = getattr(self.yarn, name, math.nan)
            return float(bool(found)) if isinstance(found, str) else float(found)

        return read
