"""A bench for each test."""

from pathlib import Path

import pytest

from tests.commands.attach.attach_bench import Bench
from tests.fakes.node import FakeNode


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    config = tmp_path / "config.toml"
    config.write_text("")
    return Bench(FakeNode(tmp_path / "root"), config, capsys)
