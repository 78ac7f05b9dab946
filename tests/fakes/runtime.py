"""A fake container runtime: a real gRPC server on a unix socket that does what a test scripts, and remembers it.

`python tests/fakes/runtime.py SOCKET` serves in a process of its own, to be killed.
"""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
from grpc import aio

_APART_S = 0.05
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_metadata_size", 16 * 1024 * 1024))


@dataclass
class Seen:
    """What the runtime saw of one call. `deadline_s` is what was left when it came."""

    method: str
    metadata: tuple[tuple[str, str | bytes], ...]
    deadline_s: float | None
    messages: list[bytes] = field(default_factory=list)
    half_closed: bool = False
    cancelled: bool = False


Behaviour = Callable[[Seen, Any], Awaitable[None]]


async def receive(seen: Seen, context: Any) -> bytes | None:
    """The next message of the client, None when it has half-closed."""
    message: bytes | object = await context.read()
    if not isinstance(message, bytes):  # aio.EOF
        seen.half_closed = True
        return None
    seen.messages.append(message)
    return message


async def receive_all(seen: Seen, context: Any) -> None:
    while await receive(seen, context) is not None:
        pass


async def echo(seen: Seen, context: Any) -> None:
    while (message := await receive(seen, context)) is not None:
        await context.write(message)


async def never(seen: Seen, context: Any) -> None:
    await receive_all(seen, context)
    await asyncio.Event().wait()


def answer(*messages: bytes, initial: Any = (), trailing: Any = ()) -> Behaviour:
    """Read the request, then send these."""

    async def behave(seen: Seen, context: Any) -> None:
        await receive_all(seen, context)
        if initial:
            await context.send_initial_metadata(initial)
            # grpc.aio's client takes an end that comes with the metadata for one without: the status may overtake them.
            await asyncio.sleep(_APART_S)
        for message in messages:
            await context.write(message)
        context.set_trailing_metadata(trailing)

    return behave


def fail(code: grpc.StatusCode, details: str, *, initial: Any = (), trailing: Any = (), after: Any = ()) -> Behaviour:
    """Read the request, then answer with an error, after the messages `after`."""

    async def behave(seen: Seen, context: Any) -> None:
        await answer(*after, initial=initial, trailing=trailing)(seen, context)
        context.set_code(code)
        context.set_details(details)

    return behave


class FakeRuntime:
    """Takes every method of every service; does `script[method]`, by default `echo`. It can be started anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.script: dict[str, Behaviour] = {}
        self.calls: list[Seen] = []
        self.in_flight = 0
        self._server: Any = None

    async def start(self, **options: Any) -> None:
        """`options` are gRPC's, by their names without "grpc."."""
        more = tuple((f"grpc.{key}", value) for key, value in options.items())
        self._server = aio.server(handlers=(self,), options=(*OPTIONS, *more))
        self._server.add_insecure_port(f"unix:{quote(str(self.path))}")
        await self._server.start()

    async def stop(self, grace_s: float | None = None) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)

    def service(self, details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(partial(self._serve, details.method))

    async def _serve(self, method: str, _requests: object, context: Any) -> None:
        seen = Seen(method, tuple(map(tuple, context.invocation_metadata())), context.time_remaining())
        self.calls.append(seen)
        self.in_flight += 1
        try:
            await self.script.get(method, echo)(seen, context)
        except asyncio.CancelledError:
            seen.cancelled = True
            raise
        finally:
            self.in_flight -= 1


async def _main(path: Path) -> None:
    runtime = FakeRuntime(path)
    runtime.script["/test.Service/Never"] = never
    await runtime.start()  # over the socket of a killed one, as gRPC does
    await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(Path(sys.argv[1])))
