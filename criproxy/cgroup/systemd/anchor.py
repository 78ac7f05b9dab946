"""Anchors: empty slices of ours beside kubelet's pod slices, which keep the controllers of these (cgroup v2, systemd).

At each sync kubelet kills a pod whose own slice has lost a controller. Systemd takes cpuset away from slices of which
none asks for it; ordinary pods ask for it through their scopes, but an offline pod's scopes are in the box. So each
slice of kubelet's that such a pod came from gets one child that asks: a slice with AllowedCPUs=, in which nothing runs.

Source: kubernetes/pkg/kubelet/cm/cgroup_manager_linux.go, Validate; systemd/src/core/cgroup.c, unit_get_members_mask.
"""

from typing import Final

from msgspec import Struct

from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.naming import child_of, directory_of, parse_box
from criproxy.cgroup.systemd.units import SystemdUnits
from criproxy.cgroup.tree import Tree, if_there
from criproxy.model.cpulist import mask_of, parse_cpus

ANCHOR: Final = "criproxy"
"""What the anchor of kubelet's slice is called in it."""

_CPUS: Final = "cpuset.cpus"
_EFFECTIVE: Final = "cpuset.cpus.effective"


class Anchors(Struct, frozen=True):
    """`mount`: where the unified hierarchy is mounted."""

    mount: str
    tree: Tree
    units: SystemdUnits

    def keep(self, box: str, pods: tuple[str, ...]) -> tuple[str, ...]:
        """Have an anchor wherever kubelet has the slice of one of `pods`, and nowhere else; returns the units changed.

        The slices of kubelet's themselves are looked at only: so it holds whatever they do. Raises CgroupError.
        """
        if not self.tree.exists(f"{self.mount}/{_EFFECTIVE}"):
            return ()  # no cpuset at all: kubelet then asks for none
        changed = []
        for parent in parse_box(box).online_parents:
            anchor = child_of(parent, ANCHOR)
            if any(self.tree.exists(self._directory(child_of(parent, pod))) for pod in pods):
                if not self._holds(anchor):
                    self._start(anchor, parent)
                    changed.append(anchor)
            elif self.tree.exists(self._directory(anchor)):
                self.units.stop(anchor)
                changed.append(anchor)
        return tuple(changed)

    def _start(self, anchor: str, parent: str) -> None:
        self.units.start(anchor, {"AllowedCPUs": mask_of({self._cpu(parent)})})
        if not self._holds(anchor):
            raise CgroupError(
                f"{self._directory(anchor)}/{_CPUS} is empty right after {anchor} was given a CPU: kubelet would kill "
                f"offline pods of {parent}; see systemctl status {anchor}"
            )

    def _holds(self, anchor: str) -> bool:
        with if_there():
            return self.tree.read(f"{self._directory(anchor)}/{_CPUS}") != ""
        return False

    def _cpu(self, parent: str) -> int:
        """A CPU that a child of `parent` can have: one of the next above it that has the controller."""
        directory = self._directory(parent)
        while directory != self.mount and not self.tree.exists(f"{directory}/{_EFFECTIVE}"):
            directory = directory.rpartition("/")[0]
        return min(parse_cpus(self.tree.read(f"{directory}/{_EFFECTIVE}")))

    def _directory(self, unit: str) -> str:
        return self.mount + directory_of(unit)
