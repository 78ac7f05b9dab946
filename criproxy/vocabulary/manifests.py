"""Manifests as kubectl reads them: YAML or JSON, one document or several; and where a kind has its pod. Pure.

kubectl reads JSON as such, and YAML by rules of its own: those of YAML 1.1, but for dates and numbers to the base of
60, which are texts, and for 0o777 and 1e3, which are numbers. PyYAML's are others; `meaning` has kubectl's.

Whoever sends a manifest may mean harm. A file has at most `MOST_BYTES`; a few hundred bytes of YAML can stand for more
than any machine holds (aliases of aliases), so each document is measured as it would be written out, before anything is
made of it. PyYAML's reader in C is ten times as fast, and ends the process where a document is nested deeply. The
module is handed in: nodes and cluster need it for commands alone.

Source: sigs.k8s.io/yaml, goyaml.v2/resolve.go; cli-runtime, pkg/resource/visitor.go; all tried with kubectl 1.37.
"""

import codecs
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple

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

_MAKERS: Final = frozenset({"SparkApplication", "ScheduledSparkApplication", "FlinkDeployment", "FlinkSessionJob"})
"""Others' kinds that make pods though they need name no container."""


class UnreadableManifestError(ValueError):
    """It is no YAML or JSON, or too much of it; the message says which, without the file's name."""


class ManifestDocument(NamedTuple):
    """One document: its value as JSON has it, and PyYAML's node with its very words; None: it came as JSON."""

    value: Any
    node: Any = None


def documents(data: bytes, yaml: Any) -> list[ManifestDocument]:
    """The documents of a file, without empty ones. `yaml` is PyYAML. Raises UnreadableManifestError."""
    if len(data) > MOST_BYTES:
        raise UnreadableManifestError(f"it has more than {MOST_BYTES >> 20} MiB")
    try:
        text = _decoded(data)
        found = _json(text) if text.lstrip().startswith("{") else None
        return [one for one in _yaml(text, yaml) if one.value is not None] if found is None else found
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


def makes_pods(document: Any) -> bool:
    """Whether an object of a kind that is not known here makes pods, by its look: containers are named in it."""
    below = [document] if isinstance(document, dict) else []
    if below and document.get("kind") in _MAKERS:
        return True
    while below:
        one = below.pop()
        if isinstance(one, dict):
            containers, container = one.get("containers"), one.get("container")
            if isinstance(containers, list) and any(isinstance(each, dict) for each in containers):
                return True
            if isinstance(container, dict) and "image" in container:
                return True
        below += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return False


def items_of(document: Any) -> list[Any] | None:
    """The objects of a List, or of a list of one kind, whose items need not say it; None: it is no list."""
    kind = document.get("kind") if isinstance(document, dict) else None
    items = document.get("items") if isinstance(kind, str) and kind.endswith("List") else None
    if not isinstance(items, list) or kind == "List":
        return items if isinstance(items, list) else None
    of = {"apiVersion": document.get("apiVersion"), "kind": str(kind).removesuffix("List")}
    return [{**of, **one} if isinstance(one, dict) else one for one in items]


def flattened(objects: list[Any], depth: int = MOST_DEEP) -> Iterator[Any]:
    """The objects, those of a List one by one. Raises UnreadableManifestError."""
    for one in objects:
        items = items_of(one)
        if items is None:
            yield one
        elif not depth:
            raise UnreadableManifestError(f"a List is in more than {MOST_DEEP} others")
        else:
            yield from flattened(items, depth - 1)


def called(document: Any) -> str:
    """How messages name an object: its kind and its name."""
    if not isinstance(document, dict):
        return repr(document)[:80]
    kind, meta = str(document.get("kind"))[:80], document.get("metadata")
    name = str(meta.get("name") or meta.get("generateName") or "")[:80] if isinstance(meta, dict) else ""
    return f"{kind} {name}".rstrip()


# --- text and JSON ----------------------------------------------------------------------------------------------------

_ENCODINGS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def _decoded(data: bytes) -> str:
    """As kubectl takes it: UTF-8, or what a byte order mark says."""
    mark, encoding = next((one for one in _ENCODINGS if data.startswith(one[0])), (b"", "utf-8"))
    return data[len(mark) :].decode(encoding)


def _json(text: str) -> list[ManifestDocument] | None:
    """The values of a stream of JSON; None: it is YAML that begins so. Raises ValueError for a number without end."""
    decoder, found, text = json.JSONDecoder(), [], text.strip()
    at = 0
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            return None
        found.append(ManifestDocument(value))
        while text[at : at + 1].isspace():
            at += 1
    return found


# --- YAML -------------------------------------------------------------------------------------------------------------

_WORDS: Final[Mapping[str, bool | float | None]] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_INTEGER: Final = re.compile(r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))", re.ASCII)
_BASES: Final = (16, 2, 8, 10)
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_MOST_DIGITS: Final = 70
"""Of 64 bits, with sign and prefix."""

_TAG: Final = "tag:yaml.org,2002:"
_NAMES: Final = {str: "str", bool: "bool", int: "int", float: "float", type(None): "null"}
"""YAML's, by what `meaning` returns."""


def meaning(word: str) -> str | bool | float | None:
    """What kubectl takes a plain word of YAML for, one without quotes."""
    if word in _WORDS:
        return _WORDS[word]
    plain = word.replace("_", "") if word[0] in "+-0123456789" else word
    if len(plain) < _MOST_DIGITS and (match := _INTEGER.fullmatch(plain)):
        sign, *digits = match.groups()
        found = next(int(sign + text, base) for text, base in zip(digits, _BASES, strict=True) if text is not None)
        if -(1 << 63) <= found < 1 << 64:
            return found
    if _FLOAT.fullmatch(plain) and math.isfinite(number := float(plain)):
        return number
    return word


def tag_of(word: str) -> str:
    """The tag of a plain word, by what it means; `<<` is YAML's merge."""
    return _TAG + ("merge" if word == "<<" else _NAMES[type(meaning(word))])


def _yaml(text: str, yaml: Any) -> Iterator[ManifestDocument]:
    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Takes plain words for what kubectl takes them for, and keys for texts, as JSON has them."""

        yaml_constructors: ClassVar[Any] = {
            **yaml.SafeLoader.yaml_constructors,
            **{f"{_TAG}{kind}": lambda _, node: meaning(node.value) for kind in ("bool", "float", "int", "null")},
            **{f"{_TAG}{kind}": yaml.SafeLoader.construct_scalar for kind in ("merge", "timestamp")},
        }

        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            plain = kind is yaml.ScalarNode and implicit[0]
            return tag_of(value) if plain else super().resolve(kind, value, implicit)

        def flatten_mapping(self, node: Any) -> None:
            """As PyYAML, and without the keys that others of the mapping replace: the last one holds, as in kubectl."""
            super().flatten_mapping(node)
            node.value = list({(key.tag, str(key.value)): (key, value) for key, value in node.value}.values())

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
            return {_key(key): value for key, value in super().construct_mapping(node, deep).items()}

    try:
        loader = Loader(text)
        left = MOST_NODES
        while loader.check_node():
            node = loader.get_node()
            left -= _written_out(node)
            if left < 0:
                raise UnreadableManifestError(f"written out, it has more than {MOST_NODES} values")
            yield ManifestDocument(loader.construct_document(node), node)
    except yaml.YAMLError as error:
        raise UnreadableManifestError(f"it is neither YAML nor JSON: {' '.join(str(error).split())[:300]}") from error


def _key(key: Any) -> str:
    if key is None or not isinstance(key, str | bool | int | float):
        raise UnreadableManifestError(f"a key is {str(key)[:40] if key is not None else 'null'}, which no object has")
    return str(key).lower() if isinstance(key, bool) else f"{key:g}" if isinstance(key, float) else str(key)


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
