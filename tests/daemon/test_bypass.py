"""What the bypass's switch is told, and what is told of it; the switch itself, between a systemd of shell."""

import os
import re
import shlex
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.daemon.bypass import Bypass, BypassStatus, directories_of_service, open_since_s

SWITCH = Path(__file__).resolve().parents[2] / "packaging" / "criproxy-bypass.sh"
SERVICE = SWITCH.with_name("criproxy.service")
LISTEN, RUNTIME = Path("/run/l.sock"), Path("/run/r.sock")


def read_environment_file(text: str) -> Mapping[str, str]:
    """Source: systemd.exec(5), EnvironmentFile=: within double quotes, as a shell reads it."""
    lines = shlex.split(text, posix=True)
    unescaped = (line.replace("\\$", "$").replace("\\`", "`") for line in lines)
    return dict(line.split("=", 1) for line in unescaped)


def told(directory: Path) -> Mapping[str, str]:
    return read_environment_file((directory / "bypass.env").read_bytes().decode())


# --- what it is told -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "directories"),
    [
        pytest.param({}, (), id="no-service"),
        pytest.param({"STATE_DIRECTORY": "/var/lib/c"}, (), id="no-runtime-directory"),
        pytest.param({"RUNTIME_DIRECTORY": "/run/c:/run/d"}, (Path("/run/c"),), id="the-first-one"),
        pytest.param(
            {"RUNTIME_DIRECTORY": "/run/c", "STATE_DIRECTORY": "/var/lib/c"},
            (Path("/var/lib/c"), Path("/run/c")),
            id="both",
        ),
    ],
)
def test_directories_of_service_are_there_with_a_runtime_directory(
    environ: Mapping[str, str], directories: tuple[Path]
) -> None:
    assert directories_of_service(environ) == directories


@pytest.mark.parametrize(("after_s", "word"), [(10.0, "10"), (2.5, "2.5"), (None, "never")])
def test_tell_writes_everywhere(tmp_path: Path, after_s: float | None, word: str) -> None:
    state, run = tmp_path / "state", tmp_path / "run"
    for directory in (state, run):
        directory.mkdir()
    Bypass((state, run), LISTEN, RUNTIME, after_s).tell()
    facts = {"CRIPROXY_LISTEN": "/run/l.sock", "CRIPROXY_RUNTIME": "/run/r.sock", "CRIPROXY_BYPASS_AFTER_S": word}
    assert told(state) == told(run) == facts


@given(st.text(st.characters(exclude_characters="\0\n\\`$", codec="utf-8"), min_size=1))
def test_tell_quotes_any_path(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    directory = tmp_path_factory.mktemp("run")
    Bypass((directory,), Path("/") / name.strip("/"), RUNTIME, None).tell()
    assert told(directory)["CRIPROXY_LISTEN"] == str(Path("/") / name.strip("/"))


def test_tell_escapes_what_systemd_and_shells_read(tmp_path: Path) -> None:
    Bypass((tmp_path,), Path('/a"b\\c$d`e'), RUNTIME, None).tell()
    assert (tmp_path / "bypass.env").read_text().splitlines()[0] == r'CRIPROXY_LISTEN="/a\"b\\c\$d\`e"'


def test_tell_where_it_may_not_write_names_the_file_and_writes_the_rest(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert str(gone / "bypass.env") in Bypass((gone, tmp_path), LISTEN, RUNTIME, 5.0).tell()
    assert told(tmp_path)["CRIPROXY_BYPASS_AFTER_S"] == "5"


def test_tell_that_fails_keeps_what_was_there(tmp_path: Path) -> None:
    bypass = Bypass((tmp_path,), LISTEN, RUNTIME, 5.0)
    assert bypass.tell() == ""
    (tmp_path / "bypass.new").mkdir()  # in the way of the new file
    bypass.configure(6.0)
    assert str(tmp_path / "bypass.env") in bypass.tell()
    bypass.configure(5.0)
    assert bypass.tell() == "", "nothing to write"
    assert told(tmp_path)["CRIPROXY_BYPASS_AFTER_S"] == "5"


# --- what is told of it ----------------------------------------------------------------------------------------------


def open_bypass(directory: Path) -> Path:
    """Where criproxy would listen."""
    listen = directory / "l.sock"
    listen.symlink_to(directory / "bypass.sock")
    return listen


def test_status_is_none_without_a_service() -> None:
    assert Bypass((), LISTEN, RUNTIME, 10.0).status() is None


def test_status_of_a_bypass_that_was_never_open(tmp_path: Path) -> None:
    assert Bypass((tmp_path,), tmp_path / "l.sock", RUNTIME, 10.0).status() == BypassStatus(10.0, None, 0, None)


def test_status_tells_since_when_it_is_open_and_how_often_it_was(tmp_path: Path) -> None:
    listen = open_bypass(tmp_path)
    os.utime(listen, (1000.0, 1000.0), follow_symlinks=False)
    (tmp_path / "bypass.uses").write_text("3\n")
    os.utime(tmp_path / "bypass.uses", (999.0, 999.0))
    assert Bypass((tmp_path,), listen, RUNTIME, 10.0).status() == BypassStatus(10.0, 1000.0, 3, 999.0)


def test_open_since_is_none_where_the_way_leads_to_criproxy(tmp_path: Path) -> None:
    listen = tmp_path / "l.sock"
    listen.symlink_to("l.sock.12")
    assert open_since_s(listen, tmp_path / "bypass.sock") is None


@pytest.mark.parametrize(
    ("is_open", "after_s", "words"),
    [
        pytest.param(True, 10.0, "the bypass is open", id="open"),
        pytest.param(False, 10.0, "opens 10 s after criproxy's end", id="armed"),
        pytest.param(False, None, "the bypass is off", id="never"),
    ],
)
def test_while_away_tells_where_calls_end(tmp_path: Path, is_open: bool, after_s: float | None, words: str) -> None:
    listen = open_bypass(tmp_path) if is_open else tmp_path / "l.sock"
    assert words in (Bypass((tmp_path,), listen, RUNTIME, after_s).while_away() or "")


def test_while_away_says_nothing_where_criproxy_never_was_a_service(tmp_path: Path) -> None:
    assert Bypass((tmp_path / "gone",), LISTEN, RUNTIME, 10.0).while_away() is None


# --- the switch ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """The switch in a directory of its own, with a `systemctl` that logs its words, and a time that passes only as
    something sleeps, or waits for an answer.
    """

    directory: Path

    def __post_init__(self) -> None:
        (self.directory / "bin").mkdir()
        (self.directory / "uptime").write_text("1000.0 5.0\n")
        self.command(
            "systemctl",
            f'cd {self.directory}\necho "$*" >>log\nif [ -e hangs ]; then pass 25; exit 1; fi\n'
            'if grep -q . unanswered 2>/dev/null; then sed -i 1d unanswered; exit 1; fi\ncase "$*" in\n'
            '*is-active*) for word; do [ ! -e "active.$word" ] || exit 0; done; exit 3;;\n'
            "is-system-running) cat state 2>/dev/null || echo running;;\n"
            "show*) cat load 2>/dev/null || echo loaded;;\n"
            "*start*) [ ! -e refuses ] || exit 1;;\nesac\n",
        )
        self.command("sleep", f'echo "$1" >>{self.directory}/slept\npass "$1"\n')
        self.command("timeout", f'if [ -e {self.directory}/hangs ]; then pass "$1"; exit 124; fi\nshift\nexec "$@"\n')
        passed = "awk -v by=\"$1\" '{ print $1 + by }' uptime >uptime.new && mv uptime.new uptime"
        self.command("pass", f"cd {self.directory} && {passed}\n")
        switch = SWITCH.read_text().replace("directory=/run/criproxy\n", f"directory={self.directory}\n")
        (self.directory / "switch").write_text(switch.replace("/proc/uptime", f"{self.directory}/uptime"))

    def command(self, name: str, script: str) -> None:
        path = self.directory / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}")
        path.chmod(0o755)

    @property
    def passed_s(self) -> float:
        return float((self.directory / "uptime").read_text().split()[0]) - 1000.0

    def leave_unanswered(self, calls: int) -> None:
        """Systemd does not answer the next calls."""
        (self.directory / "unanswered").write_text("one\n" * calls)

    def activate(self, unit: str) -> None:
        (self.directory / f"active.{unit}").touch()

    def run(self, verb: str, after: str = "0", **environ: str) -> subprocess.CompletedProcess[str]:
        facts = {
            "CRIPROXY_LISTEN": str(self.listen),
            "CRIPROXY_RUNTIME": str(self.directory / "runtime.sock"),
            "CRIPROXY_BYPASS_AFTER_S": after,
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
        }
        command = ["sh", str(self.directory / "switch"), verb]
        return subprocess.run(command, env=facts | environ, capture_output=True, text=True, timeout=30, check=False)

    @property
    def listen(self) -> Path:
        return self.directory / "deep" / "l.sock"

    @property
    def log(self) -> list[str]:
        return (self.directory / "log").read_text().splitlines()

    @property
    def slept_s(self) -> list[str]:
        slept = self.directory / "slept"
        return slept.read_text().split() if slept.exists() else []

    def listen_at(self, name: str) -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(self.directory / name))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_wait_opens_the_bypass_once(stage: Stage) -> None:
    stage.listen_at("bypass.sock")
    stage.listen_at("runtime.sock")
    (stage.directory / "runtime.sock").chmod(0o620)
    for _ in range(2):
        assert stage.run("wait").returncode == 0
    assert stage.listen.readlink() == stage.directory / "bypass.sock"
    assert (stage.directory / "bypass.sock").stat().st_mode & 0o777 == 0o620
    assert (stage.directory / "bypass.uses").read_text() == "1\n"
    assert stage.log.count("start criproxy-bypass.socket") == 1


def test_wait_takes_the_place_of_a_dead_criproxy(stage: Stage) -> None:
    stage.listen.parent.mkdir()
    stage.listen.symlink_to("l.sock.77")
    assert stage.run("wait").returncode == 0
    assert stage.listen.readlink() == stage.directory / "bypass.sock"
    assert [entry.name for entry in stage.listen.parent.iterdir()] == ["l.sock"]


def test_wait_leaves_a_criproxy_that_is_back(stage: Stage) -> None:
    stage.activate("criproxy.service")
    assert stage.run("wait").returncode == 0
    assert not stage.listen.is_symlink()


def test_wait_for_ever_opens_nothing(stage: Stage) -> None:
    assert stage.run("wait", "never").returncode == 0
    assert not stage.listen.is_symlink()


def test_wait_leaves_what_is_not_criproxys(stage: Stage) -> None:
    stage.listen.parent.mkdir()
    stage.listen.write_text("precious")
    done = stage.run("wait")
    assert (done.returncode, stage.listen.read_text()) == (78, "precious")
    assert str(stage.listen) in done.stderr
    assert len(stage.log) == 1, "it is not tried again"


def test_wait_goes_on_until_systemd_answers(stage: Stage) -> None:
    stage.leave_unanswered(3)
    assert stage.run("wait").returncode == 0
    assert stage.listen.is_symlink()
    assert stage.log == [*["--quiet is-active criproxy.service"] * 4, "start criproxy-bypass.socket"]
    assert stage.slept_s == ["0", "1", "1", "1"]


def test_wait_without_any_answer_leaves_a_criproxy_that_may_be_back(stage: Stage) -> None:
    stage.activate("criproxy.service")
    stage.leave_unanswered(1000)
    assert stage.run("wait").returncode == 1
    assert not stage.listen.is_symlink()
    assert "start criproxy-bypass.socket" not in stage.log


def test_wait_tries_again_to_open_what_systemd_did_not_start(stage: Stage) -> None:
    systemctl = stage.directory / "bin" / "systemctl"
    systemctl.write_text(
        systemctl.read_text() + 'case "$*" in start*) mkdir tried 2>/dev/null && exit 1;; esac; exit 0\n'
    )
    assert stage.run("wait").returncode == 0
    assert stage.listen.is_symlink()
    assert stage.log.count("start criproxy-bypass.socket") == 2


def test_wait_opens_where_nothing_can_be_noted(stage: Stage) -> None:
    (stage.directory / "bypass.uses.new").mkdir()
    stage.run("wait")
    assert stage.listen.is_symlink()


def test_ended_arms_the_bypass_without_waiting(stage: Stage) -> None:
    assert stage.run("ended", SERVICE_RESULT="success").returncode == 0
    assert stage.log == [
        "--no-block start criproxy-bypass-arm.service",
        "--no-block start criproxy-withdraw.timer",
    ]


def test_ended_arms_the_bypass_also_where_systemd_does_not_answer_at_once(stage: Stage) -> None:
    stage.leave_unanswered(5)
    assert stage.run("ended", SERVICE_RESULT="success").returncode == 0
    arm, withdraw = "--no-block start criproxy-bypass-arm.service", "--no-block start criproxy-withdraw.timer"
    assert [line for line in stage.log if "start" in line] == [arm, arm, arm, withdraw]


@pytest.mark.parametrize("how", ["hangs", "refuses"])
def test_ended_does_not_outlast_the_stop_of_the_service(stage: Stage, how: str) -> None:
    (stage.directory / how).touch()
    stage.run("ended", SERVICE_RESULT="success")
    (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", SERVICE.read_text(), re.MULTILINE)
    assert 9.0 < stage.passed_s < int(stop_s) - 5


@pytest.mark.parametrize(
    ("file", "said"), [("state", "stopping"), ("load", "masked"), ("load", "not-found"), ("load", "bad-setting")]
)
def test_ended_tries_nothing_again_that_can_not_start(stage: Stage, file: str, said: str) -> None:
    """As at each reboot: containerd's stop waits for criproxy's."""
    (stage.directory / "refuses").touch()
    (stage.directory / file).write_text(f"{said}\n")
    stage.run("ended", SERVICE_RESULT="success")
    assert stage.slept_s == []
    assert [line.split()[-1] for line in stage.log if "start" in line] == [
        "criproxy-bypass-arm.service",
        "criproxy-withdraw.timer",
    ]


def crash(stage: Stage, times: int) -> None:
    for _ in range(times):
        stage.run("ended", SERVICE_RESULT="signal")


def test_ended_in_a_crash_loop_cuts_the_wait_short(stage: Stage) -> None:
    crash(stage, 5)
    armed = [line for line in stage.log if "bypass-arm" in line]
    assert armed[-2:] == [f"--no-block {verb} criproxy-bypass-arm.service" for verb in ("start", "restart")]
    assert "--no-block restart criproxy-withdraw.timer" not in stage.log, "its 15 minutes go on"


@pytest.mark.parametrize(("crashes", "held"), [(4, False), (5, True), (9, True)])
@pytest.mark.parametrize("is_open", [True, False], ids=["bypass", "no-bypass"])
def test_hold_waits_in_a_crash_loop(stage: Stage, crashes: int, held: bool, is_open: bool) -> None:
    """The shorter time where kubelet has no other way."""
    crash(stage, crashes)
    if is_open:
        stage.activate("criproxy-bypass.socket")
    wait_s, words = ("30", "stays open for 30 s") if is_open else ("5", "no bypass is open")
    said = stage.run("hold").stderr.splitlines()
    assert [words in line for line in said] == [True] * held
    assert stage.slept_s == [wait_s] * held
    assert len((stage.directory / "bypass.crashes").read_text().splitlines()) == min(crashes, 5)


def test_hold_does_not_outwait_a_bypass_that_cannot_open(stage: Stage) -> None:
    """What opens it tries for much longer, and begins anew then."""
    crash(stage, 5)
    (stage.directory / "refuses").touch()
    stage.activate("criproxy-bypass-arm.service")
    assert "no bypass is open" in stage.run("hold").stderr
    assert 4.0 <= stage.passed_s < 8.0


@pytest.mark.parametrize("at_s", [0.2, 4.0], ids=["at-once", "late"])
def test_hold_leaves_kubelet_in_a_bypass_that_opens_meanwhile(stage: Stage, at_s: float) -> None:
    crash(stage, 5)
    stage.activate("criproxy-bypass-arm.service")
    until = f"awk '$1 >= {1000 + at_s} {{ exit 1 }}' uptime"
    opens = "mv active.criproxy-bypass-arm.service active.criproxy-bypass.socket 2>/dev/null"
    sleep = stage.directory / "bin" / "sleep"
    stage.command("sleep", f"{sleep.read_text().partition(chr(10))[2]}cd {stage.directory}; {until} || {opens}\n")
    assert "stays open for 30 s" in stage.run("hold").stderr
    assert stage.slept_s[-1] == "30"


@pytest.mark.parametrize("is_open", [True, False], ids=["bypass", "no-bypass"])
def test_hold_forgets_crashes_after_an_end_in_order(stage: Stage, is_open: bool) -> None:
    crash(stage, 5)
    stage.run("ended", SERVICE_RESULT="success")
    if is_open:
        stage.activate("criproxy-bypass.socket")
    assert (stage.run("hold").stderr, stage.slept_s) == ("", [])


def test_wait_in_a_crash_loop_opens_at_once(stage: Stage) -> None:
    crash(stage, 5)
    assert stage.run("wait", "3600").returncode == 0
    assert stage.listen.is_symlink()
    assert stage.slept_s == []


def test_wait_lets_the_configured_time_pass_before_it_opens(stage: Stage) -> None:
    assert stage.run("wait", "3600").returncode == 0
    assert stage.slept_s == ["3600"]


def test_close_stops_the_switch_before_it_could_open_again(stage: Stage) -> None:
    assert stage.run("close").returncode == 0
    assert stage.log == [
        "stop criproxy-bypass-arm.service criproxy-bypass.socket criproxy-bypass.service",
        "stop criproxy-withdraw.timer criproxy-withdraw.service",
    ]


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "shut"])
def test_close_notes_until_when_the_bypass_was_open(stage: Stage, is_open: bool) -> None:
    (uses := stage.directory / "bypass.uses").write_text("3\n")
    os.utime(uses, (999.0, 999.0))
    if is_open:
        stage.listen_at("bypass.sock")
    assert stage.run("close").returncode == 0
    status = Bypass((stage.directory,), stage.listen, RUNTIME, 10.0).status()
    assert status is not None and status.uses == 3
    assert (status.last_s != 999.0) is is_open


def test_close_notes_nothing_where_the_opening_could_not_be_noted(stage: Stage) -> None:
    stage.listen_at("bypass.sock")
    assert stage.run("close").returncode == 0
    assert not (stage.directory / "bypass.uses").exists()


def test_switch_without_a_verb_it_knows_is_status_2(stage: Stage) -> None:
    assert stage.run("open").returncode == 2
