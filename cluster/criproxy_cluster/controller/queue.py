"""What is to be written, and by whom: one owner and one pending retry for each name.

How it works
------------
                          ┌──────────── done, and something came meanwhile ────────────┐
                          ▼                                                            │
    put ──▶ waiting (by urgency, then by age) ──▶ at work, by one writer ──▶ done ─────┘
                          ▲                                    └──▶ failed
                          └── after a pause ── resting ◀───────────────┘

A name is in one of these at most. What comes while it is at work or rests is remembered with its urgency, and neither
gives it a second writer nor ends its rest. Pauses grow with the failures in a row; `done` ends the row.
"""

import asyncio
from collections import OrderedDict
from enum import Enum

from criproxy_cluster.requests import pause_s


class Urgency(Enum):
    """Why a node is to be written. The most urgent one comes first."""

    CHANGED = "it has changed"
    DUE = "its time has come"
    ROLL_OUT = "a policy concerns it"


class Queue:
    """Of one event loop."""

    def __init__(self) -> None:
        self._waiting = {urgency: OrderedDict[str, None]() for urgency in Urgency}
        self._at_work: dict[str, Urgency | None] = {}
        """With the urgency of what came meanwhile."""
        self._resting: dict[str, tuple[Urgency, asyncio.TimerHandle]] = {}
        self._failures: dict[str, int] = {}
        self._some = asyncio.Event()

    def __len__(self) -> int:
        """How many wait or rest."""
        return sum(map(len, self._waiting.values())) + len(self._resting)

    def put(self, name: str, urgency: Urgency) -> None:
        if name in self._at_work:
            self._at_work[name] = _higher(urgency, self._at_work[name])
        elif name in self._resting:
            before, timer = self._resting[name]
            self._resting[name] = _higher(urgency, before), timer
        else:
            self._wait(name, urgency)

    async def get(self, *urgencies: Urgency) -> tuple[str, Urgency]:
        """The next one of the first of these that has any. Whoever gets it says `done` or `failed`."""
        while True:
            for urgency in urgencies:
                if names := self._waiting[urgency]:
                    name, _ = names.popitem(last=False)
                    self._at_work[name] = None
                    return name, urgency
            self._some.clear()
            await self._some.wait()

    def done(self, name: str) -> None:
        self._failures.pop(name, None)
        urgency = self._at_work.pop(name, None)
        if urgency is not None:
            self._wait(name, urgency)

    def failed(self, name: str, urgency: Urgency) -> int:
        """It is tried again after a pause. Returns the failures in a row."""
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        timer = asyncio.get_running_loop().call_later(pause_s(failures), self._rested, name)
        self._resting[name] = _higher(urgency, self._at_work.pop(name, None)), timer
        return failures

    def forget(self, name: str) -> None:
        """It is no more. A writer that has it goes on, and it comes back if it is put again."""
        self._failures.pop(name, None)
        if name in self._resting:
            self._resting.pop(name)[1].cancel()
        for names in self._waiting.values():
            names.pop(name, None)

    def close(self) -> None:
        """No retry comes any more."""
        for _, timer in self._resting.values():
            timer.cancel()
        self._resting.clear()

    def _rested(self, name: str) -> None:
        urgency, _ = self._resting.pop(name)
        self._wait(name, urgency)

    def _wait(self, name: str, urgency: Urgency) -> None:
        for one, names in self._waiting.items():
            if one is urgency:
                names[name] = None
                break
            if name in names:
                return
        for less in list(Urgency)[list(Urgency).index(urgency) + 1 :]:
            self._waiting[less].pop(name, None)
        self._some.set()


def _higher(urgency: Urgency, other: Urgency | None) -> Urgency:
    return next(one for one in Urgency if one in (urgency, other))
