"""kubelet's configuration, in every spelling that YAML has for it; PyYAML says what each stands for."""

import random
from typing import Any

import pytest
import yaml

from criproxy.kubelet.configuration import NotUnderstood, decoded, parsed, value_of
from tests.cost import LONGEST, assert_cheap

NULL = ("", "~", "null", "Null", "NULL")

BLOCK = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionSoft:
  memory.available: "5Gi"
evictionHard:
  # what the node needs
  imagefs.available: 15%
  memory.available: "300Mi"  # of 8 GiB

  nodefs.inodesFree: 5%
clusterDNS:
- 10.96.0.10
- "10.96.0.11"
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
evictionMinimumReclaim: {memory.available: 1Gi, b: [a, 'c d', {e: f}]}
"""

JSON = """# managed
{"kind": "KubeletConfiguration", "evictionHard": {"memory.available": "1Gi",
  "nodefs.available": "5%"}, "a": [1, 2, {"b": null}], "c": "x\\ty\\u0041"}
"""

ALL = """---
a: &x
  b: 1%
evictionHard: *x
note: |
  evictionHard:
    b: 2%
text: >-
  folded text
  here

list:
  - a: 1
    b: 2
  - - x
    - y
  -
    z: 'it''s
      long'
plain: several words
  over lines
featureGates: {A: true, "B": false}
...
"""


def of_pyyaml(text: str) -> Any:
    """Raises YAMLError, RecursionError, and ValueError for keys that no object has."""
    loader = yaml.BaseLoader(text)
    node = loader.get_node() if loader.check_node() else None
    return {} if node is None else _plain(node) or {}


def _plain(node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_plain(one) for one in node.value]
    if isinstance(node, yaml.MappingNode):
        pairs = [(_plain(key), _plain(value)) for key, value in node.value]
        if not all(isinstance(key, str) for key, _ in pairs):
            raise ValueError
        return dict(pairs)
    assert isinstance(node, yaml.ScalarNode)
    return None if node.style is None and node.value in NULL else node.value


@pytest.mark.parametrize("text", [BLOCK, JSON, ALL], ids=["block", "json", "all"])
def test_whole_files_are_read_as_a_yaml_parser_reads_them(text: str) -> None:
    assert parsed(text) == of_pyyaml(text)


def mutated(text: str, source: random.Random) -> str:
    for _ in range(source.choice((1, 1, 2, 3, 5))):
        at = source.randrange(len(text))
        lines = text.split("\n")
        line = source.randrange(len(lines))
        match source.randrange(4):
            case 0:
                text = text[:at] + source.choice("\n  :-#{}[],'\"&*|>!%ab\\.?") + text[at:]
            case 1:
                text = text[:at] + text[at + source.choice((1, 1, 2, 5)) :]
            case 2:
                text = "\n".join([*lines[:line], source.choice(("  ", " ")) + lines[line], *lines[line + 1 :]])
            case 3:
                text = "\n".join([*lines[:line], source.choice(lines), *lines[line:]])
    return text


@pytest.mark.parametrize("base", [BLOCK, JSON, ALL], ids=["block", "json", "all"])
def test_file_is_read_as_a_yaml_parser_reads_it_or_refused(base: str) -> None:
    source, read = random.Random(38), 0
    for _ in range(500):
        text = mutated(base, source)
        try:
            found = parsed(text)
        except ValueError:
            continue
        try:
            expected = of_pyyaml(text)
        except (yaml.YAMLError, ValueError, RecursionError):  # kubelet does not start with it
            continue
        understood = {key: value for key, value in found.items() if not isinstance(value, NotUnderstood)}
        assert found.keys() == expected.keys(), text
        assert understood == {key: expected[key] for key in understood}, text
        read += len(understood) == len(found)
    assert read > 100


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_file_of_any_encoding_is_read(encoding: str) -> None:
    assert parsed(decoded(BLOCK.encode(encoding))) == of_pyyaml(BLOCK)


def test_merge_gives_way_to_the_mappings_own_keys_and_to_those_before_it() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  <<: [*a, *b]\n  x: 3\n"
    assert value_of(parsed(text), "c") == {"x": "3", "y": "1", "z": "2"}


def test_tags_that_say_what_is_there_anyway_are_passed_over() -> None:
    assert parsed("a: !!map {b: !!str 1}\nc: !!seq\n- 1\n") == {"a": {"b": "1"}, "c": ["1"]}


def test_last_of_equal_keys_holds_and_the_first_document_as_with_kubelet() -> None:
    assert parsed("a: 1\na: 2\nb: {c: 1, c: 2}\n--- # more\na: 3\n") == {"a": "2", "b": {"c": "2"}}
    assert parsed("a: !odd 1\na: 2\n") == {"a": "2"}


def test_what_is_not_understood_is_an_error_and_no_absence() -> None:
    root = parsed("a: !odd 1\nb: 2\n")
    assert value_of(root, "b") == "2"
    assert value_of(root, "c") is None
    with pytest.raises(ValueError, match="a: line 1 is written in a way that criproxy does not read"):
        value_of(root, "a")


@pytest.mark.parametrize(
    "text", ["{", "[", "a: [", "- ", "a:\n ", '"', "'", "\\", "&a ", "a: &b ", "- - ", "{a: ", "a: >\n ", "#", "<<: "]
)
def test_hostile_file_costs_next_to_nothing(text: str) -> None:
    assert_cheap(lambda: parsed(text * (LONGEST // len(text))))
