"""The webhook's HTTP side: a bounded body in, an answer out. What is answered is `admission`'s."""

import asyncio
from typing import Final, Protocol

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.webhook.admission import ReviewError, answer
from criproxy_cluster.webhook.conversion import ConversionSettings

MAX_BODY_BYTES: Final = 4 << 20
"""The API server takes objects of 3 MiB at most; a pod that etcd takes has 1.5 MiB."""

BODY_S: Final = 10.0
"""Within which a body has to come: the API server waits no longer for an answer."""

CONVERT: Final = "/convert"


class IsReady(Protocol):
    """Whether calls can be answered: there is a certificate."""

    @property
    def ready(self) -> bool: ...


class _TooLong(Exception):
    pass


def make_app(settings: ConversionSettings, readiness: IsReady, log: FilteringBoundLogger) -> Starlette:
    async def convert(request: Request) -> Response:
        try:
            async with asyncio.timeout(BODY_S):
                body = await _body(request)
        except _TooLong:
            return _wrong(413, f"more than {MAX_BODY_BYTES} bytes")
        except TimeoutError:
            return _wrong(408, f"the body did not come within {BODY_S:.0f} s")
        except ClientDisconnect:
            return _wrong(400, "the client went away")
        try:
            return Response(answer(body, settings), media_type="application/json")
        except ReviewError as error:
            log.warning("review_not_read", error=str(error))
            return _wrong(400, str(error))

    async def healthy(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        return PlainTextResponse("ok\n") if readiness.ready else _wrong(503, "there is no certificate yet")

    return Starlette(
        routes=[
            Route(CONVERT, convert, methods=["POST"]),
            Route("/healthz", healthy),
            Route("/readyz", ready),
        ]
    )


async def _body(request: Request) -> bytes:
    length = request.headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length[:20]) > MAX_BODY_BYTES:
        raise _TooLong
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise _TooLong
        parts.append(part)
    return b"".join(parts)


def _wrong(status: int, why: str) -> Response:
    return PlainTextResponse(f"criproxy: {why}\n", status_code=status)
