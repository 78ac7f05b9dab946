"""Serves /metrics and /healthz over plain HTTP, for who has no other port."""

import asyncio
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from structlog.typing import FilteringBoundLogger

from criproxy_cluster.http import Answer, HttpServer
from criproxy_cluster.metrics import TEXT

DEADLINE_S: Final = 5.0
PACE_S: Final = 0.02
AGAIN_S: Final = 10.0


async def serve(port: int, render: Callable[[], bytes], log: FilteringBoundLogger) -> None:
    """Until cancelled. A port that can't be had is tried again: nothing else waits for it."""

    async def answer(path: str, _: str) -> Answer:
        match path:
            case "/metrics":
                return Answer(HTTPStatus.OK, TEXT, render())
            case "/healthz":
                return Answer.text(HTTPStatus.OK, "ok")
        return Answer.text(HTTPStatus.NOT_FOUND, "there are /metrics and /healthz")

    told = False
    while True:
        try:
            listener = _listening(port)
        except OSError as error:
            if not told:
                log.warning("metrics_not_served", port=port, error=str(error), consequence="tried again")
                told = True
            await asyncio.sleep(AGAIN_S)
            continue
        with listener:
            await _accept(listener, HttpServer(answer, DEADLINE_S, log))


async def _accept(listener: socket.socket, server: HttpServer) -> None:
    """Until the listener fails."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            client, _ = await loop.sock_accept(listener)
        except OSError:  # no descriptor is left, or the client is gone already
            await asyncio.sleep(1.0)
            continue
        client.setblocking(False)
        server.serve(client)
        await asyncio.sleep(PACE_S)


def _listening(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        listener = socket.create_server(("", port))
    listener.setblocking(False)
    return listener
