"""What criproxy counts and measures, for Prometheus, in a registry of its own."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from criproxy.cgroup.driver import HeldLimit
from criproxy.control.resources import RESOURCES, SHARES, Resource
from criproxy.model import (
    UNLIMITED,
    Decision,
    LimitChange,
    Limits,
    ResourceDecision,
    ResourceSample,
    Snapshot,
    type_unlimited,
)
from criproxy.observe.exposition import Counter, Gauge, Histogram, Metric, Reading, Registry
from criproxy.observe.process_metrics import add_process_metrics
from criproxy.observe.status import BypassStatus

_CALL_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_TICK_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_SCOPES: Final = ("box", "node", "online")


class _ResourceMetrics:
    """The metrics of one resource, by its row; a resource that is not sampled has its limits alone."""

    def __init__(self, row: Resource, registry: Registry) -> None:
        unit, name = row.unit, f"{row.title[0].upper()}{row.title[1:]}"
        self._sampled: dict[str, Gauge] = {}
        if row.sampling is not None:
            self._usage = Gauge(f"criproxy_usage_{unit}", row.sampling.usage_help, ("scope",), registry=registry)
            hour, now = f"{name} that online should not exceed for an hour", f"{name} that online should not exceed"
            self._sampled = {
                "capacity": _unknown(f"criproxy_capacity_{unit}", row.sampling.capacity_help, registry),
                "hour": _unknown(f"criproxy_prediction_hour_{unit}", f"{hour}; NaN: not known", registry),
                "prediction": _unknown(f"criproxy_prediction_{unit}", f"{now}; NaN: not known", registry),
            }
        self._limit = _unknown(f"criproxy_limit_{unit}", f"The box's {row.title} limit, as decided", registry)
        self.in_force = _unknown(
            f"criproxy_limit_in_force_{unit}", f"The {row.title} limit that the kernel holds", registry
        )

    def ticked(self, sample: ResourceSample | None, decided: ResourceDecision | None) -> None:
        if decided is not None:
            self._limit.set(_number(decided.limit))
        if sample is None or decided is None:
            return
        for scope in _SCOPES:
            self._usage.set(getattr(sample, scope), scope)
        self._sampled["capacity"].set(sample.capacity)
        self._sampled["hour"].set(_number(decided.prediction.hour))
        self._sampled["prediction"].set(_number(decided.prediction.level))


class Metrics:
    """All metrics of a process. Every method may be called from any thread, `on_start` and `on_call` from one.

    Gauges of what is not known yet are NaN, since 0 would be a statement.
    """

    def __init__(self, version: str, log_lines_dropped: Callable[[], int] = lambda: 0) -> None:
        self._registry: Final = Registry()
        self._init_requests()
        self._init_overhead()
        self._init_samples()
        self._init_process(version, log_lines_dropped)

    def _init_requests(self) -> None:
        registry = self._registry
        labels = ("method", "code", "hooked")
        self._calls = Counter("criproxy_calls", "CRI calls that ended, by gRPC status", labels, registry=registry)
        self._call_seconds = Histogram(
            "criproxy_call_duration_seconds",
            "Time from a call's arrival to its end, the runtime's share included",
            ("method",),
            registry=registry,
            bounds=_CALL_BUCKETS_S,
        )
        self._broken = Counter(
            "criproxy_connections_broken",
            "Connections that the relay closed, as what a peer sent could not be followed",
            registry=registry,
        )
        self._given_up = Gauge(
            "criproxy_relay_given_up",
            "Clients whose new connections go to the gRPC engine for now, as their relay's broke again and again",
            registry=registry,
        )
        self._in_flight = 0
        Reading("criproxy_calls_in_flight", "CRI calls under way", "gauge", lambda: self._in_flight, registry=registry)
        self._rewrites = Counter(
            "criproxy_rewrites", "Requests of offline pods that were rewritten", ("method",), registry=registry
        )
        self._refusals = Counter(
            "criproxy_refusals", "Requests of offline pods that were refused", ("method", "reason"), registry=registry
        )
        self._sandboxes = Gauge("criproxy_offline_sandboxes", "Pod sandboxes that run in the box", registry=registry)
        self._misplaced = Gauge(
            "criproxy_misplaced_containers",
            "Containers, and pod sandboxes, of the box that run outside it",
            registry=registry,
        )
        self._misplacements = Counter(
            "criproxy_misplacements",
            "Containers, and pod sandboxes, that were found outside the box",
            registry=registry,
        )
        self._unverified = Gauge(
            "criproxy_unverified_containers",
            "Containers, and pod sandboxes, whose cgroup is not known",
            registry=registry,
        )
        self._unbounded = Gauge("criproxy_unbounded_pods", "Offline pods that run outside the box", registry=registry)

    def _init_overhead(self) -> None:
        registry = self._registry
        self._runtime_seconds = Counter(
            "criproxy_runtime_cpu_seconds", "CPU time of the runtime's own process, whatever it did", registry=registry
        )
        self._shim_seconds = Counter(
            "criproxy_offline_shim_cpu_seconds", "CPU time of offline pods' shims, outside the box", registry=registry
        )
        self._log_bytes = Counter(
            "criproxy_offline_log_bytes", "What the logs of offline pods have grown by", registry=registry
        )
        self._realtime = Gauge(
            "criproxy_realtime_pods", "Offline pods with threads in real time, past the box's limits", registry=registry
        )
        self._disk_weight = Gauge(
            "criproxy_disk_weight_in_force",
            "Whether a disk keeps to the box's lowest weight",
            ("device",),
            registry=registry,
        )
        self._runtime_overloaded = Gauge(
            "criproxy_runtime_overloaded",
            "Whether the runtime works too much, outside the box, for offline pods",
            registry=registry,
        )

    def _init_samples(self) -> None:
        registry = self._registry
        self._shares: dict[str, tuple[Gauge, Gauge]] = {}
        self._resources = {row.name: _ResourceMetrics(row, registry) for row in RESOURCES.values()}
        self._box_memory = _unknown(
            "criproxy_box_memory_bytes", "What counts towards the box's memory limit, page cache included", registry
        )
        self._above = Gauge(
            "criproxy_box_above_bound_seconds",
            "For how long the box has been above its bound: memory in use, the CPU limit in force; 0: it is within",
            ("resource",),
            registry=registry,
        )
        self._hard = _unknown(
            "criproxy_eviction_hard_bytes", "kubelet's evictionHard for memory.available, or its default", registry
        )
        self._hard_known = Gauge(
            "criproxy_eviction_hard_known", "Whether kubelet's evictionHard could be read", registry=registry
        )
        self._available = _unknown("criproxy_memory_available_bytes", "As kubelet counts it", registry)
        self._memory_evictions = Counter(
            "criproxy_memory_evictions",
            "Offline pods that were stopped as the box was above its limit and kubelet near evicting pods",
            registry=registry,
        )
        for name, row in SHARES.items():
            title = f"{row.title[0].upper()}{row.title[1:]}"
            self._shares[name] = (
                _unknown(f"criproxy_box_{name}", f"{title} in the box", registry),
                _unknown(f"criproxy_limit_{name}", f"The box's limit on {row.title}", registry),
            )
        self._throttled = _unknown("criproxy_box_throttled_ratio", "Share of time that the box was throttled", registry)
        self._drift = Counter(
            "criproxy_box_drift", "Files of the box that somebody else had changed", registry=registry
        )
        self._swept = Counter("criproxy_box_swept", "Pod cgroups removed from the box", registry=registry)
        self._tick_seconds = Histogram(
            "criproxy_tick_duration_seconds", "Time that one tick took", registry=registry, bounds=_TICK_BUCKETS_S
        )
        self._squeezes = Counter(
            "criproxy_guard_squeezes", "Times that the guard has lowered the box's CPU limit", registry=registry
        )
        self._guard_ceiling = _unknown(
            "criproxy_guard_ceiling_cores", "What the guard leaves to the box; +Inf: it is at rest", registry
        )
        self._false_alarms = Counter("criproxy_guard_false_alarms", "Squeezes that proved needless", registry=registry)
        self._tick_failures = Counter("criproxy_tick_failures", "Ticks that failed", registry=registry)
        self._ticks_missed = Counter("criproxy_ticks_missed", "Ticks left out for lateness", registry=registry)
        self._samples_discarded = Counter(
            "criproxy_samples_discarded", "Readings that said more than the machine has", registry=registry
        )

    def _init_process(self, version: str, log_lines_dropped: Callable[[], int]) -> None:
        registry = self._registry
        Gauge("criproxy_info", "The version that runs", ("version",), registry=registry).set(1, version)
        self._ready = Gauge("criproxy_runtime_ready", "Whether the runtime answers", registry=registry)
        self._bypass_after = _unknown(
            "criproxy_bypass_after_seconds",
            "How long criproxy is away before the bypass opens; +Inf: never, NaN: there is none",
            registry,
        )
        self._bypass_open = _unknown("criproxy_bypass_open", "Whether kubelet's calls pass by criproxy", registry)
        self._bypass_uses = _unknown(
            "criproxy_bypass_uses", "Times that the bypass has opened since the machine's start", registry
        )
        self._reloads = Counter("criproxy_config_reloads", "Config files taken up", registry=registry)
        self._reload_failures = Counter("criproxy_config_reload_failures", "Config files refused", registry=registry)
        self._upgrade_failures = Counter(
            "criproxy_upgrade_failures", "New processes that could not take over from this one", registry=registry
        )
        Reading(
            "criproxy_log_lines_dropped_total",
            "Lines of the log that whoever reads it did not take in time",
            "counter",
            log_lines_dropped,
            registry=registry,
        )
        add_process_metrics(registry)

    def on_start(self) -> None:
        self._in_flight += 1

    def on_call(self, method: str, code: str, seconds: float, hooked: bool) -> None:
        """`method` is a CRI method's name or "other", `code` a gRPC status code's name."""
        self._in_flight -= 1
        self._calls.inc(method, code, "true" if hooked else "false")
        self._call_seconds.observe(seconds, method)

    def on_broken(self, reason: str) -> None:
        """The relay has closed a connection. The reason is for the log: a peer may choose it."""
        self._broken.inc()

    def on_given_up(self, clients: int) -> None:
        """How many clients the gRPC engine serves in the relay's place, for now."""
        self._given_up.set(clients)

    def on_rewrite(self, operation: str) -> None:
        self._rewrites.inc(operation)

    def on_refusal(self, operation: str, reason: str) -> None:
        self._refusals.inc(operation, reason)

    def runtime_ready(self, ready: bool) -> None:
        self._ready.set(ready)

    def config_loaded(self, taken: bool) -> None:
        """A config file was read, and taken up or refused."""
        (self._reloads if taken else self._reload_failures).inc()

    def upgrade_failed(self) -> None:
        """A new process could not take over from this one."""
        self._upgrade_failures.inc()

    def offline_sandboxes(self, count: int) -> None:
        self._sandboxes.set(count)

    def on_misplaced(self) -> None:
        """A container of the box was found outside it."""
        self._misplacements.inc()

    def misplaced(self, count: int, unknown: int) -> None:
        """How many are outside the box now, and for how many that is not known."""
        self._misplaced.set(count)
        self._unverified.set(unknown)

    def runtime_worked(self, runtime_s: float, shims_s: float, log_bytes: float) -> None:
        """CPU time of the runtime and of offline pods' shims, and what their logs grew by, since the last call."""
        self._runtime_seconds.inc(by=runtime_s)
        self._shim_seconds.inc(by=shims_s)
        self._log_bytes.inc(by=log_bytes)

    def realtime_pods(self, count: int) -> None:
        self._realtime.set(count)

    def disk_weight(self, device: str, in_force: bool) -> None:
        self._disk_weight.set(in_force, device)

    def runtime_overloaded(self, overloaded: bool) -> None:
        self._runtime_overloaded.set(overloaded)

    def unbounded_pods(self, count: int) -> None:
        self._unbounded.set(count)

    def bypass(self, status: BypassStatus | None) -> None:
        """None: there is no bypass."""
        if status is None:
            return
        self._bypass_after.set(math.inf if status.after_s is None else status.after_s)
        self._bypass_open.set(status.open_since_s is not None)
        self._bypass_uses.set(status.uses)

    def ticked(self, snapshot: Snapshot, decision: Decision, changes: Iterable[LimitChange], seconds: float) -> None:
        """A tick succeeded, in `seconds`."""
        self._tick_seconds.observe(seconds)
        for name, metrics in self._resources.items():
            metrics.ticked(snapshot.of.get(name), decision.resources.get(name))
        self._throttled.set(snapshot.throttled_ratio)
        self._drift.inc(by=sum(change.drift for change in changes))

    def box_held(self, limits: Limits | None, memory_bytes: int | None) -> None:
        """What the kernel holds, and the memory that it counts; None: there is no box, or nothing was read."""
        for name, metrics in self._resources.items():
            metrics.in_force.set(_number((limits or {}).get(name)))
        self._box_memory.set(_number(memory_bytes))

    def on_memory_eviction(self) -> None:
        """An offline pod was stopped, lest kubelet evict an online one."""
        self._memory_evictions.inc()

    def eviction(self, hard_bytes: int | None, available_bytes: int | None, *, known: bool) -> None:
        """How near kubelet is to evicting pods for memory; None: not sampled yet."""
        self._hard.set(_number(hard_bytes))
        self._available.set(_number(available_bytes))
        self._hard_known.set(known)

    def above_bound(self, resource: str, seconds: float) -> None:
        """For how long a resource of the box has been above its bound; 0: it is within."""
        self._above.set(seconds, resource)

    def in_use(self, found: Mapping[str, HeldLimit]) -> None:
        """What of the resources that the box has a share of is in use, and how much may be; None: not known."""
        for name, (current, limit) in self._shares.items():
            held = found.get(name)
            current.set(_number(held.used if held else None))
            limit.set(_number(held.limit if held else None))

    def guard_squeezed(self) -> None:
        """The guard has lowered the box's CPU limit."""
        self._squeezes.inc()

    def guard_false_alarm(self) -> None:
        """A squeeze has proved needless."""
        self._false_alarms.inc()

    def guard_ceiling(self, cores: float | None) -> None:
        """None: the guard is at rest."""
        self._guard_ceiling.set(math.inf if cores is None else cores)

    def tick_failed(self, seconds: float) -> None:
        self._tick_seconds.observe(seconds)
        self._tick_failures.inc()

    def sample_discarded(self) -> None:
        """A tick's reading was no measurement."""
        self._samples_discarded.inc()

    def ticks_missed(self, count: int) -> None:
        self._ticks_missed.inc(by=count)

    def box_swept(self, count: int) -> None:
        self._swept.inc(by=count)

    def described(self) -> tuple[Metric, ...]:
        """All that there are, for the reference in docs/."""
        return self._registry.metrics

    def render(self) -> bytes:
        """The text format 0.0.4. Source: prometheus.io, exposition formats."""
        return self._registry.render()


def _unknown(name: str, text: str, registry: Registry) -> Gauge:
    gauge = Gauge(name, text, registry=registry)
    gauge.set(math.nan)
    return gauge


def _number(value: float | type_unlimited | None) -> float:
    if value is None:
        return math.nan
    return math.inf if value is UNLIMITED else value
