"""Where pods are let into the box: in this process or, once that has handed over, in the one that took over."""

import asyncio
import itertools
from collections.abc import Iterator

from msgspec import Struct, field

from criproxy.cgroup.naming import PodParent
from criproxy.daemon.upgrade.channel import AdmitMessage, Changed, Channel, Done, ResizeMessage
from criproxy.model import AdmissionError, Resources
from criproxy.pods.admission import AdmitsPods


class Admissions:
    """Passes pods on to the box, or to the process that `hand_to` has named.

    From `hold` until `resume` or `hand_to`, pods wait; a pod whose start ends meanwhile is forgotten there as well.
    """

    def __init__(self, box: AdmitsPods) -> None:
        self._at = box
        self._remote: Remote | None = None
        self._forgotten: list[str] = []
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        self._forgotten.clear()
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    def hand_to(self, remote: "Remote") -> None:
        self._at = self._remote = remote
        for name in self._forgotten:
            remote.forget(name)
        self._open.set()

    def changed(self) -> None:
        """A call that was carried here has changed the runtime's pods."""
        if self._remote is not None:
            self._remote.changed()

    async def admit(self, place: PodParent, memory_bytes: int, cpu_shares: int = 0, *, mid: bool = False) -> None:
        await self._open.wait()
        await self._at.admit(place, memory_bytes, cpu_shares, mid=mid)

    async def update_pod(self, place: PodParent, resized: Resources) -> None:
        await self._open.wait()
        await self._at.update_pod(place, resized)

    def forget(self, name: str) -> None:
        if not self._open.is_set():
            self._forgotten.append(name)
        self._at.forget(name)


class Remote(Struct):
    """Lets pods into the box by way of the process at the other end of `channel`; `run` must run."""

    channel: Channel
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _waiting: dict[int, asyncio.Future[str]] = {}
    _gone: bool = False

    async def admit(self, place: PodParent, memory_bytes: int, cpu_shares: int = 0, *, mid: bool = False) -> None:
        await self._ask(AdmitMessage(next(self._numbers), place.in_box, memory_bytes, cpu_shares, mid))

    async def update_pod(self, place: PodParent, resized: Resources) -> None:
        await self._ask(
            ResizeMessage(
                next(self._numbers),
                place.in_box,
                resized.memory_limit_bytes,
                resized.cpu_shares,
                cpu_quota_us=resized.cpu_quota_us,
                cpu_period_us=resized.cpu_period_us,
            )
        )

    def forget(self, name: str) -> None:
        self.changed(name)

    def changed(self, started: str = "") -> None:
        """The runtime's pods have changed; see `Changed`."""
        self.channel.send(Changed(started))

    async def run(self) -> None:
        """Take the answers, until the other process has gone."""
        try:
            while (message := await self.channel.receive()) is not None:
                if isinstance(message, Done) and (answer := self._waiting.get(message.number)) and not answer.done():
                    answer.set_result(message.error)
        finally:
            self._gone = True
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_result(_GONE)

    async def _ask(self, question: AdmitMessage) -> None:
        if self._gone:
            raise AdmissionError(_GONE)
        self._waiting[question.number] = answer = asyncio.get_running_loop().create_future()
        self.channel.send(question)
        try:
            error = await answer
        finally:
            del self._waiting[question.number]
        if error:
            raise AdmissionError(error)


_GONE = "this criproxy was replaced by another, which has gone: kubelet tries again by itself"
