"""`criproxy top` on a terminal: tmux's, of 80 by 24."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from criproxy.cli import main
from criproxy.observe.status import Status
from criproxy.observe.why import Why
from tests.answering import Answers, answering
from tests.commands.top.test_top_screen import PODS, status
from tests.fakes.waiting import wait_until

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Node:
    """A node whose status a test changes."""

    def __init__(self, config: Path) -> None:
        self.config, self.shown = config, status(*PODS, problems=())

    def status(self) -> Status:
        return self.shown


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    config = tmp_path / "config.toml"
    config.write_text(f'[proxy]\nlisten = "{tmp_path}/c.sock"\n')
    node = Node(config)
    answers = Answers(
        page=lambda: "",
        metrics=lambda: b"",
        unhealthy=lambda: None,
        unready=lambda: None,
        status=node.status,
        why=lambda asked_s: Why(asked_s, None, None),
    )
    with answering(tmp_path / "c-status.sock", answers):
        yield node


class Terminal:
    """A tmux server of its own, with one window."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self._socket = folder / "tmux"
        self.tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", *command, ";", "set", "remain-on-exit"
        )

    def tmux(self, *arguments: str) -> str:
        return subprocess.run(
            ["tmux", "-S", self._socket, *arguments], check=True, capture_output=True, text=True, timeout=20
        ).stdout

    def lines(self) -> list[str]:
        return self.tmux("capture-pane", "-p").split("\n")

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def sees(self, what: Callable[[list[str]], bool]) -> None:
        try:
            wait_until(lambda: what(self.lines()))
        except AssertionError:
            raise AssertionError("the screen has\n" + "\n".join(self.lines())) from None


@pytest.fixture
def terminal(node: Node, tmp_path: Path) -> Iterator[Terminal]:
    one = Terminal(tmp_path, [sys.executable, "-m", "criproxy", "top", "--config", str(node.config)])
    yield one
    one.tmux("kill-server")


def pods(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines if line.startswith("batch/")]


@needs_tmux
def test_screen_is_live_sorts_pauses_resizes_and_ends(node: Node, terminal: Terminal) -> None:
    terminal.sees(lambda lines: pods(lines) == ["batch/big", "batch/small", "batch/new"])
    assert len(terminal.lines()[5]) == 80
    assert terminal.lines()[23].startswith("q quit")

    terminal.keys("n")
    terminal.sees(lambda lines: pods(lines) == ["batch/big", "batch/new", "batch/small"])
    terminal.keys("Space")
    terminal.sees(lambda lines: "paused" in lines[0])
    node.shown = replace(node.shown, problems=("the box is gone",))
    terminal.keys("h")
    terminal.sees(lambda lines: lines[6].startswith("CPU    cores in use"))
    terminal.keys("h", "Space")
    terminal.sees(lambda lines: lines[3] == "not well: the box is gone")

    terminal.tmux("resize-window", "-x", "120", "-y", "10")
    terminal.sees(lambda lines: len(lines[5]) == 120 and len(pods(lines)) == 3 and lines[9].startswith("q quit"))
    terminal.keys("q")
    terminal.sees(lambda lines: "Pane is dead" in "".join(lines))


def test_without_a_terminal_it_is_printed_once(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--config", str(node.config)]) == 0
    assert pods(capsys.readouterr().out.split("\n")) == ["batch/big", "batch/small", "batch/new"]


def test_criproxy_that_does_not_run_is_status_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[proxy]\nlisten = "{tmp_path}/c.sock"\n')
    assert main(["top", "--config", str(config)]) == 3
    assert "no criproxy answers" in capsys.readouterr().err
