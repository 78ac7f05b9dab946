"""Words as systemd reads them."""

import shlex
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.commands.attach.words import expand, parse_environment, quoted, split_words

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Cs"]))
NAMES = st.text(string.ascii_letters + "_", min_size=1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("  a\tb  ", ["a", "b"]),
        ("'a b' \"c d\"", ["a b", "c d"]),
        ("a'b c'd", ["ab cd"]),
        ("''", [""]),
        (r"a\x20b \u00e4 \101 \s|", ["a b", "ä", "A", " |"]),
        (r'"a\"b" \\ \q', ['a"b', "\\", "\\q"]),
        (r"'a\tb'", ["a\tb"]),
        ("--x='[\"y\"]'", ['--x=["y"]']),
    ],
    ids=["empty", "blanks", "quotes", "inside", "empty-word", "escapes", "escaped", "single-quoted", "json"],
)
def test_words_are_split_as_systemd_does(text: str, words: list[str]) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize("text", ['"a', "'a", "a\\"], ids=["double", "single", "backslash"])
def test_words_that_are_never_closed_are_refused_but_in_variables(text: str) -> None:
    with pytest.raises(ValueError, match=r"never closed|ends the line"):
        split_words(text)
    assert split_words(text, relaxed=True) == ["a"]


def test_variables_have_no_c_escapes() -> None:
    assert split_words(r"a\tb", relaxed=True) == ["atb"]


@given(TEXT)
def test_quoted_word_is_read_as_this_word_alone(word: str) -> None:
    read = [value.replace("%%", "%") for part in split_words(quoted(word)) for value in expand(part, {})]
    assert read == ([word] if word else [""])


@given(st.lists(st.text(string.printable)))
def test_words_that_a_shell_quotes_are_read_as_they_were(words: list[str]) -> None:
    plain = [word for word in words if "\\" not in word]
    assert split_words(" ".join(map(shlex.quote, plain))) == plain


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("$A", ["1", "2 3"]),
        ("$NONE", []),
        ("$EMPTY", []),
        ("${A}", ["1 '2 3'"]),
        ("x${B}y${NONE}", ["xby"]),
        ("x$B", ["x$B"]),
        ("$$B", ["$B"]),
        ("$B/x", []),
        ("${B", ["${B"]),
    ],
)
def test_variables_are_expanded_as_systemd_does(word: str, values: list[str]) -> None:
    assert expand(word, {"A": "1 '2 3'", "B": "b", "EMPTY": ""}) == values


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A=1\nB = 2 \n", {"A": "1", "B": "2"}),
        ("# A=1\n; B=2\n\n  C=3", {"C": "3"}),
        ('A="x y" \nB=\'x "y"\'\n', {"A": "x y", "B": 'x "y"'}),
        ("A=x \\\n  y\n", {"A": "x   y"}),
        ('A="x\\\ny\\"z\\w"\n', {"A": 'xy"z\\w'}),
        ("A=\\x\\\\\n", {"A": "x\\"}),
        ("A=1\nA=2\n", {"A": "2"}),
        ("no assignment\nA=1\n", {"A": "1"}),
        ('A="x" "y"\n', {"A": "xy"}),
        ('A=x "y"\n', {"A": 'x "y"'}),
        ("A=--a=b --c=d\n", {"A": "--a=b --c=d"}),
        ("A=\nB=1", {"A": "", "B": "1"}),
        ("# a comment \\\nA=1\n", {"A": "1"}),
    ],
    ids=[
        "plain", "comments", "quotes", "continued", "in-quotes", "escapes", "last-wins", "junk", "pieces",
        "quote-in-the-middle", "flags", "empty", "comment-with-a-backslash",
    ],
)  # fmt: skip
def test_environment_files_are_read_as_systemd_does(text: str, found: dict[str, str]) -> None:
    assert parse_environment(text) == found


@given(st.dictionaries(NAMES, TEXT.filter(lambda value: "\r" not in value)))
def test_environment_that_is_written_in_double_quotes_is_read_as_it_was(variables: dict[str, str]) -> None:
    escaped = str.maketrans({char: f"\\{char}" for char in '"\\`$'})
    text = "".join(f'{name}="{value.translate(escaped)}"\n' for name, value in variables.items())
    assert parse_environment(text) == variables


@given(TEXT)
def test_no_environment_file_breaks_the_reader(text: str) -> None:
    parse_environment(text)
