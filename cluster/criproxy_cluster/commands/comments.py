"""Comments of a manifest, in what `convert` makes of it. PyYAML's nodes do not have them, but know where they stand.

    on a line of its own    goes above what it stood above
    behind something        goes behind the same thing
    of what has gone        goes above what that was in

Two texts are compared by the places of their nodes: a place is a document's number, and then keys and numbers of items.
Pure.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import yaml

Place = tuple[int | str, ...]

_BLOCKS: Final = ("|", ">")


class Comment(NamedTuple):
    line: int
    text: str
    alone: bool


class Stand(NamedTuple):
    """On which line a node, with its key, begins; and on which a comment may follow it."""

    place: Place
    first: int
    last: int


def carried(before: Sequence[yaml.Node], after: str, made: Sequence[yaml.Node]) -> str:
    """`after`, whose documents are `made`, with the comments of the text that has these nodes: as many documents."""
    text = before[0].start_mark.buffer if before else None
    if not text or "#" not in text:
        return after
    old, new = (
        [one for number, root in enumerate(roots) for one in _stands(root, (number,))] for roots in (before, made)
    )
    there = {one.place: one for one in reversed(new)}
    above, behind = defaultdict[int, list[str]](list), defaultdict[int, list[str]](list)
    lines = after.splitlines()
    firsts = [one.first for one in old]
    for comment in _comments(text.rstrip("\0"), before):
        at = bisect_right(firsts, comment.line)
        behind_it = there.get(old[at - 1].place) if at and old[at - 1].first == comment.line else None
        if not comment.alone and behind_it is not None:
            behind[behind_it.last].append(comment.text)
            continue
        of = old[at : at + 1] if comment.alone else old[max(0, at - 1) : at]
        stand = next((there[up] for one in of for up in _upwards(one.place) if up in there), None)
        above[len(lines) if stand is None else stand.first].append(comment.text)
    found = []
    for number, line in enumerate([*lines, ""]):
        indent = line[: len(line) - len(line.lstrip(" "))]
        found += [f"{indent}{words}" for words in above[number]]
        if number < len(lines):
            found.append("  ".join((line, *behind[number])))
    return "\n".join(found) + "\n"


def _upwards(place: Place) -> Iterator[Place]:
    return (place[:end] for end in range(len(place), 0, -1))


def _stands(root: yaml.Node, place: Place) -> Iterator[Stand]:
    """In the order of the text."""
    stack = [(root, place, root.start_mark.line)]
    while stack:
        node, place, first = stack.pop()
        plain = isinstance(node, yaml.ScalarNode) and node.style not in _BLOCKS
        yield Stand(place, first, node.end_mark.line if plain else first)
        if isinstance(node, yaml.MappingNode):
            stack += [(value, (*place, str(key.value)), key.start_mark.line) for key, value in reversed(node.value)]
        elif isinstance(node, yaml.SequenceNode):
            numbered = reversed([*enumerate(node.value)])
            stack += [(item, (*place, number), item.start_mark.line) for number, item in numbered]


def _comments(text: str, roots: Sequence[yaml.Node]) -> Iterator[Comment]:
    spans = sorted(
        {(one.start_mark.index, one.end_mark.index) for root in roots for one in _scalars(root) if one.value}
    )
    begins = [begin for begin, _ in spans]
    at = 0
    for number, line in enumerate(text.splitlines(keepends=True)):
        for column, sign in enumerate(line):
            if sign != "#" or (column and line[column - 1] not in " \t"):
                continue
            before = bisect_right(begins, at + column) - 1
            if before < 0 or spans[before][1] <= at + column:
                yield Comment(number, line[column:].rstrip(), not line[:column].strip())
                break
        at += len(line)


def _scalars(root: yaml.Node) -> Iterator[yaml.ScalarNode]:
    stack, seen = [root], set[int]()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            yield node
        elif isinstance(node, yaml.MappingNode):
            stack += [one for pair in node.value for one in pair]
        else:
            stack += node.value
