"""Hooked calls against a scripted runtime, box and config: who is rewritten, refused, left alone."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import structlog

from criproxy.cgroup.naming import PodParent
from criproxy.fronts.cri import messages as cri
from criproxy.fronts.cri.interception import HookInterceptor
from criproxy.fronts.cri.pods_runtime import PodsRuntime
from criproxy.fronts.engine import AnswerError, Forward
from criproxy.hooks import Chain, HookSettings, offline_chain
from criproxy.hooks.bandwidth import EGRESS, Bandwidth
from criproxy.hooks.offline import OfflineRules, Rule, Subject, Test
from criproxy.model import (
    PLACEMENT_ANNOTATION,
    UNLIMITED,
    Adjustment,
    AdmissionError,
    Pod,
    PodRef,
    PodRequest,
    Resources,
    Sandbox,
    Unlimited,
)
from criproxy.model.cpulist import Cpus, format_cpus
from criproxy.pods.admission import AdmissionSettings
from criproxy.pods.inventory import Inventory, PodObserver
from criproxy.pods.kubelets_driver import KubeletsDriver
from criproxy.pods.placing import PlacingSettings
from criproxy.pods.runtime import Running
from tests.fakes.box import FakeAdmissions
from tests.fakes.counters import FakeCounters

RULES = OfflineRules((Rule(Subject.LABEL, "class", Test.EQUALS, "offline"),))
V1 = "/runtime.v1.RuntimeService/"
KUBELET = "/kubepods/besteffort/pod1"
BOXED = "/offline/pod1"
CHAIN = offline_chain(HookSettings(child_quota=False))


@dataclass
class Runtime:
    """Answers list queries from two dicts; `down` makes it unreachable."""

    sandboxes: dict[str, str] = field(default_factory=dict)
    containers: dict[str, str] = field(default_factory=dict)
    down: bool = False
    queries: int = 0
    ready: bool = True
    pid: int = 0

    async def call(self, method: str, request: bytes, _timeout_s: float) -> bytes:
        self.queries += 1
        if self.down:
            raise ConnectionError("runtime is down")
        if method == "ListPodSandbox":
            wanted = cri.ListPodSandboxRequest.FromString(request).filter.id.decode()
            return cri.ListPodSandboxResponse(
                items=[_listed(i, place) for i, place in self.sandboxes.items() if wanted in ("", i)]
            ).SerializeToString()
        wanted = cri.ListContainersRequest.FromString(request).filter.id.decode()
        return cri.ListContainersResponse(
            containers=[
                cri.Container(id=c.encode(), pod_sandbox_id=s.encode())
                for c, s in self.containers.items()
                if wanted in ("", c)
            ]
        ).SerializeToString()


def _listed(sandbox_id: str, placement: str) -> cri.PodSandbox:
    annotations = [_entry(PLACEMENT_ANNOTATION, placement)] if placement else []
    return cri.PodSandbox(id=sandbox_id.encode(), metadata=_METADATA, annotations=annotations)


@dataclass
class CpuManager:
    """`leaves`: the CPUs of the box; `looks`: what it was asked for, "" for a pod that starts."""

    leaves: Cpus | Unlimited = UNLIMITED
    error: str = ""
    looks: list[str] = field(default_factory=list)

    def pod_starts(self, pod: Pod) -> None:
        self.looks.append("")

    async def within(self, asked: Cpus) -> Cpus | Unlimited:
        self.looks.append(format_cpus(asked))
        if self.error:
            raise AdmissionError(self.error)
        return self.leaves


class Cgroups:
    def exists(self, path: str) -> bool:
        return path.startswith("/offline/")


class Holds:
    """`held`: why, by the pod's uid. `error`: it can't be told."""

    def __init__(self, held: dict[str, str]) -> None:
        self.by_uid = held
        self.broken = False

    def held(self, pod: PodRef) -> str:
        if self.broken:
            raise RuntimeError("boom")
        return self.by_uid.get(pod.uid, "")

    held_itself = held


@dataclass
class Bench(PodObserver):
    """A HookInterceptor with everything around it scripted."""

    enabled: bool = True
    chain: Chain = CHAIN
    runtime: Runtime = field(default_factory=Runtime)
    box: FakeAdmissions = field(default_factory=FakeAdmissions)
    counters: FakeCounters = field(default_factory=FakeCounters)
    cpu_manager: CpuManager = field(default_factory=CpuManager)
    started: list[Running] = field(default_factory=list)
    removed: list[Sandbox] = field(default_factory=list)
    resizes: list[str] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        runtime = PodsRuntime(self.runtime)  # type: ignore[arg-type]
        self.inventory = Inventory(runtime, Cgroups())  # type: ignore[arg-type]
        self.inventory.watch(self)
        self.holds = Holds(self.held)
        log = structlog.get_logger()
        self.kubelets_driver = KubeletsDriver(self.inventory, runtime, None, log=log)  # type: ignore[arg-type]
        self.intercept = HookInterceptor(
            PlacingSettings(AdmissionSettings(self.enabled, RULES), self.chain),
            self.inventory,
            self.box,
            cpu_manager=self.cpu_manager,  # type: ignore[arg-type]
            kubelets_driver=self.kubelets_driver,
            holds=self.holds,  # type: ignore[arg-type]
            counters=self.counters,
            log=log,
        )

    def configure(self, admission: AdmissionSettings, hooks: HookSettings | None = None) -> None:
        self.intercept.configure(PlacingSettings(admission, self.chain if hooks is None else offline_chain(hooks)))

    def resize_asked(self, sandbox: Sandbox) -> None:
        self.resizes.append(f"asked {sandbox.id}")

    def resize_done(self, sandbox: Sandbox) -> None:
        self.resizes.append(f"done {sandbox.id}")

    def pod_started(self, running: Running) -> None:
        self.started.append(running)

    def pod_removed(self, sandbox: Sandbox) -> None:
        self.removed.append(sandbox)

    def send(self, method: str, message: bytes, answer: bytes | None = None) -> Forward | AnswerError:
        async def go() -> Forward | AnswerError:
            verdict = self.intercept.request(method, message)
            if not isinstance(verdict, Forward | AnswerError):
                verdict = await verdict
            if answer is not None and isinstance(verdict, Forward) and verdict.learn is not None:
                verdict.learn(answer)
            return verdict

        return asyncio.run(go())

    def run_pod(self, message: bytes, sandbox_id: str = "s1", service: str = V1) -> Forward | AnswerError:
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
    message = forwarded(bench.run_pod(run_request(True), service=f"/{service}.RuntimeService/"))
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
    plain = forwarded(bench.run_pod(came))
    bench.configure(AdmissionSettings(True, RULES), HookSettings(False, Bandwidth(egress=5_000_000)))
    message = forwarded(bench.run_pod(came))
    online = forwarded(bench.run_pod(run_request(False)))

    before = cri.RunPodSandboxRequest.FromString(plain).config.annotations
    found = [(one.key, one.value) for one in cri.RunPodSandboxRequest.FromString(message).config.annotations]
    kept = [(one.key, one.value) for one in before if one.key != EGRESS.encode()]
    assert dict(found)[EGRESS.encode()] == egress
    assert [one for one in found if one[0] != EGRESS.encode()] == kept
    assert message.endswith(UNKNOWN_FIELD)
    assert (message == plain) is (egress == b"1M"), "a pod that asks for less is not touched"
    assert online == run_request(False)


BATCH = (
    '{"containers": {"main": {"requests": {"kubernetes.io/batch-cpu": "2000"}, '
    '"limits": {"kubernetes.io/batch-memory": "1Gi"}}}}'
)


def test_tier_that_a_pod_puts_itself_into_reaches_the_box_and_the_inventory() -> None:
    bench = Bench()
    config = _config(True)
    config.labels.append(_entry("colocation.criproxy.io/tier", "mid"))
    bench.run_pod(cri.RunPodSandboxRequest(config=config).SerializeToString())

    assert bench.box.mid == [bench.box.admitted[0][0].rpartition("/")[2]]
    assert [one.mid for one in bench.inventory.placed] == [True]


@pytest.mark.parametrize(
    ("text", "shares", "ignored"),
    [pytest.param(BATCH, 2048, 0, id="batch"), pytest.param("nonsense", 0, 1, id="nonsense-is-told")],
)
def test_what_a_pod_asks_for_in_its_annotation_reaches_the_box_and_the_inventory_and_not_the_runtime(
    text: str, shares: int, ignored: int
) -> None:
    bench = Bench()
    entry = _entry("node.koordinator.sh/extended-resource-spec", text)
    config = _config(True)
    config.annotations.append(entry)
    config.linux.ClearField("resources")
    with structlog.testing.capture_logs() as logs:
        bench.run_pod(cri.RunPodSandboxRequest(config=config).SerializeToString())
    assert bench.box.shares == [shares]
    assert bench.box.admitted[0][1] == (1 << 30 if shares else 0)
    assert [one.cpu_shares for one in bench.inventory.placed] == [shares]
    assert [entry["event"] for entry in logs].count("annotation_ignored") == ignored

    request = cri.CreateContainerRequest(pod_sandbox_id=b"s1", sandbox_config=config)
    request.config.metadata.name = b"main"
    request.config.linux.resources.cpu_shares = 2
    created = cri.CreateContainerRequest()
    created.ParseFromString(forwarded(bench.send(V1 + "CreateContainer", request.SerializeToString())))
    resources = created.config.linux.resources
    assert (resources.cpu_shares, resources.memory_limit_in_bytes) == (2, 0), "kubelet would take more for requests"


def _limits(**of_containers: str) -> str:
    containers = {name: {"limits": {"memory": size}} if size else {} for name, size in of_containers.items()}
    return json.dumps({"containers": containers})


@pytest.mark.parametrize(
    ("annotation", "declared_bytes", "asked_bytes"),
    [
        pytest.param(_limits(main="1Gi", side="1Gi"), 0, 2 << 30, id="all-containers"),
        pytest.param(_limits(main="1Gi", side=""), 0, 0, id="one-of-two"),
        pytest.param(_limits(main="1Gi"), 40 << 20, 0, id="another-container-has-an-ordinary-limit"),
        pytest.param("", 40 << 20, 0, id="ordinary-limits-alone"),
    ],
)
def test_memory_limit_that_a_pod_asks_for_is_that_of_all_its_containers(
    annotation: str, declared_bytes: int, asked_bytes: int
) -> None:
    bench, config = Bench(), _config(True)
    config.linux.ClearField("overhead")
    config.linux.resources.memory_limit_in_bytes = declared_bytes
    if annotation:
        config.annotations.append(_entry("colocation.criproxy.io/resources", annotation))

    bench.run_pod(cri.RunPodSandboxRequest(config=config).SerializeToString())

    assert bench.box.admitted == [(BOXED, asked_bytes)]


def test_start_under_way_outlasts_the_removal_of_the_pod_s_last_sandbox() -> None:
    bench = Bench()
    bench.run_pod(run_request(True), "old")
    bench.send(V1 + "RunPodSandbox", run_request(True))
    bench.send(
        V1 + "RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=b"old").SerializeToString(), answer=b""
    )
    assert [s.id for s in bench.removed] == ["old"]
    assert bench.box.forgotten == ["pod1"], "the second start is not over"


@pytest.mark.parametrize(
    ("enabled", "message"),
    [
        pytest.param(True, run_request(False), id="online"),
        pytest.param(False, run_request(True), id="offline-while-off"),
        pytest.param(True, b"", id="empty"),
    ],
)
def test_start_other_pod_passes_as_the_bytes_that_came(enabled: bool, message: bytes) -> None:
    bench = Bench(enabled=enabled)
    assert forwarded(bench.run_pod(message)) == message
    assert bench.box.admitted == []
    assert bench.inventory.placed == ()


@pytest.mark.parametrize(
    ("parent", "full", "code", "reason"),
    [
        pytest.param("/elsewhere/pod1", "", 9, "no_place", id="parent-not-of-kubelet"),
        pytest.param("", "", 9, "no_place", id="no-parent"),
        pytest.param("/kubepods/../pod1", "", 9, "no_place", id="path-like"),
        pytest.param("/kubepods/besteffort/pod2", "", 9, "no_place", id="parent-of-another-pod"),
        pytest.param(KUBELET, "the box is closed", 9, "not_admitted", id="box-closed"),
    ],
)
def test_start_offline_pod_without_a_place_is_refused(parent: str, full: str, code: int, reason: str) -> None:
    bench = Bench(box=FakeAdmissions(full=full))
    verdict = bench.run_pod(run_request(True, parent))
    assert isinstance(verdict, AnswerError)
    assert verdict.code == code
    assert "batch/job" in verdict.message
    assert bench.counters.labelled("refusals") == [reason]


SLICE = "/kubepods.slice/kubepods-pod1.slice"


@pytest.mark.parametrize(
    ("starts", "enabled", "driver"),
    [
        pytest.param([], True, None, id="none"),
        pytest.param([run_request(False)], True, "cgroupfs", id="online-cgroupfs"),
        pytest.param([run_request(False, SLICE)], True, "systemd", id="online-systemd"),
        pytest.param([run_request(False, SLICE)], False, "systemd", id="colocation-off"),
        pytest.param([run_request(True)], True, "cgroupfs", id="offline"),
        pytest.param([run_request(False), run_request(False, SLICE)], True, "systemd", id="changed"),
        pytest.param([run_request(False, SLICE), run_request(False, "")], True, "systemd", id="then-no-parent"),
        pytest.param([run_request(False, SLICE), run_request(False, "/other")], True, "systemd", id="then-another-s"),
        pytest.param([run_request(False, "/other"), run_request(False)], True, "cgroupfs", id="then-kubelet-s"),
        pytest.param([run_request(False, "/kubepods/pod2")], True, None, id="parent-of-another-pod"),
        pytest.param([run_request(False, "system.slice")], True, None, id="parent-not-of-kubelet"),
        pytest.param([b"\xff\xff\xff"], True, None, id="undecodable"),
    ],
)
def test_kubelet_s_driver_is_learned_from_the_start_of_any_pod(
    starts: list[bytes], enabled: bool, driver: str | None
) -> None:
    bench = Bench(enabled=enabled)
    for message in starts:
        bench.run_pod(message)
    assert bench.kubelets_driver.driver == driver


class FailingHook:
    name = "failing"

    def adjust(self, call: PodRequest) -> Iterator[Adjustment]:
        raise RuntimeError("boom")


class WrongFieldHook:
    name = "wrong"

    def adjust(self, call: PodRequest) -> Iterator[Adjustment]:
        yield Adjustment("no_such_field", 1, "")


@pytest.mark.parametrize("hook", [FailingHook(), WrongFieldHook()], ids=["raises", "names-no-field"])
def test_hook_failure_refuses_the_offline_pod_and_passes_the_online_one(hook: FailingHook | WrongFieldHook) -> None:
    bench = Bench(chain=Chain((hook,)))
    verdict = bench.run_pod(run_request(True))
    assert isinstance(verdict, AnswerError)
    assert verdict.code == 13
    assert forwarded(bench.run_pod(run_request(False))) == run_request(False)


class BrokenBox(FakeAdmissions):
    async def admit(self, place: PodParent, memory_bytes: int, cpu_shares: int = 0, *, mid: bool = False) -> None:
        raise RuntimeError("boom")

    async def update_pod(self, place: PodParent, resized: Resources) -> None:
        raise RuntimeError("boom")


@pytest.mark.parametrize("broken", ["box", "hold"])
def test_fault_on_the_way_refuses_the_offline_pod_and_passes_the_online_one(broken: str) -> None:
    bench = Bench(box=BrokenBox() if broken == "box" else FakeAdmissions())
    bench.holds.broken = broken == "hold"
    verdict = bench.run_pod(run_request(True))
    assert isinstance(verdict, AnswerError)
    assert (verdict.code, bench.counters.labelled("refusals")) == (13, ["hook_failed"])
    assert verdict.message == "criproxy refuses RunPodSandbox of offline pod batch/job: RuntimeError: boom"
    assert forwarded(bench.run_pod(run_request(False))) == run_request(False)


def test_fault_on_the_way_of_a_dry_run_passes_the_offline_pod() -> None:
    bench = Bench()
    bench.configure(AdmissionSettings(True, RULES, dry_run=True))
    bench.holds.broken = True
    assert forwarded(bench.run_pod(run_request(True))) == run_request(True)
    assert bench.counters.labelled("refusals") == []


@pytest.mark.parametrize("offline", [True, False])
def test_fault_of_the_inventory_refuses_the_offline_pod_s_container_and_passes_the_online_one_s(offline: bool) -> None:
    class Broken(Runtime):
        async def call(self, method: str, request: bytes, timeout_s: float) -> bytes:
            raise RuntimeError("boom")

    bench = Bench(runtime=Broken())
    verdict = bench.send(V1 + "CreateContainer", create_request("s1", offline))
    assert isinstance(verdict, AnswerError) if offline else forwarded(verdict) == create_request("s1", False)
    update = cri.UpdateContainerResourcesRequest(container_id=b"c1", linux={"cpuset_cpus": b"0-1"}).SerializeToString()
    assert forwarded(bench.send(V1 + "UpdateContainerResources", update)) == update


def test_fault_of_the_box_refuses_the_update_of_a_placed_sandbox() -> None:
    bench = Bench(runtime=Runtime(sandboxes={"s1": BOXED}), box=BrokenBox())
    request = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=b"s1", resources={"memory_limit_in_bytes": 100})
    verdict = bench.send(V1 + "UpdatePodSandboxResources", request.SerializeToString())
    assert isinstance(verdict, AnswerError)
    assert (verdict.code, bench.counters.labelled("refusals")) == (13, ["hook_failed"])


def test_create_container_follows_its_sandbox_after_colocation_is_switched_off() -> None:
    bench = Bench()
    bench.run_pod(run_request(True))
    bench.configure(AdmissionSettings(False, RULES))
    verdict = bench.send(V1 + "CreateContainer", create_request("s1", True))
    assert parent_of_created(verdict) == BOXED
    resources = cri.CreateContainerRequest.FromString(forwarded(verdict)).config.linux.resources
    assert (resources.cpu_shares, resources.cpu_quota, resources.oom_score_adj) == (1024, 0, 1000)


def test_create_container_of_a_pod_that_started_as_ordinary_stays_there() -> None:
    bench = Bench(enabled=False)
    bench.run_pod(run_request(True))
    bench.configure(AdmissionSettings(True, RULES))
    message = create_request("s1", True)
    assert forwarded(bench.send(V1 + "CreateContainer", message)) == message


def test_create_container_after_a_restart_asks_the_runtime() -> None:
    bench = Bench(runtime=Runtime(sandboxes={"s1": BOXED, "s2": ""}))
    assert parent_of_created(bench.send(V1 + "CreateContainer", create_request("s1", False))) == BOXED
    message = create_request("s2", False)
    assert forwarded(bench.send(V1 + "CreateContainer", message)) == message


def test_create_container_with_a_forged_annotation_stays_where_kubelet_put_it() -> None:
    bench = Bench(runtime=Runtime(sandboxes={"s1": "/kubepods/pod1"}))
    message = create_request("s1", False)
    assert forwarded(bench.send(V1 + "CreateContainer", message)) == message


@pytest.mark.parametrize("offline", [True, False])
def test_create_container_of_an_unknown_sandbox_while_the_runtime_is_silent(offline: bool) -> None:
    bench = Bench(runtime=Runtime(down=True))
    verdict = bench.send(V1 + "CreateContainer", create_request("s1", offline))
    if offline:
        assert isinstance(verdict, AnswerError)
        assert verdict.code == 14
    else:
        assert forwarded(verdict) == create_request("s1", False)


def update(bench: Bench, **linux: bytes | int) -> Forward | AnswerError:
    request = cri.UpdateContainerResourcesRequest(container_id=b"c1", linux=linux)
    return bench.send(V1 + "UpdateContainerResources", request.SerializeToString())


@pytest.mark.parametrize(
    ("leaves", "passed"),
    [
        pytest.param(UNLIMITED, b"0-1", id="no-cpu-manager"),
        pytest.param(frozenset({0, 1}), b"0-1", id="within"),
        pytest.param(frozenset({0}), b"0", id="one-is-online's-by-now"),
    ],
)
def test_update_of_a_placed_container_keeps_the_cpus_and_memory_nodes_that_kubelet_gives_it(
    leaves: Cpus | Unlimited, passed: bytes
) -> None:
    runtime, cpu_manager = Runtime(sandboxes={"s1": BOXED}, containers={"c1": "s1"}), CpuManager(leaves)
    bench = Bench(runtime=runtime, cpu_manager=cpu_manager)
    message = forwarded(update(bench, cpuset_cpus=b"0-1", cpuset_mems=b"0"))
    linux = cri.UpdateContainerResourcesRequest.FromString(message).linux
    assert (linux.cpuset_cpus, linux.cpuset_mems) == (passed, b"0")
    assert cpu_manager.looks == ["0-1"]


def test_created_container_keeps_the_cpus_that_kubelet_gives_it() -> None:
    bench = Bench(cpu_manager=CpuManager(frozenset({0})))
    bench.run_pod(run_request(True))
    request = cri.CreateContainerRequest.FromString(create_request("s1", True))
    request.config.linux.resources.cpuset_cpus = b"0-1"
    message = forwarded(bench.send(V1 + "CreateContainer", request.SerializeToString()))
    assert cri.CreateContainerRequest.FromString(message).config.linux.resources.cpuset_cpus == b"0"
    assert bench.cpu_manager.looks == ["", "0-1"]


def test_update_to_cpus_that_can_not_be_had_is_refused() -> None:
    runtime = Runtime(sandboxes={"s1": BOXED}, containers={"c1": "s1"})
    bench = Bench(runtime=runtime, cpu_manager=CpuManager(error="set kubelet.root_dir"))
    verdict = update(bench, cpuset_cpus=b"1")
    assert isinstance(verdict, AnswerError)
    assert (verdict.code, bench.counters.labelled("refusals")) == (9, ["no_cpus"])
    assert "set kubelet.root_dir" in verdict.message


@pytest.mark.parametrize("cpus", [b"", b"all of them"])
def test_update_without_a_list_of_cpus_asks_for_none(cpus: bytes) -> None:
    bench = Bench(runtime=Runtime(sandboxes={"s1": BOXED}, containers={"c1": "s1"}))
    message = forwarded(update(bench, cpuset_cpus=cpus))
    assert cri.UpdateContainerResourcesRequest.FromString(message).linux.cpuset_cpus == cpus
    assert bench.cpu_manager.looks == []


@pytest.mark.parametrize("offline", [True, False])
def test_each_start_of_a_pod_is_told_to_the_cpu_manager(offline: bool) -> None:
    bench = Bench()
    bench.run_pod(run_request(offline))
    assert bench.cpu_manager.looks == [""]


def test_update_of_a_placed_container_keeps_its_shares() -> None:
    bench = Bench(runtime=Runtime(sandboxes={"s1": BOXED}, containers={"c1": "s1"}))
    message = forwarded(update(bench, cpu_shares=512))
    assert cri.UpdateContainerResourcesRequest.FromString(message).linux.cpu_shares == 512


@pytest.mark.parametrize("container", ["online", "nobody"])
def test_update_of_another_container_passes_as_it_came(container: str) -> None:
    bench = Bench(runtime=Runtime(sandboxes={"s2": ""}, containers={"online": "s2"}))
    request = cri.UpdateContainerResourcesRequest(container_id=container.encode(), linux={"cpuset_cpus": b"0-1"})
    message = request.SerializeToString()
    assert forwarded(bench.send(V1 + "UpdateContainerResources", message)) == message


def test_update_of_a_placed_sandbox_resizes_the_pod_in_the_box() -> None:
    bench = Bench(runtime=Runtime(sandboxes={"s1": BOXED}))
    request = cri.UpdatePodSandboxResourcesRequest(
        pod_sandbox_id=b"s1", overhead={"memory_limit_in_bytes": 5}, resources={"memory_limit_in_bytes": 100}
    )
    forwarded(bench.send(V1 + "UpdatePodSandboxResources", request.SerializeToString()))
    assert bench.box.resized == [(BOXED, Resources(memory_limit_bytes=105))]


@pytest.mark.parametrize("answered", [True, False], ids=["done", "refused-by-the-runtime"])
def test_each_update_in_the_box_is_told_before_it_is_asked_for_and_once_it_is_done(answered: bool) -> None:
    bench = Bench(runtime=Runtime(sandboxes={"s1": BOXED, "s2": ""}, containers={"c1": "s1", "c2": "s2"}))
    told = []
    for container in ("c1", "c2"):
        request = cri.UpdateContainerResourcesRequest(container_id=container.encode(), linux={"cpu_shares": 512})
        verdict = bench.send(V1 + "UpdateContainerResources", request.SerializeToString())
        assert isinstance(verdict, Forward)
        if answered and verdict.learn is not None:
            verdict.learn(b"")
        told.append(tuple(bench.resizes))
    assert told == [("asked s1", *(["done s1"] if answered else []))] * 2, "and nothing of the online pod's"


def test_update_of_a_placed_sandbox_that_can_not_be_resized_is_refused() -> None:
    bench = Bench(runtime=Runtime(sandboxes={"s1": BOXED}), box=FakeAdmissions(full="700 bytes are in use"))
    request = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=b"s1", resources={"memory_limit_in_bytes": 100})
    verdict = bench.send(V1 + "UpdatePodSandboxResources", request.SerializeToString())
    assert isinstance(verdict, AnswerError)
    assert (verdict.code, bench.counters.labelled("refusals")) == (9, ["not_resized"])


def test_restore_places_sandbox_and_containers() -> None:
    bench = Bench()
    request = cri.RestorePodRequest(
        config=_config(True), container_configs=[cri.ContainerConfig(metadata=cri.ContainerMetadata(name=b"a"))]
    )
    answer = cri.RestorePodResponse(pod_sandbox_id=b"s9", restored_containers=[{"container_id": b"c9"}])
    verdict = bench.send(V1 + "RestorePod", request.SerializeToString(), answer.SerializeToString())
    message = cri.RestorePodRequest.FromString(forwarded(verdict))
    assert message.config.linux.cgroup_parent == BOXED.encode()
    assert message.container_configs[0].linux.resources.oom_score_adj == 1000
    sandbox = asyncio.run(bench.inventory.sandbox_of("c9"))
    assert sandbox is not None
    assert sandbox.placement == BOXED


def test_removed_sandbox_leaves_no_entry_and_is_reported() -> None:
    bench = Bench()
    bench.run_pod(run_request(True))
    bench.send(V1 + "CreateContainer", create_request("s1", True), b"\n\x02c1")
    remove = cri.RemovePodSandboxRequest(pod_sandbox_id=b"s1").SerializeToString()
    assert forwarded(bench.send(V1 + "RemovePodSandbox", remove, b"")) == remove
    assert len(bench.inventory) == 0
    assert [s.id for s in bench.removed] == ["s1"]


def test_stopped_sandbox_runs_no_more_and_stays_placed() -> None:
    bench = Bench()
    bench.run_pod(run_request(True))
    running = [sandbox.id for sandbox in bench.inventory.running_pods]
    stop = cri.StopPodSandboxRequest(pod_sandbox_id=b"s1").SerializeToString()
    assert forwarded(bench.send(V1 + "StopPodSandbox", stop, b"")) == stop
    assert (running, bench.inventory.running_pods) == (["s1"], ())
    assert [sandbox.id for sandbox in bench.inventory.placed] == ["s1"]


def test_refused_removal_keeps_the_entry() -> None:
    bench = Bench()
    bench.run_pod(run_request(True))
    bench.send(V1 + "RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=b"s1").SerializeToString())
    assert len(bench.inventory.placed) == 1


def test_pods_with_hostile_labels_are_judged_not_failed() -> None:
    config = _config(True)
    config.labels.append(cri.StringEntry(key=b"\xff/../" + b"x" * 100_000, value=b"\x00\xfe"))
    message = forwarded(Bench().run_pod(cri.RunPodSandboxRequest(config=config).SerializeToString()))
    rewritten = cri.RunPodSandboxRequest.FromString(message).config
    assert list(rewritten.labels) == list(config.labels)


def test_wants_only_the_methods_that_hooks_name() -> None:
    wants = Bench().intercept.wants
    assert wants("/runtime.v1.RuntimeService/RunPodSandbox")
    assert wants("/runtime.v1alpha2.RuntimeService/UpdateContainerResources")
    assert not wants("/runtime.v1.RuntimeService/ListContainers")
    assert not wants("/other.Service/RunPodSandbox")


def test_rules_are_not_asked_when_colocation_is_off() -> None:
    class NoRules(OfflineRules):  # type: ignore[misc]
        def why(self, pod: Pod) -> str | None:
            raise AssertionError

    bench = Bench(enabled=False)
    bench.configure(AdmissionSettings(False, NoRules(())))
    forwarded(bench.run_pod(run_request(True)))


def test_dry_run_passes_the_offline_pod_without_a_place() -> None:
    bench = Bench()
    bench.configure(AdmissionSettings(True, RULES, dry_run=True))
    assert forwarded(bench.run_pod(run_request(True, "/elsewhere/pod1"))) == run_request(True, "/elsewhere/pod1")
    assert bench.counters.labelled("refusals") == []


def test_dry_run_forwards_the_bytes_that_came_and_admits_nobody() -> None:
    bench = Bench()
    bench.configure(AdmissionSettings(True, RULES, dry_run=True))
    assert forwarded(bench.run_pod(run_request(True))) == run_request(True)
    assert bench.box.admitted == []
    assert bench.inventory.placed == ()
    assert bench.counters.labelled("rewrites") == []


def test_dry_run_keeps_a_placed_pod_in_the_box_and_writes_no_limit_of_its_cgroup() -> None:
    bench = Bench(runtime=Runtime(sandboxes={"s1": BOXED}))
    bench.configure(AdmissionSettings(True, RULES, dry_run=True))
    assert parent_of_created(bench.send(V1 + "CreateContainer", create_request("s1", True))) == BOXED
    request = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=b"s1", resources={"memory_limit_in_bytes": 100})
    forwarded(bench.send(V1 + "UpdatePodSandboxResources", request.SerializeToString()))
    assert bench.box.resized == []


CLOSED = "the schedule is off until Mon 22:00 CET"


def test_closed_door_refuses_the_offline_pod_and_says_until_when() -> None:
    bench = Bench()
    bench.configure(AdmissionSettings(True, RULES, closed=CLOSED))
    verdict = bench.run_pod(run_request(True))
    assert verdict == AnswerError(
        9, f"criproxy refuses RunPodSandbox of offline pod batch/job: {CLOSED}; kubelet tries again by itself"
    )
    assert (bench.box.admitted, bench.counters.labelled("refusals"), bench.inventory.placed) == ([], ["closed"], ())


def test_closed_door_passes_online_pods_and_containers_of_placed_ones() -> None:
    bench = Bench(runtime=Runtime(sandboxes={"s1": BOXED}))
    bench.configure(AdmissionSettings(True, RULES, closed=CLOSED))
    assert forwarded(bench.run_pod(run_request(False), "s2")) == run_request(False)
    assert parent_of_created(bench.send(V1 + "CreateContainer", create_request("s1", True))) == BOXED


def test_closed_door_of_a_node_that_is_off_lets_the_pod_start_as_an_ordinary_one() -> None:
    bench = Bench()
    bench.configure(AdmissionSettings(False, RULES, closed=CLOSED))
    assert forwarded(bench.run_pod(run_request(True))) == run_request(True)


def test_closed_door_in_a_dry_run_refuses_nobody() -> None:
    bench = Bench()
    bench.configure(AdmissionSettings(True, RULES, dry_run=True, closed=CLOSED))
    with structlog.testing.capture_logs() as logs:
        assert forwarded(bench.run_pod(run_request(True))) == run_request(True)
    assert [(line["event"], line["error"]) for line in logs] == [
        ("would_refuse", f"{CLOSED}; kubelet tries again by itself")
    ]
    assert bench.counters.labelled("refusals") == []


# --- what has started ----------------------------------------------------------------------------------------------


def _start(bench: Bench, container: str) -> None:
    message = cri.StartContainerRequest(container_id=container.encode()).SerializeToString()
    assert forwarded(bench.send(V1 + "StartContainer", message, b"")) == message


def test_started_sandbox_and_container_of_the_box_are_told_by_name() -> None:
    bench = Bench()
    bench.run_pod(run_request(True))
    create = cri.CreateContainerRequest.FromString(create_request("s1", True))
    create.config.metadata.name = b"main"
    bench.send(V1 + "CreateContainer", create.SerializeToString(), b"\n\x02c1")
    assert [(one.id, one.container) for one in bench.started] == [("s1", "")]
    _start(bench, "c1")
    assert [(one.id, one.container, one.sandbox.id) for one in bench.started[1:]] == [("c1", "main", "s1")]


def test_restored_containers_are_told() -> None:
    bench = Bench()
    request = cri.RestorePodRequest(config=_config(True), container_configs=[cri.ContainerConfig()])
    answer = cri.RestorePodResponse(pod_sandbox_id=b"s9", restored_containers=[{"container_id": b"c9", "name": b"a"}])
    bench.send(V1 + "RestorePod", request.SerializeToString(), answer.SerializeToString())
    assert [(one.id, one.container) for one in bench.started] == [("s9", ""), ("c9", "a")]


def test_start_that_failed_and_starts_of_others_are_not_told() -> None:
    bench = Bench()
    bench.run_pod(run_request(False), "online")
    bench.send(V1 + "CreateContainer", create_request("online", False), b"\n\x02c1")
    _start(bench, "c1")
    _start(bench, "nobody")
    bench.send(V1 + "RunPodSandbox", run_request(True))
    assert bench.started == []


def test_container_of_a_held_pod_is_refused_in_the_sandbox_that_it_has_and_updates_are_not() -> None:
    """Its processes were killed, and its sandbox could not be stopped: kubelet would start it anew in it."""
    bench = Bench()
    bench.run_pod(run_request(True))
    bench.held["1"] = "it was stopped"
    verdict = bench.send(V1 + "CreateContainer", create_request("s1", True))
    update = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=b"s1", resources={"memory_limit_in_bytes": 100})

    assert isinstance(verdict, AnswerError)
    assert "it was stopped" in verdict.message
    assert isinstance(bench.send(V1 + "UpdatePodSandboxResources", update.SerializeToString()), Forward)


def test_held_pod_is_refused_with_the_reason_and_others_are_not() -> None:
    bench = Bench(held={"1": "it landed elsewhere"})
    verdict = bench.run_pod(run_request(True))
    assert isinstance(verdict, AnswerError)
    assert verdict.message.endswith("offline pod batch/job: it landed elsewhere; kubelet tries again by itself")
    assert bench.box.admitted == []
    assert forwarded(bench.run_pod(run_request(False))) == run_request(False)
