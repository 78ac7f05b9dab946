"""A gRPC server of the ledger's library that says yes to everything: what the library alone takes for one call.

`python -m benchmarks.ledger.empty PORT PEM`
"""

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from criproxy_cluster.ledger import messages
from criproxy_cluster.ledger.grpc_door import OPTIONS, SERVICE

_YES: Final = messages.Verdict()


async def serve(port: int, pem: bytes) -> None:
    """Until it is killed. `pem`: key and certificate."""

    async def reserve(request: messages.ReserveRequest, _: Any) -> messages.ReserveResponse:
        return messages.ReserveResponse(verdicts=[_YES for _ in request.wishes])

    async def release(_request: messages.ReleaseRequest, _: Any) -> messages.ReleaseResponse:
        return messages.ReleaseResponse()

    unary = grpc.unary_unary_rpc_method_handler
    methods = {
        "Reserve": unary(reserve, messages.ReserveRequest.FromString, messages.ReserveResponse.SerializeToString),
        "Release": unary(release, messages.ReleaseRequest.FromString, messages.ReleaseResponse.SerializeToString),
    }
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    server.add_secure_port(f"localhost:{port}", grpc.ssl_server_credentials([(pem, pem)]))
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2]).read_bytes()))
