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


def test_no_function_that_a_part_is_given_asks_for_one_that_is_made_later() -> None:
    made = {part(one): one.lineno for one in targets() if part(one)}
    lambdas = [node for node in ast.walk(TREE) if isinstance(node, ast.Lambda)]
    asked = [(name, node.lineno) for one in lambdas for node in ast.walk(one) if (name := part(node))]  # type: ignore[arg-type,attr-defined]
    assert [name for name, line in asked if made[name] > line] == []
