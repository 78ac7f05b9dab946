"""A runtime that answers at once with bytes of a given size, so that what is measured is the way to it.

`python -m benchmarks.backend SOCKET`
"""

import socket
import sys
import threading
from pathlib import Path

from benchmarks.wire import serve
from criproxy.fronts.cri import messages as cri

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


class Runtime:
    """`ANSWERS`, and sandboxes that are listed once they run, until `RemoveAll`: a pod's uid is its sandbox's id."""

    def __init__(self) -> None:
        self._sandboxes: dict[bytes, cri.PodSandbox] = {}

    def answer(self, path: str, message: bytes) -> bytes | None:
        match path.removeprefix(_RUNTIME):
            case "RunPodSandbox":
                config = cri.RunPodSandboxRequest.FromString(message).config
                uid = config.metadata.uid
                self._sandboxes[uid] = cri.PodSandbox(id=uid, metadata=config.metadata, annotations=config.annotations)
                return cri.RunPodSandboxResponse(pod_sandbox_id=uid).SerializeToString()
            case "ListPodSandbox":
                return cri.ListPodSandboxResponse(items=list(self._sandboxes.values())).SerializeToString()
            case "RemoveAll":
                self._sandboxes.clear()
                return b""
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
