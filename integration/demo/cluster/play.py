"""The demo of a cluster from beginning to end: checks, set-up, the acts, the cleaning, figures and picture."""

import argparse
import os
import time
from typing import Final

from integration.demo import DemoError
from integration.demo.cluster.objects import BURST, HOLD_AFTER_S, PODS, Sizes, deployment, job, sizes
from integration.demo.cluster.probe import Probe
from integration.demo.cluster.report import Outcome, draw, in_words
from integration.demo.cluster.stage import MIN_CORES, Cluster, start
from integration.demo.cluster.watch import Watch, running_container
from integration.demo.node import ONLINE, cgroup_of
from integration.demo.place import check_cgroups, cleaned, say
from integration.lab.control_plane import wait_for
from integration.lab.kubelet import available_bytes

QUIET_PER_CORE: Final = 5.0
BURST_PER_CORE: Final = 40.0
"""Requests per s, for each core of this machine."""

_START_S: Final = 300.0
_PRESSURE_S: Final = 90.0
_KNOWN_S: Final = 70.0
_LAST_S: Final = 3.0
_GROWN_S: Final = 20.0
_GROWN_RATIO: Final = 0.2


def run(options: argparse.Namespace) -> None:
    """Run the demo. Raises DemoError, LabError, grpc.RpcError, OSError or Stopped; everything is cleaned up by then."""
    check_cgroups()
    chosen = sizes(available_bytes(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with cleaned(2) as labs:
        say("Setting up a cluster of its own:")
        on = start(labs, chosen)
        on.create("apps/v1", "deployments", deployment(on.port, on.signals, chosen))
        online = wait_for(lambda: online_container(on), _START_S, "the online pod to run")
        probe = Probe(on.port, labs[0])
        on.favour(probe.pid)
        outcome = Outcome(len(os.sched_getaffinity(0)), time.monotonic())
        watch = Watch(on, cgroup_of(on.nodes[0].client.pid_of(online)), outcome)
        _play(on, probe, watch, outcome, act_s=options.seconds / 4, chosen=chosen)
    say("")
    for text in in_words(outcome):
        say(text)
    draw(outcome, options.plot)
    say(f"Plot: {options.plot}")


def _play(on: Cluster, probe: Probe, watch: Watch, outcome: Outcome, *, act_s: float, chosen: Sizes) -> None:
    quiet, burst = QUIET_PER_CORE * outcome.cores, BURST_PER_CORE * outcome.cores
    first, second = on.nodes
    growing = on.signals / BURST

    def measured(name: str, rate: float, seconds: float) -> None:
        probe.ask(rate)
        start_s = watch.now_s
        watch.during(seconds)
        outcome.windows[name] = (start_s, watch.now_s)

    rates = f"{burst:.0f} requests per s, and its memory grows"
    watch.tell(f"An online Deployment bursts, alone on {first.title}: {rates}.", "burst")
    growing.touch()
    measured("burst, alone", burst, act_s)
    growing.unlink()
    watch.tell(f"The burst is over: {quiet:.0f} requests per s, still alone.", "quiet")
    measured("quiet, alone", quiet, act_s)

    watch.tell(
        f"A Job of {PODS} offline pods is submitted: each requests cpu 100m and memory "
        f"{chosen.requested_mib}Mi, as any pod would, and has the label colocation.criproxy.io/class: offline.",
        "Job submitted",
    )
    submitted_s = watch.now_s
    on.create("batch/v1", "jobs", job(chosen))
    watch.until(lambda: watch.running >= PODS, _START_S, f"{PODS} offline pods to run in the box of {first.title}")
    outcome.started_after_s = watch.now_s - submitted_s
    measured("quiet, beside the Job", quiet, max(act_s, HOLD_AFTER_S + _LAST_S))
    watch.until(first.knows_threshold, _KNOWN_S, f"criproxy to read when kubelet of {first.title} evicts pods")
    # Until the box has much that can be taken from it; on a machine that others keep busy it never has.
    end_s, enough = watch.now_s + _GROWN_S, MIN_CORES + _GROWN_RATIO * outcome.cores
    while watch.now_s < end_s and (outcome.moments[-1].limit or 0.0) < enough:
        watch.look()
    if gone := watch.first_to_go:
        why = "something else on this machine took memory. Run the demo again when it is quieter"
        raise DemoError(f"The pod {gone} was evicted before online's burst, as {why}.")

    on.cordon(second, cordoned=False)
    watch.tell(f"{second.title} is uncordoned: from now on pods may be placed there, too.")
    watch.tell(f"Online bursts again: {rates}.", "burst")
    burst_s = watch.now_s
    growing.touch()
    probe.ask(burst)
    watch.until(lambda: watch.first_to_go, _PRESSURE_S, "an offline pod to be evicted")
    evicted_s, outcome.evicted = watch.now_s, watch.first_to_go
    growing.unlink()
    watch.tell("Online gives that memory back.")
    watch.during(max(0.0, burst_s + act_s - watch.now_s))
    outcome.windows["burst, beside the Job"] = (burst_s, watch.now_s)
    probe.ask(quiet)
    watch.tell("The burst is over.", "burst over")
    watch.until(lambda: watch.running >= PODS, _START_S, "a pod to run in the place of the one that was evicted")
    watch.until(lambda: watch.evicted, _START_S, "the event that tells of the eviction")  # told after it
    outcome.evicted_after_s = evicted_s - burst_s
    later = [(pod.running_s, pod.node) for pod in watch.pods.values() if pod.running_s and pod.seen_s > burst_s]
    replaced_s, node = min(later)
    outcome.replaced_after_s, outcome.replaced_on = replaced_s - evicted_s, on.title(node)
    watch.during(_LAST_S)
    outcome.answers = probe.answers()


def online_container(on: Cluster) -> str:
    """The online pod's container, once it runs."""
    pods = on.items(f"pods?labelSelector=app%3D{ONLINE}")
    return next(filter(None, (running_container(pod.get("status", {})) for pod in pods)), "")
