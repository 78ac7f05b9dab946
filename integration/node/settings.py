"""What a node is made of: release, size, packages, and where the results are kept. All from the environment."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from integration.lab import cache
from integration.node.spawn import NodeError, output

PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "kmod", "iproute2", "procps", "init-system-helpers", "busybox-static"),
    *("containerd", "runc", "containernetworking-plugins", "python3", "python3-venv", "e2fsprogs"),
)

OLDEST_QEMU = (8, 1)
"""Before it, an emulated CPU now and then goes on with code that another has patched since: the guest's kernel panics,
or stands still. Source: QEMU's change "accel/tcg: Always lock pages before translation"."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """`name` is Debian's, `machine` the kernel's; `board` is QEMU's -M, `console` its serial line to the kernel.

    `processor` is QEMU's -cpu. An arm64 one has no pauth: Debian's programs sign each return address where it is there,
    and Python takes five times as long under qemu-user.
    """

    name: str
    machine: str
    board: str
    console: str
    processor: str


ARCHITECTURES: Mapping[str, Architecture] = {
    one.name: one
    for one in (
        Architecture("amd64", "x86_64", "pc,usb=off,vmport=off,smm=off", "ttyS0", "max"),
        Architecture("arm64", "aarch64", "virt", "ttyAMA0", "max,pauth=off"),
    )
}


@dataclass(frozen=True, slots=True)
class Settings:
    """`suite` is the Debian release; `cpus` is what QEMU's -smp takes, `processor` its -cpu; `cache` holds
    images and snapshots; `mirror` None: the one that apt uses here.
    """

    suite: str
    architecture: Architecture
    cpus: str
    memory_mib: int
    qemu: str
    cache: Path
    mirror: str | None
    packages: tuple[str, ...]
    processor: str

    @staticmethod
    def from_environment(architecture: str = "") -> "Settings":
        """`architecture`: in place of NODE_ARCH. Raises ValueError when there is no such one, or a number is none."""
        environ = os.environ
        name = architecture or environ.get("NODE_ARCH", "amd64")
        if name not in ARCHITECTURES:
            raise ValueError(f"NODE_ARCH={name}: set it to {' or '.join(ARCHITECTURES)}")
        return Settings(
            suite=environ.get("NODE_SUITE", "trixie"),
            architecture=ARCHITECTURES[name],
            cpus=str(int(environ.get("NODE_CPUS", "2"))),
            memory_mib=int(environ.get("NODE_MEM", "3072")),
            qemu=environ.get("NODE_QEMU", f"qemu-system-{ARCHITECTURES[name].machine}"),
            cache=Path(environ.get("NODE_CACHE", cache.folder() / "node")),
            mirror=environ.get("NODE_MIRROR"),
            packages=(*PACKAGES, *environ.get("NODE_PACKAGES", "").split()),
            processor=ARCHITECTURES[name].processor,
        )

    def find_qemu(self) -> str:
        """QEMU's version, in its own words. Raises NodeError when there is none, or an old one."""
        words = output([self.qemu, "--version"]).partition("\n")[0]
        found = re.search(r"version (\d+)\.(\d+)", words)
        if found is None or tuple(map(int, found.groups())) < OLDEST_QEMU:
            raise NodeError(f"{self.qemu} is {words!r}: version {'.'.join(map(str, OLDEST_QEMU))} or later is needed")
        return words

    def find_mirror(self) -> str:
        """A Debian archive's address. Raises NodeError when none is known."""
        if self.mirror:
            return self.mirror
        uris = output(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]).split()
        for uri in uris:
            if uri.rstrip("/").endswith("/debian"):
                return uri
        raise NodeError("apt's sources name no Debian archive: set NODE_MIRROR=http://…/debian")
