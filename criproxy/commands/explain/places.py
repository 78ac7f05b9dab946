"""Where this node's kubelet makes its cgroups: the running criproxy knows by its pods, else kubelet's settings tell."""

from pathlib import Path

from msgspec import Struct

from criproxy.cgroup.naming import BOX, BoxPath, Driver, parse_box
from criproxy.kubelet.process import cgroup_driver
from criproxy.observe import client
from criproxy.observe.status import from_json

_ANSWER_S = 3.0

DEFAULT_BOXES = (BoxPath(Driver.CGROUPFS, f"/{BOX}"), BoxPath(Driver.SYSTEMD, f"{BOX}.slice"))
"""Where the box is, by driver, when kubelet has no cgroup root of its own."""


class Places(Struct, frozen=True):
    """The boxes that there may be beside kubelet's cgroups: one, or one for each driver. `origin`: who says so."""

    boxes: tuple[BoxPath, ...]
    origin: str


def places(asked_at: Path, root: Path = Path("/")) -> Places:
    """Of the node whose criproxy is asked at that socket."""
    return _of_criproxy(asked_at) or _of_kubelet(root) or Places(DEFAULT_BOXES, "")


def _of_criproxy(asked_at: Path) -> Places | None:
    try:
        status = from_json(client.ask(asked_at, "/status", _ANSWER_S))
        if status.box.path is not None:
            return Places((parse_box(status.box.path),), "as its pods show")
    except (client.NotRunningError, client.NotAllowedError, client.BusyError, client.NotCriproxyError, ValueError):
        return None
    return _by_name(status.cgroup.driver or "", "as its pods show")


def _of_kubelet(root: Path) -> Places | None:
    driver, origin = cgroup_driver(root)
    return _by_name(driver, f"by {origin}")


def _by_name(driver: str, origin: str) -> Places | None:
    found = tuple(box for box in DEFAULT_BOXES if box.driver == driver)
    return Places(found, origin) if found else None
