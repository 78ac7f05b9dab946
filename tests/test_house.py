"""What holds for the whole of criproxy/, beyond what import-linter and ruff look at."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_BACKQUOTED = re.compile(r"`[^`]*`")
_A_FILE = re.compile(r"[\w./-]+\.(?:py|proto|toml|service|md)\b|[\w-]+(?:/[\w-]+)*/")


def _aliases(module: ast.Module) -> Iterator[str]:
    """The capitalised names that are given at the top of a module: `Kind = Literal[...]`, but no constants."""
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            yield from (name for name in names if name.lstrip("_")[:1].isupper() and not name.isupper())


def _types() -> Iterator[tuple[str, str]]:
    """What names a type, classes and aliases, without the `_` of what is private to its module."""
    for file in sorted((_ROOT / "criproxy").rglob("*.py")):
        if file.name.endswith("_pb2.py"):
            continue
        module = ast.parse(file.read_text())
        classes = [node.name for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
        for name in (*classes, *_aliases(module)):
            yield name.lstrip("_"), str(file.relative_to(_ROOT))


def test_no_class_name_means_two_things() -> None:
    files = defaultdict(list)
    for name, file in _types():
        files[name].append(file)

    assert {name: where for name, where in files.items() if len(where) > 1} == {}


def test_tests_lie_where_what_they_test_does() -> None:
    """tests/demo and tests/packaging are about integration/demo and packaging/."""
    folders = {file.parent.relative_to(_ROOT / "tests") for file in (_ROOT / "tests").rglob("test_*.py")}
    code = _ROOT / "criproxy"
    assert {str(one) for one in folders if not (code / one).is_dir()} == {"demo", "packaging"}


MOST = {
    "criproxy/daemon/daemon.py": ("Daemon", "fields", 25),
    "criproxy/observe/report.py": ("Reporter", "fields", 15),
    "criproxy/cgroup/box/box.py": ("Box", "public", 18),
}
"""What a class that knows many others may have: where one needs more, it has become two."""


def _members(found: ast.ClassDef) -> dict[str, set[str]]:
    """Its fields, declared or set of self, and its public methods."""
    functions = [node for node in found.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    stored = [node for node in ast.walk(found) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    declared = [node.target for node in found.body if isinstance(node, ast.AnnAssign)]
    return {
        "fields": {node.attr for node in stored if ast.unparse(node.value) == "self"} | set(map(ast.unparse, declared)),
        "public": {node.name for node in functions if not node.name.startswith("_")},
    }


def test_who_knows_many_others_stays_within_bounds() -> None:
    for file, (name, what, most) in MOST.items():
        classes = [node for node in ast.parse((_ROOT / file).read_text()).body if isinstance(node, ast.ClassDef)]
        found = _members(next(node for node in classes if node.name == name))[what]
        assert 0 < len(found) <= most, f"{name} has {len(found)} {what}: {', '.join(sorted(found))}"


def test_parts_are_given_their_log() -> None:
    files = (_ROOT / "criproxy").rglob("*.py")
    assert {str(file.relative_to(_ROOT)) for file in files if "get_logger" in file.read_text()} == {
        "criproxy/daemon/daemon.py"
    }


def _rows(text: str) -> list[str]:
    table = text.partition("## To change")[2].partition("\n## ")[0]
    return [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| …")]


def test_contributing_opens_files_that_are_there() -> None:
    rows = _rows((_ROOT / "CONTRIBUTING.md").read_text())
    assert len(rows) >= 12
    for row in rows:
        names = _A_FILE.findall(_BACKQUOTED.sub("", row.split("|")[2].replace("\\", "")))
        assert names, row
        missing = [name for name in names if not (_ROOT / name).exists()]
        assert not missing, row
