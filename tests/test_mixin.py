"""Rules, alerts and dashboards: made of metrics that there are, with a runbook each, and readable as a mixin."""

import ast
import json
import re

import _jsonnet  # type: ignore[import-untyped]
import pytest
import yaml

from criproxy.vocabulary.presets import NAMES
from monitoring.dashboards import FLEET, ONE_NODE, Row, boards, expressions
from monitoring.generate import MADE, amiss, files, recorded_names
from monitoring.rules import ALERTS, CLUSTER, RECORDED, UP
from monitoring.table import ROOT, controllers, daemons, labels_by_name, ledgers, webhooks, wrong_names

KNOWN = labels_by_name([*daemons(), *webhooks(), *controllers(), *ledgers()])


def test_nothing_is_amiss_and_what_is_made_is_what_is_there() -> None:
    assert [*amiss()] == []
    assert {name: (MADE / name).read_text() for name in files()} == files()
    assert {str(file.relative_to(MADE)) for file in MADE.rglob("*.*")} == files().keys()


@pytest.mark.parametrize(
    ("expr", "wrong"),
    [
        ("sum (rate(criproxy_calls_total[5m]))", []),
        ("criproxy_call_duration_seconds_bucket{le='1', method=~\"a|b\", job='x'}", []),
        ('criproxy_calls_total{method="x=y"}', []),
        ("criproxy_cluster_leads", []),
        ("criproxy_call_duration_seconds", ["there is no metric criproxy_call_duration_seconds"]),
        ("rate(criproxy_calls[5m])", ["there is no metric criproxy_calls"]),
        ("criproxy_calls_total{verb='x'}", ["criproxy_calls_total has no label verb"]),
        ("criproxy_problems{le='1'}", ["criproxy_problems has no label le"]),
        ("instance:criproxy_not_a_metric:rate5m", []),
    ],
)
def test_a_name_that_there_is_not_is_found(expr: str, wrong: list[str]) -> None:
    assert [*wrong_names(expr, KNOWN)] == wrong


def test_names_that_are_recorded_are_found() -> None:
    assert recorded_names("topk (5, instance:a:rate5m) / fleet:b_c:sum{x='1:2:3'}") >= {"instance:a:rate5m"}


def test_rules_are_named_level_metric_operation() -> None:
    names = [one.record for one in RECORDED]
    assert len({*names}) == len(names)
    assert all(re.fullmatch(r"(instance|fleet|job):criproxy_\w+:[a-z0-9_]+", name) for name in names)


def test_alerts_have_what_a_mixin_s_alerts_have() -> None:
    assert len(ALERTS) == len({one.name for one in ALERTS}) == 20
    page = (ROOT / "docs/monitoring.md").read_text()
    for group in yaml.safe_load((MADE / "prometheusrule.yaml").read_text())["spec"]["groups"]:
        for one in group["rules"]:
            if "alert" not in one:
                continue
            assert one["for"] and one["labels"]["severity"] in ("critical", "warning", "info")
            assert one["annotations"].keys() == {"summary", "description", "runbook_url"}
            file, _, anchor = one["annotations"]["runbook_url"].partition("#")
            assert file == "docs/monitoring.md"
            (section,) = re.findall(rf"^### {anchor}\n\n(\w+) ·", page, re.MULTILINE | re.IGNORECASE)
            assert section == one["labels"]["severity"], "the page says how severe it is"


def test_dashboards_have_all_expressions_and_no_panel_lies_on_another() -> None:
    for rows, text in zip((FLEET, ONE_NODE), boards().values(), strict=True):
        board = json.loads(text)
        panels = [one for one in board["panels"] if one["type"] != "row"]
        assert [target["expr"] for one in panels for target in one["targets"]] == expressions(rows)
        assert all(one["datasource"]["uid"] == "${datasource}" and one["description"] for one in panels)
        taken: set[tuple[int, int]] = set()
        for one in board["panels"]:
            at = one["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & taken and at["x"] + at["w"] <= 24, one["title"]
            taken |= cells


@pytest.mark.parametrize("rows", [FLEET, ONE_NODE], ids=["fleet", "node"])
def test_cores_and_bytes_that_are_lent_have_a_panel_each(rows: tuple[Row, ...]) -> None:
    found: dict[str, dict[str, float]] = {"short": {}, "bytes": {}}
    names = [name for one in NAMES.values() for name, *_ in one.rows]
    for graph in (graph for row in rows for graph in row.graphs):
        for term in (term for query in graph.queries for term in query.expr.split(" or ")):
            if selected := re.search(r'criproxy_kubernetes_published\{.*, resource(=~|!~)"(.*?)"\}', term):
                is_in = selected[1] == "=~"
                unit = 1000.0 if term.endswith("/ 1000") else 1.0
                found[graph.unit] |= {name: unit for name in names if bool(re.fullmatch(selected[2], name)) == is_in}
            assert bool(selected) == ("criproxy_kubernetes_published" in term), term
    rows_of = [row for one in NAMES.values() for row in one.rows]
    assert found["short"] == {name: per_unit for name, of, per_unit in rows_of if of == "cpu"}
    assert found["bytes"] == {name: per_unit for name, of, per_unit in rows_of if of == "memory"}


def test_a_box_stands_on_the_highest_rung_of_its_resources_and_one_that_is_open_on_none() -> None:
    (panel,) = [one for row in FLEET for one in row.graphs if one.title == "Harm to online pods"]
    assert re.sub(r"\{.*?\}", "", panel.queries[0].expr) == (
        'count_values ("rung", max by (cluster, job, instance) (criproxy_ladder_rung) > 0)'
    )


REPEATED = {"criproxy_calls_total", "criproxy_refusals_total"}
"""Of calls, by a method and an answer each: whoever calls does so again."""


def test_counters_whose_rate_is_taken_begin_with_0() -> None:
    """The first increase of one that begins with 1 is not seen."""
    asked = "\n".join([*expressions(FLEET), *expressions(ONE_NODE), *(one.expr for one in (*RECORDED, *ALERTS))])
    wanted = {*re.findall(r"(?:rate|increase)\((criproxy_\w+_total)\b", asked)} - REPEATED
    shown = {one.name: one for one in (*daemons(), *webhooks(), *controllers()) if one.name in wanted}
    assert "criproxy_evictions_total" in shown
    assert [one.name for one in shown.values() if not one.samples()] == []


def test_metrics_of_the_process_are_asked_of_criproxy_alone() -> None:
    """node_exporter has its own by the same names."""
    asked = [one for one in (*expressions(FLEET), *expressions(ONE_NODE)) if "process_" in one]
    asked += [one.expr for one in (*RECORDED, *ALERTS) if "process_" in one.expr]
    selectors = [re.findall(r"\bprocess_\w+(?:\{([^}]*)\})?", one) for one in asked]
    assert len(selectors) == 2
    assert all(UP in found.split(", ") for each in selectors for found in each)


def evaluated(code: str) -> dict:
    found = _jsonnet.evaluate_snippet(str(ROOT / "monitoring" / "user.jsonnet"), code)
    return dict(json.loads(found))


NODE_PROXY = "monitoring/node-proxy/daemonset.yaml"
SHOWN = "{ rules: m.prometheusRules, alerts: m.prometheusAlerts, boards: m.grafanaDashboards }"


def test_mixin_is_what_is_made() -> None:
    found = evaluated(f"local m = import 'mixin.libsonnet'; {SHOWN}")
    assert found["rules"] == json.loads((MADE / "rules.json").read_text())
    assert found["alerts"] == json.loads((MADE / "alerts.json").read_text())
    assert found["boards"]["criproxy-node.json"] == json.loads((MADE / "dashboards/node.json").read_text())


def test_mixin_s_config_names_the_jobs_of_its_user() -> None:
    config = """{ _config+:: {
        nodeSelector: 'cluster="c", job="nodes"', upSelector: 'job="agents"', clusterSelector: 'job="side"',
        runbookURL: 'https://wiki/criproxy' } }"""
    text = json.dumps(evaluated(f"local m = (import 'mixin.libsonnet') + {config}; {SHOWN}"))
    for word in ("agents", "side", "nodes"):
        assert f'job=\\"{word}\\"' in text
    assert "https://wiki/criproxy#criproxydown" in text
    for word in ('job=\\"criproxy', "node-exporter", "docs/monitoring.md"):
        assert word not in text


def objects(*files: str) -> list[dict]:
    return [one for file in files for one in yaml.safe_load_all((ROOT / file).read_text())]


def test_the_operator_s_objects_find_pods_and_ports_that_there_are_and_give_the_jobs_of_the_rules() -> None:
    (service, of_nodes, of_cluster) = objects("monitoring/operator.yaml")
    pods = {}
    for one in objects(
        "cluster/manifests/base/deployments.yaml", "cluster/manifests/ledger/deployment.yaml", NODE_PROXY
    ):
        if one["kind"] in ("Deployment", "DaemonSet"):
            template = one["spec"]["template"]
            ports = {port["name"] for each in template["spec"]["containers"] for port in each.get("ports", ())}
            pods[template["metadata"]["labels"]["app.kubernetes.io/name"]] = one["metadata"]["namespace"], ports
    (component,) = objects("cluster/manifests/metrics/kustomization.yaml")
    (added,) = [one["value"] for one in yaml.safe_load(component["patches"][0]["patch"]) if "/ports" in one["path"]]
    pods["criproxy-controller"][1].update(port["name"] for port in added)

    proxies = service["spec"]["selector"]["app.kubernetes.io/name"]
    assert pods[proxies] == (service["metadata"]["namespace"], {service["spec"]["ports"][0]["targetPort"]})
    assert of_nodes["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert [one["port"] for one in of_nodes["spec"]["endpoints"]] == [service["spec"]["ports"][0]["name"]]
    assert f'job="{service["metadata"]["labels"][of_nodes["spec"]["jobLabel"]]}"' == UP

    (chosen,) = of_cluster["spec"]["selector"]["matchExpressions"]
    assert {pods[name][0] for name in chosen["values"]} == {of_cluster["metadata"]["namespace"]}
    asked = {one["port"]: one["relabelings"][0]["replacement"] for one in of_cluster["spec"]["podMetricsEndpoints"]}
    served = {"criproxy-webhook": "webhook", "criproxy-controller": "metrics", "criproxy-ledger": "bind"}
    assert served.keys() == {*chosen["values"]}
    assert all(port in pods[name][1] for name, port in served.items())
    assert asked.keys() == {*served.values()}
    assert {f'job="{job}"' for job in asked.values()} == {CLUSTER}


FIRED_BY = {
    "CriproxyDown": "integration/test_monitoring.py",
    "CriproxyProblems": "integration/test_monitoring.py",
    "CriproxyNotAttached": "integration/test_monitoring.py",
    "CriproxyRuntimeNotReady": "integration/test_monitoring.py",
    "CriproxyBypassOpen": "integration/test_monitoring.py",
    "CriproxyOfflineUnbounded": "integration/test_monitoring.py",
    "CriproxyBoxAboveBound": "integration/test_monitoring.py",
    "CriproxyLoopStalled": "integration/test_monitoring.py",
    "CriproxyTicksFailing": "integration/test_monitoring.py",
    "CriproxyOnlineHarmed": "integration/test_harm_alert.py",
    "CriproxyPredictionExceeded": "integration/test_monitoring.py",
    "CriproxyNotPublishing": "integration/test_monitoring.py",
    "CriproxyClusterNoLeader": "cluster/integration/test_monitoring.py",
    "CriproxyClusterTrouble": "cluster/integration/test_monitoring.py",
    "CriproxyLedgerNoLeader": "cluster/integration/test_monitoring.py",
    "CriproxyLedgerAbstains": "cluster/integration/test_monitoring.py",
    "CriproxyYarnTrouble": "cluster/integration/test_monitoring.py",
    "CriproxyWebhookDown": "cluster/integration/test_monitoring.py",
    "CriproxyWebhookFailing": "cluster/integration/test_monitoring.py",
    "CriproxyWebhookCertificateExpires": "cluster/integration/test_monitoring.py",
}
"""Where a real criproxy, or a real part of the cluster's side, has a fault in which each alert fires."""


def test_each_alert_fires_in_a_fault_of_what_is_real() -> None:
    assert FIRED_BY.keys() == {one.name for one in ALERTS}
    for name, file in FIRED_BY.items():
        tests = [one for one in ast.parse((ROOT / file).read_text()).body if isinstance(one, ast.FunctionDef)]
        named = [one.name for one in tests if one.name.startswith("test_") and name in fired(one)]
        assert named, f"no test of {file} waits for {name}"


def fired(code: ast.AST) -> set[str]:
    """The alerts that code waits for: what it gives to `until_firing`, and what it compares with `firing()`."""
    if isinstance(code, ast.UnaryOp) and isinstance(code.op, ast.Not):
        return set()
    if isinstance(code, ast.Call) and called(code) == "until_firing":
        return texts(*code.args)
    if isinstance(code, ast.Compare) and all(isinstance(one, ast.In | ast.LtE | ast.Eq) for one in code.ops):
        sides = [code.left, *code.comparators]
        others = [side for side in sides if "firing" not in map(called, ast.walk(side))]
        return texts(*others) if len(others) < len(sides) else set()
    return {name for one in ast.iter_child_nodes(code) for name in fired(one)}


def called(code: ast.AST) -> str:
    """The method's name; "": it is no call of one."""
    return code.func.attr if isinstance(code, ast.Call) and isinstance(code.func, ast.Attribute) else ""


def texts(*of: ast.AST) -> set[str]:
    found = {one.value for code in of for one in ast.walk(code) if isinstance(one, ast.Constant)}
    return {one for one in found if isinstance(one, str)}


@pytest.mark.parametrize(
    ("code", "alerts"),
    [
        ("watched.until_firing('A', 'B')", {"A", "B"}),
        ("wait_until(lambda: 'A' in prometheus.firing(), 60, 'the alert')", {"A"}),
        ("until(lambda: {'A', 'B'} <= prometheus.firing(), 60)", {"A", "B"}),
        ("until(lambda: prometheus.firing() - {'B'} == {'A'}, 60)", {"A"}),
        ("watched.until_silent('A')", set()),
        ("assert 'A' not in prometheus.firing()", set()),
        ("wait_until(lambda: not 'A' in prometheus.firing(), 60)", set()),
        ("'A'; others = {'A'}; until(lambda: prometheus.firing() == others)", set()),
    ],
)
def test_an_alert_that_is_only_named_is_not_taken_for_one_that_fires(code: str, alerts: set[str]) -> None:
    assert fired(ast.parse(f"def test_it():\n    {code}")) == alerts
