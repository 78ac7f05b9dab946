"""`criproxy metrics`, at served answers."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from criproxy.cli import main
from criproxy.observe.exposition import Registry, Value, add_process_metrics
from criproxy.observe.why import Why
from tests.answering import Answers, answering
from tests.observe.status_samples import STATUS


def exposed() -> bytes:
    registry = Registry()
    Value("gauge", "criproxy_fakes", "Fakes", ("which",), registry=registry).set(3, "process_a")
    add_process_metrics(registry)
    return registry.render()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(f'[proxy]\nlisten = "{tmp_path}/c.sock"\n')
    return file


@pytest.fixture
def served(config: Path) -> Iterator[Path]:
    answers = Answers(
        page=lambda: "",
        metrics=exposed,
        unhealthy=lambda: None,
        unready=lambda: None,
        status=lambda: STATUS,
        why=lambda asked_s: Why(asked_s, None, None),
    )
    with answering(config.with_name("c-status.sock"), answers):
        yield config


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "textfiles").mkdir()
    return tmp_path / "textfiles" / "criproxy.prom"


def test_metrics_are_printed(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "--config", str(served)]) == 0
    out = capsys.readouterr().out
    assert 'criproxy_fakes{which="process_a"} 3.0\n' in out and "process_open_fds" in out


def test_textfile_is_replaced_at_once_and_lacks_what_node_exporter_has(served: Path, file: Path) -> None:
    file.write_text("of old")
    before = file.open()
    assert main(["metrics", "--config", str(served), "--textfile", str(file)]) == 0
    assert before.read() == "of old", "who reads it meanwhile has all of the old one"
    (family,) = text_string_to_metric_families(file.read_text())
    assert [(one.labels, one.value) for one in family.samples] == [({"which": "process_a"}, 3.0)]
    assert stat.S_IMODE(file.stat().st_mode) == 0o644, "node_exporter is another user"
    assert [*file.parent.iterdir()] == [file]


def test_textfile_goes_when_criproxy_does_not_answer(
    config: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("of old")
    assert main(["metrics", "--config", str(config), "--textfile", str(file)]) == 3
    assert not file.exists()
    assert "no criproxy answers" in capsys.readouterr().err


def test_textfile_that_cannot_be_written_is_told(
    served: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metrics", "--config", str(served), "--textfile", str(tmp_path / "nowhere" / "c.prom")]) == 1
    assert "make its folder" in capsys.readouterr().err


def test_textfile_has_the_name_that_the_collector_looks_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["metrics", "--textfile", "/tmp/criproxy.txt"])
    assert ended.value.code == 2
    assert "does not end with .prom" in capsys.readouterr().err
