"""What a KubeletConfiguration says, in the spellings of YAML and JSON that Kubernetes' own reader takes.

Texts stay as they are written: what a plain word means, its reader knows. As with kubelet, the last of several equal
keys holds, and the first of several documents. A file that is not understood is an error, and never "not there": a
threshold that is overlooked is kubelet's default instead of what the node needs.

Source: yaml.org/spec/1.1; kubelet, pkg/kubelet/kubeletconfig/util/codec.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from criproxy.concurrency.pyyaml import pyyaml

YamlValue = str | None | dict[str, "YamlValue"] | list["YamlValue"]

TRUE: Final = frozenset(("true", "True", "TRUE", "y", "Y", "yes", "Yes", "YES", "on", "On", "ON"))
"""Plain words that are so."""

_NULL: Final = frozenset(("", "~", "null", "Null", "NULL"))
_MERGE: Final = "<<"
_MOST_BYTES: Final = 256 * 1024
"""Each field that kubelet has takes some 20 KiB."""
_REMEMBERED: Final = 8
"""Files of a node: they are read again and again."""


@lru_cache(_REMEMBERED)
def parsed(data: bytes) -> Mapping[str, YamlValue]:
    """The file's mapping, empty for an empty file. Raises ValueError for what is none, or is not understood."""
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it has {len(data)} bytes, and criproxy reads {_MOST_BYTES} at most")
    try:
        with pyyaml() as yaml:
            try:
                # To Kubernetes' parser, tabs are blanks in JSON; to PyYAML, they are an error.
                loader = yaml.BaseLoader(data.replace(b"\t", b" "))
                node = loader.get_node() if loader.check_node() else None
                found = _Values(yaml).of(node) if node is not None else None
            except yaml.YAMLError as error:
                mark = getattr(error, "problem_mark", None)
                raise ValueError(f"it is no YAML{f' (line {mark.line + 1})' if mark else ''}: {error}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ImportError as error:
        raise ValueError(f"it can't be read, as {error}: install PyYAML, and restart criproxy") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ValueError("it is no mapping")
    return found


class _Values:
    """Of nodes, each once, however many aliases it has."""

    def __init__(self, yaml: Any) -> None:
        self._yaml = yaml
        self._made: dict[int, YamlValue] = {}

    def of(self, node: Any) -> YamlValue:
        if id(node) not in self._made:
            self._made[id(node)] = self._value(node)
        return self._made[id(node)]

    def _value(self, node: Any) -> YamlValue:
        if isinstance(node, self._yaml.SequenceNode):
            return [self.of(one) for one in node.value]
        if isinstance(node, self._yaml.MappingNode):
            return self._mapping(node)
        text: str = node.value
        return None if node.style is None and text in _NULL else text

    def _mapping(self, node: Any) -> dict[str, YamlValue]:
        """A merge gives way to the mapping's own keys, and to those that are merged before it."""
        own: dict[str, YamlValue] = {}
        merged: dict[str, YamlValue] = {}
        for at, value in node.value:
            key = self.of(at)
            if key == _MERGE and at.style is None:
                found = self.of(value)
                for one in found if isinstance(found, list) else [found]:
                    if not isinstance(one, dict):
                        raise ValueError(f"line {at.start_mark.line + 1} merges what is no mapping")
                    merged = one | merged
            elif isinstance(key, str):
                own[key] = self.of(value)
            else:
                raise ValueError(f"line {at.start_mark.line + 1} has a key that is no text")
        return merged | own
