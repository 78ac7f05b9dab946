"""`criproxy explain`: reads the manifests, looks at the node, and returns the text of the answer."""

import sys
from pathlib import Path

from criproxy.commands.explain.explain import NodeFacts, explain, render
from criproxy.commands.explain.manifest import ManifestError, read_manifests
from criproxy.commands.explain.places import places
from criproxy.config.settings import Config
from criproxy.hooks import offline_chain


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
