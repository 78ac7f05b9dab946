"""`criproxy-cluster run`: one replica. The webhook answers in each; the leader alone keeps certificate and nodes."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import uvicorn
from lightkube.core.async_client import AsyncClient
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.controller.controller import Controller
from criproxy_cluster.controller.leader import Leader
from criproxy_cluster.log import begin
from criproxy_cluster.memory import keep_connections_small, settle
from criproxy_cluster.requests import prepare
from criproxy_cluster.webhook.app import make_app
from criproxy_cluster.webhook.certificates import CertificateKeeper, FilesSource, SecretSource, ServerCertificate
from criproxy_cluster.webhook.conversion import ConversionSettings

SERVICE: Final = "criproxy-cluster"
MAX_CONNECTIONS: Final = 512
KEEP_ALIVE_S: Final = 120
STOP_S: Final = 10
END_S: Final = 5
"""All parts have ended: no longer after that does the process go on."""


class RunSettings(Struct, frozen=True):
    """`certificates`: a folder with tls.crt and tls.key; None: they are our own, in a Secret.

    `address` "": all that there are, as a Pod of an IPv6 cluster has no other.
    """

    conversion: ConversionSettings = ConversionSettings()
    port: int = 9443
    address: str = ""
    certificates: Path | None = None


class _Server(uvicorn.Server):
    """Leaves signals alone: uvicorn raises them again at its end, before the Lease is given back."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class WebhookServer:
    """Serves over TLS until it is told to stop, or the process gets SIGTERM."""

    def __init__(self, settings: RunSettings, certificate: ServerCertificate, log: FilteringBoundLogger) -> None:
        keep_connections_small()
        config = uvicorn.Config(
            make_app(settings.conversion, certificate, log),
            host=settings.address,
            port=settings.port,
            ssl_context_factory=lambda *_: certificate.context,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_S,
        )
        self._server = _Server(config)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            with suppress(RuntimeError, ValueError):  # only the main thread gets signals
                loop.add_signal_handler(name, self.stop)
        try:
            await self._server.serve()
        except asyncio.CancelledError:
            self._server.force_exit = True
            await self._server.shutdown()
            raise

    @property
    def port(self) -> int:
        """0 until it listens."""
        sockets = [one for server in getattr(self._server, "servers", ()) for one in server.sockets]
        return int(sockets[0].getsockname()[1]) if sockets else 0

    def stop(self) -> None:
        self._server.should_exit = True


async def run(settings: RunSettings, client: AsyncClient, log: FilteringBoundLogger) -> None:
    """Until SIGTERM. A part that fails for good ends the process: Kubernetes starts it anew."""
    namespace = client.namespace
    source = FilesSource(settings.certificates) if settings.certificates else SecretSource(client, namespace)
    certificate = ServerCertificate(source, log)

    async def lead() -> None:
        """Each time with nothing from the time before: others have led since, or nobody could be heard."""
        settle()  # what was known then goes before as much is read again
        async with asyncio.TaskGroup() as parts:
            parts.create_task(Controller(client, log).run())
            if settings.certificates is None:
                parts.create_task(CertificateKeeper(client, namespace, SERVICE, log).run())

    me = f"{socket.gethostname()}-{os.getpid()}"
    leader = Leader(client, namespace, me, lead, log)
    server = WebhookServer(settings, certificate, log)
    async with beside(certificate.run(), leader.run()):
        await server.run()


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


def main(settings: RunSettings) -> int:
    log = begin()
    asyncio.run(_run(settings, log))
    return 0


async def _run(settings: RunSettings, log: FilteringBoundLogger) -> None:
    async with AsyncClient(field_manager="criproxy-cluster") as client:
        prepare(client)
        try:
            await run(settings, client, log)
        finally:
            signal.alarm(END_S)  # whoever goes on though it was cancelled
