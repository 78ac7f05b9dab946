"""What gRPC's engine does by itself; what it does as the relay does is in tests/fronts/test_server.py."""

import asyncio

import grpc
from grpc import aio

from criproxy.fronts.grpc import server


class Answering:
    """A call to the runtime that has one message more, and the context of a client that has just gone."""

    async def initial_metadata(self) -> tuple[()]:
        return ()

    def done(self) -> bool:
        return False

    async def read(self) -> bytes:
        return b"x"

    async def send_initial_metadata(self, metadata: tuple[()]) -> None:
        pass

    async def write(self, message: bytes) -> None:
        raise aio.InternalError('Failed "execute_batch"')


def test_answer_to_a_client_that_has_just_gone_ends_the_call_as_cancelled() -> None:
    assert asyncio.run(server._pass_answers(Answering(), Answering())) is grpc.StatusCode.CANCELLED
