"""`criproxy-cluster ledger`: one replica. The leader alone decides and answers."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from lightkube.core.async_client import AsyncClient
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.controller.leader import Leader
from criproxy_cluster.ledger import grpc_door
from criproxy_cluster.ledger.desk import Desk, Seen
from criproxy_cluster.ledger.http_door import LedgerAnswers
from criproxy_cluster.ledger.law import Ledger
from criproxy_cluster.ledger.watching import PodReader, Watches
from criproxy_cluster.log import begin
from criproxy_cluster.memory import settle
from criproxy_cluster.metrics import LedgerMetrics
from criproxy_cluster.requests import prepare
from criproxy_cluster.webhook.certificates import ServerCertificate
from criproxy_cluster.webhook.front import Front, FrontLimits
from criproxy_cluster.yarn.operator import YarnOperator, YarnSettings

LEASE: Final = "criproxy-ledger"
LIMITS: Final = FrontLimits(lame_duck_s=1.0, turn_bytes=8 << 10)
"""The sooner it ends, the sooner another one leads: nobody is refused anything meanwhile. A Binding has a kilobyte."""

END_S: Final = 12
"""All parts have ended: no longer after that does the process go on."""


class LedgerSettings(Struct, frozen=True):
    """`certificates`: a folder with tls.crt and tls.key. `yarn` None: YARN is left alone. `address`: see
    `Front.serve`.
    """

    certificates: Path
    port: int = 9444
    grpc_port: int = 9445
    yarn: YarnSettings | None = None
    address: str = ""


async def serve(settings: LedgerSettings, client: AsyncClient, log: FilteringBoundLogger) -> None:
    """Until SIGTERM, and what follows it. A part that fails for good ends the process: Kubernetes starts it anew."""
    ledger, seen = Ledger(), Seen()
    certificate = ServerCertificate(settings.certificates, log)
    me = f"{socket.gethostname()}-{os.getpid()}"
    desk = Desk(ledger, seen, PodReader(client), leads=lambda: leader.leads, now_s=time.monotonic, log=log)
    leader = Leader(client, client.namespace, me, desk.lead, log, lease=LEASE)
    metrics = LedgerMetrics(desk)
    front = Front(LedgerAnswers(desk, certificate, metrics, log), certificate, log, LIMITS)
    others: list[Coroutine[Any, Any, None]] = []
    if settings.yarn is not None:
        operator = YarnOperator(client, ledger, settings.yarn, seen, leads=lambda: leader.leads, log=log)
        metrics.yarn = operator.state
        others.append(operator.run())
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, front.end)
    settle()
    async with asyncio.TaskGroup() as group:
        parts = [
            group.create_task(part)
            for part in (
                certificate.run(),
                Watches(client, ledger, seen, log).run(),
                leader.run(),
                desk.run(),
                grpc_door.serve(desk, certificate, f"{settings.address or '[::]'}:{settings.grpc_port}"),
                *others,
            )
        ]
        await front.serve(settings.address, settings.port)
        for part in parts:
            part.cancel()


def main(settings: LedgerSettings) -> int:
    asyncio.run(_run(settings, begin()))
    return 0


async def _run(settings: LedgerSettings, log: FilteringBoundLogger) -> None:
    async with AsyncClient(field_manager="criproxy-cluster") as client:
        prepare(client)
        try:
            await serve(settings, client, log)
        finally:
            signal.alarm(END_S)  # whoever goes on though it was cancelled
