"""What webhook, controller and ledger count and measure, for Prometheus. No name of a pod, node or policy is there.

With `--owners`, the names of a few owners of offline pods are. The webhook and the ledger show them at /metrics of
their own ports, the controller at `--metrics-port`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

from criproxy_cluster.exposition import Histogram, Reading, Registry, Value, add_process_metrics
from criproxy_cluster.owners.rules import Past
from criproxy_cluster.owners.state import OwnersState

T = TypeVar("T")

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"

_REVIEW_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
OUTCOMES: Final = ("converted", "overflowed", "unchanged", "refused", "unreadable", "failed")
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


class ShowsAmounts(Protocol):
    @property
    def millicores(self) -> int: ...

    @property
    def bytes(self) -> int: ...


class ShowsQuota(Protocol):
    """The keeper of Kueue's quota. By flavor: `lent`, `quota`. `problem` "": all is well."""

    @property
    def lent(self) -> Mapping[str, ShowsAmounts]: ...

    @property
    def quota(self) -> Mapping[str, ShowsAmounts]: ...

    @property
    def problem(self) -> str: ...

    @property
    def writes(self) -> int: ...

    @property
    def failures(self) -> int: ...

    @property
    def suspended(self) -> int: ...

    @property
    def resumed(self) -> int: ...


class ControllerMetrics:
    """`work`: the leader's, None while another replica leads. `leads`, `trouble`: of the Lease.

    `quota` and `owners`: the leader's, where they are switched on.
    """

    def __init__(self) -> None:
        self.registry: Final = Registry()
        self.work: Leads | None = None
        self.quota: ShowsQuota | None = None
        self.owners: OwnersState | None = None
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
        self._add_quota()
        self._add_owners()
        add_process_metrics(registry)

    def wrote(self, queue: str, *, ok: bool) -> None:
        self._writes.inc(queue, "written" if ok else "failed")

    def _add_quota(self) -> None:
        named, registry = "criproxy_cluster_quota", self.registry
        for kind, name, text, read in (
            ("gauge", "trouble", "Whether Kueue's Cohort can't be kept now", lambda one: float(bool(one.problem))),
            ("counter", "writes_total", "Times that the Cohort was written", lambda one: one.writes),
            ("counter", "failures_total", "Looks at the Cohort that failed", lambda one: one.failures),
            ("counter", "suspended_total", "Workloads suspended, as nodes lend less", lambda one: one.suspended),
            ("counter", "resumed_total", "Workloads made active again", lambda one: one.resumed),
        ):
            Reading(kind, f"{named}_{name}", text, _of(lambda: self.quota, read), registry=registry)
        labels = ("flavor", "what")
        self._cores = Value("gauge", f"{named}_cores", "CPUs that are lent, and the quota", labels, registry=registry)
        self._bytes = Value("gauge", f"{named}_bytes", "The same of memory", labels, registry=registry)

    def _add_owners(self) -> None:
        named, registry = "criproxy_cluster_owner", self.registry
        for kind, name, text, read in (
            (
                "gauge",
                "s_trouble",
                "Whether the owners' book can't be kept now",
                lambda one: float(bool(one.problem)),
            ),
            ("gauge", "s", "Owners of offline pods in the book", lambda one: one.owners),
            ("gauge", "s_pods_waiting", "Offline pods that wait for a node", lambda one: one.waiting),
            (
                "gauge",
                "s_pods_raised",
                "Offline pods of the higher tier, as they waited",
                lambda one: one.raised,
            ),
            ("gauge", "s_pods_overflowed", "Offline pods on virtual nodes, or to be", lambda one: one.overflowed),
            ("counter", "s_raises_total", "Waiting pods that were raised", lambda one: one.raises),
            ("counter", "s_remakes_total", "Waiting pods evicted, so that others overflow", lambda one: one.remakes),
            ("counter", "s_failures_total", "Looks at owners that failed", lambda one: one.failures),
        ):
            Reading(kind, f"{named}{name}", text, _of(lambda: self.owners, read), registry=registry)
        words = "For how long a pod waited within a day, of the owners with the longest waits"
        labels = ("namespace", "kind", "owner")
        self._waited = Value("gauge", f"{named}_waited_seconds", words, labels, registry=registry)
        words = "Pods lost to evictions within a day, of the same owners"
        self._evictions = Value("gauge", f"{named}_evictions", words, labels, registry=registry)

    def render(self) -> bytes:
        self._lengths.replace(self.work.lengths() if self.work else {})
        amounts: dict[tuple[str, ...], ShowsAmounts] = {}
        if self.quota is not None:
            amounts = {(flavor, "lent"): one for flavor, one in self.quota.lent.items()}
            amounts |= {(flavor, "quota"): one for flavor, one in self.quota.quota.items()}
        self._cores.replace({labels: one.millicores / 1000 for labels, one in amounts.items()})
        self._bytes.replace({labels: float(one.bytes) for labels, one in amounts.items()})
        worst: dict[tuple[str, ...], Past] = {
            (one.namespace, one.kind, one.name): past for one, past in (self.owners or OwnersState()).worst
        }
        self._waited.replace({labels: past.waited_s for labels, past in worst.items()})
        self._evictions.replace({labels: float(past.evictions) for labels, past in worst.items()})
        return self.registry.render()

    def _known(self, which: int) -> float:
        return math.nan if self.work is None else self.work.known()[which]


def _of(one: Callable[[], T | None], read: Callable[[T], float]) -> Callable[[], float]:
    """0 while there is none."""
    return lambda: 0.0 if (found := one()) is None else read(found)


LEDGER_OUTCOMES: Final = ("allowed", "refused", "abstained")


class ShowsLedger(Protocol):
    """The ledger's desk. `figures`: how many requests each of `LEDGER_OUTCOMES` had, and pods that were read."""

    @property
    def figures(self) -> Mapping[str, int]: ...

    @property
    def reservations(self) -> int: ...

    def abstains(self) -> str: ...

    @property
    def leads(self) -> bool: ...


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
    """`desk` is there as soon as it is; `yarn` None: it is left alone."""

    def __init__(self, desk: ShowsLedger | None = None) -> None:
        self.registry: Final = Registry()
        self.desk = desk
        self.yarn: Yarn | None = None
        named, registry = "criproxy_cluster_ledger", self.registry
        words = "Binds and reservations that were asked for, by what was said"
        self._requests = Value("counter", f"{named}_requests_total", words, ("outcome",), registry=registry)
        for kind, name, text, read in (
            ("gauge", "leads", "Whether this replica leads", lambda one: float(one.leads)),
            ("gauge", "abstains", "Whether nothing is decided now", lambda one: float(bool(one.abstains()))),
            ("gauge", "reservations", "Reservations that have not ended", lambda one: float(one.reservations)),
            (
                "counter",
                "pods_read_total",
                "Pods read, as the watch had not shown them",
                lambda one: one.figures["read"],
            ),
        ):
            Reading(kind, f"{named}_{name}", text, self._read(read), registry=registry)
        for kind, name, text, shown in (
            ("gauge", "yarn_nodemanagers", "NodeManagers in offline pods; NaN: YARN is left alone", self._of("nodes")),
            ("gauge", "yarn_nodemanagers_unknown", "Of these, not known to the ResourceManager", self._of("unknown")),
            ("gauge", "yarn_giving_back", "Of these, told to give memory back", self._of("giving_back")),
            ("gauge", "yarn_overdue", "Of these, not given back in time", self._of("overdue")),
            ("gauge", "yarn_trouble", "Whether the ResourceManager can't be asked now", self._of("problem")),
            ("counter", "yarn_failures_total", "Looks that failed for the ResourceManager", self._of("failures")),
        ):
            Reading(kind, f"criproxy_cluster_{name}", text, shown, registry=registry)
        words = "YARN's memory on all nodes: wanted, size (the ResourceManager's), used, held (in the ledger)"
        self._memory = Value("gauge", "criproxy_cluster_yarn_memory_bytes", words, ("what",), registry=registry)
        words = "YARN's virtual cores on all nodes, likewise"
        self._cores = Value("gauge", "criproxy_cluster_yarn_cores", words, ("what",), registry=registry)
        named, words = "criproxy_cluster_yarn_sizes_sent_total", "Sizes sent to the ResourceManager"
        self._sizes = Value("counter", named, words, ("direction",), registry=registry)
        add_process_metrics(registry)

    def _read(self, read: Callable[[ShowsLedger], float]) -> Callable[[], float]:
        return lambda: math.nan if self.desk is None else read(self.desk)

    def render(self) -> bytes:
        if self.desk is not None:
            self._requests.replace({outcome: float(self.desk.figures[outcome]) for outcome in LEDGER_OUTCOMES})
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
