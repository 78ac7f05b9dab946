"""`criproxy-cluster webhook --owners`: the webhook, which follows one ConfigMap in the cluster: the book of owners."""

import asyncio
import time

from lightkube.core.async_client import AsyncClient
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.commands import webhook
from criproxy_cluster.commands.webhook import WebhookSettings
from criproxy_cluster.log import begin
from criproxy_cluster.overflow.following import follow
from criproxy_cluster.requests import prepare
from criproxy_cluster.webhook.overflow import Overflow


async def serve(settings: WebhookSettings, log: FilteringBoundLogger) -> None:
    """As the webhook's own."""
    overflow = Overflow(time.monotonic, time.time)
    await webhook.serve(settings, log, overflow, keep_up(overflow, log))


async def keep_up(overflow: Overflow, log: FilteringBoundLogger) -> None:
    """Until cancelled, or something is wrong for good, such as an account without a token: pods are answered for in
    any case.
    """
    try:
        async with AsyncClient(field_manager="criproxy-cluster") as client:
            prepare(client)
            await follow(client, overflow, log)
    except Exception as error:
        overflow.forget()
        log.error("owners_not_followed", exc_info=error, consequence="no pod overflows: all are converted")


def main(settings: WebhookSettings) -> int:
    asyncio.run(serve(settings, begin()))
    return 0
