"""The sockets of the last run, where a config with errors does not say them."""

from pathlib import Path

import pytest

from criproxy.config import last_run, load
from criproxy.config.last_run import load_as_it_runs, with_last_sockets
from criproxy.daemon.bypass import Bypass

LISTEN, RUNTIME = '/run/criproxy/run/c"\\$`/crio.sock', "/run/crio/crio.sock"
LAST = LISTEN, RUNTIME
DEFAULTS = "/run/criproxy/criproxy.sock", "/run/containerd/containerd.sock"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    directory = tmp_path / "state"
    directory.mkdir()
    assert Bypass((directory,), Path(LISTEN), Path(RUNTIME), 10.0).tell() == ""
    return directory


@pytest.mark.parametrize(
    ("text", "sockets"),
    [
        pytest.param(f'[proxy]\nbypass_after_s = 10s\nlisten = "/x"\nruntime = "{RUNTIME}"\n', LAST, id="no-toml"),
        pytest.param(f'[proxi]\nlisten = "/x"\nruntime = "{RUNTIME}"\n', LAST, id="header"),
        pytest.param('[proxy]\nlisten = "/x"\n[cpu]\nstatic_cores = -1\n', ("/x", RUNTIME), id="one-is-sure"),
        pytest.param("[proxy]\nlisten = 3\n", LAST, id="bad-value"),
        pytest.param('[proxy]\nlisten = "/x"\nruntime = "/y"\nbypass_after_s = 0\n', ("/x", "/y"), id="both-are-sure"),
        pytest.param("", DEFAULTS, id="no-error"),
        pytest.param(None, LAST, id="no-config"),
    ],
)
def test_sockets_that_a_config_with_errors_does_not_say_are_those_of_the_last_run(
    tmp_path: Path, state: Path, text: str | None, sockets: tuple[str, str]
) -> None:
    file = tmp_path / "config.toml"
    if text is not None:
        file.write_text(text)
    proxy = with_last_sockets(load(file), state).config.proxy
    assert (proxy.listen, proxy.runtime) == sockets


@pytest.mark.parametrize("content", [None, "", 'CRIPROXY_LISTEN="x"\n', "\0"], ids=["none", "empty", "bad", "binary"])
def test_last_run_that_left_no_sockets_changes_nothing(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "bypass.env").write_text(content)
    loaded = load(tmp_path / "missing.toml")
    assert with_last_sockets(loaded, tmp_path) == loaded


def test_commands_go_by_the_last_run_for_the_config_of_the_service_alone(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[proxy]\nlisten = 3\n")
    monkeypatch.setattr(last_run, "_STATE", state)
    assert load_as_it_runs(file).config.proxy.listen == DEFAULTS[0]
    monkeypatch.setattr(last_run, "_CONFIG", file)
    assert load_as_it_runs(file).config.proxy.listen == LISTEN
