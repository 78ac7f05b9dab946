"""Bad input through the real proxy to real containerd: a clear status, nothing leaked, nothing outside the box."""

import contextlib
import os
import random
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
import pytest

from criproxy.fronts.cri import messages as raw  # its strings are bytes: what is no UTF-8 can be sent
from criproxy.pods.reconciler import Reconciler
from integration.lab import cri_client_pb2 as cri
from integration.lab.apis import OLDER_BY_COMMAND
from integration.lab.cgroups import Tree
from integration.lab.client import OPTIONS, Api, Container, CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import QUICK, Config, Criproxy, python_path
from integration.lab.images import BUSYBOX
from integration.lab.naming import Driver, driver, placement, spelled
from integration.lab.node import Node
from integration.lab.pods import assert_within, processes_of
from integration.lab.process import LabError, Process, wait_until

MIB = 1 << 20
LONG_S = 120
CROWDED_S = 600
"""For what hundreds of processes in the box do with what CPU a busy machine leaves it."""
FOREVER = ["sleep", "2147483647"]
OFFLINE = {"colocation.criproxy.io/class": "offline"}
PLACEMENT = b"colocation.criproxy.io/placement"
VANISHING = 100
SLOW = 200


class Raw:
    """Calls of bytes at one socket."""

    def __init__(self, socket: Path, api: Api = "runtime.v1") -> None:
        self.channel = grpc.insecure_channel(f"unix://{socket}", options=OPTIONS)
        self._api = api

    def call(self, method: str, message: bytes, service: str = "RuntimeService") -> tuple[str, str, bytes]:
        """Status code, details and answer."""
        return self.call_path(f"/{self._api}.{service}/{method}", message)

    def call_path(self, path: str, message: bytes) -> tuple[str, str, bytes]:
        """`call`, by the path on the wire."""
        unary = self.channel.unary_unary(path)
        try:
            answer, call = unary.with_call(message, timeout=LONG_S)
        except grpc.RpcError as error:
            return error.code().name, error.details(), b""
        return call.code().name, call.details(), answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.channel.close()

    def sandboxes(self) -> list[str]:
        code, details, answer = self.call("ListPodSandbox", b"")
        assert code == "OK", details
        return [item.id.decode() for item in raw.ListPodSandboxResponse.FromString(answer).items]

    def remove(self, sandbox_id: str) -> None:
        for kind in ("Stop", "Remove"):
            message = raw.StopPodSandboxRequest(pod_sandbox_id=sandbox_id.encode()).SerializeToString()
            code, details, _ = self.call(f"{kind}PodSandbox", message)
            assert code == "OK", details

    def remove_all(self) -> None:
        for sandbox_id in self.sandboxes():
            self.remove(sandbox_id)


class Site(Node):
    """containerd, and a criproxy before it."""

    def in_flight(self) -> int | None:
        """None: there was no answer in time, as on an emulated node that a hundred clients begin on."""
        try:
            return int(self.proxy.metric("criproxy_calls_in_flight"))
        except LabError:
            return None

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.proxy.pid}/fd"))

    def rss_bytes(self) -> int:
        return int(self.proxy.metric("process_resident_memory_bytes"))


@pytest.fixture(scope="module")
def site(containerd: Containerd) -> Iterator[Site]:
    rules = [{"label": key, "equals": value} for key, value in OFFLINE.items()]
    hideable = {"label": HIDEABLE, "present": True}
    config: Config = {"colocation": {"enabled": True, "rules": [*rules, hideable]}, "control": QUICK}
    with Site.before(containerd, config) as site:
        assert site.proxy.status()["colocation"] == "on"
        yield site


@pytest.fixture(params=OLDER_BY_COMMAND)
def pair(site: Site, request: pytest.FixtureRequest) -> Iterator[tuple[Raw, Raw]]:
    """A client of containerd and one of the proxy; no pod is left after the test."""
    direct, through = Raw(site.containerd.socket, request.param), Raw(site.proxy.socket, request.param)
    with direct.channel, through.channel:
        yield direct, through
        for sandbox_id in through.sandboxes():
            through.remove(sandbox_id)


def wait_empty(site: Site) -> None:
    """Nothing runs in the site's cgroups, once what the runtime began for a call that has failed has ended."""
    wait_until(lambda: not Tree(site.root).pids(), LONG_S, f"all in {site.root} to end")


def kubelet_parent(site: Site, uid: str) -> str:
    return f"{site.root}/kubepods/besteffort/pod{uid}"


def sandbox_config(site: Site, uid: str, labels: dict[str, str]) -> cri.PodSandboxConfig:
    options = cri.LinuxSandboxSecurityContext(namespace_options=cri.NamespaceOption(network=cri.NamespaceMode.NODE))
    linux = cri.LinuxPodSandboxConfig(cgroup_parent=spelled(kubelet_parent(site, uid)), security_context=options)
    metadata = cri.PodSandboxMetadata(name="hostile", uid=uid, namespace="default")
    return cri.PodSandboxConfig(metadata=metadata, labels=labels, linux=linux)


def container_config() -> cri.ContainerConfig:
    context = cri.LinuxContainerSecurityContext(namespace_options=cri.NamespaceOption(network=cri.NamespaceMode.NODE))
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name="main"),
        image=cri.ImageSpec(image=BUSYBOX),
        command=FOREVER,
        linux=cri.LinuxContainerConfig(security_context=context),
    )


# --- what is no message ---------------------------------------------------------------------------------------------

HOOKED = (
    "RunPodSandbox",
    "CreateContainer",
    "UpdateContainerResources",
    "UpdatePodSandboxResources",
    "RestorePod",
    "RemovePodSandbox",
    "RemoveContainer",
)

MALFORMED = {
    "length beyond the end": b"\x0a\x05ab",
    "huge length": b"\x0a\xff\xff\xff\xff\x0f",
    "number for a message": b"\x08\x01",
    "fixed32 for a message": b"\x0d\x01\x02\x03\x04",
    "field number 0": b"\x02\x00",
    "endless number": b"\xff" * 11,
    "end of no group": b"\x0c",
    "group without end": b"\x0b",
    "wire type 7": b"\x0f",
    "rubbish": random.Random(1).randbytes(4096),
}


REFUSED = ("INTERNAL", "UNIMPLEMENTED", "UNKNOWN")
"""The last: containerd 1.7 passes over a field of another wire type in v1alpha2, and then misses what it needs."""


@pytest.mark.parametrize("tail", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("method", HOOKED)
def test_malformed_message_gets_the_runtime_s_own_error_or_is_refused(
    site: Site, pair: tuple[Raw, Raw], method: str, tail: bytes
) -> None:
    """Bare, and as the end of a request that would start an offline pod."""
    config = sandbox_config(site, "malformed", OFFLINE)
    requests = {
        "RunPodSandbox": cri.RunPodSandboxRequest(config=config),
        "CreateContainer": cri.CreateContainerRequest(
            pod_sandbox_id="f" * 64, config=container_config(), sandbox_config=config
        ),
        "RestorePod": cri.RestorePodRequest(config=config),
    }
    whole = requests[method].SerializeToString() if method in requests else b""
    for message in (tail, whole + tail):
        direct, through = (raw_client.call(method, message) for raw_client in pair)
        assert through == direct or is_refusal(through, method)
        assert direct[0] in REFUSED
    wait_empty(site)


def is_refusal(outcome: tuple[str, str, bytes], method: str) -> bool:
    """Whether criproxy has said that it can't decode the request, or, where it can, that no offline pod is restored."""
    said = f"criproxy refuses {method}: it can't be told whether its pod is offline"
    restores = method == "RestorePod" and "an offline pod may not have a checkpoint to restore" in outcome[1]
    return (outcome[0] == "INTERNAL" and outcome[1].startswith(said)) or (
        outcome[0] == "FAILED_PRECONDITION" and restores
    )


@pytest.mark.parametrize("kept_ratio", [0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_truncated_start_of_an_offline_pod_gets_the_runtime_s_own_error_or_is_refused(
    site: Site, pair: tuple[Raw, Raw], kept_ratio: float
) -> None:
    message = cri.RunPodSandboxRequest(config=sandbox_config(site, "cut", OFFLINE)).SerializeToString()
    direct, through = (
        raw_client.call("RunPodSandbox", message[: int(len(message) * kept_ratio)]) for raw_client in pair
    )
    assert through == direct or is_refusal(through, "RunPodSandbox")
    assert direct[0] == "INTERNAL"
    wait_empty(site)


# --- what the runtime takes, and no kubelet sends ---------------------------------------------------------------------

HIDEABLE = "\x1a\x01x"
"""A label's key that is a field, too; see the site's rules."""


def _varint(number: int, size: int = 0) -> bytes:
    """In `size` bytes, or as few as it takes."""
    digits: list[int] = []
    while number > 0x7F or len(digits) + 1 < size:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def _group(number: int, end: int, depth: int = 1) -> bytes:
    return _varint(number << 3 | 3) * depth + _varint(end << 3 | 4) * depth


def _field(number: int, content: bytes, *, kind: int = 2, tag_bytes: int = 0, size_bytes: int = 0) -> bytes:
    """A field with a length, in any wire type and spelling."""
    return _varint(number << 3 | kind, tag_bytes) + _varint(len(content), size_bytes) + content


_LABEL = _field(1, b"colocation.criproxy.io/class") + _field(2, b"offline")
_HIDDEN = _field(1, HIDEABLE.encode(), kind=0) + _field(2, b"")

CRAFTED: dict[str, Callable[[bytes], bytes]] = {
    "as it should be": lambda pod: _field(1, pod + _field(6, _LABEL)),
    "field number 2^29": lambda pod: _field(1, pod + _field(6, _LABEL) + _varint((1 << 29) << 3) + b"\0"),
    "field number 2^31-1": lambda pod: _field(1, pod + _field(6, _LABEL) + _varint(((1 << 31) - 1) << 3) + b"\0"),
    "field number 2^32+6": lambda pod: _field(1, pod + _field((1 << 32) + 6, _LABEL)),
    "tag of 6 bytes": lambda pod: _field(1, pod + _field(6, _LABEL, tag_bytes=6)),
    "tag of 10 bytes": lambda pod: _field(1, pod + _field(6, _LABEL, tag_bytes=10)),
    "length of 6 bytes": lambda pod: _field(1, pod + _field(6, _LABEL, size_bytes=6)),
    "length of all of 10 bytes": lambda pod: _field(1, pod + _field(6, _LABEL), size_bytes=10),
    "tag and length of 5 bytes": lambda pod: _field(1, pod + _field(6, _LABEL, tag_bytes=5, size_bytes=5)),
    "101 groups in the pod": lambda pod: _field(1, pod + _field(6, _LABEL) + _group(100, 100, depth=101)),
    "101 groups in the request": lambda pod: _field(1, pod + _field(6, _LABEL)) + _group(100, 100, depth=101),
    "a group that another's end closes": lambda pod: _field(1, pod + _field(6, _LABEL) + _group(100, 101)),
    "a key under a number's wire type": lambda pod: _field(1, pod + _field(6, _HIDDEN)),
    "a label twice": lambda pod: _field(
        1, pod + _field(6, _field(1, b"colocation.criproxy.io/class") + _field(2, b"x")) + _field(6, _LABEL)
    ),
    "a pod in two parts": lambda pod: _field(1, pod) + _field(1, _field(6, _LABEL)),
    "text that is not UTF-8": lambda pod: _field(1, pod + _field(6, _LABEL) + _field(6, _field(1, b"\xff"))),
}
"""The requests of an offline pod whose config without labels is given. gogo's code takes all of them."""


@pytest.mark.parametrize("service", ["/runtime.v1.RuntimeService", "runtime.v1.RuntimeService"])
@pytest.mark.parametrize("craft", CRAFTED.values(), ids=CRAFTED.keys())
def test_crafted_start_of_an_offline_pod_is_refused_or_ends_in_the_box(
    site: Site, craft: Callable[[bytes], bytes], service: str, say: Callable[[str], object]
) -> None:
    """Whether the runtime takes it is asked at the runtime itself; some of its releases are stricter."""
    with Raw(site.containerd.socket) as direct, Raw(site.proxy.socket) as through:
        answers = []
        for raw_client in (direct, through):
            uid = str(uuid.uuid4())
            request = craft(sandbox_config(site, uid, {}).SerializeToString())
            code, details, _ = raw_client.call_path(f"{service}/RunPodSandbox", request)
            answers.append((code, details))
            if raw_client is direct:
                taken = code == "OK"
                direct.remove_all()
        say(f"{service}: directly {answers[0]}, proxied {answers[1]}")
        (code, details) = answers[1]
        assert code == "OK" or "criproxy refuses" in details or not taken
        for sandbox_id in through.sandboxes():
            assert_within(sandbox_id, f"{site.box.path}/pod{uid}")
        direct.remove_all()
    wait_empty(site)


# --- what is too large ----------------------------------------------------------------------------------------------


def _padded(message: bytes, size: int) -> bytes:
    """With a field that nobody knows at the end."""
    return message + _field(1000, b"x" * size)


def test_64_mib_message_is_refused_by_the_runtime_and_leaves_nothing_behind(site: Site, pair: tuple[Raw, Raw]) -> None:
    config = sandbox_config(site, "large", OFFLINE)
    start = _padded(cri.RunPodSandboxRequest(config=config).SerializeToString(), 64 * MIB)
    calls = [
        ("ListPodSandbox", _padded(b"", 64 * MIB)),
        ("RunPodSandbox", start),
        ("RunPodSandbox", start[: 32 * MIB]),
        ("RemovePodSandbox", _padded(b"", 64 * MIB)),
        ("MethodOfTomorrow", _padded(b"", 64 * MIB)),
    ]
    direct, through = pair
    expected = [direct.call(*call)[0] for call in calls]
    assert expected[0] == expected[1] == "RESOURCE_EXHAUSTED"
    expected[2] = "INTERNAL"  # what was cut off can't be decoded, and criproxy itself refuses it
    sizes = []
    for _ in range(4):
        assert [through.call(*call)[0] for call in calls] == expected
        sizes.append(site.rss_bytes())
    assert sizes[-1] - sizes[0] < 64 * MIB, "not one of 15 further messages is kept"
    wait_empty(site)


def test_message_of_15_mib_passes_hooked_and_not(site: Site, pair: tuple[Raw, Raw]) -> None:
    _, through = pair
    uid = str(uuid.uuid4())
    assert through.call("ListPodSandbox", _padded(b"", 15 * MIB))[0] == "OK"
    start = _padded(cri.RunPodSandboxRequest(config=sandbox_config(site, uid, OFFLINE)).SerializeToString(), 15 * MIB)
    code, details, _ = through.call("RunPodSandbox", start)
    assert code == "OK", details
    (sandbox_id,) = through.sandboxes()
    assert_within(sandbox_id, f"{site.box.path}/pod{uid}")


# --- clients that vanish, and slow calls ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Running:
    """An offline pod with one container. containerd 1.6 itself may leave the process of a cancelled ExecSync in it."""

    client: CriClient
    container: Container
    uid: str


@pytest.fixture
def running(site: Site, client: CriClient) -> Iterator[Running]:
    uid = str(uuid.uuid4())
    with CriClient(site.proxy.socket) as through:
        pod = through.run_pod("busy", uid=uid, labels=OFFLINE, cgroup_parent=kubelet_parent(site, uid))
        container = through.run_container(pod, "main", FOREVER)
        yield Running(through, container, uid)

        def removed() -> bool:
            # containerd 1.6 may hold a stop for two minutes after it has lost clients in mid-exec.
            with contextlib.suppress(grpc.RpcError):
                through.stop_and_remove(pod)
                return True
            return False

        wait_until(removed, CROWDED_S, "the pod to be removed")


def exec_request(container: Container, cmd: list[str]) -> cri.ExecSyncRequest:
    return cri.ExecSyncRequest(container_id=container.id, cmd=cmd)


@pytest.mark.timeout(1800)
def test_calls_cancelled_midway_leave_no_call_no_file_and_no_memory(site: Site, running: Running) -> None:
    exec_sync = running.client.unary("ExecSync")

    def cancel_some() -> None:
        for _ in range(VANISHING // 10):
            futures = [exec_sync.future(exec_request(running.container, FOREVER), timeout=LONG_S) for _ in range(10)]
            wait_until(lambda: (site.in_flight() or 0) >= 10, LONG_S, "the calls to be under way")
            for future in futures:
                future.cancel()
            wait_until(lambda: site.in_flight() == 0, LONG_S, "the cancelled calls to end")

    cancel_some()  # what is allocated once
    files, size = site.open_files(), site.rss_bytes()
    cancel_some()
    # The daemon's own reads, and the connection that just asked for its metrics, come and go.
    wait_until(lambda: site.open_files() <= files, LONG_S, "the files of cancelled calls to be closed")
    assert site.rss_bytes() - size < 8 * MIB
    assert_within(running.container.pod.id, f"{site.box.path}/pod{running.uid}")


CROWD = """
import sys
import grpc
from integration.lab import cri_client_pb2 as cri
from integration.lab.client import OPTIONS
socket, container, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
request = cri.ExecSyncRequest(container_id=container, cmd=["sleep", "2147483647"]).SerializeToString()
channels = [grpc.insecure_channel(f"unix://{socket}", options=OPTIONS) for _ in range(count)]
calls = [c.unary_unary("/runtime.v1.RuntimeService/ExecSync").future(request, timeout=600) for c in channels]
calls[0].result()
"""


@pytest.mark.timeout(1800)
def test_clients_killed_midway_leave_no_call_and_no_connection(site: Site, running: Running, lab: Path) -> None:
    """A hundred connections, each with a call under way, gone in one moment."""
    wait_until(lambda: site.in_flight() == 0, LONG_S, "the calls before to end")
    files = site.open_files()
    argv: list[str | Path] = [sys.executable, "-c", CROWD, site.proxy.socket, running.container.id, str(VANISHING)]
    crowd = Process("crowd", argv, lab / "crowd.log", {"PYTHONPATH": python_path()})
    crowd.wait_until(lambda: (site.in_flight() or 0) >= VANISHING, LONG_S, "all calls to be under way", 0.2)
    assert site.open_files() >= files + VANISHING
    crowd.kill()
    wait_until(lambda: site.in_flight() == 0, LONG_S, "the calls to end", poll_s=0.2)
    wait_until(lambda: site.open_files() <= files, LONG_S, "the connections to be closed", poll_s=0.2)
    assert_within(running.container.pod.id, f"{site.box.path}/pod{running.uid}")


@pytest.mark.timeout(1800)
def test_slow_calls_by_the_hundred_do_not_hold_up_a_quick_one(site: Site, running: Running) -> None:
    """The slow calls read from a FIFO that nobody has written to yet: they all end after the quick ones, by order."""
    client, container = running.client, running.container
    client.exec_sync(container, ["/bin/busybox", "mkfifo", "/tmp/fifo"])
    exec_sync = client.unary("ExecSync")
    request = exec_request(container, ["cat", "/tmp/fifo"])
    slow = [exec_sync.future(request, timeout=2 * CROWDED_S) for _ in range(SLOW)]
    wait_until(lambda: (site.in_flight() or 0) >= SLOW, LONG_S, "the slow calls to be under way", poll_s=0.2)

    assert client.call("Version", cri.VersionRequest()).runtime_name == "containerd"
    assert container.pod.id in {pod.id for pod in client.list_pods()}
    uid = str(uuid.uuid4())
    quick = client.run_pod("quick", uid=uid, labels=OFFLINE, cgroup_parent=kubelet_parent(site, uid))
    assert_within(quick.id, f"{site.box.path}/pod{uid}")
    assert [call for call in slow if call.done()] == []

    # Who opens it from now on finds a file; who waits at the FIFO is let go, again and again until all have come.
    client.exec_sync(container, ["sh", "-c", "mv /tmp/fifo /tmp/old; touch /tmp/fifo"])

    # The shim of containerd 1.6 at times stalls for minutes when hundreds of commands end at once, with this one too.
    let_go = exec_request(container, ["timeout", "1", "sh", "-c", ": > /tmp/old"])

    def all_done() -> bool:
        exec_sync(let_go, timeout=CROWDED_S)
        return all(call.done() for call in slow)

    wait_until(all_done, CROWDED_S, "the slow calls to end")
    assert [(call.code(), call.result().exit_code) for call in slow] == [(grpc.StatusCode.OK, 0)] * SLOW
    wait_until(lambda: site.in_flight() == 0, LONG_S, "the last call to be counted")
    client.stop_and_remove(quick)


# --- hostile text ---------------------------------------------------------------------------------------------------

TEXTS = {
    "long": b"x" * MIB,
    "unicode": "\U0001f4a9\u202e\u0000\u2028ünï".encode(),
    "nul": b"\0",
    "newlines": b"a\r\nb",
    "climbing": b"../../../../etc",
    "absolute": b"/etc/passwd",
    "no-utf-8": b"\xff\xfe\x80",
    "empty": b"",
}
"""Nothing of this is a uid or the end of a cgroup_parent."""

CGROUP_PARENTS = {
    **TEXTS,
    "root": b"/",
    "climbing-out": b"%(root)s/kubepods/besteffort/pod%(uid)s/../../../../other",
    "climbing-in-name": b"%(root)s/kubepods/besteffort/../pod%(uid)s",
    "another-pods": b"%(root)s/kubepods/besteffort/podvictim",
    "below-a-pod": b"%(root)s/kubepods/besteffort/pod%(uid)s/pod%(uid)s",
    "besteffort-itself": b"%(root)s/kubepods/besteffort",
    "no-kubepods": b"%(root)s/besteffort/pod%(uid)s",
    "relative": b"kubepods/besteffort/pod%(uid)s",
    "of-the-other-driver": (
        b"kubepods-besteffort-pod%(uid)s.slice"
        if driver() is Driver.CGROUPFS
        else b"%(root)s/kubepods/besteffort/pod%(uid)s"
    ),
    "slice-of-all": b"-.slice",
    "nul-inside": b"%(root)s/kubepods/besteffort/pod%(uid)s\0",
    "newline-inside": b"%(root)s/kubepods/besteffort/pod%(uid)s\n",
    "no-utf-8-inside": b"%(root)s/kubepods/\xff/pod%(uid)s",
    "long-inside": b"%(root)s/" + b"a/" * 2000 + b"kubepods/besteffort/pod%(uid)s",
}


def sent(site: Site, uid: str, labels: dict[str, str]) -> raw.RunPodSandboxRequest:
    """A request as kubelet sends it, with strings to be set to any bytes."""
    request = cri.RunPodSandboxRequest(config=sandbox_config(site, uid, labels))
    return raw.RunPodSandboxRequest.FromString(request.SerializeToString())


def assert_clear(details: str) -> None:
    assert details.startswith("criproxy refuses RunPodSandbox of offline pod ")
    assert details.isascii()
    assert len(details) < 4096


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_offline_pod_with_a_hostile_uid_is_refused(site: Site, pair: tuple[Raw, Raw], text: bytes) -> None:
    request = sent(site, "uid", OFFLINE)
    request.config.metadata.uid = text
    request.config.linux.cgroup_parent = spelled(kubelet_parent(site, "@")).encode().replace(b"@", text)
    code, details, _ = pair[1].call("RunPodSandbox", request.SerializeToString())
    assert code == "FAILED_PRECONDITION"
    assert_clear(details)
    assert pair[1].sandboxes() == []
    wait_empty(site)


@pytest.mark.parametrize("text", CGROUP_PARENTS.values(), ids=CGROUP_PARENTS.keys())
def test_offline_pod_with_a_hostile_cgroup_parent_is_refused(site: Site, pair: tuple[Raw, Raw], text: bytes) -> None:
    uid = uuid.uuid4().hex
    request = sent(site, uid, OFFLINE)
    parent = text.replace(b"%(root)s", site.root.encode()).replace(b"%(uid)s", uid.encode())
    request.config.linux.cgroup_parent = parent
    code, details, _ = pair[1].call("RunPodSandbox", request.SerializeToString())
    assert code == "FAILED_PRECONDITION"
    assert_clear(details)
    assert pair[1].sandboxes() == []
    wait_empty(site)


PLACES = ("name", "namespace", "label", "label-key", "annotation", "annotation-key", "placement")


def put(config: raw.PodSandboxConfig, place: str, text: bytes) -> None:
    match place:
        case "name" | "namespace":
            setattr(config.metadata, place, text)
        case "label":
            config.labels.add(key=b"hostile", value=text)
        case "label-key":
            config.labels.add(key=text, value=b"offline")
        case "annotation":
            config.annotations.add(key=b"hostile", value=text)
        case "annotation-key":
            config.annotations.add(key=text, value=b"1")
        case "placement":
            config.annotations.add(key=PLACEMENT, value=text)
            config.annotations.add(key=PLACEMENT, value=b"/")


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("labels", [OFFLINE, {}], ids=["offline", "online"])
def test_pod_with_hostile_text_starts_where_it_belongs_or_fails_as_without_the_proxy(
    site: Site, pair: tuple[Raw, Raw], labels: dict[str, str], place: str, text: bytes
) -> None:
    direct, through = pair
    uid = str(uuid.uuid4())
    request = sent(site, uid, labels)
    put(request.config, place, text)
    message = request.SerializeToString()
    expected, details, answer = direct.call("RunPodSandbox", message)
    if expected == "OK":
        direct.remove(raw.RunPodSandboxResponse.FromString(answer).pod_sandbox_id.decode())

    code, details, answer = through.call("RunPodSandbox", message)
    assert code == expected, details
    if code != "OK":
        assert through.sandboxes() == []
        wait_empty(site)
        return
    sandbox_id = raw.RunPodSandboxResponse.FromString(answer).pod_sandbox_id.decode()
    create = cri.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=container_config())
    rewritable = raw.CreateContainerRequest.FromString(create.SerializeToString())
    rewritable.sandbox_config.CopyFrom(request.config)
    code, details, answer = through.call("CreateContainer", rewritable.SerializeToString())
    assert code == "OK", details
    started = cri.StartContainerRequest(
        container_id=raw.CreateContainerResponse.FromString(answer).container_id.decode()
    )
    code, details, _ = through.call("StartContainer", started.SerializeToString())
    assert code == "OK", details
    wait_until(lambda: len(processes_of(sandbox_id)) == 2, 60, "pause and the container's process, and no helper")
    assert_within(sandbox_id, f"{site.box.path}/pod{uid}" if labels else kubelet_parent(site, uid))


@pytest.fixture
def own_proxy(site: Site, lab: Path) -> Iterator[Criproxy]:
    """A criproxy that the test may restart."""
    proxy = Criproxy(lab, site.containerd.socket, {"colocation": {"enabled": True}, "control": QUICK})
    proxy.start()
    yield proxy
    proxy.stop()


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param("/", id="root"),
        pytest.param("{root}/kubepods", id="kubepods"),
        pytest.param("{root}/offline/pod{victim}", id="another-pods-place"),
        pytest.param("{root}/kubepods/besteffort/pod{uid}", id="its-own-cgroup"),
        pytest.param("../../..", id="climbing"),
        pytest.param("\0", id="nul"),
        pytest.param("x" * 5000, id="long"),
        pytest.param("/" + "x/" * 5000 + "offline/pod{uid}", id="long-path"),
    ],
)
def test_placement_that_an_online_pod_claims_is_not_believed_after_a_restart(
    site: Site, own_proxy: Criproxy, client: CriClient, claim: str
) -> None:
    """The annotation by which criproxy knows its pods again may be written by a pod's author as well.

    In a box of its own: the site's criproxy would sweep one that it has not admitted to, as it starts.
    """
    site = replace(site, root=f"{site.root}/claims")
    uid, victim = str(uuid.uuid4()), str(uuid.uuid4())
    with CriClient(own_proxy.socket) as through:
        through.run_pod("victim", uid=victim, labels=OFFLINE, cgroup_parent=kubelet_parent(site, victim))
        claimed = claim.format(root=site.root, uid=uid, victim=victim)
        annotations = {PLACEMENT.decode(): placement(claimed) if "{root}" in claim else claimed}
        pod = through.run_pod("liar", uid=uid, annotations=annotations, cgroup_parent=kubelet_parent(site, uid))
        own_proxy.restart()
        wait_until(through.is_ready, LONG_S, "the client's connection")
        container = through.run_container(pod, "main", FOREVER)
        assert_within(pod.id, kubelet_parent(site, uid))
        shares = cri.LinuxContainerResources(cpu_shares=300)
        through.call(
            "UpdateContainerResources", cri.UpdateContainerResourcesRequest(container_id=container.id, linux=shares)
        )
        assert [placed["uid"] for placed in own_proxy.status()["pods"]] == [victim]
        assert Reconciler.NAME not in {event.get("part") for event in own_proxy.events()}
        through.remove_all_pods()
