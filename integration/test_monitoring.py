"""A real Prometheus scrapes a real criproxy in each way that there is, and has an answer to each expression."""

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.lab import upgrades
from integration.lab.cgroups import Tree
from integration.lab.clean import clean
from integration.lab.client import Container
from integration.lab.criproxy import UNJUDGED, python_path
from integration.lab.directory import claimed
from integration.lab.node import Node
from integration.lab.ports import free_ports
from integration.lab.process import Process, wait_until
from integration.lab.prometheus import Prometheus, program
from integration.test_verify import move
from monitoring.dashboards import FLEET, ONE_NODE, expressions
from monitoring.generate import MADE
from monitoring.rules import ALERTS, RECORDED
from tests.fakes.authority import Authority

TOKEN = "0123456789abcdef0123456789abcdef"
SOON_S = 60.0
EMPTY: Mapping[str, str] = {
    "criproxy_kubernetes_published": "nothing is published while kubernetes.enabled is false",
    "criproxy_slow_pod_seconds": "no pod of this node asks for what it lends",
    "criproxy_part_failing{…} > 0": "no part fails",
    "criproxy_thread_stuck{…} > 0": "no thread hangs",
    "criproxy_refusals_total": "no request of an offline pod was refused",
    "criproxy_evictions_total": "no offline pod was stopped",
}
"""What expressions have that no node like this has an answer to, and why."""


def of_the_cluster(expr: str) -> bool:
    """The others are tried here, these in cluster/integration/test_monitoring.py."""
    return "criproxy_cluster" in expr


OF_THE_MACHINE = {"CriproxyPredictionExceeded"}
"""Alerts that other work on this machine may raise at any time."""


@dataclass(frozen=True)
class Watched:
    node: Node
    prometheus: Prometheus
    offline: Container

    def firing(self) -> set[str]:
        return self.prometheus.firing() - OF_THE_MACHINE

    def until_firing(self, *names: str) -> None:
        wait_until(lambda: {*names} <= self.firing(), SOON_S, f"{names} to fire: {self.firing()}")

    def until_silent(self, *names: str) -> None:
        wait_until(lambda: not {*names} & self.firing(), SOON_S, f"{names} not to fire")


def at_once(folder: Path) -> Path:
    """The rules and alerts, which fire as soon as they hold."""
    rules = yaml.safe_load((MADE / "prometheus.yaml").read_text())
    for group in rules["groups"]:
        for one in group["rules"]:
            one.pop("for", None)
    file = folder / "rules.yaml"
    file.write_text(yaml.safe_dump(rules))
    return file


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    """A node of its own, with pods, scraped over loopback, over TLS, and by node_exporter's textfile."""
    with claimed() as lab, contextlib.ExitStack() as stack:
        stack.callback(clean, lab)
        authority = Authority(lab)
        certificate, key = authority.issue("server")
        (lab / "tokens").write_text(TOKEN)
        remote, exporter = free_ports(2)
        files = {"tls_certificate": str(certificate), "tls_key": str(key), "token_file": str(lab / "tokens")}
        observe = {"remote_address": f"127.0.0.1:{remote}", "client_ca": str(authority.certificate), **files}
        node = stack.enter_context(
            Node.before(
                lab,
                {
                    "colocation": {"enabled": True},
                    "control": {"predictor": "histogram", "interval_s": 0.5},
                    "interference": UNJUDGED,
                    "observe": observe,
                },
            )
        )
        node.run("online")
        offline = node.run("offline")
        texts = lab / "textfiles"
        texts.mkdir()
        written = _writing(node, texts)
        stack.callback(written.stop)
        arguments = ("--collector.disable-defaults", "--collector.textfile")
        folder = f"--collector.textfile.directory={texts}"
        listens = f"--web.listen-address=127.0.0.1:{exporter}"
        exports = Process(
            "node_exporter", [program("prometheus-node-exporter"), *arguments, folder, listens], lab / "exporter.log"
        )
        stack.callback(exports.stop)
        trusts = {"ca_file": str(authority.certificate), "server_name": "localhost"}
        tls: Mapping[str, Any] = {"scheme": "https", "tls_config": trusts}
        client = dict(zip(("cert_file", "key_file"), map(str, authority.issue("prometheus")), strict=True))
        scrapes: list[Mapping[str, Any]] = [
            _scrape("criproxy", node.proxy.address),
            _scrape("by-token", f"127.0.0.1:{remote}", authorization={"credentials": TOKEN}, **tls),
            _scrape("by-certificate", f"127.0.0.1:{remote}", scheme="https", tls_config={**trusts, **client}),
            _scrape("by-nothing", f"127.0.0.1:{remote}", **tls),
            _scrape("node", f"127.0.0.1:{exporter}"),
        ]
        prometheus = Prometheus(lab / "prometheus", scrapes, at_once(lab))
        stack.callback(prometheus.process.stop)
        yield Watched(node, prometheus, offline)


def _writing(node: Node, texts: Path) -> Process:
    """What the timer of docs/monitoring.md does, each second."""
    command = f"{sys.executable} -m criproxy metrics --config {node.proxy.config_file} --textfile {texts}/criproxy.prom"
    loop = f"while :; do {command}; sleep 1; done"
    return Process("textfile", ["/bin/sh", "-c", loop], texts.parent / "textfile.log", {"PYTHONPATH": python_path()})


def _scrape(job: str, target: str, **more: Any) -> Mapping[str, Any]:
    return {"job_name": job, "static_configs": [{"targets": [target]}], **more}


def filled(expr: str, instance: str) -> str:
    """As Grafana fills it in."""
    return expr.replace("$instance", instance).replace("$__rate_interval", "15s")


def unanswered(prometheus: Prometheus, wanted: Sequence[str], instance: str) -> list[str]:
    return [expr for expr in wanted if not prometheus.query(filled(expr, instance))]


def test_prometheus_gets_in_each_way_and_no_other(watched: Watched) -> None:
    query = watched.prometheus.query

    def up() -> dict[str, float]:
        return {one["metric"]["job"]: float(one["value"][1]) for one in query("up")}

    expected = {"criproxy": 1.0, "by-token": 1.0, "by-certificate": 1.0, "by-nothing": 0.0, "node": 1.0}
    wait_until(lambda: up() == expected, SOON_S, f"all targets: {up()} {watched.prometheus.targets()}")
    failed = {job: why for job, why in watched.prometheus.targets().items() if why}
    assert failed.keys() == {"by-nothing"} and "401" in failed["by-nothing"]
    for job in ("criproxy", "by-token", "by-certificate", "node"):
        wait_until(lambda job=job: query(f'criproxy_offline_sandboxes{{job="{job}"}} == 1'), SOON_S, f"{job}'s figures")  # type: ignore[misc]


def test_each_expression_has_an_answer(watched: Watched) -> None:
    wanted = [
        *(one.expr for one in RECORDED),
        *(one.record for one in RECORDED),
        *(one.measure for one in ALERTS if one.condition),
        *expressions(FLEET),
        *expressions(ONE_NODE),
    ]
    wanted = [expr for expr in wanted if not of_the_cluster(expr)]
    mine = [expr for expr in wanted if not any(is_of(expr, empty) for empty in EMPTY)]
    address = watched.node.proxy.address
    wait_until(
        lambda: not unanswered(watched.prometheus, mine, address),
        SOON_S,
        f"answers to {unanswered(watched.prometheus, mine, address)}",
    )
    assert len(mine) > 50
    assert unanswered(watched.prometheus, [*wanted], address) == [expr for expr in wanted if expr not in mine]


def test_an_upgrade_keeps_the_ways_in(watched: Watched) -> None:
    proxy, query = watched.node.proxy, watched.prometheus.query
    try:
        upgrades.upgrade(proxy)
        newer = 'changes(process_start_time_seconds{job=~"criproxy|by-.*"}[1m]) > 0'
        wait_until(lambda: len(query(newer)) == 3, SOON_S, "figures of the new one by each way")
        assert not query('min_over_time(up{job=~"criproxy|by-token|by-certificate"}[10s]) == 0')
    finally:
        upgrades.stop_all(proxy)
        proxy.start()
        watched.until_silent("CriproxyDown")


def is_of(expr: str, empty: str) -> bool:
    return empty in re.sub(r"\{[^}]*\}", "{…}", expr) or bool(re.search(rf"{re.escape(empty)}\b(?!_)", expr))


def test_alerts_fire_in_faults_that_are_real_and_only_then(watched: Watched) -> None:
    node = watched.node
    wait_until(lambda: not watched.firing(), SOON_S, "no alert, so soon after a start")

    good = node.proxy.config_file.read_text()
    node.proxy.configure(good + "\n[cpu]\nmin_cores = -1\n")
    watched.until_firing("CriproxyProblems")
    node.proxy.configure(good)
    watched.until_silent("CriproxyProblems")

    outside = Tree(f"{node.root}/outside")
    outside.make()
    move(node.direct.pid(watched.offline), outside.path, ("cpu",))
    node.proxy.reload()  # a look at everything; else it is one each minute
    watched.until_firing("CriproxyOfflineUnbounded")

    kubernetes = '\n[kubernetes]\nenabled = true\nkubeconfig = "/nowhere/kubelet.conf"\n'
    node.proxy.configure(good + kubernetes)
    node.proxy.restart()
    watched.until_firing("CriproxyNotPublishing")

    node.containerd.kill()
    watched.until_firing("CriproxyRuntimeNotReady")

    node.proxy.kill()
    watched.until_firing("CriproxyDown")
