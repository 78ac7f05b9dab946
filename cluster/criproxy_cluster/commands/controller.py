"""`criproxy-cluster controller`: one replica. The leader alone looks after nodes and policies."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from lightkube.core.async_client import AsyncClient
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.controller.controller import Controller
from criproxy_cluster.controller.leader import Leader
from criproxy_cluster.log import begin
from criproxy_cluster.memory import settle
from criproxy_cluster.metrics import ControllerMetrics
from criproxy_cluster.metrics_server import serve
from criproxy_cluster.overflow.keeper import OwnersKeeper, OwnersSettings
from criproxy_cluster.quota.keeper import QuotaKeeper, QuotaSettings
from criproxy_cluster.requests import prepare

END_S: Final = 5
"""All parts have ended: no longer after that does the process go on."""


async def run(
    client: AsyncClient,
    log: FilteringBoundLogger,
    metrics_port: int | None = None,
    quota: QuotaSettings | None = None,
    owners: OwnersSettings | None = None,
) -> None:
    """Until SIGTERM. A part that fails for good ends the process: Kubernetes starts it anew.

    `quota` None: Kueue is left alone. `owners` None: no pod is looked at.
    """
    metrics = ControllerMetrics()

    async def lead() -> None:
        """Each time with nothing from the time before: others have led since, or nobody could be heard."""
        settle()  # what was known then goes before as much is read again
        keeper = None if quota is None else QuotaKeeper(client, quota, log)
        book = None if owners is None else OwnersKeeper(client, owners, log)
        metrics.work = controller = Controller(client, log, metrics, keeper, book)
        metrics.quota = None if keeper is None else keeper.state
        metrics.owners = None if book is None else book.state
        try:
            await controller.run()
        finally:
            metrics.work = metrics.quota = metrics.owners = None

    told = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        with suppress(RuntimeError, ValueError):  # only the main thread gets signals
            asyncio.get_running_loop().add_signal_handler(name, told.set)
    me = f"{socket.gethostname()}-{os.getpid()}"
    leader = Leader(client, client.namespace, me, lead, log)
    metrics.leads, metrics.trouble = (lambda: leader.leads), (lambda: leader.troubled)
    shown = () if metrics_port is None else (serve(metrics_port, metrics.render, log),)
    async with beside(leader.run(), *shown):
        await told.wait()


@asynccontextmanager
async def beside(*parts: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs these parts as long as the block; they are cancelled with it."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part) for part in parts]
        try:
            yield
        finally:
            for task in tasks:
                if not task.cancelling():  # by the group, as another has failed: it may be at its end's work
                    task.cancel()


def main(
    metrics_port: int | None = None, quota: QuotaSettings | None = None, owners: OwnersSettings | None = None
) -> int:
    asyncio.run(_run(begin(), metrics_port, quota, owners))
    return 0


async def _run(
    log: FilteringBoundLogger, metrics_port: int | None, quota: QuotaSettings | None, owners: OwnersSettings | None
) -> None:
    async with AsyncClient(field_manager="criproxy-cluster") as client:
        prepare(client)
        try:
            await run(client, log, metrics_port, quota, owners)
        finally:
            signal.alarm(END_S)  # whoever goes on though it was cancelled
