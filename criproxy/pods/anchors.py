"""Keeps what kubelet's own cgroups of the box's pods need there: on systemd and cgroup v2, a slice vanishes otherwise.

Kubelet looks at them about each minute, and kills a pod whose cgroup it finds gone.
"""

from msgspec import Struct

from criproxy.cgroup.box import Box
from criproxy.cgroup.naming import is_slice
from criproxy.pods.part import Part, Ports
from criproxy.pods.shared import PodsShared


class AnchorKeeping(Part, Struct, eq=False):
    """Whether or not the box's limits are criproxy's to set. See `CgroupDriver.keep_anchors`."""

    NAME = "keeping the slices that kubelet looks for"
    EVERY_S = 0.5
    SLACK_S = 1.0  # there is a tick of the control loop within that, so that this needs no wake-up of its own

    shared: PodsShared
    box: Box

    @classmethod
    def made(cls, ports: Ports) -> "AnchorKeeping":
        return cls(ports.shared, ports.box)

    async def look(self) -> None:
        path = self.box.path
        if self.box.version != 2 or path is None or not is_slice(path):
            return
        if changed := await self.box.writes("keep anchors", lambda driver, box: driver.keep_anchors(box)):
            self.shared.log.info("anchors_changed", slices=list(changed))
