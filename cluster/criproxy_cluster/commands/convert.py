"""`criproxy-cluster convert FILE`: what the webhook would make of the pods in a manifest, without a cluster.

What stays is written with the words and quotes that its author has written, and what is new has quotes around each
text: no reader of YAML takes it for something else. PyYAML's nodes keep words and quotes, and `comments` the comments;
ruamel.yaml would keep all, for 1.4 MB more in each replica's image.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import yaml

from criproxy_cluster.commands.comments import carried
from criproxy_cluster.commands.manifests import ManifestError, read_documents
from criproxy_cluster.objects import Json
from criproxy_cluster.vocabulary.manifests import (
    MOST_DEEP,
    ManifestDocument,
    UnreadableManifestError,
    called,
    documents,
    items_of,
    makes_pods,
    pod_of,
    tag_of,
)
from criproxy_cluster.vocabulary.names import CLASS, OFFLINE
from criproxy_cluster.webhook.conversion import ConversionError, ConversionSettings, converted, is_offline, warnings

_TEXT: Final = "tag:yaml.org,2002:str"
_NULL: Final = "tag:yaml.org,2002:null"
_BREAKS: Final = frozenset("\x85\u2028\u2029\ufeff")
"""PyYAML takes these for the ends of lines, or for nothing, and kubectl for what they are."""
_WIDTH: Final = 1 << 20
"""Longer than any line: kubectl reads what is folded, but people compare lines."""


def convert(file: str, settings: ConversionSettings) -> tuple[str, tuple[str, ...]]:
    """The manifest as YAML, and what its author should know. "-" is the standard input. Raises ManifestError."""
    notes: list[str] = []
    nodes = []
    read = read_documents(file)
    for document in read:
        made = _object(file, document.value, settings, notes)
        old = _node(document.value) if document.node is None else document.node
        nodes.append(_changed(old, document.value, made))
    text = yaml.serialize_all(nodes, Dumper=_Writer, allow_unicode=True, width=_WIDTH)
    return _with_comments(text, read), tuple(notes)


def _with_comments(text: str, read: Sequence[ManifestDocument]) -> str:
    """The comments of what was read stay, unless they would change what is said."""
    before = [document.node for document in read if document.node is not None]
    if len(before) < len(read):
        return text
    made = documents(text.encode(), yaml)
    found = carried(before, text, [document.node for document in made])
    try:
        same = [one.value for one in documents(found.encode(), yaml)] == [one.value for one in made]
    except UnreadableManifestError:
        same = False
    return found if same else text


def _object(file: str, value: Any, settings: ConversionSettings, notes: list[str], depth: int = MOST_DEEP) -> Any:
    if not isinstance(value, dict):
        raise ManifestError(f"{file}: {str(value)[:40]!r} is no object: write apiVersion, kind and metadata")
    shown = f"{file}: {called(value)}"
    if (items := items_of(value)) is not None:
        if not depth:
            raise ManifestError(f"{file}: a List is in more than {MOST_DEEP} others: take its objects out")
        made = [_object(file, item, settings, notes, depth - 1) for item in items]
        own = [{key: new[key] for key in old} for old, new in zip(value["items"], made, strict=True)]
        return {**value, "items": own}
    if (steps := pod_of(value)) is None:
        if makes_pods(value):
            notes.append(f"{shown}: it stays as it is; the webhook converts its pods when they are made")
        return value
    try:
        return _below(value, steps, shown, settings, notes)
    except ConversionError as error:
        raise ManifestError(f"{shown}: {'.'.join((*steps, ''))}{error}") from error


def _below(place: Json, steps: tuple[str, ...], shown: str, settings: ConversionSettings, notes: list[str]) -> Json:
    """`place` with the pod that is found by these steps converted."""
    if steps:
        inner = place.get(steps[0])
        if not isinstance(inner, dict):
            raise ConversionError(steps[0], "it is missing", "write the pod's template")
        return {**place, steps[0]: _below(inner, steps[1:], shown, settings, notes)}
    if not is_offline(place):
        notes.append(f"{shown}: it is not offline and stays as it is; the label {CLASS}: {OFFLINE} makes it so")
    notes.extend(f"{shown}: {words}" for words in warnings(place, settings))
    return converted(place, settings)


def lines(notes: tuple[str, ...]) -> Iterator[str]:
    """As they are shown, beside the manifest."""
    return (f"criproxy-cluster: {note}" for note in notes)


# --- writing ----------------------------------------------------------------------------------------------------------


class _Writer(yaml.SafeDumper):
    """Writes a word without quotes where kubectl takes it for what its node says it is, and aliases as what they are.

    Two places that shared a node may differ now. The reader has measured how much it is, written out.
    """

    def anchor_node(self, node: yaml.Node) -> None:
        pass

    def serialize_node(self, node: yaml.Node, parent: Any, index: Any) -> None:
        shown = node
        if isinstance(node, yaml.ScalarNode) and node.tag == _NULL:
            shown = yaml.ScalarNode(_NULL, "null")  # within braces, nothing at all would be a text
        elif isinstance(node, yaml.ScalarNode) and _BREAKS.intersection(node.value):
            shown = yaml.ScalarNode(node.tag, node.value, style='"')
        self.serialized_nodes, self.anchors = {}, {shown: None}
        super().serialize_node(shown, parent, index)

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and implicit[0]:
            return tag_of(value)
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]


def _changed(node: yaml.Node, old: Any, new: Any) -> yaml.Node:
    """The node of `new`; what is as in `old`, of which `node` is, stays as it is written."""
    if old is new:
        return node
    if isinstance(node, yaml.MappingNode) and isinstance(old, dict) and isinstance(new, dict):
        names = [str(key.value) for key, _ in node.value]
        if set(names) == old.keys():
            kept = zip(names, node.value, strict=True)
            pairs = [(key, _changed(value, old[name], new[name])) for name, (key, value) in kept if name in new]
            added = _node({name: value for name, value in new.items() if name not in old})
            return yaml.MappingNode(node.tag, pairs + added.value, flow_style=node.flow_style and bool(node.value))
    elif isinstance(node, yaml.SequenceNode) and isinstance(old, list) and isinstance(new, list):
        items = [_changed(*each) for each in zip(node.value, old, new, strict=False)] + [
            _node(one) for one in new[len(old) :]
        ]
        return yaml.SequenceNode(node.tag, items, flow_style=node.flow_style)
    return node if type(old) is type(new) and old == new else _node(new)


def _node(value: Any) -> yaml.Node:
    """Of what JSON may hold: each text has quotes, and each key that needs them."""
    if isinstance(value, dict):
        pairs = [(yaml.ScalarNode(_TEXT, name), _node(below)) for name, below in value.items()]
        return yaml.MappingNode("tag:yaml.org,2002:map", pairs, flow_style=not pairs)
    if isinstance(value, list):
        return yaml.SequenceNode("tag:yaml.org,2002:seq", [_node(one) for one in value], flow_style=not value)
    if isinstance(value, str):
        return yaml.ScalarNode(_TEXT, value, style='"')
    word = json.dumps(value)
    return yaml.ScalarNode(tag_of(word), word)
