"""Where all doors come together: requests wait for their turn, what is not known is read, what is over ends.

How it works
------------
All that has come by the same turn of the event loop is decided in the order of the pods' priorities, and of one
priority in the order in which it came; what the watch has brought by then is known. A decision itself never waits.

Whoever may not be refused now is let go by `AbstainedError`: the API server binds then as if there were no ledger.
"""

import asyncio
import heapq
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from criproxy_cluster.ledger.law import Ledger, Pod, Reservation, Verdict, Wish
from criproxy_cluster.ledger.reviews import Asked
from criproxy_cluster.requests import Trouble

ABSTAIN_S: Final = 3.0
"""From when this replica leads: until then, what another one has let through may not be stored yet."""

SILENT_S: Final = 10.0
READ_S: Final = 0.3
"""A bind waits no longer for a pod to be read; the API server waits for a second in all."""

MOST_READS: Final = 16
"""At once. The ledger abstains from a bind that would be one more."""

LOOK_S: Final = 1.0
"""From one look for reservations whose time is over to the next."""

FIGURES_S: Final = 60.0


class AbstainedError(Exception):
    """Nothing is said to it, with why."""


class Reader(Protocol):
    async def read(self, namespace: str, name: str) -> tuple[Pod, bool] | None:
        """As it is stored now, and whether it is marked. `None`: it is not there. Raises Trouble."""


class Seen:
    """What the watches have said of themselves. `deaf`: one of them is lost."""

    def __init__(self) -> None:
        self.missing = {"nodes", "pods", "unplaced pods"}
        """What was not listed yet."""
        self.unplaced: set[str] = set()
        """The uids of pods that wait and are not marked."""
        self.pods_s = float("-inf")
        """When the watch of pods last said something."""
        self.deaf: Callable[[], bool] = lambda: False


class Desk:
    """`leads`: whether this replica may decide, now. `now_s`: a clock that only grows."""

    def __init__(
        self,
        ledger: Ledger,
        seen: Seen,
        reader: Reader,
        *,
        leads: Callable[[], bool],
        now_s: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self.ledger: Final = ledger
        self._seen = seen
        self._reader = reader
        self._leads = leads
        self._now_s = now_s
        self._log = log
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._reading = 0
        self._since_s = float("inf")
        self._late = False
        self._figures = dict.fromkeys(("allowed", "refused", "abstained", "read"), 0)
        self._told = dict(self._figures)

    # --- whether anything is decided ----------------------------------------------------------------------------------

    def abstains(self) -> str:
        """Why nothing is decided now; "": it is."""
        if not self._leads():
            return "another replica leads"
        if self._seen.missing:
            return f"not yet listed: {', '.join(sorted(self._seen.missing))}"
        if self._now_s() - self._since_s < ABSTAIN_S:
            return "it has begun to lead just now"
        if self._seen.deaf():
            return "a watch is lost"
        return "a watch is late" if self._late else ""

    @property
    def ready(self) -> bool:
        return self.leads and not self._seen.missing

    @property
    def leads(self) -> bool:
        return self._leads()

    # --- what is shown ------------------------------------------------------------------------------------------------

    @property
    def figures(self) -> Mapping[str, int]:
        return self._figures

    @property
    def reservations(self) -> int:
        return self.ledger.reservations

    async def lead(self) -> None:
        """While this replica leads. What an earlier term has reserved is void."""
        self.ledger.release_all()
        self._late = False
        self._since_s = self._now_s()
        await asyncio.Event().wait()

    # --- requests -----------------------------------------------------------------------------------------------------

    def passes(self, asked: Asked) -> bool:
        """Whether this bind is none of the ledger's, as far as is known without waiting."""
        return asked.uid in self._seen.unplaced or (bool(asked.uid) and self.ledger.is_bound(asked.uid))

    async def bind(self, asked: Asked) -> Verdict:
        """Raises AbstainedError."""
        self._decides()
        pod = self.ledger.pod(asked.uid) or await self._read(asked)
        if pod is None or not pod.amounts or pod.node:
            return Verdict()
        await self._turn(pod.priority)
        self._decides()
        wish = Wish(pod, asked.node)
        verdict = self.ledger.could(pod, asked.node) if asked.dry_run else self.ledger.bind(wish, self._now_s())
        self._count(verdict)
        return verdict

    async def reserve(self, wishes: Sequence[Wish], *, all_or_nothing: bool) -> list[Verdict]:
        """What the watch knows of a pod counts, whatever the wish says of it. Raises AbstainedError."""
        self._decides()
        await self._turn(max((one.pod.priority for one in wishes), default=0))
        self._decides()
        known = [Wish(self.ledger.pod(one.pod.uid) or one.pod, one.node) for one in wishes]
        verdicts = self.ledger.reserve(known, self._now_s(), all_or_nothing=all_or_nothing or self._is_silent())
        for one in verdicts:
            self._count(one)
        return verdicts

    def release(self, uids: Sequence[str]) -> None:
        for uid in uids:
            self.ledger.release(uid)

    def full(self, pod: Pod, nodes: Sequence[str]) -> dict[str, str]:
        """Which of these have no room for it, and why. Nothing is taken; who abstains finds room everywhere."""
        if not pod.amounts or self.abstains():
            return {}
        return {
            name: verdict.why for name in dict.fromkeys(nodes) if not (verdict := self.ledger.could(pod, name)).allowed
        }

    def _decides(self) -> None:
        """Raises AbstainedError."""
        if why := self.abstains():
            raise self._abstained(why)

    def _abstained(self, why: str) -> AbstainedError:
        self._figures["abstained"] += 1
        return AbstainedError(why)

    def _count(self, verdict: Verdict) -> None:
        """Raises AbstainedError for a refusal by what may be of old."""
        if verdict.allowed:
            self._figures["allowed"] += 1
            return
        if self._is_silent():
            raise self._abstained(f"it has no room, but nothing was heard of pods for {SILENT_S:.0f} s")
        self._figures["refused"] += 1

    def _is_silent(self) -> bool:
        """Whether a refusal can't be relied on: all that comes with it is let go."""
        return self._now_s() - self._seen.pods_s > SILENT_S

    async def _turn(self, priority: int) -> None:
        """Returns when it is one's turn, which lasts until one waits for something."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._give)
        heapq.heappush(self._waiting, (-priority, next(self._numbers), mine))
        await mine

    def _give(self) -> None:
        while self._waiting:
            *_, mine = heapq.heappop(self._waiting)
            if not mine.done():
                mine.set_result(None)

    async def _read(self, asked: Asked) -> Pod | None:
        """One that the watch has not shown. `None`: it is none of ours. Raises AbstainedError."""
        if self._reading >= MOST_READS:
            raise self._abstained(f"{MOST_READS} pods are being read already")
        self._reading += 1
        self._figures["read"] += 1
        try:
            async with asyncio.timeout(READ_S):
                found = await self._reader.read(asked.namespace, asked.name)
        except Trouble as why:
            raise self._abstained(f"the pod could not be read: {why}") from why
        except TimeoutError as error:
            raise self._abstained(f"the pod was not read within {READ_S} s") from error
        finally:
            self._reading -= 1
        if found is None or not found[1] or (asked.uid and found[0].uid != asked.uid):
            return None
        return found[0]

    # --- what is over -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled: reads the pods of reservations whose time is over, and tells what was decided."""
        told_s = self._now_s()
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()
            if self._now_s() - told_s >= FIGURES_S:
                told_s = self._now_s()
                self._tell()

    async def look(self) -> None:
        """Once."""
        due = self.ledger.due(self._now_s())
        for begin in range(0, len(due), MOST_READS):
            await asyncio.gather(*(self._look_at(one) for one in due[begin : begin + MOST_READS]))
        if self._late != self.ledger.late:
            self._late = not self._late
            if self._late:
                self._log.warning("watch_late", consequence="nothing is refused until it has caught up")

    async def _look_at(self, reservation: Reservation) -> None:
        """One whose pod can't be read stays, and is read again. One that is not marked the watch will never show."""
        pod = reservation.pod
        try:
            async with asyncio.timeout(LOOK_S):
                found = await self._reader.read(pod.namespace, pod.name)
        except (Trouble, TimeoutError):
            return
        known = found[0] if found is not None and found[1] and found[0].uid == pod.uid else None
        self.ledger.read(reservation, known, self._now_s())

    def _tell(self) -> None:
        """Only what is new."""
        if self._figures != self._told:
            since = {name: value - self._told[name] for name, value in self._figures.items()}
            self._told = dict(self._figures)
            self._log.info("ledger_figures", **since, reserved=self.ledger.reservations)
