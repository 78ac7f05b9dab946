"""Hooked calls as CRI's bytes: which are opened, what is written into them, and what they are answered with."""

import asyncio
from dataclasses import dataclass

import pytest
import structlog

from criproxy.fronts.cri import messages as cri
from criproxy.fronts.cri.interception import CriInterceptor
from criproxy.fronts.engine import AnswerError, Forward
from criproxy.hooks import HookSettings
from criproxy.hooks.bandwidth import EGRESS, Bandwidth
from criproxy.hooks.hardening import Hardening
from criproxy.model import PLACEMENT_ANNOTATION, Resources
from criproxy.pods.admission import AdmissionSettings
from tests.fakes.box import FakeAdmissions
from tests.fakes.placing import (
    BOXED,
    DRY,
    KUBELET,
    OFF,
    ON,
    FakeCpuManager,
    FakeHolds,
    PlacingBench,
    ScriptedRuntime,
)

V1 = "/runtime.v1.RuntimeService/"


@dataclass
class Bench(PlacingBench):
    """A CriInterceptor before a Placing with everything around it scripted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.intercept = CriInterceptor(self.placing, structlog.get_logger())

    def send(self, method: str, message: bytes, answer: bytes | None = None) -> Forward | AnswerError:
        async def go() -> Forward | AnswerError:
            verdict = self.intercept.request(method, message)
            if not isinstance(verdict, Forward | AnswerError):
                verdict = await verdict
            if answer is not None and isinstance(verdict, Forward) and verdict.learn is not None:
                verdict.learn(answer)
            return verdict

        return asyncio.run(go())

    def run(self, message: bytes, sandbox_id: str = "s1", service: str = V1) -> Forward | AnswerError:
        answer = cri.RunPodSandboxResponse(pod_sandbox_id=sandbox_id.encode()).SerializeToString()
        return self.send(service + "RunPodSandbox", message, answer)


UNKNOWN_FIELD = b"\xfa\x06\x03abc"
"""A field of number 111, which our messages do not have."""

_METADATA = cri.PodSandboxMetadata(name=b"job", uid=b"1", namespace=b"batch")


def _entry(key: str, value: str) -> cri.StringEntry:
    return cri.StringEntry(key=key.encode(), value=value.encode())


def _config(offline: bool, parent: str = KUBELET) -> cri.PodSandboxConfig:
    return cri.PodSandboxConfig(
        metadata=_METADATA,
        labels=[_entry("class", "offline" if offline else "online")],
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=parent.encode(),
            resources=cri.LinuxContainerResources(memory_limit_in_bytes=1000),
            overhead=cri.LinuxContainerResources(memory_limit_in_bytes=24),
        ),
    )


def run_request(offline: bool, parent: str = KUBELET) -> bytes:
    return cri.RunPodSandboxRequest(config=_config(offline, parent)).SerializeToString()


def create_request(sandbox_id: str, offline: bool) -> bytes:
    return cri.CreateContainerRequest(
        pod_sandbox_id=sandbox_id.encode(),
        config=cri.ContainerConfig(linux=cri.LinuxContainerConfig(resources={"cpu_shares": 1024, "cpu_quota": 50000})),
        sandbox_config=_config(offline),
    ).SerializeToString()


def forwarded(verdict: Forward | AnswerError) -> bytes:
    assert isinstance(verdict, Forward), verdict
    return verdict.message


def parent_of_created(verdict: Forward | AnswerError) -> str:
    return cri.CreateContainerRequest.FromString(forwarded(verdict)).sandbox_config.linux.cgroup_parent.decode()


@pytest.mark.parametrize("service", ["runtime.v1", "runtime.v1alpha2"])
def test_start_offline_pod_goes_to_the_box(service: str) -> None:
    bench = Bench()
    message = forwarded(bench.run(run_request(True), service=f"/{service}.RuntimeService/"))
    config = cri.RunPodSandboxRequest.FromString(message).config
    assert config.linux.cgroup_parent == BOXED.encode()
    assert [(e.key, e.value) for e in config.annotations] == [(PLACEMENT_ANNOTATION.encode(), BOXED.encode())]
    assert bench.box.admitted == [(BOXED, 0)], "kubelet names a sum also where a container has no limit"
    assert bench.box.forgotten == ["pod1"]
    assert [s.placement for s in bench.inventory.placed] == [BOXED]


@pytest.mark.parametrize(
    ("asked", "egress"), [(None, b"5000000"), ("1M", b"1M"), ("1G", b"5000000")], ids=["nothing", "less", "more"]
)
def test_offline_pod_is_given_its_bandwidth_and_all_else_stays_as_it_came(asked: str | None, egress: bytes) -> None:
    """Byte by byte, what our messages do not know included."""
    bench, config = Bench(), _config(True)
    config.annotations.extend([_entry("b", "2"), _entry("a", "\u00e9")])
    if asked is not None:
        config.annotations.append(_entry(EGRESS, asked))
    came = cri.RunPodSandboxRequest(config=config).SerializeToString() + UNKNOWN_FIELD
    plain = forwarded(bench.run(came))
    bench.configure(ON, HookSettings(False, Bandwidth(egress=5_000_000)))
    message = forwarded(bench.run(came))
    online = forwarded(bench.run(run_request(False)))

    before = cri.RunPodSandboxRequest.FromString(plain).config.annotations
    found = [(one.key, one.value) for one in cri.RunPodSandboxRequest.FromString(message).config.annotations]
    kept = [(one.key, one.value) for one in before if one.key != EGRESS.encode()]
    assert dict(found)[EGRESS.encode()] == egress
    assert [one for one in found if one[0] != EGRESS.encode()] == kept
    assert message.endswith(UNKNOWN_FIELD)
    assert (message == plain) is (egress == b"1M"), "a pod that asks for less is not touched"
    assert online == run_request(False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(ON, run_request(False), id="online"),
        pytest.param(OFF, run_request(True), id="offline-while-off"),
        pytest.param(DRY, run_request(True), id="offline-in-a-dry-run"),
        pytest.param(ON, b"", id="empty"),
    ],
)
def test_start_of_another_pod_passes_as_the_bytes_that_came(settings: AdmissionSettings, message: bytes) -> None:
    bench = Bench(settings)
    assert forwarded(bench.run(message)) == message
    assert bench.box.admitted == []
    assert bench.inventory.placed == ()


def test_create_container_after_a_restart_asks_the_runtime() -> None:
    bench = Bench(runtime=ScriptedRuntime({"s1": BOXED, "s2": ""}))
    assert parent_of_created(bench.send(V1 + "CreateContainer", create_request("s1", False))) == BOXED
    message = create_request("s2", False)
    assert forwarded(bench.send(V1 + "CreateContainer", message)) == message


DOWN = ScriptedRuntime(error=ConnectionError("runtime is down"))


@pytest.mark.parametrize(
    ("bench", "message", "code"),
    [
        pytest.param(Bench(), run_request(True, "/elsewhere/pod1"), 9, id="no-place"),
        pytest.param(Bench(holds=FakeHolds({"1": "it was stopped"})), run_request(True), 9, id="closed"),
        pytest.param(Bench(box=FakeAdmissions(full="the box is full")), run_request(True), 9, id="not-admitted"),
        pytest.param(Bench(holds=FakeHolds(broken=True)), run_request(True), 13, id="fault"),
        pytest.param(Bench(), b"\xff\xff\xff", 13, id="undecodable"),
    ],
)
def test_refusal_is_answered_with_a_status_and_its_words(bench: Bench, message: bytes, code: int) -> None:
    verdict = bench.run(message)
    assert isinstance(verdict, AnswerError)
    assert verdict.code == code
    assert verdict.message.startswith("criproxy refuses RunPodSandbox")


@pytest.mark.parametrize("offline", [True, False])
def test_create_container_of_an_unknown_sandbox_while_the_runtime_is_silent(offline: bool) -> None:
    verdict = Bench(runtime=DOWN).send(V1 + "CreateContainer", create_request("s1", offline))
    if offline:
        assert isinstance(verdict, AnswerError)
        assert verdict.code == 14
    else:
        assert forwarded(verdict) == create_request("s1", False)


def update(bench: Bench, **linux: bytes | int) -> Forward | AnswerError:
    request = cri.UpdateContainerResourcesRequest(container_id=b"c1", linux=linux)
    return bench.send(V1 + "UpdateContainerResources", request.SerializeToString())


def test_update_of_a_placed_container_keeps_its_shares_and_the_cpus_and_memory_nodes_that_it_may_have() -> None:
    runtime = ScriptedRuntime({"s1": BOXED}, {"c1": "s1"})
    bench = Bench(runtime=runtime, cpu_manager=FakeCpuManager(frozenset({0})))
    message = forwarded(update(bench, cpu_shares=512, cpuset_cpus=b"0-1", cpuset_mems=b"0"))
    linux = cri.UpdateContainerResourcesRequest.FromString(message).linux
    assert (linux.cpu_shares, linux.cpuset_cpus, linux.cpuset_mems) == (512, b"0", b"0")
    assert bench.cpu_manager.looks == ["0-1"]


@pytest.mark.parametrize("container", ["online", "nobody"])
def test_update_of_another_container_passes_as_it_came(container: str) -> None:
    bench = Bench(runtime=ScriptedRuntime({"s2": ""}, {"online": "s2"}))
    request = cri.UpdateContainerResourcesRequest(container_id=container.encode(), linux={"cpuset_cpus": b"0-1"})
    message = request.SerializeToString()
    assert forwarded(bench.send(V1 + "UpdateContainerResources", message)) == message


def test_update_of_a_placed_sandbox_resizes_the_pod_in_the_box() -> None:
    bench = Bench(runtime=ScriptedRuntime({"s1": BOXED}))
    request = cri.UpdatePodSandboxResourcesRequest(
        pod_sandbox_id=b"s1", overhead={"memory_limit_in_bytes": 5}, resources={"memory_limit_in_bytes": 100}
    )
    forwarded(bench.send(V1 + "UpdatePodSandboxResources", request.SerializeToString()))
    assert bench.box.resized == [(BOXED, Resources(memory_limit_bytes=105))]


def test_restore_places_sandbox_and_containers() -> None:
    bench = Bench()
    bench.configure(ON, HookSettings(child_quota=False, hardening=Hardening(refuse_privileged=False)))
    request = cri.RestorePodRequest(
        config=_config(True), container_configs=[cri.ContainerConfig(metadata=cri.ContainerMetadata(name=b"a"))]
    )
    answer = cri.RestorePodResponse(pod_sandbox_id=b"s9", restored_containers=[{"container_id": b"c9", "name": b"a"}])
    verdict = bench.send(V1 + "RestorePod", request.SerializeToString(), answer.SerializeToString())
    message = cri.RestorePodRequest.FromString(forwarded(verdict))
    assert message.config.linux.cgroup_parent == BOXED.encode()
    assert message.container_configs[0].linux.resources.oom_score_adj == 1000
    assert [(one.id, one.container) for one in bench.started] == [("s9", ""), ("c9", "a")]


def test_removed_sandbox_leaves_no_entry_and_is_reported() -> None:
    bench = Bench()
    bench.run(run_request(True))
    bench.send(V1 + "CreateContainer", create_request("s1", True), b"\n\x02c1")
    remove = cri.RemovePodSandboxRequest(pod_sandbox_id=b"s1").SerializeToString()
    assert forwarded(bench.send(V1 + "RemovePodSandbox", remove, b"")) == remove
    assert len(bench.inventory) == 0
    assert [s.id for s in bench.removed] == ["s1"]


def test_stopped_sandbox_runs_no_more_and_stays_placed() -> None:
    bench = Bench()
    bench.run(run_request(True))
    running = [sandbox.id for sandbox in bench.inventory.running_pods]
    stop = cri.StopPodSandboxRequest(pod_sandbox_id=b"s1").SerializeToString()
    assert forwarded(bench.send(V1 + "StopPodSandbox", stop, b"")) == stop
    assert (running, bench.inventory.running_pods) == (["s1"], ())
    assert [sandbox.id for sandbox in bench.inventory.placed] == ["s1"]


@pytest.mark.parametrize(
    ("method", "message", "answer"),
    [
        pytest.param("RunPodSandbox", run_request(True), b"\xff", id="answer"),
        pytest.param("StartContainer", b"\xff", b"", id="request-that-is-only-observed"),
    ],
)
def test_what_is_to_be_learned_and_can_not_be_read_is_a_warning(method: str, message: bytes, answer: bytes) -> None:
    bench = Bench()
    with structlog.testing.capture_logs() as logs:
        forwarded(bench.send(V1 + method, message, answer))
    assert [line["event"] for line in logs][-1] == "answer_undecodable"
    assert len(bench.inventory) == 0


def test_refused_removal_keeps_the_entry() -> None:
    bench = Bench()
    bench.run(run_request(True))
    bench.send(V1 + "RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=b"s1").SerializeToString())
    assert len(bench.inventory.placed) == 1


def test_pods_with_hostile_labels_are_judged_not_failed() -> None:
    config = _config(True)
    config.labels.append(cri.StringEntry(key=b"\xff/../" + b"x" * 100_000, value=b"\x00\xfe"))
    message = forwarded(Bench().run(cri.RunPodSandboxRequest(config=config).SerializeToString()))
    rewritten = cri.RunPodSandboxRequest.FromString(message).config
    assert list(rewritten.labels) == list(config.labels)


def test_wants_only_the_methods_that_hooks_name() -> None:
    wants = Bench().intercept.wants
    assert wants("/runtime.v1.RuntimeService/RunPodSandbox")
    assert wants("/runtime.v1alpha2.RuntimeService/UpdateContainerResources")
    assert not wants("/runtime.v1.RuntimeService/ListContainers")
    assert not wants("/other.Service/RunPodSandbox")


# --- what has started ----------------------------------------------------------------------------------------------


def _start(bench: Bench, container: str) -> None:
    message = cri.StartContainerRequest(container_id=container.encode()).SerializeToString()
    assert forwarded(bench.send(V1 + "StartContainer", message, b"")) == message


def test_started_sandbox_and_container_of_the_box_are_told_by_name() -> None:
    bench = Bench()
    bench.run(run_request(True))
    create = cri.CreateContainerRequest.FromString(create_request("s1", True))
    create.config.metadata.name = b"main"
    bench.send(V1 + "CreateContainer", create.SerializeToString(), b"\n\x02c1")
    assert [(one.id, one.container) for one in bench.started] == [("s1", "")]
    _start(bench, "c1")
    assert [(one.id, one.container, one.sandbox.id) for one in bench.started[1:]] == [("c1", "main", "s1")]
