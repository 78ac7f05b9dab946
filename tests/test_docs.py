"""docs/log-events.md is made from the code: each way to log an event is understood, and each event has words.

And what pages link to, and messages name, is there.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from criproxy.config.schema import settings
from criproxy.control.interference.detectors import DETECTORS
from criproxy.control.interference.judge import Judge
from criproxy.control.interference.ladder import LadderSettings
from criproxy.model import PIDS
from docs.generate import _logged, events, unexplained, words_of
from monitoring.rules import ALERTS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("code", "events"),
    [
        pytest.param('log.info("a", pod=1, exc_info=e)', [("a", "info", ["pod"])], id="plain"),
        pytest.param('self.shared.log.error("a")', [("a", "error", [])], id="of-a-part"),
        pytest.param('log.exception("a")', [("a", "error", [])], id="exception-is-an-error"),
        pytest.param(
            'log.warning("a" if x else "b", n=1)', [("a", "warning", ["n"]), ("b", "warning", ["n"])], id="one-of-two"
        ),
        pytest.param(
            'told = log.warning if x else log.info\ntold("a", n=1)',
            [("a", "warning", ["n"]), ("a", "info", ["n"])],
            id="level-chosen-before",
        ),
        pytest.param(
            'def names(x):\n    return {"pod": 1, "uid": 2}\nlog.info("a", **names(x), why=1)',
            [("a", "info", ["pod", "uid", "why"])],
            id="fields-of-a-function",
        ),
        pytest.param('more = {"pod": 1}\nlog.info("a", **more)', [("a", "info", ["pod"])], id="fields-of-a-dict"),
        pytest.param('parser.error("give a file")', [], id="no-logger"),
    ],
)
def test_event_is_found_however_it_is_logged(code: str, events: list[tuple[str, str, list[str]]]) -> None:
    assert list(_logged(ast.parse(code))) == events


def test_page_of_events_keeps_its_words_and_names_an_event_that_has_none() -> None:
    row = ({"info", "error"}, {"pod"}, {"criproxy/a.py"})
    before = events({"kill": row, "stop": row}, {"kill": "It is killed | at once.", "stop": "It stops."})
    page = events({"kill": row, "evict": row}, words_of(before))
    assert words_of(page) == {"evict": "", "kill": "It is killed | at once."}
    assert list(unexplained(page)) == ["docs/log-events.md has no words for `evict`: write them in its row"]
    assert events({"kill": row, "evict": row}, words_of(page)) == page


def test_links_between_pages_lead_to_a_file_and_a_heading_that_are_there() -> None:
    pages = [
        page for folder in (".", "docs", "cluster", "examples", ".github") for page in (ROOT / folder).glob("*.md")
    ]
    headings = {page: set(_anchors(page.read_text(encoding="utf-8"))) for page in pages}
    wrong = []
    for page in pages:
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists() or (anchor and anchor not in headings.get(target, {anchor})):
                wrong.append(f"{page.relative_to(ROOT)}: {link}")
    assert wrong == []


def test_pages_that_messages_name_are_there() -> None:
    code = [
        file for folder in ("criproxy", "cluster", "packaging") for file in (ROOT / folder).rglob("*") if file.is_file()
    ]
    named = {page for file in code for page in re.findall(rb"\bdocs/[\w-]+\.md\b", file.read_bytes())}
    assert {page for page in named if not (ROOT / page.decode()).exists()} == set()


def test_what_has_criproxy_speak_to_other_machines_says_how_its_service_is_let() -> None:
    """The unit keeps it to this machine."""
    service = (ROOT / "packaging" / "criproxy.service").read_text(encoding="utf-8")
    assert "IPAddressDeny=any\n" in service
    monitoring = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    texts = {
        "docs/kubernetes.md": (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8"),
        "Over TLS": monitoring.partition("### Over TLS\n")[2].partition("\n###")[0],
        "CriproxyDown": monitoring.partition("### CriproxyDown\n")[2].partition("\n###")[0],
        "observe.remote_address": next(one.description for one in settings() if one.key == "observe.remote_address"),
    }
    assert [name for name, text in texts.items() if "IPAddressAllow" not in text] == []


def test_what_scrapes_the_loopback_address_says_which_node_it_is() -> None:
    """Else all nodes have one `instance`."""
    text = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    found = re.findall(r"^```yaml\n(scrape_configs:.*?)^```", text, re.MULTILINE | re.DOTALL)
    statics = [one for snippet in found for job in yaml.safe_load(snippet)["scrape_configs"]
               for one in job.get("static_configs", ())]  # fmt: skip
    of_loopback = [one for one in statics if any(target.startswith("127.") for target in one["targets"])]
    assert of_loopback
    assert [one for one in of_loopback if "instance" not in one.get("labels", {})] == []


def test_runbook_of_an_alert_that_looks_back_a_day_says_so() -> None:
    """It fires for so long where a component was removed on purpose."""
    text = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    names = [one.name for one in ALERTS if "[1d]" in one.expr]
    assert names
    sections = {name: " ".join(text.partition(f"### {name}\n")[2].partition("\n###")[0].split()) for name in names}
    assert [name for name, section in sections.items() if "for a day" not in section] == []


def test_lines_for_cron_have_no_percent_sign_that_ends_the_command() -> None:
    lines = [line for page in (ROOT / "docs").glob("*.md") for line in page.read_text(encoding="utf-8").splitlines()]
    for_cron = [line for line in lines if re.search(r"\bcron\b|^([\d*/,-]+ ){5}", line)]
    assert any("criproxy page --save" in line for line in for_cron)
    assert [line for line in for_cron if re.search(r"(?<!\\)%", line)] == []


def _anchors(page: str) -> Iterator[str]:
    """As GitHub makes them of headings."""
    for line in re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL).splitlines():
        if line.startswith("#"):
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line.lstrip("# ")).lower()
            yield re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def test_table_of_what_differs_between_versions_of_cgroups_is_what_the_judge_does() -> None:
    text, found = (ROOT / "docs" / "harm.md").read_text(encoding="utf-8"), list[str]()
    judged = [Judge(LadderSettings(), spares_memory=v2)._as_can_be(LadderSettings()) for v2 in (False, True)]
    accounted = {one.suspects[0] for one in DETECTORS if one.stock}
    for rows in zip(*(one.resources for one in judged), strict=True):
        if rows[0].name != PIDS:
            untried = "by account" if rows[0].name in accounted else "not tried"
            cells = ("experiment" if one.phase_s is not None else untried for one in rows)
            found.append(f"  | {rows[0].words} | {' | '.join(cells)} |")
    assert "\n".join(found) in text
