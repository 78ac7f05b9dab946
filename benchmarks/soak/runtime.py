"""A runtime for the soak: `python -m benchmarks.soak.runtime SOCKET`.

What it answers can be told beforehand, to the last byte; of a hooked call it shows in its answer what came of the
request.
"""

import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc

from benchmarks.backend import ANSWERS
from criproxy.fronts.cri import messages as cri

SERVICE: Final = "/runtime.v1.RuntimeService/"
EVENT_EVERY_S: Final = 1.0

_SEEN: Final = b"\xba\x3e"  # the tag of field 999, a length and so many bytes: unknown to CRI
_THREADS: Final = 32


def _bytes(size: int) -> bytes:
    """An answer none of whose pieces looks like another."""
    return random.Random(size).randbytes(size)


LISTS: Final = {"ListContainerStats": _bytes(200_000), "ListPodSandboxStats": _bytes(15_000_000)}
"""Answers of these sizes."""

BY_STATE: Final = b"\x0a\x02\x12\x00"
"""A list's request with a filter by state, as kubelet sends it. Source: CRI, PodSandboxFilter, ContainerFilter."""

FILTERED: Final = {"ListPodSandbox": _bytes(60_000), "ListContainers": _bytes(120_000)}
"""Answers to it, of the size that a node full of pods has; what criproxy itself lists is told from it."""

DETAILS: Final = "".join(f"{number}: 100 % of ü\n" for number in range(2000))[:28_000]
"""Of a pull that fails: as long as runtimes' errors get, with all that a status must escape."""


def seen(answer: bytes) -> bytes:
    """The request as the runtime got it, from its answer to RunPodSandbox or CreateContainer."""
    _, _, rest = answer.partition(_SEEN)
    size = shift = 0
    for at, byte in enumerate(rest):
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return rest[at + 1 : at + 1 + size]
    return b""


def showing(answer: bytes, request: bytes) -> bytes:
    """The inverse of `seen`: an answer with the request in it."""
    size, length = len(request), bytearray()
    while size > 0x7F:
        length.append((size & 0x7F) | 0x80)
        size >>= 7
    return answer + _SEEN + bytes([*length, size]) + request


class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Pods that are there from their start to their removal, lists, events, a pull that fails, and a call that lasts
    until it is given up. Every other method answers with its request.
    """

    def __init__(self) -> None:
        self._sandboxes: dict[bytes, cri.PodSandbox] = {}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = details.method.removeprefix(SERVICE)
        if method == "GetContainerEvents":
            return grpc.unary_stream_rpc_method_handler(self._events)
        if fixed := LISTS.get(method) or (method == "Version" and ANSWERS[details.method]):
            return grpc.unary_unary_rpc_method_handler(lambda _request, _context: fixed)
        return grpc.unary_unary_rpc_method_handler(getattr(self, f"_{method}", self._echo))

    def _echo(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        return request

    def _events(self, _request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        over = threading.Event()
        context.add_callback(over.set)
        number = 0
        while not over.wait(EVENT_EVERY_S):
            yield b"%d" % number
            number += 1

    def _ExecSync(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        over = threading.Event()
        if context.add_callback(over.set):
            over.wait()
        return request

    def _RunPodSandbox(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        config = cri.RunPodSandboxRequest.FromString(request).config
        uid = config.metadata.uid
        self._sandboxes[uid] = cri.PodSandbox(id=uid, metadata=config.metadata, annotations=config.annotations)
        return showing(cri.RunPodSandboxResponse(pod_sandbox_id=uid).SerializeToString(), request)

    def _CreateContainer(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        pod = cri.CreateContainerRequest.FromString(request).pod_sandbox_id
        return showing(cri.CreateContainerResponse(container_id=pod + b"-main").SerializeToString(), request)

    def _RemovePodSandbox(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        self._sandboxes.pop(cri.RemovePodSandboxRequest.FromString(request).pod_sandbox_id, None)
        return b""

    def _PullImage(self, _request: bytes, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.UNKNOWN, DETAILS)

    def _ListPodSandbox(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        if request == BY_STATE:
            return FILTERED["ListPodSandbox"]
        return cri.ListPodSandboxResponse(items=list(self._sandboxes.values())).SerializeToString()

    def _ListContainers(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        return FILTERED["ListContainers"] if request == BY_STATE else b""


def main() -> None:
    options = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
    server = grpc.server(ThreadPoolExecutor(_THREADS), handlers=(Handler(),), options=options)
    server.add_insecure_port(f"unix:{sys.argv[1]}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
