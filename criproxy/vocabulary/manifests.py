"""Manifests as kubectl reads them: YAML or JSON, one document or several; and where a kind has its pod. Pure.

Whoever sends a manifest may mean harm. A file has at most `MOST_BYTES`; a few hundred bytes of YAML can stand for more
than any machine holds (aliases of aliases), so each document is measured as it would be written out, before anything is
made of it. PyYAML's reader in C is ten times as fast, and ends the process where a document is nested deeply. The
module is handed in: nodes and cluster need it for commands alone.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

MOST_BYTES: Final = 2 << 20
MOST_NODES: Final = 500_000
"""Of a document, written out: values, keys, lists and tables."""

MOST_DEEP: Final = 8
"""Lists in lists."""

TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    "Pod": (),
    "PodTemplate": ("template",),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    **dict.fromkeys(
        ("DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"), ("spec", "template")
    ),
}
"""Where a kind of Kubernetes' own has its pod."""

_GROUPS: Final = frozenset({"", "apps", "batch", "extensions"})
"""Kubernetes' own groups that have these kinds. Others have kinds of the same names, and another form."""


class UnreadableManifestError(ValueError):
    """It is no YAML or JSON, or too much of it; the message says which, without the file's name."""


def documents(data: bytes, yaml: Any) -> list[Any]:
    """The documents of a file, without empty ones. `yaml` is PyYAML. Raises UnreadableManifestError."""
    if len(data) > MOST_BYTES:
        raise UnreadableManifestError(f"it has more than {MOST_BYTES >> 20} MiB")
    try:
        if data.lstrip()[:1] == b"{":
            with contextlib.suppress(ValueError):  # then it is YAML that begins so
                return [json.loads(data)]
        return [document for document in _documents(data, yaml) if document is not None]
    except RecursionError as error:
        raise UnreadableManifestError("it is nested too deeply") from error
    except UnreadableManifestError:
        raise
    except ValueError as error:
        raise UnreadableManifestError(f"it is neither YAML nor JSON: {' '.join(str(error).split())[:300]}") from error


def pod_of(document: Any) -> tuple[str, ...] | None:
    """By which keys the pod of an object is found; None: its kind has none that is known."""
    if not isinstance(document, dict):
        return None
    group, slash, _ = str(document.get("apiVersion") or "").partition("/")
    return TEMPLATES.get(str(document.get("kind"))) if (group if slash else "") in _GROUPS else None


def flattened(documents: list[Any], depth: int = MOST_DEEP) -> Iterator[Any]:
    """The objects, those of a List one by one. Raises UnreadableManifestError."""
    for document in documents:
        kind = document.get("kind") if isinstance(document, dict) else None
        items = document.get("items") if kind in ("List", "PodList") else None
        if not isinstance(items, list):
            yield document
        elif not depth:
            raise UnreadableManifestError(f"a List is in more than {MOST_DEEP} others")
        else:  # the items of a PodList carry no kind of their own
            of = [{"kind": "Pod", **one} if kind == "PodList" and isinstance(one, dict) else one for one in items]
            yield from flattened(of, depth - 1)


def _documents(data: bytes, yaml: Any) -> Iterator[Any]:
    def number(loader: Any, node: Any) -> Any:
        if ":" in node.value:
            return loader.construct_scalar(node)
        return yaml.SafeLoader.yaml_constructors[node.tag](loader, node)

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Reads plain words as kubectl does: 53:53 is no number to the base of 60, 2024-01-01 no date, but texts."""

        yaml_constructors: ClassVar[Any] = {
            **yaml.SafeLoader.yaml_constructors,
            **{f"tag:yaml.org,2002:{kind}": number for kind in ("int", "float")},
            **{
                f"tag:yaml.org,2002:{kind}": yaml.SafeLoader.construct_scalar for kind in ("timestamp", "value")
            },  # "value": a plain =
        }

    try:
        loader = Loader(data)
        left = MOST_NODES
        while loader.check_node():
            node = loader.get_node()
            left -= _written_out(node)
            if left < 0:
                raise UnreadableManifestError(f"written out, it has more than {MOST_NODES} values")
            yield loader.construct_document(node)
    except yaml.YAMLError as error:
        raise UnreadableManifestError(f"it is neither YAML nor JSON: {' '.join(str(error).split())[:300]}") from error


def _written_out(root: Any) -> int:
    """How many nodes a document has, each alias as what it stands for. Raises UnreadableManifestError if endless."""
    sizes: dict[int, int] = {}
    open_nodes, stack = set[int](), [(root, False)]
    while stack:
        node, is_done = stack.pop()
        below = _below(node)
        if is_done:
            open_nodes.discard(id(node))
            sizes[id(node)] = min(MOST_NODES + 1, 1 + sum(sizes[id(one)] for one in below))
        elif id(node) in open_nodes:
            raise UnreadableManifestError("an alias stands for what it is in")
        elif id(node) not in sizes:
            open_nodes.add(id(node))
            stack.append((node, True))
            stack += [(one, False) for one in below]
    return sizes[id(root)]


def _below(node: Any) -> list[Any]:
    if isinstance(node.value, str):
        return []
    return [one for pair in node.value for one in (pair if isinstance(pair, tuple) else (pair,))]
