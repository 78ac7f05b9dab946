"""The demo of a cluster from beginning to end: checks, set-up, the acts, the cleaning, figures and picture."""

import contextlib
import os
import time
from typing import Any, Final

from integration.demo import DemoError
from integration.demo.arguments import Options
from integration.demo.checks import check_plot, look, problem
from integration.demo.cluster.objects import (
    BURST,
    HOLD_AFTER_S,
    OFFLINE_MILLICORES,
    PODS,
    Sizes,
    deployment,
    job,
    sizes,
)
from integration.demo.cluster.probe import Probe
from integration.demo.cluster.report import Outcome, draw, in_words
from integration.demo.cluster.stage import MIN_CORES, PODS_PATH, ClusterStage, cluster_stage
from integration.demo.cluster.watch import Watch
from integration.demo.place import Place, held
from integration.demo.play import cleaned, stoppable
from integration.demo.pods import ONLINE, cgroup_of
from integration.demo.screen import Say
from integration.lab import cri_client_pb2 as cri
from integration.lab.client import Container, Pod
from integration.lab.control_plane import wait_for
from integration.lab.kubelet import available_bytes

QUIET_PER_CORE: Final = 5.0
BURST_PER_CORE: Final = 40.0
"""Requests per s, for each core of this machine."""

_START_S: Final = 120.0
_PRESSURE_S: Final = 90.0
_KNOWN_S: Final = 70.0
_LAST_S: Final = 3.0
_GROWN_S: Final = 20.0
_GROWN_RATIO: Final = 0.2


def run(options: Options, say: Say) -> None:
    """Run the demo. Raises DemoError, LabError, grpc.RpcError, OSError or Stopped; everything is cleaned up by then."""
    if sentence := problem(look()):
        raise DemoError(sentence)
    check_plot(options.plot)
    chosen = sizes(available_bytes(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with stoppable(), held(options.directory) as place:
        if not place.is_clean():
            say(f"Cleaning up what an earlier demo left in {place.base}.")
            place.clear()
        with cleaned(place, say):
            outcome = _perform(place, chosen, options.seconds / 4, say)
    say("")
    for text in in_words(outcome):
        say(text)
    draw(outcome, options.plot)
    say(f"Plot: {options.plot}")


def _perform(place: Place, chosen: Sizes, act_s: float, say: Say) -> Outcome:
    say("Setting up a cluster of its own:")
    place.lab.mkdir()
    with contextlib.ExitStack() as stack:
        on = stack.enter_context(cluster_stage(place, chosen, len(os.sched_getaffinity(0)), say))
        on.plane.call("POST", "/apis/apps/v1/namespaces/default/deployments", deployment(on.port, on.signals, chosen))
        online = wait_for(lambda: _online(on), _START_S, "the online pod to run")
        probe = Probe(on.port, place.lab)
        on.favour(probe.pid)
        watch = Watch(on, cgroup_of(on.nodes[0].client.pid(online)), say, time.monotonic())
        return _play(on, probe, watch, act_s, chosen)


def _play(on: ClusterStage, probe: Probe, watch: Watch, act_s: float, chosen: Sizes) -> Outcome:
    outcome = Outcome(on.cores, watch.moments, watch.marks, time.monotonic() - watch.now_s)
    quiet, burst = QUIET_PER_CORE * on.cores, BURST_PER_CORE * on.cores
    first, second = on.nodes

    def measured(name: str, rate: float, seconds: float) -> None:
        probe.ask(rate)
        with outcome.window(name, watch):
            watch.during(seconds)

    growing = on.signals / BURST
    watch.tell(
        f"An online Deployment bursts, alone on {first.title}: {burst:.0f} requests per s, and its memory grows.",
        "burst",
    )
    growing.touch()
    measured("burst, alone", burst, act_s)
    growing.unlink()
    watch.tell(f"The burst is over: {quiet:.0f} requests per s, still alone.", "quiet")
    measured("quiet, alone", quiet, act_s)

    watch.tell(
        f"A Job of {PODS} offline pods is submitted: each requests cpu {OFFLINE_MILLICORES}m and memory "
        f"{chosen.requested_mib}Mi, as any pod would, and has the label colocation.criproxy.io/class: offline.",
        "Job submitted",
    )
    submitted_s = watch.now_s
    on.plane.call("POST", "/apis/batch/v1/namespaces/default/jobs", job(chosen))
    watch.until(lambda: _running(watch) >= PODS, _START_S, f"{PODS} offline pods to run in the box of {first.title}")
    outcome.started_after_s = watch.now_s - submitted_s
    measured("quiet, beside the Job", quiet, max(act_s, HOLD_AFTER_S + _LAST_S))
    watch.until(first.knows_threshold, _KNOWN_S, f"criproxy to read when kubelet of {first.title} evicts pods")
    _let_grow(watch, on.cores)

    on.cordon(second, cordoned=False)
    watch.tell(f"{second.title} is uncordoned: from now on pods may be placed there, too.")
    watch.tell(f"Online bursts again: {burst:.0f} requests per s, and its memory grows.", "burst")
    burst_s = watch.now_s
    growing.touch()
    probe.ask(burst)
    with outcome.window("burst, beside the Job", watch):
        watch.until(lambda: watch.first_to_go, _PRESSURE_S, "an offline pod to be evicted")
        evicted_s, outcome.evicted = watch.now_s, watch.first_to_go
        growing.unlink()
        watch.tell("Online gives that memory back.")
        watch.during(max(0.0, burst_s + act_s - watch.now_s))
    probe.ask(quiet)
    watch.tell("The burst is over.", "burst over")
    watch.until(lambda: _running(watch) >= PODS, _START_S, "a pod to run in the place of the one that was evicted")
    watch.until(lambda: watch.evicted, _START_S, "the event that tells of the eviction")  # told after it
    outcome.evicted_after_s = evicted_s - burst_s
    replaced_s, outcome.replaced_on = min(
        (at_s, on.titles[pod.node])
        for pod in watch.pods.values()
        if (at_s := pod.running_s) is not None and pod.seen_s > burst_s
    )
    outcome.replaced_after_s = replaced_s - evicted_s
    watch.during(_LAST_S)
    outcome.answers = probe.answers()
    return outcome


def _let_grow(watch: Watch, cores: int) -> None:
    """Wait until the box has much that can be taken from it; on a machine that others keep busy it never has.

    Raises DemoError when a pod is evicted before the burst.
    """
    end_s, enough = watch.now_s + _GROWN_S, MIN_CORES + _GROWN_RATIO * cores
    while watch.now_s < end_s and (watch.moments[-1].limit_cores or 0.0) < enough:
        watch.look()
    if watch.first_to_go:
        raise DemoError(
            f"The pod {watch.first_to_go} was evicted before online's burst, as something else on this machine took "
            "memory. Run the demo again when it is quieter."
        )


def _running(watch: Watch) -> int:
    return sum(1 for pod in watch.pods.values() if pod.running_s is not None and pod.ending_s is None)


def _online(on: ClusterStage) -> Container | None:
    """The online pod's container, once it runs."""
    pods: list[Any] = on.plane.call("GET", f"{PODS_PATH}?labelSelector=app%3D{ONLINE}")["items"]
    for pod in pods:
        for status in pod.get("status", {}).get("containerStatuses", []):
            if "running" in status.get("state", {}):
                return Container(status["containerID"].partition("://")[2], Pod("", cri.PodSandboxConfig()))
    return None
