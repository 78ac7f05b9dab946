"""Manifests that mean harm are refused in a moment, whatever they would stand for."""

import time

import pytest
import yaml

from criproxy.vocabulary.manifests import MOST_BYTES, UnreadableManifestError, documents, flattened


def doubled(first: str, line: str, levels: int = 30) -> str:
    """Each line stands for twice the one before it."""
    return first + "".join(line.format(this=n, before=n - 1) for n in range(1, levels))


HOSTILE = {
    "aliases": doubled("a0: &a0 [x]\n", "a{this}: &a{this} [*a{before}, *a{before}]\n"),
    "lists": doubled(
        "kind: List\nitems:\n- &a0 {kind: Pod}\n",
        "- &a{this} {{kind: List, items: [*a{before}, *a{before}]}}\n",
    ),
    "merges": doubled("a0: &a0 {x: 1}\n", "a{this}: &a{this} {{<<: [*a{before}, *a{before}]}}\n"),
    "itself": "&a {kind: List, items: [*a]}",
    "deep": "[" * 100_000,
    "deep block": "- " * 100_000,
    "deep keys": "? " * 50_000,
    "deep JSON": '{"a":' * 100_000,
    "deep lists": '{"kind":"List","items":[' * 20 + "]}" * 20,
    "digits": '{"a":' + "1" * 1_000_000 + "}",
    "long": " " * (MOST_BYTES + 1),
    "control characters": "\0" * 100,
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_manifest_is_refused_in_a_moment(text: str) -> None:
    began_s = time.thread_time()
    with pytest.raises(UnreadableManifestError):
        list(flattened([one.value for one in documents(text.encode(), yaml)]))
    assert time.thread_time() - began_s < 5.0


def test_aliases_that_stand_for_little_are_read() -> None:
    text = b"a: &a {x: 1}\nb: {<<: *a, z: 2}\nc: [*a, *a]\n"
    assert [one.value for one in documents(text, yaml)] == [
        {"a": {"x": 1}, "b": {"x": 1, "z": 2}, "c": [{"x": 1}, {"x": 1}]}
    ]
