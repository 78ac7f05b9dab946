"""Calls against a scripted runtime, box and config: who is adjusted, refused, left alone, and what is learned of it."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from msgspec.structs import replace

from criproxy.cgroup.naming import PodParent
from criproxy.hooks import Chain, HookSettings
from criproxy.hooks.hardening import Hardening
from criproxy.hooks.offline import OfflineRules, Rule, Subject, Test
from criproxy.model import (
    PLACEMENT_ANNOTATION,
    UNLIMITED,
    Adjustment,
    HostMount,
    Operation,
    Pod,
    PodRequest,
    Resources,
    Sandbox,
    Security,
    Target,
    Unlimited,
)
from criproxy.model.cpulist import Cpus
from criproxy.pods.admission import AdmissionSettings, Cause
from criproxy.pods.inventory import PodObserver
from criproxy.pods.placing import Made, PlacingOutcome, Proceed, RefusedCall, asked_of_box
from tests.fakes.box import FakeAdmissions
from tests.fakes.placing import (
    BOXED,
    DRY,
    KUBELET,
    OFF,
    ON,
    RULES,
    FakeCall,
    FakeCpuManager,
    FakeHolds,
    FakePart,
    PlacingBench,
    ScriptedRuntime,
    create,
    pod,
    resize,
    start,
    update,
)
from tests.fakes.waiting import until

OFFLINE, ONLINE = pod(True), pod(False)
PASSES = Proceed()


def placed() -> ScriptedRuntime:
    """A runtime with the sandbox s1 in the box, and c1 in it; s2 and its c2 are elsewhere."""
    return ScriptedRuntime({"s1": BOXED, "s2": ""}, {"c1": "s1", "c2": "s2"})


def passes(outcome: PlacingOutcome) -> bool:
    """As the very bytes that came."""
    assert isinstance(outcome, Proceed), outcome
    return outcome.message is None


def adjusted(outcome: PlacingOutcome) -> dict[str, str | int | None]:
    """The fields of the call's only part, as they go on."""
    assert isinstance(outcome, Proceed), outcome
    assert outcome.message is not None
    (fields,) = json.loads(outcome.message)
    assert isinstance(fields, dict)
    return fields


def refused(outcome: PlacingOutcome) -> Cause:
    assert isinstance(outcome, RefusedCall), outcome
    return outcome.cause


# --- a pod that starts ---------------------------------------------------------------------------------------------


def test_offline_pod_goes_to_the_box() -> None:
    bench = PlacingBench()
    with structlog.testing.capture_logs() as logs:
        fields = adjusted(bench.run_pod(OFFLINE))
    assert fields["cgroup_parent"] == BOXED
    assert (bench.box.admitted, bench.box.forgotten) == ([(BOXED, 0)], ["pod1"])
    assert [one.placement for one in bench.inventory.placed] == [BOXED]
    assert bench.counters.counted == [("rewrites", (Operation.RUN_POD_SANDBOX,), 1)]
    (line,) = logs
    assert (line["event"], line["pod"], line["offline_because"]) == ("rewrite", "batch/job", 'label class is "offline"')
    assert line["changes"][0]["field"] == "cgroup_parent"


@pytest.mark.parametrize(
    ("settings", "one"), [pytest.param(ON, ONLINE, id="online"), pytest.param(OFF, OFFLINE, id="offline-while-off")]
)
def test_other_pod_passes_at_once_and_is_known(settings: AdmissionSettings, one: Pod) -> None:
    bench = PlacingBench(settings)
    assert bench.placing.start(start(one)) == PASSES
    bench.run_pod(one)
    assert (bench.box.admitted, bench.inventory.placed, len(bench.inventory)) == ([], (), 1)


@pytest.mark.parametrize(
    ("parent", "full", "cause"),
    [
        pytest.param("/elsewhere/pod1", "", Cause.NO_PLACE, id="parent-not-of-kubelet"),
        pytest.param("", "", Cause.NO_PLACE, id="no-parent"),
        pytest.param("/kubepods/../pod1", "", Cause.NO_PLACE, id="path-like"),
        pytest.param("/kubepods/besteffort/pod2", "", Cause.NO_PLACE, id="parent-of-another-pod"),
        pytest.param(KUBELET, "the box is closed", Cause.NOT_ADMITTED, id="box-closed"),
    ],
)
def test_offline_pod_without_a_place_is_refused(parent: str, full: str, cause: Cause) -> None:
    bench = PlacingBench(box=FakeAdmissions(full=full))
    outcome = bench.run_pod(pod(True, parent))
    assert isinstance(outcome, RefusedCall)
    assert outcome.cause is cause
    assert outcome.words.startswith("criproxy refuses RunPodSandbox of offline pod batch/job: ")
    assert bench.counters.labelled("refusals") == [cause]


def test_refusal_is_in_ascii_and_of_no_great_length_whatever_the_pod_is_called() -> None:
    hostile = replace(OFFLINE, ref=replace(OFFLINE.ref, name="\udcff\n" + "x" * 100_000))
    outcome = PlacingBench(box=FakeAdmissions(full="é" * 100_000)).run_pod(hostile)
    assert isinstance(outcome, RefusedCall)
    assert outcome.words.isascii()
    assert len(outcome.words) < 20_000


# --- what an offline pod may not ask for -----------------------------------------------------------------------------

PRIVILEGED, ON_PATHS = Security(privileged=True), Security(host_mounts=(HostMount("/data"), HostMount("/mnt/link")))


def with_security(call: FakeCall, security: Security) -> FakeCall:
    call.parts[0].security = security
    return call


def hardened(**settings: Any) -> PlacingBench:
    bench = PlacingBench(runtime=placed())
    bench.configure(ON, HookSettings(child_quota=False, hardening=Hardening(**settings)))
    bench.host_paths.refused = frozenset(["/mnt/link"])
    return bench


@pytest.mark.parametrize("call", [start(OFFLINE), create(OFFLINE)], ids=["start", "create"])
def test_privileged_offline_pod_is_refused_and_told_why(call: FakeCall) -> None:
    outcome = hardened().place(with_security(call, PRIVILEGED))
    assert isinstance(outcome, RefusedCall)
    assert outcome.cause is Cause.UNBOUNDABLE
    assert "may not have privileged" in outcome.words
    assert "hardening.allow" in outcome.words


@pytest.mark.parametrize("security", [PRIVILEGED, ON_PATHS], ids=["privileged", "paths"])
def test_what_an_online_pod_asks_for_is_nobody_s_concern(security: Security) -> None:
    bench = hardened()
    assert passes(bench.place(with_security(start(ONLINE), security)))
    assert passes(bench.place(with_security(create(ONLINE, "s2"), security)))
    assert bench.host_paths.asked == []


def test_container_with_a_path_that_leads_out_of_the_box_is_refused() -> None:
    bench = hardened()
    assert refused(bench.place(with_security(create(OFFLINE), ON_PATHS))) is Cause.UNBOUNDABLE
    assert bench.host_paths.asked == [HostMount("/data"), HostMount("/mnt/link")]
    harmless = Security(host_mounts=(HostMount("/data"),))
    assert adjusted(bench.place(with_security(create(OFFLINE), harmless)))["cgroup_parent"] == BOXED


def test_container_with_kubelet_s_own_files_alone_is_adjusted_at_once() -> None:
    bench = hardened()
    asyncio.run(_known(bench))
    own = Security(host_mounts=(HostMount("/var/lib/kubelet/pods/1/etc-hosts"),))
    assert isinstance(bench.placing.follow(with_security(create(OFFLINE), own)), Proceed)
    assert isinstance(bench.place(with_security(create(OFFLINE), ON_PATHS)), RefusedCall)
    none = Hardening(refuse_host_paths=(), writable_host_paths=("/",))
    bench.configure(ON, HookSettings(child_quota=False, hardening=none))
    assert isinstance(bench.placing.follow(with_security(create(OFFLINE), ON_PATHS)), Proceed)


@pytest.mark.parametrize(
    "lists",
    [{"refuse_host_paths": ("/mnt/link",), "writable_host_paths": ("/",)}, {"refuse_host_paths": ()}],
)
def test_paths_are_looked_at_for_either_list(lists: dict[str, tuple[str, ...]]) -> None:
    bench = hardened(**lists)
    assert refused(bench.place(with_security(create(OFFLINE), ON_PATHS))) is Cause.UNBOUNDABLE


async def _known(bench: PlacingBench) -> None:
    """The inventory has asked the runtime."""
    await bench.inventory.sandbox("s1")


def test_pod_that_the_node_s_file_allows_has_what_it_asks_for() -> None:
    bench = hardened(allow=(Rule(Subject.NAMESPACE, "", Test.EQUALS, "batch"),))
    for call in (start(OFFLINE), create(OFFLINE)):
        assert "seccomp" not in adjusted(bench.place(with_security(call, Security(True, ("pid",), True))))
    assert adjusted(bench.place(with_security(create(OFFLINE), ON_PATHS)))["cgroup_parent"] == BOXED


def test_container_without_a_profile_gets_the_runtime_s() -> None:
    call = with_security(create(OFFLINE), Security(unconfined=True))
    assert adjusted(hardened().place(call))["seccomp"] == "RuntimeDefault"


def test_tier_that_a_pod_puts_itself_into_reaches_the_box_and_the_inventory() -> None:
    bench = PlacingBench()
    bench.run_pod(replace(OFFLINE, labels={**OFFLINE.labels, "colocation.criproxy.io/tier": "mid"}))
    assert bench.box.mid == ["pod1"]
    assert [one.mid for one in bench.inventory.placed] == [True]


BATCH = (
    '{"containers": {"main": {"requests": {"kubernetes.io/batch-cpu": "2000"}, '
    '"limits": {"kubernetes.io/batch-memory": "1Gi"}}}}'
)


@pytest.mark.parametrize(
    ("text", "shares", "ignored"),
    [
        pytest.param(BATCH, 2048, 0, id="batch"),
        pytest.param("nonsense", 0, 1, id="nonsense-is-logged"),
        pytest.param(
            BATCH.replace("1Gi", '1Gi", "kubernetes.io/batch-cpu": "9e18'), 0, 1, id="more-cpus-than-any-node"
        ),
    ],
)
def test_what_a_pod_asks_for_in_its_annotation_reaches_the_box_and_the_inventory_and_not_the_runtime(
    text: str, shares: int, ignored: int
) -> None:
    bench, one = PlacingBench(), pod(True, **{"node.koordinator.sh/extended-resource-spec": text})
    with structlog.testing.capture_logs() as logs:
        bench.run_pod(one)
    assert (bench.box.shares, bench.box.admitted) == ([shares], [(BOXED, 1 << 30 if shares else 0)])
    assert [one.cpu_shares for one in bench.inventory.placed] == [shares]
    assert [entry["event"] for entry in logs].count("annotation_ignored") == ignored
    fields = adjusted(bench.place(create(one)))
    assert {"cpu_shares", "memory_limit_in_bytes"} & fields.keys() == set(), "kubelet would take more for requests"


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
    one = pod(True, **{"colocation.criproxy.io/resources": annotation} if annotation else {})
    assert asked_of_box(one, Resources(memory_limit_bytes=declared_bytes)).memory_bytes == asked_bytes
    bench = PlacingBench()
    bench.place(start(one, declared_bytes))
    assert bench.box.admitted == [(BOXED, asked_bytes)]


def test_log_of_a_rewrite_repeats_no_long_text_of_the_author() -> None:
    bench = PlacingBench()
    with structlog.testing.capture_logs() as logs:
        bench.place(start(pod(True, **{PLACEMENT_ANNOTATION: "x" * 200_000})))

    assert max(len(str(change["old"])) for change in logs[0]["changes"]) < 400


def test_start_under_way_outlasts_the_removal_of_the_pod_s_last_sandbox() -> None:
    bench = PlacingBench()
    bench.run_pod(OFFLINE, "old")
    bench.place(start(OFFLINE))
    bench.inventory.sandbox_removed("old")
    assert [one.id for one in bench.removed] == ["old"]
    assert bench.box.forgotten == ["pod1"], "the second start is not over"


SLICE = "/kubepods.slice/kubepods-pod1.slice"


@pytest.mark.parametrize(
    ("starts", "settings", "driver"),
    [
        pytest.param([], ON, None, id="none"),
        pytest.param([ONLINE], ON, "cgroupfs", id="online-cgroupfs"),
        pytest.param([pod(False, SLICE)], ON, "systemd", id="online-systemd"),
        pytest.param([pod(False, SLICE)], OFF, "systemd", id="colocation-off"),
        pytest.param([OFFLINE], ON, "cgroupfs", id="offline"),
        pytest.param([ONLINE, pod(False, SLICE)], ON, "systemd", id="changed"),
        pytest.param([pod(False, SLICE), pod(False, "")], ON, "systemd", id="then-no-parent"),
        pytest.param([pod(False, SLICE), pod(False, "/other")], ON, "systemd", id="then-another-s"),
        pytest.param([pod(False, "/other"), ONLINE], ON, "cgroupfs", id="then-kubelet-s"),
        pytest.param([pod(False, "/kubepods/pod2")], ON, None, id="parent-of-another-pod"),
        pytest.param([pod(False, "system.slice")], ON, None, id="parent-not-of-kubelet"),
    ],
)
def test_kubelet_s_driver_is_learned_from_the_start_of_any_pod(
    starts: list[Pod], settings: AdmissionSettings, driver: str | None
) -> None:
    bench = PlacingBench(settings)
    for one in starts:
        bench.run_pod(one)
    assert bench.driver == driver


@pytest.mark.parametrize("offline", [True, False])
def test_each_start_of_a_pod_is_told_to_the_cpu_manager(offline: bool) -> None:
    bench = PlacingBench()
    bench.run_pod(pod(offline))
    assert bench.cpu_manager.looks == [""]


def test_restore_of_an_offline_pod_is_refused_as_a_checkpoint_says_what_its_processes_may() -> None:
    bench = PlacingBench()
    outcome = bench.place(FakeCall(Operation.RESTORE_POD, OFFLINE, parts=[FakePart(Target.SANDBOX)]), Made("s9"))
    assert isinstance(outcome, RefusedCall)
    assert "an offline pod may not have a checkpoint to restore" in outcome.words
    assert passes(bench.place(FakeCall(Operation.RESTORE_POD, ONLINE, parts=[FakePart(Target.SANDBOX)]), Made("s8")))


def test_restore_places_sandbox_and_containers_and_says_that_they_run() -> None:
    bench = PlacingBench()
    bench.configure(ON, HookSettings(child_quota=False, hardening=Hardening(refuse_privileged=False)))
    parts = [FakePart(Target.SANDBOX), FakePart(container="a")]
    outcome = bench.place(FakeCall(Operation.RESTORE_POD, OFFLINE, parts=parts), Made("s9", [("c9", "a")]))
    assert isinstance(outcome, Proceed)
    assert [part.fields.get("cgroup_parent") for part in parts] == [BOXED, None]
    assert [part.fields["oom_score_adj"] for part in parts] == [1000, 1000]
    assert [(one.id, one.container) for one in bench.started] == [("s9", ""), ("c9", "a")]
    sandbox = asyncio.run(bench.inventory.sandbox_of("c9"))
    assert sandbox is not None
    assert sandbox.placement == BOXED


def test_rules_are_not_asked_when_colocation_is_off() -> None:
    class NoRules(OfflineRules):  # type: ignore[misc]
        def why(self, pod: Pod) -> str | None:
            raise AssertionError

    assert passes(PlacingBench(AdmissionSettings(False, NoRules(()))).run_pod(OFFLINE))


# --- faults --------------------------------------------------------------------------------------------------------


class FailingHook:
    name = "failing"

    def adjust(self, call: PodRequest) -> Iterator[Adjustment]:
        raise RuntimeError("boom")


class WrongFieldHook:
    name = "wrong"

    def adjust(self, call: PodRequest) -> Iterator[Adjustment]:
        yield Adjustment("no_such_field", 1, "")


class BrokenBox(FakeAdmissions):
    async def admit(self, place: PodParent, memory_bytes: int, cpu_shares: int = 0, *, mid: bool = False) -> None:
        raise RuntimeError("boom")

    async def update_pod(self, place: PodParent, resized: Resources) -> None:
        raise RuntimeError("boom")


@pytest.mark.parametrize(
    "bench",
    [
        pytest.param(PlacingBench(chain=Chain((FailingHook(),))), id="hook-raises"),
        pytest.param(PlacingBench(chain=Chain((WrongFieldHook(),))), id="hook-names-no-field"),
        pytest.param(PlacingBench(box=BrokenBox()), id="box"),
        pytest.param(PlacingBench(holds=FakeHolds(broken=True)), id="hold"),
    ],
)
def test_fault_on_the_way_refuses_the_offline_pod_and_passes_the_online_one(bench: PlacingBench) -> None:
    assert refused(bench.run_pod(OFFLINE)) is Cause.HOOK_FAILED
    assert bench.counters.labelled("refusals") == ["hook_failed"]
    assert passes(bench.run_pod(ONLINE))


def test_fault_on_the_way_refuses_the_container_in_the_box_and_passes_the_others() -> None:
    bench = PlacingBench(runtime=placed(), holds=FakeHolds(broken=True))
    assert refused(bench.place(create(OFFLINE))) is Cause.HOOK_FAILED
    assert passes(bench.place(create(ONLINE, "s2")))


def test_fault_of_an_observer_refuses_the_update_in_the_box_and_passes_the_others() -> None:
    class Broken(PodObserver):
        def resize_asked(self, sandbox: Sandbox) -> None:
            raise RuntimeError("boom")

    bench = PlacingBench(runtime=placed())
    bench.inventory.watch(Broken())
    assert refused(bench.place(update("c1"))) is Cause.HOOK_FAILED
    assert passes(bench.place(update("c2")))


def test_call_that_can_not_be_encoded_is_refused_and_in_a_dry_run_passes() -> None:
    call = start(OFFLINE)
    call.stuck = True
    outcome = PlacingBench().place(call)
    assert outcome == RefusedCall(
        Cause.HOOK_FAILED, "criproxy refuses RunPodSandbox of offline pod batch/job: RuntimeError: boom"
    )
    with structlog.testing.capture_logs() as logs:
        assert passes(PlacingBench(DRY).place(call))
    assert [line["event"] for line in logs] == ["hook_failed", "would_refuse"]


def test_fault_on_the_way_of_a_dry_run_passes_the_offline_pod() -> None:
    bench = PlacingBench(DRY, holds=FakeHolds(broken=True))
    assert passes(bench.run_pod(OFFLINE))
    assert bench.counters.labelled("refusals") == []


@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize("error", [RuntimeError("boom"), ConnectionError("down")], ids=["fault", "runtime-silent"])
def test_sandbox_that_nobody_tells_of_refuses_the_offline_pod_s_container_alone(
    error: Exception, offline: bool
) -> None:
    bench = PlacingBench(runtime=ScriptedRuntime(error=error))
    with structlog.testing.capture_logs() as logs:
        created = bench.place(create(pod(offline)), Made(containers=[("c1", "main")]))
        updated = bench.place(update())
    if offline:
        assert refused(created) is Cause.UNKNOWN_SANDBOX
    else:
        assert created == Proceed(learns=False)
    assert updated == Proceed(learns=False)
    assert ("interceptor_failed" in [line["event"] for line in logs]) is isinstance(error, RuntimeError)
    assert [line["event"] for line in logs].count("update_not_judged") == 1
    assert len(bench.inventory) == 0


def test_fault_of_the_box_refuses_the_update_of_a_placed_sandbox() -> None:
    bench = PlacingBench(runtime=placed(), box=BrokenBox())
    assert refused(bench.place(resize())) is Cause.HOOK_FAILED


def test_call_that_can_not_be_opened_is_refused_where_pods_may_be_placed_by_it() -> None:
    bench = PlacingBench()
    with structlog.testing.capture_logs() as logs:
        outcome = bench.placing.undecodable(Operation.RUN_POD_SANDBOX, "3 bytes are no message")
    assert isinstance(outcome, RefusedCall)
    assert (outcome.cause, bench.counters.labelled("refusals")) == (Cause.UNDECODABLE, ["undecodable"])
    assert outcome.words.startswith("criproxy refuses RunPodSandbox: it can't be told whether its pod is offline")
    assert [(line["event"], line["refused"]) for line in logs] == [("request_undecodable", True)]
    bench.configure(OFF)
    assert bench.placing.undecodable(Operation.RUN_POD_SANDBOX, "3 bytes") == Proceed(learns=False)


# --- what follows a sandbox ----------------------------------------------------------------------------------------


def test_container_follows_its_sandbox_at_once_after_colocation_is_switched_off() -> None:
    bench = PlacingBench()
    bench.run_pod(OFFLINE)
    bench.configure(OFF)
    fields = adjusted(bench.place(create(OFFLINE)))
    assert (fields["cgroup_parent"], fields["cpu_quota"], fields["oom_score_adj"]) == (BOXED, None, 1000)


def test_container_of_the_box_that_asks_for_no_cpus_is_adjusted_at_once() -> None:
    bench = PlacingBench()
    bench.run_pod(OFFLINE)
    outcome = bench.placing.follow(create(OFFLINE))
    assert isinstance(outcome, Proceed), "nothing is to be waited for"
    assert outcome.message is not None


def test_container_of_a_pod_that_started_as_ordinary_passes_at_once_and_is_known() -> None:
    bench = PlacingBench(OFF)
    bench.run_pod(OFFLINE)
    bench.configure(ON)
    assert isinstance(bench.placing.follow(create(OFFLINE)), Proceed), "nothing is to be waited for"
    assert passes(bench.place(create(OFFLINE), Made(containers=[("c1", "main")])))
    assert len(bench.inventory) == 2


def test_container_after_a_restart_asks_the_runtime() -> None:
    bench = PlacingBench(runtime=placed())
    assert adjusted(bench.place(create(ONLINE)))["cgroup_parent"] == BOXED
    assert passes(bench.place(create(ONLINE, "s2")))
    assert bench.place(create(ONLINE, "nobody-s")) == PASSES


def test_container_with_a_forged_annotation_stays_where_kubelet_put_it() -> None:
    bench = PlacingBench(runtime=ScriptedRuntime({"s1": "/kubepods/pod1"}))
    assert passes(bench.place(create(ONLINE)))


@pytest.mark.parametrize(
    ("leaves", "kept"),
    [
        pytest.param(UNLIMITED, None, id="no-cpu-manager"),
        pytest.param(frozenset({0, 1}), None, id="within"),
        pytest.param(frozenset({0}), "0", id="one-is-online's-by-now"),
    ],
)
@pytest.mark.parametrize("call", [update(cpus="0-1"), create(OFFLINE, cpus="0-1")], ids=["update", "create"])
def test_container_keeps_the_cpus_that_kubelet_gives_it_but_for_those_of_online_pods(
    call: FakeCall, leaves: Cpus | Unlimited, kept: str | None
) -> None:
    call.parts[0].fields.clear()
    bench = PlacingBench(runtime=placed(), cpu_manager=FakeCpuManager(leaves))
    assert adjusted(bench.place(call)).get("cpuset_cpus") == kept
    assert bench.cpu_manager.looks == ["0-1"]


def test_update_to_cpus_that_can_not_be_had_is_refused() -> None:
    bench = PlacingBench(runtime=placed(), cpu_manager=FakeCpuManager(error="set kubelet.root_dir"))
    outcome = bench.place(update(cpus="1"))
    assert isinstance(outcome, RefusedCall)
    assert (outcome.cause, bench.counters.labelled("refusals")) == (Cause.NO_CPUS, ["no_cpus"])
    assert "set kubelet.root_dir" in outcome.words


@pytest.mark.parametrize("cpus", ["", "all of them"])
def test_update_without_a_list_of_cpus_asks_for_none(cpus: str) -> None:
    bench = PlacingBench(runtime=placed())
    assert "cpuset_cpus" not in adjusted(bench.place(update(cpus=cpus)))
    assert bench.cpu_manager.looks == []


@pytest.mark.parametrize("container", ["c2", "nobody"])
def test_update_of_another_container_passes_and_nothing_is_learned(container: str) -> None:
    outcome = PlacingBench(runtime=placed()).place(update(container, cpus="0-1"))
    assert isinstance(outcome, Proceed)
    assert (outcome.message, outcome.learns) == (None, False)


def test_update_of_a_container_by_a_front_that_names_its_sandbox_goes_by_that() -> None:
    call = update("a-container-that-nobody-knows")
    call.sandbox_id = "s1"
    assert "oom_score_adj" in adjusted(PlacingBench(runtime=placed()).place(call))


def test_update_of_a_placed_sandbox_resizes_the_pod_in_the_box() -> None:
    bench = PlacingBench(runtime=placed())
    bench.place(resize(memory_limit_bytes=105))
    assert bench.box.resized == [(BOXED, Resources(memory_limit_bytes=105))]


@pytest.mark.parametrize("answered", [True, False], ids=["done", "refused-by-the-runtime"])
def test_each_update_in_the_box_is_told_before_it_is_asked_for_and_once_it_is_done(answered: bool) -> None:
    bench = PlacingBench(runtime=placed())
    told = []
    for container in ("c1", "c2"):
        bench.place(update(container), Made() if answered else None)
        told.append(tuple(bench.resizes))
    assert told == [("asked s1", *(["done s1"] if answered else []))] * 2, "and nothing of the online pod's"


def test_resize_that_has_begun_is_done_to_the_end_though_the_runtime_has_ended_its_call() -> None:
    """One without the method says so before it has the request, and kubelet of 1.36 and later resizes all the same."""

    class SlowBox(FakeAdmissions):
        async def update_pod(self, place: PodParent, resized: Resources) -> None:
            begun.set()
            await room.wait()
            await super().update_pod(place, resized)

    begun, room = asyncio.Event(), asyncio.Event()
    bench = PlacingBench(runtime=placed(), box=SlowBox())

    async def scenario() -> None:
        found = bench.placing.follow(resize(memory_limit_bytes=105))
        assert not isinstance(found, Proceed | RefusedCall)
        call = asyncio.ensure_future(found)
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        room.set()
        await until(lambda: bench.box.resized == [(BOXED, Resources(memory_limit_bytes=105))])

    asyncio.run(scenario())


def test_update_of_a_placed_sandbox_that_can_not_be_resized_is_refused() -> None:
    bench = PlacingBench(runtime=placed(), box=FakeAdmissions(full="700 bytes are in use"))
    assert refused(bench.place(resize())) is Cause.NOT_RESIZED
    assert bench.counters.labelled("refusals") == ["not_resized"]


# --- dry run, closed, held -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parent", "event"), [(KUBELET, "would_rewrite"), ("/elsewhere/pod1", "would_refuse")], ids=["place", "no-place"]
)
def test_dry_run_says_what_it_would_do_and_does_nothing(parent: str, event: str) -> None:
    bench = PlacingBench(DRY)
    with structlog.testing.capture_logs() as logs:
        assert passes(bench.run_pod(pod(True, parent)))
    assert [line["event"] for line in logs] == [event]
    assert (bench.box.admitted, bench.inventory.placed, bench.counters.counted) == ([], (), [])


def test_dry_run_keeps_a_placed_pod_in_the_box_and_writes_no_limit_of_its_cgroup() -> None:
    bench = PlacingBench(DRY, runtime=placed())
    assert adjusted(bench.place(create(OFFLINE)))["cgroup_parent"] == BOXED
    assert "oom_score_adj" in adjusted(bench.place(resize()))
    assert bench.box.resized == []


WHY = "the schedule is off until Mon 22:00 CET"
CLOSED = AdmissionSettings(True, RULES, closed=WHY)


def test_closed_door_refuses_the_offline_pod_and_says_until_when() -> None:
    bench = PlacingBench(CLOSED)
    assert bench.run_pod(OFFLINE) == RefusedCall(
        Cause.CLOSED, f"criproxy refuses RunPodSandbox of offline pod batch/job: {WHY}; kubelet tries again by itself"
    )
    assert (bench.box.admitted, bench.counters.labelled("refusals"), bench.inventory.placed) == ([], ["closed"], ())


def test_closed_door_passes_online_pods_and_containers_of_placed_ones() -> None:
    bench = PlacingBench(CLOSED, runtime=placed())
    assert passes(bench.run_pod(ONLINE, "s3"))
    assert adjusted(bench.place(create(OFFLINE)))["cgroup_parent"] == BOXED


def test_closed_door_of_a_node_that_is_off_lets_the_pod_start_as_an_ordinary_one() -> None:
    assert passes(PlacingBench(replace(CLOSED, enabled=False)).run_pod(OFFLINE))


def test_closed_door_in_a_dry_run_refuses_nobody() -> None:
    bench = PlacingBench(replace(CLOSED, dry_run=True))
    with structlog.testing.capture_logs() as logs:
        assert passes(bench.run_pod(OFFLINE))
    assert [(line["event"], line["error"]) for line in logs] == [
        ("would_refuse", f"{WHY}; kubelet tries again by itself")
    ]
    assert bench.counters.labelled("refusals") == []


def test_held_pod_is_refused_with_the_reason_and_others_are_not() -> None:
    bench = PlacingBench(holds=FakeHolds({"1": "it landed elsewhere"}))
    outcome = bench.run_pod(OFFLINE)
    assert isinstance(outcome, RefusedCall)
    assert outcome.words.endswith("offline pod batch/job: it landed elsewhere; kubelet tries again by itself")
    assert bench.box.admitted == []
    assert passes(bench.run_pod(ONLINE))


def test_container_of_a_held_pod_is_refused_in_the_sandbox_that_it_has_and_updates_are_not() -> None:
    """Its processes were killed, and its sandbox could not be stopped: kubelet would start it anew in it."""
    bench = PlacingBench()
    bench.run_pod(OFFLINE)
    bench.holds.by_uid["1"] = "it was stopped"
    outcome = bench.place(create(OFFLINE))
    assert isinstance(outcome, RefusedCall)
    assert "it was stopped" in outcome.words
    assert isinstance(bench.place(resize()), Proceed)


# --- what has started ----------------------------------------------------------------------------------------------


def test_started_sandbox_and_container_of_the_box_are_told_by_name() -> None:
    bench = PlacingBench()
    bench.run_pod(OFFLINE)
    bench.place(create(OFFLINE), Made(containers=[("c1", "main")]))
    assert [(one.id, one.container) for one in bench.started] == [("s1", "")]
    bench.inventory.container_started("c1")
    assert [(one.id, one.container, one.sandbox.id) for one in bench.started[1:]] == [("c1", "main", "s1")]


def test_start_that_failed_and_starts_of_others_are_not_told() -> None:
    bench = PlacingBench()
    bench.run_pod(ONLINE, "online")
    bench.place(create(ONLINE, "online"), Made(containers=[("c1", "main")]))
    bench.inventory.container_started("c1")
    bench.place(start(OFFLINE))
    assert bench.started == []
