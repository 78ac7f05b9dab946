"""`criproxy upgrade` signals nobody but a criproxy that serves and can hand over, and says what became of it."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from criproxy import cli
from criproxy.commands import upgrade as module
from criproxy.commands.upgrade import NotUpgradedError, upgrade
from criproxy.observe.status import Status, UpgradeStatus
from criproxy.observe.why import Why
from tests.answering import Answers, answering
from tests.test_cli import STATUS

NOBODY = Path("/run/criproxy/nobody.sock")
SERVE = """
import os, signal, socket, sys, time
name, symlink, how = sys.argv[1:]
def ready(target):
    os.symlink(os.path.basename(target), symlink + "~")
    os.rename(symlink + "~", symlink)
server = socket.socket(socket.AF_UNIX)
own = f"{name}.{os.getpid()}"
server.bind(own)
server.listen()
def take(*_):
    if how == "ends":
        os._exit(0)
if how != "deaf":
    signal.signal(signal.SIGUSR2, take)
ready(own if how != "other-name" else "other.1")
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def serving(listen: Path, how: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(listen), str(listen), how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "_BEFORE_S", 0.0)
    return tmp_path / "c.sock"


def why(listen: Path) -> str:
    with pytest.raises(NotUpgradedError) as refused:
        upgrade(listen, NOBODY)
    return str(refused.value)


@pytest.mark.parametrize("there", ["nothing", "file", "dangling", "bypass"])
def test_nobody_who_serves_is_told(listen: Path, there: str) -> None:
    match there:
        case "file":
            listen.write_text("")
        case "dangling":
            listen.symlink_to("c.sock.4194304")
        case "bypass":
            listen.symlink_to("/run/criproxy/bypass.sock")
    assert why(listen).startswith(f"no criproxy serves at {listen}: start it; where proxy.listen has changed")


def test_process_of_another_name_is_not_signalled(listen: Path) -> None:
    with serving(listen, "other-name") as process:
        assert "no criproxy serves" in why(listen)
        assert process.poll() is None


def test_name_of_another_process_is_not_believed(listen: Path) -> None:
    """A pid may be somebody else's by now: who listens must be who is named."""
    with serving(listen, "deaf") as process:
        os.rename(f"{listen}.{process.pid}", f"{listen}.{os.getpid()}")
        listen.unlink()
        listen.symlink_to(f"c.sock.{os.getpid()}")
        assert "no criproxy serves" in why(listen)


def test_process_that_the_signal_would_end_is_spared(listen: Path) -> None:
    with serving(listen, "deaf") as process:
        assert why(listen) == f"pid {process.pid} is of a version that can't hand over: restart criproxy"
        time.sleep(0.1)
        assert process.poll() is None


def test_process_that_ends_instead_is_told(listen: Path) -> None:
    with serving(listen, "ends") as process:
        threading.Thread(target=process.wait).start()  # a zombie is not gone
        assert f"pid {process.pid} has ended, and no other serves" in why(listen)


def test_process_that_does_nothing_is_told_in_the_end(listen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LIMIT_S", 0.5)
    with serving(listen, "waits") as process:
        assert why(listen) == f"pid {process.pid} still serves after 0.5 s: see its log"


def test_process_that_took_over_before_a_silent_runtime_is_told(listen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ANSWER_S", 0.5)
    with ExitStack() as stack:
        old = stack.enter_context(serving(listen, "waits"))
        news: list[subprocess.Popen[bytes]] = []
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", lambda *_: news.append(stack.enter_context(serving(listen, "waits"))))
            told = why(listen)
        assert told.startswith(f"pid {news[0].pid} has taken over, and the runtime does not answer through it: ")
        assert old.poll() is None


def test_process_that_takes_over_and_ends_the_old_one_while_the_status_is_asked_for_is_found(
    listen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without calls to finish the old one ends at once, and the status is answered when the new one is at it."""
    monkeypatch.setattr(module, "_ANSWER_S", 0.5)
    with ExitStack() as stack:
        old = stack.enter_context(serving(listen, "waits"))
        news: list[subprocess.Popen[bytes]] = []
        asked: list[Path] = []

        def status(at: Path) -> None:
            asked.append(at)
            if len(asked) == 2:  # the first time, nobody was signalled yet
                news.append(stack.enter_context(serving(listen, "waits")))
                old.kill()
                old.wait()

        monkeypatch.setattr(module, "_status", status)
        assert why(listen).startswith(f"pid {news[0].pid} has taken over")


@pytest.mark.parametrize("before_s", [10.0, 0.0], ids=["it answers in time", "it does not"])
def test_failure_of_an_earlier_upgrade_is_not_taken_for_one_of_this(
    listen: Path, monkeypatch: pytest.MonkeyPatch, before_s: float
) -> None:
    monkeypatch.setattr(module, "_ANSWER_S", 0.5)
    monkeypatch.setattr(module, "_BEFORE_S", before_s)
    with ExitStack() as stack:
        old = stack.enter_context(serving(listen, "waits"))
        news: list[subprocess.Popen[bytes]] = []
        asked: list[Path] = []

        def status(at: Path) -> Status | None:
            asked.append(at)
            if len(asked) == 4:
                news.append(stack.enter_context(serving(listen, "waits")))
            failed = UpgradeStatus(failed=1, problem="a write was blocked", refused=True)
            return replace(STATUS, pid=old.pid, upgrade=failed) if len(asked) > 1 else None

        monkeypatch.setattr(module, "_status", status)
        assert why(listen).startswith(f"pid {news[0].pid} has taken over")


# --- with what it ends -----------------------------------------------------------------------------------------------

GOOD, WRONG = "", "[cpu]\nmin_cores = true\n"


def config_of(listen: Path, more: str = "") -> str:
    return f'[proxy]\nlisten = "{listen}"\n{more}'


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The service's config; the file `pid` beside it says which process systemd has for it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/systemctl").write_text(f"#!/bin/sh\nprintf MainPID=\ncat {tmp_path}/pid\n")
    (tmp_path / "bin/systemctl").chmod(0o755)
    (tmp_path / "pid").write_text("0\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(cli, "DEFAULT_CONFIG", tmp_path / "config.toml")
    monkeypatch.setattr(module, "_LIMIT_S", 1.0)
    return tmp_path / "config.toml"


def ended_with(config: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    return cli.main(["upgrade", "--config", str(config)]), capsys.readouterr().err


def answering_as(pid: int, failed: UpgradeStatus, listen: Path) -> AbstractContextManager[object]:
    """Its status, from the second question on: an upgrade has failed."""
    asked: list[int] = []

    def status() -> Status:
        asked.append(pid)
        return replace(STATUS, pid=pid, upgrade=failed if len(asked) > 1 else UpgradeStatus())

    endpoints = Answers(
        page=lambda: "",
        metrics=lambda: b"",
        unhealthy=lambda: None,
        unready=lambda: None,
        status=status,
        why=lambda asked_s: Why(asked_s, 1.7e9, None),
    )
    return answering(listen.with_name(f"{listen.stem}-status{listen.suffix}"), endpoints)


@pytest.mark.parametrize(
    ("refused", "status"), [pytest.param(True, 6, id="refused"), pytest.param(False, 1, id="did-not-start")]
)
def test_status_of_an_upgrade_tells_whether_it_was_refused(
    service: Path, listen: Path, capsys: pytest.CaptureFixture[str], refused: bool, status: int
) -> None:
    service.write_text(config_of(listen))
    with serving(listen, "waits") as process:
        failed = UpgradeStatus(failed=1, problem="a write is blocked: try again", refused=refused)
        with answering_as(process.pid, failed, listen):
            ended = ended_with(service, capsys)
    assert ended == (status, f"not upgraded: pid {process.pid} goes on: a write is blocked: try again\n")


@pytest.mark.parametrize("how", ["waits", "deaf"], ids=["no-word-of-a-refusal", "can-not-hand-over"])
def test_upgrade_that_fails_while_the_config_has_errors_is_refused(
    service: Path, listen: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """Whatever it fails of, and whatever an old version says of it: a restart would make a pass-through."""
    service.write_text(config_of(listen, WRONG))
    with serving(listen, how):
        status, said = ended_with(service, capsys)
    assert status == 6
    assert "a restart would place no pod, as the config has errors: correct it (`criproxy check`)" in said


def test_upgrade_before_a_silent_runtime_has_a_status_of_its_own(
    service: Path, listen: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ANSWER_S", 0.5)
    service.write_text(config_of(listen, WRONG))
    with ExitStack() as stack:
        stack.enter_context(serving(listen, "waits"))
        monkeypatch.setattr(os, "kill", lambda *_: stack.enter_context(serving(listen, "waits")))
        status, said = ended_with(service, capsys)
        monkeypatch.undo()
    assert status == 7
    assert "has taken over, and the runtime does not answer through it" in said


def test_upgrade_that_fails_by_a_good_config_is_not_refused(
    service: Path, listen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.write_text(config_of(listen))
    with serving(listen, "waits"):
        assert ended_with(service, capsys)[0] == 1


@pytest.mark.parametrize("more", [GOOD, WRONG, "]"], ids=["in-order", "with-an-error", "no-toml"])
def test_service_that_serves_elsewhere_since_the_config_was_changed_is_found_and_refuses(
    service: Path, listen: Path, capsys: pytest.CaptureFixture[str], more: str
) -> None:
    service.write_text(config_of(listen.with_name("other.sock"), more))
    with serving(listen, "waits") as process:
        service.with_name("pid").write_text(f"{process.pid}\n")
        status, said = ended_with(service, capsys)
        assert process.poll() is None
    assert status == 6
    assert said.startswith(f"not upgraded: pid {process.pid} still serves after 1 s: see its log; a restart would ")


@pytest.mark.parametrize("config", ["config.toml", "another.toml"])
@pytest.mark.parametrize("pid", ["0", "", "4194304"])
def test_nobody_is_found_where_systemd_has_no_process_or_is_not_asked(
    service: Path, listen: Path, capsys: pytest.CaptureFixture[str], config: str, pid: str
) -> None:
    """Who names another config means another criproxy than the service."""
    file = service.with_name(config)
    file.write_text(config_of(listen.with_name("other.sock"), WRONG))
    with serving(listen, "waits") as process:
        service.with_name("pid").write_text(f"{process.pid if config == 'another.toml' else pid}\n")
        status, said = ended_with(file, capsys)
    assert status == 1
    assert "no criproxy serves at" in said


def test_nobody_is_found_without_systemd(
    service: Path, listen: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.write_text(config_of(listen))
    monkeypatch.setenv("PATH", str(listen.with_name("nothing")))
    assert ended_with(service, capsys)[0] == 1
