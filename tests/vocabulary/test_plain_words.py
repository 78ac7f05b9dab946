"""Plain words are what kubectl takes them for, wherever they stand."""

import math

import pytest
import yaml

from criproxy.vocabulary.manifests import documents, meaning
from tests.vocabulary.plain_words import MEANINGS, NO_JSON


@pytest.mark.parametrize("word", [*MEANINGS, *NO_JSON])
def test_plain_word_is_what_kubectl_takes_it_for(word: str) -> None:
    expected = {**MEANINGS, **NO_JSON}[word]
    found = meaning(word)
    assert found == expected
    assert isinstance(found, bool) == isinstance(expected, bool)
    assert isinstance(found, str) == isinstance(expected, str)


def test_no_number_is_none() -> None:
    assert all(isinstance(found := meaning(word), float) and math.isnan(found) for word in (".nan", ".NaN", ".NAN"))


@pytest.mark.parametrize("word", [word for word, value in MEANINGS.items() if value is not None])
def test_file_has_it_as_value_as_item_and_in_quotes(word: str) -> None:
    data = f"a: {word}\nb:\n- {word}\nc: '{word}'\nd: !!str {word}\n".encode()
    (found,) = documents(data, yaml)
    assert found.value == {"a": meaning(word), "b": [meaning(word)], "c": word, "d": word}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("on: 1\n8: 2\n0o10: 3\n1.5: 4\n", {"true": 1, "8": 3, "1.5": 4}, id="keys-are-texts"),
        pytest.param("a: 1\na: 2\n", {"a": 2}, id="the-last-one-holds"),
        pytest.param("a: &a {x: 1}\nb: {x: 2, <<: *a}\n", {"a": {"x": 1}, "b": {"x": 2}}, id="own-keys-go-first"),
        pytest.param('\ufeff{\t"a": "\\ud83d\\ude00 \\/"}', {"a": "\U0001f600 /"}, id="json-with-a-mark"),
    ],
)
def test_objects_are_as_json_has_them(text: str, expected: object) -> None:
    for data in (text.encode(), text.removeprefix("\ufeff").encode("utf-16")):
        assert [one.value for one in documents(data, yaml)] == [expected]


def test_stream_of_json_has_several_documents() -> None:
    assert [one.value for one in documents(b'{"a": 1}\n{"a": 2} {}', yaml)] == [{"a": 1}, {"a": 2}, {}]
