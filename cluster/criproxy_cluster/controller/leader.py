"""Keeps the Lease, and runs the leader's work while this replica leads. What to do is `lease_law`'s."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from lightkube.core.async_client import AsyncClient
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.resources.coordination_v1 import Lease
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.controller.lease_law import (
    DURATION_S,
    RENEW_WITHIN_S,
    RETRY_S,
    Seen,
    Turn,
    looked,
    still_leads,
    turn,
)
from criproxy_cluster.requests import Trouble, trouble_of

LEASE: Final = "criproxy-cluster"
REQUEST_S: Final = 4.0
"""No request about the Lease takes longer: see the law's times."""

Work = Callable[[], Coroutine[Any, Any, None]]


class Leader:
    """`me` is unique among the replicas. `leads` says whether this one does."""

    def __init__(self, client: AsyncClient, namespace: str, me: str, work: Work, log: FilteringBoundLogger) -> None:
        self._client = client
        self._namespace = namespace
        self._me = me
        self._work = work
        self._log = log
        self._seen: Seen | None = None
        self._written_s: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""

    @property
    def leads(self) -> bool:
        return self._task is not None and not self._task.done()

    async def run(self) -> None:
        """Until cancelled; then the Lease is given back, so that another one need not wait."""
        try:
            while True:
                await self._look()
                await self._act()
                await asyncio.sleep(RETRY_S)
                await self._act()  # the next look may take its time
        finally:
            try:
                await self._stop()
            finally:
                with suppress(Trouble, TimeoutError):
                    await self._give_back()

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                await self._take_turn()
        except (Trouble, TimeoutError) as error:
            if not self._trouble:
                self._log.warning("lease_trouble", error=str(error), consequence=f"led no longer than {RENEW_WITHIN_S}")
            self._trouble = str(error) or "no answer"
        else:
            self._trouble = ""

    async def _take_turn(self) -> None:
        now_s = time.monotonic()
        with trouble_of(f"the Lease {LEASE}"):
            lease = await self._client.get(Lease, LEASE, namespace=self._namespace)
            spec = lease.spec or LeaseSpec()
            version = (lease.metadata and lease.metadata.resourceVersion) or ""
            duration_s = float(spec.leaseDurationSeconds or DURATION_S)
            self._seen = looked(self._seen, spec.holderIdentity or "", version, duration_s, now_s)
            if turn(self._seen, self._me, now_s) is Turn.WAIT:
                self._written_s = None
                return
            mine = spec.holderIdentity == self._me
            now = datetime.now(UTC)
            lease.spec = LeaseSpec(
                holderIdentity=self._me,
                leaseDurationSeconds=int(DURATION_S),
                acquireTime=spec.acquireTime if mine else now,
                renewTime=now,
                leaseTransitions=(spec.leaseTransitions or 0) + (not mine),
            )
            await self._client.replace(lease)
        self._written_s = now_s

    async def _act(self) -> None:
        leads = still_leads(self._written_s, time.monotonic())
        if leads and self._task is None:
            self._log.info("leads", replica=self._me)
            self._task = asyncio.create_task(self._work())
        elif not leads and self._task is not None:
            self._log.warning("leads_no_more", replica=self._me)
            await self._stop()
        elif self._task is not None and self._task.done():
            self._task.result()  # the work never ends by itself: what it raises ends the process, which starts anew

    async def _stop(self) -> None:
        """Cancel the work, and wait for its end. Raises what the work raises.

        A cancel of this leader that comes meanwhile goes on to the work, and is raised once that has ended.
        """
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)  # raises a cancel of ours, and not the work's
            if not task.cancelled():
                task.result()

    async def _give_back(self) -> None:
        """The Lease may have our name for some time after we lead no more."""
        if self._written_s is None:
            return
        async with asyncio.timeout(REQUEST_S):
            with trouble_of(f"the Lease {LEASE}"):
                lease = await self._client.get(Lease, LEASE, namespace=self._namespace)
                if lease.spec is not None and lease.spec.holderIdentity == self._me:
                    lease.spec.holderIdentity = ""
                    await self._client.replace(lease)
