"""Asks a runtime's socket who answers there: one Version call, in the API that it serves."""

import asyncio
from pathlib import Path

from criproxy.fronts.cri.runtime import RuntimeInfo, ask_version
from criproxy.fronts.http2.client.connection import Connection


def version(socket: str, timeout_s: float) -> str:
    """Its name and version. Raises ConnectionError when nobody answers, or not like a runtime. Source: CRI Version."""
    try:
        info = asyncio.run(_ask(Path(socket), timeout_s))
    except OSError as error:  # a ConnectionError, too
        raise ConnectionError(f"{socket}: {error}") from error
    return f"{info.name} {info.version}"


async def _ask(socket: Path, timeout_s: float) -> RuntimeInfo:
    async with await Connection.dial(socket) as connection:
        return await ask_version(connection.call, timeout_s)
