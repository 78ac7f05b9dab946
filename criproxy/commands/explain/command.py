"""`criproxy explain`: reads the manifests, looks at the node, and returns the text of the answer.

Where kubelet makes its cgroups is known by the pods that the running criproxy sees, or by kubelet's settings.
"""

import contextlib
import sys
from pathlib import Path

from criproxy.cgroup.naming import DEFAULT_BOXES, BoxPath, parse_box
from criproxy.commands.explain.explain import NodeFacts, explain, render
from criproxy.commands.explain.manifest import ManifestError, read_manifests
from criproxy.config.settings import Config
from criproxy.kubelet.process import cgroup_driver
from criproxy.observe import client
from criproxy.observe.status import from_json
from criproxy.observe.status_text import printable
from criproxy.vocabulary.manifests import MOST_BYTES

_ANSWER_S = 3.0


def run(pod: str, config: Config) -> str:
    """What would happen to the pods of a manifest, a file or - for standard input. Raises ValueError for no pod."""
    try:
        read = read_manifests(_content(pod))
    except ManifestError as error:
        raise ValueError(f"{pod}: {error}") from error
    except OSError as error:
        raise ValueError(f"{pod}: {error.strerror}; give a Pod manifest in JSON or YAML") from error
    boxes, origin = places(Path(config.proxy.status_path))
    nodes = [
        NodeFacts(
            enabled=config.colocation.enabled,
            rules=config.colocation.offline_rules(),
            box=box,
            origin=origin,
            hooks=config.hooks(child_quota=Path("/sys/fs/cgroup/cgroup.controllers").exists()),
            by_nri=config.proxy.front == "nri",
        )
        for box in boxes
    ]
    texts = ([render(manifest, explain(manifest, node), node) for node in nodes] for manifest in read.pods)
    found = [text for each in texts for text in dict.fromkeys(each)]  # an online pod's are the same
    return "\n".join((*found, *(f"{printable(words)}\n" for words in read.passed_over)))


def _content(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read(MOST_BYTES + 1)
    with Path(file).open("rb") as opened:
        return opened.read(MOST_BYTES + 1)


def places(asked_at: Path, root: Path = Path("/")) -> tuple[tuple[BoxPath, ...], str]:
    """The box beside kubelet's cgroups, or one for each driver that kubelet may have; and how that is known.

    It is that of the node whose criproxy answers at that socket.
    """
    with contextlib.suppress(client.AskError, ValueError):
        status = from_json(client.ask(asked_at, "/status", _ANSWER_S))
        if status.box.path is not None:
            return (parse_box(status.box.path),), "as its pods show"
        if boxes := _by_name(status.cgroup.driver or ""):
            return boxes, "as its pods show"
    driver, origin = cgroup_driver(root)
    if boxes := _by_name(driver):
        return boxes, f"by {origin}"
    why = origin if not driver and origin else "neither a running criproxy nor kubelet's configuration says so"
    return DEFAULT_BOXES, f"if that is kubelet's: {why}"


def _by_name(driver: str) -> tuple[BoxPath, ...]:
    return tuple(box for box in DEFAULT_BOXES if box.driver == driver)
