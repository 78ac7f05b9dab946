"""A runtime that answers at once with bytes of a given size, so that what is measured is the way to it.

`python -m benchmarks.backend SOCKET`
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

from criproxy.proxy import cri_pb2 as cri

_RUNTIME = "/runtime.v1.RuntimeService/"
_UNKNOWN_FIELD = 2  # wire type: a length and so many bytes


def padding(size: int) -> bytes:
    """A message of about `size` bytes that decodes as any CRI answer: one unknown field."""
    tag = (999 << 3) | _UNKNOWN_FIELD
    return _varint(tag) + _varint(size) + bytes(size)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes([*out, value])


ANSWERS = {
    f"{_RUNTIME}Version": cri.VersionResponse(
        version=b"0.1.0", runtime_name=b"backend", runtime_version=b"1", runtime_api_version=b"v1"
    ).SerializeToString(),
    f"{_RUNTIME}ListContainers": b"",
    f"{_RUNTIME}ListContainerStats": padding(200_000),
    f"{_RUNTIME}ListPodSandboxStats": padding(15_000_000),
}


class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """`ANSWERS`, and sandboxes that are listed once they run: a pod's uid is its sandbox's id."""

    def __init__(self) -> None:
        self._sandboxes: dict[bytes, cri.PodSandbox] = {}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        match details.method.removeprefix(_RUNTIME):
            case "RunPodSandbox":
                return grpc.unary_unary_rpc_method_handler(self._run)
            case "ListPodSandbox":
                return grpc.unary_unary_rpc_method_handler(self._list)
        answer = ANSWERS.get(details.method)
        if answer is None:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)

    def _run(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        config = cri.RunPodSandboxRequest.FromString(request).config
        uid = config.metadata.uid
        self._sandboxes[uid] = cri.PodSandbox(id=uid, metadata=config.metadata, annotations=config.annotations)
        return cri.RunPodSandboxResponse(pod_sandbox_id=uid).SerializeToString()

    def _list(self, _request: bytes, _context: grpc.ServicerContext) -> bytes:
        return cri.ListPodSandboxResponse(items=self._sandboxes.values()).SerializeToString()


def main() -> None:
    options = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
    server = grpc.server(ThreadPoolExecutor(4), handlers=(Handler(),), options=options)
    server.add_insecure_port(f"unix:{sys.argv[1]}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
