"""What a machine must have for the demo, and one sentence with the remedy for what it has not."""

import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from integration.demo import DemoError
from integration.lab.cgroups import hierarchies
from integration.lab.process import LabError

PROGRAMS: Final = {
    "containerd": "containerd",
    "ctr": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "runc": "runc",
    "busybox": "busybox-static",
    "setpriv": "util-linux",
}
"""What must be on PATH, and the Debian package that brings it."""
_V1_CONTROLLERS: Final = frozenset({"cpu", "cpuacct", "memory"})
_V2_CONTROLLERS: Final = frozenset({"cpu", "memory"})


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts that decide whether the demo can run. `controllers` are those of the cgroup hierarchies found."""

    platform: str
    user_id: int
    cgroup_version: int | None
    controllers: frozenset[str]
    missing_programs: tuple[str, ...]
    shell_clock: bool


def problem(machine: Machine) -> str | None:
    """One sentence on the first thing that is missing and what to do; None when all is there."""
    return _wrong_system(machine) or _missing_parts(machine)


def _wrong_system(machine: Machine) -> str | None:
    if machine.platform != "linux":
        return f"The demo needs Linux, this is {machine.platform}: run it on Debian 12, a virtual machine will do."
    if machine.user_id != 0:
        return "The demo needs root, for containerd and cgroups: run `sudo ./demo`."
    if machine.cgroup_version is None:
        return "No cgroup hierarchy is mounted here: run the demo on a machine (or in a container) with /sys/fs/cgroup."
    return None


def _missing_parts(machine: Machine) -> str | None:
    needed = _V1_CONTROLLERS if machine.cgroup_version == 1 else _V2_CONTROLLERS
    if missing := sorted(needed - machine.controllers):
        return (
            f"The cgroup v{machine.cgroup_version} hierarchy here lacks {' and '.join(missing)}: boot with that "
            "enabled, or run the demo on a machine instead of in a container."
        )
    if machine.missing_programs:
        packages = sorted({PROGRAMS[name] for name in machine.missing_programs})
        return f"{', '.join(machine.missing_programs)} not found: run `apt-get install {' '.join(packages)}`."
    if not machine.shell_clock:
        return "This busybox is too old (its shell has no EPOCHREALTIME): install busybox-static 1.34 or newer."
    return None


def look() -> Machine:
    """The facts of this machine."""
    on_linux = sys.platform == "linux"
    version, controllers = _cgroups() if on_linux else (None, frozenset[str]())
    missing = tuple(name for name in PROGRAMS if shutil.which(name) is None)
    return Machine(sys.platform, os.geteuid(), version, controllers, missing, "busybox" in missing or _has_clock())


def check_port(port: int) -> None:
    """Raises DemoError when 127.0.0.1:`port` is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            what = (
                "is taken by another program"
                if error.errno == errno.EADDRINUSE
                else f"can't be used ({error.strerror})"
            )
            raise DemoError(f"Port 127.0.0.1:{port} {what}: give a free one with --port.") from error


def check_plot(path: Path) -> None:
    """Raises DemoError when the plot could not be written after the play."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab"):
            pass
    except OSError as error:
        raise DemoError(
            f"The plot {path} can't be written ({error.strerror}): give another path with --plot."
        ) from error
    if path.stat().st_size == 0:
        path.unlink()


def _cgroups() -> tuple[int | None, frozenset[str]]:
    """The version that carries the controllers, and which there are; named hierarchies of v1 carry none."""
    try:
        found = hierarchies()
    except LabError:
        return None, frozenset()
    v1 = frozenset(
        name for one in found if one.version == 1 for name in one.controllers if not name.startswith("name=")
    )
    if v1:
        return 1, v1
    v2 = next((one for one in found if one.version == 2), None)
    return (None, frozenset()) if v2 is None else (2, frozenset((v2.mount / "cgroup.controllers").read_text().split()))


def _has_clock(command: Sequence[str] = ("busybox", "sh", "-c", "echo $EPOCHREALTIME")) -> bool:
    done = subprocess.run(command, capture_output=True, timeout=10, check=False)
    return done.returncode == 0 and bool(done.stdout.strip())
