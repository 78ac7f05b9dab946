"""What the soak's clients do, in rounds; every answer is compared, to the last byte, with what the runtime sent."""

import itertools
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from benchmarks.backend import ANSWERS
from benchmarks.node import connect, run_request
from benchmarks.soak.runtime import BY_STATE, DETAILS, FILTERED, LISTS, SERVICE, seen
from criproxy.fronts.cri import messages as cri
from criproxy.fronts.http2 import frames
from integration.lab.cgroups import Tree

_TIMEOUT_S: Final = 60.0
_UPLOAD: Final = random.Random(1).randbytes(300_000)
_CLIENT_CALLS: Final = 5
_STATISTICS_EVERY: Final = 10


class WrongError(Exception):
    """An answer was not what the runtime sent, or a call ended as it should not have."""


@dataclass(frozen=True, slots=True)
class Way:
    """To criproxy: its socket, a connection of the job's own, and what the node's cgroup names begin with."""

    socket: Path
    channel: grpc.Channel
    prefix: str
    numbers: Iterator[int] = field(default_factory=itertools.count)
    """Of the job's rounds."""

    def call(self, method: str, request: bytes = b"", **options: Any) -> bytes:
        """Raises grpc.RpcError."""
        answer: bytes = self.channel.unary_unary(SERVICE + method)(request, timeout=_TIMEOUT_S, **options)
        return answer


Job = Callable[[Way], Iterator[None]]
"""One round. It yields after each call that came out right; raises WrongError, or grpc.RpcError."""


def same(what: str, got: bytes, wanted: bytes) -> None:
    if got != wanted:
        at = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted)))
        raise WrongError(f"{what}: {len(got)} bytes, not {len(wanted)}; they differ from byte {at} on")


def small(way: Way) -> Iterator[None]:
    same("Version", way.call("Version"), ANSWERS[f"{SERVICE}Version"])
    yield


def a_list(method: str) -> Job:
    def job(way: Way) -> Iterator[None]:
        same(method, way.call(method), LISTS[method])
        yield

    return job


def kubelet(way: Way) -> Iterator[None]:
    """What kubelet asks again and again on one connection: what is there, and in every tenth round how much it uses."""
    for method, answer in FILTERED.items():
        same(method, way.call(method, BY_STATE), answer)
        yield
    if next(way.numbers) % _STATISTICS_EVERY == 0:
        yield from a_list("ListContainerStats")(way)


def long_error(way: Way) -> Iterator[None]:
    """A call that the runtime ends with an error whose text takes more than one frame of headers."""
    try:
        way.call("PullImage")
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNKNOWN:
            raise
        same("an error's text", error.details().encode(), DETAILS.encode())
        yield
    else:
        raise WrongError("PullImage: an answer, not an error")


def upload(way: Way) -> Iterator[None]:
    """300 KB towards the runtime and back: more than a window."""
    number = next(way.numbers)
    message = number.to_bytes(8) + _UPLOAD
    packed = grpc.Compression.Gzip if number % 2 else None
    same("an upload's echo", way.call("ImageStatus", message, compression=packed), message)
    yield


def pods(way: Way) -> Iterator[None]:
    """A pod's life, online and offline in turn; every third says all gzipped, every fourth is over 64 KiB."""
    number = next(way.numbers)
    offline = bool(number % 2)
    uid = f"pod{number}"
    request = run_request(way.prefix, uid, offline=offline)
    if number % 4 > 1:
        request += b"\xba\x3e\xe0\xa7\x12" + _UPLOAD  # field 999, 300,000 bytes
    packed = grpc.Compression.Gzip if number % 3 == 0 else None
    answer = way.call("RunPodSandbox", request, compression=packed)
    same("a sandbox's id", cri.RunPodSandboxResponse.FromString(answer).pod_sandbox_id, uid.encode())
    parent = _as_meant(request, seen(answer), offline=offline)
    yield
    config = cri.RunPodSandboxRequest.FromString(request).config
    create = cri.CreateContainerRequest(
        pod_sandbox_id=uid.encode(), config={"metadata": {"name": b"main"}}, sandbox_config=config
    )
    answer = way.call("CreateContainer", create.SerializeToString(), compression=packed)
    container = cri.CreateContainerResponse.FromString(answer).container_id
    same("a container's id", container, f"{uid}-main".encode())
    if not offline:
        same("an online container's request", seen(answer), create.SerializeToString())
    yield
    for method, about in (
        ("StartContainer", cri.StartContainerRequest(container_id=container)),
        ("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=uid.encode())),
    ):
        same(method, way.call(method, about.SerializeToString()), about.SerializeToString())
        yield
    removal = cri.RemovePodSandboxRequest(pod_sandbox_id=uid.encode())
    same("RemovePodSandbox", way.call("RemovePodSandbox", removal.SerializeToString()), b"")
    if offline:
        Tree(parent).remove()  # as kubelet does
    yield


def _as_meant(sent: bytes, got: bytes, *, offline: bool) -> str:
    """What the runtime got of a RunPodSandbox: an online pod's bytes, an offline pod's but for its place and resources.

    Returns its cgroup_parent.
    """
    if not offline:
        same("an online pod's request", got, sent)
    ours, theirs = (cri.RunPodSandboxRequest.FromString(message) for message in (sent, got))
    parent: bytes = theirs.config.linux.cgroup_parent
    if offline:
        if b"/offline/" not in parent:
            raise WrongError(f"an offline pod started in {parent!r}, outside of the box")
        theirs.config.linux.CopyFrom(ours.config.linux)
        del theirs.config.annotations[len(ours.config.annotations) :]
        same("an offline pod's request, place aside", theirs.SerializeToString(), ours.SerializeToString())
    return parent.decode()


def events(way: Way) -> Iterator[None]:
    """One stream, all the time."""
    stream = way.channel.unary_stream(f"{SERVICE}GetContainerEvents")(b"")
    try:
        for number, event in enumerate(stream):
            same("an event", event, b"%d" % number)
            yield
    finally:
        stream.cancel()
    raise WrongError(f"the stream of events ended with {stream.code()}")


def comers(way: Way) -> Iterator[None]:
    """A client that comes, calls a few times and goes; one that goes amid its first call; one that says half a word."""
    with connect(way.socket) as channel:
        guest = Way(way.socket, channel, way.prefix)
        for _ in range(_CLIENT_CALLS):
            yield from small(guest)
        channel.unary_unary(f"{SERVICE}ExecSync").future(b"x", timeout=_TIMEOUT_S)
    with socket.socket(socket.AF_UNIX) as rude:
        rude.connect(str(way.socket))
        rude.sendall(frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0) + b"\0\0\x50\x01\x05")


def aborted(way: Way) -> Iterator[None]:
    """A call that is given up by its deadline, one by its client, and a large answer left amid its way."""
    never = way.channel.unary_unary(f"{SERVICE}ExecSync")
    try:
        never(b"late", timeout=0.05)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        yield
    for call, after_s in (
        (never.future(b"cancelled", timeout=_TIMEOUT_S), 0.02),
        (way.channel.unary_unary(f"{SERVICE}ListContainerStats").future(b"", timeout=_TIMEOUT_S), 0.003),
    ):
        time.sleep(after_s)
        call.cancel()
        if call.code() not in (grpc.StatusCode.CANCELLED, grpc.StatusCode.OK):
            raise WrongError(f"a cancelled call ended with {call.code()}: {call.details()}")
        yield


JOBS: Final[Mapping[str, tuple[Job, float]]] = {
    "kubelet": (kubelet, 1.0),
    "small": (small, 0.03),
    "list of 200 KB": (a_list("ListContainerStats"), 0.5),
    "list of 15 MB": (a_list("ListPodSandboxStats"), 20.0),
    "upload of 300 KB": (upload, 2.0),
    "error of 28 KB": (long_error, 1.0),
    "pods": (pods, 0.5),
    "events": (events, 1.0),
    "comers": (comers, 2.0),
    "aborted": (aborted, 0.5),
}
"""Each with the pause between two rounds, in s."""
