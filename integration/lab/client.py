"""A CRI client in kubelet's place: every method by name, and short cuts for pods and containers.

Source: CRI v1 and v1alpha2 (the same messages under another service name).
"""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from integration.lab import cri_client_pb2 as cri
from integration.lab.images import BUSYBOX
from integration.lab.naming import spelled

Api = Literal["runtime.v1", "runtime.v1alpha2"]

CALL_S = 120
STOP_S = 240
"""containerd 1.6 may hold a stop for two minutes after it has lost clients in mid-exec."""
LATE = ("the node did not make room for it within", "criproxy hands over to a new process")
"""Words of criproxy's refusals of what it had no time for: see `Placing.late` and `not_placed`."""
TRIES, PAUSE_S = 30, 0.5
"""How often such a call is made, and the pause in between."""
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1 << 20),
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),  # else clients of one socket share a connection, and its back-off
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2000),  # how long one attempt may take, too, on a slow node
    ("grpc.max_reconnect_backoff_ms", 200),
)
METHODS: Mapping[str, MethodDescriptor] = {
    method.name: method for service in cri.DESCRIPTOR.services_by_name.values() for method in service.methods
}
"""Every CRI method by its name, which is unique over both services."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod sandbox as it was asked for; `config` is what kubelet sends again with each container."""

    id: str
    config: cri.PodSandboxConfig


@dataclass(frozen=True, slots=True)
class Container:
    id: str
    pod: Pod


class CriClient:
    """A connection to a CRI socket. Calls raise grpc.RpcError."""

    def __init__(self, socket: Path | str, api: Api = "runtime.v1") -> None:
        self.api = api
        self.channel = grpc.insecure_channel(f"unix://{Path(socket).absolute()}", options=OPTIONS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.channel.close()

    # --- calls ---

    def path(self, method: str) -> str:
        """The gRPC path of a CRI method."""
        return f"/{self.api}.{METHODS[method].containing_service.name}/{method}"

    def call(self, method: str, request: Message, timeout_s: float | None = CALL_S) -> Any:
        """Call a unary method and return its answer, of the type that CRI gives it."""
        return self.unary(method)(request, timeout=timeout_s)

    def stream(self, method: str, request: Message, timeout_s: float | None = None) -> Iterator[Any]:
        """Call a streaming method; what is returned can be cancelled (`.cancel()`)."""
        multicallable = self.channel.unary_stream(self.path(method), _serialize, _answer_class(method).FromString)
        return multicallable(request, timeout=timeout_s)  # type: ignore[no-any-return]

    def unary(self, method: str) -> Any:
        """The grpc.UnaryUnaryMultiCallable of a method, for metadata, `with_call` and futures."""
        return self.channel.unary_unary(self.path(method), _serialize, _answer_class(method).FromString)

    # --- the runtime ---

    def is_ready(self) -> bool:
        """Whether Version is answered now, or soon on a busy machine."""
        try:
            self.call("Version", cri.VersionRequest(), timeout_s=10)
        except grpc.RpcError:
            return False
        return True

    def image_names(self) -> set[str]:
        answer = self.call("ListImages", cri.ListImagesRequest())
        return {tag for image in answer.images for tag in image.repo_tags}

    # --- pods ---

    def run_pod(
        self,
        name: str,
        *,
        uid: str,
        namespace: str = "default",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        cgroup_parent: str = "",
        resources: cri.LinuxContainerResources | None = None,
        overhead: cri.LinuxContainerResources | None = None,
        attempt: int = 0,
        log_directory: str = "",
        own_network: bool = False,
        privileged: bool = False,
        host_port: int = 0,
    ) -> Pod:
        """Run a sandbox on the host's network, with its resources as given. `cgroup_parent` as `naming` has it.

        `own_network`: on one that the runtime's CNI configuration gives it.
        """
        network = cri.NamespaceMode.POD if own_network else cri.NamespaceMode.NODE
        config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=name, uid=uid, namespace=namespace, attempt=attempt),
            labels=labels,
            annotations=annotations,
            log_directory=log_directory,
            port_mappings=[cri.PortMapping(container_port=80, host_port=host_port)] if host_port else [],
            linux=cri.LinuxPodSandboxConfig(
                cgroup_parent=spelled(cgroup_parent),
                security_context=cri.LinuxSandboxSecurityContext(
                    namespace_options=cri.NamespaceOption(network=network), privileged=privileged
                ),
                overhead=overhead,
                resources=resources,
            ),
        )
        return Pod(self.call("RunPodSandbox", cri.RunPodSandboxRequest(config=config)).pod_sandbox_id, config)

    def create_container(
        self,
        pod: Pod,
        name: str,
        command: Sequence[str] = ("sleep", "2147483647"),
        *,
        env: Mapping[str, str] | None = None,
        resources: cri.LinuxContainerResources | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        image: str = BUSYBOX,
        attempt: int = 0,
        log_path: str = "",
        mounts: Mapping[Path, Path] | None = None,
        capabilities: Sequence[str] = (),
        privileged: bool = False,
    ) -> Container:
        """Create a container in the pod; `start` runs it. `mounts`: what of the host is seen where in it."""
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name, attempt=attempt),
            image=cri.ImageSpec(image=image),
            command=command,
            envs=[cri.KeyValue(key=key, value=value.encode()) for key, value in (env or {}).items()],
            labels=labels,
            annotations=annotations,
            log_path=log_path,
            mounts=[cri.Mount(container_path=str(at), host_path=str(of)) for at, of in (mounts or {}).items()],
            linux=cri.LinuxContainerConfig(
                resources=resources,
                security_context=cri.LinuxContainerSecurityContext(
                    namespace_options=cri.NamespaceOption(network=cri.NamespaceMode.NODE),
                    capabilities=cri.Capability(add_capabilities=capabilities),
                    privileged=privileged,
                ),
            ),
        )
        request = cri.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
        return Container(self.call("CreateContainer", request).container_id, pod)

    def start(self, container: Container) -> None:
        self.call("StartContainer", cri.StartContainerRequest(container_id=container.id))

    def run_container(self, pod: Pod, name: str, command: Sequence[str], **options: Any) -> Container:
        """`create_container` and `start`."""
        container = self.create_container(pod, name, command, **options)
        self.start(container)
        return container

    def exec_sync(self, container: Container, command: Sequence[str], timeout_s: int = 30) -> cri.ExecSyncResponse:
        """Run a command in the container; its status and output are the answer's."""
        request = cri.ExecSyncRequest(container_id=container.id, cmd=command, timeout=timeout_s)
        answer: cri.ExecSyncResponse = self.call("ExecSync", request)
        return answer

    def stop_container(self, container: Container, grace_s: int = 0) -> None:
        self.call("StopContainer", cri.StopContainerRequest(container_id=container.id, timeout=grace_s), STOP_S)

    def stop_and_remove(self, pod: Pod | str) -> None:
        """Kill and remove a sandbox (or the one of this id) with all its containers; none of them need exist."""
        sandbox_id = pod if isinstance(pod, str) else pod.id
        self.call("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=sandbox_id), STOP_S)
        self.call("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id), STOP_S)

    def list_pods(self) -> list[cri.PodSandbox]:
        """Every sandbox that the runtime knows."""
        return list(self.call("ListPodSandbox", cri.ListPodSandboxRequest()).items)

    def remove_all_pods(self) -> None:
        """`stop_and_remove` every sandbox that the runtime knows. Somebody else may be stopping one just now."""
        for sandbox in self.list_pods():
            with contextlib.suppress(grpc.RpcError):
                self.stop_and_remove(sandbox.id)
        for sandbox in self.list_pods():
            self.stop_and_remove(sandbox.id)

    # --- where they are ---

    def pid(self, what: Container | Pod) -> int:
        """The pid of a container's first process, or of a pod's pause process; 0 when it has ended."""
        return self.pid_of(what.id) if isinstance(what, Container) else self.pause_pid_of(what.id)

    def pid_of(self, container_id: str) -> int:
        """`pid`, by a container's id."""
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=True)
        return _pid(self.call("ContainerStatus", request).info)

    def cgroup_of_spec(self, container: Container) -> str:
        """`linux.cgroupsPath` of its OCI spec, also before it is started."""
        return str(self.spec_of(container.id)["linux"]["cgroupsPath"])

    def spec_of(self, container_id: str) -> Any:
        """A container's OCI spec. Source: as of `_pid`."""
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=True)
        return json.loads(self.call("ContainerStatus", request).info["info"])["runtimeSpec"]

    def exit_code(self, container: Container) -> int:
        """Of a container that has ended; 128 and the signal's number when one has ended it."""
        request = cri.ContainerStatusRequest(container_id=container.id)
        return int(self.call("ContainerStatus", request).status.exit_code)

    def pause_pid_of(self, sandbox_id: str) -> int:
        """`pid`, by a sandbox's id."""
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        return _pid(self.call("PodSandboxStatus", request).info)


def _pid(info: Mapping[str, str]) -> int:
    """Source: containerd, the verbose status of its CRI plugin."""
    return int(json.loads(info["info"])["pid"])


class PatientClient(CriClient):
    """Asks again where criproxy was too slow for an offline pod (the refusal's cause is "late"), as kubelet does.

    No other refusal is asked about again, and none more than `TRIES` times: the last one is raised.
    """

    def call(self, method: str, request: Message, timeout_s: float | None = CALL_S) -> Any:
        for _ in range(TRIES - 1):
            try:
                return super().call(method, request, timeout_s)
            except grpc.RpcError as error:
                if not any(words in str(error) for words in LATE):
                    raise
                time.sleep(PAUSE_S)
        return super().call(method, request, timeout_s)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _answer_class(method: str) -> type[Message]:
    return message_factory.GetMessageClass(METHODS[method].output_type)
