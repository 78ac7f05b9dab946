"""Looks at the executors of an application twice a second, and tells each change in a line."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from integration.demo import DemoError
from integration.demo.cluster.stage import Cluster
from integration.demo.cluster.watch import running_container
from integration.demo.node import cgroup_of, check_alive, check_in_box
from integration.demo.place import say
from integration.lab.control_plane import ApiError
from integration.lab.process import LabError
from integration.lab.spark import Application

EVERY_S: Final = 0.5
_EVICTED: Final = ("EvictedByColocation", "StoppedByColocation")
"""The events of a pod that criproxy has had go."""


@dataclass
class Watch:
    """What is known of one application's executors, by their pods' names. `offline`: they are to run in the box.

    `running` are containers by pod, of those that run and are not to go; `evicted` are those that criproxy had go.
    """

    on: Cluster
    app: Application
    begin_s: float
    offline: bool
    running: dict[str, str] = field(default_factory=dict)
    ran: dict[str, str] = field(default_factory=dict)
    evicted: dict[str, str] = field(default_factory=dict)

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.begin_s

    def tell(self, text: str) -> None:
        say(f"{self.now_s:6.1f} s  {text}")

    def until(self, condition: Callable[[], object], longest_s: float, what: str) -> None:
        """Look on until `condition` holds. Raises DemoError when it does not in time, or the driver fails."""
        end_s = self.now_s + longest_s
        while not condition():
            if self.now_s > end_s:
                raise DemoError(f"Waited {longest_s:.0f} s in vain for {what}: run the demo on a quieter machine.")
            self.look()

    def ended(self) -> bool:
        """Whether the driver has. Raises DemoError when it has failed."""
        (phase,) = (
            one["status"].get("phase") for one in self.on.items("pods") if one["metadata"]["name"] == self.app.driver
        )
        if phase == "Failed":
            raise DemoError(f"Spark's driver has failed; the end of its log:\n{self.app.complaints()}")
        return bool(phase == "Succeeded")

    def look(self) -> None:
        """Take one look, at its time. Raises DemoError when a part of the cluster has ended, or the driver failed."""
        time.sleep(EVERY_S - self.now_s % EVERY_S)
        check_alive(self.on.parts)
        with contextlib.suppress(ApiError, LabError, OSError):  # the next look sees it
            self.ended()
            there = {pod["metadata"]["name"]: pod for pod in self.app.executors()}
            for name, pod in there.items():
                self._look_at(name, pod)
            for name in self.running.keys() - there.keys():
                del self.running[name]
            self._look_at_events()

    def _look_at(self, name: str, pod: Any) -> None:
        container = running_container(pod.get("status", {}))
        if not container or pod["metadata"].get("deletionTimestamp"):
            self.running.pop(name, None)
            return
        if name not in self.ran:
            node = pod["spec"]["nodeName"]
            (on,) = (one for one in self.on.nodes if one.kubelet.node == node)
            if not (pid := on.client.pid_of(container)):
                return
            if self.offline:
                check_in_box(cgroup_of(pid), on.box)
            self.ran[name] = on.title
            self.tell(f"The executor {name} runs{', in the box of' if self.offline else ' on'} {on.title}.")
        self.running[name] = container

    def _look_at_events(self) -> None:
        for event in self.on.items("events"):
            name = event["involvedObject"]["name"]
            if event["reason"] in _EVICTED and name in self.ran and name not in self.evicted:
                self.evicted[name] = event["message"]
                self.tell(f"criproxy has {name} go. {event['message']}")
