"""The demo of Spark from beginning to end: checks, set-up, the two runs, the cleaning, and the figures."""

import argparse
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import yaml

from criproxy.vocabulary.quantities import parse_quantity
from integration.demo import DemoError
from integration.demo.cluster.objects import BATCH_MEMORY, BURST, Sizes, deployment, sizes
from integration.demo.cluster.play import QUIET_PER_CORE, online_container
from integration.demo.cluster.probe import Probe
from integration.demo.cluster.stage import Cluster, start
from integration.demo.node import ONLINE
from integration.demo.place import check_cgroups, cleaned, say, step
from integration.demo.spark.report import Run, check, in_words
from integration.demo.spark.watch import Watch
from integration.lab import spark
from integration.lab.control_plane import wait_for
from integration.lab.criproxy import CHECKOUT
from integration.lab.kubelet import available_bytes
from integration.lab.spark import GRACEFUL, OFFLINE_EXECUTORS, Application, Work, requesting

WORK: Final = Work(rows=1_500_000, parts=96, rounds=64)
EXECUTORS: Final = 3
EXECUTOR_MIB: Final = 900
"""What one requests, its heap of 512 MiB and what it needs beside it, rounded up."""

POLICIES: Final = "/apis/colocation.criproxy.io/v1alpha1/colocationpolicies"
SETTINGS: Final[Mapping[str, str]] = {
    "spark.executor.instances": str(EXECUTORS),
    "spark.kubernetes.allocation.executor.timeout": "600s",
    **requesting("100m"),  # a node has room for three of them, however busy the machine is
    **GRACEFUL,
}
_ROOM_MIB: Final = 7000
_LEAST_ROOM_MIB: Final = 5000
_ROOM_RATIO: Final = 0.6
_START_S: Final = 180.0
_RUN_S: Final = 600.0
_ALONE_S: Final = 8.0
_PRESSURE_S: Final = 120.0
_KNOWN_S: Final = 70.0


def run(options: argparse.Namespace) -> None:
    """Run the demo. Raises DemoError, LabError, grpc.RpcError, OSError or Stopped; everything is cleaned up by then."""
    del options
    check_cgroups()
    chosen = _sizes()
    with cleaned(2) as labs:
        with step("Spark, and the Java that it runs on, unless they are there already"):
            spark.root()
        say("Setting up a cluster of its own:")
        on = start(labs, chosen)
        for manifest in yaml.safe_load_all((CHECKOUT / "examples" / "spark-application.yaml").read_text()):
            if manifest["kind"] in ("ServiceAccount", "Role", "RoleBinding"):
                on.plane.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        _lend_memory(on)
        begin_s = time.monotonic()
        on.create("apps/v1", "deployments", deployment(on.port, on.signals, chosen))
        wait_for(lambda: online_container(on), _START_S, "the online pod to run")
        probe = Probe(on.port, labs[0])
        on.favour(probe.pid)
        probe.ask(QUIET_PER_CORE * len(os.sched_getaffinity(0)))
        quiet_s = time.monotonic()
        time.sleep(_ALONE_S)
        wait_for(on.nodes[0].knows_threshold, _KNOWN_S, "criproxy to read when kubelet evicts pods")
        beside_s = time.monotonic()
        beside, evicted, killed = _beside(on, labs[0], begin_s)
        end_s, answers = time.monotonic(), probe.answers()
        probe.ask(0.0)
        on.plane.kubectl("delete", "deployment", ONLINE)
        alone = _alone(on, labs[0], begin_s)
    windows = {"alone": (quiet_s, beside_s), "beside the job": (beside_s, end_s)}
    latencies = {
        name: sorted(latency_s for due_s, latency_s in answers if from_s <= due_s < to_s)
        for name, (from_s, to_s) in windows.items()
    }
    check(WORK, alone, beside)
    say("")
    for text in in_words(alone, beside, evicted, killed, latencies):
        say(text)


def _lend_memory(on: Cluster) -> None:
    """What a node lends of memory it learns in an hour. Here it is the executors' from the first minute on."""
    settings = {"memory": {"min_bytes": EXECUTORS * EXECUTOR_MIB << 20}}
    policy = {
        "apiVersion": "colocation.criproxy.io/v1alpha1",
        "kind": "ColocationPolicy",
        "metadata": {"name": "spark"},
    }
    on.plane.call("POST", POLICIES, {**policy, "spec": {"settings": settings}})

    def lent() -> bool:
        allocatable = on.plane.call("GET", on.nodes[0].path)["status"]["allocatable"]
        return int(parse_quantity(allocatable[BATCH_MEMORY])) >= EXECUTORS * EXECUTOR_MIB << 20

    wait_for(lent, _START_S, f"{on.nodes[0].title} to lend memory for {EXECUTORS} executors")


def _sizes() -> Sizes:
    """As of `./demo --cluster`, with room for executors. Raises DemoError when this machine has too little memory."""
    of_cluster = sizes(available_bytes(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    room_mib = min(_ROOM_MIB, int(_ROOM_RATIO * (available_bytes() >> 20)))
    if room_mib < _LEAST_ROOM_MIB:
        least_gib = _LEAST_ROOM_MIB / _ROOM_RATIO / 1024
        raise DemoError(f"The demo of Spark needs {least_gib:.0f} GiB of free memory: end something.")
    return replace(of_cluster, room_mib=room_mib, step_mib=room_mib // of_cluster.steps)


def _alone(on: Cluster, lab: Path, begin_s: float) -> Run:
    app = Application(on.plane, "alone", lab / "alone", WORK, SETTINGS)
    watch = Watch(on, app, begin_s, offline=False)
    on.cordon(on.nodes[1], cordoned=True)
    watch.tell(f"The same job on {on.nodes[0].title}, which has nothing else now: its executors are pods as any.")
    app.submit()
    return _outcome(watch)


def _beside(on: Cluster, lab: Path, begin_s: float) -> tuple[Run, list[str], str]:
    """The run, who was evicted, and who was killed."""
    _, second = on.nodes
    app = Application(on.plane, "beside", lab / "beside", WORK, {**SETTINGS, **OFFLINE_EXECUTORS})
    watch = Watch(on, app, begin_s, offline=True)
    watch.tell(f"A Spark job beside an online Deployment; its {EXECUTORS} executors have the label of offline pods.")
    app.submit()
    watch.until(lambda: len(watch.running) >= EXECUTORS, _START_S, f"{EXECUTORS} executors to run")
    watch.until(lambda: len(app.events("TaskEnd")) >= WORK.parts // 4, _RUN_S, "a quarter of the first stage")
    on.cordon(second, cordoned=False)
    watch.tell(f"{second.title} is uncordoned, and the memory of the online pod grows.")
    growing = on.signals / BURST
    growing.touch()
    watch.until(lambda: watch.evicted or watch.ended(), _PRESSURE_S, "an executor to be evicted")
    growing.unlink()
    if not watch.evicted:
        raise DemoError("The job ended before an executor was evicted: run the demo again on a quieter machine.")
    watch.tell("Online gives that memory back.")
    watch.until(lambda: watch.running or watch.ended(), _START_S, "another executor")
    killed = _kill_one(watch)
    return _outcome(watch), sorted(watch.evicted), killed


def _kill_one(watch: Watch) -> str:
    """As when a process runs out of memory."""
    for name, container in watch.running.items():
        (node,) = (one for one in watch.on.nodes if one.title == watch.ran[name])
        if pid := node.client.pid_of(container):
            os.kill(pid, signal.SIGKILL)
            watch.tell(f"The executor {name} is killed (SIGKILL).")
            return name
    raise DemoError("No executor was left to be killed: run the demo again on a quieter machine.")


def _outcome(watch: Watch) -> Run:
    """Once it has ended."""
    watch.until(watch.ended, _RUN_S, "the job to end")
    app = watch.app
    answer = app.answer()
    assert answer is not None
    watch.tell(f"The job has ended, {answer['seconds']:.1f} s after its driver was ready.")
    return Run.of(answer, app.events("ExecutorRemoved"), app.events("TaskEnd"))
