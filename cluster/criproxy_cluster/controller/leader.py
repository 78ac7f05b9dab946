"""Keeps the Lease, and runs the leader's work while this replica leads. What to do is `lease_law`'s.

How it works
------------
    run ──▶ turns: read the Lease, and write it where the law says so
              │ it is ours
              ▼
            a term: the work, turns beside it, and a timer that ends both when the term is over

Each term has its own `Term`, which the tasks of its work carry. The client asks it right before the bytes of a write
are sent, after any wait for a connection. So no write of a term leaves after it, whatever the work does or hangs in,
and the Lease can be given back while the work still ends.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar, copy_context
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import httpx2
from lightkube.core.async_client import AsyncClient
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources import coordination_v1
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.controller import lease_law
from criproxy_cluster.controller.lease_law import Ask, Known, Lease
from criproxy_cluster.requests import CONFLICT, NOT_FOUND, Trouble, trouble_of

LEASE: Final = "criproxy-cluster"
LOOK_S: Final = 0.5
"""The timer looks so often: its own clock stands still while the machine is suspended."""

END_S: Final = 5.0
"""So long the work may take to end."""

GIVE_BACK_S: Final = 8.0
"""So long giving the Lease back may take: two requests that are slow."""

UNKNOWN: Final = "unknown"
"""No replica's name: who holds a Lease that was made anew. Whoever held the one before it has ended when the law lets
another one take it from this silent holder."""

_GONE: Final = (
    f"where nobody installs it within {lease_law.DURATION_S:.0f} s it is made here, by the rights of rbac.yaml (in "
    f"cluster/manifests/base or ledger), and taken after {lease_law.DURATION_S:.0f} s more"
)

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, None]]


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class WorkError(RuntimeError):
    """The work has ended by itself, or does not end: the process is to begin anew."""


class Term:
    """From the moment when a replica begins to lead until it leads no more."""

    def __init__(self, leader: "Leader") -> None:
        self._leader = leader
        self._over = False

    def end(self) -> None:
        self._over = True

    def check(self) -> None:
        """Raises Trouble when nothing may be written any more."""
        if self._over or not self._leader.leads:
            raise Trouble("this replica leads no more")


_TERM: ContextVar[Term | None] = ContextVar("term", default=None)


def keep_to_terms(client: AsyncClient) -> None:
    """From now on, whoever writes by this client as a part of a term's work does so within the term only."""

    async def before_each(request: httpx2.Request) -> None:
        term = _TERM.get()
        if term is None or request.method == "GET":
            return
        term.check()

        async def right_before(event: str, _: object) -> None:
            if event.endswith("send_request_headers.started"):
                term.check()

        request.extensions = {**request.extensions, "trace": right_before}

    inner: Any = client._client._client
    inner.event_hooks = {"request": [before_each]}


class Leader:
    """`me` is unique among the replicas, which have the Lease `lease` in common."""

    def __init__(
        self,
        client: AsyncClient,
        namespace: str,
        me: str,
        work: Work,
        log: FilteringBoundLogger,
        *,
        lease: str = LEASE,
    ) -> None:
        self._name = lease
        self._client = client
        self._namespace = namespace
        self._me = me
        self._work = work
        self._log = log
        self._known = Known()
        self._lease: coordination_v1.Lease | None = None
        """As it was last read or written: what others have put there stays."""
        self._absent_since_s: float | None = None
        self._trouble = ""
        keep_to_terms(client)

    @property
    def leads(self) -> bool:
        """Whether this replica may act as the leader, now."""
        return lease_law.leads(self._known, _now_s())

    @property
    def troubled(self) -> bool:
        """Whether the Lease could not be read or written the last time."""
        return bool(self._trouble)

    async def run(self) -> None:
        """Until cancelled, or its work fails; then the Lease is given back, so that another one need not wait."""
        try:
            while True:
                await self._turn()
                if self.leads:
                    await self._lead()
                else:
                    await asyncio.sleep(lease_law.RETRY_S)
        finally:
            await self._give_back()

    # --- a term -------------------------------------------------------------------------------------------------------

    async def _lead(self) -> None:
        """Until this replica leads no more. Raises what the work raises, or WorkError."""
        self._log.info("leads", replica=self._me)
        term, context = Term(self), copy_context()
        context.run(_TERM.set, term)
        work = asyncio.create_task(self._work(), context=context)
        renewing = asyncio.create_task(self._renew())
        try:
            while self.leads and not (work.done() or renewing.done()):
                left_s = self._known.until_s - _now_s()
                await asyncio.wait((work, renewing), timeout=min(left_s, LOOK_S), return_when=asyncio.FIRST_COMPLETED)
            ended = [task for task in (work, renewing) if task.done()]
        finally:
            term.end()
            still = await self._ended(work, renewing)
        for task in ended:
            if not task.cancelled():
                task.result()
            raise WorkError("the leader's work has ended by itself")
        self._log.warning("leads_no_more", replica=self._me)
        if still:
            raise WorkError(f"the leader's work has not ended within {END_S:.0f} s")

    async def _ended(self, *tasks: asyncio.Task[None]) -> bool:
        """Cancel them and wait for their end, but not for long: nothing of theirs is written any more.

        Whether one goes on. A cancel of this leader is raised at once.
        """
        for task in tasks:
            task.cancel()
        done, still = await asyncio.wait(tasks, timeout=END_S)
        for task in done:
            if not task.cancelled() and (error := task.exception()):
                self._log.warning("work_ended_badly", error=repr(error))
        return bool(still)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(lease_law.RETRY_S)
            await self._turn()

    # --- the Lease ----------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Read the Lease and write it, as the law says. Whatever fails is logged once."""
        self._known = lease_law.begun(self._known, self._me)
        try:
            if lease_law.asks(self._known, self._me, _now_s()) is Ask.READ:
                await self._read_or_make()
            if lease_law.asks(self._known, self._me, _now_s()) is Ask.WRITE:
                await self._write(self._me)
        except Trouble as error:
            if not self._trouble:
                consequence = f"led no longer than {lease_law.RENEW_WITHIN_S:.0f} s"
                words = f"{error}: {_GONE}" if error.code == NOT_FOUND else str(error)
                self._log.warning("lease_trouble", error=words, consequence=consequence)
            self._trouble = str(error)
        else:
            self._trouble = ""

    async def _read_or_make(self) -> None:
        """Whoever installs the Lease comes first: Helm creates it last, and fails where it is there. Raises Trouble."""
        try:
            await self._read()
        except Trouble as trouble:
            if trouble.code != NOT_FOUND:
                raise
            if self._absent_since_s is None:
                self._absent_since_s = _now_s()
            if _now_s() - self._absent_since_s < lease_law.DURATION_S:
                raise
            await self._make()
        self._absent_since_s = None

    async def _make(self) -> None:
        """By server-side apply, which takes it from nobody who has written it meanwhile. Raises Trouble."""
        lease = coordination_v1.Lease(
            apiVersion="coordination.k8s.io/v1",
            kind="Lease",
            metadata=ObjectMeta(name=self._name, namespace=self._namespace),
            spec=LeaseSpec(holderIdentity=UNKNOWN, leaseDurationSeconds=int(lease_law.DURATION_S)),
        )
        await self._within_limit(self._client.apply(lease))
        self._log.info("lease_made", lease=self._name)

    async def _read(self) -> None:
        """Raises Trouble."""
        found = await self._within_limit(self._client.get(coordination_v1.Lease, self._name, namespace=self._namespace))
        lease = self._as_law_has_it(found)
        self._lease = found
        self._known = lease_law.read(self._known, lease, self._me, _now_s())

    async def _write(self, holder: str) -> None:
        """Raises Trouble."""
        found, sent_s = self._lease, _now_s()
        if found is None:
            raise Trouble(f"the Lease {self._name} was not read yet")
        before, now = found.spec or LeaseSpec(), datetime.now(UTC)
        mine = before.holderIdentity == self._me
        found.spec = LeaseSpec(
            holderIdentity=holder,
            leaseDurationSeconds=int(lease_law.DURATION_S),
            acquireTime=before.acquireTime if mine else now,
            renewTime=now,
            leaseTransitions=(before.leaseTransitions or 0) + (not mine),
        )
        self._known = lease_law.not_written(self._known)  # until it is known to be
        written = await self._within_limit(self._client.replace(found))
        version = self._as_law_has_it(written).version
        self._lease = written
        if holder == self._me:
            self._known = lease_law.wrote(version, self._me, sent_s, _now_s())

    async def _give_back(self) -> None:
        """The Lease may have our name for some time after we lead no more. Raises nothing but a cancel."""
        self._known = lease_law.given_up(self._known)
        try:
            async with asyncio.timeout(GIVE_BACK_S):
                await self._write_nobody()
        except (Trouble, TimeoutError) as error:
            why = str(error) or "no answer"
            self._log.warning("lease_not_given_back", error=why, consequence="the others wait until it is over")

    async def _write_nobody(self) -> None:
        """Raises Trouble."""
        while True:
            if self._known.lease is not None and not self._known.current:  # a write may have been cut off
                await self._read()
            if not lease_law.is_ours(self._known, self._me):
                return None
            try:
                return await self._write("")
            except Trouble as trouble:
                if trouble.code != CONFLICT:
                    raise

    def _as_law_has_it(self, found: coordination_v1.Lease) -> Lease:
        """Raises Trouble for what is no Lease."""
        version = found.metadata.resourceVersion if found.metadata is not None else None
        spec = found.spec or LeaseSpec()
        if not version:
            raise Trouble(f"the Lease {self._name}: the answer is none")
        duration_s = spec.leaseDurationSeconds or lease_law.DURATION_S
        return Lease(spec.holderIdentity or "", version, max(float(duration_s), lease_law.DURATION_S))

    async def _within_limit(self, request: Awaitable[T]) -> T:
        """Each request has its own. Raises Trouble."""
        with trouble_of(f"the Lease {self._name}"):
            async with asyncio.timeout(lease_law.REQUEST_S):
                return await request
