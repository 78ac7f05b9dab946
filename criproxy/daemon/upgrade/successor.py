"""The old process's side: start the new one, hand over to it, or end it and say why."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from criproxy.config import placed
from criproxy.daemon.upgrade.channel import (
    Channel,
    Declined,
    HeldMessage,
    KubernetesMemory,
    LadderMessage,
    Learned,
    Message,
    Ready,
    Serving,
    Take,
)
from criproxy.daemon.upgrade.predecessor import CHANNEL, LISTENERS

_START_S: Final = 180.0
"""From its start until the new process is ready, the runtime included. The old one serves meanwhile: a restart instead,
as a busy node may need long, would cost calls.
"""

_TAKE_S: Final = 10.0
_GONE_S: Final = 5.0

_LAUNCH: Final = '"$@" </dev/null & echo $! >&0'
"""Run the command as no child of ours and tell its pid: systemd notices the end of its own children only, and gets
those whose parent has gone. Standard input is the pipe for the pid, as the other two are the log's.
"""

HandedOver = tuple[Sequence[socket.socket], Sequence[Learned | LadderMessage | KubernetesMemory | HeldMessage | Take]]
"""The sockets where questions come in, which nobody else can have as long as one of the two processes does; and what
the new process must know, the Take last.
"""

M = TypeVar("M", bound=Message)


class UpgradeError(Exception):
    """The new process could not take over; the message says why, and what to do."""


class HandOverRefusedError(UpgradeError):
    """The new process must not take over. The old one goes on well, and a restart would harm the node."""


class OldProcess(Protocol):
    """The process that hands over, as far as the hand-over itself needs it."""

    async def rest(self) -> HandedOver:
        """Stop what writes. Raises HandOverRefusedError."""
        ...

    async def resume(self) -> None:
        """Undo `rest`, also one that was never begun or has failed."""
        ...


class Successor(Struct):
    """The new process. `handle`: a pidfd of it, `listeners`: the way by which sockets go. `takes_nri`: as in Ready."""

    pid: int
    handle: int
    channel: Channel
    listeners: socket.socket
    takes_nri: bool = False

    @classmethod
    async def start(cls, command: Sequence[str], environ: Mapping[str, str]) -> "Successor":
        """Raises UpgradeError."""
        ours, theirs = socket.socketpair()
        giving, taking = socket.socketpair()
        environ = {**environ, CHANNEL: str(theirs.fileno()), LISTENERS: f"{theirs.fileno()}:{taking.fileno()}"}
        environ.pop("WATCHDOG_PID", None)  # it is ours; without one it is whose environment it is
        try:
            pid, handle = await asyncio.to_thread(_launch, command, environ, theirs, taking)
        except BaseException as error:
            ours.close()  # which ends what has been started
            giving.close()
            if isinstance(error, ProcessLookupError):
                raise UpgradeError("the new process ended before it was ready: see its log") from error
            if isinstance(error, (OSError, ValueError)):
                reason = f"cannot start {command[0]}: {error}: is criproxy installed completely?"
                raise UpgradeError(reason) from error
            raise
        return cls(pid, handle, await Channel.open(ours), giving)

    def give(self, sockets: Sequence[socket.socket]) -> None:
        """These sockets are its own, too. Before the message after which it looks for them."""
        with contextlib.suppress(OSError):  # it has gone, which `expect` finds
            if sockets:
                socket.send_fds(self.listeners, [b"sockets"], [one.fileno() for one in sockets])

    async def expect(self, kind: type[M], timeout_s: float) -> M:
        """Its next message of this kind. Raises UpgradeError; HandOverRefusedError when it declines."""
        try:
            async with asyncio.timeout(timeout_s):
                while (message := await self.channel.receive()) is not None:
                    if isinstance(message, kind):
                        return message
                    if isinstance(message, Declined):
                        raise HandOverRefusedError(message.reason)
        except TimeoutError:
            waited = f"pid {self.pid} was not {kind.__name__.lower()} within {timeout_s:g} s: see its log"
            raise UpgradeError(waited) from None
        raise UpgradeError(f"pid {self.pid} ended before it was {kind.__name__.lower()}: see its log")

    async def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        # The channel's end does not say that it is gone: a process's descriptors close one after the other.
        gone, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(self.handle, gone.set)
        try:
            async with asyncio.timeout(_GONE_S):
                await gone.wait()
        except TimeoutError:  # it hangs in the kernel: nothing more can be done about it
            pass
        finally:
            loop.remove_reader(self.handle)
            self.close()

    def close(self) -> None:
        self.listeners.close()
        self.channel.close()
        os.close(self.handle)


async def hand_over(old: OldProcess, listen: Path, command: Sequence[str], environ: Mapping[str, str]) -> Successor:
    """Start a successor and give it all. Raises UpgradeError; then, and when cancelled, all is as it was."""
    successor = await Successor.start(command, environ)
    try:
        ready = await successor.expect(Ready, _START_S)
        successor.takes_nri = ready.takes_nri
        if ready.errors:
            raise HandOverRefusedError(
                f"the config has errors: {'; '.join(ready.errors)}: correct it (`criproxy check`)"
            )
        if placed(ready.listen) != placed(str(listen)):
            raise HandOverRefusedError(
                f"proxy.listen is {ready.listen!r} now, where no client of {str(listen)!r} would find it: restart "
                "criproxy, and kubelet with its new endpoint"
            )
        listeners, messages = await old.rest()
        successor.give(listeners)
        for message in messages:
            successor.channel.send(message)
        await successor.expect(Serving, _TAKE_S)
    except BaseException:
        await successor.kill()
        await old.resume()
        raise
    return successor


def command_of(argv: Sequence[str], original: Sequence[str]) -> tuple[str, ...]:
    """The command that starts the criproxy that is installed now, from sys.argv and sys.orig_argv of this one.

    A program is run by its own name, which may lead elsewhere by now; arguments of the interpreter
    (`-m criproxy`) stay as they were.
    """
    return tuple(argv if os.access(argv[0], os.X_OK) else original)


def _launch(
    command: Sequence[str], environ: Mapping[str, str], end: socket.socket, way: socket.socket
) -> tuple[int, int]:
    """The new process's pid and a pidfd of it, which gets `end` and `way`. Raises OSError, or ValueError without a pid.

    They are closed here, and only here: who waits for this thread may be cancelled before they are passed on, and their
    numbers would be those of other files by then.
    """
    reading, writing = os.pipe()
    with end, way, open(reading, "rb") as answer:
        passed = end.fileno(), way.fileno()
        try:
            shell = subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCH, "sh", *command], stdin=writing, env=dict(environ), pass_fds=passed
            )
        finally:
            os.close(writing)
        pid = int(answer.read())
        shell.wait()
    return pid, os.pidfd_open(pid)
