"""What the old and the new process say to each other, and how: JSON, a line each, over a socket of their own.

The two may be of different versions: a message that is not understood, or is too long, is ignored.
"""

import asyncio
import contextlib
import socket
from typing import Final

import msgspec

from criproxy.control.series import PredictorState
from criproxy.model import GivingBack
from criproxy.pods.stopping import HeldPod


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The new one could take over at once. `listen` is the socket that it would serve at, `errors` the config's.

    `takes_listeners`: for an old one that would close its listening sockets instead of passing them on. `takes_nri`: it
    waits for the old one's connection to the runtime's NRI, instead of registering there itself.
    """

    version: str
    listen: str
    errors: tuple[str, ...] = ()
    takes_listeners: bool = True
    takes_nri: bool = False


class Learned(msgspec.Struct, frozen=True, tag="learned"):
    """What the old one has learned of a resource's usage, on its own clock (CLOCK_BOOTTIME); before Take.

    A message each: a line of more than 64 KiB would not be read, and all of them have 44 KB.
    """

    resource: str
    state: PredictorState


class Take(msgspec.Struct, frozen=True, tag="take"):
    """The old one writes no more. `box` is the box's path; `admitted` the pods that were let in and are starting."""

    box: str | None
    admitted: tuple[str, ...]


class Declined(msgspec.Struct, frozen=True, tag="declined"):
    """After Take, instead of Serving: the new one has found why it must not act, and ends."""

    reason: str


class Serving(msgspec.Struct, frozen=True, tag="serving"):
    """The public name leads to the new one."""


class Main(msgspec.Struct, frozen=True, tag="main"):
    """The service manager knows that the new one is the main process."""


class AdmitMessage(msgspec.Struct, frozen=True, tag="admit"):
    """Let a pod into the box; to be answered by the Done of the same `number`."""

    number: int
    place: str
    memory_bytes: int
    cpu_shares: int = 0
    mid: bool = False


class ResizeMessage(AdmitMessage, frozen=True, tag="resize"):
    """Take up a pod's resize by kubelet; answered as AdmitMessage is."""

    cpu_quota_us: int = 0
    cpu_period_us: int = 0


class Done(msgspec.Struct, frozen=True, tag="done"):
    """What has become of an AdmitMessage or ResizeMessage; `error` "": all is well."""

    number: int
    error: str


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """The runtime's pods have changed by a call that the old one carried. `started`: a pod whose start is over."""

    started: str = ""


class LadderMessage(msgspec.Struct, frozen=True, tag="ladder"):
    """Where the ladder stands, as the checkpoint has it; a process of another version may not know it."""

    state: msgspec.Raw


class KubernetesMemory(msgspec.Struct, frozen=True, tag="kubernetes"):
    """What the old one goes by, and the Node does not say at once: its watch begins anew, and the disk may be full.

    `policy`: `criproxy.kube.policy.InForce`, as JSON, of another version perhaps; null: what is on disk.
    `giving_back`: what the memory limit waits for, until `until_s` (CLOCK_BOOTTIME).
    """

    policy: msgspec.Raw = msgspec.Raw(b"null")
    giving_back: GivingBack | None = None
    until_s: float = 0.0


class NriMessage(msgspec.Struct, frozen=True, tag="nri"):
    """The old one's connection to the runtime's NRI, whose descriptor has come by the way of the listening sockets.

    `state`: `criproxy.fronts.nri.front.PassedOn`, as JSON, by which it goes on; null: there is no connection any more.
    """

    state: msgspec.Raw = msgspec.Raw(b"null")


class HeldMessage(msgspec.Struct, frozen=True, tag="held"):
    """The pods that may not start again yet."""

    pods: tuple[HeldPod, ...]


Message = (
    Ready
    | Learned
    | LadderMessage
    | KubernetesMemory
    | NriMessage
    | HeldMessage
    | Take
    | Declined
    | Serving
    | Main
    | AdmitMessage
    | ResizeMessage
    | Done
    | Changed
)

_DECODER: Final = msgspec.json.Decoder(Message)


MOST_BYTES: Final = 16 << 20
"""Of a message: where the ladder stands has the names of pods and their owners."""

MOST_STATE_BYTES: Final = MOST_BYTES - 1024
"""Of a state in a message, which has some words around it."""


class Channel(msgspec.Struct):
    """One end, made by `open`."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, end: socket.socket) -> "Channel":
        return cls(*await asyncio.open_unix_connection(sock=end, limit=MOST_BYTES))

    def send(self, message: Message) -> None:
        """Never raises, and does nothing when the other end has gone, which `receive` then says."""
        if not self.writer.is_closing():
            self.writer.write(msgspec.json.encode(message) + b"\n")

    async def receive(self) -> Message | None:
        """The next message; None: the other process has gone."""
        while True:
            try:
                line = await self.reader.readline()
            except OSError:
                return None
            except ValueError:  # too long: what is left of the line is no message
                continue
            if not line.endswith(b"\n"):
                return None
            with contextlib.suppress(msgspec.MsgspecError):
                message: Message = _DECODER.decode(line)
                return message

    def close(self) -> None:
        self.writer.close()
