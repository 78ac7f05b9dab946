"""The part that keeps the sentry's rules as the config in force has them."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from criproxy.concurrency.worker import Worker
from criproxy.fronts.sentry.rules import SentryRules, rules_file
from tests.fakes.log import FakeLog
from tests.fakes.part import look, node_settings

STALE = b"[]"


@pytest.fixture
def part(tmp_path: Path) -> SentryRules:
    made = SentryRules(tmp_path / "rules", Worker("sentry-rules", 5.0))
    made.file.write_bytes(STALE)
    return made


def subjects(part: SentryRules) -> list[str]:
    return [rule["key"] for rule in msgspec.json.decode(part.file.read_bytes())]


NRI = 'proxy.front = "nri"\n'
CASES = {
    "on": (NRI, {}, True),
    "off": (NRI, {"enabled": False}, False),
    "a dry run": (NRI, {"dry_run": True}, False),
    "a config with errors at the start": (NRI, {"pass_through": True}, False),
    "held off": (NRI, {"held_off": "repair"}, True),
    "the other front": ("", {}, False),
}


@pytest.mark.parametrize(("text", "changed", "some"), CASES.values(), ids=CASES.keys())
def test_the_rules_are_there_while_pods_are_placed(part: SentryRules, text: str, changed: dict, some: bool) -> None:
    part.configure(node_settings(text, **changed))
    look(part, FakeLog())

    assert bool(subjects(part)) == some
    assert part.failure == ""


def test_a_changed_config_is_written_before_its_time(part: SentryRules) -> None:
    part.configure(node_settings(NRI))
    look(part, FakeLog())
    before = subjects(part)
    part.configure(node_settings(NRI + 'colocation.presets = ["koordinator"]'))

    assert part.wake.is_set
    look(part, FakeLog())
    assert set(subjects(part)) - set(before) == {"koordinator.sh/qosClass"}


def test_without_a_sentry_there_is_no_file(part: SentryRules) -> None:
    part.file.unlink()
    part.configure(node_settings(NRI))
    look(part, FakeLog())

    assert os.listdir(part.file.parent) == []


def test_a_full_disk_is_a_problem_and_keeps_the_rules(part: SentryRules, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    part.configure(node_settings(NRI))
    look(part, FakeLog())

    assert part.file.read_bytes() == STALE
    assert "No space left" in part.failure
    assert os.listdir(part.file.parent) == ["rules"]


def test_an_unchanged_file_is_left_alone(part: SentryRules) -> None:
    part.configure(node_settings(NRI))
    part.file.write_bytes(rules_file(node_settings(NRI).config.colocation.offline_rules()))
    before = part.file.stat()
    asyncio.run(part.look())

    assert part.file.stat().st_ino == before.st_ino
    assert part.file.stat().st_mtime_ns == before.st_mtime_ns
