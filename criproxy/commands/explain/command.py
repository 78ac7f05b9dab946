"""`criproxy explain`: reads the manifests, looks at the node, and returns the text of the answer.

Where kubelet makes its cgroups is known by the pods that the running criproxy sees, or by kubelet's settings.
"""

import sys
from pathlib import Path

from msgspec import Struct

from criproxy.cgroup.naming import BOX, BoxPath, parse_box
from criproxy.commands.explain.explain import NodeFacts, explain, render
from criproxy.commands.explain.manifest import ManifestError, read_manifests
from criproxy.config.settings import Config
from criproxy.hooks import offline_chain
from criproxy.kubelet.process import cgroup_driver
from criproxy.observe import client
from criproxy.observe.status import from_json

_ANSWER_S = 3.0

DEFAULT_BOXES = (BoxPath(f"/{BOX}"), BoxPath(f"{BOX}.slice"))
"""Where the box is, by driver, when kubelet has no cgroup root of its own."""


def run(pod: str, config: Config) -> str:
    """What would happen to the pods of a manifest, a file or - for standard input. Raises ValueError for no pod."""
    try:
        text = sys.stdin.read() if pod == "-" else Path(pod).read_text(encoding="utf-8")
        manifests = read_manifests(text)
    except ManifestError as error:
        raise ValueError(f"{pod}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{pod}: {error}; give a Pod manifest in JSON or YAML") from error
    found = places(Path(config.proxy.status_path))
    node = NodeFacts(
        enabled=config.colocation.enabled,
        rules=config.colocation.offline_rules(),
        chain=offline_chain(),
        child_quota=Path("/sys/fs/cgroup/cgroup.controllers").exists(),
        boxes=found.boxes,
        origin=found.origin,
    )
    return "\n".join(render(manifest, explain(manifest, node), node) for manifest in manifests)


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
    except (client.AskError, ValueError):
        return None
    return _by_name(status.cgroup.driver or "", "as its pods show")


def _of_kubelet(root: Path) -> Places | None:
    driver, origin = cgroup_driver(root)
    return _by_name(driver, f"by {origin}")


def _by_name(driver: str, origin: str) -> Places | None:
    found = tuple(box for box in DEFAULT_BOXES if box.driver == driver)
    return Places(found, origin) if found else None
