"""One list of calls, run directly at containerd and through criproxy: the answers must be the same.

Every CRI method is in the list, with good and bad arguments; what containerd lacks must be lacking through the proxy in
the same words. Compared are the message, status code, details, and the metadata before and after the answer.
"""

import difflib
import json
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from integration.lab import cri_client_pb2 as cri
from integration.lab.apis import APIS
from integration.lab.cgroups import Tree, version
from integration.lab.client import METHODS, OPTIONS, STOP_S, Api
from integration.lab.containerd import Containerd
from integration.lab.criproxy import ENGINES, QUICK, Config, Criproxy
from integration.lab.directory import cgroup_root
from integration.lab.images import BUSYBOX, PAUSE
from integration.lab.naming import placement, spelled

pytestmark = pytest.mark.timeout(1800)

ABSENT = "127.0.0.1:1/absent:1"
UNKNOWN = "f" * 64
MIB = 1 << 20
QUIET_S = 15
"""A runtime without a method says so before that, on an emulated node too."""

Ids = dict[str, str]
"""The ids that the runtime gave, by the step that got them."""


# --- what a call came to --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """A call's outcome, comparable between runs: ids, times, pids, tokens and usage have given way to names."""

    code: str
    details: str = ""
    initial: tuple[tuple[str, str], ...] = ()
    trailing: tuple[tuple[str, str], ...] = ()
    message: str = ""

    def lines(self) -> list[str]:
        head = [f"code {self.code}", f"details {self.details!r}"]
        metadata = [f"initial {pair}" for pair in self.initial] + [f"trailing {pair}" for pair in self.trailing]
        return [*head, *metadata, *self.message.splitlines()]


Record = Mapping[str, Answer]
"""The answers of a run, by step."""


def differences(direct: Record, proxied: Record) -> dict[str, str]:
    """What differs, by step, as a text to read; empty when nothing does."""
    missing = Answer("no answer: the step was not run")
    found = {}
    for step in [*direct, *(step for step in proxied if step not in direct)]:
        old, new = direct.get(step, missing), proxied.get(step, missing)
        if old != new:
            lines = difflib.unified_diff(old.lines(), new.lines(), "directly", "proxied", lineterm="", n=1)
            found[step] = "\n".join([f"=== {step}", *lines])
    return found


_OF_THE_MOMENT = re.compile(r"(At|timestamp|pid|(?<!In)Bytes|Faults|NanoSeconds|inodesUsed|Count|Errors)$")
"""Fields whose value is the moment's, not the call's."""

_FROM_A_LATER_READING_ON = ("usageNanoCores", "timestamp")
"""The runtime reads in the background too, so whether these are there (the time is not 0) is the moment's."""

_PATTERNS = (
    (re.compile(r"/proc/\d+/"), "/proc/<pid>/"),
    (re.compile(r"(http://127\.0\.0\.1):\d+/(exec|attach|portforward)/[\w-]+"), r"\1:<port>/\2/<token>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.]*(Z|[+-]\d\d:\d\d)"), "<time>"),
    (re.compile(r'start exec "[0-9a-f]{64}"'), "start exec <id>"),
)


def normalised_text(text: str, ids: Ids) -> str:
    for name, found in ids.items():
        text = text.replace(found, f"<{name}>")
    for pattern, name in _PATTERNS:
        text = pattern.sub(name, text)
    return text


def normalised(message: Message, ids: Ids) -> str:
    """A message as JSON. Lists of messages are sorted: containerd's are in no order."""
    return json.dumps(_normalised(json_format.MessageToDict(message), ids, ordered=False), indent=1, sort_keys=True)


def _normalised(value: Any, ids: Ids, *, ordered: bool) -> Any:
    match value:
        case dict():
            return {
                normalised_text(name, ids): f"<{name}>"
                if _OF_THE_MOMENT.search(name)
                else _normalised(item, ids, ordered=ordered)
                for name, item in value.items()
                if name not in _FROM_A_LATER_READING_ON
            }
        case list():
            items = [_normalised(item, ids, ordered=ordered) for item in value]
            return items if ordered or not all(isinstance(item, dict) for item in items) else sorted(items, key=str)
        case str():
            inner = _json(value)
            return normalised_text(value, ids) if inner is None else _normalised(inner, ids, ordered=True)
        case _:
            return value


def _json(text: str) -> Any:
    """What containerd's verbose info says: JSON in a string. None: it is no such string."""
    try:
        inner = json.loads(text)
    except ValueError:
        return None
    return inner if isinstance(inner, dict) else None


def run_step(channel: grpc.Channel, api: Api, step: "Step", ids: Ids) -> Answer:
    """Make the call of one step; the id that it brings goes into `ids`."""
    service = METHODS[step.method].containing_service.name if step.method in METHODS else "RuntimeService"
    path, request = f"/{api}.{service}/{step.method}", step.request(ids).SerializeToString()
    streams = step.method in METHODS and METHODS[step.method].server_streaming
    try:
        if streams:
            call = channel.unary_stream(path)(request, timeout=step.timeout_s, metadata=METADATA)
            answers = list(call)
        else:
            answer, call = channel.unary_unary(path).with_call(request, timeout=step.timeout_s, metadata=METADATA)
            answers = [answer]
    except grpc.RpcError as error:
        return _outcome(error, step, ids, [])
    return _outcome(call, step, ids, answers)


METADATA = (("x-trace", "1"), ("x-trace-bin", b"\x00\xff"))


def _outcome(call: Any, step: "Step", ids: Ids, answers: list[bytes]) -> Answer:
    code = call.code().name
    if step.late and (code == "DEADLINE_EXCEEDED" or "deadline exceeded" in (call.details() or "")):
        return Answer("late")  # who notices first, client or runtime, and in which words, is a race of theirs
    messages = [_parse(step.method, answer) for answer in answers]
    if step.keep:
        assert messages, f"{step.name}, on which all later ones rely: {code}: {call.details()}"
        (ids[step.keep],) = (value for _, value in messages[0].ListFields())
    return Answer(
        code,
        normalised_text(call.details() or "", ids),
        _pairs(call.initial_metadata(), ids),
        _pairs(call.trailing_metadata(), ids),
        "\n".join(normalised(message, ids) for message in messages),
    )


def _parse(method: str, answer: bytes) -> Message:
    message: Message = getattr(cri, METHODS[method].output_type.name).FromString(answer)
    return message


def _pairs(metadata: Any, ids: Ids) -> tuple[tuple[str, str], ...]:
    return tuple((key, normalised_text(repr(value), ids)) for key, value in metadata or ())


# --- the one list of calls ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One call. `code`: what containerd says to it (see `fits`); None: that is not the point.

    `keep`: the answer is an id, to be known by this name. `late`: its deadline passes.
    """

    name: str
    method: str
    request: Callable[[Ids], Message]
    code: str | None = "OK"
    keep: str = ""
    timeout_s: float = STOP_S
    late: bool = False


def just(message: Message) -> Callable[[Ids], Message]:
    return lambda _: message


def of_id(kind: Any, field: str, name: str, **more: Any) -> Callable[[Ids], Message]:
    """A request with the id in this field that is known by this name."""
    return lambda ids: kind(**{field: ids[name]}, **more)


def filtered(kind: Any, wanted: Callable[[Ids], Message]) -> Callable[[Ids], Message]:
    return lambda ids: kind(filter=wanted(ids))


@dataclass(frozen=True, slots=True)
class Place:
    """Where the pods of a run live: the same for all runs that are compared. `mute`: a registry that never answers."""

    cgroup: str
    logs: str
    mute: str


def steps(place: Place) -> list[Step]:
    """All calls, in order. A later one relies on what an earlier one made."""
    return [
        *_nothing_there(),
        *_pods(place),
        *_containers(place),
        *_running(),
        *_resources(),
        *_stats(),
        *_ends(),
        *_images(place),
    ]


def _nothing_there() -> Iterator[Step]:
    """Every method with an empty request and with an id that nobody has."""
    for method, descriptor in METHODS.items():
        kind = getattr(cri, descriptor.input_type.name)
        if method == "GetContainerEvents":  # where there is such a stream, it has no end
            yield Step(f"{method} of nothing", method, just(kind()), code=None, timeout_s=QUIET_S, late=True)
        elif method != "RemoveImage":  # containerd takes "" for any image
            yield Step(f"{method} of nothing", method, just(kind()), code=None)
        for name in ("container_id", "pod_sandbox_id"):
            if name in kind.DESCRIPTOR.fields_by_name:
                yield Step(f"{method} of an unknown {name}", method, just(kind(**{name: UNKNOWN})), code=None)
    yield Step("a method that nobody knows", "MethodOfTomorrow", lambda _: cri.VersionRequest(), "UNIMPLEMENTED")
    yield Step("Status, verbose", "Status", lambda _: cri.StatusRequest(verbose=True))
    network = cri.RuntimeConfig(network_config=cri.NetworkConfig(pod_cidr="10.88.0.0/16"))
    yield Step(
        "UpdateRuntimeConfig with a CIDR",
        "UpdateRuntimeConfig",
        lambda _: cri.UpdateRuntimeConfigRequest(runtime_config=network),
    )
    yield Step("Version of a client", "Version", lambda _: cri.VersionRequest(version="0.1.0"))


def pod_config(place: Place, name: str) -> cri.PodSandboxConfig:
    resources = cri.LinuxContainerResources(cpu_period=100_000, cpu_quota=100_000, cpu_shares=512)
    classes = {"web": "burstable/podweb", "db": "poddb"}
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=name, uid=name, namespace="shop", attempt=1),
        labels={"app": name, "colocation.criproxy.io/class": "online"},
        annotations={"kubernetes.io/config.source": "api", "note": "ünï\ncode"},
        log_directory=f"{place.logs}/{name}",
        dns_config=cri.DNSConfig(servers=["10.0.0.10"], searches=["svc"], options=["ndots:5"]),
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=spelled(f"{place.cgroup}/kubepods/{classes[name]}"),
            security_context=cri.LinuxSandboxSecurityContext(namespace_options=HOST_NETWORK),
            overhead=cri.LinuxContainerResources(),
            resources=resources,
        ),
    )


HOST_NETWORK = cri.NamespaceOption(network=cri.NamespaceMode.NODE)


def _pods(place: Place) -> Iterator[Step]:
    def run(name: str, handler: str = "") -> Callable[[Ids], Message]:
        return lambda _: cri.RunPodSandboxRequest(config=pod_config(place, name), runtime_handler=handler)

    def nameless(_: Ids) -> Message:
        config = pod_config(place, "web")
        config.ClearField("metadata")
        return cri.RunPodSandboxRequest(config=config)

    yield Step("RunPodSandbox of web", "RunPodSandbox", run("web"), keep="pod web")
    yield Step("RunPodSandbox of db", "RunPodSandbox", run("db"), keep="pod db")
    yield Step("RunPodSandbox of web again", "RunPodSandbox", run("web"), "UNKNOWN")
    yield Step("RunPodSandbox with an unknown handler", "RunPodSandbox", run("web", "nonesuch"), "UNKNOWN")
    yield Step("RunPodSandbox without metadata", "RunPodSandbox", nameless, "UNKNOWN")
    for verbose in (False, True):
        yield Step(
            f"PodSandboxStatus of web, verbose {verbose}",
            "PodSandboxStatus",
            of_id(cri.PodSandboxStatusRequest, "pod_sandbox_id", "pod web", verbose=verbose),
        )
    filters: dict[str, Callable[[Ids], cri.PodSandboxFilter]] = {
        "all": lambda _: cri.PodSandboxFilter(),
        "by id": lambda ids: cri.PodSandboxFilter(id=ids["pod db"]),
        "by the beginning of an id": lambda ids: cri.PodSandboxFilter(id=ids["pod db"][:20]),
        "by label": lambda _: cri.PodSandboxFilter(label_selector={"app": "web"}),
        "that are not ready": lambda _: cri.PodSandboxFilter(
            state=cri.PodSandboxStateValue(state=cri.PodSandboxState.SANDBOX_NOTREADY)
        ),
    }
    for name, wanted in filters.items():
        yield Step(
            f"ListPodSandbox, {name}",
            "ListPodSandbox",
            filtered(cri.ListPodSandboxRequest, wanted),
        )
    yield Step(
        "PortForward to web",
        "PortForward",
        lambda ids: cri.PortForwardRequest(pod_sandbox_id=ids["pod web"], port=[80]),
    )


def _container(place: Place, name: str, image: str = BUSYBOX, log: str = "main.log") -> Callable[[Ids], Message]:
    def build(ids: Ids) -> Message:
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name, attempt=2),
            image=cri.ImageSpec(image=image),
            command=["sh", "-c"],
            args=["trap '' TERM; echo to stdout; echo to stderr >&2; exec sleep 2147483647"],
            working_dir="/tmp",
            envs=[cri.KeyValue(key=key, value=value.encode()) for key, value in ENVS],
            mounts=[cri.Mount(container_path="/host-tmp", host_path=place.logs, readonly=True)],
            labels={"container": name},
            annotations={"hash": "1f"},
            log_path=log,
            linux=cri.LinuxContainerConfig(
                resources=cri.LinuxContainerResources(
                    cpu_period=100_000,
                    cpu_quota=50_000,
                    cpu_shares=256,
                    memory_limit_in_bytes=64 * MIB,
                    oom_score_adj=900,
                ),
                security_context=cri.LinuxContainerSecurityContext(
                    namespace_options=HOST_NETWORK,
                    capabilities=cri.Capability(drop_capabilities=["NET_RAW"]),
                    run_as_user=cri.Int64Value(value=1000),
                    no_new_privs=True,
                ),
            ),
        )
        return cri.CreateContainerRequest(
            pod_sandbox_id=ids["pod web"], config=config, sandbox_config=pod_config(place, "web")
        )

    return build


ENVS = (("ZULU", "1"), ("ALPHA", "two words"), ("ZULU_SECRET", "s3cret"), ("EMPTY", ""), ("MIKE", "ünï=code"))


def _containers(place: Place) -> Iterator[Step]:
    def of(kind: Any, **more: Any) -> Callable[[Ids], Message]:
        return lambda ids: kind(container_id=ids["container main"], **more)

    def configless(ids: Ids) -> Message:
        return cri.CreateContainerRequest(pod_sandbox_id=ids["pod web"], sandbox_config=pod_config(place, "web"))

    create = "CreateContainer"
    yield Step("CreateContainer main", create, _container(place, "main"), keep="container main")
    yield Step("CreateContainer main again", create, _container(place, "main"), "UNKNOWN")
    yield Step("CreateContainer of an absent image", create, _container(place, "other", image=ABSENT), "NOT_FOUND")
    yield Step("CreateContainer without a config", create, configless, "UNKNOWN")
    yield Step("CreateContainer side", create, _container(place, "side", log="side.log"), keep="container side")
    yield Step("ContainerStatus of what was only created", "ContainerStatus", of(cri.ContainerStatusRequest))
    yield Step("ExecSync in what was only created", "ExecSync", of(cri.ExecSyncRequest, cmd=["true"]), "UNKNOWN")
    reopen = of(cri.ReopenContainerLogRequest)
    yield Step("ReopenContainerLog of what was only created", "ReopenContainerLog", reopen, "UNKNOWN")
    yield Step("StartContainer main", "StartContainer", of(cri.StartContainerRequest))
    yield Step("StartContainer main again", "StartContainer", of(cri.StartContainerRequest), "UNKNOWN")
    for verbose in (False, True):
        request = of(cri.ContainerStatusRequest, verbose=verbose)
        yield Step(f"ContainerStatus of main, verbose {verbose}", "ContainerStatus", request)
    filters: dict[str, Callable[[Ids], cri.ContainerFilter]] = {
        "all": lambda _: cri.ContainerFilter(),
        "by pod": lambda ids: cri.ContainerFilter(pod_sandbox_id=ids["pod web"]),
        "by label": lambda _: cri.ContainerFilter(label_selector={"container": "side"}),
        "that run": lambda _: cri.ContainerFilter(
            state=cri.ContainerStateValue(state=cri.ContainerState.CONTAINER_RUNNING)
        ),
    }
    for name, wanted in filters.items():
        yield Step(
            f"ListContainers, {name}",
            "ListContainers",
            filtered(cri.ListContainersRequest, wanted),
        )


def _running() -> Iterator[Step]:
    """Calls into a running container."""

    def exec_sync(cmd: list[str], timeout: int = 0) -> Callable[[Ids], Message]:
        return lambda ids: cri.ExecSyncRequest(container_id=ids["container main"], cmd=cmd, timeout=timeout)

    yield Step("ExecSync, environment", "ExecSync", exec_sync(["cat", "/proc/self/environ"]))
    yield Step("ExecSync, both outputs and a status", "ExecSync", exec_sync(["sh", "-c", "echo o; echo e >&2; exit 7"]))
    yield Step("ExecSync, 2 MiB", "ExecSync", exec_sync(["dd", "if=/dev/zero", f"bs={MIB}", "count=2", "status=none"]))
    yield Step("ExecSync of an absent program", "ExecSync", exec_sync(["nonesuch"]), "UNKNOWN")
    yield Step("ExecSync of no command", "ExecSync", exec_sync([]), "UNKNOWN")
    yield Step("ExecSync past its time-out", "ExecSync", exec_sync(["sleep", "600"], timeout=1), "DEADLINE_EXCEEDED")
    yield Step("ExecSync past the deadline", "ExecSync", exec_sync(["sleep", "600"]), "late", timeout_s=1, late=True)
    main = "container main"
    yield Step(
        "Exec, a terminal",
        "Exec",
        lambda ids: cri.ExecRequest(container_id=ids[main], cmd=["sh"], tty=True, stdin=True, stdout=True),
    )
    yield Step(
        "Exec, a terminal with stderr",
        "Exec",
        lambda ids: cri.ExecRequest(container_id=ids[main], cmd=["sh"], tty=True, stdout=True, stderr=True),
        "INVALID_ARGUMENT",
    )
    yield Step("Attach", "Attach", lambda ids: cri.AttachRequest(container_id=ids[main], stdout=True))
    nowhere = lambda ids: cri.AttachRequest(container_id=ids[main])  # noqa: E731
    yield Step("Attach to nothing", "Attach", nowhere, "INVALID_ARGUMENT")
    reopen = lambda ids: cri.ReopenContainerLogRequest(container_id=ids[main])  # noqa: E731
    yield Step("ReopenContainerLog", "ReopenContainerLog", reopen)


def _resources() -> Iterator[Step]:
    resize = cri.LinuxContainerResources(
        cpu_period=100_000, cpu_quota=75_000, cpu_shares=512, memory_limit_in_bytes=96 * MIB
    )
    updates: dict[str, tuple[cri.LinuxContainerResources, str | None]] = {
        "as in a resize": (resize, "OK"),
        "as of the CPU manager": (cri.LinuxContainerResources(cpuset_cpus="0"), "OK"),
        "with a CPU that does not exist": (cri.LinuxContainerResources(cpuset_cpus="4095"), "UNKNOWN"),
        "with words for CPUs": (cri.LinuxContainerResources(cpuset_cpus="all of them"), "UNKNOWN"),
        "with a quota too small": (cri.LinuxContainerResources(cpu_period=100_000, cpu_quota=1), None),
        "of nothing": (cri.LinuxContainerResources(), "OK"),
    }
    for name, (linux, code) in updates.items():
        yield Step(
            f"UpdateContainerResources {name}, running",
            "UpdateContainerResources",
            of_id(cri.UpdateContainerResourcesRequest, "container_id", "container main", linux=linux),
            code=code,
        )
    yield Step(
        "ContainerStatus after the updates",
        "ContainerStatus",
        lambda ids: cri.ContainerStatusRequest(container_id=ids["container main"], verbose=True),
    )
    yield Step(
        "ExecSync, the kernel's limits",
        "ExecSync",
        lambda ids: cri.ExecSyncRequest(
            container_id=ids["container main"],
            cmd=["sh", "-c", "cd /sys/fs/cgroup; cat */*limit_in_bytes */cpu.shares *.max cpu.weight"],
        ),
    )
    yield Step(
        "UpdatePodSandboxResources of web",
        "UpdatePodSandboxResources",
        lambda ids: cri.UpdatePodSandboxResourcesRequest(
            pod_sandbox_id=ids["pod web"], resources=cri.LinuxContainerResources(memory_limit_in_bytes=128 * MIB)
        ),
        "UNIMPLEMENTED",
    )


def _stats() -> Iterator[Step]:
    yield Step(
        "ContainerStats of main",
        "ContainerStats",
        lambda ids: cri.ContainerStatsRequest(container_id=ids["container main"]),
    )
    yield Step(
        "ContainerStats of what was only created",
        "ContainerStats",
        lambda ids: cri.ContainerStatsRequest(container_id=ids["container side"]),
        "UNKNOWN",
    )
    yield Step(
        "ListContainerStats by pod",
        "ListContainerStats",
        lambda ids: cri.ListContainerStatsRequest(filter=cri.ContainerStatsFilter(pod_sandbox_id=ids["pod web"])),
    )
    yield Step(
        "PodSandboxStats of web",
        "PodSandboxStats",
        lambda ids: cri.PodSandboxStatsRequest(pod_sandbox_id=ids["pod web"]),
    )
    yield Step(
        "ListPodSandboxStats by label",
        "ListPodSandboxStats",
        lambda _: cri.ListPodSandboxStatsRequest(filter=cri.PodSandboxStatsFilter(label_selector={"app": "db"})),
    )


def _ends() -> Iterator[Step]:
    main, side = "container main", "container side"
    yield Step(
        "StopContainer past the deadline",
        "StopContainer",
        lambda ids: cri.StopContainerRequest(container_id=ids[main], timeout=600),
        "late",
        timeout_s=1,
        late=True,
    )
    yield Step("StopContainer", "StopContainer", lambda ids: cri.StopContainerRequest(container_id=ids[main]))
    yield Step("StopContainer again", "StopContainer", lambda ids: cri.StopContainerRequest(container_id=ids[main]))
    yield Step(
        "ContainerStatus of what has ended",
        "ContainerStatus",
        lambda ids: cri.ContainerStatusRequest(container_id=ids[main]),
    )
    yield Step(
        "UpdateContainerResources of what has ended",
        "UpdateContainerResources",
        lambda ids: cri.UpdateContainerResourcesRequest(
            container_id=ids[main], linux=cri.LinuxContainerResources(cpu_shares=2)
        ),
    )
    yield Step("RemoveContainer", "RemoveContainer", lambda ids: cri.RemoveContainerRequest(container_id=ids[main]))
    yield Step(
        "RemoveContainer by the beginning of its id",
        "RemoveContainer",
        lambda ids: cri.RemoveContainerRequest(container_id=ids[side][:16]),
    )
    for name in ("pod web", "pod db"):
        stop = of_id(cri.StopPodSandboxRequest, "pod_sandbox_id", name)
        remove = of_id(cri.RemovePodSandboxRequest, "pod_sandbox_id", name)
        status = of_id(cri.PodSandboxStatusRequest, "pod_sandbox_id", name)
        yield Step(f"StopPodSandbox of {name}", "StopPodSandbox", stop)
        yield Step(f"StopPodSandbox of {name} again", "StopPodSandbox", stop)
        yield Step(f"PodSandboxStatus of {name}, stopped", "PodSandboxStatus", status)
        yield Step(f"RemovePodSandbox of {name}", "RemovePodSandbox", remove)
        yield Step(f"RemovePodSandbox of {name} again", "RemovePodSandbox", remove)
        yield Step(f"PodSandboxStatus of {name}, removed", "PodSandboxStatus", status, "NOT_FOUND")
    yield Step("ListPodSandbox in the end", "ListPodSandbox", lambda _: cri.ListPodSandboxRequest())
    yield Step("ListContainers in the end", "ListContainers", lambda _: cri.ListContainersRequest())


def _images(place: Place) -> Iterator[Step]:
    """At the end: nothing starts any more once the images are removed."""

    def named(name: str) -> cri.ImageSpec:
        return cri.ImageSpec(image=name)

    for name in (BUSYBOX, PAUSE, ABSENT, "not a name"):
        for verbose in (False, True):
            yield Step(
                f"ImageStatus of {name}, verbose {verbose}",
                "ImageStatus",
                just(cri.ImageStatusRequest(image=named(name), verbose=verbose)),
            )
    yield Step(
        "ListImages by name",
        "ListImages",
        lambda _: cri.ListImagesRequest(filter=cri.ImageFilter(image=named(PAUSE))),
    )
    yield Step(
        "PullImage of an absent registry", "PullImage", lambda _: cri.PullImageRequest(image=named(ABSENT)), "UNKNOWN"
    )
    yield Step(
        "PullImage with bad credentials",
        "PullImage",
        lambda _: cri.PullImageRequest(image=named(ABSENT), auth=cri.AuthConfig(auth="not base64")),
        "UNKNOWN",
    )
    mute = cri.PullImageRequest(image=named(f"{place.mute}/mute:1"))
    yield Step("PullImage past the deadline", "PullImage", lambda _: mute, "late", timeout_s=1, late=True)
    yield Step("RemoveImage of what is absent", "RemoveImage", lambda _: cri.RemoveImageRequest(image=named(ABSENT)))
    yield Step("RemoveImage", "RemoveImage", lambda _: cri.RemoveImageRequest(image=named(BUSYBOX)))
    yield Step("RemoveImage of nothing", "RemoveImage", lambda _: cri.RemoveImageRequest())
    yield Step("ListImages in the end", "ListImages", lambda _: cri.ListImagesRequest())


# --- runs -----------------------------------------------------------------------------------------------------------


def run(endpoint: Path, api: Api, place: Place) -> Record:
    """Make every call once at this socket; what the containers logged counts as an answer too."""
    Tree(f"{place.cgroup}/kubepods/burstable").make()
    Path(place.logs).mkdir()
    ids: Ids = {}
    with grpc.insecure_channel(f"unix://{endpoint}", options=OPTIONS) as channel:
        grpc.channel_ready_future(channel).result(timeout=60)
        record = {step.name: run_step(channel, api, step, ids) for step in steps(place)}
    logs = sorted(Path(place.logs).rglob("*.log"))
    lines = [
        f"{log.relative_to(place.logs)}: {line}"
        for log in logs
        for line in sorted(normalised_text(log.read_text(), ids).splitlines())
    ]
    shutil.rmtree(place.logs)
    return {**record, "the logs": Answer("OK", message="\n".join(lines))}


@dataclass
class Site:
    """A containerd that is as new for each run, and a criproxy before it."""

    runtime: Containerd
    place: Place

    def direct(self, api: Api) -> Record:
        record = run(self.runtime.socket, api, self.place)
        self.runtime.restart()  # brings the images back
        return record

    def proxied(self, api: Api, engine: str, rules: list[dict[str, object]] | None = None) -> Record:
        switch = {"enabled": True} | ({"rules": rules} if rules else {})
        config: Config = {
            "proxy": {"engine": engine},
            "colocation": switch,
            "control": QUICK,
            "hardening": {"allow": [{"label": "app", "present": True}]},  # some are privileged
        }
        proxy = Criproxy(self.runtime.directory, self.runtime.socket, config)
        proxy.start()
        record = run(proxy.socket, api, self.place)
        proxy.stop()
        self.runtime.restart()
        return record


@pytest.fixture
def site(lab: Path) -> Iterator[Site]:
    runtime = Containerd(lab)
    runtime.start()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        yield Site(runtime, Place(cgroup_root(lab), str(lab / "pods"), f"127.0.0.1:{mute.getsockname()[1]}"))


@pytest.mark.parametrize("api", APIS)
def test_proxied_calls_are_answered_as_direct_ones(site: Site, api: Api) -> None:
    direct = site.direct(api)
    for engine in ENGINES:
        found = differences(direct, site.proxied(api, engine))
        assert not found, f"{engine}: {len(found)} of {len(direct)} steps differ:\n" + "\n".join(found.values())
    astray = as_meant(direct, steps(site.place))
    assert not astray, "\n".join(astray)


def fits(wanted: str | None, code: str) -> bool:
    """containerd 1 says UNKNOWN to most that goes wrong; containerd 2 says what it is."""
    if wanted == "UNKNOWN":
        return code not in ("OK", "UNAVAILABLE", "UNIMPLEMENTED")
    return wanted in (None, code)


def as_meant(record: Record, made: list[Step]) -> list[str]:
    """What of the list did not do what it is there for: calls that all fail alike would show nothing."""
    astray = [
        f"{step.name}: {record[step.name].code}, not {step.code}: {record[step.name].details}"
        for step in made
        if not fits(step.code, record[step.name].code)
    ]
    called = METHODS.keys() - {"PullImage", "CheckpointContainer"}  # there is nothing to pull from, and no CRIU
    codes = {method: {record[step.name].code for step in made if step.method == method} for method in called}
    endless = {"GetContainerEvents"}  # where there is such a stream at all
    unused = [
        method
        for method, found in codes.items()
        if "OK" not in found and found != {"UNIMPLEMENTED"} and method not in endless
    ]
    return astray + [f"{method} never succeeds" for method in unused]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", ["GetContainerEvents", "MethodOfTomorrow"])
def test_stream_that_the_runtime_lacks_is_unimplemented_each_time(site: Site, method: str, engine: str) -> None:
    """containerd says so before it has read the request, while that is still being written; kubelet relies on it."""
    proxy = Criproxy(site.runtime.directory, site.runtime.socket, {"proxy": {"engine": engine}})
    proxy.start()
    codes = set()
    with grpc.insecure_channel(f"unix://{proxy.socket}", options=OPTIONS) as channel:
        stream = channel.unary_stream(f"/runtime.v1alpha2.RuntimeService/{method}")
        for _ in range(10):
            calls = [stream(b"", timeout=60) for _ in range(50)]
            codes |= {call.code() for call in calls}
    proxy.stop()
    assert codes == {grpc.StatusCode.UNIMPLEMENTED}


# --- controls: what the differ finds --------------------------------------------------------------------------------


PLAIN = Answer("OK", "", (("a", "1"),), (("b", "2"),), '{"id": "<pod web>"}')


@pytest.mark.parametrize(
    ("other", "line"),
    [
        pytest.param({"step": replace(PLAIN, code="UNKNOWN")}, "+code UNKNOWN", id="code"),
        pytest.param({"step": replace(PLAIN, details="x")}, "+details 'x'", id="details"),
        pytest.param({"step": replace(PLAIN, initial=())}, "-initial ('a', '1')", id="initial metadata lost"),
        pytest.param(
            {"step": replace(PLAIN, trailing=(*PLAIN.trailing, ("c", "3")))},
            "+trailing ('c', '3')",
            id="trailing metadata added",
        ),
        pytest.param({"step": replace(PLAIN, message="{}")}, "+{}", id="message"),
        pytest.param({}, "+code no answer: the step was not run", id="no such step"),
        pytest.param({"step": PLAIN, "more": PLAIN}, '+{"id": "<pod web>"}', id="one more step"),
    ],
)
def test_differences_of_unlike_records_are_told_by_step(other: Record, line: str) -> None:
    (report,) = differences({"step": PLAIN}, other).values()
    assert line in report.splitlines()


def test_normalised_messages_that_differ_in_content_differ() -> None:
    ids = {"pod": "1" * 64}
    one = cri.ListPodSandboxResponse(items=[cri.PodSandbox(id="1" * 64, created_at=1), cri.PodSandbox(id="b")])
    same = cri.ListPodSandboxResponse(items=[cri.PodSandbox(id="b"), cri.PodSandbox(id="1" * 64, created_at=2)])
    other = cri.ListPodSandboxResponse(items=[cri.PodSandbox(id="2" * 64, created_at=1), cri.PodSandbox(id="b")])
    assert normalised(one, ids) == normalised(same, ids) != normalised(other, ids)


SHOWS_OFFLINE = {
    "PodSandboxStatus of web, verbose False",
    "PodSandboxStatus of web, verbose True",
    "ContainerStatus of main, verbose True",
    "ContainerStatus after the updates",
}
"""Some of the steps that tell an offline pod from an online one."""


@pytest.mark.parametrize("engine", ENGINES)
def test_offline_pods_differ_from_direct_ones_in_placement_and_resources(site: Site, engine: str) -> None:
    """The same list and the same proxy, with a rule that takes the pods for offline: now the differ must speak."""
    found = differences(
        site.direct("runtime.v1"), site.proxied("runtime.v1", engine, [{"label": "app", "present": True}])
    )
    assert set(found) >= SHOWS_OFFLINE
    status = found["ContainerStatus of main, verbose True"].splitlines()
    own, boxed = (placement(f"{site.place.cgroup}/{path}") for path in ("kubepods/burstable/podweb", "offline/podweb"))
    assert any(line.startswith("-") and own in line for line in status)
    assert any(line.startswith("+") and boxed in line for line in status)
    codes = [step for step, report in found.items() if re.search("^[+-]code", report, re.MULTILINE)]
    quota = "UpdateContainerResources with a quota too small, running"
    assert sorted(codes) == [
        "RunPodSandbox without metadata",  # no uid: no place
        *([quota] if version() == 1 else []),  # on v2 a container in the box has a quota of its own
    ]
