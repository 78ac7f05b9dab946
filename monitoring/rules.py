"""Recording rules (`level:metric:operation`) and alerts. Each alert's runbook is a section of docs/monitoring.md.

Figures of nodes are taken from whatever job scrapes them: criproxy itself, or node_exporter with criproxy's textfile.
Where one Prometheus has several clusters, the label `cluster` says of which a series is; for one, none is needed.
"""

from typing import Final, Literal

from msgspec import Struct

NODES: Final = 'job=~"criproxy|node|node-exporter"'
UP: Final = 'job="criproxy"'
CLUSTER: Final = 'job="criproxy-cluster"'
"""What mixin.libsonnet replaces by `_config`."""

RUNBOOK: Final = "docs/monitoring.md"


class Recorded(Struct, frozen=True):
    record: str
    expr: str


class Alert(Struct, frozen=True):
    """`measure condition` is the expression; an empty condition: whatever the measure has fires."""

    name: str
    measure: str
    condition: str
    lasts: str
    severity: Literal["critical", "warning", "info"]
    summary: str
    description: str

    @property
    def expr(self) -> str:
        return f"{self.measure} {self.condition}".strip()

    @property
    def anchor(self) -> str:
        return self.name.lower()


_FLEET_CORES: Final = f"sum (criproxy_capacity_cores{{{NODES}}} > 0)"
"""A node that has just started says NaN until its first tick."""

RECORDED: Final = (
    Recorded("instance:criproxy_box_cpu_seconds:rate5m", f"rate(criproxy_box_cpu_seconds_total{{{NODES}}}[5m])"),
    Recorded(
        "instance:criproxy_node_cpu:ratio",
        f'sum by (cluster, job, instance) (criproxy_usage_cores{{{NODES}, scope="node"}})'
        f" / sum by (cluster, job, instance) (criproxy_capacity_cores{{{NODES}}})",
    ),
    Recorded(
        "instance:criproxy_online_cpu:ratio",
        f'sum by (cluster, job, instance) (criproxy_usage_cores{{{NODES}, scope="online"}})'
        f" / sum by (cluster, job, instance) (criproxy_capacity_cores{{{NODES}}})",
    ),
    Recorded(
        "instance:criproxy_node_memory:ratio",
        f'sum by (cluster, job, instance) (criproxy_usage_bytes{{{NODES}, scope="node"}})'
        f" / sum by (cluster, job, instance) (criproxy_capacity_bytes{{{NODES}}})",
    ),
    Recorded(
        "instance:criproxy_prediction_exceeded:ratio_rate1h",
        f"sum by (cluster, job, instance, resource) (rate(criproxy_prediction_exceeded_total{{{NODES}}}[1h]))"
        " / on (cluster, job, instance) group_left ()"
        f" sum by (cluster, job, instance) (rate(criproxy_tick_duration_seconds_count{{{NODES}}}[1h]))",
    ),
    Recorded(
        "instance:criproxy_call_duration_seconds:p99_rate5m",
        "histogram_quantile(0.99, sum by (cluster, job, instance, le) "
        f"(rate(criproxy_call_duration_seconds_bucket{{{NODES}}}[5m])))",
    ),
    Recorded("fleet:criproxy_box_cpu_seconds:sum_rate5m", "sum (instance:criproxy_box_cpu_seconds:rate5m)"),
    Recorded("fleet:criproxy_capacity_cores:sum", _FLEET_CORES),
    Recorded(
        "fleet:criproxy_node_cpu:ratio",
        f'sum (criproxy_usage_cores{{{NODES}, scope="node"}}) / {_FLEET_CORES}',
    ),
    Recorded(
        "fleet:criproxy_online_cpu:ratio",
        f'sum (criproxy_usage_cores{{{NODES}, scope="online"}}) / {_FLEET_CORES}',
    ),
    Recorded(
        "fleet:criproxy_slow_pod_seconds:ratio_rate1h",
        f"sum by (below) (rate(criproxy_slow_pod_seconds_total{{{NODES}}}[1h]))"
        f" / on () group_left () sum (rate(criproxy_pod_seconds_total{{{NODES}}}[1h]))",
    ),
    Recorded(
        "job:criproxy_cluster_review_duration_seconds:p99_rate5m",
        "histogram_quantile(0.99, sum by (cluster, job, le) "
        f"(rate(criproxy_cluster_review_duration_seconds_bucket{{{CLUSTER}}}[5m])))",
    ),
)

ALERTS: Final = (
    Alert(
        "CriproxyDown",
        # Where node_exporter goes on without criproxy's file, a node that has left the cluster is told by `up`.
        f"max by (cluster, job, instance) (up{{{UP}}} == 0)"
        f" or (max by (cluster, job, instance) (max_over_time(criproxy_info{{{NODES}}}[15m]))"
        f" unless max by (cluster, job, instance) (criproxy_info{{{NODES}}}))"
        f" or ((max by (cluster, job, instance) (up{{{NODES}}} == 1)"
        f" and max by (cluster, job, instance) (max_over_time(criproxy_info{{{NODES}}}[1d])))"
        f" unless max by (cluster, job, instance) (criproxy_info{{{NODES}}}))"
        # Nobody replaces node_exporter's file any more: it shows old figures for ever.
        " or max by (cluster, job, instance)"
        f' (time() - node_textfile_mtime_seconds{{{NODES}, file=~".*criproxy.*"}} > 300)',
        "",
        "5m",
        "critical",
        "criproxy on {{ $labels.instance }} says nothing",
        "Prometheus has had no metrics of criproxy on {{ $labels.instance }} for 5 minutes. Offline pods that run keep "
        "the limits that the kernel has; nobody adjusts them.",
    ),
    Alert(
        "CriproxyProblems",
        f"criproxy_problems{{{NODES}}}",
        "> 0",
        "15m",
        "warning",
        "criproxy on {{ $labels.instance }} is not well",
        "`criproxy status` on {{ $labels.instance }} has had {{ $value }} problems for 15 minutes; it says which, and "
        "what to do.",
    ),
    Alert(
        "CriproxyNotAttached",
        f"criproxy_attached{{{NODES}}}",
        "== 0",
        "10m",
        "warning",
        "kubelet on {{ $labels.instance }} does not use criproxy",
        "criproxy runs on {{ $labels.instance }}, and kubelet speaks to the runtime past it: offline pods start "
        "outside the box.",
    ),
    Alert(
        "CriproxyRuntimeNotReady",
        f"criproxy_runtime_ready{{{NODES}}}",
        "== 0",
        "5m",
        "critical",
        "the container runtime on {{ $labels.instance }} does not answer",
        "No pod can start on {{ $labels.instance }}: the container runtime has not answered criproxy for 5 minutes.",
    ),
    Alert(
        "CriproxyBypassOpen",
        # While criproxy is away, nobody says that the bypass is open: the time tells of what has been.
        f"criproxy_bypass_open{{{NODES}}} == 1"
        f" or time() - max_over_time(criproxy_bypass_last_open_timestamp_seconds{{{NODES}}}[30m]) < 1800",
        "",
        "5m",
        "warning",
        "kubelet's calls on {{ $labels.instance }} pass by criproxy, or did lately",
        "The bypass on {{ $labels.instance }} is open, or was within the last 30 minutes: criproxy was away, or "
        "ends again and again, and offline pods that started meanwhile are outside the box.",
    ),
    Alert(
        "CriproxyOfflineUnbounded",
        f"criproxy_unbounded_pods{{{NODES}}} + criproxy_misplaced_containers{{{NODES}}}"
        f" + criproxy_stray_processes{{{NODES}}}",
        "> 0",
        "5m",
        "critical",
        "offline work on {{ $labels.instance }} runs outside the box",
        "{{ $value }} offline pods, containers or processes on {{ $labels.instance }} have been outside the box, which "
        "bounds them, for 5 minutes.",
    ),
    Alert(
        "CriproxyBoxAboveBound",
        f"criproxy_box_above_bound_seconds{{{NODES}}}",
        "> 60",
        "1m",
        "warning",
        "the box on {{ $labels.instance }} is above its {{ $labels.resource }} bound",
        "The box on {{ $labels.instance }} has been above its bound of {{ $labels.resource }} for {{ $value }} s: "
        "memory that can't be taken back, or a limit that the kernel does not take.",
    ),
    Alert(
        "CriproxyLoopStalled",
        f"rate(criproxy_tick_duration_seconds_count{{{NODES}}}[5m])",
        # A reading that is no measurement ends no tick; the loop goes on, and the status has the problem.
        f"== 0 unless rate(criproxy_samples_discarded_total{{{NODES}}}[5m]) > 0",
        "5m",
        "critical",
        "the control loop of criproxy on {{ $labels.instance }} stands still",
        "No tick has ended on {{ $labels.instance }} for 5 minutes: the box's limits stay as they are, whatever online "
        "pods need.",
    ),
    Alert(
        "CriproxyTicksFailing",
        f"rate(criproxy_tick_failures_total{{{NODES}}}[10m])"
        f" / rate(criproxy_tick_duration_seconds_count{{{NODES}}}[10m])",
        "> 0.1",
        "10m",
        "warning",
        "ticks of criproxy on {{ $labels.instance }} fail",
        "{{ $value | humanizePercentage }} of the ticks on {{ $labels.instance }} fail: the box's limits stay as they "
        "are in those.",
    ),
    Alert(
        "CriproxyOnlineHarmed",
        f"criproxy_ladder_rung{{{NODES}}}",
        ">= 3",
        "15m",
        "warning",
        "offline work on {{ $labels.instance }} harms online pods",
        "The box on {{ $labels.instance }} has been closed for its {{ $labels.resource }} for 15 minutes: online pods "
        "are harmed, and squeezing the box has not been enough.",
    ),
    Alert(
        "CriproxyPredictionExceeded",
        f"sum by (cluster, job, instance, resource) (rate(criproxy_prediction_exceeded_total{{{NODES}}}[1h]))"
        " / on (cluster, job, instance) group_left ()"
        f" sum by (cluster, job, instance) (rate(criproxy_tick_duration_seconds_count{{{NODES}}}[1h]))",
        "> 0.1",
        "30m",
        "info",
        "online on {{ $labels.instance }} often needs more {{ $labels.resource }} than predicted",
        "In {{ $value | humanizePercentage }} of the last hour's ticks online pods on {{ $labels.instance }} used more "
        "{{ $labels.resource }} than criproxy had predicted.",
    ),
    Alert(
        "CriproxyNotPublishing",
        f"criproxy_kubernetes_trouble{{{NODES}}}",
        "== 1",
        "15m",
        "warning",
        "criproxy on {{ $labels.instance }} can't do its work with Kubernetes",
        "For 15 minutes something of Kubernetes has not worked on {{ $labels.instance }}: what the node lends may be "
        "out of date. `criproxy status` there says what.",
    ),
    Alert(
        "CriproxyClusterNoLeader",
        f"(sum by (cluster, job) (criproxy_cluster_leads{{{CLUSTER}}})"
        f" or 0 * sum by (cluster, job) (max_over_time(criproxy_cluster_leads{{{CLUSTER}}}[1d])))",
        "== 0",
        "5m",
        "critical",
        "no controller of criproxy-cluster leads",
        "No replica of the controller has led for 5 minutes: nodes get no new policy, and what nodes that are away "
        "lend is not taken back.",
    ),
    Alert(
        "CriproxyClusterTrouble",
        "sum by (cluster, job)"
        f" (criproxy_cluster_quota_trouble{{{CLUSTER}}} + criproxy_cluster_owners_trouble{{{CLUSTER}}})",
        "> 0",
        "15m",
        "warning",
        "criproxy-cluster can't keep Kueue's quota, or the book of owners",
        "For 15 minutes the leader could not write Kueue's Cohort or the owners' book: quotas stay as they were, and "
        "pods are converted as if no policy spoke of owners.",
    ),
    Alert(
        "CriproxyLedgerNoLeader",
        f"(sum by (cluster, job) (criproxy_cluster_ledger_leads{{{CLUSTER}}})"
        f" or 0 * sum by (cluster, job) (max_over_time(criproxy_cluster_ledger_leads{{{CLUSTER}}}[1d])))",
        "== 0",
        "5m",
        "warning",
        "no replica of the ledger leads",
        "No replica of the ledger has led for 5 minutes: what several engines place on a node is not added up, and "
        "YARN's sizes stay as they are.",
    ),
    Alert(
        "CriproxyLedgerAbstains",
        f"min by (cluster, job) (criproxy_cluster_ledger_abstains{{{CLUSTER}}})",
        "== 1",
        "10m",
        "warning",
        "the ledger decides nothing",
        "For 10 minutes no replica of the ledger has decided on a bind or a reservation: none leads, or its watches "
        "lag. What several engines place on a node is not added up.",
    ),
    Alert(
        "CriproxyYarnTrouble",
        f"max by (cluster, job) (criproxy_cluster_yarn_trouble{{{CLUSTER}}})"
        f" + max by (cluster, job) (criproxy_cluster_yarn_overdue{{{CLUSTER}}})",
        "> 0",
        "15m",
        "warning",
        "YARN does not follow what nodes lend",
        "For 15 minutes the ResourceManager could not be asked, or NodeManagers have not given back in time what they "
        "were told to: YARN keeps what it holds.",
    ),
    Alert(
        "CriproxyWebhookDown",
        f"(count by (cluster, job) (criproxy_cluster_reviews_total{{{CLUSTER}}})"
        f" or 0 * max by (cluster, job) (max_over_time(criproxy_cluster_reviews_total{{{CLUSTER}}}[1d]))"
        f" or max by (cluster, job) (up{{{CLUSTER}}}))",
        "== 0",
        "5m",
        "critical",
        "no replica of the webhook of criproxy-cluster says anything",
        "Prometheus has had no metrics of any replica of the webhook for 5 minutes. Where none runs, each pod that is "
        "marked as offline is refused.",
    ),
    Alert(
        "CriproxyWebhookFailing",
        f'sum by (cluster, job) (rate(criproxy_cluster_reviews_total{{{CLUSTER}, outcome=~"failed|unreadable"}}[5m]))',
        "> 0",
        "5m",
        "critical",
        "the webhook of criproxy-cluster fails",
        "The webhook has failed to answer reviews of marked pods for 5 minutes: these pods are refused.",
    ),
    Alert(
        "CriproxyWebhookCertificateExpires",
        f"criproxy_cluster_certificate_not_after_timestamp_seconds{{{CLUSTER}}} - time()",
        "< 7 * 86400",
        "1h",
        "critical",
        "the certificate of the webhook on {{ $labels.instance }} expires",
        "The webhook's certificate on {{ $labels.instance }} holds for {{ $value | humanizeDuration }} more; it should "
        "have been made anew. Without one, marked pods are refused.",
    ),
)


def rule_groups() -> dict[str, object]:
    """The recording rules, as Prometheus' rule files have them."""
    rules = [{"record": one.record, "expr": one.expr} for one in RECORDED]
    return {"groups": [{"name": "criproxy.rules", "rules": rules}]}


def alert_groups() -> dict[str, object]:
    """The alerts, as Prometheus' rule files have them."""
    rules = [
        {
            "alert": one.name,
            "expr": one.expr,
            "for": one.lasts,
            "labels": {"severity": one.severity},
            "annotations": {
                "summary": one.summary,
                "description": one.description,
                "runbook_url": f"{RUNBOOK}#{one.anchor}",
            },
        }
        for one in ALERTS
    ]
    return {"groups": [{"name": "criproxy.alerts", "rules": rules}]}
