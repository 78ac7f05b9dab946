"""A criproxy as it is on a node, before a runtime that answers at once; and what the kernel counts of a process."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from criproxy.fronts.cri import messages as cri
from integration.lab.clean import clean
from integration.lab.criproxy import CHECKOUT, Criproxy
from integration.lab.directory import claimed, socket_path
from integration.lab.process import Process

_NODE_PYTHON: Final = CHECKOUT / ".venv-node" / "bin" / "python"
NODE_PYTHON: Final = _NODE_PYTHON if _NODE_PYTHON.exists() else Path(sys.executable)
"""With what criproxy needs on a node, and no more; on a throwaway node, its own, with the packages in PYTHONPATH."""

_ENVIRONMENT: Final = re.compile(r"^Environment=(\w+)=(\S+)$", re.MULTILINE)
"""Source: systemd.exec(5), Environment=."""

_VOLUNTARY: Final = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)$", re.MULTILINE)

_UNKNOWN_FIELD: Final = 2
"""A wire type: a length and so many bytes."""

_CONTAINER_BYTES: Final = 3000
"""The environment, mounts and annotations that kubelet gives a container of a small pod."""

_HEADER_BYTES: Final = 16 * 1024 * 1024
"""What gRPC for Go takes, unless it is told otherwise; gRPC for Python takes 16 KiB."""

ENGINES: Mapping[str, Mapping[str, object]] = {
    "grpc": {"engine": "grpc"},
    "relay": {"engine": "relay"},
}
"""What a config's [proxy] says of each."""


@contextmanager
def labs(names: Iterable[str]) -> Iterator[dict[str, Path]]:
    """A lab's directory for each name; they are cleaned at the end. Raises LabError when one can't be had."""
    with ExitStack() as ends:
        directories = {}
        for name in names:
            directories[name] = ends.enter_context(claimed())
            ends.callback(clean, directories[name])
        yield directories


class NodeCriproxy(Criproxy):
    """In the lab `directory`, with colocation on. Its code is compiled and its environment set, as its package does it,
    and its log goes to a socket, as systemd does it.

    `kubeconfig`: with Kubernetes on, by this credential. `checkout`: where the code is taken from.
    """

    def __init__(
        self,
        directory: Path,
        runtime: Path,
        engine: str,
        kubeconfig: Path | None = None,
        checkout: Path = CHECKOUT,
    ) -> None:
        config: dict[str, Mapping[str, object]] = {"proxy": ENGINES[engine], "colocation": {"enabled": True}}
        if kubeconfig is not None:
            config["kubernetes"] = {"enabled": True, "kubeconfig": str(kubeconfig)}
        super().__init__(directory, runtime, config, python=NODE_PYTHON)
        code = self.directory / "code"
        shutil.copytree(
            checkout / "criproxy", code / "criproxy", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
        subprocess.run((NODE_PYTHON, "-m", "compileall", "-q", code), check=True)
        service = (checkout / "packaging" / "criproxy.service").read_text()
        packages = [] if NODE_PYTHON == _NODE_PYTHON else [os.environ.get("PYTHONPATH", "")]
        self.environment: Final = {
            **dict(_ENVIRONMENT.findall(service)),
            "PYTHONPATH": os.pathsep.join([str(code), *packages]),
            "PYTHONSAFEPATH": "1",
        }

    def start(
        self, until_ready: bool = True, *, options: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        super().start(until_ready, options=options, env={**self.environment, **(env or {})})

    def _runs_in(self) -> Sequence[str | Path]:
        return sys.executable, CHECKOUT / "benchmarks" / "journal.py", self.log


def run_request(prefix: str, name: str, *, offline: bool) -> bytes:
    """A RunPodSandboxRequest as kubelet sends it for a BestEffort pod, with `prefix` before its kubepods.

    The runtime of these benchmarks takes its uid, `name`, for the sandbox's id.
    """
    return cri.RunPodSandboxRequest(config=_sandbox_config(prefix, name, offline)).SerializeToString()


def create_request(prefix: str, name: str, *, offline: bool) -> bytes:
    """As `run_request`, a CreateContainerRequest for the container whose id is `container_of(name)`."""
    linux = {"resources": {"cpu_shares": 2, "cpu_period": 100_000, "oom_score_adj": 1000}}
    config = cri.ContainerConfig(metadata=cri.ContainerMetadata(name=b"main"), linux=linux)
    request = cri.CreateContainerRequest(
        pod_sandbox_id=name.encode(), config=config, sandbox_config=_sandbox_config(prefix, name, offline)
    )
    request.config.MergeFromString(padding(_CONTAINER_BYTES))
    return request.SerializeToString()


def container_of(sandbox_id: str) -> str:
    """The id of the one container that the runtime of these benchmarks makes in a sandbox."""
    return f"{sandbox_id}-main"


def _sandbox_config(prefix: str, name: str, offline: bool) -> cri.PodSandboxConfig:
    uid = name.encode()
    labels = {
        b"app": b"bench",
        b"io.kubernetes.pod.name": uid,
        b"io.kubernetes.pod.namespace": b"bench",
        b"io.kubernetes.pod.uid": uid,
        **({b"colocation.criproxy.io/class": b"offline"} if offline else {}),
    }
    annotations = {b"kubernetes.io/config.seen": b"2026-01-01T00:00:00Z", b"kubernetes.io/config.source": b"api"}
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=uid, uid=uid, namespace=b"bench"),
        labels=[cri.StringEntry(key=key, value=value) for key, value in labels.items()],
        annotations=[cri.StringEntry(key=key, value=value) for key, value in annotations.items()],
        linux={"cgroup_parent": f"{prefix}/kubepods/besteffort/pod{name}".encode()},
    )


def padding(size: int) -> bytes:
    """A message of about `size` bytes that decodes as any of CRI's: one unknown field."""
    tag = (999 << 3) | _UNKNOWN_FIELD
    return _varint(tag) + _varint(size) + bytes(size)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes([*out, value])


def cpu_seconds(pid: int) -> float:
    """CPU time of the threads that a process has. Source: kernel, sched-stats, /proc/PID/schedstat."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def wake_ups(pid: int) -> int:
    """How often the threads that a process has have waited for something and gone on.

    Source: proc(5), /proc/PID/task/TID/status, voluntary_ctxt_switches.
    """
    tasks = Path(f"/proc/{pid}/task").glob("*/status")
    return sum(int(_VOLUNTARY.findall(task.read_text())[0]) for task in tasks)


def rss_mib(pid: int) -> float:
    """Resident memory. Source: proc(5), /proc/PID/statm."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def connect(socket: Path) -> grpc.Channel:
    """A channel of its own connection, which takes messages and headers of any size, as kubelet does."""
    options = (
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_metadata_size", _HEADER_BYTES),
        ("grpc.use_local_subchannel_pool", 1),
    )
    return grpc.insecure_channel(f"unix:{socket}", options=options)


@dataclass(frozen=True, slots=True)
class Backend:
    """A runtime that answers at once."""

    socket: Path
    pid: int


@contextmanager
def backend(directory: Path) -> Iterator[Backend]:
    socket = socket_path(directory, "backend.sock")
    command = [sys.executable, "-m", "benchmarks.backend", str(socket)]
    process = Process("backend", command, directory / "backend.log", {})
    try:
        process.wait_until(socket.exists, 30, "its socket")
        yield Backend(socket, process.pid)
    finally:
        process.stop()
