"""The package, on a node: what installing, upgrading, removing and purging do, and what they leave alone.

The tests run in their order. Each finds the package installed, but for the last, which take it away.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.lab.client import CriClient
from integration.lab.cri_client_pb2 import VersionRequest
from integration.lab.criproxy import toml_file as toml
from integration.lab.naming import Driver, driver
from integration.systemd import package, pods, service
from integration.systemd.service import LISTEN, RUN, RUNTIME, main_pid, show, systemctl

UNITS = (
    *("criproxy.service", "criproxy-bypass-arm.service", "criproxy-bypass.service", "criproxy-bypass.socket"),
    *("criproxy-withdraw.service", "criproxy-withdraw.timer"),
)
WATCHED = "/etc", "/usr", "/opt", "/root", "/run", "/var"
NOT_WATCHED = re.compile(
    r"/(usr/lib/python3|usr/share/(man|doc)|var/(lib/(dpkg|containerd|systemd|apt|private)|log|cache|tmp|scratch)"
    r"|run/(systemd|log|containerd|udev|lock|dbus|user|dpkg)|sp|debs)(/|$)"
)
EXPOSURE = 3.0
"""By systemd-analyze: 0 is a service that may do nothing, 10 one that may do all."""


@pytest.fixture(scope="module")
def before() -> tuple[set[str], str]:
    """The node's files, and the process of its runtime, before the package came."""
    package.dpkg("--purge", "criproxy")
    return files(), show("containerd.service", "MainPID")


@pytest.fixture(scope="module")
def said(before: tuple[set[str], str]) -> str:
    """What dpkg says to the installation."""
    assert before
    return package.install(package.deb())


@pytest.fixture
def installed(said: str) -> Iterator[None]:
    """The package is there; the service has no config but the package's after the test."""
    assert said
    yield
    package.configure("")


def files() -> set[str]:
    """All that a package could leave behind."""
    found: set[str] = set()
    for top in WATCHED:
        for directory, directories, names in os.walk(top):
            directories[:] = [name for name in directories if not NOT_WATCHED.match(os.path.join(directory, name))]
            found.update(os.path.join(directory, name) for name in [*directories, *names])
    return found


def versions(*sockets: Path) -> list[str]:
    """What Version answers through each socket."""
    answers = []
    for socket in sockets:
        with CriClient(socket) as client:
            answers.append(str(client.call("Version", VersionRequest())))
    return answers


def environment_with(directory: Path, command: str, script: str) -> dict[str, str]:
    """An environment in which `command` is this shell script, put into `directory`."""
    (directory / command).write_text(f"#!/bin/sh\n{script}\n")
    (directory / command).chmod(0o755)
    return {"PATH": f"{directory}:{os.environ['PATH']}"}


# --- installed -------------------------------------------------------------------------------------------------------


def test_installation_starts_the_service(installed: None) -> None:
    assert [show("criproxy.service", name) for name in ("ActiveState", "UnitFileState", "NRestarts")] == [
        "active",
        "enabled",
        "0",
    ]
    assert len(set(versions(LISTEN, RUNTIME))) == 1
    package.wait_status("ready, containerd")


def test_installation_leaves_runtime_and_cgroups_alone(installed: None, before: tuple[set[str], str]) -> None:
    assert show("containerd.service", "MainPID") == before[1]
    assert not [path for path in Path("/sys/fs/cgroup").rglob("*offline*") if path.is_dir()]
    assert not [path for path in files() - before[0] if path.startswith("/etc/systemd") and "criproxy" not in path]


def test_units_are_sound(installed: None) -> None:
    command = ["systemd-analyze", "verify", "--man=no", *UNITS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_service_may_do_little(installed: None) -> None:
    command = ["systemd-analyze", "security", "--no-pager", "criproxy.service"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    exposure = re.search(r"exposure level for criproxy.service: ([0-9.]+)", done.stdout)
    assert exposure is not None
    assert float(exposure[1]) < EXPOSURE


def test_memory_of_the_service_is_protected_from_the_root_down(installed: None) -> None:
    if pods.V1:
        pytest.skip("cgroup v1 protects no memory")
    (cgroup,) = Path("/sys/fs/cgroup").glob("criproxy.service")
    assert int((cgroup / "memory.min").read_text()) > 0
    assert Path(f"/proc/{main_pid()}/oom_score_adj").read_text().strip() == "-999"


def test_service_may_write_every_cgroup_hierarchy(installed: None) -> None:
    mounts = [line.split() for line in Path(f"/proc/{main_pid()}/mountinfo").read_text().splitlines()]
    cgroups = {
        fields[4]: fields[5].split(",") for fields in mounts if fields[fields.index("-") + 1].startswith("cgroup")
    }
    assert cgroups
    assert [path for path, options in cgroups.items() if "rw" not in options] == []


# --- bad days --------------------------------------------------------------------------------------------------------


def test_bad_dropin_makes_a_pass_through_that_does_not_fail(installed: None) -> None:
    package.configure("[cpu]\nmin_cores = \n")
    package.restart()
    assert (show("criproxy.service", "ActiveState"), show("criproxy.service", "NRestarts")) == ("active", "0")
    assert len(set(versions(LISTEN, RUNTIME))) == 1
    assert "config.d/test.toml" in package.criproxy("status").stdout
    package.configure("")
    package.wait_status("config.toml (ok)")


def test_missing_runtime_does_not_fail_the_service(installed: None) -> None:
    systemctl("stop", "containerd.service")
    try:
        package.restart()
        time.sleep(3)
        assert (show("criproxy.service", "ActiveState"), show("criproxy.service", "NRestarts")) == ("active", "0")
    finally:
        systemctl("start", "containerd.service")
    package.wait_status("ready, containerd")


def test_socket_that_cannot_be_had_is_tried_at_leisure(installed: None) -> None:
    package.configure('[proxy]\nlisten = "/etc/criproxy/config.toml/socket"\n')
    systemctl("restart", "criproxy.service", check=False)
    time.sleep(10)
    assert int(show("criproxy.service", "NRestarts")) < 10
    assert "cannot_listen" in service.journal("criproxy.service")
    package.configure("")
    systemctl("restart", "criproxy.service")
    assert len(set(versions(LISTEN, RUNTIME))) == 1


# --- upgraded --------------------------------------------------------------------------------------------------------


def test_process_whose_files_are_gone_serves_and_ends_well(installed: None) -> None:
    directory = package.code()
    package.restart()
    package.wait_status("ready, containerd")
    hidden = directory.rename(directory.with_name("hidden"))
    try:
        for path in ("status", "metrics", "why"):
            assert service.ask(f"/{path}")
        assert len(set(versions(LISTEN, RUNTIME))) == 1
        package.configure("[cpu]\nmin_cores = true\n")
        systemctl("reload", "criproxy.service")
        systemctl("stop", "criproxy.service")
        assert show("criproxy.service", "Result") == "success"
    finally:
        hidden.rename(directory)
        package.configure("")
        systemctl("start", "criproxy.service")
    assert "ModuleNotFoundError" not in service.journal("criproxy.service")


@pytest.mark.parametrize("newer", [pytest.param(False, id="the-same"), pytest.param(True, id="a-newer")])
def test_upgrade_hands_over_to_the_version_installed(installed: None, newer: bool) -> None:
    pid, since = main_pid(), show("criproxy.service", "ActiveEnterTimestamp")
    output = package.install(package.deb(newer))
    assert main_pid() not in (0, pid), output
    assert show("criproxy.service", "ActiveEnterTimestamp") == since, output
    assert package.is_mapped(main_pid(), package.code())
    assert len(set(versions(LISTEN, RUNTIME))) == 1


def test_hand_over_that_fails_falls_back_to_a_restart(installed: None, tmp_path: Path) -> None:
    pid = main_pid()
    script = ["sh", "/var/lib/dpkg/info/criproxy.postinst", "configure", "0.0.1"]
    environment = {**os.environ, **environment_with(tmp_path, "criproxy", "exit 1")}
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert (done.returncode, main_pid() not in (0, pid)) == (0, True), done.stderr
    assert len(set(versions(LISTEN, RUNTIME))) == 1


def test_hand_over_that_is_refused_leaves_the_service_as_it_is(installed: None) -> None:
    pid = main_pid()
    script = ["sh", "/var/lib/dpkg/info/criproxy.postinst", "configure", "0.0.1"]
    try:
        for config in ("[cpu]\nmin_cores = true\n", '[proxy]\nlisten = "/run/criproxy/elsewhere.sock"\n'):
            package.configure(config)
            done = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False)
            assert (done.returncode, main_pid()) == (0, pid), done.stderr
            assert "the version from before goes on" in done.stderr
            assert len(set(versions(LISTEN, RUNTIME))) == 1
            assert f'CRIPROXY_LISTEN="{LISTEN}"' in Path("/run/criproxy/bypass.env").read_text()
    finally:
        package.configure("")


def test_upgrade_that_is_aborted_leaves_the_service_as_it_is(installed: None, tmp_path: Path) -> None:
    pid = main_pid()
    control = tmp_path / "bad" / "DEBIAN"
    control.mkdir(parents=True)
    (control / "control").write_text(
        "Package: criproxy\nVersion: 9\nArchitecture: all\nMaintainer: T <t@t.org>\nDescription: bad\n"
    )
    (control / "preinst").write_text("#!/bin/sh\nexit 1\n")
    (control / "preinst").chmod(0o755)
    subprocess.run(["dpkg-deb", "-b", control.parent, tmp_path / "bad.deb"], check=True, capture_output=True)
    assert package.dpkg("-i", str(tmp_path / "bad.deb")).returncode != 0
    assert main_pid() == pid
    assert "install ok installed" in package.dpkg("-s", "criproxy").stdout
    assert len(set(versions(LISTEN, RUNTIME))) == 1


# --- removed ---------------------------------------------------------------------------------------------------------


def test_removal_is_refused_while_kubelet_cannot_be_detached(installed: None, tmp_path: Path) -> None:
    pid = main_pid()
    done = package.dpkg("-r", "criproxy", environment=environment_with(tmp_path, "criproxy", '[ "$1" != detach ]'))
    assert done.returncode != 0
    assert "endpoint" in done.stdout
    assert (main_pid(), len(set(versions(LISTEN, RUNTIME)))) == (pid, 1)


def test_removal_leaves_pods_in_their_box_and_tells_how_to_lift_its_limits(installed: None) -> None:
    if pods.V1 or driver() is not Driver.SYSTEMD:
        pytest.skip("the limits are read from the files of v2, below a slice")
    service._import_images()
    package.configure(toml(pods.STATIC))
    package.wait_status("colocation    on")
    with CriClient(LISTEN) as client:
        container = pods.run_offline(client, "batch")
        assert pods.is_in_box(client, container)
    pods.wait_bounded()
    done = package.dpkg("-r", "criproxy")
    assert done.returncode == 0, done.stdout
    with CriClient(RUNTIME) as client:
        assert pods.is_in_box(client, container), done.stdout
        assert pods.is_bounded()
        lift = re.search(r"to lift them: (systemctl .*)", done.stdout)
        assert lift is not None, done.stdout
        subprocess.run(["sh", "-ec", lift[1]], check=True, timeout=60)
        files = [pods.CPU / name for name in ("cpu.max", "memory.high", "memory.max", "memory.swap.max")]
        assert {file.read_text().split()[0] for file in files if file.exists()} == {"max"}
        client.remove_all_pods()
    package.install(package.deb())


def test_removal_keeps_the_config_and_ends_the_service(installed: None) -> None:
    done = package.dpkg("-r", "criproxy")
    assert done.returncode == 0, done.stdout
    assert Path("/etc/criproxy/config.toml").exists()
    assert not RUN.exists()
    assert not package.CODE.exists()
    assert [unit for unit in UNITS if show(unit, "ActiveState") != "inactive"] == []


def test_purge_leaves_nothing(before: tuple[set[str], str]) -> None:
    done = package.dpkg("--purge", "criproxy")
    assert done.returncode == 0, done.stdout
    assert files() - before[0] == set()
    assert systemctl("list-units", "--all", "--plain", "--no-legend", "*criproxy*", "*offline*") == ""
    assert [path for path in Path("/run/systemd").glob("*/*") if re.match(r".*(criproxy|offline)", path.name)] == []
    assert not [path for path in Path("/sys/fs/cgroup").rglob("*") if path.name.startswith(("criproxy", "offline"))]
