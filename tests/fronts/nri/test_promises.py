"""What the status says of this front's limits, and that docs/nri.md says the same."""

import re
from pathlib import Path

import pytest

from criproxy.fronts.nri.plugin import RuntimeSeen
from criproxy.fronts.nri.promises import CLOSED, OPEN, REQUIRED, Gaps, gaps, unmet
from criproxy.vocabulary.unboundable import CAPABILITIES
from tests.fakes.part import node_settings

PAGE = Path(__file__).parents[3] / "docs" / "nri.md"


def rows() -> list[list[str]]:
    text = PAGE.read_text().partition("## When nobody asks criproxy")[2].partition("*Open, found*")[0]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [row for row in found[2:] if "refused" not in row[1]]


@pytest.mark.parametrize("row", rows(), ids=[row[0] for row in rows()])
def test_the_page_says_of_each_runtime_what_the_status_does(row: list[str]) -> None:
    runtime, at_start, launched, away = row
    name, versions = runtime.split(",")[0].split(" (")[0].rsplit(" ", 1)
    name, version = name.removesuffix(" ≥"), versions.partition("–")[0]
    seen = RuntimeSeen(name, version)
    assert gaps(seen, starts=False, sentry=False).at_start == at_start
    if re.fullmatch(CLOSED, launched):
        assert gaps(seen, starts=True, sentry=False).at_start == launched
    if away != "as containerd":
        assert away == gaps(seen, starts=True, sentry=False).away
    assert gaps(seen, starts=True, sentry=True) == Gaps(CLOSED, CLOSED)
    assert gaps(seen, starts=False, sentry=True) == Gaps(at_start, CLOSED), "it runs, and its files have gone since"


def test_the_page_has_all_kinds_of_runtimes() -> None:
    assert {row[1] for row in rows()} == {OPEN, REQUIRED}


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("", ()),
        ("[network]\nmax_egress_bits_per_s = 1000000\n", ("network.max_egress_bits_per_s",)),
        ("[network]\nmax_ingress_bits_per_s = 1000000\n", ("network.max_ingress_bits_per_s",)),
        ('[hardening]\ncapabilities = ["NET_RAW"]\n', ("hardening.capabilities",)),
        (f"[hardening]\ncapabilities = {list(reversed(CAPABILITIES))}\n", ()),
        (f"[hardening]\ncapabilities = {[f'CAP_{one}' for one in CAPABILITIES]}\n", ()),
        ('[hardening]\ncapabilities = ["ALL"]\n', ()),
    ],
)
def test_settings_without_effect_are_named(text: str, keys: tuple[str, ...]) -> None:
    assert unmet(node_settings(text).config) == keys
