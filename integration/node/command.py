"""The command `node`: make a throwaway Debian node, or run a command on a fresh one."""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from integration.node.build import Wanted, find_image, find_snapshot, mount_all
from integration.node.machine import Command, Machine, Start
from integration.node.settings import Settings
from integration.node.spawn import NodeError

USAGE = """\
node build [--prep SH] [--src DIR] [-f]    make the image and a snapshot of the booted node (cached)
node run [options] -- CMD...               run CMD on a fresh node, exit with its status
  --src DIR   tree shown read-only as /src and, copy-on-write, as /w (the working directory); default .
  --bind HOST:GUEST   another read-only tree, or file         --env K=V
  --out DIR   what CMD leaves in /out is unpacked there     --timeout SECONDS  (300)
  --prep SH   use the snapshot made after running SH on the node (built if missing)
  --boot      boot instead of resuming the snapshot         --append KERNEL_ARGS (implies --boot)
  --console   show the guest's console
Exit status: CMD's own; 124 after a timeout; 125 when the node itself failed.
Environment: NODE_SUITE (trixie, bookworm, forky), NODE_ARCH (amd64, arm64), NODE_CPUS (2), NODE_MEM (3072, in MiB),
NODE_CACHE (~/.cache/criproxy/node), NODE_QEMU, NODE_MIRROR, NODE_PACKAGES (more of Debian's).
Needs qemu-system-x86, mmdebstrap, squashfs-tools. Root is not needed; a user's `node build` needs uidmap and a line in
/etc/subuid."""
TIMED_OUT, FAILED = 124, 125


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    split = list(arguments).index("--") if "--" in arguments else len(arguments)
    options, command = _parser().parse_args(arguments[:split]), arguments[split + 1 :]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        return _build(options) if options.what == "build" else _run(options, command)
    except TimeoutError:
        print("node: timed out", file=sys.stderr)
        return TIMED_OUT
    except (NodeError, OSError, ValueError) as error:
        print(f"node: {error}", file=sys.stderr)
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(usage=USAGE)
    parser.add_argument("what", choices=["build", "run"])
    parser.add_argument("--src", type=Path, default=Path())
    parser.add_argument("--prep", default="")
    parser.add_argument("--append", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--bind", action="append", default=[], metavar="HOST:GUEST")
    parser.add_argument("--env", action="append", default=[], metavar="K=V")
    parser.add_argument("-f", dest="anew", action="store_true")
    parser.add_argument("--boot", action="store_true")
    parser.add_argument("--console", action="store_true")
    parser.add_argument("--timeout", type=float, default=300)
    return parser


def _build(options: argparse.Namespace) -> int:
    _, snapshot = find_snapshot(Settings.from_environment(), Wanted(options.src, options.prep, options.anew))
    print(snapshot)
    return 0


def _run(options: argparse.Namespace, argv: Sequence[str]) -> int:
    settings, boot = Settings.from_environment(), bool(options.boot or options.append)
    if boot:
        image, snapshot = find_image(settings, options.anew), None
    else:
        image, snapshot = find_snapshot(settings, Wanted(options.src, options.prep, options.anew))
    deadline_s = time.monotonic() + options.timeout
    binds = {guest: Path(host) for host, _, guest in (bind.rpartition(":") for bind in options.bind)}
    env = dict(entry.split("=", 1) for entry in options.env)
    command = Command(argv, mount_all(binds), env=env, out=options.out)
    trees = [options.src, *binds.values()]
    with Machine(settings, Start(image, trees, snapshot, not boot, options.append, options.console)) as machine:
        if boot:
            machine.wait_booted(deadline_s)
        return machine.run(command, deadline_s)
