"""What the package's scripts leave of running containers, when systemd resets memory.oom.group with each reload."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from criproxy.config.last_run import FACTS

DEBIAN = Path(__file__).resolve().parents[2] / "packaging" / "deb" / "debian"
SYSTEMCTL = """#!/bin/sh
case $* in
*daemon-reload*)
    touch {0}/reloaded
    find {0}/cgroup -name memory.oom.group | while read -r file; do echo 0 >"$file"; done
    ;;
*) exit 1 ;;
esac
"""
CRIPROXY = """#!/bin/sh
echo "$*" >>{0}/called
if [ "$1" = upgrade ] && [ "$(grep -c upgrade {0}/called)" -gt "$(cat {0}/refusals 2>/dev/null || echo 9)" ]; then
    echo "took over"
    exit
fi
[ "$1" != upgrade ] || [ ! -e {0}/status ] || exit "$(cat {0}/status)"
[ ! -e {0}/fails ]
"""
DEBHELPER = "systemctl --system daemon-reload >/dev/null || true"
"""What debhelper puts into a postrm for a package with units."""


def test_code_without_bytecode_is_compiled_by_its_python_and_what_an_earlier_one_left_is_removed(
    tmp_path: Path,
) -> None:
    old, new, complete = (tmp_path / "lib" / name / "criproxy" for name in ("1-a", "2-b", "3-c"))
    for code in (old / "__pycache__", new, complete / "__pycache__"):
        code.mkdir(parents=True)
    for code in (new, complete):
        (code / "cli.py").write_text("NUMBER = 7\n")
    program = tmp_path / "criproxy"
    program.write_text(f"#!{sys.executable} -ISB\n")
    script = (DEBIAN / "criproxy.postinst").read_text().replace("/run/systemd", f"{tmp_path}/no-systemd")
    script = (
        script.replace("=/var/lib/criproxy", f"={tmp_path}/state")
        .replace("=/usr/lib/criproxy", f"={tmp_path}/lib")
        .replace("=/usr/bin/criproxy", f"={program}")
    )
    assert "/usr/" not in script
    done = subprocess.run(["sh", "-c", script, "postinst", "configure"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not old.parent.exists()
    (bytecode,) = (new / "__pycache__").iterdir()
    assert bytecode.read_bytes()[:8] == importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little"), "unchecked-hash"
    assert list((complete / "__pycache__").iterdir()) == [], "what came compiled stays as it came"


@pytest.mark.parametrize(
    ("name", "argument"), [("postinst", "configure"), ("postrm", "remove")], ids=["installation", "removal"]
)
def test_scripts_put_back_what_a_reload_of_systemd_takes_from_containers(
    tmp_path: Path, name: str, argument: str
) -> None:
    scopes = {"a.scope": "1", "b.scope": "0", r"kubepods-pod1\x2d2.slice": "1"}
    for scope, value in scopes.items():
        (tmp_path / "cgroup" / scope).mkdir(parents=True)
        (tmp_path / "cgroup" / scope / "memory.oom.group").write_text(f"{value}\n")
    (tmp_path / "systemd" / "system").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for program, text in (("systemctl", SYSTEMCTL), ("deb-systemd-invoke", "#!/bin/sh\n")):
        (tmp_path / "bin" / program).write_text(text.format(tmp_path))
        (tmp_path / "bin" / program).chmod(0o755)
    script = (DEBIAN / f"criproxy.{name}").read_text()
    script = script.replace("/sys/fs/cgroup", f"{tmp_path}/cgroup").replace("/run/systemd", f"{tmp_path}/systemd")
    script = (
        script.replace("/var/lib/criproxy", f"{tmp_path}/state")
        .replace("rm -rf /run/criproxy", ":")
        .replace("#DEBHELPER#", DEBHELPER if name == "postrm" else "")
    )
    assert "/run/criproxy" not in script
    path = f"{tmp_path}/bin:{os.environ['PATH']}"

    done = subprocess.run(["sh", "-c", script, name, argument], env={"PATH": path}, capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "reloaded").exists()
    left = {scope: (tmp_path / "cgroup" / scope / "memory.oom.group").read_text().strip() for scope in scopes}
    assert left == scopes


def run_script(directory: Path, name: str, *arguments: str, plugins: list[str]) -> subprocess.CompletedProcess[bytes]:
    """On a machine in a directory, with these plugins of the runtime; `called` there has the calls of criproxy.

    `status` there is with what `criproxy upgrade` ends; `invoked` has what Debian's helper was asked for;
    with `stopped`, no unit is active. `paused` has the seconds that the script would have slept. With `refusals`, an
    upgrade that comes after so many takes over.
    """
    for made in ("bin", "plugins", "systemd/system", "cgroup"):
        (directory / made).mkdir(parents=True, exist_ok=True)
    for plugin in plugins:
        (directory / "plugins" / plugin).touch()
    (directory / "bin/systemctl").write_text(f"#!/bin/sh\n[ ! -e {directory}/stopped ]\n")
    (directory / "bin/deb-systemd-invoke").write_text(f'#!/bin/sh\necho "$*" >>{directory}/invoked\n')
    (directory / "bin/sleep").write_text(f'#!/bin/sh\necho "$*" >>{directory}/paused\n')
    (directory / "bin/criproxy").write_text(CRIPROXY.format(directory))
    for file in (directory / "bin").iterdir():
        file.chmod(0o755)
    script = (DEBIAN / f"criproxy.{name}").read_text().replace("rm -rf", ":").replace("#DEBHELPER#", "")
    places = {
        "/sys/fs/cgroup": "cgroup",
        "/run/systemd": "systemd",
        "/opt/nri/plugins": "plugins",
        "/var/lib/criproxy": "state",
    }
    for place, instead in places.items():
        script = script.replace(place, str(directory / instead))
    environment = {"PATH": f"{directory}/bin:{os.environ['PATH']}"}
    return subprocess.run(["sh", "-c", script, name, *arguments], env=environment, capture_output=True, check=False)


PLUGINS = ["10-other", "95-criproxy", "99-criproxy-sentry"]


def test_a_purge_takes_the_runtimes_plugins_of_a_package_that_was_forced_off(tmp_path: Path) -> None:
    done = run_script(tmp_path, "postrm", "purge", plugins=PLUGINS)

    assert (done.returncode, done.stderr) == (0, b"")
    assert [path.name for path in (tmp_path / "plugins").iterdir()] == ["10-other"]


@pytest.mark.parametrize(("plugins", "called"), [(PLUGINS, "sentry on\n"), (["10-other"], "")], ids=["on", "off"])
def test_an_upgrade_renews_the_sentry_where_it_is_on(tmp_path: Path, plugins: list[str], called: str) -> None:
    (tmp_path / "called").touch()
    done = run_script(tmp_path, "postinst", "configure", "0.0.1", plugins=plugins)

    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "called").read_text().replace("upgrade\n", "") == called


def test_a_sentry_that_can_not_be_renewed_does_not_fail_the_upgrade(tmp_path: Path) -> None:
    (tmp_path / "fails").touch()
    done = run_script(tmp_path, "postinst", "configure", "0.0.1", plugins=PLUGINS)

    assert done.returncode == 0
    assert b"run 'criproxy sentry on'" in done.stderr


@pytest.mark.parametrize(
    ("status", "invoked", "said"),
    [
        pytest.param(0, "", "", id="hands-over"),
        pytest.param(7, "", "", id="hands-over-before-a-silent-runtime"),
        pytest.param(1, "restart criproxy.service\n", "restarting criproxy.service instead", id="did-not-start"),
        pytest.param(124, "restart criproxy.service\n", "restarting criproxy.service instead", id="hangs"),
        pytest.param(6, "", "the version from before goes on", id="refuses"),
    ],
)
def test_an_upgrade_restarts_the_service_only_where_no_version_goes_on(
    tmp_path: Path, status: int, invoked: str, said: str
) -> None:
    (tmp_path / "status").write_text(str(status))
    (tmp_path / "invoked").touch()

    done = run_script(tmp_path, "postinst", "configure", "0.0.1", plugins=[])

    assert done.returncode == 0
    assert (tmp_path / "invoked").read_text() == invoked
    assert said in done.stderr.decode()
    if status == 6:
        assert all(remedy in done.stderr.decode() for remedy in ("'criproxy upgrade'", "'systemctl restart criproxy'"))


@pytest.mark.parametrize(
    ("refusals", "goes_on", "paused_s"),
    [
        pytest.param(0, False, [], id="hands-over-at-once"),
        pytest.param(2, False, [5, 10], id="hands-over-then"),
        pytest.param(4, True, [5, 10, 20], id="refused-to-the-end"),
    ],
)
def test_an_upgrade_that_is_refused_is_tried_again_for_less_than_a_minute(
    tmp_path: Path, refusals: int, goes_on: bool, paused_s: list[int]
) -> None:
    (tmp_path / "status").write_text("6")
    (tmp_path / "refusals").write_text(str(refusals))
    (tmp_path / "paused").touch()

    done = run_script(tmp_path, "postinst", "configure", "0.0.1", plugins=[])

    assert done.returncode == 0
    assert (b"the version from before goes on" in done.stderr) is goes_on
    assert (b"took over" in done.stdout) is not goes_on
    assert [int(line) for line in (tmp_path / "paused").read_text().split()] == paused_s


def test_a_removal_takes_the_sockets_of_the_last_run_and_leaves_what_else_is_remembered(tmp_path: Path) -> None:
    """A criproxy that comes as a pod has the same state, and runs at other sockets."""
    (tmp_path / "state").mkdir()
    for name in (FACTS, "other"):
        (tmp_path / "state" / name).touch()

    assert run_script(tmp_path, "postrm", "remove", plugins=[]).returncode == 0

    assert sorted(file.name for file in (tmp_path / "state").iterdir()) == ["other", "removed"]


def test_an_installation_after_a_removal_that_kept_the_config_starts_the_service(tmp_path: Path) -> None:
    """Dpkg gives the version that was there, as in an upgrade."""
    for name in ("invoked", "stopped"):
        (tmp_path / name).touch()
    assert run_script(tmp_path, "postrm", "remove", plugins=[]).returncode == 0
    for started in ("start criproxy.service\n", ""):  # then an upgrade: what an operator has stopped stays so
        (tmp_path / "invoked").write_text("")
        done = run_script(tmp_path, "postinst", "configure", "0.0.1", plugins=[])
        assert (done.returncode, done.stderr) == (0, b"")
        assert (tmp_path / "invoked").read_text() == started
