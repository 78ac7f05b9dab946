"""The daemon builds its parts in order: none asks for one that is made later, and nothing of a part is set later."""

import ast
from collections.abc import Iterator
from pathlib import Path

from criproxy.daemon import daemon

MODULE = ast.parse(Path(daemon.__file__).read_text(encoding="utf-8"))
TREE = next(one for one in MODULE.body if isinstance(one, ast.ClassDef) and one.name == "Daemon")


def part(node: ast.expr) -> str:
    """`_box` of self._box; "" of anything else."""
    of_self = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if of_self and isinstance(node, ast.Attribute) else ""


def targets() -> Iterator[ast.expr]:
    for node in ast.walk(TREE):
        if isinstance(node, ast.Assign):
            yield from node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            yield node.target


def test_nothing_of_a_part_is_set_after_it_was_made() -> None:
    later = [ast.unparse(one) for one in targets() if isinstance(one, ast.Attribute) and not part(one)]
    assert later == []


METHODS = {one.name: one for one in TREE.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


def in_order(node: ast.AST) -> Iterator[ast.AST]:
    """What is in `node` as it is executed: a value before its target, and a method of self where it is called."""
    called = node.func if isinstance(node, ast.Call) else None
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        children = [node.value, *(child for child in children if child is not node.value)]
    for child in children:
        yield from in_order(child) if child is not called else ()
    if isinstance(called, ast.Attribute) and part(called) in METHODS:
        yield from in_order(METHODS[part(called)])
    elif called is not None:
        yield from in_order(called)
    yield node


def asked_by(given: ast.AST, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """The parts that a function asks for once it is called, also by way of other methods of self."""
    for node in ast.walk(given):
        name = part(node) if isinstance(node, ast.expr) else ""
        if name in METHODS and name not in seen:
            yield from asked_by(METHODS[name], seen | {name})
        elif name and name not in METHODS:
            yield name


def forward(method: ast.AST) -> list[str]:
    """Parts that a lambda, or a method of self that is given away, asks for, before they are made."""
    made: set[str] = set()
    found = []
    for node in in_order(method):
        if isinstance(node, ast.Attribute) and part(node) and isinstance(node.ctx, ast.Store):
            made.add(part(node))
        elif isinstance(node, ast.Lambda) or (isinstance(node, ast.Attribute) and part(node) in METHODS):
            found += [name for name in asked_by(node) if name not in made]
    return found


def test_no_function_that_a_part_is_given_asks_for_one_that_is_made_later() -> None:
    assert forward(METHODS["__init__"]) == []
