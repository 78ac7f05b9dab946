"""kubelet's configuration, in every spelling that YAML has for it."""

import sys
from typing import Any

import pytest

from criproxy.kubelet.configuration import parsed

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

READ: dict[str, dict[str, Any]] = {
    BLOCK: {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "evictionSoft": {"memory.available": "5Gi"},
        "evictionHard": {"imagefs.available": "15%", "memory.available": "300Mi", "nodefs.inodesFree": "5%"},
        "clusterDNS": ["10.96.0.10", "10.96.0.11"],
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "evictionMinimumReclaim": {"memory.available": "1Gi", "b": ["a", "c d", {"e": "f"}]},
    },
    JSON: {
        "kind": "KubeletConfiguration",
        "evictionHard": {"memory.available": "1Gi", "nodefs.available": "5%"},
        "a": ["1", "2", {"b": None}],
        "c": "x\tyA",
    },
    ALL: {
        "a": {"b": "1%"},
        "evictionHard": {"b": "1%"},
        "note": "evictionHard:\n  b: 2%\n",
        "text": "folded text here",
        "list": [{"a": "1", "b": "2"}, ["x", "y"], {"z": "it's long"}],
        "plain": "several words over lines",
        "featureGates": {"A": "true", "B": "false"},
    },
}


@pytest.mark.parametrize("text", READ, ids=["block", "json", "all"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_file_of_any_spelling_and_encoding_is_read(text: str, encoding: str) -> None:
    assert parsed(text.encode(encoding)) == READ[text]
    assert parsed(text.replace("\n", "\r\n").encode(encoding)) == READ[text]


def test_json_may_be_indented_by_tabs() -> None:
    assert parsed(b'{\n\t"a":\t{\n\t\t"b": "1"\n\t}\n}\n') == {"a": {"b": "1"}}


def test_merge_gives_way_to_the_mappings_own_keys_and_to_those_before_it() -> None:
    text = b"a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  <<: [*a, *b]\n  x: 3\n"
    assert parsed(text)["c"] == {"x": "3", "y": "1", "z": "2"}


def test_tags_are_passed_over() -> None:
    assert parsed(b"a: !!map {b: !!str 1}\nc: !!seq\n- !odd 1\n") == {"a": {"b": "1"}, "c": ["1"]}


def test_last_of_equal_keys_holds_and_the_first_document_as_with_kubelet() -> None:
    assert parsed(b"a: 1\na: 2\nb: {c: 1, c: 2}\n--- # more\na: 3\n") == {"a": "2", "b": {"c": "2"}}


@pytest.mark.parametrize("data", [b"", b"# nothing\n", b"---\n", b"null\n", b"--- # a\n...\n"])
def test_empty_file_says_nothing(data: bytes) -> None:
    assert parsed(data) == {}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"a: b: c\n", "no YAML .line 1.*mapping values are not allowed"),
        (b"a: [1\n", "no YAML"),
        (b"a: *b\n", "undefined alias"),
        (b"\xff\xfe\xff", "no YAML"),
        (b"a: \0\n", "no YAML"),
        (b"- a\n", "no mapping"),
        (b"a\n", "no mapping"),
        (b"{a: 1}: 2\n", "line 1 has a key that is no text"),
        (b"<<: 1\n", "line 1 merges what is no mapping"),
        (b"[" * 10_000, "nested too deeply"),
        (b"a: &a {b: *a}\n", "nested too deeply"),
        (b"#" * 300_000, "300000 bytes"),
    ],
)
def test_what_is_not_understood_is_an_error_and_no_absence(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parsed(data)


def test_aliases_of_aliases_cost_what_they_have_in_characters() -> None:
    bomb = "a0: &a0 x\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 60))
    assert len(parsed(bomb.encode())) == 60


def test_file_where_yaml_is_no_more_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ValueError, match="install PyYAML"):
        parsed(b"what: was never read\n")
