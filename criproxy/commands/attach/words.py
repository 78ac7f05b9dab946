"""Words as systemd reads them: command lines, variables in them, and environment files.

Source: systemd.service(5), COMMAND LINES; systemd.syntax(7), QUOTING; systemd.exec(5), EnvironmentFile=.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

_SPACE: Final = " \t\n\r"
_SIMPLE: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "}
_NUMBERED: Final = re.compile(
    r"x(?P<hex>[0-9a-fA-F]{2})|(?P<octal>[0-3][0-7]{2})|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})"
)
_BRACED: Final = re.compile(r"\$(?:\$|\{([^{}]*)\})")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def split_words(text: str, *, relaxed: bool = False) -> list[str]:
    """The words of a command line or an assignment list, their quotes and escapes resolved.

    `relaxed` is how the value of a variable is split: C escapes are none, and a quote may stay open. Raises ValueError
    for a quote that is never closed, or a backslash at the end.
    """
    words: list[str] = []
    word: str | None = None
    quote, at = "", 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\":
            piece, at = _escape(text, at, relaxed=relaxed)
            word = (word or "") + piece
        elif quote:
            if char == quote:
                quote = ""
            else:
                word = (word or "") + char
        elif char in "'\"":
            word, quote = word or "", char
        elif char in _SPACE:
            if word is not None:
                words.append(word)
            word = None
        else:
            word = (word or "") + char
    if quote and not relaxed:
        raise ValueError(f"a quote ({quote}) is never closed")
    return words if word is None else [*words, word]


def _escape(text: str, at: int, *, relaxed: bool) -> tuple[str, int]:
    """What a backslash before `at` stands for, and where the text goes on."""
    if at >= len(text):
        if relaxed:
            return "", at
        raise ValueError("a backslash ends the line")
    char = text[at]
    if relaxed or char in "\\\"'":
        return char, at + 1
    if char in _SIMPLE:
        return _SIMPLE[char], at + 1
    if number := _NUMBERED.match(text, at):
        kind = number.lastgroup or ""
        value = int(number[kind], 8 if kind == "octal" else 16)
        if 0 < value < 0x110000:
            return chr(value), number.end()
    return f"\\{char}", at + 1  # systemd warns and keeps what it does not know


def expand(word: str, variables: Mapping[str, str]) -> list[str]:
    """What one word of a command line becomes: `$NAME` alone zero or more words, `${NAME}` within one its value."""
    if word.startswith("$") and not word.startswith(("$$", "${")):
        return split_words(variables.get(word[1:], ""), relaxed=True)
    return [_BRACED.sub(lambda found: "$" if found[1] is None else variables.get(found[1], ""), word)]


def quoted(word: str) -> str:
    """`word` as a unit file's command line must spell it: systemd reads it as this one word, without expansion."""
    text = word.replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(text):
        return text
    body = "".join(_quoted_char(char) for char in text)
    return f'"{body}"'


def _quoted_char(char: str) -> str:
    if char in '\\"':
        return f"\\{char}"
    return f"\\x{ord(char):02x}" if ord(char) < 0x20 else char


def parse_environment(text: str) -> dict[str, str]:
    """The variables of an environment file; of a name that is set twice, the last. Lines that set nothing are left."""
    found: dict[str, str] = {}
    chars = iter(text)
    for char in chars:
        if char in _SPACE:
            continue
        if char in "#;":
            _skip_comment(chars)
            continue
        key = _key(char, chars)
        if key is not None:
            found[key] = _value(chars)
    return found


def _skip_comment(chars: Iterator[str]) -> None:
    # A backslash carries a comment on to the next line in systemd before 254 only; later is what is taken here.
    for char in chars:
        if char in "\n\r":
            return


def _key(first: str, chars: Iterator[str]) -> str | None:
    """Up to the equals sign; None when the line ends before one."""
    key = first
    if first == "=":
        return ""
    for char in chars:
        if char in "\n\r":
            return None
        if char == "=":
            return key.rstrip()
        key += char
    return None


def _value(chars: Iterator[str]) -> str:
    """Up to the line's end: quoted and plain pieces one after another, blanks around pieces left out."""
    value, blanks, plain = "", "", False
    for char in chars:
        if char in "\n\r":
            break
        if char == "\\":
            escaped = next(chars, "")
            if escaped != "\n":
                value, blanks, plain = value + blanks + escaped, "", True
        elif char in "'\"" and not plain:
            value += _quoted_piece(char, chars)
        elif char in _SPACE:
            blanks += char if plain else ""
        else:
            value, blanks, plain = value + blanks + char, "", True
    return value


def _quoted_piece(quote: str, chars: Iterator[str]) -> str:
    piece = ""
    for char in chars:
        if char == quote:
            break
        if char == "\\" and quote == '"':
            escaped = next(chars, "")
            if escaped != "\n":
                piece += escaped if escaped and escaped in '"\\`$' else f"\\{escaped}"
        else:
            piece += char
    return piece
