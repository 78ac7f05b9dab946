"""How long the runtime waits within its calls of NRI: `python -m benchmarks.nri [--calls N]`, as root.

A criproxy before a real containerd, whose NRI is played here: pods start and have a container made, online and offline
in turn, while the daemon does all that it does on a node. What is measured is the time from a call's bytes to those of
its answer, for which the runtime holds its lock on all plugins.
"""

import argparse
import socket
import struct
import time
import uuid
from pathlib import Path
from typing import Any

from criproxy.fronts.nri import messages as nri
from integration.lab import kubelet_cgroup
from integration.lab.clean import clean
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Criproxy, merged, static
from integration.lab.directory import cgroup_root, claimed, socket_path
from integration.lab.node import CLASS
from integration.programs import build

KINDS = ("online", "offline")
METHODS = ("RunPodSandbox", "CreateContainer")


class PlayedNri:
    """The runtime's end of a connection: one call at a time."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._stream = -1

    def register(self) -> None:
        self._receive()
        answer = nri.TtrpcResponse().SerializeToString()
        self._send(2, struct.pack(">IIBB", len(answer), 1, 2, 0) + answer)
        self.call("Configure", nri.ConfigureRequest(NRI_version=b"v0.12.3"))
        self.call("Synchronize", nri.SynchronizeRequest())

    def call(self, method: str, message: Any) -> tuple[float, str]:
        """How long it took, and why it was refused ("": it was not)."""
        self._stream += 2
        request = nri.TtrpcRequest(
            service=b"nri.pkg.api.v1alpha1.Plugin", method=method.encode(), payload=message.SerializeToString()
        ).SerializeToString()
        data = struct.pack(">IIBB", len(request), self._stream, 1, 0) + request
        began_s = time.perf_counter()
        self._send(1, data)
        answer = self._receive()
        took_s = time.perf_counter() - began_s
        return took_s, nri.TtrpcResponse.FromString(answer[10:]).status.message.decode()

    def _send(self, connection: int, data: bytes) -> None:
        self._end.sendall(struct.pack(">II", connection, len(data)) + data)

    def _receive(self) -> bytes:
        head = self._exactly(8)
        return self._exactly(struct.unpack(">II", head)[1])

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            if not (more := self._end.recv(size - len(data))):
                raise SystemExit("criproxy has closed the connection: see its log")
            data += more
        return data


def pod_of(kind: str, root: str) -> tuple[Any, Any]:
    """A new pod and its container, with the annotations and mounts that pods usually have."""
    uid = str(uuid.uuid4())
    parent = kubelet_cgroup.make(f"{root}/kubepods/besteffort/pod{uid}")
    annotations = [nri.TextEntry(key=b"annotation/%d" % one, value=b"v" * 60) for one in range(8)]
    pod = nri.NriPodSandbox(
        id=uuid.uuid4().hex.encode() * 2,
        name=b"job",
        uid=uid.encode(),
        namespace=b"batch",
        labels=[nri.TextEntry(key=CLASS.encode(), value=kind.encode())],
        annotations=annotations,
        linux={"cgroup_parent": parent.encode()},
    )
    container_id = uuid.uuid4().hex * 2
    kubelets = f"/var/lib/kubelet/pods/{uid}/volumes"
    container = nri.NriContainer(
        id=container_id.encode(),
        pod_sandbox_id=pod.id,
        name=b"main",
        mounts=[{"type": b"bind", "source": f"{kubelets}/{one}".encode()} for one in range(4)],
        linux={"cgroups_path": f"{parent}/{container_id}".encode()},
    )
    return pod, container


def measure(directory: Path, calls: int) -> dict[tuple[str, str], list[float]]:
    runtime, root = Containerd(directory, programs=build.find("containerd").parent), f"{cgroup_root(directory)}/nri"
    runtime.start()
    kubelet_cgroup.make(root)
    path = socket_path(directory, "played.sock")
    config = merged(static(1.0), {"proxy": {"front": "nri", "nri": str(path)}})
    took: dict[tuple[str, str], list[float]] = {(kind, method): [] for kind in KINDS for method in METHODS}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        criproxy = Criproxy(directory, runtime.socket, config)
        criproxy.start(until_ready=False)
        with listener.accept()[0] as end:
            end.settimeout(30)
            played = PlayedNri(end)
            played.register()
            time.sleep(5.0)  # what a daemon does after its start is over
            for number in range(calls):
                kind = KINDS[number % 2]
                pod, container = pod_of(kind, root)
                for method in METHODS:
                    its = None if method == "RunPodSandbox" else container
                    took_s, refusal = played.call(method, nri.PodEvent(pod=pod, container=its))
                    if refusal:
                        raise SystemExit(refusal)
                    took[kind, method].append(took_s)
                for method in ("RemoveContainer", "StopPodSandbox", "RemovePodSandbox"):
                    played.call(method, nri.PodEvent(pod=pod, container=container))
                time.sleep(0.02)
        criproxy.stop()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000, help="pods, half of them offline (default: %(default)s)")
    with claimed() as directory:
        try:
            took = measure(directory, parser.parse_args().calls)
        finally:
            clean(directory)
    print(f"{'pod':8}{'call':17}{'p50 ms':>9}{'p99 ms':>9}{'most ms':>9}")
    for (kind, method), each in took.items():
        each.sort()
        shown = [1000 * each[min(len(each) - 1, int(len(each) * share))] for share in (0.5, 0.99, 1.0)]
        print(f"{kind:8}{method:17}" + "".join(f"{one:9.2f}" for one in shown))


if __name__ == "__main__":
    main()
