"""Looks at the cluster twice a second, keeps what it saw for the picture, and tells each change in a line."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from criproxy.vocabulary.quantities import parse_quantity
from integration.demo import DemoError
from integration.demo.cluster.objects import BATCH_CPU, BATCH_MEMORY, JOB
from integration.demo.cluster.report import SQUEEZED, Moment, Outcome
from integration.demo.cluster.stage import Cluster
from integration.demo.node import cgroup_of, check_alive, check_in_box
from integration.demo.place import say
from integration.lab.control_plane import ApiError
from integration.lab.meter import Meter, Reading
from integration.lab.process import LabError
from integration.lab.usage import Cgroup

EVERY_S: Final = 0.5
_GOES: Final = {
    "EvictedByColocation": "criproxy has {} evicted (pods/eviction).",
    "StoppedByColocation": "criproxy stops {} on the node, as the API server did not answer in time.",
}
"""What is told of an offline pod, by its event's reason."""

_NOTABLE_RATIO: Final = 0.15
"""A limit that moves by less of the machine is not told."""


@dataclass
class OfflinePod:
    """What is known of one pod of the Job; times are of the play.

    `node` "": it is not bound yet, and `waits` is why, in the scheduler's words.
    """

    name: str
    seen_s: float
    node: str = ""
    waits: str = ""
    running_s: float | None = None
    ending_s: float | None = None


class Watch:
    """Fills the moments and marks of `outcome`. `online` is the online pod's cgroup."""

    def __init__(self, on: Cluster, online: str, outcome: Outcome) -> None:
        self.pods: dict[str, OfflinePod] = {}
        self.evicted: list[str] = []
        self._on, self._outcome = on, outcome
        self._cgroups = {"node": "/", "online": online, **{node.title: node.box for node in on.nodes}}
        self._before: Reading | None = None
        self._told_limit: float | None = None

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._outcome.begin_s

    @property
    def first_to_go(self) -> str:
        """The pod of the Job that was the first to be ended; "": none was."""
        gone = [(pod.ending_s, pod.name) for pod in self.pods.values() if pod.ending_s is not None]
        return min(gone)[1] if gone else ""

    @property
    def running(self) -> int:
        return sum(pod.running_s is not None and pod.ending_s is None for pod in self.pods.values())

    def tell(self, text: str, mark: str = "") -> None:
        """A line, and with `mark` a place in the picture."""
        say(f"{self.now_s:6.1f} s  {text}")
        if mark:
            self._outcome.marks.append((self.now_s, mark))

    def until(self, condition: Callable[[], object], longest_s: float, what: str) -> None:
        """Look on until `condition` holds. Raises DemoError when it does not in time."""
        end_s = self.now_s + longest_s
        while not condition():
            if self.now_s > end_s:
                pods = [f"{pod.name} ({self._on.title(pod.node) or pod.waits})" for pod in self.pods.values()]
                raise DemoError(
                    f"Waited {longest_s:.0f} s in vain for {what}. Offline pods: {', '.join(pods) or 'none'}. What "
                    "other programs on this machine use, no node lends: run the demo again when it is quieter."
                )
            self.look()

    def during(self, seconds: float) -> None:
        """Look on for so long."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.look()

    def look(self) -> None:
        """Take one look, at its time. Raises DemoError when a part of the cluster has ended."""
        time.sleep(EVERY_S - self.now_s % EVERY_S)
        check_alive(self._on.parts)
        with contextlib.suppress(ApiError, LabError, OSError):  # the next look sees it
            there = {pod["metadata"]["name"]: pod for pod in self._on.items("pods")}
            for name, pod in there.items():
                if pod["metadata"].get("labels", {}).get("job-name") == JOB:
                    self._look_at(name, pod)
            for known in self.pods.values():
                if known.name not in there and known.ending_s is None:
                    known.ending_s = self.now_s
            self._look_at_events()
            self._measure()

    def _look_at(self, name: str, pod: Any) -> None:
        spec, status = pod["spec"], pod.get("status", {})
        if status.get("reason") == "Evicted":
            raise DemoError(
                f"kubelet has evicted the pod {name} ({status.get('message', '')}): something else on this machine "
                "took memory faster than criproxy could answer. Run the demo again when it is quieter."
            )
        if name not in self.pods:
            self.pods[name] = OfflinePod(name, self.now_s)
            self.tell(f"Kubernetes makes the pod {name}{_converted(spec) if len(self.pods) == 1 else ''}.")
        known = self.pods[name]
        why = [one.get("message", "") for one in status.get("conditions", []) if one["type"] == "PodScheduled"]
        known.waits = f"not placed: {why[0]}" if why else "not placed"
        if not known.node and spec.get("nodeName"):
            known.node = spec["nodeName"]
            self.tell(f"The scheduler has placed {name} on {self._on.title(known.node)}, by {BATCH_CPU}.")
        if known.running_s is None and (container := running_container(status)) and self._in_box(known.node, container):
            known.running_s, title = self.now_s, self._on.title(known.node)
            self.tell(f"{name} runs, in the box of {title}.", f"runs on {title}")
        if known.ending_s is None and (pod["metadata"].get("deletionTimestamp") or status.get("phase") == "Failed"):
            known.ending_s = self.now_s

    def _in_box(self, node: str, container: str) -> bool:
        """Raises DemoError when it runs elsewhere."""
        (on,) = (one for one in self._on.nodes if one.kubelet.node == node)
        if pid := on.client.pid_of(container):
            check_in_box(cgroup_of(pid), on.box)
        return bool(pid)

    def _look_at_events(self) -> None:
        if len(self.evicted) == sum(pod.ending_s is not None for pod in self.pods.values()):
            return
        for event in self._on.items("events"):
            name = event["involvedObject"]["name"]
            if event["reason"] in _GOES and name in self.pods and name not in self.evicted:
                self.evicted.append(name)
                self.tell(f"{_GOES[event['reason']].format(name)} {event['message']}", "evicted")

    def _measure(self) -> None:
        first, second = self._on.nodes
        # A box is made with its first pod.
        now = Meter({name: path for name, path in self._cgroups.items() if Cgroup(path).exists()}).read()
        before, self._before = self._before, now
        if before is None:
            return
        used = {name: now.cores_since(before, name) if name in before.cpu_s else 0.0 for name in now.cpu_s}
        online, boxes = used["online"], (used.get(first.title, 0.0), used.get(second.title, 0.0))
        others = max(used["node"] - online - sum(boxes), 0.0)
        lent = self._on.plane.call("GET", first.path)["status"].get("allocatable", {}).get(BATCH_CPU)
        limit, why = first.limit()
        lends = None if lent is None else parse_quantity(lent) / 1000
        self._outcome.moments.append(Moment(self.now_s, online, *boxes, others, limit, lends))
        self._tell_limit(limit, why)

    def _tell_limit(self, limit: float | None, why: str) -> None:
        told = self._told_limit
        if limit is None or not self.pods:
            return
        if told is not None and abs(limit - told) < _NOTABLE_RATIO * self._outcome.cores:
            return
        self._told_limit = limit
        if told is not None:
            moved, mark = ("is squeezed", SQUEEZED) if limit < told else ("grows", "")
            self.tell(f"The box of node 1 {moved} from {told:.2f} to {limit:.2f} cores: {why}.", mark)


def running_container(status: Any) -> str:
    """The id of a container that runs; "": it does not."""
    found = [one["containerID"] for one in status.get("containerStatuses", []) if "running" in one.get("state", {})]
    return found[0].partition("://")[2] if found and status.get("phase") == "Running" else ""


def _converted(spec: Any) -> str:
    """What the webhook has made of its requests."""
    requests = spec["containers"][0]["resources"].get("requests", {})
    if BATCH_CPU not in requests:
        raise DemoError(f"The webhook has not converted an offline pod: it requests {requests}.")
    return (
        f": the webhook has made its requests {BATCH_CPU} {requests[BATCH_CPU]} (thousandths of a core) and "
        f"{BATCH_MEMORY} {int(requests[BATCH_MEMORY]) >> 20} MiB, which online pods do not need"
    )
