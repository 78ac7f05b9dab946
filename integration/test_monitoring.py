"""A real Prometheus scrapes a real criproxy in each way that there is, and has an answer to each expression."""

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from criproxy.vocabulary.names import EXTENDED_SPEC
from integration.lab import upgrades
from integration.lab.cgroups import Tree, version
from integration.lab.clean import clean
from integration.lab.client import Container
from integration.lab.criproxy import CHECKOUT, UNJUDGED, python_path
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
ELSEWHERE: Mapping[str, str] = {"criproxy_kubernetes_published": "integration/control_plane/test_node.py"}
"""What there is only where criproxy publishes, and the test that reads it in what such a criproxy's /metrics says."""

EMPTY: Mapping[str, str] = {
    **ELSEWHERE,
    "criproxy_ladder_rung{…}) > 0": "the box is open",
    "criproxy_part_failing{…} > 0": "no part fails",
    "criproxy_thread_stuck{…} > 0": "no thread hangs",
    "criproxy_refusals_total": "no request of an offline pod was refused",
}
"""What expressions have that a node like this has no answer to while all is well, and why."""

FAILING = ("criproxy_part_failing{…} > 0",)
"""Of these, what a fault of this module gives an answer."""

BUSY = ("sh", "-c", "while :; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.2; done")
HOG_MIB, BOUND_MIB = 96, 64
ASKS = json.dumps({"containers": {"main": {"requests": {"kubernetes.io/batch-cpu": "100"}}}})


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

    @property
    def good(self) -> str:
        """Its config file, without a fault."""
        return (self.node.proxy.directory / "good.toml").read_text()

    @contextlib.contextmanager
    def starts_with(self, fault: str, **env: str) -> Iterator[None]:
        """criproxy has this fault from its start on: Python that it runs before all else; afterwards, it has none."""
        proxy, folder = self.node.proxy, self.node.proxy.directory / "fault"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(fault)
        proxy.stop()
        try:
            proxy.start(until_ready=False, env={"PYTHONPATH": f"{folder}:{python_path()}", **env})
            yield
        finally:
            proxy.restart()

    def firing(self) -> set[str]:
        return self.prometheus.firing() - OF_THE_MACHINE

    def until_firing(self, *names: str) -> None:
        log = self.node.proxy.log
        wait_until(lambda: {*names} <= self.firing(), SOON_S, f"{names} to fire: {self.firing()}", log)

    def until_silent(self, *names: str) -> None:
        wait_until(lambda: not {*names} & self.firing(), SOON_S, f"{names} not to fire")


def at_once(folder: Path) -> Path:
    """The rules and alerts, which fire as soon as they hold: by rates of ten seconds, and above a bound for five."""
    rules = yaml.safe_load((MADE / "prometheus.yaml").read_text())
    for group in rules["groups"]:
        for one in group["rules"]:
            one.pop("for", None)
            if "alert" in one:
                one["expr"] = re.sub(r"(rate\([^\[]*)\[\w+\]", r"\1[10s]", one["expr"]).replace("> 60", "> 5")
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
        (lab / "good.toml").write_text(node.proxy.config_file.read_text())
        offline = node.run("offline", command=BUSY, annotations={EXTENDED_SPEC: ASKS})
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
    return expr.replace("$cluster", "").replace("$instance", instance).replace("$__rate_interval", "15s")


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


def test_whoever_tries_what_is_not_tried_here_does() -> None:
    for name, file in ELSEWHERE.items():
        assert f"{name}{{" in (CHECKOUT / file).read_text(), file


STALLED = """
import asyncio
from criproxy.pods.control_loop import ControlLoop

async def look(self):
    await asyncio.Event().wait()

ControlLoop.look = look
"""
UNREADABLE = """
from criproxy.cgroup.box import Box

def usage(*_):
    raise OSError(5, "Input/output error")

Box._usage = usage
"""
PASSED_BY = """
from pathlib import Path
from criproxy.daemon.attachment_watch import AttachmentWatch

made = AttachmentWatch.made.__func__

def with_kubelet(cls, ports):
    one = made(cls, ports)
    one.root = Path({root!r})
    return one

AttachmentWatch.made = classmethod(with_kubelet)
"""


def test_box_above_its_bound_fires(watched: Watched) -> None:
    """By memory that no reclaim takes back, where nobody may be stopped for it."""
    node = watched.node
    hog = f"dd if=/dev/zero bs={HOG_MIB}M count=1 2>/dev/null | sleep 2147483647"
    pod = node.run("offline", command=("sh", "-c", hog)).pod
    used = node.box.file("memory", "memory.usage_in_bytes" if version() == 1 else "memory.current")
    wait_until(lambda: int(used.read_text()) > HOG_MIB << 20, SOON_S, "what it holds")
    static = watched.good.replace("[control]", '[control]\npolicy = "static"') + "\n[cpu]\nstatic_cores = 1\n"
    try:
        node.proxy.configure(f"{static}[memory]\nstatic_bytes = {BOUND_MIB << 20}\nmin_bytes = {BOUND_MIB << 20}\n")
        watched.until_firing("CriproxyBoxAboveBound")
    finally:
        node.proxy.configure(watched.good)
        node.client.stop_and_remove(pod)
    watched.until_silent("CriproxyBoxAboveBound")


def test_loop_that_stands_still_kubelet_that_passes_by_and_bypass_that_is_open_fire(watched: Watched) -> None:
    proxy = watched.node.proxy
    root, bypass = proxy.directory / "root", proxy.directory / "bypass"
    bypass.mkdir()
    process, unit = root / "proc" / "7", root / "sys/fs/cgroup/system.slice/kubelet.service"
    for folder in (process, unit):
        folder.mkdir(parents=True)
    (process / "comm").write_text("kubelet\n")
    (process / "cmdline").write_text("kubelet\0--container-runtime-endpoint=unix:///run/another.sock\0")
    (unit / "cgroup.procs").write_text("7\n")
    with watched.starts_with(STALLED + PASSED_BY.format(root=str(root)), RUNTIME_DIRECTORY=str(bypass)):
        in_the_way = proxy.directory / f"{proxy.socket.name}.{proxy.pid}~"  # else criproxy leaves the bypass by itself
        in_the_way.mkdir()
        (link := bypass / "link").symlink_to(bypass / "bypass.sock")
        link.rename(proxy.socket)  # as packaging/criproxy-bypass.sh does
        watched.until_firing("CriproxyLoopStalled", "CriproxyNotAttached", "CriproxyBypassOpen")
        in_the_way.rmdir()
    watched.until_silent("CriproxyLoopStalled", "CriproxyNotAttached", "CriproxyBypassOpen")


def test_ticks_that_fail_fire_and_their_part_is_shown(watched: Watched) -> None:
    failing = [expr for expr in expressions(ONE_NODE) if any(is_of(expr, one) for one in FAILING)]
    assert len(failing) == len(FAILING)
    with watched.starts_with(UNREADABLE):
        watched.until_firing("CriproxyTicksFailing")
        address = watched.node.proxy.address
        wait_until(lambda: not unanswered(watched.prometheus, failing, address), SOON_S, "the part that fails")
    watched.until_silent("CriproxyTicksFailing")


def test_online_above_its_prediction_fires(watched: Watched) -> None:
    """Its peaks grow, each above those that were learned."""
    grows = "n=1; while :; do i=0; while [ $i -lt $((n * 20000)) ]; do i=$((i+1)); done; sleep 1; n=$((n+1)); done"
    pod = watched.node.run("online", command=("sh", "-c", grows)).pod
    wait_until(lambda: "CriproxyPredictionExceeded" in watched.prometheus.firing(), SOON_S, "the alert")
    watched.node.client.stop_and_remove(pod)


def is_of(expr: str, empty: str) -> bool:
    return empty in re.sub(r"\{[^}]*\}", "{…}", expr) or bool(re.search(rf"{re.escape(empty)}\b(?!_)", expr))


def test_alerts_fire_in_faults_that_are_real_and_only_then(watched: Watched) -> None:
    node, good = watched.node, watched.good
    wait_until(lambda: not watched.firing(), SOON_S, "no alert, so soon after a start")

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
