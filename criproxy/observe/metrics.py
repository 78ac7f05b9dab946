"""What criproxy counts and measures, for Prometheus, in a registry of its own."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from criproxy.cgroup.driver import HeldLimit
from criproxy.control.resources import RESOURCES, SHARES
from criproxy.model import CPU, UNLIMITED, Decision, LimitChange, Limits, Snapshot, Unlimited
from criproxy.model.shown import Counter, Shows
from criproxy.observe.exposition import Histogram, Reading, Registry, Value, add_process_metrics

_CALL_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_TICK_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_SCOPES: Final = ("box", "node", "online")

_COUNTERS: Final = (
    Counter("calls", "CRI calls that ended, by gRPC status", {"method": (), "code": (), "hooked": ()}),
    Counter("connections_broken", "Connections that the relay closed, as what a peer sent could not be followed"),
    Counter("rewrites", "Requests of offline pods that were rewritten", {"method": ()}),
    Counter("refusals", "Requests of offline pods that were refused", {"method": (), "reason": ()}),
    Counter("box_drift", "Files of the box that somebody else had changed"),
    Counter("box_cpu_seconds", "CPU time that the box has had while criproxy looked"),
    Counter("tick_failures", "Ticks that failed"),
    Counter("ticks_missed", "Ticks left out for lateness"),
    Counter("samples_discarded", "Readings that said more than the machine has"),
    Counter(
        "prediction_exceeded",
        "Samples in which online used more than was predicted the tick before",
        {"resource": tuple(name for name, row in RESOURCES.items() if row.sampling is not None)},
    ),
    Counter("config_reloads", "Config files taken up"),
    Counter("config_reload_failures", "Config files refused"),
    Counter("upgrade_failures", "New processes that could not take over from this one"),
)

_GAUGES: Final = {
    "relay_given_up": (
        "Clients whose new connections go to the gRPC engine for now, as their relay's broke again and again",
    ),
    "offline_sandboxes": ("Pod sandboxes that run in the box",),
    "box_above_bound_seconds": (
        "For how long the box has been above its bound: memory in use, the CPU limit in force; 0: it is within",
        "resource",
    ),
    "info": ("The version that runs", "version"),
    "runtime_ready": ("Whether the runtime answers",),
}
"""Those that are 0 at first, or nothing where they have a label."""

_UNKNOWN: Final = {
    "box_memory_bytes": "What counts towards the box's memory limit, page cache included",
    "box_throttled_ratio": "Share of time that the box was throttled",
    "attached": "Whether kubelet uses criproxy; NaN: not known, or not needed",
    "problems": "Why criproxy is not well: how many problems the status has; NaN: it could not be looked in time",
}
"""Those that are NaN at first, since 0 would be a statement."""


class Metrics:
    """All metrics of a process, those of whoever shows some, too.

    Every method may be called from any thread, `on_start` and `on_call` from one.
    """

    def __init__(
        self, version: str, log_lines_dropped: Callable[[], int] = lambda: 0, shown: Iterable[type[Shows]] = ()
    ) -> None:
        self.registry: Final = Registry()
        sampled = [(row.unit, row.sampling) for row in RESOURCES.values() if row.sampling is not None]
        usages = {f"usage_{unit}": (sampling.usage_help, "scope") for unit, sampling in sampled}
        shown = tuple(shown)
        shown_gauges = {one.name: (one.text, *filter(None, (one.label,))) for kind in shown for one in kind.GAUGES}
        counters = (*_COUNTERS, *(one for kind in shown for one in kind.COUNTERS))
        unknown, gauges = _UNKNOWN | _of_resources(), _GAUGES | usages | shown_gauges
        self._counters = {
            one.name: Value("counter", f"criproxy_{one.name}_total", one.text, [*one.labels], registry=self.registry)
            for one in counters
        }
        self._gauges = {
            name: Value("gauge", f"criproxy_{name}", text, labels, registry=self.registry)
            for name, (text, *labels) in (gauges | {name: (text,) for name, text in unknown.items()}).items()
        }
        self.set(**dict.fromkeys(unknown), info={version: 1})
        self._call_seconds = Histogram(
            "criproxy_call_duration_seconds",
            "Time from a call's arrival to its end, the runtime's share included",
            ("method",),
            registry=self.registry,
            bounds=_CALL_BUCKETS_S,
        )
        self._tick_seconds = Histogram(
            "criproxy_tick_duration_seconds", "Time that one tick took", registry=self.registry, bounds=_TICK_BUCKETS_S
        )
        self._in_flight = self.status_calls = 0
        dropped = "Lines of the log that whoever reads it did not take in time"
        words = "CRI calls under way"
        Reading("gauge", "criproxy_calls_in_flight", words, lambda: self._in_flight, registry=self.registry)
        Reading("counter", "criproxy_log_lines_dropped_total", dropped, log_lines_dropped, registry=self.registry)
        add_process_metrics(self.registry)
        for one in counters:
            for values in itertools.product(*one.labels.values()):
                self.count(one.name, *values, by=0)

    def set(self, **values: float | Unlimited | Mapping[str, float] | None) -> None:
        """Gauges, by the name without "criproxy_": one value, or one for each value of the label; None: not known."""
        for name, value in values.items():
            gauge = self._gauges[name]
            if isinstance(value, Mapping):
                gauge.replace(value)
            else:
                gauge.set(math.nan if value is None else math.inf if value is UNLIMITED else value)

    def read(self, shown: Iterable[Shows]) -> None:
        """What these show now."""
        for owner in shown:
            if owner.GAUGES:
                now = owner.now()
                self.set(**{one.name: one.read(now) for one in owner.GAUGES})

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """`by` more of a counter, by its name without "criproxy_" and "_total"."""
        self._counters[name].inc(*labels, by=by)

    # --- calls ------------------------------------------------------------------------------------------------------

    def on_start(self) -> None:
        self._in_flight += 1

    def on_call(self, method: str, code: str, seconds: float, hooked: bool) -> None:
        """`method` is a CRI method's name or "other", `code` a gRPC status code's name."""
        self._in_flight -= 1
        self.status_calls += method == "Status"
        self._counters["calls"].inc(method, code, "true" if hooked else "false")
        self._call_seconds.observe(seconds, method)

    def on_broken(self, reason: str) -> None:
        """The relay has closed a connection. The reason is for the log: a peer may choose it."""
        self._counters["connections_broken"].inc()

    def on_given_up(self, clients: int) -> None:
        """How many clients gRPC's engine serves in the relay's place, for now."""
        self.set(relay_given_up=clients)

    # --- the box's limits -------------------------------------------------------------------------------------------

    def ticked(self, snapshot: Snapshot, decision: Decision, changes: Iterable[LimitChange], seconds: float) -> None:
        """A tick succeeded, in `seconds`."""
        self._tick_seconds.observe(seconds)
        for name, decided in decision.resources.items():
            unit, predicted = RESOURCES[name].unit, decided.prediction
            self.set(**{f"limit_{unit}": decided.limit})
            if (sample := snapshot.of.get(name)) is not None:
                self.set(**{f"usage_{unit}": {scope: getattr(sample, scope) for scope in _SCOPES}})
                self.set(**{f"capacity_{unit}": sample.capacity})
                self.set(**{f"prediction_{unit}": predicted.level, f"prediction_hour_{unit}": predicted.hour})
        self.set(box_throttled_ratio=snapshot.throttled_ratio)
        self.count("box_drift", by=sum(change.drift for change in changes))

    def passed(self, before: Snapshot, decision: Decision, now: Snapshot) -> None:
        """What has come of a tick by the next one: `decision` was made of `before`."""
        for name, sample in now.of.items():
            decided = decision.resources.get(name)
            if decided is not None and (level := decided.prediction.level) is not None and sample.online > level:
                self.count("prediction_exceeded", name)
        if CPU in now.of:
            self.count("box_cpu_seconds", by=now.of[CPU].box * max(0.0, now.read_s - before.read_s))

    def tick_failed(self, seconds: float) -> None:
        self._tick_seconds.observe(seconds)
        self.count("tick_failures")

    def box_held(self, limits: Limits | None, memory_bytes: int | None) -> None:
        """What the kernel holds, and the memory that it counts; None: there is no box, or nothing was read."""
        held = limits or {}
        self.set(**{f"limit_in_force_{row.unit}": held.get(name) for name, row in RESOURCES.items()})
        self.set(box_memory_bytes=memory_bytes)

    def in_use(self, found: Mapping[str, HeldLimit]) -> None:
        """What of the resources that the box has a share of is in use, and how much may be; None: not known."""
        for name in SHARES:
            held = found.get(name)
            self.set(**{f"box_{name}": held.used if held else None, f"limit_{name}": held.limit if held else None})


def _of_resources() -> dict[str, str]:
    """The gauges of each resource, by its row; of one that is not sampled, its limits alone."""
    found = {}
    for row in RESOURCES.values():
        if row.sampling is not None:
            online = f"{_titled(row.title)} that online should not exceed"
            found[f"capacity_{row.unit}"] = row.sampling.capacity_help
            found[f"prediction_hour_{row.unit}"] = f"{online} for an hour; NaN: not known"
            found[f"prediction_{row.unit}"] = f"{online}; NaN: not known"
        found[f"limit_{row.unit}"] = f"The box's {row.title} limit, as decided"
        found[f"limit_in_force_{row.unit}"] = f"The {row.title} limit that the kernel holds"
    for name, share in SHARES.items():
        found |= {
            f"box_{name}": f"{_titled(share.title)} in the box",
            f"limit_{name}": f"The box's limit on {share.title}",
        }
    return found


def _titled(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"
