"""`criproxy-cluster webhook`: answers the API server. With `--owners` it follows one ConfigMap, the book of owners.

Without, it asks nobody, and has no credential of the cluster's.
"""

import asyncio
import signal
from pathlib import Path

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.log import begin
from criproxy_cluster.memory import settle
from criproxy_cluster.metrics import WebhookMetrics
from criproxy_cluster.webhook.app import WebhookAnswers
from criproxy_cluster.webhook.certificates import ServerCertificate
from criproxy_cluster.webhook.conversion import ConversionSettings
from criproxy_cluster.webhook.front import Front
from criproxy_cluster.webhook.overflow import Overflow


class WebhookSettings(Struct, frozen=True):
    """`certificates`: a folder with tls.crt and tls.key. `address`: see `Front.serve`."""

    certificates: Path
    conversion: ConversionSettings = ConversionSettings()
    port: int = 9443
    address: str = ""
    owners: bool = False


async def serve(settings: WebhookSettings, log: FilteringBoundLogger) -> None:
    """Until SIGTERM, and what follows it."""
    certificate, overflow = ServerCertificate(settings.certificates, log), Overflow()
    metrics = WebhookMetrics()
    answers = WebhookAnswers(settings.conversion, certificate, log, metrics, overflow)
    front = Front(answers, certificate.context, log)
    metrics.front, metrics.certificate = front, certificate
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, front.end)
    settle()  # what connections leave is looked for often, and soon found
    async with asyncio.TaskGroup() as parts:
        beside = [parts.create_task(certificate.run())]
        if settings.owners:
            beside.append(parts.create_task(_follow(overflow, log)))
        await front.serve(settings.address, settings.port)
        for one in beside:
            one.cancel()


async def _follow(overflow: Overflow, log: FilteringBoundLogger) -> None:
    """A webhook without owners has no client of the API server's."""
    from lightkube.core.async_client import AsyncClient

    from criproxy_cluster.requests import prepare
    from criproxy_cluster.webhook.book import follow

    async with AsyncClient(field_manager="criproxy-cluster") as client:
        prepare(client)
        await follow(client, overflow, log)


def main(settings: WebhookSettings) -> int:
    asyncio.run(serve(settings, begin()))
    return 0
