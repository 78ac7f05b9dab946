"""criproxy's packages, on this node: $CRIPROXY_DEBS, or dist/ of the checkout, has what packaging/deb/build made.

`integration/setup debs` makes them: the version of this checkout, in next/ a newer one of the same code, and in
repository/ both, as an apt repository; `integration/setup arm64` adds those for arm64 to the first two.
"""

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

from integration.lab.process import LabError, wait_until
from integration.systemd import service
from integration.systemd.service import CHECKOUT, systemctl

DEBS = Path(os.environ.get("CRIPROXY_DEBS", CHECKOUT / "dist"))
REPOSITORY_PORT = 8817
"""That of the address on 127.0.0.1 which the repository's files name. Source: integration/setup."""
MARKS: Mapping[str, str] = {"bookworm": "deb12", "trixie": "deb13", "forky": "deb14"}
"""What the version of each release's package ends in. Testing has a name, and no number yet."""

CODE = Path("/usr/lib/criproxy")
DROPINS = Path("/etc/criproxy/config.d")
DPKG_S = 300
"""Unpacking, compiling nothing, and a start: half a minute on an emulated node."""


def deb(newer: bool = False) -> Path:
    """The package for this node's release and architecture. Raises LabError when it was not made."""
    release = MARKS[platform.freedesktop_os_release()["VERSION_CODENAME"]]
    architecture = dpkg("--print-architecture").stdout.strip()
    directory = DEBS / "next" if newer else DEBS
    found = sorted(directory.glob(f"criproxy_*~{release}u*_{architecture}.deb"))
    if len(found) != 1:
        wanted = f"{directory} has {len(found)} packages of {release} for {architecture}, not one"
        raise LabError(f"{wanted}: run integration/setup {'debs' if architecture == 'amd64' else architecture}")
    return found[0]


def dpkg(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run dpkg; standard error is in `stdout` too."""
    return subprocess.run(
        ["dpkg", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DPKG_S,
        check=False,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", **(environment or {})},
    )


def install(package: Path) -> str:
    """Install or upgrade; returns what dpkg says. Raises LabError when it fails."""
    done = dpkg("-i", str(package))
    if done.returncode != 0:
        raise LabError(f"dpkg -i {package.name}: {done.stdout}")
    return done.stdout


def code() -> Path:
    """The private directory of the installed version."""
    (directory,) = (path for path in CODE.iterdir() if path.is_dir())
    return directory


def is_mapped(pid: int, directory: Path) -> bool:
    """Whether process `pid` runs code of `directory`."""
    return f"{directory}/" in Path(f"/proc/{pid}/maps").read_text()


def configure(text: str) -> None:
    """A drop-in of the config; "" takes it away."""
    file = DROPINS / "test.toml"
    if text:
        file.write_text(text)
    else:
        file.unlink(missing_ok=True)


def restart() -> None:
    """Restart the service; it is ready after this."""
    systemctl("restart", "criproxy.service")


def criproxy(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    return subprocess.run(["criproxy", *arguments], capture_output=True, text=True, timeout=120, check=False)


def wait_status(text: str) -> None:
    """Wait until `criproxy status` has this text in it."""
    wait_until(lambda: text in criproxy("status").stdout, service.START_S, f"a status with {text!r}", poll_s=0.5)
