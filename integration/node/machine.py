"""One virtual machine: QEMU's devices and control protocol, and the line to the agent in the guest.

Source: QEMU machine protocol (qmp-spec); migration capability x-ignore-shared (a snapshot's memory is
mapped, not read).
"""

import contextlib
import json
import os
import select
import shlex
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from integration.node.settings import Settings
from integration.node.spawn import GuestKernelError, NodeError, start
from integration.node.trees import DISK_BYTES, pack

KERNEL_ARGUMENTS = "quiet panic=-1 rdinit=/init tsc=reliable mitigations=off systemd.show_status=no"
ON_DISK = "node.disk"
"""What a kernel is told for the initramfs to take `Start.disk`."""
POLL_S = 0.05
CONSOLE_BYTES = 20_000
TAIL_BYTES = 4_000
LAST_WORDS_S = 1.0
SYSRQ_ON = "echo 1 >/proc/sys/kernel/sysrq\n"
SYSRQ, SYSRQ_S = b"9lw", 5.0
"""What a kernel is asked for after a timeout, and how long for each: to print all, where its CPUs are, who waits."""
LINES = ("agent", "console", "control")


@dataclass(frozen=True, slots=True)
class Start:
    """How a machine comes up: from the kernel in `image`, or, with `resume`, from the snapshot.

    `snapshot` is where its memory is kept, `kernel_arguments` are added to its own, `console` shows what it prints.
    `disk`: an ext4 image that keeps what changes on the machine from one boot to the next; else it is in memory.
    """

    image: Path
    trees: Sequence[Path]
    snapshot: Path | None = None
    resume: bool = False
    kernel_arguments: str = ""
    console: bool = False
    disk: Path | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """What the guest runs: `setup` by a shell before it; `out` is where the files that it leaves in /out go."""

    argv: Sequence[str]
    setup: str = ""
    directory: str = "/w"
    env: Mapping[str, str] | None = None
    out: Path | None = None


class Machine:
    """A running guest; a context manager that ends it. Raises NodeError on whatever goes wrong with it."""

    def __init__(self, settings: Settings, how: Start) -> None:
        self._show_console = how.console
        self._printed, self._received = b"", b""
        self._tail = b""
        trees, scratch = pack(how.trees), os.memfd_create("scratch")
        os.ftruncate(scratch, DISK_BYTES)
        disks = [os.open(f"/proc/self/fd/{trees}", os.O_RDONLY), scratch]
        pairs = {name: socket.socketpair() for name in LINES}
        self._agent, self._console, self._control = (pairs[name][0] for name in LINES)
        theirs = {name: pair[1] for name, pair in pairs.items()}
        self._qemu = start(
            _arguments(settings, how, disks, theirs),
            stdin=subprocess.DEVNULL,
            pass_fds=[*disks, *(line.fileno() for line in theirs.values())],
        )
        for descriptor in (trees, *disks, *(line.detach() for line in theirs.values())):
            os.close(descriptor)
        self._replies = self._control.makefile()
        self.ask("qmp_capabilities")
        self.ask("migrate-set-capabilities", capabilities=[{"capability": "x-ignore-shared", "state": True}])
        if how.resume:
            self.ask("migrate-incoming", uri=f"exec:exec cat {shlex.quote(f'{how.snapshot}/state')}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._qemu.kill()
        self._qemu.wait()

    def wait_booted(self, deadline_s: float) -> None:
        """Return once the agent answers. Raises TimeoutError."""
        for kind, _ in self._frames(deadline_s):
            if kind == b"R":
                return
            raise NodeError(f"the agent began with {kind!r}")

    def save(self, snapshot: Path) -> None:
        """Write the state that `Start.resume` reads; the memory is in the snapshot's file already."""
        self.ask("migrate", uri=f"exec:cat >{shlex.quote(f'{snapshot}/state')}")
        while (status := self.ask("query-migrate")["status"]) != "completed":
            if status == "failed":
                raise NodeError("QEMU could not write the snapshot: is the disk full?")
            time.sleep(POLL_S)

    def run(self, command: Command, deadline_s: float) -> int:
        """Run a command to its end, its output passed through; returns its status.

        Raises TimeoutError at the deadline, with what the guest's kernel says then, and GuestKernelError if it is mute.
        """
        self._send(command)
        with contextlib.ExitStack() as stack:
            archive = stack.enter_context(_unpacker(command.out)) if command.out else None
            try:
                for kind, data in self._frames(deadline_s):
                    if kind == b"x":
                        return int(data)
                    if kind == b"f" and archive is not None and archive.stdin is not None:
                        archive.stdin.write(data)
                    else:
                        stream = sys.stdout.buffer if kind == b"o" else sys.stderr.buffer
                        stream.write(data)
                        stream.flush()
                        self._tail = (self._tail + data)[-TAIL_BYTES:]
            except TimeoutError:
                raise TimeoutError(self._kernel_words()) from None
        raise NodeError("the agent went silent")

    def _send(self, command: Command) -> None:
        request = {
            "argv": list(command.argv),
            "cwd": command.directory,
            "env": dict(command.env or {}),
            "setup": SYSRQ_ON + command.setup,
            "out": command.out is not None,
            "now": time.time(),
            "seed": os.urandom(32).hex(),
        }
        self._agent.sendall(json.dumps(request).encode() + b"\n")

    def reboot(self, deadline_s: float) -> None:
        """Have its systemd reboot it; returns when the machine has ended instead, for the next one with its disk.

        Raises TimeoutError, with what the guest's kernel says then.
        """
        self._send(Command(["systemctl", "reboot"]))
        try:
            for _ in self._frames(deadline_s):
                pass
        except GuestKernelError:
            raise
        except NodeError:  # the line is closed
            self._wait_ended(deadline_s)
        except TimeoutError:
            raise TimeoutError(self._kernel_words()) from None

    def _wait_ended(self, deadline_s: float) -> None:
        try:
            self._qemu.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError("QEMU does not end") from None

    @property
    def tail(self) -> str:
        """The end of what the command has printed."""
        return self._tail.decode(errors="replace")

    def _kernel_words(self) -> str:
        """What the guest's kernel prints when it is asked. Raises GuestKernelError when that is nothing.

        Source: Linux, Documentation/admin-guide/sysrq.rst, a break on the serial console.
        """
        words = b""
        for letter in SYSRQ:
            self.ask("chardev-send-break", id="console")
            self._console.send(bytes([letter]))
            deadline_s = time.monotonic() + SYSRQ_S
            while (left_s := deadline_s - time.monotonic()) > 0:
                if select.select([self._console], [], [], left_s)[0]:
                    words += self._console.recv(1 << 20)
        if not words.strip():
            raise GuestKernelError("the guest's kernel stands still: it answers no SysRq")
        return words.decode(errors="replace")

    def ask(self, name: str, **arguments: Any) -> Any:
        """Execute a QMP command; returns its answer."""
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
            for reply in map(json.loads, self._replies):
                if "error" in reply:
                    raise NodeError(f"QEMU refuses {name}: {reply['error']['desc']}")
                if "return" in reply:
                    return reply["return"]
        raise self._died()

    def _frames(self, deadline_s: float) -> Iterator[tuple[bytes, bytes]]:
        """What the agent sends: a letter and data each. Raises TimeoutError at the deadline (time.monotonic)."""
        while (left_s := deadline_s - time.monotonic()) > 0:
            readable, _, _ = select.select([self._agent, self._console], [], [], left_s)
            for line in readable:
                self._receive(line)
            while len(self._received) >= 5:
                (length,) = struct.unpack_from(">I", self._received, 1)
                if len(self._received) < 5 + length:
                    break
                kind, data = self._received[:1], self._received[5 : 5 + length]
                self._received = self._received[5 + length :]
                yield kind, data
        raise TimeoutError

    def _receive(self, line: socket.socket) -> None:
        data = b""
        with contextlib.suppress(ConnectionError):
            data = line.recv(1 << 20)
        if not data:
            raise self._died()
        if line is self._agent:
            self._received += data
            return
        self._printed = (self._printed + data)[-CONSOLE_BYTES:]
        if self._show_console:
            sys.stderr.buffer.write(data)
            sys.stderr.flush()

    def _died(self) -> NodeError:
        self._console.settimeout(LAST_WORDS_S)
        with contextlib.suppress(OSError):
            while data := self._console.recv(1 << 20):
                self._printed = (self._printed + data)[-CONSOLE_BYTES:]
        kind = GuestKernelError if b"Kernel panic" in self._printed else NodeError
        return kind(f"the guest died; its console:\n{self._printed.decode(errors='replace')}")


@contextlib.contextmanager
def _unpacker(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A tar that unpacks what it is fed, done when the context ends."""
    directory.mkdir(parents=True, exist_ok=True)
    tar = start(["tar", "-x", "--no-same-owner", "-C", directory], stdin=subprocess.PIPE)
    try:
        yield tar
    finally:
        tar.communicate()


def _arguments(settings: Settings, how: Start, disks: Sequence[int], lines: Mapping[str, socket.socket]) -> list[str]:
    return [
        *(settings.qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-accel", "tcg,thread=multi", "-cpu", settings.processor, "-smp", settings.cpus),
        *("-m", f"{settings.memory_mib}M", "-object", _memory(settings, how)),
        *("-M", f"{settings.architecture.board},memory-backend=memory"),
        *_line_arguments(lines),
        *_disk_arguments(how, disks),
        *_start_arguments(settings, how),
    ]


def _memory(settings: Settings, how: Start) -> str:
    """With a snapshot, a file: written when the snapshot is made, mapped copy-on-write when it is resumed."""
    size = f"id=memory,size={settings.memory_mib}M"
    if how.snapshot is None:
        return f"memory-backend-ram,{size}"
    return f"memory-backend-file,{size},mem-path={how.snapshot}/ram,share={'off' if how.resume else 'on'}"


def _line_arguments(lines: Mapping[str, socket.socket]) -> list[str]:
    arguments = ["-mon", "chardev=control,mode=control", "-serial", "chardev:console"]
    arguments += ["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name=node,nr=1"]
    for name, line in lines.items():
        arguments += ["-chardev", f"socket,id={name},fd={line.fileno()}"]
    return arguments


def _disk_arguments(how: Start, disks: Sequence[int]) -> list[str]:
    arguments: list[str] = []
    for number, disk in enumerate(disks):
        arguments += ["-add-fd", f"fd={disk},set={number}"]
    files = [
        ("root", f"{how.image}/root.sqfs", "on"),
        ("trees", "/dev/fdset/0", "on"),
        ("scratch", "/dev/fdset/1", "off"),
    ]
    if how.disk is not None:
        files.append(("disk", str(how.disk), "off"))
    for name, file, read_only in files:
        options = f"format=raw,file.locking=off,readonly={read_only},auto-read-only=off"
        arguments += ["-drive", f"if=none,id={name},file={file},{options}"]
        arguments += ["-device", f"virtio-blk-pci,drive={name}"]
    return arguments


def _start_arguments(settings: Settings, how: Start) -> list[str]:
    if how.resume:
        return ["-incoming", "defer"]
    words = f"console={settings.architecture.console} {KERNEL_ARGUMENTS} {how.kernel_arguments}"
    if how.disk is not None:
        words += f" {ON_DISK}"
    return ["-kernel", f"{how.image}/vmlinuz", "-initrd", f"{how.image}/initrd", "-append", words]
