"""What the package's scripts leave of running containers, when systemd resets memory.oom.group with each reload."""

import os
import subprocess
from pathlib import Path

import pytest

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
DEBHELPER = "systemctl --system daemon-reload >/dev/null || true"
"""What debhelper puts into a postrm for a package with units."""


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
    script = script.replace("rm -rf /run/criproxy", ":").replace("#DEBHELPER#", DEBHELPER if name == "postrm" else "")
    assert "/run/criproxy" not in script
    path = f"{tmp_path}/bin:{os.environ['PATH']}"

    done = subprocess.run(["sh", "-c", script, name, argument], env={"PATH": path}, capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "reloaded").exists()
    left = {scope: (tmp_path / "cgroup" / scope / "memory.oom.group").read_text().strip() for scope in scopes}
    assert left == scopes
