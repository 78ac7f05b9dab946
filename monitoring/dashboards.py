"""Two dashboards for Grafana: the fleet, and one node of it."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh
from msgspec import Struct

from criproxy.vocabulary.presets import MILLICORES, NAMES
from monitoring.rules import CLUSTER, NODES, UP

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
_CHOSEN: Final = 'cluster="$cluster", instance=~"$instance"'
NODE: Final = f"{NODES}, {_CHOSEN}"
PROCESS: Final = f"{UP}, {_CHOSEN}"
"""node_exporter has metrics of its own process by the same names."""

PANELS_A_ROW: Final = 3
_WIDTH, _HEIGHT = 24 // PANELS_A_ROW, 8


class Query(Struct, frozen=True):
    expr: str
    legend: str = "{{instance}}"


class Graph(Struct, frozen=True):
    """A panel. `unit` is Grafana's word. `now`: the value of now alone, as a number."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    now: bool = False


class Row(Struct, frozen=True):
    title: str
    graphs: tuple[Graph, ...]


_THOUSANDTHS: Final = "|".join(one.cpu for one in NAMES.values() if one.per_core == MILLICORES)


def _lent(title: str, selector: str) -> tuple[Graph, Graph]:
    """What of CPU and memory is published by nodes, each on an axis of its own."""
    published = f"criproxy_kubernetes_published{{{selector}, resource"
    return (
        Graph(
            f"{title}: CPU",
            "Cores that are published, by the name of the extended resource; one of your own in its unit.",
            "short",
            (
                Query(
                    f'sum by (resource) ({published}=~"{_THOUSANDTHS}"}}) / {MILLICORES}'
                    f' or sum by (resource) ({published}!~"{_THOUSANDTHS}|.*memory.*"}})',
                    "{{resource}}",
                ),
            ),
        ),
        Graph(
            f"{title}: memory",
            "Likewise.",
            "bytes",
            (Query(f'sum by (resource) ({published}=~".*memory.*"}})', "{{resource}}"),),
        ),
    )


FLEET: Final = (
    Row(
        "What is gained",
        (
            Graph(
                "Nodes", "Nodes whose criproxy runs.", "short", (Query(f"count (criproxy_info{{{NODES}}})", ""),), True
            ),
            Graph(
                "CPU of the fleet",
                "Share of all CPUs in use: by online pods and the system, and with offline pods.",
                "percentunit",
                (Query("fleet:criproxy_node_cpu:ratio", "all"), Query("fleet:criproxy_online_cpu:ratio", "online")),
            ),
            Graph(
                "Cores that offline pods use",
                "CPU time that the boxes of all nodes get, and how many offline pods run.",
                "short",
                (
                    Query("fleet:criproxy_box_cpu_seconds:sum_rate5m", "cores"),
                    Query(f"sum (criproxy_offline_sandboxes{{{NODES}}})", "pods"),
                ),
            ),
            *_lent("What nodes lend", NODES),
        ),
    ),
    Row(
        "What pods get of what is lent",
        (
            Graph(
                "Squeezed pod-time",
                "Share of the time of offline pods that want CPU in which they get less than this share of what they "
                "asked for.",
                "percentunit",
                (Query("fleet:criproxy_slow_pod_seconds:ratio_rate1h", "below {{below}}"),),
            ),
            Graph(
                "Starved pods",
                "That got less than half of the CPU that they wanted for five minutes; the nodes with most.",
                "short",
                (Query(f"topk (5, criproxy_starved_pods{{{NODES}}})"),),
            ),
        ),
    ),
    Row(
        "Is all well",
        (
            Graph(
                "Nodes that are not well",
                "Nodes whose status has a problem, and those where kubelet passes by criproxy.",
                "short",
                (
                    Query(f"count (criproxy_problems{{{NODES}}} > 0) or vector(0)", "with a problem"),
                    Query(f"count (criproxy_attached{{{NODES}}} == 0) or vector(0)", "not attached"),
                ),
            ),
            Graph(
                "Harm to online pods",
                "How many boxes stand on a rung of the ladder by their worst resource: 1 tried, 2 squeezed, 3 closed, "
                "4 evicting.",
                "short",
                (
                    Query(
                        f'count_values ("rung", max by (cluster, job, instance) (criproxy_ladder_rung{{{NODES}}}) > 0)',
                        "{{rung}}",
                    ),
                ),
            ),
            Graph(
                "Online above its prediction",
                "Share of ticks of the last hour, the nodes with most.",
                "percentunit",
                (Query("topk (5, instance:criproxy_prediction_exceeded:ratio_rate1h)", "{{instance}} {{resource}}"),),
            ),
            Graph(
                "Offline pods stopped",
                "As online was harmed, or as the box could not be brought within its limit; by what was scarce.",
                "short",
                (Query(f"sum by (resource) (increase(criproxy_evictions_total{{{NODES}}}[1h]))", "{{resource}}"),),
            ),
            Graph(
                "Refused requests of offline pods",
                "By reason.",
                "reqps",
                (Query(f"sum by (reason) (rate(criproxy_refusals_total{{{NODES}}}[5m]))", "{{reason}}"),),
            ),
            Graph(
                "Calls, 99 % within",
                "Time of a CRI call, the runtime's share included; the slowest nodes.",
                "s",
                (Query("topk (5, instance:criproxy_call_duration_seconds:p99_rate5m)"),),
            ),
        ),
    ),
    Row(
        "The cluster's side",
        (
            Graph(
                "Leaders",
                "How many controllers lead: 1.",
                "short",
                (Query(f"sum (criproxy_cluster_leads{{{CLUSTER}}})", "leaders"),),
            ),
            Graph(
                "What waits to be written",
                "Nodes and statuses of policies that the leader has yet to write.",
                "short",
                (Query(f"sum by (queue) (criproxy_cluster_queue_length{{{CLUSTER}}})", "{{queue}}"),),
            ),
            Graph(
                "Writes",
                "By how they ended.",
                "wps",
                (
                    Query(
                        f"sum by (queue, outcome) (rate(criproxy_cluster_writes_total{{{CLUSTER}}}[5m]))",
                        "{{queue}} {{outcome}}",
                    ),
                ),
            ),
            Graph(
                "Reviews",
                "What the webhook answers, by outcome.",
                "reqps",
                (Query(f"sum by (outcome) (rate(criproxy_cluster_reviews_total{{{CLUSTER}}}[5m]))", "{{outcome}}"),),
            ),
            Graph(
                "Reviews, 99 % within",
                "How long the webhook works on one.",
                "s",
                (Query("job:criproxy_cluster_review_duration_seconds:p99_rate5m", "{{job}}"),),
            ),
            Graph(
                "The certificate holds for",
                "Until the webhook's certificate ends.",
                "s",
                (Query(f"criproxy_cluster_certificate_not_after_timestamp_seconds{{{CLUSTER}}} - time()"),),
            ),
        ),
    ),
    Row(
        "Queue and overflow, where they are on",
        (
            Graph(
                "Kueue's quota",
                "Cores that nodes lend, and the quota that follows them, by flavor.",
                "short",
                (Query(f"sum by (flavor, what) (criproxy_cluster_quota_cores{{{CLUSTER}}})", "{{flavor}} {{what}}"),),
            ),
            Graph(
                "Workloads suspended and resumed",
                "As nodes lend less, and again more; within the last hour.",
                "short",
                (
                    Query(f"sum (increase(criproxy_cluster_quota_suspended_total{{{CLUSTER}}}[1h]))", "suspended"),
                    Query(f"sum (increase(criproxy_cluster_quota_resumed_total{{{CLUSTER}}}[1h]))", "resumed"),
                ),
            ),
            Graph(
                "Offline pods that wait",
                "For a node, and what came of it: raised to the higher tier, or on virtual nodes.",
                "short",
                (
                    Query(f"sum (criproxy_cluster_owners_pods_waiting{{{CLUSTER}}})", "wait"),
                    Query(f"sum (criproxy_cluster_owners_pods_raised{{{CLUSTER}}})", "raised"),
                    Query(f"sum (criproxy_cluster_owners_pods_overflowed{{{CLUSTER}}})", "on virtual nodes"),
                ),
            ),
            Graph(
                "Longest waits",
                "Of a pod within a day, by its owner.",
                "s",
                (
                    Query(
                        f"topk (5, criproxy_cluster_owner_waited_seconds{{{CLUSTER}}})",
                        "{{namespace}}/{{kind}}/{{owner}}",
                    ),
                ),
            ),
            Graph(
                "Pods lost to evictions",
                "Within a day, by their owner.",
                "short",
                (
                    Query(
                        f"topk (5, criproxy_cluster_owner_evictions{{{CLUSTER}}})", "{{namespace}}/{{kind}}/{{owner}}"
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Ledger and YARN, where they are on",
        (
            Graph(
                "What the ledger says",
                "To binds and reservations that were asked for.",
                "reqps",
                (
                    Query(
                        f"sum by (outcome) (rate(criproxy_cluster_ledger_requests_total{{{CLUSTER}}}[5m]))",
                        "{{outcome}}",
                    ),
                ),
            ),
            Graph(
                "Reservations",
                "Those that have not ended.",
                "short",
                (Query(f"max (criproxy_cluster_ledger_reservations{{{CLUSTER}}})", "reservations"),),
            ),
            Graph(
                "YARN's memory",
                "Wanted of the ResourceManager, the size that it has, used, and held in the ledger.",
                "bytes",
                (Query(f"max by (what) (criproxy_cluster_yarn_memory_bytes{{{CLUSTER}}})", "{{what}}"),),
            ),
            Graph(
                "YARN's virtual cores",
                "Likewise.",
                "short",
                (Query(f"max by (what) (criproxy_cluster_yarn_cores{{{CLUSTER}}})", "{{what}}"),),
            ),
            Graph(
                "NodeManagers",
                "In offline pods; of these, told to give memory back, late with that, and not known to the "
                "ResourceManager.",
                "short",
                (
                    Query(f"max (criproxy_cluster_yarn_nodemanagers{{{CLUSTER}}})", "all"),
                    Query(f"max (criproxy_cluster_yarn_giving_back{{{CLUSTER}}})", "giving back"),
                    Query(f"max (criproxy_cluster_yarn_overdue{{{CLUSTER}}})", "late"),
                    Query(f"max (criproxy_cluster_yarn_nodemanagers_unknown{{{CLUSTER}}})", "unknown"),
                ),
            ),
        ),
    ),
)

ONE_NODE: Final = (
    Row(
        "CPU and memory",
        (
            Graph(
                "CPU",
                "Cores in use, what online is predicted to need, and the box's limit.",
                "short",
                (
                    Query(f"criproxy_usage_cores{{{NODE}}}", "{{scope}}"),
                    Query(f"criproxy_prediction_cores{{{NODE}}}", "predicted of online"),
                    Query(f"criproxy_limit_in_force_cores{{{NODE}}} < Inf", "limit of the box"),
                    Query(f"criproxy_capacity_cores{{{NODE}}}", "the node's"),
                ),
            ),
            Graph(
                "Memory",
                "In use, what online is predicted to need, and the box's limit.",
                "bytes",
                (
                    Query(f"criproxy_usage_bytes{{{NODE}}}", "{{scope}}"),
                    Query(f"criproxy_prediction_bytes{{{NODE}}}", "predicted of online"),
                    Query(f"criproxy_limit_in_force_bytes{{{NODE}}} < Inf", "limit of the box"),
                    Query(f"criproxy_capacity_bytes{{{NODE}}}", "the node's"),
                ),
            ),
            *_lent("What it lends", NODE),
            Graph(
                "Squeezed pod-time",
                "Share of the time of offline pods that want CPU in which they get less than this share of what they "
                "asked for, and how boldly the node publishes.",
                "short",
                (
                    Query(
                        f"sum by (below) (rate(criproxy_slow_pod_seconds_total{{{NODE}}}[$__rate_interval]))"
                        f" / on () group_left () sum (rate(criproxy_pod_seconds_total{{{NODE}}}[$__rate_interval]))",
                        "below {{below}}",
                    ),
                    Query(f"criproxy_publication_factor{{{NODE}}}", "factor"),
                ),
            ),
            Graph(
                "Time that the box is throttled",
                "Share of its time.",
                "percentunit",
                (Query(f"criproxy_box_throttled_ratio{{{NODE}}}", "throttled"),),
            ),
            Graph(
                "Online above its prediction",
                "Share of ticks.",
                "percentunit",
                (
                    Query(
                        f"sum by (resource) (rate(criproxy_prediction_exceeded_total{{{NODE}}}[$__rate_interval]))"
                        " / on () group_left ()"
                        f" sum (rate(criproxy_tick_duration_seconds_count{{{NODE}}}[$__rate_interval]))",
                        "{{resource}}",
                    ),
                ),
            ),
            Graph(
                "Offline pods",
                "That run in the box, and what runs outside it and should not.",
                "short",
                (
                    Query(f"criproxy_offline_sandboxes{{{NODE}}}", "in the box"),
                    Query(f"criproxy_unbounded_pods{{{NODE}}}", "pods outside"),
                    Query(f"criproxy_misplaced_containers{{{NODE}}}", "containers outside"),
                    Query(f"criproxy_stray_processes{{{NODE}}}", "processes outside"),
                ),
            ),
        ),
    ),
    Row(
        "Harm to online pods",
        (
            Graph(
                "Ladder",
                "Where each resource stands: 0 open, 1 tried, 2 squeezed, 3 closed, 4 evicting.",
                "short",
                (Query(f"criproxy_ladder_rung{{{NODE}}}", "{{resource}}"),),
            ),
            Graph(
                "Signals, as a share of their bars",
                "Above 1 a signal counts as harm.",
                "percentunit",
                (Query(f"criproxy_signal{{{NODE}}} / criproxy_signal_bar{{{NODE}}}", "{{signal}}"),),
            ),
            Graph(
                "Offline pods stopped",
                "By what was scarce.",
                "short",
                (Query(f"increase(criproxy_evictions_total{{{NODE}}}[1h])", "{{resource}}"),),
            ),
        ),
    ),
    Row(
        "criproxy itself",
        (
            Graph(
                "Problems",
                "How many the status has; `criproxy status` on the node says which.",
                "short",
                (
                    Query(f"criproxy_problems{{{NODE}}}", "problems"),
                    Query(f"criproxy_part_failing{{{NODE}}} > 0", "fails: {{part}}"),
                    Query(f"criproxy_thread_stuck{{{NODE}}} > 0", "hangs: {{thread}}"),
                ),
            ),
            Graph(
                "NRI, where it is the front",
                "Whether the runtime calls criproxy, how often its connection ended, and containers of offline pods "
                "that were made outside the box meanwhile.",
                "short",
                (
                    Query(f"criproxy_nri_connected{{{NODE}}}", "connected"),
                    Query(f"increase(criproxy_nri_connections_lost{{{NODE}}}[1h])", "lost in an hour"),
                    Query(f"criproxy_nri_missed_containers{{{NODE}}}", "missed"),
                ),
            ),
            Graph(
                "Calls",
                "CRI calls by method.",
                "reqps",
                (Query(f"sum by (method) (rate(criproxy_calls_total{{{NODE}}}[$__rate_interval]))", "{{method}}"),),
            ),
            Graph(
                "Calls, 99 % within",
                "Time of a call, the runtime's share included.",
                "s",
                (
                    Query(
                        "histogram_quantile(0.99, sum by (le, method) "
                        f"(rate(criproxy_call_duration_seconds_bucket{{{NODE}}}[$__rate_interval])))",
                        "{{method}}",
                    ),
                ),
            ),
            Graph(
                "Ticks, 99 % within, and failed ones",
                "A tick each second.",
                "s",
                (
                    Query(
                        "histogram_quantile(0.99, sum by (le) "
                        f"(rate(criproxy_tick_duration_seconds_bucket{{{NODE}}}[$__rate_interval])))",
                        "99 %",
                    ),
                    Query(f"rate(criproxy_tick_failures_total{{{NODE}}}[$__rate_interval])", "failed a second"),
                ),
            ),
            Graph(
                "CPU of criproxy",
                "Cores. With node_exporter's textfile it is not known.",
                "short",
                (Query(f"rate(process_cpu_seconds_total{{{PROCESS}}}[$__rate_interval])", "cores"),),
            ),
            Graph(
                "Memory of criproxy",
                "Resident. With node_exporter's textfile it is not known.",
                "bytes",
                (Query(f"process_resident_memory_bytes{{{PROCESS}}}", "resident"),),
            ),
        ),
    ),
)


def boards() -> dict[str, str]:
    """JSON by the name of its file."""
    fleet = _board("criproxy / Fleet", "criproxy-fleet", FLEET)
    node = _board("criproxy / Node", "criproxy-node", ONE_NODE)
    for name, label, selector in (
        ("cluster", "Cluster", NODES),
        ("instance", "Node", f'{NODES}, cluster="$cluster"'),
    ):
        node.with_variable(
            dashboard.QueryVariable(name)
            .label(label)
            .query(f"label_values(criproxy_info{{{selector}}}, {name})")
            .datasource(SOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        )
    return {
        f"{name}.json": JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"
        for name, made in (("fleet", fleet), ("node", node))
    }


def expressions(rows: Sequence[Row]) -> list[str]:
    """Of all panels."""
    return [query.expr for row in rows for graph in row.graphs for query in graph.queries]


def _board(title: str, uid: str, rows: Sequence[Row]) -> dashboard.Dashboard:
    board = (
        dashboard.Dashboard(title)
        .uid(uid)
        .tags(["criproxy"])
        .refresh("1m")
        .time("now-6h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for row in rows:
        board.with_row(dashboard.Row(row.title))
        for graph in row.graphs:
            board.with_panel(_panel(graph))
    return board


def _panel(graph: Graph) -> stat.Panel | timeseries.Panel:
    panel: stat.Panel | timeseries.Panel
    if graph.now:
        panel = stat.Panel()
    else:
        legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
        panel = timeseries.Panel().legend(legend.show_legend(True)).min(0).fill_opacity(10)
    panel.title(graph.title).description(graph.description).unit(graph.unit).datasource(SOURCE)
    panel.span(_WIDTH).height(_HEIGHT)
    for number, query in enumerate(graph.queries):
        panel.with_target(
            prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(chr(ord("A") + number))
        )
    return panel
