"""Makes what a node starts from: a release's image, and a snapshot of it booted; both cached by what went into them."""

import contextlib
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from integration.lab import cache
from integration.node.machine import Command, Machine, Start
from integration.node.settings import Settings
from integration.node.spawn import NodeError, start

HERE = Path(__file__).resolve().parent
BOOT_S, PREPARE_S, RELEASE_S = 900, 1200, 120
"""Long, for a machine that others keep busy: an idle one boots in a minute."""
WARM = "ctr -n k8s.io run --rm localhost/busybox:1 warm true; "
"""Halves the time of the first pod after a resume."""
MOUNT = (
    "mount -t squashfs -o ro /dev/vdb /mnt; mount --bind /mnt/0 /src; mkdir -p /var/scratch/u /var/scratch/w; "
    "mount -t overlay -o lowerdir=/mnt/0,upperdir=/var/scratch/u,workdir=/var/scratch/w w /w"
)
"""The first tree is /src, and /w with changes allowed."""
UNMOUNT = "cd /; umount /w /src /mnt; rm -rf /var/scratch/* /out/*; blockdev --flushbufs /dev/vdb; journalctl --sync"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for: `prepare` is run by a shell before the snapshot, with `source` as its /w."""

    source: Path
    prepare: str = ""
    anew: bool = False
    kernel_arguments: str = ""


def mount_all(binds: Mapping[str, Path]) -> str:
    """The shell script that mounts the source as /src and /w, and the trees after it at their paths in the guest."""
    return "; ".join([MOUNT, *(_mount(number, *bind) for number, bind in enumerate(binds.items(), 1))])


def _mount(number: int, guest: str, host: Path) -> str:
    place, parent = shlex.quote(guest), shlex.quote(str(Path(guest).parent))
    make = f"mkdir -p {place}" if host.is_dir() else f"mkdir -p {parent}; touch {place}"
    return f"{make}; mount --bind /mnt/{number} {place}"


def find_image(settings: Settings, anew: bool = False) -> Path:
    """The directory with root.sqfs, vmlinuz and initrd; made (a minute or two) when it is not there."""
    with cached(settings.cache, _image_name(settings), anew) as (image, empty):
        if empty:
            _make_image(settings, empty)
    return image


def find_snapshot(settings: Settings, wanted: Wanted) -> tuple[Path, Path]:
    """The image, and the directory with the state and memory of that node after its boot; made when not there."""
    image = find_image(settings, wanted.anew)
    with cached(settings.cache, _snapshot_name(settings, wanted), wanted.anew) as (snapshot, empty):
        if empty:
            _make_snapshot(settings, image, empty, wanted)
    return image, snapshot


def _image_name(settings: Settings) -> str:
    key = _hash(prepare_image(settings), _text("agent.py"), *settings.packages)
    return f"{settings.suite}-{key}"


def _snapshot_name(settings: Settings, wanted: Wanted) -> str:
    key = _hash(
        *map(_text, ("build.py", "machine.py")),
        *(
            settings.find_qemu(),
            wanted.source.name,
            settings.cpus,
            settings.processor,
            str(settings.memory_mib),
            wanted.prepare,
            wanted.kernel_arguments,
        ),
    )
    return f"{_image_name(settings)}-{key}"


def prepare_image(settings: Settings) -> str:
    """The script, which is amd64's as it stands, for this node's architecture."""
    architecture = settings.architecture
    return _text("prepare-image.sh").replace("amd64", architecture.name).replace("ttyS0", architecture.console)


def _text(name: str) -> str:
    return (HERE / name).read_text()


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@contextlib.contextmanager
def cached(folder: Path, name: str, anew: bool) -> Iterator[tuple[Path, Path | None]]:
    """Yields (directory, None) when it is there, else (directory, an empty one that takes its place afterwards)."""
    directory, began_s = folder / name, time.monotonic()
    with cache.locked(directory):
        if directory.is_dir() and not anew:
            yield directory, None
        else:
            print(f"node: making {directory}", file=sys.stderr, flush=True)
            unfinished = folder / f"{name}.tmp"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            yield directory, unfinished
            shutil.rmtree(directory, ignore_errors=True)
            unfinished.rename(directory)
            print(f"node: made it in {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
        cache.use(directory)
    cache.forget_unused(folder)


def _make_image(settings: Settings, directory: Path) -> None:
    log = directory / "log"
    with log.open("w") as errors:
        bootstrap = start(
            _mmdebstrap(settings, directory),
            stdout=subprocess.PIPE,
            stderr=errors,
            env={
                **os.environ,
                "PREPARE_IMAGE": prepare_image(settings),
                "QEMU_CPU": settings.processor,  # of the emulator that runs another architecture's programs
                "TMPDIR": str(directory),
            },
        )
        squash: list[str | Path] = ["sqfstar", "-quiet", "-no-progress", "-comp", "lz4", directory / "root.sqfs"]
        packer = start(squash, stdin=bootstrap.stdout, stderr=subprocess.DEVNULL)
    if bootstrap.wait() != 0 or packer.wait() != 0:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise NodeError(f"mmdebstrap failed; the end of {log}:\n{last}")


def _mmdebstrap(settings: Settings, directory: Path) -> list[str]:
    hooks = [
        f'cp {shlex.quote(str(HERE / "agent.py"))} "$1/usr/local/lib/node-agent"',
        'chroot "$1" sh -ec "$PREPARE_IMAGE"',
        *(f"download /boot/{name} {shlex.quote(str(directory / name))}" for name in ("vmlinuz", "initrd")),
        'rm "$1"/boot/*',
    ]
    return [
        *("mmdebstrap", "--variant=minbase", "--skip=output/dev", f"--include={','.join(settings.packages)}"),
        f"--architectures={settings.architecture.name}",
        *(f"--customize-hook={hook}" for hook in hooks),
        '--aptopt=Acquire::Check-Valid-Until "false"',
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "doc", "locale")),
        *(settings.suite, "-", f"deb {settings.find_mirror()} {settings.suite} main"),
    ]


def _make_snapshot(settings: Settings, image: Path, directory: Path, wanted: Wanted) -> None:
    with Machine(
        settings, Start(image, [wanted.source], directory, kernel_arguments=wanted.kernel_arguments)
    ) as machine:
        machine.wait_booted(time.monotonic() + BOOT_S)
        prepare = Command(["sh", "-ec", WARM + wanted.prepare], MOUNT)
        if machine.run(prepare, time.monotonic() + PREPARE_S) != 0:
            raise NodeError("preparing the node failed (see above)")
        if machine.run(Command(["true"], UNMOUNT, "/"), time.monotonic() + RELEASE_S) != 0:
            raise NodeError("the preparation left something running in /w")
        machine.save(directory)
