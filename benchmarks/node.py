"""A criproxy as it is on a node, before a runtime that answers at once; and what the kernel counts of a process."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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

_RUNTIME: Final = "/runtime.v1.RuntimeService/"

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
    """In the lab `directory`, with colocation on. Its code is compiled and its environment set, as its package does it.

    `kubeconfig`: with Kubernetes on, by this credential.
    """

    def __init__(self, directory: Path, runtime: Path, engine: str, kubeconfig: Path | None = None) -> None:
        config: dict[str, Mapping[str, object]] = {"proxy": ENGINES[engine], "colocation": {"enabled": True}}
        if kubeconfig is not None:
            config["kubernetes"] = {"enabled": True, "kubeconfig": str(kubeconfig)}
        super().__init__(directory, runtime, config, python=NODE_PYTHON)
        code = self.directory / "code"
        shutil.copytree(
            CHECKOUT / "criproxy", code / "criproxy", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
        subprocess.run((NODE_PYTHON, "-m", "compileall", "-q", code), check=True)
        service = (CHECKOUT / "packaging" / "criproxy.service").read_text()
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


def run_request(prefix: str, name: str, *, offline: bool) -> bytes:
    """A RunPodSandboxRequest as kubelet sends it for a BestEffort pod, with `prefix` before its kubepods."""
    marks = [cri.StringEntry(key=b"colocation.criproxy.io/class", value=b"offline")] if offline else []
    parent = f"{prefix}/kubepods/besteffort/pod{name}".encode()
    metadata = cri.PodSandboxMetadata(name=name.encode(), uid=name.encode(), namespace=b"bench")
    config = cri.PodSandboxConfig(metadata=metadata, labels=marks, linux={"cgroup_parent": parent})
    return cri.RunPodSandboxRequest(config=config).SerializeToString()


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


@contextmanager
def backend(directory: Path) -> Iterator[Path]:
    """The socket of a runtime that answers at once."""
    socket = socket_path(directory, "backend.sock")
    command = [sys.executable, "-m", "benchmarks.backend", str(socket)]
    process = Process("backend", command, directory / "backend.log", {})
    try:
        process.wait_until(socket.exists, 30, "its socket")
        yield socket
    finally:
        process.stop()
