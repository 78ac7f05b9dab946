"""The verbs of the command line."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from msgspec.structs import replace

from criproxy import __version__
from criproxy.cgroup.naming import DEFAULT_BOXES
from criproxy.cli import main
from criproxy.daemon.kubernetes import POLICY_FILE
from criproxy.kube.policy import InForce, PolicyFile
from criproxy.observe.client import NotAllowedError
from criproxy.observe.status import BoxStatus, ConfigStatus, RuntimeStatus, Status, to_json
from criproxy.observe.why import Why
from criproxy.vocabulary.policy import NodePolicy
from tests.answering import Answers, answering

STATUS = Status(
    version=__version__,
    pid=1,
    uptime_s=1.0,
    dry_run=False,
    colocation="on",
    runtime=RuntimeStatus("/r", ready=False, version="", problem="gone"),
    config=ConfigStatus("/c", (), ()),
    box=BoxStatus("/offline", 0, 0, 0, {}),
    pods=(),
)
OFFLINE_POD = """
kind: Pod
metadata: {name: job, labels: {colocation.criproxy.io/class: offline}}
spec: {containers: [{name: c}]}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config of a node whose criproxy is served by `served`, or by nobody."""
    file = tmp_path / "config.toml"
    file.write_text(f'[proxy]\nlisten = "{tmp_path}/c.sock"\n[colocation]\nenabled = true\n')
    return file


@pytest.fixture
def served(config: Path) -> Iterator[Path]:
    endpoints = Answers(
        page=lambda: "",
        metrics=lambda: b"",
        unhealthy=lambda: None,
        unready=lambda: None,
        status=lambda: STATUS,
        why=lambda asked_s: Why(asked_s, 1.7e9, None),
    )
    with answering(config.with_name("c-status.sock"), endpoints):
        yield config


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"criproxy {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["explain"]], ids=["none", "unknown", "missing"])
def test_command_line_that_is_wrong_is_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_check_of_a_good_file_is_ok_with_a_summary(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(config)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{config}: ok\n")
    assert "colocation on" in out


@pytest.mark.parametrize("there", [True, False], ids=["criu", "no criu"])
def test_check_warns_where_a_runtime_would_restore_checkpoints(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    if there:
        (tmp_path / "criu").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["check", "--config", str(config)]) == 0
    assert (f"warning: {tmp_path}/criu is there" in capsys.readouterr().out) is there


def test_check_of_a_bad_file_tells_all_errors(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("[cpu]\nmin_cores = 0\ntypo = 1\n")
    assert main(["check", "--config", str(config)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert [line.split(": ")[1].split(" = ")[0] for line in told.err.splitlines()] == ["cpu.typo", "cpu.min_cores"]


def test_check_of_a_missing_file_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(tmp_path / "none")]) == 1
    assert "there is no such file" in capsys.readouterr().err


def test_explain_tells_of_each_pod(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pod.yaml").write_text(OFFLINE_POD + "---" + OFFLINE_POD.replace("offline", "online"))
    assert main(["explain", str(tmp_path / "pod.yaml"), "--config", str(config)]) == 0
    out = capsys.readouterr().out
    offline = out.count("class          offline: ")
    assert offline in (1, len(DEFAULT_BOXES)), "one for each driver where nobody tells it"
    assert out.count("pod            default/job\n") == offline + 1
    assert out.count("class          online: ") == 1
    assert "colocation is off here" not in out


def test_explain_goes_by_the_cluster_s_policy_too(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pod.yaml").write_text(OFFLINE_POD)
    with config.open("a") as more:
        more.write(f'[kubernetes]\nenabled = true\n[control]\ncheckpoint = "{tmp_path}/state/checkpoint.json"\n')
    policy = NodePolicy("1", "off", {"colocation": {"enabled": False}})
    PolicyFile(tmp_path / "state" / POLICY_FILE).write(InForce(policy))
    assert main(["explain", str(tmp_path / "pod.yaml"), "--config", str(config)]) == 0
    assert "colocation is off here" in capsys.readouterr().out


def test_explain_reads_standard_input(config: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "criproxy", "explain", "-", "--config", config],
        input=OFFLINE_POD, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "class          offline" in done.stdout


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "pod.yaml: No such file or directory; give"),
        ("kind: Job", "Job: spec.template"),
        ("\udcff", "neither YAML"),
    ],
    ids=["missing", "other-kind", "binary"],
)
def test_explain_of_no_pod_fails_in_one_line(
    content: str | None, told: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = tmp_path / "pod.yaml"
    if content is not None:
        pod.write_text(content, errors="surrogateescape")
    assert main(["explain", str(pod), "--config", str(config)]) == 1
    err = capsys.readouterr().err
    assert (told in err, str(pod) in err, err.count("\n")) == (True, True, 1)


def test_explain_with_a_bad_config_fails(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("x = 1")
    (tmp_path / "pod.yaml").write_text(OFFLINE_POD)
    assert main(["explain", str(tmp_path / "pod.yaml"), "--config", str(config)]) == 1
    assert capsys.readouterr().out == ""


def test_status_is_text(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--config", str(served)]) == 0
    assert capsys.readouterr().out.startswith(f"criproxy {__version__}, pid 1, up 1 s\n")


def test_status_is_json(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json", "--config", str(served)]) == 0
    assert json.loads(capsys.readouterr().out)["runtime"]["problem"] == "gone"


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_status_of_a_daemon_that_is_not_well_is_status_1(
    served: Path, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    not_well = replace(STATUS, problems=("the runtime is gone",))
    monkeypatch.setattr("criproxy.observe.routes.to_json", lambda _status: to_json(not_well))
    assert main(["status", *options, "--config", str(served)]) == 1
    told = capsys.readouterr()
    assert "the runtime is gone" in told.out
    assert told.err == ""


def test_status_help_tells_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["status", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert all(
        meaning in out
        for meaning in ("0 all is well", "1 something is not", "3 criproxy does not run", "4 what", "5 only root")
    )


def test_status_why_is_text_of_now(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--config", str(served), "--why"]) == 0
    assert capsys.readouterr().out.startswith("no decision is on record\nthe record begins at 2023-11-1")


def test_status_why_of_a_moment_is_json(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json", "--why", "2026-03-09T14:03:07+01:00", "--config", str(served)]) == 0
    assert json.loads(capsys.readouterr().out)["asked_s"] == 1773061387.0


def test_status_why_of_no_moment_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["status", "--why", "noon"])
    assert ended.value.code == 2
    assert "'noon' is no time: write 14:03" in capsys.readouterr().err


def test_status_without_a_daemon_fails_in_one_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--config", str(config)]) == 3
    err = capsys.readouterr().err
    told = (
        f"no criproxy answers at {config.with_name('c-status.sock')} (No such file or directory): is it running, with "
    )
    assert err == f"{told}the proxy.listen of this config file?\n"


def test_status_that_only_root_may_ask_for_is_status_5(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> str:
        raise NotAllowedError("/s: Permission denied: only root may ask: run this as root")

    monkeypatch.setattr("criproxy.observe.client.ask", refused)
    assert main(["status", "--config", str(config)]) == 5
    assert capsys.readouterr().err == "/s: Permission denied: only root may ask: run this as root\n"


def test_status_of_another_program_fails_in_one_line(
    served: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("criproxy.observe.routes.to_json", lambda _status: "<html>")
    assert main(["status", "--config", str(served)]) == 4
    assert "another program" in capsys.readouterr().err


def test_status_watched_repeats_until_interrupted(served: Path) -> None:
    heeding = ["env", "--default-signal=INT"]  # a shell's job in the background ignores it, and so would its children
    command = [*heeding, sys.executable, "-m", "criproxy", "status", "--watch", "--config", str(served)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        seen = 0
        while seen < 2:
            seen += watching.stdout.readline().startswith("criproxy ")
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=60)
    assert (watching.returncode, err) == (130, "")


def test_output_whose_reader_has_gone_is_no_traceback(config: Path) -> None:
    command = f"{sys.executable} -m criproxy check --config {config} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def ended(output: BinaryIO, *arguments: str | Path) -> tuple[int, str]:
    """The status of criproxy and what it says on stderr, its output buffered as in a script."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "criproxy", *arguments]
    done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    return done.returncode, done.stderr


@pytest.fixture
def deserted() -> Iterator[BinaryIO]:
    """A pipe whose reader has gone."""
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "wb") as pipe:
        yield pipe


def test_output_that_nobody_reads_any_more_ends_quietly(config: Path, deserted: BinaryIO) -> None:
    assert ended(deserted, "check", "--config", config) == (1, "")
    assert ended(deserted, "--help") == (1, "")


def test_output_for_which_the_disk_has_no_room_is_a_line_of_words(config: Path, tmp_path: Path) -> None:
    pods = tmp_path / "pods.yaml"
    pods.write_text("---".join([OFFLINE_POD] * 50))  # more than Python's buffer holds
    with open("/dev/full", "wb") as full:
        for arguments in (["check"], ["explain", pods]):
            status, words = ended(full, *arguments, "--config", config)
            assert (status, words) == (1, "criproxy: the output can't be written: No space left on device\n")


@pytest.mark.parametrize("verb", ["attach", "detach"])
def test_attach_and_detach_pass_their_options_on_and_end_as_they_do(
    verb: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Path, bool]] = []

    def run(verb: str, config: Path, dry_run: bool) -> int:
        asked.append((verb, config, dry_run))
        return len(asked)

    monkeypatch.setattr("criproxy.commands.attach.command.run", run)
    assert main([verb, "--config", str(config)]) == 1
    assert main([verb, "--dry-run"]) == 2
    assert asked == [(verb, config, False), (verb, Path("/etc/criproxy/config.toml"), True)]


def test_verbs_import_only_what_they_need() -> None:
    code = (
        "import contextlib, sys\nfrom criproxy.cli import main\n"
        "with contextlib.suppress(SystemExit): main(['--version'])\n"
        "heavy = {'grpc', 'google.protobuf', 'prometheus_client', 'yaml', 'msgspec', 'structlog'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# --- an operator's commands -------------------------------------------------------------------------------------------


@pytest.fixture
def operated(config: Path) -> Iterator[list[tuple[object, ...]]]:
    endpoints = Answers(
        page=str,
        metrics=bytes,
        unhealthy=str,
        unready=str,
        status=lambda: STATUS,
        why=lambda at_s: Why(at_s, 1.7e9, None),
    )
    with answering(config.with_name("c-status.sock"), endpoints) as served:
        yield served.operator.asked


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        pytest.param(
            ["hold-off", "2h", "--reason", "a disk & more"], ("hold", "box", 7200.0, "a disk & more"), id="box"
        ),
        pytest.param(["hold-off", "batch/job", "90s", "--reason", "x"], ("hold", "batch/job", 90.0, "x"), id="pod"),
        pytest.param(["release"], ("release", "box"), id="release"),
        pytest.param(["release", "batch/job"], ("release", "batch/job"), id="release-pod"),
    ],
)
def test_operators_command_reaches_the_daemon(
    config: Path,
    operated: list[tuple[object, ...]],
    arguments: list[str],
    asked: tuple[object, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*arguments, "--config", str(config)]) == 0
    assert operated == [asked]
    assert capsys.readouterr().out == f"{asked[0]} {asked[1]}\n"


def test_operators_command_that_is_refused_is_status_1_and_one_that_reaches_nobody_3(
    config: Path, operated: list[tuple[object, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["release", "nobody", "--config", str(config)]) == 1
    assert capsys.readouterr().err == "no offline pod is called 'nobody'\n"
    other = tmp_path / "other.toml"
    other.write_text(f'[proxy]\nlisten = "{tmp_path}/other.sock"\n')
    assert main(["release", "--config", str(other)]) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["hold-off", "2h"], id="no-reason"),
        pytest.param(["hold-off", "box", "--reason", "x"], id="no-duration"),
        pytest.param(["hold-off", "2", "--reason", "x"], id="no-unit"),
        pytest.param(["hold-off", "-2h", "--reason", "x"], id="negative"),
        pytest.param(["hold-off", "2h3", "--reason", "x"], id="rest"),
    ],
)
def test_hold_off_that_is_written_wrong_is_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
