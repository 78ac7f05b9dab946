"""What a KubeletConfiguration says, in the spellings of YAML and JSON that Kubernetes' own reader takes. Pure.

The daemon has no YAML parser, which would take 1.7 MB for a file of 2 KiB. This is what such files need of one: blocks
and flow, each over lines, JSON, quotes, comments, anchors, aliases and merges. What is not understood is an error, and
never "not there": a threshold that is overlooked is kubelet's default instead of what the node needs. As with kubelet,
the last of several equal keys holds, and the first of several documents.

How it works: a block is read by lines, by their indentation; what begins with a quote, a brace or a bracket is read by
characters, wherever it ends. Texts stay as they are written: what a plain word means, its reader knows.

Source: yaml.org/spec/1.1; kubelet, pkg/kubelet/kubeletconfig/util/codec.
"""

import codecs
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from msgspec import Struct

YamlValue = str | None | dict[str, "YamlValue"] | list["YamlValue"]


class NotUnderstood(Struct, frozen=True):
    """A value that is not understood, and why: the others may be."""

    why: str


TRUE: Final = frozenset(("true", "True", "TRUE", "y", "Y", "yes", "Yes", "YES", "on", "On", "ON"))
"""Plain words that are so."""

_NULL: Final = frozenset(("", "~", "null", "Null", "NULL"))
_MOST_DEEP: Final = 50
_MOST_LINES: Final = 10_000
"""Each field that kubelet has takes a few hundred."""
_REMEMBERED: Final = 8
"""Files of a node: they are read again and again."""

_ENCODINGS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))

_NOTHING: Final = re.compile(r"[ \t]*(?:#.*)?$")
_SPACE: Final = re.compile(r"(?:[ \t\r\n]++|(?<=[ \t\n])#[^\n]*+)*+")
"""Within flow; a comment begins behind a blank."""
_KEY: Final = re.compile(r"""([^\s"'\[\]{},&*!|>%@`#?:-][^\s:#]*+|[?:-][^\s:#]++)[ \t]*:(?=[ \t]|$)""")
"""A plain key of a block, without blanks, as all keys of kubelet's are."""
_QUOTED_KEY: Final = re.compile(r"""("(?:[^"\\]|\\.)*+"|'(?:[^']|'')*+')[ \t]*:(?=[ \t]|$)""")
_END: Final = re.compile(r"(?:---|\.\.\.)(?:[ \t].*)?")
_PROPERTY: Final = re.compile(r"([&*]|!!(?=(?:str|map|seq|int|float|bool)(?:\s|$)))([^\s,\[\]{}]++)[ \t]*")
"""An anchor, an alias, or a tag that says what is there anyway."""
_HEADER: Final = re.compile(r"([|>])(-?)[ \t]*(?:#.*)?$")
_PLAIN_IN_FLOW: Final = re.compile(
    r"""(?![\s"'\[\]{},&*!|>%@`#?:]|-[\s,\[\]{}])"""
    r"""(?:[^\s,\[\]{}:#]|:(?![\s,\[\]{}]|$)|(?<!\s)#|[ \t]+(?=[^\s#,\[\]{}:]))++"""
)
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(\n[ \t]*)|(.))", re.DOTALL)
_SHORT: Final = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    " ": " ", '"': '"', "/": "/", "\\": "\\", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029", "'": "'",
}  # fmt: skip
_FOLD: Final = re.compile(r"[ \t]*\n((?:[ \t]*\n)*)[ \t]*")


def decoded(data: bytes) -> str:
    """UTF-8, or what a byte order mark says. Raises ValueError."""
    mark, encoding = next((one for one in _ENCODINGS if data.startswith(one[0])), (b"", "utf-8"))
    return data[len(mark) :].decode(encoding)


@lru_cache(_REMEMBERED)
def parsed(text: str) -> Mapping[str, YamlValue | NotUnderstood]:
    """The file's mapping, empty for an empty file. Raises ValueError for what is none, or is not understood."""
    return _Reader(text.removeprefix("\ufeff").replace("\r\n", "\n")).document()


def value_of(root: Mapping[str, YamlValue | NotUnderstood], key: str) -> YamlValue:
    """What a file says of a key; None: nothing. Raises ValueError where that is not understood."""
    found = root.get(key)
    if isinstance(found, NotUnderstood):
        raise ValueError(f"{key}: {found.why}")
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        if "\0" in text:
            raise ValueError("it has a zero byte")
        self._lines = text.split("\n")
        if len(self._lines) > _MOST_LINES:
            raise ValueError(f"it has more than {_MOST_LINES} lines")
        self._at = 0
        self._deep = 0
        self._anchors: dict[str, YamlValue] = {}

    def document(self) -> Mapping[str, YamlValue | NotUnderstood]:
        if (line := self._peek()) is not None and re.match(r"---(?:[ \t]|$)", line):
            self._replace("   " + line[3:])
        root: dict[str, YamlValue | NotUnderstood] = {}
        found = self._next(0)
        if found is not None and _key_of(found[1]):
            self._mapping(found[0], root)
        elif found is not None and isinstance(flow := self._block(0), dict):
            root.update(flow)
        elif found is not None:
            raise ValueError("it is no mapping")
        if (line := self._peek()) is not None and not _END.fullmatch(line):
            raise self._strange(line)
        return root  # of several documents, kubelet takes the first

    # --- lines ---

    def _peek(self) -> str | None:
        """The next line that says something; None: there is none."""
        lines = self._lines
        while self._at < len(lines) and ((said := lines[self._at].lstrip(" \t")) == "" or said[0] == "#"):
            self._at += 1
        return lines[self._at] if self._at < len(lines) else None

    def _next(self, least: int) -> tuple[int, str] | None:
        """The indentation of the next line and what it says; None: it is less indented, or ends the document."""
        line = self._peek()
        if line is None or (line[0] in "-." and _END.fullmatch(line)):
            return None
        said = line.lstrip(" ")
        indent = len(line) - len(said)
        if said.startswith("\t") and not said.lstrip("\t ").startswith(("{", "[", "}", "]")):
            raise self._strange(line)
        return (indent, said) if indent >= least else None

    def _replace(self, line: str) -> None:
        self._lines[self._at] = line

    def _strange(self, line: str) -> ValueError:
        return ValueError(f"line {self._at + 1} is written in a way that criproxy does not read: {line.strip()[:60]!r}")

    # --- blocks ---

    def _block(self, least: int) -> YamlValue:
        """What the next lines are that are indented at least so."""
        found = self._next(least)
        if found is None:
            return None
        self._deep += 1
        if self._deep > _MOST_DEEP:
            raise ValueError("it is nested too deeply")
        indent, said = found
        if said == "-" or said.startswith(("- ", "-\t")):
            value: YamlValue = self._sequence(indent)
        elif _key_of(said):
            value = self._mapping(indent)
        else:
            value = self._inline(indent, least)
        self._deep -= 1
        return value

    def _mapping(self, indent: int, root: dict[str, YamlValue | NotUnderstood] | None = None) -> dict[str, YamlValue]:
        """A block's mapping. Into `root` goes that of the file, with what of it is not understood."""
        own: dict[str, YamlValue] = {}
        merged: dict[str, YamlValue] = {}
        unread: dict[str, NotUnderstood] = {}
        while (found := self._next(indent)) is not None:
            at, said = found
            match = _key_of(said)
            if at != indent or match is None:
                raise self._strange(said)
            key = _unquoted(match[1]) if match[1][0] in "\"'" else match[1]
            began = self._at
            try:
                value = self._behind(indent, indent + match.end(), is_key=True)
            except ValueError as error:
                if root is None or key == "<<":
                    raise
                unread[key] = NotUnderstood(str(error))
                self._skip(began, indent)
                continue
            if key == "<<":
                merged = {**_merged(value), **merged}
            else:
                own[key] = value
                unread.pop(key, None)
        if root is not None:
            root.update({**merged, **own, **unread})
        return {**merged, **own}

    def _skip(self, began: int, indent: int) -> None:
        """Go on behind the value that began in that line: with the next key."""
        self._at, self._deep = began + 1, 0
        while (found := self._next(0)) is not None:
            if found[0] <= indent and not found[1].startswith(("- ", "}", "]")):
                return
            self._at += 1

    def _sequence(self, indent: int) -> YamlValue:
        items: list[YamlValue] = []
        while (found := self._next(indent)) is not None:
            at, said = found
            if at != indent or not (said == "-" or said.startswith(("- ", "-\t"))):
                if at == indent:
                    return items  # a list may be as far in as the key that it is of
                raise self._strange(said)
            items.append(self._behind(indent, indent + 1, is_key=False))
        return items

    def _behind(self, indent: int, column: int, *, is_key: bool) -> YamlValue:
        """The value behind a key or the dash of an item: the rest of the line, or what is below it."""
        line = self._lines[self._at]
        rest = line[column:]
        if _NOTHING.match(rest):
            self._at += 1
            below = self._next(indent)
            if below is None or (below[0] == indent and not (is_key and below[1][:2] in ("-", "- "))):
                return None
            return self._block(below[0])
        column += len(rest) - len(rest.lstrip(" \t"))
        rest = line[column:]
        if (match := _PROPERTY.match(rest)) is not None:
            return self._named(indent, column, match, is_key=is_key)
        if (header := _HEADER.match(rest)) is not None:
            return self._literal(indent, header[1], header[2])
        if is_key:
            return self._inline(column, indent + 1)
        self._replace(" " * column + rest)
        return self._block(indent + 1)

    def _named(self, indent: int, column: int, match: re.Match[str], *, is_key: bool) -> YamlValue:
        """What an alias stands for, or the value behind an anchor."""
        line, name, rest = self._lines[self._at], match[2], match.string[match.end() :]
        if match[1] != "*":
            self._replace(line[:column] + " " * match.end() + rest)
            value = self._behind(indent, column, is_key=is_key)
            if match[1] == "&":
                self._anchors[name] = value
            return value
        if not _NOTHING.match(rest) or name not in self._anchors:
            raise self._strange(line)
        self._at += 1
        return self._anchors[name]

    def _literal(self, indent: int, kind: str, strip: str) -> str:
        """The lines of a block scalar."""
        self._at += 1
        lines: list[str] = []
        deep = 0
        while self._at < len(self._lines):
            line = self._lines[self._at]
            at = len(line) - len(line.lstrip(" "))
            if line.strip(" "):
                deep = deep or at
                if at <= indent or at < deep:
                    break
            lines.append(line)
            self._at += 1
        text = "\n".join(line[deep or len(line) :] for line in lines).rstrip("\n")
        if kind == ">":
            if text.startswith("\n") or "\n " in text:
                raise ValueError(f"line {self._at} ends a folded text of a form that criproxy does not read")
            text = re.sub(r"\n+", lambda found: " " if len(found[0]) == 1 else found[0][1:], text)
        return text if strip or not text else f"{text}\n"

    def _inline(self, column: int, least: int) -> YamlValue:
        """A scalar, or flow, that begins in this line; its further lines are indented at least so."""
        line = self._lines[self._at]
        rest = line[column:]
        if rest[0] in "\"'{[":
            text = "\n".join([rest, *self._lines[self._at + 1 :]])
            value, end = _Flow(text, self._anchors).value(0, 0)
            self._at += text.count("\n", 0, end)
            left = text[end:].partition("\n")[0]
            if not _NOTHING.match(left) or left.startswith("#"):
                raise self._strange(left)
            self._at += 1
            return value
        if rest[0] in "&*!|>%@`?,]}#" or re.match(r"[-:](?:[ \t]|$)", rest):
            raise self._strange(rest)
        parts = []
        while True:
            plain = re.split(r"[ \t]#", rest, maxsplit=1)
            if re.search(r":(?:[ \t]|$)", plain[0]):
                raise self._strange(rest)
            parts.append(plain[0].strip(" \t"))
            self._at += 1
            raw = self._lines[self._at] if self._at < len(self._lines) else ""
            found = self._next(least)
            if found is None:
                break
            if len(plain) > 1 or not raw.strip() or found[1].startswith("#"):
                raise self._strange(found[1])  # a comment, or an empty line, amid a text
            rest = found[1]
        text = " ".join(parts)
        return None if text in _NULL else text


def _key_of(said: str) -> re.Match[str] | None:
    return _KEY.match(said) or _QUOTED_KEY.match(said)


def _merged(value: YamlValue) -> dict[str, YamlValue]:
    """What `<<` adds: of several mappings, the first that has a key holds."""
    found: dict[str, YamlValue] = {}
    for one in reversed(value if isinstance(value, list) else [value]):
        if not isinstance(one, dict):
            raise ValueError("what << names is no mapping")
        found |= one
    return found


# --- flow -------------------------------------------------------------------------------------------------------------


class _Flow:
    """What begins with a quote, a brace or a bracket, and what is in it."""

    def __init__(self, text: str, anchors: dict[str, YamlValue]) -> None:
        self._text = text
        self._anchors = anchors

    def value(self, at: int, deep: int) -> tuple[YamlValue, int]:
        """The value at this place, and where it ends."""
        text = self._text
        if deep > _MOST_DEEP:
            raise ValueError("it is nested too deeply")
        if (match := _PROPERTY.match(text, at)) is not None:
            if match[1] == "*":
                if match[2] not in self._anchors:
                    raise ValueError(f"*{match[2][:40]} stands for nothing")
                return self._anchors[match[2]], match.end()
            value, end = self.value(self._space(match.end()), deep + 1)
            if match[1] == "&":
                self._anchors[match[2]] = value
            return value, end
        match text[at : at + 1]:
            case "{":
                return self._mapping(at + 1, deep)
            case "[":
                return self._sequence(at + 1, deep)
            case '"' | "'" as quote:
                end = self._end_of_quotes(at, quote)
                return _unquoted(text[at:end]), end
        if (match := _PLAIN_IN_FLOW.match(text, at)) is None:
            raise ValueError(f"it is written in a way that criproxy does not read: {text[at : at + 40]!r}")
        word = match[0].strip(" \t")
        return None if word in _NULL else word, match.end()

    def _mapping(self, at: int, deep: int) -> tuple[YamlValue, int]:
        own: dict[str, YamlValue] = {}
        merged: dict[str, YamlValue] = {}
        while True:
            at = self._space(at)
            if self._text[at : at + 1] == "}":
                return {**merged, **own}, at + 1
            key, at = self.value(at, deep + 1)
            if not isinstance(key, str):
                raise ValueError("it has a key that is no text")
            at = self._space(at)
            value: YamlValue = None
            if self._text[at : at + 1] == ":":
                at = self._space(at + 1)
                if self._text[at : at + 1] not in ("}", ","):
                    value, at = self.value(at, deep + 1)
            if key == "<<":
                merged = {**_merged(value), **merged}
            else:
                own[key] = value
            at = self._behind_item(at, "}")

    def _sequence(self, at: int, deep: int) -> tuple[YamlValue, int]:
        items: list[YamlValue] = []
        while True:
            at = self._space(at)
            if self._text[at : at + 1] == "]":
                return items, at + 1
            item, at = self.value(at, deep + 1)
            items.append(item)
            at = self._behind_item(at, "]")

    def _behind_item(self, at: int, end: str) -> int:
        at = self._space(at)
        if self._text[at : at + 1] == ",":
            return at + 1
        if self._text[at : at + 1] != end:
            raise ValueError(f"it is written in a way that criproxy does not read: {self._text[at : at + 40]!r}")
        return at

    def _space(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return match.end() if match else at

    def _end_of_quotes(self, at: int, quote: str) -> int:
        pattern = r'"(?:[^"\\]|\\.)*+"' if quote == '"' else r"'(?:[^']|'')*+'"
        match = re.compile(pattern, re.DOTALL).match(self._text, at)
        if match is None:
            raise ValueError(f"it has a quote without an end: {self._text[at : at + 40]!r}")
        return match.end()


def _unquoted(quoted: str) -> str:
    """The text between quotes, over lines perhaps."""
    text = quoted[1:-1]
    if quoted[0] == "'":
        return _folded(text.replace("''", "'"))
    parts, at = [], 0
    for match in _ESCAPE.finditer(text):
        parts.append(_folded(text[at : match.start()]))
        *codes, newline, short = match.groups()
        code = next(filter(None, codes), None)
        if code is None and newline is None and short not in _SHORT:
            raise ValueError(f"it has the escape {match[0][:10]!r}, which YAML has not")
        parts.append(chr(int(code, 16)) if code else "" if newline is not None else _SHORT[short])
        at = match.end()
    return "".join([*parts, _folded(text[at:])])


def _folded(text: str) -> str:
    """One end of a line is a blank, more are one fewer."""
    return _FOLD.sub(lambda found: "\n" * found[1].count("\n") or " ", text) if "\n" in text else text
