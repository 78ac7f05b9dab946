"""`./bench cluster`: the phases of a run, one after the other, and the table at its end."""

import argparse
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.cluster import figures
from benchmarks.cluster.agents import POOL, Plan
from benchmarks.cluster.agents import Figures as AgentFigures
from benchmarks.cluster.figures import Figure, line, requests, since
from benchmarks.cluster.replica import MANIFESTS, SERVER_NAME, Replica
from benchmarks.cluster.webhook import Answers
from benchmarks.effect.claims import quantile
from benchmarks.node import NodeCriproxy, backend, cpu_seconds, rss_mib, run_request
from benchmarks.node import connect as connect_to
from benchmarks.stage import Helper
from benchmarks.table import table
from criproxy.vocabulary.times import wall_s
from integration.lab.clean import clean
from integration.lab.control_plane import ControlPlane, wait_for
from integration.lab.directory import cgroup_root, claimed
from integration.lab.process import LabError

POLICIES: Final = "/apis/colocation.criproxy.io/v1alpha1/colocationpolicies"
ANNOTATION: Final = "colocation.criproxy.io/policy"
DAEMON: Final = "the-daemon"
OFFLINE_PODS: Final = 110
RATE: Final = 200.0
LABELS: Final = 15
FEW: Final = "few"
ALL: Final = "all"
WEBHOOK_S: Final = 15.0
SLOW_S: Final = 900.0
"""A run that waits longer than that for anything is given up."""

SPARE_FILES: Final = 1000


@dataclass(frozen=True, slots=True)
class Options:
    nodes: int
    steady_s: float
    cpu: tuple[str, ...]
    memory: tuple[str, ...]


class Progress:
    """Says on stderr what is done, and about how long the rest takes: by estimates for two free cores, and as slow as
    the phases so far were in truth."""

    def __init__(self, estimates_s: Sequence[tuple[str, float]]) -> None:
        self._estimates_s = dict(estimates_s)
        self._now, self._began_s = "", time.monotonic()
        self.took_s: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._now, self._began_s = name, time.monotonic()
        self.say(f"{name} …")
        yield
        self.took_s[name] = time.monotonic() - self._began_s

    def say(self, words: str, done_ratio: float = 0.0) -> None:
        """`done_ratio`: of the phase that runs."""
        print(f"{words} (about {self._left_s(done_ratio) / 60:.0f} min left)", file=sys.stderr, flush=True)

    def _left_s(self, done_ratio: float) -> float:
        expected_s = {name: seconds for name, seconds in self._estimates_s.items() if name not in self.took_s}
        done_s = sum(self._estimates_s.values()) - sum(expected_s.values()) + done_ratio * expected_s[self._now]
        spent_s = sum(self.took_s.values()) + (time.monotonic() - self._began_s if done_ratio else 0.0)
        pace = spent_s / done_s if done_s else 1.0
        return pace * (sum(expected_s.values()) - done_ratio * expected_s[self._now])


PHASES: Final = ("control plane", "nodes", "replica", "policy for a few", "steady", "webhook", "policy for all")


def estimates(options: Options) -> list[tuple[str, float]]:
    nodes = options.nodes
    seconds = 15.0, nodes / 110, 8 + nodes / 2000, 10.0, options.steady_s, WEBHOOK_S + 2, 10 + nodes / 95
    return list(zip(PHASES, seconds, strict=True))


class Agents:
    """The process of the simulated nodes."""

    def __init__(self, helper: Helper) -> None:
        self._helper = helper

    def begun(self, nodes: int, say: Callable[[str, float], None]) -> None:
        """Returns once all nodes are there."""
        self._helper.tell("begin")
        said = count = 0
        while count < nodes:
            count = json.loads(self._helper.lines.get(timeout=SLOW_S))["begun"]
            if count * 5 // nodes > said:
                said = count * 5 // nodes
                say(f"{count} of {nodes} nodes", count / nodes)

    def figures(self) -> AgentFigures:
        self._helper.tell("figures")
        while True:
            text = self._helper.lines.get(timeout=SLOW_S)
            if not text.startswith('{"begun"'):
                return msgspec.json.decode(text, type=AgentFigures)


class Run:
    """One run. `found` are its figures, in the order of the table."""

    def __init__(self, options: Options, directory: Path, ends: ExitStack) -> None:
        self._options = options
        self._directory = directory
        self._ends = ends
        self.progress = Progress(estimates(options))
        self.found: list[Figure] = []
        self.notes: list[str] = []
        self._plane = ControlPlane(directory)

    def whole(self) -> None:
        """Raises LabError when the lab can't be had."""
        phase = self.progress.phase
        agents = self._agents()
        with phase("control plane"):
            self._control_plane()
            daemon = self._daemon()
        with phase("nodes"):
            agents.begun(self._options.nodes, self.progress.say)
        with phase("replica"):
            replica = Replica(self._plane, self._directory)
            self._ends.callback(replica.stop)
            replica.start()
            wait_for(lambda: self._policy(FEW) == self._few(), SLOW_S, "the replica to know all nodes")
        with phase("policy for a few"):
            self._change_a_few(agents, replica)
            self._labels("a label on a node to its annotation, at rest", 0)
        with phase("steady"):
            self._steady(agents, replica, daemon)
        with phase("webhook"):
            client = self._ends.enter_context(
                Helper("benchmarks.cluster.webhook", str(replica.port), str(replica.ca), SERVER_NAME)
            )
            self._webhook("at rest", client, replica)
        with phase("policy for all"):
            self._change_all(agents, replica, client)
        self._memory(replica, daemon)
        self.notes += [f"the replica warned: {one}" for one in replica.warnings()[:5]]

    # --- what there is ------------------------------------------------------------------------------------------------

    def _control_plane(self) -> None:
        self._plane.start_api()
        self._plane.kubectl("apply", "-k", str(MANIFESTS / "base"))
        self._put_policy(FEW, {"selector": {"matchLabels": {"pool": "p0"}}, "settings": {"cpu": {"reserve_cores": 1}}})

    def _daemon(self) -> NodeCriproxy:
        """A real one, with its own Node and as many offline pods as a node may have."""
        node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": DAEMON}}
        self._plane.call("POST", "/api/v1/nodes", node)
        runtime = self._ends.enter_context(backend(self._directory)).socket
        daemon = NodeCriproxy(self._directory, runtime, "relay", self._plane.node_kubeconfig(DAEMON))
        daemon.start()
        self._ends.callback(daemon.stop)
        with connect_to(daemon.socket) as channel:
            start = channel.unary_unary("/runtime.v1.RuntimeService/RunPodSandbox")
            for number in range(OFFLINE_PODS):
                start(run_request(cgroup_root(self._directory), f"p{number}", offline=True))
        wait_for(lambda: daemon.status()["kubernetes"]["published"], SLOW_S, "the daemon to publish")
        return daemon

    def _agents(self) -> Agents:
        """They learn from the traces while the control plane starts."""
        options = self._options
        port = int(self._plane.url.rpartition(":")[2])
        plan = Plan(str(self._plane.authority.directory), port, options.nodes, options.cpu, options.memory)
        file = self._directory / "plan.json"
        file.write_bytes(msgspec.json.encode(plan))
        return Agents(self._ends.enter_context(Helper("benchmarks.cluster.agents", str(file))))

    # --- policies and labels ------------------------------------------------------------------------------------------

    def _put_policy(self, name: str, spec: Any) -> None:
        kind = {"kind": "ColocationPolicy", "apiVersion": "colocation.criproxy.io/v1alpha1"}
        self._plane.call("POST", POLICIES, {**kind, "metadata": {"name": name}, "spec": spec})

    def _policy(self, name: str) -> int:
        """How many nodes have it in force."""
        found: int = self._plane.call("GET", f"{POLICIES}/{name}").get("status", {}).get("inForce", 0)
        return found

    def _few(self) -> int:
        return min(POOL, self._options.nodes)

    def _heard(self, agents: Agents, policy: str, nodes: int) -> float:
        """When the last of so many nodes has it (CLOCK_MONOTONIC)."""

        def last_s() -> float:
            count, at_s = agents.figures().heard.get(policy, (0, 0.0))
            return at_s if count >= nodes else 0.0

        heard_s: float = wait_for(last_s, SLOW_S, f"{nodes} nodes to have {policy}")
        return heard_s

    def _change_a_few(self, agents: Agents, replica: Replica) -> None:
        few, before, used_s, began_s = self._few(), self._requests(), replica.cpu_s(), time.monotonic()
        self._plane.merge(f"{POLICIES}/{FEW}", {"spec": {"settings": {"cpu": {"reserve_cores": 2}}}})
        heard_s = self._heard(agents, f"{FEW}.2", few)
        wait_for(lambda: self._policy(FEW) == few, SLOW_S, "all to report it")
        grown, used_s = since(before, self._requests()), replica.cpu_s() - used_s
        patches = grown.get(("PATCH", "nodes", ""), 0) - few  # as many are the nodes' own reports
        looked = sum(count for (verb, kind, _), count in grown.items() if verb in ("GET", "LIST") and kind == "nodes")
        self._add(f"policy change to the last of {few} nodes", heard_s - began_s, "s")
        self._add(f"… patches of nodes for it, {few} to be changed", patches, "", few)
        self._add("… nodes read or listed for it", looked, "", 0)
        self._add("… the controller's CPU for it", used_s * 1000, "ms")

    def _labels(self, what: str, first: int) -> None:
        """Nodes join the pool, one after the other."""
        taken = sorted(self._label(first + number) for number in range(LABELS))
        self._add(f"{what}, median", taken[LABELS // 2], "s")
        self._add(f"{what}, slowest of {LABELS}", taken[-1], "s", figures.LABEL_S)

    def _label(self, number: int) -> float:
        path = f"/api/v1/nodes/node{self._options.nodes - 1 - number}"
        began_s = time.monotonic()
        self._plane.merge(path, {"metadata": {"labels": {"pool": "p0"}}})
        wait_for(
            lambda: FEW in self._plane.call("GET", path)["metadata"].get("annotations", {}).get(ANNOTATION, ""),
            SLOW_S,
            "the label's annotation",
        )
        return time.monotonic() - began_s

    def _change_all(self, agents: Agents, replica: Replica, client: Helper) -> None:
        nodes, began_s = self._options.nodes, time.monotonic()
        self._put_policy(ALL, {"priority": -1, "settings": {"memory": {"reserve_bytes": 1 << 30}}})
        with ThreadPoolExecutor(1) as beside:
            labels = beside.submit(self._labels, "… meanwhile, a label on a node to its annotation", LABELS)
            self._webhook("while a policy is written to all nodes", client, replica)
            labels.result()

        def last_s() -> float:
            heard = agents.figures().heard
            told = [one for name, one in heard.items() if f"{ALL}.1" in name.split("+")]
            return max(at_s for _, at_s in told) if sum(count for count, _ in told) >= nodes else 0.0

        heard_s = wait_for(last_s, SLOW_S, "all nodes to have it")
        self._add(f"policy change to the last of {nodes} nodes", heard_s - began_s, "s")

    # --- in the steady state ------------------------------------------------------------------------------------------

    def _steady(self, agents: Agents, replica: Replica, daemon: NodeCriproxy) -> None:
        nodes, used = self._options.nodes, {"api": self._api_cpu_s, "replica": replica.cpu_s}
        used |= {"etcd": lambda: cpu_seconds(self._plane.pids["etcd"]), "daemon": lambda: cpu_seconds(daemon.pid)}
        agents.figures()
        began_s, before = time.monotonic(), {name: cpu() for name, cpu in used.items()}
        time.sleep(self._options.steady_s)
        seconds = time.monotonic() - began_s
        cores = {name: (cpu() - before[name]) / seconds for name, cpu in used.items()}
        seen = agents.figures()
        ages = sorted(self._ages())
        thousands = nodes / 1000
        self._add(
            "patches of what is published, in all",
            seen.published / seen.seconds,
            "/s",
            figures.PATCHES_PER_S * nodes / 10_000,
        )
        self._add("… requests that failed", seen.failed, "", 0)
        self._add("… lists of a node's pods before a patch that may lower", seen.lists / seen.seconds, "/s")
        self._add("staleness: age of what is published, p99 of nodes", quantile(ages, 0.99), "s", figures.REPORT_S)
        for one in figures.lateness(seen.late_s):
            self._add(one.what, one.value, one.unit, one.most)
        self._add("API server's CPU per 1,000 nodes", cores["api"] * 100 / thousands, "% of a core")
        self._add("etcd's CPU per 1,000 nodes", cores["etcd"] * 100 / thousands, "% of a core")
        self._add("leading replica's CPU", cores["replica"] * 100, "% of a core")
        self._add(
            f"criproxy with [kubernetes], {OFFLINE_PODS} offline pods: CPU",
            cores["daemon"] * 100,
            "% of a core",
            figures.DAEMON_PERCENT,
        )
        held_up = quantile(sorted(seen.held_up_s), 0.99)
        self.notes.append(f"the agents' own timers were late by {held_up * 1000:.0f} ms at p99")
        self.notes += [f"a node warned: {one}" for one in seen.troubles]

    def _ages(self) -> list[float]:
        """Of what is published, in s, by the API server's own objects."""
        ages: list[float] = []
        more = ""
        while True:
            page = self._plane.call("GET", f"/api/v1/nodes?limit=500{more and '&continue=' + more}")
            now_s = time.time()
            for node in page["items"]:
                beats = [
                    one["lastHeartbeatTime"] for one in node["status"]["conditions"] if one["type"] == "ColocationReady"
                ]
                ages += [now_s - wall_s(beat) for beat in beats]
            more = page["metadata"].get("continue", "")
            if not more:
                return ages

    # --- the webhook, and memory --------------------------------------------------------------------------------------

    def _webhook(self, when: str, client: Helper, replica: Replica) -> None:
        before_s, began_s = replica.cpu_s(), time.monotonic()
        client.tell(RATE, WEBHOOK_S)
        answers = msgspec.json.decode(client.lines.get(timeout=SLOW_S), type=Answers)
        cores = (replica.cpu_s() - before_s) / (time.monotonic() - began_s)
        taken, late = sorted(answers.latencies_s), sorted(answers.sent_late_s)
        what = f"webhook {when}, {len(taken)} pods at {RATE:.0f}/s"
        self._add(f"{what}: p50", quantile(taken, 0.5) * 1000, "ms")
        self._add(f"{what}: p99", quantile(taken, 0.99) * 1000, "ms", figures.WEBHOOK_S * 1000)
        self._add("… the replica's CPU", cores * 100, "% of a core")
        self.notes.append(
            f"webhook {when}: {answers.bytes} bytes a pod, sent late by {quantile(late, 0.99) * 1000:.1f} ms at p99"
        )

    def _memory(self, replica: Replica, daemon: NodeCriproxy) -> None:
        self._add("leading replica's memory, now", replica.rss_mib(), "MiB", figures.REPLICA_MIB)
        self._add("… at most", replica.most_rss_mib(), "MiB")
        self._add(
            f"criproxy with [kubernetes], {OFFLINE_PODS} offline pods: memory",
            rss_mib(daemon.pid),
            "MiB",
            figures.DAEMON_MIB,
        )
        self._add(
            "API server's memory per 1,000 nodes",
            rss_mib(self._plane.pids["kube-apiserver"]) * 1000 / self._options.nodes,
            "MiB",
        )

    # --- small things -------------------------------------------------------------------------------------------------

    def _add(self, what: str, value: float, unit: str, most: float | None = None) -> None:
        self.found.append(Figure(what, value, unit, most))
        one = line(self.found[-1])
        print(f"  {one.what}: {one.measured} {one.target} {one.met}".rstrip(), file=sys.stderr, flush=True)

    def _api_cpu_s(self) -> float:
        return cpu_seconds(self._plane.pids["kube-apiserver"])

    def _requests(self) -> dict[tuple[str, str, str], int]:
        return requests(self._plane.kubectl("get", "--raw", "/metrics"))


def conditions(options: Options) -> dict[str, Any]:
    return {
        "nodes": options.nodes,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def main(arguments: Sequence[str]) -> None:
    """Raises LabError when the lab can't be had."""
    parser = argparse.ArgumentParser(prog="./bench cluster", description=__doc__)
    parser.add_argument("--nodes", metavar="N", type=int, default=10_000, help="simulated nodes (%(default)s)")
    parser.add_argument(
        "--steady", metavar="S", type=float, default=60.0, help="seconds of the steady state (%(default)s)"
    )
    parser.add_argument(
        "--cpu",
        metavar="FILE",
        nargs="+",
        default=(),
        help="recorded CPU use of nodes with 32 cores, as `criproxy simulate` takes it, instead of its example",
    )
    parser.add_argument(
        "--memory", metavar="FILE", nargs="+", default=(), help="recorded memory use, of nodes with 128 GiB; with --cpu"
    )
    parser.add_argument("--json", metavar="F", type=Path, help="write the figures to this file, too")
    given = parser.parse_args(arguments)
    if bool(given.cpu) != bool(given.memory):
        parser.error("give both --cpu and --memory, or none of them")
    if given.nodes < 3 * LABELS:
        parser.error(f"--nodes {given.nodes}: give {3 * LABELS} or more")
    if os.geteuid() != 0:
        raise LabError("the cluster's benchmark needs root, for criproxy's box")
    options = Options(given.nodes, given.steady, tuple(given.cpu), tuple(given.memory))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < options.nodes + SPARE_FILES:
        raise LabError(
            f"{options.nodes} nodes need as many connections, and a process may have {hard} files: `ulimit -n`"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    began = conditions(options)
    with claimed() as directory, ExitStack() as ends:
        ends.callback(clean, directory)
        run = Run(options, directory, ends)
        run.whole()
    print(table([line(one) for one in run.found]))
    print(", ".join(f"{name} {value}" for name, value in began.items()))
    print(*run.notes, sep="\n")
    if given.json:
        told = [{**asdict(one), "met": one.met} for one in run.found]
        content = {"conditions": began, "figures": told, "notes": run.notes, "phases_s": run.progress.took_s}
        given.json.write_text(json.dumps(content, indent=1) + "\n")
