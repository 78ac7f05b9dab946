"""A runtime that answers at once with bytes of a given size, so that what is measured is the way to it.

`python -m benchmarks.backend SOCKET`
"""

import socket
import sys
import threading
from pathlib import Path

from benchmarks.node import container_of, padding
from benchmarks.wire import serve
from criproxy.fronts.cri import messages as cri

_RUNTIME = "/runtime.v1.RuntimeService/"

ANSWERS = {
    f"{_RUNTIME}Version": cri.VersionResponse(
        version=b"0.1.0", runtime_name=b"backend", runtime_version=b"1", runtime_api_version=b"v1"
    ).SerializeToString(),
    f"{_RUNTIME}ListContainerStats": padding(200_000),
    f"{_RUNTIME}ListPodSandboxStats": padding(15_000_000),
}


_RUNNING = 1
_ENDED = cri.StringEntry(key=b"info", value=b'{"pid": 0, "runtimeType": "io.containerd.runc.v2"}')
"""What a verbose status says, where the process has ended."""


class Runtime:
    """`ANSWERS`, and sandboxes with a container each, which are listed until they are removed: a pod's uid is its
    sandbox's id.
    """

    def __init__(self) -> None:
        self._sandboxes: dict[bytes, cri.PodSandbox] = {}
        self._containers: dict[bytes, cri.Container] = {}

    def answer(self, path: str, message: bytes) -> bytes | None:
        method = path.removeprefix(_RUNTIME)
        changed = self._change(method, message)
        return self._tell(path, method) if changed is None else changed

    def _change(self, method: str, message: bytes) -> bytes | None:
        """None: it is no method that changes something."""
        match method:
            case "RunPodSandbox":
                config = cri.RunPodSandboxRequest.FromString(message).config
                uid = config.metadata.uid
                self._sandboxes[uid] = cri.PodSandbox(id=uid, metadata=config.metadata, annotations=config.annotations)
                return cri.RunPodSandboxResponse(pod_sandbox_id=uid).SerializeToString()
            case "CreateContainer":
                request = cri.CreateContainerRequest.FromString(message)
                id = container_of(request.pod_sandbox_id.decode()).encode()
                self._containers[id] = cri.Container(
                    id=id, pod_sandbox_id=request.pod_sandbox_id, metadata=request.config.metadata, state=_RUNNING
                )
                return cri.CreateContainerResponse(container_id=id).SerializeToString()
            case "StartContainer" | "StopContainer" | "StopPodSandbox":
                pass
            case "RemoveContainer":
                self._containers.pop(cri.RemoveContainerRequest.FromString(message).container_id, None)
            case "RemovePodSandbox":
                self._sandboxes.pop(cri.RemovePodSandboxRequest.FromString(message).pod_sandbox_id, None)
            case _:
                return None
        return b""

    def _tell(self, path: str, method: str) -> bytes | None:
        match method:
            case "ListPodSandbox":
                return cri.ListPodSandboxResponse(items=list(self._sandboxes.values())).SerializeToString()
            case "ListContainers":
                return cri.ListContainersResponse(containers=list(self._containers.values())).SerializeToString()
            case "PodSandboxStatus":
                return cri.PodSandboxStatusResponse(info=[_ENDED]).SerializeToString()
            case "ContainerStatus":
                return cri.ContainerStatusResponse(info=[_ENDED]).SerializeToString()
        return ANSWERS.get(path)


def main() -> None:
    runtime, path = Runtime(), Path(sys.argv[1])
    bound = path.with_name(f"{path.name}.bound")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(bound))
    listening.listen()
    bound.rename(path)
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=serve, args=(connection, runtime.answer), daemon=True).start()


if __name__ == "__main__":
    main()
