"""Makes config.example.toml, docs/metrics.md, docs/log-events.md, docs/author-text.md, a table of docs/refused.md, what
an API server refuses of a policy (a part of cluster/manifests/base/crd.yaml, and unknown-keys.yaml beside it) and of a
pod (marks.yaml), or warns of (unmarked.yaml), webhook.yaml, kube-scheduler.yaml, and what Helm refuses of the chart's
values. It also writes the version, which criproxy/__init__.py alone has, to where a build, kubectl or a reader can't
get it from (`VERSIONED`).

`python -m docs.generate [--check]`
--check writes nothing, and fails when a file is not what the code makes. Either way, each event of the log must have
its words, which are kept in docs/log-events.md itself: all else of its row is made.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from criproxy import __version__
from criproxy.model.modes import TABLE
from docs.author_text import page as author_text
from docs.chart_schema import values_schema
from docs.config_example import render
from docs.policy_schema import crd, unknown_keys
from docs.scheduler_profile import kube_scheduler
from docs.webhook_entries import marks, unmarked, webhook
from monitoring.table import Shown, controllers, daemons, ledgers, webhooks

HERE = Path(__file__).resolve().parent
CODE = HERE.parent / "criproxy"
BASE = HERE.parent / "cluster" / "manifests" / "base"
MODES = "<!-- Made from criproxy/model/modes.py by `.venv/bin/python -m docs.generate`. -->\n"
MODES_END = "<!-- The end of the table of modes. -->"
VERSIONED = (
    ("cluster/VERSION", r"^.*(?=\n)"),
    ("cluster/manifests/base/kustomization.yaml", r'(?<=newTag: ")[^"]*'),
    ("cluster/manifests/ledger/kustomization.yaml", r'(?<=newTag: ")[^"]*'),
    ("cluster/manifests/node/kustomization.yaml", r'(?<=newTag: ")[^"]*'),
    ("packaging/chart/Chart.yaml", r'(?:(?<=^version: ")|(?<=^appVersion: "))[^"]*'),
    ("cluster/README.md", r"(?<=build/criproxy-image-)[\d.]+(?=\.tar)"),
    ("README.md", r"(?<=dist/criproxy_)[\d.]+(?=~)"),
)
"""Files, and what in them is the version."""
LEVELS = ("debug", "info", "warning", "error")


def metrics() -> str:
    """A row per metric."""
    return "\n".join(
        (
            "# Metrics",
            "",
            "What `/metrics` serves, in Prometheus' text format. Gauges of what is not known yet are NaN. Made by",
            "`.venv/bin/python -m docs.generate`. [How Prometheus gets in, alerts and dashboards](monitoring.md).",
            "",
            *_rows_of(daemons()),
            "",
            "## The cluster's side: the webhook",
            "",
            *_rows_of(webhooks()),
            "",
            "## The cluster's side: the controller",
            "",
            *_rows_of(controllers()),
            "",
            "## The cluster's side: the ledger",
            "",
            *_rows_of(ledgers()),
            "",
        )
    )


def _rows_of(shown: Iterable[Shown]) -> Iterator[str]:
    yield from ("| name | kind | labels | what |", "|---|---|---|---|")
    yield from sorted(f"| `{one.name}` | {one.kind} | {', '.join(one.labels)} | {one.text} |" for one in shown)


Found = dict[str, tuple[set[str], set[str], set[str]]]
"""Levels, fields and files of each event."""


def found_events() -> Found:
    found: Found = {}
    for file in sorted(CODE.rglob("*.py")):
        for event, level, fields in _logged(ast.parse(file.read_text(encoding="utf-8"))):
            levels, names, files = found.setdefault(event, (set(), set(), set()))
            levels.add(level)
            names.update(fields)
            files.add(str(file.relative_to(CODE.parent)))
    return found


_EVENT_ROW = re.compile(rf"^\| `(\w+)` \| ?(.*?) ?\| (?:{'|'.join(LEVELS)})\b", re.MULTILINE)


def words_of(page: str) -> dict[str, str]:
    """What the page says of each event."""
    return dict(_EVENT_ROW.findall(page))


def unexplained(page: str) -> Iterator[str]:
    """The events of which the page says nothing."""
    for event, words in words_of(page).items():
        if not words:
            yield f"docs/log-events.md has no words for `{event}`: write them in its row"


def events(found: Found, words: Mapping[str, str]) -> str:
    """A row per event of the daemon's log: what it means, its levels, all fields, and where it arises."""
    rows = (
        _row(f"`{event}`", [words.get(event, "")], sorted(levels, key=LEVELS.index), sorted(names), sorted(files))
        for event, (levels, names, files) in sorted(found.items())
    )
    return "\n".join(
        (
            "# Events of the log",
            "",
            "The log is JSON lines on stderr: `ts`, `level`, `event`, and the event's fields. What an event means is",
            "written in its row here; the rest of a row is made by `.venv/bin/python -m docs.generate`.",
            "",
            "| event | what | level | fields | from |",
            "|---|---|---|---|---|",
            *rows,
            "",
        )
    )


def versioned() -> Iterator[tuple[str, str]]:
    """The files of `VERSIONED` as they are, with this version."""
    for name, pattern in VERSIONED:
        text, found = re.subn(
            pattern, __version__, (HERE.parent / name).read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        if not found:
            raise SystemExit(f"{name} has no place for the version: {pattern}")
        yield name, text


def refused() -> str:
    """The page as it is, with the table of modes that the code makes."""
    before, _, rest = (HERE / "refused.md").read_text(encoding="utf-8").partition(MODES)
    _, _, after = rest.partition(MODES_END)
    return f"{before}{MODES}{modes()}{MODES_END}{after}"


def modes() -> str:
    """A row per mode."""
    rows = [
        f"| {mode.value} | {row.when} | {row.new_pod.value} | {row.online} | {row.limits.value} "
        f"| {row.ready} | {'no' if row.well else 'yes'} |\n"
        for mode, row in TABLE.items()
    ]
    return "".join(
        (
            "\n| mode | when | a new offline pod | an online pod | the box's limits | /readyz | `not well` |\n",
            "|---|---|---|---|---|---|---|\n",
            *rows,
            "\n",
        )
    )


def _row(first: str, *lists: list[str]) -> str:
    return f"| {first} | {' | '.join(', '.join(one) for one in lists)} |"


def _logged(tree: ast.AST) -> Iterator[tuple[str, str, list[str]]]:
    """Event, level and fields of each call of a logger whose event is written out."""
    chosen = {
        node.targets[0].id: list(_methods(node.value))
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        for level in chosen.get(name) or _methods(node.func):
            for event in _texts(node.args[0]):
                yield event, level, [field for one in node.keywords for field in _fields(one, tree)]


def _fields(keyword: ast.keyword, tree: ast.AST) -> Iterator[str]:
    """The name of a field; of `**this` or `**this(…)`, those of the dict that `this` is, or returns, in the module."""
    if keyword.arg is not None:
        yield from () if keyword.arg == "exc_info" else (keyword.arg,)
        return
    called = keyword.value.func if isinstance(keyword.value, ast.Call) else keyword.value
    for node in ast.walk(tree):
        made: ast.expr | None = None
        if isinstance(node, ast.FunctionDef) and node.name == ast.unparse(called):
            made = next((one.value for one in ast.walk(node) if isinstance(one, ast.Return)), None)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == ast.unparse(called):
            made = node.value
        if isinstance(made, ast.Dict):
            yield from (str(key.value) for key in made.keys if isinstance(key, ast.Constant))


def _methods(node: ast.expr) -> Iterator[str]:
    """The levels of what is a logger's method, or one of two."""
    if isinstance(node, ast.IfExp):
        yield from (*_methods(node.body), *_methods(node.orelse))
    elif isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("log"):
        level = "error" if node.attr == "exception" else node.attr
        yield from [level] if level in LEVELS else []


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))


def main() -> int:
    stale = []
    log_events = (HERE / "log-events.md").read_text(encoding="utf-8")
    log_events = events(found_events(), words_of(log_events))
    policies = crd((BASE / "crd.yaml").read_text(encoding="utf-8"))
    for name, text in (
        ("config.example.toml", render()),
        ("docs/metrics.md", metrics()),
        ("docs/log-events.md", log_events),
        ("docs/refused.md", refused()),
        ("docs/author-text.md", author_text()),
        ("cluster/manifests/base/crd.yaml", policies),
        ("cluster/manifests/base/unknown-keys.yaml", unknown_keys(policies)),
        ("cluster/manifests/base/webhook.yaml", webhook()),
        ("cluster/manifests/base/marks.yaml", marks()),
        ("cluster/manifests/base/unmarked.yaml", unmarked()),
        ("cluster/manifests/scheduler/kube-scheduler.yaml", kube_scheduler()),
        ("packaging/chart/values.schema.json", values_schema()),
        *versioned(),
    ):
        page = HERE.parent / name
        if "--check" in sys.argv[1:]:
            stale += [name] if not page.exists() or page.read_text(encoding="utf-8") != text else []
        else:
            page.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{name} is not what the code makes: run python -m docs.generate", file=sys.stderr)
    for problem in (problems := tuple(unexplained(log_events))):
        print(problem, file=sys.stderr)
    return bool(stale or problems)


if __name__ == "__main__":
    sys.exit(main())
