"""`criproxy-cluster webhook`: answers the API server, and asks nobody. It has no credential of the cluster's."""

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.log import begin
from criproxy_cluster.memory import settle
from criproxy_cluster.metrics import WebhookMetrics
from criproxy_cluster.webhook.app import WebhookAnswers
from criproxy_cluster.webhook.certificates import ServerCertificate
from criproxy_cluster.webhook.conversion import ConversionSettings
from criproxy_cluster.webhook.front import Front
from criproxy_cluster.webhook.overflow import NEVER, Decides


class WebhookSettings(Struct, frozen=True):
    """`certificates`: a folder with tls.crt and tls.key. `address`: see `Front.serve`."""

    certificates: Path
    conversion: ConversionSettings = ConversionSettings()
    port: int = 9443
    address: str = ""


async def serve(
    settings: WebhookSettings,
    log: FilteringBoundLogger,
    overflow: Decides = NEVER,
    beside: Coroutine[Any, Any, None] | None = None,
) -> None:
    """Until SIGTERM, and what follows it. `beside` runs as long as it answers."""
    certificate = ServerCertificate(settings.certificates, log)
    metrics = WebhookMetrics()
    answers = WebhookAnswers(settings.conversion, certificate, log, metrics, overflow)
    front = Front(answers, certificate, log)
    metrics.front, metrics.certificate = front, certificate
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, front.end)
    settle()  # what connections leave is looked for often, and soon found
    async with asyncio.TaskGroup() as parts:
        kept = [parts.create_task(one) for one in (certificate.run(), beside) if one is not None]
        await front.serve(settings.address, settings.port)
        for one in kept:
            one.cancel()


def main(settings: WebhookSettings) -> int:
    asyncio.run(serve(settings, begin()))
    return 0
