"""The queries to a Prometheus: online's use of each node, what each has, and the largest pods. From the answers to
nodes as `simulate` replays them.

Which of two exporters says it is found out: node_exporter, or else kubelet's cAdvisor; one of them for all, as each
names nodes in its own way. A node that is there twice, as Thanos has what two replicas of Prometheus scrape, is counted
once; where it is not clear that it is one, SimulateError says so.
"""

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

from msgspec import Struct

from criproxy.commands.advise.prometheus import Prometheus
from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.cluster.record import RecordedNode
from criproxy.commands.simulate.trace import Findings, Flaw, Rows, Trace

REPLICA_LABELS: Final = (
    "prometheus_replica", "replica", "__replica__", "receive_replica", "rule_replica", "prometheus", "ha_replica",
)  # fmt: skip
"""By which Prometheus operators, Thanos, Cortex and VictoriaMetrics tell replicas of one Prometheus apart."""

_NODE_LABELS: Final = ("node", "instance")
_NAMES: Final = ("cpu", "memory", "cpu-capacity", "memory-capacity")

MOST_SAMPLES: Final = 20_000_000
"""Of all nodes; one takes some 40 bytes."""

SLOW_STEP_S: Final = 3600
"""How often capacities and largest pods are queried."""

_SCRAPES_S: Final = 60
"""A rate needs two scrapes, which are a minute apart at most where nothing else is said."""

MOST_ABOVE_RATIO: Final = 0.05
"""More usages above the capacity than this are no peaks, but a wrong unit."""

LEAST_USED_RATIO: Final = 1e-3
"""No fleet of nodes uses less than this of what it has."""

GIB: Final = float(1 << 30)


class Exporter(Struct, frozen=True):
    """Where usage comes from. The templates' `{s}` are selectors, `{w}` the seconds of a rate, `{by}` `by (node)`,
    `{one}` and `{end}` what makes one of several replicas.
    """

    name: str
    probe: str
    """A series a node."""
    cpu: str
    memory: str
    cpu_capacity: str
    memory_capacity: str


EXPORTERS: Final = (
    Exporter(
        "node_exporter",
        'node_cpu_seconds_total{{cpu="0",mode="idle"{s}}}',
        'sum {by} ({one}rate(node_cpu_seconds_total{{mode!~"idle|iowait|steal"{s}}}[{w}s]){end})',
        "max {by} (node_memory_MemTotal_bytes{{{t}}} - node_memory_MemAvailable_bytes{{{t}}})",
        'count {by} ({one}node_cpu_seconds_total{{mode="idle"{s}}}{end})',
        "max {by} (node_memory_MemTotal_bytes{{{t}}})",
    ),
    Exporter(
        "kubelet's cAdvisor",
        'container_cpu_usage_seconds_total{{id="/"{s}}}',
        'sum {by} ({one}rate(container_cpu_usage_seconds_total{{id="/"{s}}}[{w}s]){end})',
        'max {by} (container_memory_working_set_bytes{{id="/"{s}}})',
        "max {by} (machine_cpu_cores{{{t}}})",
        "max {by} (machine_memory_bytes{{{t}}})",
    ),
)

_PODS_USE: Final = (
    "max {by} (sum by ({label}, namespace, pod) "
    '({one}container_memory_working_set_bytes{{container!="",pod!=""{s}}}{end}))'
)
_PODS_PROBE: Final = 'container_memory_working_set_bytes{{id="/"{s}}}'
_PODS_ASK: Final = (
    "max by (node) (sum by (node, namespace, pod) "
    '(max without (instance, job, pod_ip{replicas}) (kube_pod_container_resource_requests{{resource="memory"{s}}})))'
)


class LargestPods(Struct, frozen=True):
    """The memory of the largest pod of each node ("" for all), in bytes, and what that is: its use, or its request."""

    of: Mapping[str, float]
    what: str


class Recording(Struct, frozen=True):
    """What a Prometheus knew. `notes`: what was found out, what is missing and what was mended, in sentences.

    `mean_s`: of how many seconds each value of CPU is the mean; 0: a query of one's own says it.
    """

    nodes: tuple[RecordedNode, ...]
    pods: LargestPods | None
    notes: tuple[str, ...]
    mean_s: float


class RecordQuery(Struct, frozen=True):
    """What to ask for. `selector`: matchers, without braces. `queries`: instead of the exporters' own, by `_NAMES`.

    `replica_labels`: what tells replicas apart, beside `REPLICA_LABELS`. `family`: the label that groups nodes.
    """

    start_s: float
    end_s: float
    step_s: int
    selector: str = ""
    queries: Mapping[str, str] = {}
    replica_labels: tuple[str, ...] = ()
    family: str = ""


class Identity(Struct, frozen=True):
    """Which label names a node, which tell its replicas apart, and the labels of each node."""

    label: str
    replicas: tuple[str, ...]
    nodes: Mapping[str, Mapping[str, str]]

    def fill(self, template: str, selector: str, step_s: int) -> str:
        without = f"max without ({', '.join(self.replicas)}) (" if self.replicas else ""
        return template.format(
            s=f",{selector}" if selector else "",
            t=selector,
            w=window_s(step_s),
            by=f"by ({self.label})",
            label=self.label,
            one=without,
            end=")" if without else "",
        )


def window_s(step_s: int) -> int:
    """Of a rate."""
    return step_s + _SCRAPES_S


def parse_queries(given: Sequence[str]) -> dict[str, str]:
    """`cpu=PROMQL`, ... Raises SimulateError."""
    found = {}
    for text in given:
        name, _, query = text.partition("=")
        if name not in _NAMES or not query.strip():
            raise SimulateError(f"--query {text[:60]}: give NAME=PROMQL, with one of {', '.join(_NAMES)}")
        found[name] = query.strip()
    return found


def ask(prometheus: Prometheus, asked: RecordQuery, tell: Callable[[str], None]) -> Recording:
    """`tell` is given what is being done, in a few words. Raises SimulateError."""
    notes: list[str] = []
    tell("looking for exporters")
    exporter, identity = _exporter(prometheus, asked, notes)
    points = (asked.end_s - asked.start_s) / asked.step_s
    if len(identity.nodes) * points > MOST_SAMPLES:
        raise SimulateError(
            f"{len(identity.nodes)} nodes have {len(identity.nodes) * points / 1e6:.0f} million samples, more than "
            f"{MOST_SAMPLES // 1_000_000}; give --selector, fewer --days, or --step 300"
        )
    findings = Findings()
    series = _NodeAnswers(prometheus, asked, identity, findings, tell)
    names = _names(prometheus, asked, identity)
    labels = _labels_of_groups(prometheus, identity, names, asked.family)
    queries = {name: identity.fill(getattr(exporter, name), asked.selector, asked.step_s) for name in _FIELDS}
    queries |= {name.replace("-", "_"): query for name, query in asked.queries.items()}
    cores = series.last(queries["cpu_capacity"], "what CPU nodes have") or _capacities(series, "cpu", notes)
    if not cores:
        raise SimulateError(
            f"{prometheus.url}: what CPU each node has is not known: neither {exporter.name} nor kube-state-metrics "
            "says it; give --query cpu-capacity='…'"
        )
    cpu = series.traces(queries["cpu"], "CPU", cores, names)
    if not cpu:
        raise SimulateError(
            f"{prometheus.url}: no usage of CPU for this time; if it scrapes less often than once a minute, give "
            "--step 300; if it keeps less, fewer --days"
        )
    check_units(cpu, "CPU", "cores")
    memory: dict[str, Trace] = {}
    sizes = series.last(queries["memory_capacity"], "what memory nodes have") or _capacities(series, "memory", notes)
    if sizes:
        memory = {one.id: one for one in series.traces(queries["memory"], "memory", sizes, names)}
        check_units(list(memory.values()), "memory", "bytes")
    if not memory:
        notes.append(
            f"{exporter.name} says nothing of memory here, so that memory is not judged. What memory "
            "online uses decides "
            "which offline pods are evicted: have it scraped, or give --query memory='…' and memory-capacity='…'."
        )
    elif missing := [one.id for one in cpu if one.id not in memory]:
        notes.append(f"Of {_few(missing)}, no memory is on record: left out.")
        cpu = [one for one in cpu if one.id in memory]
        if not cpu:
            raise SimulateError(
                f"{prometheus.url}: CPU and memory have no node in common; let both queries name nodes alike"
            )
    pods = _pods(prometheus, asked, series, names, notes)
    nodes = tuple(_grouped(one, memory.get(one.id), labels.get(one.id, "")) for one in cpu)
    if asked.family and (without := [one.id for one in nodes if one.id not in labels]):
        notes.append(f"{_few(without)} have no label {asked.family}: they are grouped by what they have.")
    notes.append(
        "Every host on record counts as a node that could lend, those of the control plane and others that offline "
        "pods can't run on, too: leave them out with --selector."
    )
    warned = [f"It warned that its answers may not be whole or right: {one}" for one in prometheus.warnings]
    mean_s = 0.0 if "cpu" in asked.queries else float(window_s(asked.step_s))
    return Recording(nodes, pods, (*notes, *warned, *_of_time(nodes, asked), *_mended(findings)), mean_s)


_FIELDS: Final = ("cpu", "memory", "cpu_capacity", "memory_capacity")


# --- who exports, and what a node is called ---------------------------------------------------------------------------


def _exporter(prometheus: Prometheus, asked: RecordQuery, notes: list[str]) -> tuple[Exporter, Identity]:
    """Raises SimulateError without any."""
    own = asked.queries.get("cpu")
    selector = f",{asked.selector}" if asked.selector else ""
    scraped = {one: prometheus.instant(one.probe.format(s=selector), asked.end_s) for one in EXPORTERS}
    exporter = next((one for one, found in scraped.items() if found), EXPORTERS[0])
    found = [_labels(one) for one in (prometheus.instant(own, asked.end_s) if own else scraped[exporter])]
    if found:
        identity = identify(found, asked.replica_labels)
        if identity.replicas:
            notes.append(
                f"Each node is there several times, told apart by {', '.join(identity.replicas)}: replicas of one "
                "Prometheus, of which one was counted."
            )
        notes.append(f"Usage is that of {'--query cpu' if own else exporter.name}, of {len(identity.nodes)} nodes.")
        return exporter, identity
    if own:
        raise SimulateError(f"{prometheus.url}: --query cpu has no series now: {own}")
    raise SimulateError(
        f"{prometheus.url}: has neither node_exporter's node_cpu_seconds_total nor cAdvisor's "
        f'container_cpu_usage_seconds_total{{id="/"}}{_with(asked.selector)} now; check --selector, or give '
        "--query cpu='…' and cpu-capacity='…', with a label node"
    )


def identify(found: Sequence[Mapping[str, str]], replica_labels: Sequence[str] = ()) -> Identity:
    """Raises SimulateError where two series of one node may be of two nodes, or of two jobs."""
    label = next((name for name in _NODE_LABELS if all(one.get(name) for one in found)), None)
    if label is None:
        shown = ", ".join(sorted({key for one in found[:20] for key in one})[:10]) or "none"
        raise SimulateError(f"series have no label node or instance that names the node (labels: {shown})")
    known = (*REPLICA_LABELS, *replica_labels)
    by_node: dict[str, list[Mapping[str, str]]] = {}
    for one in found:
        by_node.setdefault(one[label], []).append(one)
    replicas: set[str] = set()
    for node_id, several in by_node.items():
        keys = {key for one in several for key in one}
        differing = {key for key in keys if len({one.get(key) for one in several}) > 1}
        told = differing & {*known}
        replicas |= told
        others = sorted(differing - told)
        if len({tuple(one.get(key) for key in others) for one in several}) > 1:
            values = sorted({one.get(others[0], "") for one in several})
            raise SimulateError(
                f"{node_id}: has {len(several)} series, that differ in {', '.join(others)} "
                f"({', '.join(map(repr, values[:3]))}): two exporters, or two clusters? Choose with --selector "
                f"'{others[0]}=\"{values[0]}\"', or call it a replica's with --replica-label {others[0]}"
            )
    return Identity(label, tuple(sorted(replicas)), {node_id: several[0] for node_id, several in by_node.items()})


def _with(selector: str) -> str:
    return f" with {{{selector}}}" if selector else ""


def _labels(series: Mapping[str, Any]) -> dict[str, str]:
    metric = series.get("metric")
    return {str(key): str(value) for key, value in metric.items()} if isinstance(metric, dict) else {}


def _names(prometheus: Prometheus, asked: RecordQuery, identity: Identity) -> dict[str, str]:
    """Nodes' own names, by their instance, where node_exporter says them and no two are alike."""
    if identity.label != "instance" or asked.queries:
        return {}
    found = [_labels(one) for one in prometheus.instant(f"node_uname_info{{{asked.selector}}}", asked.end_s)]
    names = {one["instance"]: one["nodename"] for one in found if one.get("instance") and one.get("nodename")}
    return names if len({*names.values()}) == len(names) else {}


def _labels_of_groups(
    prometheus: Prometheus, identity: Identity, names: Mapping[str, str], label: str
) -> Mapping[str, str]:
    """What groups nodes, by their own names; empty where no label is to. Raises SimulateError where none has it."""
    found = {names.get(key, key): labels[label] for key, labels in identity.nodes.items() if labels.get(label)}
    if label and not found:
        shown = ", ".join(sorted({key for labels in identity.nodes.values() for key in labels})[:10])
        raise SimulateError(
            f"{prometheus.url}: no series has the label {label} that is to group nodes; give --family one of {shown}, "
            "or leave it out"
        )
    return found


# --- series -----------------------------------------------------------------------------------------------------------


class _NodeAnswers(Struct):
    """Answers to range queries, node by node."""

    prometheus: Prometheus
    asked: RecordQuery
    identity: Identity
    findings: Findings
    tell: Callable[[str], None]

    def values(self, query: str, what: str, step_s: int, label: str) -> Iterator[tuple[str, Sequence[Any]]]:
        """A node, and its moments and values, piece by piece. Raises SimulateError."""
        asked = self.asked
        pieces = self.prometheus.pieces(query, asked.start_s, asked.end_s, step_s, max(1, len(self.identity.nodes)))
        for done, piece in enumerate(pieces, 1):
            self.tell(f"{what}: piece {done}")
            for one in piece:
                node_id = _labels(one).get(label) or _labels(one).get("node", "")
                if not node_id:
                    raise SimulateError(f"{query}: its series have no label {label}; write it as sum by ({label}) (…)")
                yield node_id, one.get("values") or ()

    def traces(self, query: str, what: str, capacities: Mapping[str, float], names: Mapping[str, str]) -> list[Trace]:
        rows = Rows(self.findings)
        rows.begin(lambda node_id, _number: f"{what} of {node_id}")
        for node_id, values in self.values(query, what, self.asked.step_s, self.identity.label):
            for number, (t_s, value) in enumerate(values):
                rows.add(node_id, "", float(t_s), float(value), number)
        found = rows.traces(lambda node_id: _capacity(capacities, node_id))
        return [_renamed(one, names.get(one.id, one.id)) for one in found]

    def last(self, query: str, what: str, label: str = "") -> dict[str, float]:
        """The last value of each node that is above 0."""
        found = {}
        for node_id, values in self.values(query, what, SLOW_STEP_S, label or self.identity.label):
            for _, value in values:
                if 0.0 < float(value) < math.inf:
                    found[node_id] = float(value)
        return found

    def most(self, query: str, what: str, label: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for node_id, values in self.values(query, what, SLOW_STEP_S, label):
            known = [float(value) for _, value in values if math.isfinite(float(value))]
            found[node_id] = max([found.get(node_id, 0.0), *known])
        return found


def _capacity(capacities: Mapping[str, float], node_id: str) -> tuple[float, str] | None:
    return (capacities[node_id], "") if node_id in capacities else None


def _capacities(series: _NodeAnswers, resource: str, notes: list[str]) -> dict[str, float]:
    """As kube-state-metrics knows them, where the exporter does not."""
    selector = f",{series.asked.selector}" if series.asked.selector else ""
    query = f'max by (node) (kube_node_status_capacity{{resource="{resource}"{selector}}})'
    found = series.last(query, f"{resource} of kube-state-metrics", "node")
    if found:
        notes.append(f"What {resource} nodes have is what kube-state-metrics says.")
    return found


def _pods(
    prometheus: Prometheus, asked: RecordQuery, series: _NodeAnswers, names: Mapping[str, str], notes: list[str]
) -> LargestPods | None:
    selector = f",{asked.selector}" if asked.selector else ""
    probe = [_labels(one) for one in prometheus.instant(_PODS_PROBE.format(s=selector), asked.end_s)]
    if probe:
        identity = identify(probe, asked.replica_labels)
        query = identity.fill(_PODS_USE, asked.selector, asked.step_s)
        of = series.most(query, "largest pods", identity.label)
        if of:
            return LargestPods({names.get(key, key): value for key, value in of.items()}, "uses")
    replicas = "".join(f", {label}" for label in series.identity.replicas)
    of = series.most(_PODS_ASK.format(s=selector, replicas=replicas), "largest pods", "node")
    if of:
        notes.append(
            f"cAdvisor's numbers of pods are not here{_with(asked.selector)}: the largest pod is the one that asks for "
            "most memory."
        )
        return LargestPods(of, "asks for")
    hidden = "; a selector that names a job leaves them out" if asked.selector else ""
    notes.append(
        "The largest pod is not known: neither cAdvisor (container_memory_working_set_bytes) nor kube-state-metrics "
        f"(kube_pod_container_resource_requests) is here{_with(asked.selector)}{hidden}."
    )
    return None


def _renamed(trace: Trace, node_id: str) -> Trace:
    return Trace(node_id, trace.family, trace.capacity, trace.times_s, trace.usages)


def _grouped(cpu: Trace, memory: Trace | None, label: str) -> RecordedNode:
    """In a group by the label, or else of nodes that have as much."""
    size = "" if memory is None else f", {memory.capacity / GIB:.0f} GiB"
    name = label or f"{cpu.capacity:g} cores{size}"
    return RecordedNode(_in_group(cpu, name), None if memory is None else _in_group(memory, name))


def _in_group(trace: Trace, name: str) -> Trace:
    return Trace(trace.id, name, trace.capacity, array("d", trace.times_s), array("d", trace.usages))


# --- what is said of them ---------------------------------------------------------------------------------------------


def check_units(traces: Sequence[Trace], what: str, unit: str) -> None:
    """Raises SimulateError where usage and capacity can't be in one unit."""
    finer, coarser = ("millicores", "cores") if unit == "cores" else ("bytes", "KiB or MiB")
    samples = sum(len(one.usages) for one in traces)
    full = sum(sum(used >= one.capacity for used in one.usages) for one in traces)
    if samples and full > MOST_ABOVE_RATIO * samples and median(_mean_ratio(one) for one in traces) > 0.99:
        raise SimulateError(
            f"{what}: in {full} of {samples} samples nodes use all they have, or more: is the usage in {finer} and the "
            f"capacity in {coarser}? Both must be in {unit}"
        )
    used = median(_mean_ratio(one) for one in traces) if traces else 1.0
    if used < LEAST_USED_RATIO:
        raise SimulateError(
            f"{what}: nodes use {used:.3%} of what they have: is the capacity in {finer} and the usage in {coarser}? "
            f"Both must be in {unit}"
        )


def _mean_ratio(trace: Trace) -> float:
    return sum(trace.usages) / len(trace.usages) / trace.capacity if trace.usages else 0.0


def _of_time(nodes: Sequence[RecordedNode], asked: RecordQuery) -> Iterator[str]:
    """Of nodes that are younger than the time asked for, or gone."""
    slack_s = 0.05 * (asked.end_s - asked.start_s)
    young = [node.id for node in nodes if node.cpu.times_s[0] > asked.start_s + slack_s]
    gone = [node.id for node in nodes if node.cpu.times_s[-1] < asked.end_s - slack_s]
    if len(young) == len(nodes):
        days = (asked.end_s - min(node.cpu.times_s[0] for node in nodes)) / 86400
        yield f"Prometheus knows {days:.1f} days, and not the {(asked.end_s - asked.start_s) / 86400:g} asked for."
    elif young:
        yield f"Younger than the time asked for: {_few(young)}. They count from their first sample on."
    if gone:
        yield f"Without a sample at the end: {_few(gone)}. They count until their last one."


def _mended(findings: Findings) -> Iterator[str]:
    gaps = findings.counts.pop(Flaw.GAP, 0)
    if gaps:
        where = ", ".join(findings.places[Flaw.GAP])
        yield f"{gaps} gaps of more than 3 steps, in which nothing is counted ({where}{', …' if gaps > 3 else ''})."
    yield from (f"{line}." for line in findings.lines())


def _few(names: Sequence[str]) -> str:
    return f"{len(names)} nodes ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
