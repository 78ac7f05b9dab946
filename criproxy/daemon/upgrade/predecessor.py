"""The new process's side: tell the old one that we could, take over when it says so, and serve its last pods."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct, field

from criproxy.cgroup.naming import parse_placement
from criproxy.control.series import PredictorState
from criproxy.daemon.upgrade.channel import (
    AdmitMessage,
    Changed,
    Channel,
    Declined,
    Done,
    HeldMessage,
    KubernetesMemory,
    LadderMessage,
    Learned,
    Main,
    NriMessage,
    Ready,
    ResizeMessage,
    Serving,
    Take,
)
from criproxy.model import AdmissionError, Resources
from criproxy.observe.client import peer
from criproxy.pods.admission import AdmitsPods
from criproxy.pods.interference import InterferenceState
from criproxy.pods.stopping import HeldPod

CHANNEL: Final = "CRIPROXY_HANDOVER"
"""The environment variable with the descriptor of the new process's end of the channel."""

LISTENERS: Final = "CRIPROXY_HANDOVER_LISTENERS"
"""The same, `7:8`, and that of the way by which listening sockets come: a stream of text can't carry them beside it."""

NRI_EVENTS: Final = "CRIPROXY_HANDOVER_NRI"
"""The old process's pid and the runtime's events that it has asked for, `7:4095`, as `fronts.nri.plugin.EVENTS_ASKED`:
it can pass its connection on. Unset: it has none. With another pid, a version that does not know it has left it there.
"""

_MAX_LISTENERS: Final = 8


class Predecessor(Struct):
    """The criproxy that has started this one, made by `of_environment`.

    `end`: ours of the channel, `way`: by which its listening sockets come. `learned`: what it has learned, by resource;
    after `turn`. `nri_events`: which of the runtime's it has asked for, where it can pass its connection on, else 0.
    """

    end: socket.socket
    way: socket.socket
    nri_events: int = 0
    learned: dict[str, PredictorState] = {}
    ladder: InterferenceState | None = None
    """Where its ladder stands; None: it does not say."""
    kubernetes: KubernetesMemory = KubernetesMemory()
    held: tuple[HeldPod, ...] = ()
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    _channel: Channel | None = None
    _answering: set[asyncio.Task[None]] = set()

    @classmethod
    def of_environment(cls, environ: MutableMapping[str, str]) -> "Predecessor | None":
        """The one named there, which is taken out for the sake of whom we start; None: nobody hands over to us."""
        given = environ.pop(CHANNEL, ""), environ.pop(LISTENERS, "").partition(":")[2]
        passes, _, events = environ.pop(NRI_EVENTS, "").partition(":")
        try:
            end, way = map(int, given)
            for descriptor in (end, way):
                os.set_inheritable(descriptor, False)
            channel = socket.socket(fileno=end)
            return cls(channel, socket.socket(fileno=way), int(events) if passes == str(peer(channel)[0]) else 0)
        except (OSError, ValueError):  # it is not set, or was left by somebody
            return None

    async def turn(self, ready: Ready) -> Take | None:
        """Say that we are ready, and wait for our turn; None: the old process has gone without a word."""
        self._channel = await Channel.open(self.end)
        self._channel.send(ready)
        while (message := await self._channel.receive()) is not None:
            match message:
                case Learned(resource, state):
                    self.learned[resource] = state
                case LadderMessage(state):
                    with contextlib.suppress(msgspec.DecodeError):
                        self.ladder = msgspec.json.decode(state, type=InterferenceState)
                case KubernetesMemory():
                    self.kubernetes = message
                case HeldMessage(pods):
                    self.held = pods
                case Take():
                    return message
        return None

    def listeners(self) -> list[socket.socket]:
        """The sockets at which it has answered questions, as far as it passes them on; after `turn`, once."""
        self.way.setblocking(False)
        return self._passed()

    def _passed(self) -> list[socket.socket]:
        try:
            _, descriptors, _, _ = socket.recv_fds(self.way, 64, _MAX_LISTENERS)
        except OSError:  # it has none, or has gone
            return []
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        return [socket.socket(fileno=descriptor) for descriptor in descriptors]

    def decline(self, reason: str) -> None:
        """It is to go on, as we end. Only after `turn`, as what follows."""
        self._opened.send(Declined(reason))

    def serving(self) -> None:
        self._opened.send(Serving())

    async def serve(
        self,
        admission: AdmitsPods,
        on_main: Callable[[], None],
        on_changed: Callable[[], Awaitable[None]],
        take_nri: Callable[[Sequence[socket.socket], bytes], object],
    ) -> None:
        """Answer the old process until it has gone. `on_changed` is awaited when the runtime's pods have changed.

        A pod whose start is over there counts as starting until it is known here: a sweep would take its cgroup.
        """
        changed = asyncio.Event()
        changed.set()  # by what it did between our listing and now
        over: list[str] = []

        async def listed() -> None:
            names = tuple(over)
            await on_changed()
            for name in names:
                over.remove(name)
                admission.forget(name)

        following = asyncio.create_task(_follow(changed, listed))
        try:
            while (message := await self._opened.receive()) is not None:
                match message:
                    case Main():
                        on_main()
                    case NriMessage(state):
                        take_nri(self._passed(), bytes(state))
                    case AdmitMessage():
                        self._answering.add(task := asyncio.create_task(self._answer(message, admission)))
                        task.add_done_callback(self._answering.discard)
                    case Changed(started):
                        if started:
                            over.append(started)
                        changed.set()
        finally:
            self.gone.set()
            following.cancel()
            self.way.close()
        take_nri((), b"")
        on_main()  # it may have died before it could say so
        await listed()

    async def _answer(self, question: AdmitMessage, admission: AdmitsPods) -> None:
        error = ""
        try:
            place = parse_placement(question.place)
            if isinstance(question, ResizeMessage):
                resized = Resources(
                    cpu_period_us=question.cpu_period_us,
                    cpu_quota_us=question.cpu_quota_us,
                    cpu_shares=question.cpu_shares,
                    memory_limit_bytes=question.memory_bytes,
                )
                await admission.update_pod(place, resized)
            else:
                await admission.admit(place, question.memory_bytes, question.cpu_shares, mid=question.mid)
        except (AdmissionError, ValueError) as refusal:
            error = str(refusal) or type(refusal).__name__
        self._opened.send(Done(question.number, error))

    @property
    def _opened(self) -> Channel:
        assert self._channel is not None
        return self._channel


async def _follow(event: asyncio.Event, call: Callable[[], Awaitable[None]]) -> None:
    while True:
        await event.wait()
        event.clear()
        await call()
