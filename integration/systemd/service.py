"""criproxy as this node's service: the units of packaging/, the code of this checkout, the node's own containerd.

For throwaway nodes only: it installs units and never cleans up.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from criproxy.observe import client as asking
from integration.lab import images
from integration.lab.cgroups import version
from integration.lab.client import CriClient
from integration.lab.criproxy import Config, toml_file
from integration.lab.process import LabError, wait_until

CHECKOUT = Path(__file__).resolve().parents[2]
UNITS = Path("/etc/systemd/system")
SWITCH = Path("/usr/lib/criproxy/criproxy-bypass")
CONFIG = Path("/etc/criproxy/config.toml")
RUN = Path("/run/criproxy")
LISTEN = RUN / "criproxy.sock"
ASKED_AT = RUN / "criproxy-status.sock"
FORWARDER = RUN / "bypass.sock"
RUNTIME = Path("/run/containerd/containerd.sock")
START_S = 120
"""The node is emulated: Python takes 20 times as long there."""

BYTECODE = Path("/var/cache/criproxy-test")
"""The checkout and its packages come without: to compile them at each start takes longest of all."""


def systemctl(*arguments: str, check: bool = True) -> str:
    """What systemctl prints. Raises LabError when it fails, unless told not to `check`."""
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, timeout=120, check=False)
    if check and done.returncode != 0:
        raise LabError(f"systemctl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def journal(unit: str = "criproxy*") -> str:
    """The messages of the units, newest last."""
    command = ["journalctl", "--no-pager", "--output=cat", f"--unit={unit}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def show(unit: str, name: str) -> str:
    """A property of a unit."""
    return systemctl("show", "--value", f"--property={name}", unit).strip()


def is_active(unit: str) -> bool:
    return show(unit, "ActiveState") == "active"


def ask(question: str) -> str:
    """What criproxy answers at its status socket."""
    return asking.ask(ASKED_AT, question, START_S)


def main_pid() -> int:
    """0 when criproxy does not run."""
    return int(show("criproxy.service", "MainPID"))


def processes() -> set[int]:
    """Those in the service's cgroup."""
    group = Path("/sys/fs/cgroup", "systemd" if version() == 1 else "", show("criproxy.service", "ControlGroup")[1:])
    return {int(pid) for pid in (group / "cgroup.procs").read_text().split()}


def configure(config: Config) -> None:
    """Write the config file, at once."""
    CONFIG.parent.mkdir(parents=True, exist_ok=True)
    new = CONFIG.with_suffix(".new")
    new.write_text(toml_file(config))
    new.rename(CONFIG)


def drop_in(text: str) -> None:
    """Change the unit: `text` is its [Service] section's; "" changes it back."""
    directory = UNITS / "criproxy.service.d"
    directory.mkdir(parents=True, exist_ok=True)
    command = f"{sys.executable} -m criproxy run --config {CONFIG}"
    own = (
        f"Environment=PYTHONPATH={os.environ.get('PYTHONPATH', '')}:{CHECKOUT} PYTHONPYCACHEPREFIX={BYTECODE}",
        "ExecStart=",
        f"ExecStart={command}",
    )
    (directory / "test.conf").write_text("\n".join(("[Service]", *own, text, "")))
    systemctl("daemon-reload")


def install(config: Config) -> None:
    """Install the units and the config; nothing is started. The node's containerd gets the lab's images."""
    SWITCH.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(CHECKOUT / "packaging" / "criproxy-bypass.sh", SWITCH)
    SWITCH.chmod(0o755)
    for unit in (CHECKOUT / "packaging").glob("criproxy*.s[eo]*"):
        if unit.suffix in {".service", ".socket"}:
            shutil.copy(unit, UNITS)
    os.environ["PYTHONPYCACHEPREFIX"] = str(BYTECODE)
    configure(config)
    drop_in("")
    _import_images()


def fresh() -> None:
    """Nothing of criproxy runs, waits or is remembered. Config and units stay as they are."""
    systemctl("stop", "criproxy.service", "criproxy-bypass-arm.service", check=False)
    systemctl("stop", "criproxy-bypass-arm.service", "criproxy-bypass.socket", "criproxy-bypass.service", check=False)
    shutil.rmtree(RUN, ignore_errors=True)
    systemctl("reset-failed", check=False)


def start() -> None:
    """Start criproxy, and wait until it answers."""
    systemctl("start", "criproxy.service")
    with CriClient(LISTEN) as client:
        wait_until(client.is_ready, START_S, "criproxy to answer", poll_s=0.2)


def wait_restarted(pid: int) -> float:
    """Wait until another process than `pid` is the service's and is ready; returns how long that took, in s."""
    began_s = time.monotonic()
    wait_until(lambda: is_active("criproxy.service") and main_pid() not in (0, pid), START_S, "a restart", poll_s=0.2)
    return time.monotonic() - began_s


@contextmanager
def changed(text: str) -> Iterator[None]:
    """Within this, the unit is changed by `text`; takes force with the next start."""
    drop_in(text)
    try:
        yield
    finally:
        drop_in("")


def _import_images() -> None:
    archive = Path("/var/tmp/criproxy-images.tar")
    images.write_archive(archive)
    subprocess.run(["ctr", "-n", "k8s.io", "images", "import", str(archive)], check=True, timeout=120)
    archive.unlink()
