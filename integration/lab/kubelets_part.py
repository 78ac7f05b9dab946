"""Plays kubelet's part for CRI clients that are none: `python -m THIS SOCKET RUNTIME ROOT CLASS`.

What critest and the like lack of kubelet is a cgroup for each pod, made before the pod starts and named after its uid,
and the label that says whether it is offline. This proxy adds both to the calls that carry a pod's configuration, with
pods' cgroups below ROOT; every other call passes as the bytes that came.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from integration.lab import cri_client_pb2 as cri
from integration.lab import kubelet_cgroup
from integration.lab.client import OPTIONS
from integration.lab.criproxy import python_path
from integration.lab.directory import socket_path
from integration.lab.naming import spelled
from integration.lab.process import Process

CLASS = "colocation.criproxy.io/class"
START_S = 180


def start(directory: Path, runtime: Path, root: str, kind: str) -> tuple[Process, Path]:
    """Start one in `directory` (a lab's) before the runtime at a socket; returns it and its own socket.

    All pods get the class `kind` (online, offline), and cgroups below `root`.
    """
    socket = socket_path(directory, "kubelet.sock")
    command: list[str | Path] = [sys.executable, "-m", __name__, socket, runtime, root, kind]
    process = Process("kubelet's part", command, directory / "kubelets-part.log", {"PYTHONPATH": python_path()})
    process.wait_until(socket.exists, START_S, "its socket")
    return process, socket


class _Handler:
    """Of all methods: to a server, a call with one answer is a stream of one. Source: grpc.GenericRpcHandler."""

    def __init__(self, runtime: str, root: str, kind: str) -> None:
        self._channel = aio.insecure_channel(f"unix://{runtime}", options=OPTIONS)
        self._root = root
        self._kind = kind

    def service(self, details: Any) -> Any:
        async def handle(request: bytes, context: Any) -> AsyncIterator[bytes]:
            async for answer in self._pass(details.method, request, context):
                yield answer

        return grpc.unary_stream_rpc_method_handler(handle)

    async def _pass(self, method: str, request: bytes, context: Any) -> AsyncIterator[bytes]:
        request = await self._rewritten(method.rpartition("/")[2], request)
        call = self._channel.unary_stream(method)(request, timeout=context.time_remaining())
        try:
            async for answer in call:
                yield answer
        except aio.AioRpcError as error:
            await context.abort(error.code(), error.details(), tuple(error.trailing_metadata()))
        finally:
            call.cancel()

    async def _rewritten(self, method: str, request: bytes) -> bytes:
        if method == "RunPodSandbox":
            start = cri.RunPodSandboxRequest.FromString(request)
            await asyncio.to_thread(kubelet_cgroup.make, self._adopt(start.config))
            return start.SerializeToString()
        if method == "CreateContainer":
            create = cri.CreateContainerRequest.FromString(request)
            self._adopt(create.sandbox_config)
            return create.SerializeToString()
        return request

    def _adopt(self, pod: cri.PodSandboxConfig) -> str:
        """Make the configuration one of kubelet's; returns the pod's cgroup."""
        cgroup = f"{self._root}/kubepods/besteffort/pod{pod.metadata.uid}"
        pod.linux.cgroup_parent = spelled(cgroup)
        pod.labels[CLASS] = self._kind
        return cgroup


async def _main(socket: str, runtime: str, root: str, kind: str) -> None:
    server = aio.server(handlers=(_Handler(runtime, root, kind),), options=OPTIONS)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
