"""A runtime for calls that containerd has no slow or endless kind of: `python -m integration.lab.slow_runtime SOCKET`.

PullImage takes as many seconds as its image's name says, GetContainerEvents sends an event each 50 ms and never ends,
ListImages answers with 200 KB, RunPodSandbox takes a second; nothing exists.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from integration.lab import cri_client_pb2 as cri

EVENT_EVERY_S = 0.05
LIST_BYTES = 200_000
SANDBOX_S = 1.0


class SlowRuntime:
    """The handler of all methods. Source: grpc.GenericRpcHandler."""

    def __init__(self) -> None:
        self._sandboxes: dict[str, cri.PodSandbox] = {}

    def service(self, details: Any) -> Any:
        method = details.method.rpartition("/")[2]
        if method == "GetContainerEvents":
            return grpc.unary_stream_rpc_method_handler(self._events)
        return grpc.unary_unary_rpc_method_handler(getattr(self, f"_{method}", self._nothing))

    async def _nothing(self, _request: bytes, _context: Any) -> bytes:
        return b""

    async def _Version(self, _request: bytes, _context: Any) -> bytes:
        return cri.VersionResponse(version="0.1.0", runtime_name="slow", runtime_version="1").SerializeToString()

    async def _PullImage(self, request: bytes, _context: Any) -> bytes:
        name = cri.PullImageRequest.FromString(request).image.image
        await asyncio.sleep(float(name))
        return cri.PullImageResponse(image_ref=name).SerializeToString()

    async def _ListImages(self, _request: bytes, _context: Any) -> bytes:
        return cri.ListImagesResponse(images=[cri.Image(id="x" * LIST_BYTES)]).SerializeToString()

    async def _RunPodSandbox(self, request: bytes, _context: Any) -> bytes:
        config = cri.RunPodSandboxRequest.FromString(request).config
        await asyncio.sleep(SANDBOX_S)
        one = cri.PodSandbox(id=f"sandbox-{config.metadata.uid}", metadata=config.metadata)
        one.annotations.update(config.annotations)
        self._sandboxes[one.id] = one
        return cri.RunPodSandboxResponse(pod_sandbox_id=one.id).SerializeToString()

    async def _ListPodSandbox(self, _request: bytes, _context: Any) -> bytes:
        return cri.ListPodSandboxResponse(items=list(self._sandboxes.values())).SerializeToString()

    async def _RemovePodSandbox(self, request: bytes, _context: Any) -> bytes:
        self._sandboxes.pop(cri.RemovePodSandboxRequest.FromString(request).pod_sandbox_id, None)
        return b""

    async def _events(self, _request: bytes, context: Any) -> None:
        while True:
            await context.write(cri.ContainerEventResponse(container_id="c").SerializeToString())
            await asyncio.sleep(EVENT_EVERY_S)


async def _main(path: Path) -> None:
    server = aio.server(handlers=(SlowRuntime(),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
