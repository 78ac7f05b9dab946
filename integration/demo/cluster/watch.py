"""Looks at the cluster twice a second, keeps what it saw for the picture, and tells each change in a line."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from criproxy.model import CPU
from integration.demo import DemoError
from integration.demo.cluster.objects import BATCH_CPU, BATCH_MEMORY, JOB
from integration.demo.cluster.stage import ClusterNode, ClusterStage
from integration.demo.meter import Meter, Reading, exists
from integration.demo.pods import cgroup_of
from integration.demo.screen import Say
from integration.lab.control_plane import ApiError
from integration.lab.process import LabError

EVERY_S: Final = 0.5
_EVENTS: Final = "/api/v1/namespaces/default/events"
_GOES: Final = {
    "EvictedByColocation": "criproxy has {} evicted (pods/eviction).",
    "StoppedByColocation": "criproxy stops {} on the node, as the API server did not answer in time.",
}
"""What is told of an offline pod, by its event's reason."""
SQUEEZED: Final = "squeezed"
"""The mark of a limit that is lowered."""

_NOTABLE_RATIO: Final = 0.15
"""A limit that moves by less of the machine is not told."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One look, `t_s` after the play began. Cores are means since the look before.

    `limit_cores` is that of node 1's box, `lent_cores` what that node publishes, `promised_cores` what pods on it were
    promised of that; None: not known, or none.
    """

    t_s: float
    online_cores: float
    box_cores: float
    second_cores: float
    others_cores: float
    limit_cores: float | None
    lent_cores: float | None
    promised_cores: float


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened, in a few words, for the picture."""

    t_s: float
    text: str


class OfflinePod:
    """What is known of one pod of the Job; times are of the play. `node` "": it is not bound yet."""

    def __init__(self, name: str, seen_s: float) -> None:
        self.name = name
        self.seen_s = seen_s
        self.node = ""
        self.running_s: float | None = None
        self.ending_s: float | None = None


class Watch:
    """`begin` is when the play began (CLOCK_MONOTONIC). `online` is the online pod's cgroup."""

    def __init__(self, on: ClusterStage, online: str, say: Say, begin_s: float) -> None:
        self.moments: list[Moment] = []
        self.marks: list[Mark] = []
        self.pods: dict[str, OfflinePod] = {}
        self.evicted: list[str] = []
        self._on = on
        self._say = say
        self._begin_s = begin_s
        self._cgroups = {"node": "/", "online": online, **{node.title: node.box for node in on.nodes}}
        self._before: Reading | None = None
        self._told_limit: float | None = None

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._begin_s

    @property
    def first_to_go(self) -> str:
        """The pod of the Job that was the first to be ended; "": none was."""
        gone = [(pod.ending_s, pod.name) for pod in self.pods.values() if pod.ending_s is not None]
        return min(gone)[1] if gone else ""

    def tell(self, text: str, mark: str = "") -> None:
        """A line, and with `mark` a place in the picture."""
        self._say(f"{self.now_s:6.1f} s  {text}")
        if mark:
            self.marks.append(Mark(self.now_s, mark))

    def until(self, condition: Callable[[], object], longest_s: float, what: str) -> None:
        """Look on until `condition` holds. Raises DemoError when it does not in time."""
        end_s = self.now_s + longest_s
        while not condition():
            if self.now_s > end_s:
                raise DemoError(f"Waited {longest_s:.0f} s in vain for {what}. {self._state()}")
            self.look()

    def during(self, seconds: float) -> None:
        """Look on for so long."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.look()

    def look(self) -> None:
        """Take one look, at its time. Raises DemoError when a part of the cluster has ended."""
        time.sleep(max(0.0, self._next_s() - time.monotonic()))
        self._on.check()
        with contextlib.suppress(ApiError, OSError):  # the next look sees it
            pods = self._on.pods()
            self._look_at(pods)
            self._look_at_events()
            self._measure(pods)

    def _next_s(self) -> float:
        return self._begin_s + (self.now_s // EVERY_S + 1) * EVERY_S

    def _state(self) -> str:
        """What there is, for an error."""
        pods = ", ".join(f"{pod.name} ({self._title(pod.node) or 'not placed'})" for pod in self.pods.values())
        first = self._on.nodes[0]
        lent = self._on.plane.call("GET", first.path)["status"].get("allocatable", {})
        amounts = ", ".join(f"{name} {lent.get(name, 'not at all')}" for name in (BATCH_CPU, BATCH_MEMORY))
        return (
            f"Offline pods: {pods or 'none'}. {first.title} lends {amounts}: what other programs on this machine "
            "use, it does not lend."
        )

    def _title(self, node: str) -> str:
        return self._on.titles.get(node, node)

    # --- pods -------------------------------------------------------------------------------------------------------

    def _look_at(self, pods: list[Any]) -> None:
        for pod in pods:
            if pod["metadata"].get("labels", {}).get("job-name") == JOB:
                self._look_at_one(pod)
        there = {pod["metadata"]["name"] for pod in pods}
        for known in self.pods.values():
            if known.name not in there and known.ending_s is None:
                known.ending_s = self.now_s

    def _look_at_one(self, pod: Any) -> None:
        name, spec, status = pod["metadata"]["name"], pod["spec"], pod.get("status", {})
        if status.get("reason") == "Evicted":
            raise DemoError(
                f"kubelet has evicted the pod {name} ({status.get('message', '')}): something else on this machine "
                "took memory faster than criproxy could answer. Run the demo again when it is quieter."
            )
        known = self.pods.get(name)
        if known is None:
            known = self.pods[name] = OfflinePod(name, self.now_s)
            self.tell(f"Kubernetes makes the pod {name}{_converted(spec) if len(self.pods) == 1 else ''}.")
        if not known.node and spec.get("nodeName"):
            known.node = spec["nodeName"]
            self.tell(f"The scheduler has placed {name} on {self._title(known.node)}, by {BATCH_CPU}.")
        if known.running_s is None and (container := _running(status)) and self._in_box(known.node, container):
            known.running_s = self.now_s
            self.tell(f"{name} runs, in the box of {self._title(known.node)}.", f"runs on {self._title(known.node)}")
        is_ending = pod["metadata"].get("deletionTimestamp") or status.get("phase") == "Failed"
        if known.ending_s is None and is_ending:
            known.ending_s = self.now_s

    def _in_box(self, node: str, container: str) -> bool:
        """Raises DemoError when it runs elsewhere."""
        (on,) = (one for one in self._on.nodes if one.name == node)
        pid = on.client.pid_of(container)
        if not pid:
            return False
        path = cgroup_of(pid)
        if not path.startswith(f"{on.box}/"):
            raise DemoError(f"An offline pod runs in the cgroup {path} and not in the box {on.box}.")
        return True

    def _look_at_events(self) -> None:
        if len(self.evicted) == sum(pod.ending_s is not None for pod in self.pods.values()):
            return
        for event in self._on.plane.call("GET", _EVENTS)["items"]:
            name, kind = event["involvedObject"]["name"], event["involvedObject"]["kind"]
            if event["reason"] in _GOES and kind == "Pod" and name not in self.evicted:
                self.evicted.append(name)
                self.tell(f"{_GOES[event['reason']].format(name)} {event['message']}", "evicted")

    # --- figures ----------------------------------------------------------------------------------------------------

    def _measure(self, pods: list[Any]) -> None:
        first = self._on.nodes[0]
        # A box is made with its first pod.
        now = Meter({name: path for name, path in self._cgroups.items() if exists(path)}).read()
        before, self._before = self._before, now
        if before is None:
            return
        boxes = [now.cores_since(before, node.title) if node.title in before.cpu_s else 0.0 for node in self._on.nodes]
        online, (limit, why) = now.cores_since(before, "online"), _limit(first)
        all_of_it = max(now.cores_since(before, "node"), online + sum(boxes))
        status = self._on.plane.call("GET", first.path)["status"]
        lent = status.get("allocatable", {}).get(BATCH_CPU)
        self.moments.append(
            Moment(
                t_s=self.now_s,
                online_cores=online,
                box_cores=boxes[0],
                second_cores=boxes[1],
                others_cores=all_of_it - online - sum(boxes),
                limit_cores=limit,
                lent_cores=None if lent is None else thousandths(lent),
                promised_cores=sum(_promised(pod) for pod in pods if pod["spec"].get("nodeName") == first.name),
            )
        )
        self._tell_limit(limit, why)

    def _tell_limit(self, limit: float | None, why: str) -> None:
        told = self._told_limit
        if limit is None or not self.pods:
            return
        if told is None:
            self._told_limit = limit
            return
        if abs(limit - told) < _NOTABLE_RATIO * self._on.cores:
            return
        self._told_limit = limit
        change = f"from {told:.2f} to {limit:.2f} cores: {why}."
        if limit < told:
            self.tell(f"The box of node 1 is squeezed {change}", SQUEEZED)
        else:
            self.tell(f"The box of node 1 grows {change}")


def _limit(node: ClusterNode) -> tuple[float | None, str]:
    """The CPU limit of its box, and why it is that."""
    with contextlib.suppress(LabError, ValueError, OSError):
        status = node.status()
        cpu = status.box.resources.get(CPU) if status else None
        if cpu is not None and not isinstance(cpu.limit, str):
            return cpu.limit, cpu.reason
    return None, ""


def _running(status: Mapping[str, Any]) -> str:
    """The id of a container that runs; "": it does not."""
    containers = status.get("containerStatuses", [])
    found = [one["containerID"] for one in containers if "running" in one.get("state", {})]
    return found[0].partition("://")[2] if found and status.get("phase") == "Running" else ""


def _converted(spec: Mapping[str, Any]) -> str:
    """What the webhook has made of its requests."""
    requests = spec["containers"][0]["resources"].get("requests", {})
    if BATCH_CPU not in requests:
        raise DemoError(f"The webhook has not converted an offline pod: it requests {requests}.")
    mib = int(requests[BATCH_MEMORY]) >> 20
    return (
        f": the webhook has made its requests {BATCH_CPU} {requests[BATCH_CPU]} (thousandths of a core) and "
        f"{BATCH_MEMORY} {mib} MiB, which online pods do not need"
    )


def _promised(pod: Any) -> float:
    """In cores."""
    requests = (one["resources"].get("requests", {}) for one in pod["spec"]["containers"])
    return sum(thousandths(one.get(BATCH_CPU, "0")) for one in requests)


def thousandths(text: str) -> float:
    """Cores, of a quantity of thousandths as the API server writes it: 1500, or 2k."""
    return float(text.removesuffix("k")) * (1.0 if text.endswith("k") else 0.001)
