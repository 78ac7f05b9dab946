"""Each rule and alert of monitoring/, by promtool: that it is well formed, fires when it should, and only then."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from integration.lab.prometheus import program
from monitoring.generate import MADE
from monitoring.rules import ALERTS, RUNBOOK
from monitoring.table import ROOT

NODE = 'job="criproxy", instance="n"'
EXPORTER = 'job="node-exporter", instance="n"'
CLUSTER = 'job="criproxy-cluster", instance="c"'

PAGE = ROOT / RUNBOOK

LAST_OPEN = "criproxy_bypass_last_open_timestamp_seconds"
"""promtool's time begins at 0."""

Series = Mapping[str, str]
CASES: Mapping[str, tuple[Series, Series]] = {
    "CriproxyDown": (
        {f"up{{{NODE}}}": "1x10 0x150", f"criproxy_info{{{NODE}, version='1'}}": "1x10 stale"},
        {f"up{{{NODE}}}": "1x150", f"criproxy_info{{{NODE}, version='1'}}": "1x150"},
    ),
    "CriproxyProblems": (
        {f"criproxy_problems{{{NODE}}}": "0x10 2x150"},
        {f"criproxy_problems{{{NODE}}}": "0x10 2x10 0x10 NaNx150"},
    ),
    "CriproxyNotAttached": (
        {f"criproxy_attached{{{NODE}}}": "1x10 0x150"},
        {f"criproxy_attached{{{NODE}}}": "1x10 0x5 NaNx150"},
    ),
    "CriproxyRuntimeNotReady": (
        {f"criproxy_runtime_ready{{{NODE}}}": "1x10 0x150"},
        {f"criproxy_runtime_ready{{{NODE}}}": "1x10 0x3 1x150"},
    ),
    "CriproxyBypassOpen": (
        {f"criproxy_bypass_open{{{NODE}}}": "0x10 1x150", f"{LAST_OPEN}{{{NODE}}}": "-1800x150"},
        {f"criproxy_bypass_open{{{NODE}}}": "0x10 1x3 NaNx150", f"{LAST_OPEN}{{{NODE}}}": "-1740x20 NaNx150"},
    ),
    "CriproxyOfflineUnbounded": (
        {
            f"criproxy_unbounded_pods{{{NODE}}}": "0x150",
            f"criproxy_misplaced_containers{{{NODE}}}": "0x150",
            f"criproxy_stray_processes{{{NODE}}}": "0x10 1x150",
        },
        {
            f"criproxy_unbounded_pods{{{NODE}}}": "0x10 1x3 0x150",
            f"criproxy_misplaced_containers{{{NODE}}}": "0x150",
            f"criproxy_stray_processes{{{NODE}}}": "0x150",
        },
    ),
    "CriproxyBoxAboveBound": (
        {f"criproxy_box_above_bound_seconds{{{NODE}, resource='memory'}}": "0+60x150"},
        {f"criproxy_box_above_bound_seconds{{{NODE}, resource='memory'}}": "0 30 60 0x150"},
    ),
    "CriproxyLoopStalled": (
        {f"criproxy_tick_duration_seconds_count{{{NODE}}}": "0+60x10 600x150"},
        {f"criproxy_tick_duration_seconds_count{{{NODE}}}": "0+60x5 300x3 300+60x150"},
    ),
    "CriproxyTicksFailing": (
        {
            f"criproxy_tick_duration_seconds_count{{{NODE}}}": "0+60x150",
            f"criproxy_tick_failures_total{{{NODE}}}": "0+20x150",
        },
        {
            f"criproxy_tick_duration_seconds_count{{{NODE}}}": "0+60x150",
            f"criproxy_tick_failures_total{{{NODE}}}": "0+3x150",
        },
    ),
    "CriproxyOnlineHarmed": (
        {f"criproxy_ladder_rung{{{NODE}, resource='memory'}}": "0x5 3x150"},
        {f"criproxy_ladder_rung{{{NODE}, resource='memory'}}": "0x5 4x10 2x150"},
    ),
    "CriproxyPredictionExceeded": (
        {
            f"criproxy_tick_duration_seconds_count{{{NODE}}}": "0+60x150",
            f"criproxy_prediction_exceeded_total{{{NODE}, resource='cpu'}}": "0+12x150",
        },
        {
            f"criproxy_tick_duration_seconds_count{{{NODE}}}": "0+60x150",
            f"criproxy_prediction_exceeded_total{{{NODE}, resource='cpu'}}": "0+3x150",
        },
    ),
    "CriproxyNotPublishing": (
        {f"criproxy_kubernetes_trouble{{{NODE}}}": "0x5 1x150"},
        {f"criproxy_kubernetes_trouble{{{NODE}}}": "0x5 1x10 0x150"},
    ),
    "CriproxyClusterNoLeader": (
        {f"criproxy_cluster_leads{{{CLUSTER}}}": "1x50 stale"},
        {
            f"criproxy_cluster_leads{{{CLUSTER}}}": "0x150",
            "criproxy_cluster_leads{job='criproxy-cluster', instance='d'}": "1x150",
        },
    ),
    "CriproxyClusterTrouble": (
        {
            f"criproxy_cluster_quota_trouble{{{CLUSTER}}}": "0x150",
            f"criproxy_cluster_owners_trouble{{{CLUSTER}}}": "0x20 1x130",
        },
        {
            f"criproxy_cluster_quota_trouble{{{CLUSTER}}}": "0 1 1 0 1 0 0x144",
            f"criproxy_cluster_owners_trouble{{{CLUSTER}}}": "0x150",
        },
    ),
    "CriproxyLedgerNoLeader": (
        {f"criproxy_cluster_ledger_leads{{{CLUSTER}}}": "1x50 stale"},
        {
            f"criproxy_cluster_ledger_leads{{{CLUSTER}}}": "0x150",
            "criproxy_cluster_ledger_leads{job='criproxy-cluster', instance='d'}": "1x150",
        },
    ),
    "CriproxyLedgerAbstains": (
        {f"criproxy_cluster_ledger_abstains{{{CLUSTER}}}": "0x20 1x130"},
        {
            f"criproxy_cluster_ledger_abstains{{{CLUSTER}}}": "1x150",
            "criproxy_cluster_ledger_abstains{job='criproxy-cluster', instance='d'}": "0x150",
        },
    ),
    "CriproxyYarnTrouble": (
        {
            f"criproxy_cluster_yarn_trouble{{{CLUSTER}}}": "0x150",
            f"criproxy_cluster_yarn_overdue{{{CLUSTER}}}": "0x20 2x130",
        },
        {
            f"criproxy_cluster_yarn_trouble{{{CLUSTER}}}": "0 1 1 0 1 0 0x144",
            f"criproxy_cluster_yarn_overdue{{{CLUSTER}}}": "0x150",
        },
    ),
    "CriproxyWebhookDown": (
        {f"criproxy_cluster_reviews_total{{{CLUSTER}, outcome='converted'}}": "0x50 stale"},
        {
            f"criproxy_cluster_reviews_total{{{CLUSTER}, outcome='converted'}}": "0x20 stale",
            "criproxy_cluster_reviews_total{job='criproxy-cluster', instance='d', outcome='converted'}": "0x150",
        },
    ),
    "CriproxyWebhookFailing": (
        {f"criproxy_cluster_reviews_total{{{CLUSTER}, outcome='failed'}}": "0x20 0+1x150"},
        {
            f"criproxy_cluster_reviews_total{{{CLUSTER}, outcome='failed'}}": "0x150",
            f"criproxy_cluster_reviews_total{{{CLUSTER}, outcome='refused'}}": "0+9x150",
        },
    ),
    "CriproxyWebhookCertificateExpires": (
        {f"criproxy_cluster_certificate_not_after_timestamp_seconds{{{CLUSTER}}}": "500000x150"},
        {f"criproxy_cluster_certificate_not_after_timestamp_seconds{{{CLUSTER}}}": "900000x150"},
    ),
}
"""Series, a value a minute, in which each alert fires in the end; and those in which it never does."""

LOOKED_AT = range(0, 90, 3)
"""Minutes."""

OF_A_JOB = (
    "CriproxyClusterNoLeader",
    "CriproxyClusterTrouble",
    "CriproxyLedgerNoLeader",
    "CriproxyLedgerAbstains",
    "CriproxyYarnTrouble",
    "CriproxyWebhookDown",
    "CriproxyWebhookFailing",
)
"""The others are of an instance."""


def promtool(*arguments: str | Path) -> str:
    """Its output; a failure has it."""
    ended = subprocess.run([program("promtool"), *arguments], check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_rules_are_well_formed() -> None:
    said = promtool("check", "rules", MADE / "prometheus.yaml")
    assert "SUCCESS: 32 rules found" in said


def labels(name: str, series: Series) -> dict[str, str]:
    found = dict(re.findall(r"(\w+)=['\"]([^'\"]*)['\"]", [*series][-1]))
    kept = ("cluster", "job") if name in OF_A_JOB else ("cluster", "job", "instance", "resource")
    return {one: found[one] for one in kept if one in found}


def spelled(values: str) -> str:
    """promtool repeats numbers only."""
    return values.replace("NaNx150", " ".join(["NaN"] * 150))


def tried(
    folder: Path, name: str, series: Series, *, ends: bool, end: int = LOOKED_AT[-1], interval: str = "1m"
) -> None:
    """promtool has this alert fire at the minute `end`, or at no moment at all."""
    (alert,) = [one for one in ALERTS if one.name == name]
    rules = yaml.safe_load((MADE / "prometheus.yaml").read_text())
    for group in rules["groups"]:
        group["rules"] = [one for one in group["rules"] if one.get("alert") == name]
        for one in group["rules"]:
            del one["annotations"]  # whose templates `check rules` has read
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    fires = [{"exp_labels": {"severity": alert.severity, **labels(name, series)}}]
    expected = [{"eval_time": f"{end}m", "alertname": name, "exp_alerts": fires}]
    if not ends:
        expected = [{"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []} for minute in LOOKED_AT]
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": interval,
                "input_series": [{"series": one, "values": spelled(values)} for one, values in series.items()],
                "alert_rule_test": expected,
            }
        ],
    }
    (folder / "test.yaml").write_text(yaml.safe_dump(test))
    promtool("test", "rules", folder / "test.yaml")


@pytest.mark.parametrize("name", [one.name for one in ALERTS])
def test_alert_fires(name: str, tmp_path: Path) -> None:
    tried(tmp_path, name, CASES[name][0], ends=True)


@pytest.mark.parametrize("name", [one.name for one in ALERTS])
def test_alert_is_silent(name: str, tmp_path: Path) -> None:
    tried(tmp_path, name, CASES[name][1], ends=False)


def of_cluster(cluster: str, series: Series) -> Series:
    return {one.replace("{", f"{{cluster='{cluster}', ", 1): values for one, values in series.items()}


@pytest.mark.parametrize("name", [one.name for one in ALERTS])
def test_alert_of_one_cluster_fires_whatever_the_same_job_and_instance_of_another_say(
    name: str, tmp_path: Path
) -> None:
    fires, silent = CASES[name]
    tried(tmp_path, name, {**of_cluster("b", silent), **of_cluster("a", fires)}, ends=True)


@pytest.mark.parametrize("name", ["CriproxyClusterNoLeader", "CriproxyLedgerNoLeader", "CriproxyWebhookDown"])
def test_what_is_gone_is_told_of_for_hours(name: str, tmp_path: Path) -> None:
    tried(tmp_path, name, CASES[name][0], ends=True, end=240)


def test_webhook_that_was_never_seen_is_down_where_no_target_is_up(tmp_path: Path) -> None:
    tried(tmp_path, "CriproxyWebhookDown", {f"up{{{CLUSTER}}}": "0x150"}, ends=True)


def test_loop_whose_readings_are_no_measurements_does_not_stand_still(tmp_path: Path) -> None:
    """Such a reading ends no tick."""
    series = {
        f"criproxy_tick_duration_seconds_count{{{NODE}}}": "0+60x10 600x150",
        f"criproxy_samples_discarded_total{{{NODE}}}": "0x10 0+60x150",
    }
    tried(tmp_path, "CriproxyLoopStalled", series, ends=False)


@pytest.mark.parametrize(("written", "ends"), [("0+60x10 600x150", True), ("0+60x150", False)], ids=["old", "new"])
def test_text_file_that_nobody_writes_any_more_is_a_criproxy_that_is_down(
    written: str, ends: bool, tmp_path: Path
) -> None:
    series = {
        f"node_textfile_mtime_seconds{{{EXPORTER}, file='/var/lib/prometheus/node-exporter/criproxy.prom'}}": written,
        f"up{{{EXPORTER}}}": "1x150",
        f"criproxy_info{{{EXPORTER}, version='1'}}": "1x150",
    }
    tried(tmp_path, "CriproxyDown", series, ends=ends)


@pytest.mark.parametrize(
    ("interval", "away"), [("15s", "stale stale stale"), ("1m", "")], ids=["each scrape", "some scrapes"]
)
def test_criproxy_that_ends_again_and_again_passes_by_and_says_so(interval: str, away: str, tmp_path: Path) -> None:
    """It is up for 15 s of each 60 s, in which it is scraped once; its counters begin anew, its bypass's does not."""
    lives = range(4 * LOOKED_AT[-1])
    series = {
        f"criproxy_bypass_open{{{NODE}}}": " ".join(f"0 {away}" for _ in lives),
        f"{LAST_OPEN}{{{NODE}}}": " ".join(f"{60 * life} {away}" for life in lives),
    }
    tried(tmp_path, "CriproxyBypassOpen", series, ends=True, interval=interval)


@pytest.mark.parametrize("away", [3, 60, 1500], ids=["minutes", "an hour", "a day"])
@pytest.mark.parametrize("uses", [0, 1], ids=["never before", "as often before the reboot"])
def test_bypass_that_was_open_while_criproxy_was_away_is_told_of_once_it_is_back(
    uses: int, away: int, tmp_path: Path
) -> None:
    gone, back = " ".join(["stale"] * away), 10 + away
    series = {
        f"criproxy_bypass_uses{{{NODE}}}": f"{uses}x9 {gone} 1x150",
        f"{LAST_OPEN}{{{NODE}}}": f"{' '.join(['NaN'] * 10)} {gone} {60 * back}x150",
    }
    tried(tmp_path, "CriproxyBypassOpen", series, ends=True, end=back + 7)


def test_bypass_that_has_been_shut_for_half_an_hour_is_told_of_no_more(tmp_path: Path) -> None:
    tried(tmp_path, "CriproxyBypassOpen", {f"{LAST_OPEN}{{{NODE}}}": "-1740x150"}, ends=False)


def test_criproxy_that_is_gone_from_node_exporter_s_text_files_is_down_until_it_is_back(tmp_path: Path) -> None:
    series = {f"up{{{EXPORTER}}}": "1x150", f"criproxy_info{{{EXPORTER}, version='1'}}": "1x10 stale"}
    tried(tmp_path, "CriproxyDown", series, ends=True, end=150)


@pytest.mark.parametrize(
    "series",
    [
        {f"up{{{EXPORTER}}}": "1x150"},
        {f"up{{{EXPORTER}}}": "1x150", f"criproxy_info{{{EXPORTER}, version='1'}}": "1x10 stale stale 1x150"},
    ],
    ids=["never had criproxy", "is back"],
)
def test_node_exporter_alone_is_no_criproxy_that_is_down(series: Series, tmp_path: Path) -> None:
    tried(tmp_path, "CriproxyDown", series, ends=False)


@pytest.mark.parametrize(
    ("record", "value"),
    [
        ("fleet:criproxy_capacity_cores:sum", 8),
        ("fleet:criproxy_node_cpu:ratio", 0.5),
        ("fleet:criproxy_online_cpu:ratio", 0.25),
    ],
)
def test_node_that_has_just_started_leaves_the_fleet_its_figures(record: str, value: float, tmp_path: Path) -> None:
    series = {
        f"criproxy_capacity_cores{{{NODE}}}": "8 8",
        "criproxy_capacity_cores{job='criproxy', instance='just started'}": "NaN NaN",
        f"criproxy_usage_cores{{{NODE}, scope='node'}}": "4 4",
        f"criproxy_usage_cores{{{NODE}, scope='online'}}": "2 2",
    }
    samples = [{"labels": f'{{__name__="{record}"}}', "value": value}]
    test = {
        "rule_files": [str(MADE / "prometheus.yaml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": one, "values": values} for one, values in series.items()],
                "promql_expr_test": [{"expr": record, "eval_time": "1m", "exp_samples": samples}],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    promtool("test", "rules", tmp_path / "test.yaml")


def test_the_page_s_scrape_configs_are_well_formed(tmp_path: Path) -> None:
    """promtool looks whether the files that they name are there, too."""
    file = tmp_path / "file"
    file.write_text("x" * 32)
    found = re.findall(r"^```yaml\n(scrape_configs:.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 4
    for number, snippet in enumerate(found):
        config = tmp_path / f"{number}.yml"
        text = re.sub(r"(_file: )[^\s},]+", rf"\g<1>{file}", snippet)
        # Debian's Prometheus is built without what discovers pods.
        config.write_text(re.sub(r"kubernetes_sd_configs: .*", "static_configs: []", text))
        promtool("check", "config", config)
