"""The steps of the chart's Jobs on a node, with a fake host: its files, and what is run on it. No node is changed."""

import importlib.util
import signal
from datetime import UTC, datetime, timedelta
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
NEW = b"[colocation]\nenabled = true\n"


def load() -> ModuleType:
    loader = SourceFileLoader("installer", str(CHECKOUT / "packaging" / "installer"))
    spec = importlib.util.spec_from_loader("installer", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


installer: Any = load()


class FakeHost(installer.Host):  # type: ignore[misc]  # a script has no types
    """A directory for its root. `fails` is how the command begins that fails."""

    def __init__(self, root: Path, release: str = "trixie", fails: str = "nothing") -> None:
        super().__init__(root)
        self.ran: list[str] = []
        self.fails = fails
        (root / "usr/bin").mkdir(parents=True)
        (root / "etc").mkdir()
        (root / "usr/lib").mkdir()
        (root / "usr/lib/os-release").write_text(f'ID=debian\nVERSION_CODENAME="{release}"\n')
        for program in ("apt-get", "systemctl"):
            self.add(program)

    def add(self, program: str) -> None:
        (self.root / "usr/bin" / program).touch()

    def run(self, *command: str) -> None:
        said = " ".join(command)
        if said.startswith("apt-get install"):
            assert (self.root / command[-1].lstrip("/")).read_text() == "trixie's"
            said = f"apt-get install {Path(command[-1]).name}"
        self.ran.append(said.replace(" -y -o DPkg::Lock::Timeout=120", ""))
        if said.startswith(self.fails):
            raise installer.InstallError(f"{said} ended with 1")
        if said == "apt-get install":
            self.add("criproxy")


@pytest.fixture
def packages(tmp_path):
    folder = tmp_path / "packages"
    folder.mkdir()
    for version in ("deb12u1", "deb13u1"):
        (folder / f"criproxy_0.1.0~{version}_amd64.deb").write_text("trixie's" if "13" in version else "another's")
        (folder / f"criproxy_0.1.0~{version}_arm64.deb").write_text("another architecture's")
    return folder


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "config.toml"
    file.write_bytes(NEW)
    return file


def ready(_began):
    return True


def test_install_puts_the_release_s_own_package_in_configures_and_attaches(tmp_path, packages, config):
    host = FakeHost(tmp_path / "host")
    installer.install(host, ready, packages, config)
    assert host.ran == ["apt-get install criproxy_0.1.0~deb13u1_amd64.deb", "criproxy check", "criproxy attach"]
    assert (host.root / installer.OURS).read_bytes() == NEW
    assert not (host.root / installer.CARRIED).exists()


def test_install_waits_for_what_kubelet_says_after_it_began_to_attach(tmp_path, packages, config):
    host = FakeHost(tmp_path / "host")
    before = datetime.now(UTC)
    asked = []

    def is_ready(began):
        asked.append((began, host.ran[-1]))
        return True

    installer.install(host, is_ready, packages, config)
    ((began, last),) = asked
    assert last == "criproxy attach" and before <= began <= datetime.now(UTC)


def test_node_that_is_not_ready_in_time_is_detached(tmp_path, packages, config):
    host = FakeHost(tmp_path / "host")
    with pytest.raises(installer.InstallError, match="not ready within 360 s of `criproxy attach`: detached again"):
        installer.install(host, lambda began: False, packages, config)
    assert host.ran[-2:] == ["criproxy attach", "criproxy detach"]


@pytest.mark.parametrize(
    ("release", "words"),
    [("jammy", "release is jammy"), ("", "release is not known"), ("bookworm", "no package for bookworm")],
)
def test_host_without_a_package_is_left_as_it_was(tmp_path, packages, config, release, words):
    (packages / "criproxy_0.1.0~deb12u1_amd64.deb").unlink()
    host = FakeHost(tmp_path / "host", release)
    with pytest.raises(installer.InstallError, match=words):
        installer.install(host, ready, packages, config)
    assert host.ran == [] and not (host.root / installer.OURS).exists()


def test_host_without_apt_is_left_as_it_was(tmp_path, packages, config):
    host = FakeHost(tmp_path / "host")
    (host.root / "usr/bin/apt-get").unlink()
    with pytest.raises(installer.InstallError, match="no apt-get"):
        installer.install(host, ready, packages, config)
    assert host.ran == []


def test_package_that_can_t_be_installed_attaches_nothing_and_is_not_left_behind(tmp_path, packages, config):
    host = FakeHost(tmp_path / "host", fails="apt-get install")
    with pytest.raises(installer.InstallError, match="apt-get install"):
        installer.install(host, ready, packages, config)
    assert len(host.ran) == 1
    assert not (host.root / installer.CARRIED).exists() and not (host.root / installer.OURS).exists()


@pytest.mark.parametrize("before", [None, b"[cpu]\nmin_cores = 1\n"], ids=["without-one", "with-one"])
def test_config_with_an_error_is_taken_back_and_nothing_is_attached(tmp_path, packages, config, before):
    host = FakeHost(tmp_path / "host", fails="criproxy check")
    file = host.root / installer.OURS
    if before is not None:
        file.parent.mkdir(parents=True)
        file.write_bytes(before)
    with pytest.raises(installer.InstallError, match="criproxy check"):
        installer.install(host, ready, packages, config)
    assert "criproxy attach" not in host.ran
    assert (file.read_bytes() if file.exists() else None) == before


def test_failed_attach_is_attach_s_own_to_roll_back(tmp_path, packages, config):
    host = FakeHost(tmp_path / "host", fails="criproxy attach")
    with pytest.raises(installer.InstallError, match="criproxy attach"):
        installer.install(host, ready, packages, config)
    assert host.ran[-1] == "criproxy attach"


def test_job_that_is_told_to_end_has_the_command_end_itself(tmp_path):
    host = installer.Host(tmp_path)
    host._enter = lambda: None
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(installer.InstallError, match="ended with 7"):
            host.run("sh", "-c", 'trap "exit 7" TERM; kill -TERM $PPID; for at in $(seq 300); do sleep 0.1; done')
    finally:
        signal.signal(signal.SIGTERM, before)


def test_remove_detaches_before_the_package_goes(tmp_path):
    host = FakeHost(tmp_path / "host")
    host.add("criproxy")
    file = host.root / installer.OURS
    file.parent.mkdir(parents=True)
    file.write_bytes(NEW)
    installer.remove(host, ready)
    assert host.ran == ["criproxy detach", "apt-get purge criproxy"]
    assert not file.exists()


@pytest.mark.parametrize(("fails", "is_ready"), [("criproxy detach", True), ("nothing", False)])
def test_remove_keeps_the_package_while_kubelet_may_need_it(tmp_path, fails, is_ready):
    host = FakeHost(tmp_path / "host", fails=fails)
    host.add("criproxy")
    with pytest.raises(installer.InstallError):
        installer.remove(host, lambda began: is_ready)
    assert host.ran == ["criproxy detach"]


def test_remove_of_what_is_not_there_is_done(tmp_path):
    host = FakeHost(tmp_path / "host")
    installer.remove(host, ready)
    assert host.ran == []


@pytest.mark.parametrize(
    ("status", "later_s", "expected"), [("True", 1, True), ("True", -60, False), ("False", 1, False)]
)
def test_node_is_ready_once_kubelet_says_so_anew(status, later_s, expected):
    began = datetime(2026, 11, 26, 12, 0, 0, 700_000, tzinfo=UTC)
    heartbeat = (began + timedelta(seconds=later_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    others = {"type": "DiskPressure", "status": "True", "lastHeartbeatTime": heartbeat}
    found = {"type": "Ready", "status": status, "lastHeartbeatTime": heartbeat}
    assert installer.ready_since({"status": {"conditions": [others, found]}}, began) is expected
    assert not installer.ready_since({}, began)


@pytest.mark.parametrize("arguments", [[], ["attach"], ["install", "remove"]])
def test_other_words_are_refused(arguments, capsys):
    assert installer.main(arguments) == 2
    assert "install|remove" in capsys.readouterr().err


def test_failed_step_fails_the_job_and_names_the_node(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("NODE_NAME", "one")
    monkeypatch.setattr(installer, "Host", lambda: FakeHost(tmp_path / "host", "jammy"))
    assert installer.main(["install"]) == 1
    assert "one: this host's release is jammy" in capsys.readouterr().err
