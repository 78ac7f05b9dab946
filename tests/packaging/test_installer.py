"""The steps of the chart's Jobs on a node, with a fake host: its files, and what is run on it. No node is changed."""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import tempfile
from datetime import UTC, datetime, timedelta
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

from criproxy.model import AttachStatus
from criproxy.observe.status import to_json
from tests.test_cli import STATUS

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


CONFIGURE = "dpkg --force-confold --configure -a"
INSTALL = "apt-get install --allow-downgrades criproxy_0.1.0~deb13u1_amd64.deb"

UPGRADE = "criproxy upgrade"
RESTART = "systemctl restart criproxy.service"


class FakeHost(installer.Host):  # type: ignore[misc]  # a script has no types
    """A directory for its root. `fails` is how the command begins that fails, `last` the one at which SIGTERM comes."""

    def __init__(self, root: Path, release: str = "trixie", fails: str = "nothing", last: str = "nothing") -> None:
        super().__init__(root)
        self.ran: list[str] = []
        self.fails = fails
        self.last = last
        self.has_architecture = "amd64"
        self.unattached = False
        self.statuses: dict[str, list[int]] = {}
        """How a command ends, each time."""
        self.taken_up: list[bytes | None] = []
        """The chart's part of the config, at each upgrade and restart."""
        for folder in ("usr/bin", "usr/lib", "etc", "run", installer.CACHE, Path(installer.KNOWN).parent):
            (root / folder).mkdir(parents=True)
        (root / "usr/lib/os-release").write_text(f'ID=debian\nVERSION_CODENAME="{release}"\n')
        for program in ("apt-get", "systemctl"):
            self.add(program)

    def architecture(self) -> str:
        return self.has_architecture

    def is_unattached(self) -> bool:
        return self.unattached

    def config(self) -> bytes | None:
        file: Path = self.root / installer.OURS
        return file.read_bytes() if file.exists() else None

    def add(self, program: str) -> None:
        (self.root / "usr/bin" / program).touch()

    def add_config(self) -> Path:
        file: Path = self.root / installer.OURS
        file.parent.mkdir(parents=True)
        file.write_bytes(NEW)
        return file

    def call(self, *command: str) -> int:
        said = " ".join(command)
        if said.startswith("apt-get install"):
            package = self.root / command[-1].lstrip("/")
            assert package.read_text() == "trixie's"
            assert package.parent.stat().st_mode & 0o777 == 0o755
            downgrades = [one for one in command if one == "--allow-downgrades"]
            said = " ".join(("apt-get install", *downgrades, package.name))
        said = said.replace(" -y -o DPkg::Lock::Timeout=120", "")
        self.ran.append(said)
        if said in (UPGRADE, RESTART):
            self.taken_up.append(self.config())
        if said.startswith(self.last):
            self.end()
        if self.statuses.get(said):
            return self.statuses[said].pop(0)
        return 1 if said.startswith(self.fails) else 0


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


@pytest.fixture
def real_host(tmp_path, monkeypatch):
    """Runs the programs in tmp_path, without a root of its own, and handles SIGTERM."""
    host = installer.Host(tmp_path)
    host._enter = lambda: None
    monkeypatch.setattr(installer, "PATH", f"{tmp_path}:/usr/bin:/bin")
    signal.signal(signal.SIGTERM, host.end)
    return host


@pytest.fixture(autouse=True)
def handler_of_sigterm():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def ready(_began):
    return True


def waiting(host):
    """What `main` hands to the verbs."""
    return lambda began: installer.wait_until_ready(host, "one", began)


def test_install_puts_the_release_s_own_package_in_configures_and_attaches(tmp_path, packages, config):
    host = FakeHost(tmp_path / "host")
    installer.install(host, ready, packages, config)
    assert host.ran == [CONFIGURE, INSTALL, "criproxy check", "criproxy upgrade", "criproxy attach"]
    assert (host.root / installer.OURS).read_bytes() == NEW
    assert list((host.root / installer.CACHE).iterdir()) == []


def test_package_is_of_the_host_s_architecture(tmp_path, packages):
    host = FakeHost(tmp_path / "host")
    host.has_architecture = "arm64"
    assert installer.package_for(host, packages).name == "criproxy_0.1.0~deb13u1_arm64.deb"
    host.has_architecture = "riscv64"
    with pytest.raises(installer.InstallError, match=r"trixie on riscv64: .*packaging/deb/build --arch riscv64"):
        installer.package_for(host, packages)


def test_architecture_is_what_the_host_s_dpkg_says(tmp_path, real_host):
    add_program(tmp_path, "dpkg", '[ "$1" = --print-architecture ] && echo arm64')
    assert real_host.architecture() == "arm64"
    add_program(tmp_path, "dpkg", "exit 2")
    with pytest.raises(installer.InstallError, match="dpkg --print-architecture ended with 2"):
        real_host.architecture()


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
    host.unattached = True
    with pytest.raises(installer.InstallError, match="not ready within 480 s of `criproxy attach`: detached again"):
        installer.install(host, lambda began: False, packages, config)
    assert host.ran[-2:] == ["criproxy attach", "criproxy detach"]


def test_node_that_was_attached_before_stays_so_where_it_is_not_ready(tmp_path, packages, config):
    """To detach restarts kubelet, and offline pods that start then have no bounds: it need not be criproxy's fault."""
    host = FakeHost(tmp_path / "host")
    with pytest.raises(installer.InstallError, match="not ready within 480 s, and was attached before, so it stays so"):
        installer.install(host, lambda began: False, packages, config)
    assert host.ran[-1] == "criproxy attach"


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


@pytest.mark.parametrize("other", ["0.10.0~deb13u1", "0.1.0+1~deb13u1"])
def test_image_with_two_packages_for_the_release_is_refused(tmp_path, packages, config, other):
    (packages / f"criproxy_{other}_amd64.deb").write_text("trixie's, too")
    host = FakeHost(tmp_path / "host")
    with pytest.raises(installer.InstallError, match=r"2 packages for trixie, .*one package for each") as refused:
        installer.install(host, ready, packages, config)
    assert other in str(refused.value) and "0.1.0~deb13u1" in str(refused.value)
    assert host.ran == []


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
    assert host.ran == [CONFIGURE, INSTALL]
    assert list((host.root / installer.CACHE).iterdir()) == [] and not (host.root / installer.OURS).exists()


def test_dpkg_that_fails_is_apt_get_s_to_judge(tmp_path, packages, config):
    host = FakeHost(tmp_path / "host", fails="dpkg")
    installer.install(host, ready, packages, config)
    assert host.ran[:2] == [CONFIGURE, INSTALL] and host.ran[-1] == "criproxy attach"


def test_files_that_somebody_else_removes_or_has_there_stop_nothing(tmp_path, packages, config, monkeypatch):
    host = FakeHost(tmp_path / "host")
    others = host.root / installer.CACHE / "criproxy-install"
    others.mkdir()

    def call(*command):
        status = FakeHost.call(host, *command)
        if command[0] == "apt-get":
            shutil.rmtree(host.root / Path(command[-1]).parent.relative_to("/"))
        return status

    monkeypatch.setattr(host, "call", call)
    installer.install(host, ready, packages, config)
    assert host.ran[-1] == "criproxy attach"
    assert list((host.root / installer.CACHE).iterdir()) == [others]


@pytest.mark.parametrize("fails", ["criproxy check", "criproxy upgrade"])
@pytest.mark.parametrize("before", [None, b"[cpu]\nmin_cores = 1\n"], ids=["without-one", "with-one"])
def test_config_that_is_refused_is_taken_back_and_nothing_is_attached(tmp_path, packages, config, before, fails):
    """`criproxy attach` would find the old version at work, and be content."""
    host = FakeHost(tmp_path / "host", fails=fails)
    file = host.root / installer.OURS
    if before is not None:
        file.parent.mkdir(parents=True)
        file.write_bytes(before)
    with pytest.raises(installer.InstallError, match=f"{fails} ended with 1"):
        installer.install(host, ready, packages, config)
    assert host.ran[-1] == fails
    assert (file.read_bytes() if file.exists() else None) == before


@pytest.mark.parametrize("sigterm", [False, True], ids=["fails", "sigterm"])
@pytest.mark.parametrize("status", [7, 1, -signal.SIGKILL, 6])
def test_criproxy_runs_by_the_config_that_was_put_back(tmp_path, packages, config, status, sigterm):
    """By 7, the new process serves, and runs by what was refused."""
    host = FakeHost(tmp_path / "host", last=UPGRADE if sigterm else "nothing")
    old = b"[cpu]\nmin_cores = 1\n"
    host.add_config().write_bytes(old)
    host.statuses[UPGRADE] = [status, 0]
    with pytest.raises(installer.InstallError, match=f"criproxy upgrade ended with {status}: its words are above$"):
        installer.install(host, ready, packages, config)
    assert host.ran[-2:] == [UPGRADE] * 2
    assert (host.taken_up, host.config()) == ([NEW, old], old)


def test_criproxy_that_does_not_take_up_the_config_that_was_put_back_is_told(tmp_path, packages, config):
    host = FakeHost(tmp_path / "host")
    host.statuses[UPGRADE] = [7, 1]
    with pytest.raises(installer.InstallError, match=r"upgrade ended with 7: .*; by the config of before, .* with 1"):
        installer.install(host, ready, packages, config)
    assert host.taken_up == [NEW, None]


def test_another_socket_is_served_by_a_restart_where_kubelet_is_not_attached(tmp_path, packages, config):
    """As for CRI-O, which has none at the default proxy.listen."""
    host = FakeHost(tmp_path / "host")
    host.unattached = True
    host.statuses[UPGRADE] = [6]
    installer.install(host, ready, packages, config)
    assert host.ran[-3:] == [UPGRADE, RESTART, "criproxy attach"]
    assert (host.taken_up, host.config()) == ([NEW] * 2, NEW)


def test_failed_restart_takes_the_config_back(tmp_path, packages, config):
    host = FakeHost(tmp_path / "host", fails=RESTART)
    host.unattached = True
    host.statuses[UPGRADE] = [6]
    with pytest.raises(installer.InstallError, match=f"{RESTART} ended with 1"):
        installer.install(host, ready, packages, config)
    assert host.taken_up == [NEW, NEW, None]


@pytest.mark.parametrize("status", [1, 7])
def test_nothing_else_that_upgrade_says_restarts_criproxy(tmp_path, packages, config, status):
    host = FakeHost(tmp_path / "host")
    host.unattached = True
    host.statuses[UPGRADE] = [status]
    with pytest.raises(installer.InstallError, match=f"upgrade ended with {status}"):
        installer.install(host, ready, packages, config)
    assert RESTART not in host.ran


@pytest.mark.parametrize(("state", "expected"), [("no", True), ("yes", False), ("unknown", False)])
def test_criproxy_itself_says_that_kubelet_does_not_use_it(tmp_path, real_host, state, expected):
    add_program(tmp_path, "criproxy", f'[ "$*" = "status --json" ] && cat {tmp_path}/status.json\nexit 1')
    (tmp_path / "status.json").write_text(to_json(replace(STATUS, attached=AttachStatus(state, ""))))
    assert real_host.is_unattached() is expected


def test_kubelet_may_use_a_criproxy_that_says_nothing(tmp_path, real_host):
    add_program(tmp_path, "criproxy", "exit 3")
    assert not real_host.is_unattached()


def test_failed_attach_is_attach_s_own_to_roll_back(tmp_path, packages, config):
    host = FakeHost(tmp_path / "host", fails="criproxy attach")
    with pytest.raises(installer.InstallError, match="criproxy attach"):
        installer.install(host, ready, packages, config)
    assert host.ran[-1] == "criproxy attach"


# --- a pod's criproxy -----------------------------------------------------------------------------------------------


@pytest.fixture
def host():
    """In a short folder, as a socket's name may have 107 characters. Source: unix(7)."""
    with tempfile.TemporaryDirectory() as folder:
        yield FakeHost(Path(folder) / "host")


def listen(host, cgroup):
    """This process listens as criproxy does, and the host's /proc has this cgroup for it."""
    folder = host.root / installer.SOCKETS
    folder.mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / f"criproxy.sock.{os.getpid()}"))
    listener.listen()
    file = host.root / f"proc/{os.getpid()}/cgroup"
    file.parent.mkdir(parents=True)
    file.write_text(f"0::{cgroup}\n")
    return listener


POD = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-2.scope"


def test_install_waits_for_the_pod_to_end(host, packages, config, monkeypatch, capsys):
    listener = listen(host, POD)
    pauses = []

    def pause(seconds):
        pauses.append((seconds, list(host.ran)))
        if len(pauses) == 2:
            listener.close()

    monkeypatch.setattr(host, "pause", pause)
    installer.install(host, ready, packages, config)
    assert pauses == [(installer.POLL_S, [])] * 2
    assert host.ran[-1] == "criproxy attach"
    assert f"a pod's criproxy answers at /run/criproxy/criproxy.sock.{os.getpid()}; waiting" in capsys.readouterr().out


def test_pod_that_does_not_end_keeps_the_package_out(host, packages, config, monkeypatch):
    monkeypatch.setattr(installer, "POD_ENDS_S", 0.0)
    with listen(host, POD), pytest.raises(installer.InstallError, match="take the pod of the DaemonSet criproxy-node"):
        installer.install(host, ready, packages, config)
    assert host.ran == [] and list((host.root / installer.CACHE).iterdir()) == []


def test_package_s_own_criproxy_is_not_waited_for(host, packages, config, monkeypatch):
    monkeypatch.setattr(host, "pause", lambda _seconds: pytest.fail("waits"))
    with listen(host, "/system.slice/criproxy.service"):
        installer.install(host, ready, packages, config)
    assert host.ran[-1] == "criproxy attach"


# --- SIGTERM --------------------------------------------------------------------------------------------------------


def add_program(folder, name, script):
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@pytest.mark.parametrize("later_s", [0, 0.3])
def test_criproxy_s_own_command_ends_itself(tmp_path, real_host, later_s):
    script = 'trap "exit 7" TERM; sleep {}; kill -TERM $PPID; for at in $(seq 300); do sleep 0.1; done'
    add_program(tmp_path, "criproxy", script.format(later_s))
    with pytest.raises(installer.InstallError, match="criproxy attach ended with 7"):
        real_host.run("criproxy", "attach")


def test_sigterm_while_criproxy_s_command_begins_ends_it(tmp_path, real_host):
    add_program(tmp_path, "criproxy", "exec sleep 30")
    real_host.end()
    assert real_host.call("criproxy", "attach") == -signal.SIGTERM


@pytest.mark.parametrize("name", ["apt-get", "dpkg"])
def test_packages_are_finished_before_the_job_ends(tmp_path, real_host, name):
    add_program(tmp_path, name, 'trap "exit 7" TERM; kill -TERM $PPID; sleep 0.3; : >"$1"')
    real_host.run(name, str(tmp_path / "done"))
    assert (tmp_path / "done").exists()
    with pytest.raises(installer.InstallError, match=rf"SIGTERM after `{name} .*done`, .*the next Job"):
        real_host.run("criproxy", "attach")


def test_upgrade_and_its_reversal_are_finished_before_the_job_ends(tmp_path, real_host):
    add_program(tmp_path, "criproxy", f'trap "exit 8" TERM; kill -TERM $PPID; sleep 0.3; : >{tmp_path}/done; exit 7')
    with pytest.raises(installer.CommandError, match="criproxy upgrade ended with 7"):
        real_host.run("criproxy", "upgrade")
    assert (tmp_path / "done").exists()
    assert real_host.call("criproxy", "upgrade") == 7


@pytest.mark.parametrize("last", [CONFIGURE, INSTALL, "criproxy check", "criproxy upgrade"])
def test_no_step_of_an_install_begins_after_sigterm(tmp_path, packages, config, last):
    host = FakeHost(tmp_path / "host", last=last)
    with pytest.raises(installer.InstallError, match="stopped by SIGTERM after"):
        installer.install(host, ready, packages, config)
    assert host.ran[-1] == last
    assert (host.root / installer.OURS).parent.exists() == last.startswith("criproxy")


@pytest.mark.parametrize("verb", ["attach", "detach"])
def test_waiting_for_the_node_ends_and_what_was_done_stays(tmp_path, packages, config, monkeypatch, verb):
    host = FakeHost(tmp_path / "host")
    host.add("criproxy")
    asked = []

    def not_ready(name):
        asked.append(name)
        host.end()
        return {}

    monkeypatch.setattr(installer, "ask_for_node", not_ready)
    with pytest.raises(installer.InstallError, match=f"SIGTERM after `criproxy {verb}`, which is complete and stays"):
        if verb == "attach":
            installer.install(host, waiting(host), packages, config)
        else:
            installer.remove(host, waiting(host))
    assert (asked, host.ran[-1]) == (["one"], f"criproxy {verb}")


def test_pause_ends_soon_after_sigterm(real_host, monkeypatch):
    monkeypatch.setattr(installer.time, "sleep", lambda seconds: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(installer.InstallError, match="SIGTERM before anything was done"):
        real_host.pause(3600)


# --- two Jobs on one node -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def another_job(host, path=installer.LOCK):
    """What it would lock."""
    descriptor = os.open(host.root / path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("path", [installer.LOCK, installer.LOCK_BEFORE], ids=["ours", "older-chart-s"])
def test_second_job_waits_for_the_first(tmp_path, capsys, path):
    host = FakeHost(tmp_path / "host")
    (host.root / installer.LOCK_BEFORE).touch()
    jobs = contextlib.ExitStack()
    assert installer.lock(jobs.enter_context(another_job(host, path)))
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            jobs.close()

    host.pause = pause
    with host.alone():
        assert pauses == [installer.POLL_S] * 2
    assert capsys.readouterr().out.splitlines() == [
        "criproxy-install: another criproxy-install works on this node; waiting"
    ]


def test_second_job_ends_while_it_waits(tmp_path):
    host = FakeHost(tmp_path / "host")
    with another_job(host) as first:
        assert installer.lock(first)
        host.end()
        with pytest.raises(installer.InstallError, match="SIGTERM before anything was done"), host.alone():
            pytest.fail("two at once")


# --- remove ---------------------------------------------------------------------------------------------------------


def test_remove_detaches_before_the_package_goes(tmp_path):
    host = FakeHost(tmp_path / "host")
    host.add("criproxy")
    file = host.add_config()
    installer.remove(host, ready)
    assert host.ran == ["criproxy detach", CONFIGURE, "apt-get purge criproxy"]
    assert not file.exists()


@pytest.mark.parametrize(
    ("known", "expected"),
    [(True, [CONFIGURE, "apt-get purge criproxy"]), (False, [])],
    ids=["amid-the-purge", "after-the-purge"],
)
def test_remove_takes_away_what_an_interrupted_one_has_left(tmp_path, known, expected):
    host = FakeHost(tmp_path / "host")
    file = host.add_config()
    if known:
        (host.root / installer.KNOWN).touch()
    installer.remove(host, ready)
    assert host.ran == expected
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


def test_job_has_the_node_to_itself_and_ends_with_1_on_sigterm(monkeypatch, capsys, tmp_path):
    host = FakeHost(tmp_path / "host")
    host.add("criproxy")

    def call(*command):
        with another_job(host) as another:
            assert not installer.lock(another)
        os.kill(os.getpid(), signal.SIGTERM)
        return FakeHost.call(host, *command)

    monkeypatch.setattr(host, "call", call)
    monkeypatch.setenv("NODE_NAME", "one")
    monkeypatch.setattr(installer, "Host", lambda: host)
    monkeypatch.setattr(installer, "ask_for_node", lambda name: {})
    assert installer.main(["remove"]) == 1
    assert host.ran == ["criproxy detach"]
    assert "one: stopped by SIGTERM after `criproxy detach`" in capsys.readouterr().err
    with another_job(host) as next_one:
        assert installer.lock(next_one)


def test_lock_leaves_no_file_on_the_host(tmp_path):
    host = FakeHost(tmp_path / "host")
    before = sorted(host.root.rglob("*"))
    with host.alone():
        pass
    assert sorted(host.root.rglob("*")) == before


def test_what_killed_jobs_have_left_goes(tmp_path, packages, config):
    host = FakeHost(tmp_path / "host")
    for verb in (lambda: installer.install(host, ready, packages, config), lambda: installer.remove(host, ready)):
        (left := host.root / installer.CACHE / f"{installer.CARRIED}abc").mkdir()
        (left / "criproxy.deb").touch()
        verb()
        assert not left.exists()
