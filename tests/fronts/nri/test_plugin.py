"""What the runtime's events become: the same judgements as of CRI's calls, and answers that the runtime understands."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import structlog
from structlog.testing import capture_logs

from criproxy.fronts.http2.codes import Code
from criproxy.fronts.nri import messages as nri
from criproxy.fronts.nri.plugin import NriAnswer, NriPlugin, NriRefusal, Pending
from criproxy.hooks import HookSettings
from criproxy.model import HostMount, Operation, Resources
from criproxy.model.cpulist import parse_cpus
from criproxy.pods.admission import Cause
from criproxy.pods.inventory import UNLISTED_S
from tests.fakes.clock import FakeClock
from tests.fakes.nri import BOXED, KUBELET, ONLINE, container, entries, event, read, sandbox
from tests.fakes.placing import DRY, OFF, ON, FakeCgroups, PlacingBench

PATH = f"{BOXED}/c1"
OTHERS = "/kubepods/podu2"


def decided(pending: Pending) -> NriAnswer:
    return asyncio.run(cast("Coroutine[Any, Any, NriAnswer]", pending.outcome))


@dataclass
class PluginBench(PlacingBench):
    """A plugin, and a Placing of its own."""

    cgroups: FakeCgroups = field(default_factory=lambda: FakeCgroups(set()))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inventory.holds_sandboxes = False
        self.plugin = NriPlugin(self.placing, structlog.get_logger())

    def call(self, method: str, payload: bytes) -> NriAnswer:
        """Its answer, once it is decided; a pod that was let in has its cgroup then."""
        answer = self.plugin.call(method, payload)
        if isinstance(answer, Pending):
            answer = decided(answer)
        assert self.cgroups.has is not None
        self.cgroups.has |= {place for place, _ in self.box.admitted}
        return answer

    def run(self, pod: Any) -> NriAnswer:
        return self.call("RunPodSandbox", event(pod))

    def create(self, pod: Any, its: Any = None) -> Any:
        """What is to be otherwise of the container, or the refusal."""
        answer = self.call("CreateContainer", event(pod, its or container()))
        return answer if isinstance(answer, NriRefusal) else read(nri.CreateContainerAnswer(), answer).adjust.linux

    def synchronize(self, pods: list[Any], containers: list[Any] = [], *, more: bool = False) -> Any:  # noqa: B006
        request = nri.SynchronizeRequest(pods=pods, containers=containers, more=more)
        answer = self.call("Synchronize", request.SerializeToString())
        assert isinstance(answer, bytes)
        return read(nri.SynchronizeResponse(), answer)


def acting(**settings: Any) -> PluginBench:
    bench = PluginBench(**settings)
    bench.plugin.act()
    return bench


# --- events that are asked for --------------------------------------------------------------------------------------

BASE = (1, 2, 3, 4, 7, 8, 11)


@pytest.mark.parametrize(
    ("name", "version", "api", "events"),
    [
        ("containerd", "v1.7.24", "", BASE),
        ("containerd", "2.1.9~ds1", "", BASE),
        ("containerd", "v2.2.0", "", (*BASE, 12)),
        ("containerd", "2.10.0", "", (*BASE, 12)),
        ("containerd", "2.4.2+unknown", "v0.12.3", (*BASE, 12)),
        ("cri-o", "1.33.1", "", BASE),
        ("cri-o", "1.34.0", "", (*BASE, 12)),
        ("other", "9.9", "", BASE),
        ("other", "9.9", "v0.12.0", (*BASE, 12)),
        ("containerd", "who knows", "", BASE),
    ],
)
def test_no_event_is_asked_for_that_the_runtime_does_not_know(
    name: str, version: str, api: str, events: tuple[int, ...]
) -> None:
    asked = nri.ConfigureRequest(
        runtime_name=name.encode(), runtime_version=version.encode(), NRI_version=api.encode(), request_timeout=2000
    )
    answer = acting().call("Configure", asked.SerializeToString())
    assert isinstance(answer, bytes)
    mask = read(nri.ConfigureResponse(), answer).events
    assert [number for number in range(1, 32) if mask >> number - 1 & 1] == list(events)


# --- pods -----------------------------------------------------------------------------------------------------------


def test_an_online_pod_passes_at_once_and_is_known() -> None:
    bench = acting()
    assert bench.plugin.call("RunPodSandbox", event(sandbox(labels=ONLINE))) == b""
    assert bench.plugin.call("CreateContainer", event(sandbox(labels=ONLINE), container())) == b""
    assert bench.plugin.call("PostStartContainer", event(sandbox(labels=ONLINE), container())) == b""
    assert bench.inventory.known("s1").placement is None
    assert [one.name for one in bench.inventory.containers_of("s1")] == ["main"]
    assert bench.box.admitted == []


def test_an_offline_pods_containers_are_made_in_the_box() -> None:
    bench = acting()
    assert bench.run(sandbox()) == b""
    linux = {"oom_score_adj": {"value": 900}, "resources": {"cpu": {"quota": {"value": 5000}, "shares": {"value": 2}}}}
    wanted = bench.create(sandbox(), container(linux=linux))
    assert bench.box.admitted == [(BOXED, 0)]
    assert wanted.cgroups_path.decode() == PATH
    assert wanted.oom_score_adj.value == 1000
    assert wanted.resources.cpu.quota.value == -1  # v1 takes no quota below the box's
    assert not wanted.resources.cpu.HasField("shares")
    assert bench.inventory.known("", "c1").placement == BOXED
    assert [one.id for one in bench.started] == ["s1"]


def test_systemds_names_stay_the_runtimes() -> None:
    bench = acting()
    parent = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice"
    bench.cgroups = FakeCgroups(set())
    bench.run(sandbox(parent=parent))
    wanted = bench.create(sandbox(parent=parent), container(path="kubepods-besteffort-pod1.slice:cri-containerd:c1"))
    assert wanted.cgroups_path == b"offline-pod1.slice:cri-containerd:c1"


def test_a_runtime_of_another_driver_than_kubelets_is_refused() -> None:
    bench = acting()
    bench.run(sandbox())
    with capture_logs():
        refused = bench.create(sandbox(), container(path="kubepods-besteffort-pod1.slice:cri-containerd:c1"))
    assert isinstance(refused, NriRefusal)
    assert "does not" in refused.words


@pytest.mark.parametrize(
    ("changes", "its", "says"),
    [
        ({"full": "no memory"}, {}, "no memory"),
        ({"held": "it was stopped"}, {}, "it was stopped"),
        ({}, {"pod": {"namespaces": ("pid", "ipc")}}, "hostNetwork"),
        ({}, {"container": {"linux": {"resources": {"devices": [{"allow": True, "access": b"rwm"}]}}}}, "privileged"),
        ({}, {"container": {"mounts": [{"type": b"sysfs", "options": [b"nosuid"]}]}}, "privileged"),
        ({"paths": {"/etc"}}, {"container": {"mounts": [{"type": b"bind", "source": b"/etc"}]}}, "/etc"),
    ],
    ids=["full", "held", "host network", "all devices", "writable sysfs", "host path"],
)
def test_what_would_not_be_bounded_is_refused(
    changes: dict[str, Any], its: dict[str, dict[str, Any]], says: str
) -> None:
    bench = acting()
    bench.box.full = changes.get("full", "")
    bench.holds.by_uid = {"1": changes["held"]} if "held" in changes else {}
    bench.host_paths.refused = frozenset(changes.get("paths", ()))
    pod = sandbox(**its.get("pod", {}))
    begun = bench.run(pod)
    refused = begun if isinstance(begun, NriRefusal) else bench.create(pod, container(**its.get("container", {})))
    assert isinstance(refused, NriRefusal)
    assert refused.code == Code.FAILED_PRECONDITION
    assert "offline pod batch/job" in refused.words
    assert says in refused.words


def test_what_a_runtime_mounts_itself_is_no_host_path() -> None:
    bench = acting()
    bench.run(sandbox())
    own = [
        {"type": b"bind", "source": b"/run/containerd/sandboxes/s1/shm"},
        {"type": b"bind", "source": b"/var/lib/containers/c1/userdata"},
        {"type": b"proc", "source": b"proc"},
        {"type": b"sysfs", "source": b"sysfs", "options": [b"ro"]},
        {"type": b"bind", "source": b"/srv"},
    ]
    bench.create(sandbox(), container(mounts=own))
    assert bench.host_paths.asked == [HostMount("/srv")]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([b"rbind", b"rprivate", b"rw"], HostMount("/srv")),
        ([b"rbind", b"rprivate"], HostMount("/srv")),
        ([b"rbind", b"rprivate", b"ro"], HostMount("/srv", readonly=True)),
        ([b"rbind", b"rprivate", b"rro"], HostMount("/srv", readonly=True, recursive_read_only=True)),
        ([b"ro", b"rro"], HostMount("/srv", readonly=True, recursive_read_only=True)),
        ([b"ro", b"rw"], HostMount("/srv")),
        ([b"rro", b"rrw"], HostMount("/srv")),
        ([b"norro"], HostMount("/srv")),
    ],
)
def test_whether_a_mount_is_read_only_is_read_of_its_options(options: list[bytes], found: HostMount) -> None:
    bench = acting()
    bench.run(sandbox())
    bench.create(sandbox(), container(mounts=[{"type": b"bind", "source": b"/srv", "options": options}]))
    assert bench.host_paths.asked == [found]


def test_a_container_that_is_in_the_box_already_is_answered_with_nothing() -> None:
    """The other process of a hand-over has answered first; two that set one field fail the call."""
    bench = acting()
    bench.run(sandbox())
    assert bench.call("CreateContainer", event(sandbox(), container(path=PATH))) == b""


@pytest.mark.parametrize("admission", [OFF, DRY], ids=["off", "dry run"])
def test_nothing_is_placed_while_nothing_may_be(admission: Any) -> None:
    bench = acting(admission=admission)
    assert bench.run(sandbox()) == b""
    assert bench.call("CreateContainer", event(sandbox(), container())) == b""
    assert bench.box.admitted == []


# --- updates --------------------------------------------------------------------------------------------------------


def resources(quota_us: int = 0, cpus: str = "") -> Any:
    return nri.LinuxResources(cpu={"quota": {"value": quota_us}, "cpus": cpus.encode()})


def test_an_update_of_an_offline_container_is_rewritten() -> None:
    bench = acting()
    bench.cpu_manager.leaves = parse_cpus("0-1")
    bench.run(sandbox())
    bench.create(sandbox())
    update = nri.UpdateContainerEvent(
        pod=sandbox(), container=container(path=PATH), linux_resources=resources(5000, "1-2")
    )
    answer = bench.call("UpdateContainer", update.SerializeToString())
    assert isinstance(answer, bytes)
    (found,) = read(nri.UpdateContainerAnswer(), answer).update
    assert (found.container_id, found.linux.resources.cpu.quota.value) == (b"c1", -1)
    assert found.linux.resources.cpu.cpus == b"1"
    assert bench.box.resized == [(BOXED, Resources())]
    assert bench.resizes == ["asked s1", "done s1"]


def test_an_update_that_another_process_of_ours_has_rewritten_stays_as_it_is() -> None:
    bench = acting()
    bench.run(sandbox())
    update = nri.UpdateContainerEvent(pod=sandbox(), container=container(path=PATH), linux_resources=resources(-1))
    assert bench.call("UpdateContainer", update.SerializeToString()) == b""


def test_a_resize_of_a_pod_goes_to_the_box() -> None:
    bench = acting()
    bench.run(sandbox())
    given = nri.LinuxResources(memory={"limit": {"value": 100}}, cpu={"shares": {"value": 10}})
    resize = nri.UpdatePodSandboxEvent(
        pod=sandbox(), linux_resources=given, overhead_linux_resources={"memory": {"limit": {"value": 7}}}
    )
    assert bench.call("UpdatePodSandbox", resize.SerializeToString()) == b""
    assert bench.box.resized == [(BOXED, Resources(cpu_shares=10, memory_limit_bytes=107))]


# --- what is there already ------------------------------------------------------------------------------------------


def test_placements_are_found_again_without_a_record() -> None:
    bench = acting(cgroups=FakeCgroups({BOXED}))
    bench.synchronize(
        [sandbox(), sandbox("s2", labels=ONLINE, parent="/kubepods/pod2")], [container(path=PATH, state=3)]
    )
    assert [one.id for one in bench.inventory.placed] == ["s1"]
    assert bench.inventory.known("", "c1").placement == BOXED
    assert bench.create(sandbox(), container("c2")).cgroups_path.decode() == f"{BOXED}/c2"
    assert bench.box.admitted == []  # it is there


def test_a_pod_that_the_cri_front_has_placed_stays_in_the_box() -> None:
    bench = acting()
    bench.synchronize([sandbox(parent=BOXED)])
    assert bench.inventory.known("s1").placement == BOXED


def test_what_ran_before_this_process_stays_where_it_is() -> None:
    """It may have been online when it started."""
    bench = acting()
    bench.synchronize([sandbox()], [container(state=3)])
    assert bench.call("CreateContainer", event(sandbox(), container("c2"))) == b""
    assert bench.plugin.missed == 0


def test_a_start_that_nobody_was_told_of_is_made_up_for_with_the_next_container() -> None:
    bench = acting()
    bench.synchronize([])
    with capture_logs() as logs:
        bench.synchronize([sandbox()], [container(state=3)])
        bench.synchronize([sandbox()], [container(state=3)])
    assert [one for one in logs if one["event"] == "nri_missed" and one["containers"]] == [
        {
            "event": "nri_missed",
            "log_level": "warning",
            "pods": ["batch/job"],
            "containers": ["batch/job, container main"],
            "reason": "the runtime did not ask criproxy",
        }
    ]
    assert bench.plugin.missed == 1
    assert bench.create(sandbox(), container("c2")).cgroups_path.decode() == f"{BOXED}/c2"


def test_a_pod_that_started_before_this_process_is_placed_with_its_first_container() -> None:
    """Nobody has let one by while we were away: it would wait for ever."""
    bench = acting()
    bench.synchronize([sandbox()])

    assert bench.create(sandbox()).cgroups_path == PATH.encode()


def test_a_start_that_is_made_up_for_may_be_refused() -> None:
    bench = acting()
    bench.box.full = "no memory"
    assert isinstance(bench.create(sandbox()), NriRefusal)
    bench.box.full = ""
    assert bench.create(sandbox()).cgroups_path.decode() == PATH


def test_a_container_that_was_made_outside_though_its_pod_is_in_the_box_is_told() -> None:
    bench = acting(cgroups=FakeCgroups({BOXED}))
    bench.synchronize([sandbox()], [container(state=3), container("c2", f"{BOXED}/c2", state=3)])
    assert bench.plugin.missed == 1


def test_a_container_of_a_pod_that_is_still_judged_when_the_runtime_is_back_is_told() -> None:
    """It has thrown us out, as the judgement took too long, and has made the container without us."""
    bench = acting()
    bench.synchronize([])
    judged = bench.plugin.call("RunPodSandbox", event(sandbox()))
    assert isinstance(judged, Pending)
    bench.synchronize([sandbox()], [container(state=3)])
    assert bench.plugin.missed == 1
    decided(judged)
    assert bench.plugin.missed == 1


def test_a_long_list_comes_in_parts() -> None:
    bench = acting(cgroups=FakeCgroups({BOXED}))
    assert bench.synchronize([sandbox()], more=True).more
    assert not bench.synchronize([], [container(path=PATH)]).more
    assert bench.inventory.known("", "c1").placement == BOXED


def test_the_ends_of_pods_and_containers_are_learned() -> None:
    bench = acting()
    bench.run(sandbox())
    bench.create(sandbox())
    change = nri.StateChangeEvent(event=7, pod=sandbox(), container=container())
    bench.call("StateChange", change.SerializeToString())  # as before 0.12
    assert [one.id for one in bench.inventory.running] == ["c1"]
    assert bench.call("StopPodSandbox", event(sandbox())) == b""
    assert bench.inventory.running == ()
    bench.call("RemoveContainer", event(sandbox(), container()))
    bench.call("StateChange", nri.StateChangeEvent(event=3, pod=sandbox()).SerializeToString())
    assert len(bench.inventory) == 0
    assert bench.call("StateChange", nri.StateChangeEvent(event=5, pod=sandbox()).SerializeToString()) == b""


# --- hand-overs -----------------------------------------------------------------------------------------------------


def test_a_process_that_waits_for_its_turn_answers_nothing_and_then_knows_what_the_other_has_placed() -> None:
    bench = PluginBench()
    bench.synchronize([])
    bench.cgroups.has = {BOXED}  # the other has
    assert bench.run(sandbox()) == b""
    assert bench.call("CreateContainer", event(sandbox(), container(path=PATH))) == b""
    assert bench.run(sandbox("s2", labels=ONLINE, parent=OTHERS)) == b""
    assert bench.call("CreateContainer", event(sandbox("s2", labels=ONLINE, parent=OTHERS), container())) == b""
    assert bench.box.admitted == []
    bench.plugin.act()
    assert [one.id for one in bench.inventory.placed] == ["s1"]
    assert bench.create(sandbox(), container("c2")).cgroups_path.decode() == f"{BOXED}/c2"


def test_before_its_turn_it_places_a_container_of_the_box_that_the_other_was_too_slow_for() -> None:
    bench = PluginBench()
    bench.synchronize([])
    bench.cgroups.has = {BOXED}
    bench.run(sandbox())
    assert bench.create(sandbox()).cgroups_path.decode() == PATH
    assert bench.create(sandbox(), container("c2", path=f"{BOXED}/c2")).cgroups_path == b""
    assert bench.box.admitted == []


def test_before_its_turn_it_refuses_a_container_whose_pod_the_other_was_too_slow_for_and_places_it_then() -> None:
    bench = PluginBench()
    bench.synchronize([])
    assert bench.run(sandbox()) == b""
    refused = bench.create(sandbox())
    assert isinstance(refused, NriRefusal)
    assert "the old one was too slow for it; kubelet tries again by itself" in refused.words
    assert bench.box.admitted == []
    bench.plugin.act()
    assert bench.create(sandbox()).cgroups_path.decode() == PATH


@pytest.mark.parametrize("admission", [OFF, DRY], ids=["off", "dry run"])
def test_before_its_turn_it_refuses_nothing_while_nothing_is_placed(admission: Any) -> None:
    bench = PluginBench(admission=admission)
    bench.synchronize([])
    bench.run(sandbox())
    assert bench.call("CreateContainer", event(sandbox(), container())) == b""


def test_before_its_turn_it_refuses_nothing_of_pods_that_ran_before_it() -> None:
    bench = PluginBench()
    bench.synchronize([sandbox()], [container("c0", state=3)])
    assert bench.call("CreateContainer", event(sandbox(), container())) == b""


def test_a_container_that_both_processes_of_a_hand_over_were_too_slow_for_is_told() -> None:
    """The pod started while neither had the CPU for it: the runtime has thrown out the one, and then the other."""
    bench = PluginBench()
    bench.synchronize([])
    assert bench.run(sandbox()) == b""
    bench.plugin.act()
    with capture_logs() as logs:
        bench.synchronize([sandbox()], [container(state=3)])
    (missed,) = [log for log in logs if log["event"] == "nri_missed"]
    assert missed["containers"] == ["batch/job, container main"]
    assert bench.plugin.missed == 1
    assert bench.create(sandbox(), container("c2")).cgroups_path.decode() == f"{BOXED}/c2"


def test_a_pod_that_the_other_lets_in_after_our_turn_is_found_with_its_container() -> None:
    bench = PluginBench()
    bench.synchronize([])
    bench.run(sandbox())
    bench.plugin.act()
    bench.cgroups.has = {BOXED}
    assert bench.create(sandbox()).cgroups_path.decode() == PATH


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["RunPodSandbox", "CreateContainer", "UpdateContainer"])
def test_what_can_not_be_read_is_refused_while_it_may_be_an_offline_pods(method: str) -> None:
    bench = acting()
    bench.run(sandbox())
    refused = bench.call(method, b"\xff")
    assert isinstance(refused, NriRefusal)
    assert "can't be told" in refused.words
    off = acting(admission=OFF)
    assert off.call(method, b"\xff") == b""


def test_an_unknown_method_is_not_implemented() -> None:
    refused = acting().call("Frobnicate", b"")
    assert isinstance(refused, NriRefusal)
    assert refused.code == Code.UNIMPLEMENTED
    assert acting().call("Shutdown", b"") == b""


def test_a_call_that_takes_too_long_is_refused_and_counted() -> None:
    bench = acting()
    pending = bench.plugin.call("RunPodSandbox", event(sandbox()))
    assert isinstance(pending, Pending)
    refused = pending.late(0.45)
    assert decided(pending) == b""  # what was begun goes on
    assert isinstance(refused, NriRefusal)
    assert "offline pod batch/job: the node did not make room for it within 0.45 s" in refused.words
    assert bench.counters.counted == [("refusals", (Operation.RUN_POD_SANDBOX, Cause.LATE), 1)]


def test_what_is_decided_after_a_call_was_refused_is_neither_logged_nor_counted() -> None:
    bench = acting()
    bench.run(sandbox())
    before = list(bench.counters.counted)
    mounts = [{"type": b"bind", "source": b"/srv"}]
    for refused in ("/etc", "/srv"):
        bench.host_paths.refused = frozenset([refused])
        pending = bench.plugin.call("CreateContainer", event(sandbox(), container(mounts=mounts)))
        assert isinstance(pending, Pending)
        pending.late(0.45)
        with capture_logs() as log:
            decided(pending)
        assert log == []
    late = ("refusals", (Operation.CREATE_CONTAINER, Cause.LATE), 1)
    assert bench.counters.counted == [*before, late, late]


REQUIRED = "required-plugins.noderesource.dev"


@pytest.mark.parametrize(
    ("annotations", "required"),
    [
        ({}, 0),
        ({REQUIRED: '["criproxy"]'}, 1),
        ({REQUIRED: "[ other, criproxy ]"}, 1),  # the runtime reads YAML
        ({REQUIRED: '["not-criproxy"]'}, 0),
        ({REQUIRED: '["criproxy"]', f"{REQUIRED}/pod": "[]"}, 0),
        ({f"{REQUIRED}/pod": '["criproxy"]'}, 1),
        ({REQUIRED: '["criproxy"]', f"{REQUIRED}/container.main": "[]"}, 0),
        ({REQUIRED: '["criproxy"]', f"{REQUIRED}/container.main": '["criproxy"]'}, 1),
    ],
)
def test_pods_that_require_the_plugin_are_counted_as_the_runtime_reads_it(
    annotations: dict[str, str], required: int
) -> None:
    bench = acting()
    pod = sandbox()
    for key, value in annotations.items():
        pod.annotations.add(key=key.encode(), value=value.encode())
    bench.run(pod)
    assert (bench.plugin.required, bench.plugin.started) == (required, 1)


def test_a_partition_is_taken_away_by_its_default() -> None:
    bench = acting()
    bench.configure(ON, HookSettings(child_quota=True))
    bench.run(sandbox())
    given = {"unified": entries({"cpuset.cpus.partition": "root"}), "cpu": {"quota": {"value": 5000}}}
    wanted = bench.create(sandbox(), container(linux={"resources": given}))
    assert [(one.key, one.value) for one in wanted.resources.unified] == [(b"cpuset.cpus.partition", b"member")]
    assert not wanted.resources.cpu.HasField("quota")
    assert wanted.cgroups_path.decode() == f"{KUBELET}/c1".replace(KUBELET, BOXED)


# --- a Synchronize in parts, and what is remembered -----------------------------------------------------------------


def test_what_ran_before_this_process_stays_where_it_is_though_its_containers_come_in_a_later_part() -> None:
    bench = acting()
    bench.inventory.places_known = False
    bench.synchronize([sandbox()], more=True)
    assert (bench.plugin.awaits_more, bench.inventory.places_known) == (True, False)
    bench.synchronize([], [container(state=3)])
    assert (bench.plugin.awaits_more, bench.inventory.places_known) == (False, True)
    assert bench.plugin.missed == 0
    assert bench.call("CreateContainer", event(sandbox(), container("c2"))) == b""


def test_parts_of_a_connection_that_was_lost_are_forgotten() -> None:
    bench = acting()
    bench.synchronize([sandbox("gone")], more=True)
    bench.call("Configure", nri.ConfigureRequest().SerializeToString())
    bench.synchronize([sandbox()], [container(state=3)])
    assert bench.inventory.known("gone") is None


def test_nothing_is_remembered_of_refused_starts() -> None:
    bench = acting()
    bench.box.full = "no memory"
    for number in range(100):
        assert isinstance(bench.run(sandbox(f"s{number}")), NriRefusal)
    assert bench.plugin._heard == set()


def test_what_was_removed_while_nobody_was_told_is_forgotten() -> None:
    bench = acting()
    bench.synchronize([sandbox("a")], [container(state=3)])
    bench.synchronize([sandbox("b")], [])
    bench.synchronize([], [])
    assert not (bench.plugin._heard or bench.plugin._unplaced or bench.plugin._told)


def test_nothing_is_remembered_of_starts_that_were_refused_as_late() -> None:
    bench = acting()
    pending = bench.plugin.call("RunPodSandbox", event(sandbox()))
    assert isinstance(pending, Pending)
    assert isinstance(pending.late(0.45), NriRefusal)
    assert decided(pending) == b""
    assert not bench.plugin._heard
    assert bench.inventory.running_pods == ()
    assert bench.plugin.started == 0
    assert bench.box.admitted == [(BOXED, 0)]  # for kubelet's next try


@pytest.mark.parametrize("heard", [True, False], ids=["of a pod that we know", "whose start we missed"])
def test_nothing_is_remembered_of_a_container_that_was_refused_as_late(heard: bool) -> None:
    bench = acting()
    if heard:
        bench.run(sandbox())
    mounts = [{"type": b"bind", "source": b"/srv"}]
    pending = bench.plugin.call("CreateContainer", event(sandbox(), container(mounts=mounts)))
    assert isinstance(pending, Pending)
    assert isinstance(pending.late(0.45), NriRefusal)
    assert not isinstance(decided(pending), NriRefusal)
    assert bench.inventory.known("", "c1") is None
    assert [one.id for one in bench.inventory.running_pods] == ["s1"]  # its sandbox is there


# --- what the runtime's lists do not have yet -----------------------------------------------------------------------


@pytest.mark.parametrize("listed", [False, True], ids=["once", "and listed later"])
@pytest.mark.parametrize(("root", "swept"), [("/lab", False), ("", True)], ids=["another root", "swept"])
def test_list_that_was_made_before_the_runtime_kept_a_sandbox_lets_no_container_by(
    root: str, swept: bool, listed: bool
) -> None:
    """The runtime calls its plugins before it lists the sandbox."""
    bench = acting(cgroups=FakeCgroups(set(), root))
    bench.synchronize([])
    pod = sandbox(parent=f"{root}{KUBELET}")
    assert bench.run(pod) == b""
    asyncio.run(bench.inventory.refresh())
    if swept and "1" not in bench.inventory.uids:
        bench.cgroups.has = set()
    if listed:
        bench.runtime.placements["s1"] = ""
        asyncio.run(bench.inventory.refresh())
    made = bench.create(pod, container(path=f"{root}{KUBELET}/c1"))
    assert made.cgroups_path.decode() == f"{root}{BOXED}/c1"


def test_sandbox_that_no_list_has_for_long_and_one_whose_end_was_told_are_forgotten() -> None:
    bench, clock = acting(), FakeClock()
    bench.inventory.clock = clock
    bench.synchronize([])
    bench.run(sandbox("failed"))
    bench.create(sandbox("failed"), container("c1"))
    bench.call("RemovePodSandbox", event(sandbox("failed")))
    bench.run(sandbox("lost"))
    asyncio.run(bench.inventory.refresh())
    assert [one.id for one in bench.inventory.placed] == ["lost"]
    clock.now += UNLISTED_S
    asyncio.run(bench.inventory.refresh())
    assert len(bench.inventory) == 0
