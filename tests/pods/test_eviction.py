"""One pod goes when one has to: who, how, and that it does not come straight back."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog
from msgspec.structs import replace
from structlog.testing import capture_logs

from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.kernel_files import KernelFile
from criproxy.control.interference.detectors import IO
from criproxy.control.interference.ladder import EvictionOrder
from criproxy.model import CPU, MEMORY, UNLIMITED, Limits, PodRef, Sandbox, Usage
from criproxy.pods.eviction import (
    ACCEPTED_S,
    GRACE_S,
    VICTIM_HELD_S,
    VICTIMS,
    EvictionState,
    PodEviction,
    disk_uses,
    memory_limits,
    usages,
)
from criproxy.pods.runtime import ListedContainer, ListedSandbox
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import ON_HARM, ON_OVER_LIMIT, ON_STARVED, BudgetError, Evicts, Holds, KnownPod, Leave
from criproxy.vocabulary.names import EVICTION_ENABLED
from tests.fakes.clock import FakeClock
from tests.fakes.driver import FakeDriver
from tests.fakes.hold_offs import held_off, no_hold_offs
from tests.fakes.waiting import until

MIB = 1 << 20
SMALL, LARGE = (Sandbox(f"s{n}", PodRef(f"u{n}", "batch", f"job{n}"), f"/offline/podu{n}") for n in (1, 2))
ORDER = EvictionOrder(MEMORY, "memory_shortage", False, frozenset(), "memory is nearly gone")


@dataclass
class Bench:
    """Box, driver, inventory, runtime and counters in one. Of one pod, an ended sandbox is in the list, too."""

    clock: FakeClock = field(default_factory=FakeClock)
    memory: dict[str, int] = field(default_factory=lambda: {"/offline/podu1": 50 * MIB, "/offline/podu2": 400 * MIB})
    limits: dict[str, float] = field(default_factory=dict)
    cache: int = 0
    cores: dict[str, float] = field(default_factory=lambda: {"/offline/podu1": 1.5, "/offline/podu2": 0.5})
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    kill_fails: Exception | None = None
    counted: list[tuple[str, ...]] = field(default_factory=list)
    fails: Exception | None = None
    stop_fails: Exception | None = None
    setting_ends: bool = False
    notices: dict[str, int] = field(default_factory=dict)
    evicts: Evicts | None = None
    running_pods: tuple[Sandbox, ...] = (SMALL, LARGE)
    disk_bytes_per_s: dict[str, int] = field(default_factory=dict)
    tiers: bool = False
    containers: tuple[ListedContainer, ...] = ()
    ends: asyncio.Event = field(default_factory=asyncio.Event)
    marked: tuple[ListedSandbox, ...] = ()
    lists: asyncio.Event | None = None
    began_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.holds = Holds(self.clock, no_hold_offs(self.clock), frozenset([ON_OVER_LIMIT]))
        shared = PodsShared(self, self, self.holds, self, self.clock, structlog.get_logger(), self.evicts)  # type: ignore[arg-type]
        self.eviction = PodEviction(shared, self, shared.stopper())  # type: ignore[arg-type]

    async def reads(self, what: str, job: Callable[[Any, str], Any]) -> Any:
        return job(self, "/offline")

    async def writes(self, what: str, job: Callable[[Any, str], Any], *, apart: str = "") -> Any:
        return job(self, "/offline")

    def state(self) -> Any:
        return SimpleNamespace(tiers=self.tiers)

    def usage(self, pod: str) -> Usage | None:
        if self.fails:
            raise self.fails
        if self.setting_ends:
            self.holds.configure(frozenset())
        if pod not in self.memory:
            return None
        size, now = self.memory[pod], self.clock.boottime_s()
        used = self.cores.get(pod, 0.0) * now
        return Usage(used, size + self.cache, 0.0, size + self.cache, size, reclaimable_bytes=self.cache)

    def read(self, pod: str) -> Limits:
        return {MEMORY: self.limits.get(pod, UNLIMITED)}

    def kill_pod(self, pod: str) -> None:
        assert f"s{pod[-1]}" not in self.stopped, "the runtime was asked before"
        assert self.holds.held_itself(PodRef(f"u{pod[-1]}", "", "")), "kubelet may start its containers again"
        if self.kill_fails:
            raise self.kill_fails
        self.killed.append(pod)

    @property
    def files(self) -> "Bench":
        return self

    def read_if_there(self, row: KernelFile, pod: str) -> Any:
        """io.stat."""
        rate = self.disk_bytes_per_s.get(pod)
        return None if rate is None else {"8:0": {"rbytes": int(rate * self.clock.boottime_s())}}

    async def sandboxes(self) -> list[ListedSandbox]:
        if self.lists:
            await self.lists.wait()
        listed = [*((one.id, one) for one in self.running_pods), ("ended", LARGE)]
        return [
            ListedSandbox(
                id, one.pod, one.placement or "", True, self.labels.get(id, {}), {}, self.began_s.get(id, 100.0)
            )
            for id, one in listed
        ]

    def notice_s(self, sandbox_id: str) -> int:
        return self.notices.get(sandbox_id, 0)

    def containers_of(self, sandbox_id: str) -> tuple[ListedContainer, ...]:
        return self.containers

    async def give_notice(self, container_id: str, notice_s: int) -> None:
        await self.ends.wait()

    async def stop(self, sandbox_id: str) -> None:
        if error := self.fails or self.stop_fails:
            raise error
        self.stopped.append(sandbox_id)

    async def refuse(self, sandbox_id: str) -> None:
        raise ConnectionError("no runtime")

    async def hang(self, sandbox_id: str) -> None:
        raise TimeoutError

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        self.counted.append((name, *labels))

    def evict(
        self, order: EvictionOrder = ORDER, setting: str = ON_OVER_LIMIT, excess_bytes: float = 0.0
    ) -> tuple[str, ...] | None:
        return asyncio.run(self.eviction.evict(order, setting, excess_bytes))

    def evict_and_end(self, order: EvictionOrder) -> None:
        """Until the notice is over, if there is any, and what follows it."""

        async def until_over() -> None:
            await self.eviction.evict(order, ON_OVER_LIMIT, 0.0)
            self.ends.set()
            await passes(10)

        asyncio.run(until_over())


async def passes(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def test_pod_with_the_most_memory_goes_and_is_held_for_a_while() -> None:
    bench = Bench()
    with capture_logs() as logs:
        owner = bench.evict()

    why = "memory is nearly gone; it uses 400.00 MiB, and of those with priority 0, it gives back most"
    assert (owner, bench.stopped, bench.counted) == ((), ["s2"], [("evictions", MEMORY)])
    assert [(one["event"], one["pod"], one["reason"]) for one in logs] == [("stop", "batch/job2", why)]
    assert bench.eviction.last == {MEMORY: f"batch/job2: {why}"}
    assert "not let in for 60 s" in bench.holds.held(LARGE.pod)
    assert bench.holds.held(SMALL.pod) == ""
    bench.clock.advance(VICTIM_HELD_S)
    assert bench.holds.held(LARGE.pod) == ""


def test_pod_goes_that_has_most_anonymous_memory_above_its_share_by_the_limits() -> None:
    """Of 450 MiB, 409 are the share of the one that may have ten times as much: it has 9 MiB less, the other 9 more."""
    bench = Bench(limits={"/offline/podu1": 100 * MIB, "/offline/podu2": 1000 * MIB}, cache=1 << 40)
    bench.evict()

    assert bench.stopped == ["s1"]
    assert "it uses 50.00 MiB" in bench.eviction.last[MEMORY]


def test_shares_of_memory_are_equal_where_not_every_pod_has_a_limit() -> None:
    bench = Bench(limits={"/offline/podu2": 1000 * MIB})
    bench.evict()

    assert bench.stopped == ["s2"]


@pytest.mark.parametrize("emergency", [True, False])
@pytest.mark.parametrize(
    ("excess_bytes", "gone"),
    [
        pytest.param(1100 * MIB, ["s2"], id="a-tenth-is-more-than-it-has"),
        pytest.param(400 * MIB, ["s1"], id="it-is-worth-it"),
        pytest.param(20 << 30, ["s2"], id="none-is-worth-it-and-the-largest-goes"),
    ],
)
def test_pod_that_has_next_to_nothing_of_what_is_needed_stays_whatever_its_priority(
    emergency: bool, excess_bytes: float, gone: list[str]
) -> None:
    bench = Bench(labels={"s1": {"koordinator.sh/priority": "-10"}})
    bench.evict(replace(ORDER, emergency=emergency), excess_bytes=excess_bytes)

    assert bench.stopped == gone


def test_innocents_do_not_go_in_the_stead_of_one_whose_owner_is_barred() -> None:
    bench = Bench(labels={"s2": {"job-name": "sort"}})
    order = replace(ORDER, barred=frozenset({"batch/job-name=sort"}))

    assert bench.evict(order, excess_bytes=1100 * MIB) is None
    assert bench.stopped == []


@pytest.mark.parametrize("spared_by", ["owner", "mark", "hold-off"])
@pytest.mark.parametrize(
    ("resource", "signal"), [(CPU, "cpu_pressure"), (IO, "io_pressure"), (MEMORY, "memory_pressure")]
)
def test_innocents_do_not_go_in_the_stead_of_the_one_that_harms_without_an_excess(
    resource: str, signal: str, spared_by: str
) -> None:
    """Where an experiment has convicted the box, it need not be above any limit."""
    marks = {"owner": {"job-name": "sort"}, "mark": {EVICTION_ENABLED: "false"}, "hold-off": {}}
    bench = Bench(
        memory={"/offline/podu1": 30 * MIB, "/offline/podu2": 4096 * MIB},
        cores={"/offline/podu1": 0.3, "/offline/podu2": 4.0},
        disk_bytes_per_s={"/offline/podu1": MIB, "/offline/podu2": 100 * MIB},
        labels={"s2": marks[spared_by]},
    )
    if spared_by == "hold-off":
        bench.holds.hold_offs = held_off(bench.clock, LARGE.pod.uid)
    order = replace(ORDER, resource=resource, signal=signal, barred=frozenset({"batch/job-name=sort"}))

    assert (bench.evict(order), bench.stopped) == (None, [])


@pytest.mark.parametrize(("emergency", "gone"), [(True, ["s2"]), (False, ["s1"])])
def test_no_mark_of_its_author_protects_a_pod_in_an_emergency(emergency: bool, gone: list[str]) -> None:
    bench = Bench(labels={"s2": {"koordinator.sh/eviction-enabled": "false"}})
    bench.evict(replace(ORDER, emergency=emergency))

    assert bench.stopped == gone


def test_page_cache_of_a_pod_does_not_count_as_it_stays_when_the_pod_goes() -> None:
    bench = Bench()
    bench.cache = 4 << 30
    bench.evict()

    assert "it uses 400.00 MiB" in bench.eviction.last[MEMORY]


def test_in_an_emergency_its_processes_are_killed_before_the_runtime_is_asked() -> None:
    bench = Bench()
    bench.evict(replace(ORDER, emergency=True))
    assert (bench.killed, bench.stopped) == (["/offline/podu2"], ["s2"])


def test_in_an_emergency_what_is_known_already_counts_where_the_runtime_does_not_answer() -> None:
    listed = ListedSandbox("s1", SMALL.pod, SMALL.placement or "", True, {}, {}, 100.0)
    bench = Bench(lists=asyncio.Event(), marked=(listed,))
    bench.evict(replace(ORDER, emergency=True))
    assert (bench.killed, bench.stopped) == (["/offline/podu1"], ["s1"])


def test_else_none_is_killed() -> None:
    bench = Bench()
    bench.evict()
    assert (bench.killed, bench.stopped) == ([], ["s2"])


def test_pod_whose_processes_can_not_be_killed_is_stopped_all_the_same() -> None:
    bench = Bench(kill_fails=CgroupError("cannot list its processes: EIO"))
    with capture_logs() as logs:
        bench.evict(replace(ORDER, emergency=True))
    assert bench.stopped == ["s2"]
    assert [one["reason"] for one in logs if one["event"] == "not_killed"] == ["cannot list its processes: EIO"]


def test_for_cpu_the_pod_goes_that_runs_most_now() -> None:
    bench = Bench()
    bench.evict(replace(ORDER, resource=CPU, signal="cpu_pressure"))

    assert bench.stopped == ["s1"]
    assert bench.clock.slept == [1.0]


def test_for_cpu_one_of_many_goes_that_share_the_floor_and_none_that_idles() -> None:
    """The box has 0.1 cores then, by default."""
    many = tuple(Sandbox(f"s{n}", PodRef(f"u{n}", "batch", f"job{n}"), f"/offline/podu{n}") for n in range(50))
    cores = {f"/offline/podu{n}": 0.002 for n in range(49)}
    labels = {"s49": {"koordinator.sh/priority": "-9"}}
    memory = dict.fromkeys((one.placement or "" for one in many), MIB)
    bench = Bench(running_pods=many, cores=cores, labels=labels, memory=memory)
    bench.evict(replace(ORDER, resource=CPU, signal="cpu_pressure"))

    assert len(bench.stopped) == 1
    assert bench.stopped != ["s49"]


def test_for_disks_the_pod_goes_that_reads_and_writes_most_now() -> None:
    bench = Bench(disk_bytes_per_s={"/offline/podu1": 3 * MIB, "/offline/podu2": 1 * MIB})
    bench.evict(replace(ORDER, resource=IO, signal="io_pressure"))

    assert bench.stopped == ["s1"]
    assert "it uses 3.00 MiB of disk IO per second" in bench.eviction.last[IO]
    assert bench.clock.slept == [1.0]


def test_for_disks_nobody_goes_that_does_nothing_there() -> None:
    bench = Bench(disk_bytes_per_s={"/offline/podu1": 0, "/offline/podu2": 100})
    assert bench.evict(replace(ORDER, resource=IO, signal="io_pressure")) is None
    assert bench.stopped == []


def test_who_goes_is_by_its_marks_and_who_owns_it_is_told() -> None:
    bench = Bench(labels={"s2": {"koordinator.sh/eviction-enabled": "false"}, "s1": {"job-name": "sort"}})

    assert bench.evict() == ("batch/job-name=sort",)
    assert bench.stopped == ["s1"]


def test_pod_of_an_owner_that_is_barred_stays() -> None:
    bench = Bench(labels={"s2": {"job-name": "sort"}})
    bench.evict(replace(ORDER, barred=frozenset({"batch/job-name=sort"})))

    assert bench.stopped == ["s1"]


@pytest.mark.parametrize("memory", [{}, {"/offline/podu1": 4096}], ids=["nothing-there", "next-to-nothing"])
def test_pods_without_memory_are_left_alone(memory: dict[str, int]) -> None:
    bench = Bench(memory=memory)
    with capture_logs() as logs:
        owner = bench.evict()

    assert (owner, bench.stopped) == (None, [])
    assert [entry["event"] for entry in logs] == ["not_relieved"]


def test_pod_is_neither_stopped_nor_held_when_the_setting_ends_while_it_is_sought() -> None:
    bench = Bench(setting_ends=True)

    assert (bench.evict(), bench.stopped, bench.holds.held(LARGE.pod)) == (None, [], "")


def test_pod_that_another_setting_is_to_stop_stays() -> None:
    bench = Bench()

    assert (bench.evict(setting=ON_HARM), bench.stopped) == (None, [])


@pytest.mark.parametrize("error", [CgroupError("cannot read"), ConnectionError("no runtime")])
def test_failure_is_logged_and_tried_again(error: Exception) -> None:
    bench = Bench(fails=error)
    with capture_logs() as logs:
        failed = bench.evict()
    bench.fails = None

    assert (failed, [entry["event"] for entry in logs]) == (None, ["not_relieved"])
    assert bench.evict() == ()


def test_pod_that_a_busy_runtime_does_not_stop_in_time_is_going_and_counts() -> None:
    bench = Bench()
    stop, bench.stop = bench.stop, bench.hang  # type: ignore[method-assign]
    with capture_logs() as logs:
        owner = bench.evict()
    bench.stop = stop  # type: ignore[method-assign]

    assert (owner, bench.counted) == ((), [("evictions", MEMORY)])
    assert logs[-1]["reason"] == "the runtime has not stopped batch/job2: no answer within 10 s"
    assert "not let in" in bench.holds.held(LARGE.pod)
    assert (bench.evict(), bench.stopped) == ((), ["s1"]), "the next one goes"


@pytest.mark.parametrize("emergency", [True, False], ids=["emergency", "no-emergency"])
@pytest.mark.parametrize("error", [ConnectionError("no teardown"), ValueError("no answer")], ids=["error", "nonsense"])
def test_pod_that_the_runtime_fails_to_stop_counts_as_its_processes_are_gone(emergency: bool, error: Exception) -> None:
    """containerd kills a sandbox's containers before CNI fails to take its network away."""
    bench = Bench(labels={"s2": {"job-name": "sort"}}, stop_fails=error)
    with capture_logs() as logs:
        owner = bench.evict(replace(ORDER, emergency=emergency))

    assert (owner, bench.counted) == (("batch/job-name=sort",), [("evictions", MEMORY)])
    assert logs[-1]["reason"] == f"the runtime has not stopped batch/job2: {error}"
    assert "not let in" in bench.holds.held_itself(LARGE.pod)


def test_pod_that_does_not_stop_does_not_keep_the_next() -> None:
    bench = Bench()
    stop, bench.stop = bench.stop, bench.refuse  # type: ignore[method-assign]
    bench.evict()
    bench.stop = stop  # type: ignore[method-assign]
    bench.evict()

    assert bench.stopped == ["s1"]


def test_pod_that_criproxy_is_held_off_goes_in_an_emergency_alone_and_after_all_others() -> None:
    bench = Bench()
    bench.holds.hold_offs = held_off(bench.clock, LARGE.pod.uid)
    bench.evict()
    bench.evict()
    before = list(bench.stopped)
    bench.evict(replace(ORDER, emergency=True))

    assert (before, bench.stopped) == (["s1"], ["s1", "s2"])


@pytest.mark.parametrize(("resource", "said"), [(MEMORY, ["stop"]), (CPU, ["notice", "stop"])])
def test_for_memory_there_is_no_time_for_notice(resource: str, said: list[str]) -> None:
    bench = Bench(notices={"s1": 30, "s2": 30})
    with capture_logs() as logs:
        bench.evict_and_end(replace(ORDER, resource=resource))

    assert [entry["event"] for entry in logs] == said


def test_where_the_box_alone_has_too_much_memory_there_is_time_for_notice_and_nobody_was_harmed() -> None:
    bench = Bench(notices={"s1": 30, "s2": 30})
    with capture_logs() as logs:
        bench.evict_and_end(replace(ORDER, signal="", reason="it is too much"))

    assert [entry["event"] for entry in logs] == ["notice", "stop"]
    assert bench.holds.held(LARGE.pod).startswith("it was stopped, as it is too much (")


# --- through the API -----------------------------------------------------------------------------------------------


class Api:
    """Lets only these go, within 16 s. `away`: it does not answer; nor, for some, while `silent`. What it was asked for
    is `asked`.
    """

    def __init__(
        self,
        *names: str,
        away: bool = False,
        silent: Collection[str] = (),
        pods: Mapping[str, KnownPod] | None = None,
    ) -> None:
        self.names, self.away, self.asked = names, away, list[tuple[str, float, int | None]]()
        self.silent = silent
        self.pods = pods or {}
        self.ends_s = 16.0

    async def known(self, *, within_s: float) -> Mapping[str, KnownPod]:
        return self.pods

    async def evict(
        self, pod: PodRef, why: str, *, within_s: float, grace_s: int | None = None, still: Callable[[], bool] = bool
    ) -> float | None:
        self.asked.append((pod.name, within_s, grace_s))
        if self.away or pod.name in self.silent:
            return None
        if pod.name not in self.names:
            raise BudgetError("none")
        return self.ends_s

    def promised_cores(self) -> float | None:
        return None

    def stopped(self, pod: PodRef, why: str) -> None:
        pass


STARVED = EvictionOrder(CPU, "", False, frozenset(), "pods starve")


def starving(api: Api | None, **fields: Any) -> Bench:
    bench = Bench(evicts=api, **fields)
    bench.holds.configure(frozenset([ON_STARVED]))
    return bench


@pytest.mark.parametrize(("began_s", "first"), [({"s1": 10.0, "s2": 20.0}, "job2"), ({"s1": 20.0, "s2": 10.0}, "job1")])
def test_where_pods_starve_the_youngest_is_evicted_whoever_uses_most(began_s: dict[str, float], first: str) -> None:
    api = Api("job1", "job2")
    bench = starving(api, began_s=began_s)
    assert bench.evict(STARVED, ON_STARVED) is not None

    assert [name for name, _, _ in api.asked] == [first]
    assert (bench.stopped, bench.killed) == ([], [])
    assert bench.counted == [("evictions", CPU)]
    why = next(iter(bench.eviction.last.values()))
    used_s = bench.cores[f"/offline/podu{first[-1]}"] * bench.clock.boottime_s()
    assert f"pods starve; it loses its work of {used_s:.0f} s of CPU time, but for what it has saved" in why
    assert "it is the youngest" in why


@pytest.mark.parametrize(
    "api",
    [
        pytest.param(None, id="no Kubernetes"),
        pytest.param(Api(away=True), id="no answer"),
        pytest.param(Api(), id="budgets keep all"),
    ],
)
def test_where_pods_starve_none_is_stopped_at_the_runtime(api: Api | None) -> None:
    bench = starving(api)
    assert bench.evict(STARVED, ON_STARVED) is None

    assert (bench.stopped, bench.killed, bench.counted) == ([], [], [])


def test_pod_that_says_so_does_not_go_for_others_that_starve() -> None:
    api = Api("job1", "job2")
    bench = starving(api, labels={"s1": {EVICTION_ENABLED: "false"}, "s2": {EVICTION_ENABLED: "false"}})
    assert bench.evict(STARVED, ON_STARVED) is None

    assert api.asked == []


def test_in_an_emergency_the_pod_that_its_budget_lets_go_is_killed_and_the_api_waited_for_half_a_second() -> None:
    api = Api("job1")
    bench = Bench(evicts=api)
    bench.evict(replace(ORDER, emergency=True))

    assert [(name, within_s) for name, within_s, _ in api.asked] == [("job2", 0.5), ("job1", 0.5)]
    assert (bench.killed, bench.stopped) == (["/offline/podu1"], [])


@pytest.mark.parametrize("emergency", [True, False])
@pytest.mark.parametrize("change", ["held-off", "switched-off", "ceased"])
def test_pod_that_is_not_to_go_any_more_when_the_api_was_waited_for_stays(emergency: bool, change: str) -> None:
    class Waits(Api):
        async def evict(
            self,
            pod: PodRef,
            why: str,
            *,
            within_s: float,
            grace_s: int | None = None,
            still: Callable[[], bool] = bool,
        ) -> float | None:
            if change == "held-off":
                bench.holds.hold_offs = held_off(bench.clock, pod.uid)
            elif change == "switched-off":
                bench.holds.configure(frozenset())
            else:
                bench.holds.rest(judges_on=False)
            return None

    bench = Bench(evicts=Waits())
    assert bench.evict(replace(ORDER, emergency=emergency)) is None
    assert (bench.killed, bench.stopped, bench.counted) == ([], [], [])


def test_kill_that_has_waited_for_its_thread_asks_once_more() -> None:
    class Late(Bench):
        async def writes(self, what: str, job: Callable[[Any, str], Any], *, apart: str = "") -> Any:
            self.holds.hold_offs = held_off(self.clock, "u2")
            return job(self, "/offline")

    bench = Late()
    bench.evict(replace(ORDER, emergency=True))
    assert (bench.killed, bench.stopped) == ([], [])


def test_priorities_and_owners_are_kubernetes_own_where_it_knows_them() -> None:
    labels = {"s1": {"job-name": "sort"}, "s2": {"job-name": "sort", "koordinator.sh/priority": "1000000"}}
    api = Api("job1", "job2", pods={"u1": KnownPod(3, "uid-sort"), "u2": KnownPod(9000, "uid-join")})
    bench = Bench(evicts=api, labels=labels)

    assert bench.evict() == ("uid-sort", "batch/job-name=sort")
    assert [name for name, *_ in api.asked] == ["job1"]
    assert "its priority 3 is the lowest" in bench.eviction.last[MEMORY]


@pytest.mark.parametrize("barred", ["uid-join", "batch/job-name=join"])
def test_owner_that_kubernetes_names_is_barred_by_its_uid_and_by_what_labels_say(barred: str) -> None:
    """The API server may not have answered when the last one went, or may not now."""
    api = Api("job1", "job2", pods={"u2": KnownPod(None, "uid-join")})
    bench = Bench(evicts=api, labels={"s2": {"job-name": "join"}})
    bench.evict(replace(ORDER, barred=frozenset({barred})))

    assert [name for name, *_ in api.asked] == ["job1"]


@pytest.mark.parametrize(("resource", "grace_s"), [(MEMORY, GRACE_S), (CPU, None)])
def test_pod_leaves_by_the_api_without_notice_of_ours_and_in_its_own_grace_where_there_is_time(
    resource: str, grace_s: int | None
) -> None:
    api = Api("job1", "job2")
    bench = Bench(evicts=api, notices={"s1": 30, "s2": 30})
    with capture_logs() as logs:
        bench.evict(replace(ORDER, resource=resource))

    assert [asked[1:] for asked in api.asked] == [(ACCEPTED_S, grace_s)]
    assert (bench.stopped, bench.counted, logs) == ([], [("evictions", resource)], [])


def test_pod_that_its_budget_keeps_runs_on_unheld_and_the_next_is_evicted() -> None:
    api = Api("job1")
    bench = Bench(evicts=api, labels={"s1": {"job-name": "sort"}})

    assert bench.evict() == ("batch/job-name=sort",)
    assert [name for name, *_ in api.asked] == ["job2", "job1"]
    assert bench.stopped == []
    assert [bool(bench.holds.held(one.pod)) for one in (LARGE, SMALL)] == [False, True]
    assert "disruption budgets keep those that come before it" in bench.eviction.last[MEMORY]


@pytest.mark.parametrize(
    ("api", "asked"), [(Api(), 2), (Api(away=True), 1)], ids=["budgets-hold-all", "nobody-answers"]
)
def test_first_in_rank_is_stopped_at_the_runtime_where_the_api_lets_none_go(api: Api, asked: int) -> None:
    """As kubelet does it, whose own eviction knows no budgets, and would take an online pod."""
    bench = Bench(evicts=api)
    bench.evict()

    assert (len(api.asked), bench.stopped) == (asked, ["s2"])
    assert bench.holds.held(SMALL.pod) == ""


@pytest.mark.parametrize("emergency", [False, True], ids=["no-emergency", "emergency"])
def test_pod_whose_eviction_is_not_answered_is_stopped_rather_than_the_one_that_its_budget_keeps(
    emergency: bool,
) -> None:
    """The request goes on by itself, and may be granted yet: two pods would go for one order."""
    api = Api(silent=("job1",))
    bench = Bench(evicts=api, labels={"s1": {"job-name": "sort"}})

    assert bench.evict(replace(ORDER, emergency=emergency)) == ("batch/job-name=sort",)
    assert [name for name, *_ in api.asked] == ["job2", "job1"]
    assert (bench.stopped, bench.killed) == (["s1"], ["/offline/podu1"] if emergency else [])
    assert bench.holds.held(LARGE.pod) == ""


@pytest.mark.parametrize(
    ("resource", "signal"), [(CPU, "cpu_pressure"), (IO, "io_pressure"), (MEMORY, "")], ids=["cpu", "io", "box-alone"]
)
def test_nobody_goes_whom_a_budget_keeps_where_kubelet_would_evict_nobody(resource: str, signal: str) -> None:
    bench = Bench(evicts=Api(), disk_bytes_per_s={"/offline/podu1": 3 * MIB, "/offline/podu2": 1 * MIB})
    with capture_logs() as logs:
        owner = bench.evict(replace(ORDER, resource=resource, signal=signal))

    assert (owner, bench.stopped, bench.counted, bench.holds.held(SMALL.pod)) == (None, [], [], "")
    assert [(one["event"], "disruption budgets" in one["reason"]) for one in logs] == [("not_relieved", True)]


def test_evicted_pod_that_has_not_ended_is_stopped_when_it_comes_first_again() -> None:
    api = Api("job2")
    bench = Bench(evicts=api)
    bench.evict()
    bench.clock.advance(VICTIM_HELD_S)
    bench.evict()

    assert (len(api.asked), bench.stopped) == (1, ["s2"])


def test_evicted_pod_that_kubelet_does_not_end_in_time_goes_before_any_other() -> None:
    """Where memory is nearly gone, kubelet may be as slow as all else: others must not go in its stead."""
    api = Api("job1", "job2")
    bench = Bench(evicts=api)
    bench.evict()
    bench.clock.advance(api.ends_s)
    bench.evict()

    assert ([name for name, *_ in api.asked], bench.stopped) == (["job2"], ["s2"])


def test_no_more_than_a_few_are_asked_for() -> None:
    api = Api()
    many = tuple(Sandbox(f"s{n}", PodRef(f"u{n}", "batch", f"job{n}"), f"/offline/podu{n}") for n in range(9))
    memory = {f"/offline/podu{n}": (100 + n if n > 3 else 1) * MIB for n in range(9)}
    bench = Bench(evicts=api, running_pods=many, memory=memory)
    bench.evict()

    assert [name for name, *_ in api.asked] == [f"job{n}" for n in range(8, 8 - VICTIMS, -1)]
    assert bench.stopped == ["s8"]


@pytest.mark.parametrize(
    ("resource", "signal"), [(CPU, "cpu_pressure"), (IO, "io_pressure"), (MEMORY, "")], ids=["cpu", "io", "box-alone"]
)
def test_pods_that_budgets_keep_do_not_keep_others_from_being_asked_for(resource: str, signal: str) -> None:
    api = Api("job3")
    many = tuple(Sandbox(f"s{n}", PodRef(f"u{n}", "batch", f"job{n}"), f"/offline/podu{n}") for n in range(9))
    uses = {f"/offline/podu{n}": (1 + n) * MIB for n in range(9)}
    cores = {path: use / MIB for path, use in uses.items()}
    bench = Bench(evicts=api, running_pods=many, memory=uses, cores=cores, disk_bytes_per_s=uses)
    order = replace(ORDER, resource=resource, signal=signal)
    first, first_asked = bench.evict(order), len(api.asked)
    second = bench.evict(order)

    assert (first, first_asked, second) == (None, VICTIMS, ())
    assert api.asked[-1][0] == "job3"
    assert not {name for name, *_ in api.asked[:VICTIMS]} & {name for name, *_ in api.asked[VICTIMS:]}
    assert "disruption budgets keep those that come before it" in bench.eviction.last[resource]


def test_pods_that_budgets_keep_are_asked_for_by_their_rank_again_a_minute_later() -> None:
    api = Api()
    bench = Bench(evicts=api)
    order = replace(ORDER, signal="")
    for seconds in (0.0, 10.0, VICTIM_HELD_S):
        bench.clock.advance(seconds)
        bench.running_pods = (LARGE, SMALL)[: 1 if seconds == 0.0 else 2]
        bench.evict(order)

    assert [name for name, *_ in api.asked] == ["job2", "job1", "job2", "job2", "job1"]


def test_in_an_emergency_the_pod_that_its_budget_keeps_goes_in_its_own_rank() -> None:
    bench = Bench(evicts=Api())
    bench.running_pods = (LARGE,)
    bench.evict(replace(ORDER, signal=""))
    bench.running_pods = (LARGE, SMALL)
    bench.evict(replace(ORDER, emergency=True))

    assert bench.killed == ["/offline/podu2"]


@pytest.mark.parametrize(
    ("tiers", "gone"), [pytest.param(True, ["s1"], id="on"), pytest.param(False, ["s2"], id="off")]
)
def test_pod_of_the_low_tier_goes_before_the_one_that_uses_more(tiers: bool, gone: list[str]) -> None:
    bench = Bench(running_pods=(SMALL, replace(LARGE, mid=True)), tiers=tiers)

    assert asyncio.run(bench.eviction.evict(ORDER, ON_OVER_LIMIT)) is not None
    assert bench.stopped == gone


# --- one, then it is looked again ------------------------------------------------------------------------------------


OF_CPU = replace(ORDER, resource=CPU, signal="cpu_pressure")


def test_none_goes_for_cpu_while_an_evicted_pod_has_its_grace_period() -> None:
    api = Api("job1", "job2")
    bench = Bench(evicts=api)
    bench.evict(OF_CPU)
    bench.clock.advance(10.0)
    meanwhile = bench.evict(OF_CPU)
    bench.running_pods = (LARGE,)
    later = bench.evict(OF_CPU)

    assert (meanwhile, later) == (None, ())
    assert [name for name, *_ in api.asked] == ["job1", "job2"]


def test_none_goes_for_cpu_while_a_pod_has_its_notice() -> None:
    bench = Bench(notices={"s1": 60}, containers=(ListedContainer("c1", "s1", "main", True),))

    async def orders() -> list[list[str]]:
        stopped = []
        for _ in range(3):
            await bench.eviction.evict(OF_CPU, ON_OVER_LIMIT)
            bench.clock.advance(10.0)
            stopped.append(list(bench.stopped))
        bench.ends.set()
        await asyncio.sleep(0.01)
        await bench.eviction.evict(OF_CPU, ON_OVER_LIMIT)
        return [*stopped, bench.stopped]

    assert asyncio.run(orders()) == [[], [], [], ["s1", "s2"]]


def test_who_goes_is_told_before_its_end_is_waited_for_and_only_an_emergency_does_not_wait_for_that() -> None:
    bench = Bench(labels={"s1": {"job-name": "sort"}})
    stop, answers = bench.stop, asyncio.Event()
    told: list[tuple[str, ...]] = []

    async def slow(sandbox_id: str) -> None:
        await answers.wait()
        await stop(sandbox_id)

    async def orders() -> tuple[tuple[str, ...] | None, ...]:
        bench.stop = slow  # type: ignore[method-assign]
        async with asyncio.timeout(60.0):  # as the first has not ended, what is waited for comes before its end
            first = asyncio.create_task(bench.eviction.evict(OF_CPU, ON_OVER_LIMIT, 0.0, told.append))
            await until(lambda: told)
            second = await bench.eviction.evict(OF_CPU, ON_OVER_LIMIT)
            emergency = asyncio.create_task(bench.eviction.evict(replace(ORDER, emergency=True), ON_OVER_LIMIT))
            await until(lambda: bench.killed)
        assert (told, bench.killed) == ([("batch/job-name=sort",)], ["/offline/podu2"])
        answers.set()
        return await first, second, await emergency

    assert asyncio.run(orders()) == (("batch/job-name=sort",), None, ())
    assert bench.stopped == ["s1", "s2"]


def test_a_pod_that_ignores_its_grace_period_of_an_hour_keeps_the_next_for_a_minute() -> None:
    api = Api("job1", "job2")
    api.ends_s = 3600.0
    bench = Bench(evicts=api)
    bench.evict(OF_CPU)
    bench.clock.advance(VICTIM_HELD_S - 2.0)
    meanwhile = bench.evict(OF_CPU)
    bench.clock.advance(2.0)
    bench.cores = {"/offline/podu2": 0.5}
    later = bench.evict(OF_CPU)

    assert (meanwhile, later) == (None, ())
    assert [name for name, *_ in api.asked] == ["job1", "job2"]


def restarted(bench: Bench, shift_s: float = 0.0) -> None:
    """As by another process, from what this one wrote."""
    written = msgspec.json.encode(bench.eviction.checkpoint())
    bench.clock.advance(shift_s)
    bench.__post_init__()
    bench.eviction.restore(msgspec.json.decode(written, type=EvictionState), shift_s)


@pytest.mark.parametrize("shift_s", [0.0, 5000.0])
def test_a_restart_gives_no_new_budget_to_pods_that_are_stopped_singly(shift_s: float) -> None:
    bench = Bench()
    leave = Leave(LARGE.pod, "rules match it", ON_OVER_LIMIT)
    before = {f"before-{number}": leave for number in range(6)}
    asyncio.run(bench.eviction.stopper.stop_all(before))
    bench.clock.advance(100.0)
    restarted(bench, shift_s)

    asyncio.run(bench.eviction.stopper.stop_all({"after": leave}))
    assert bench.stopped == list(before)
    bench.clock.advance(500.0)
    asyncio.run(bench.eviction.stopper.stop_all({"after": leave}))
    assert bench.stopped == [*before, "after"]


def test_budget_of_a_file_whose_times_are_too_late_is_over_in_ten_minutes_and_one_of_before_is_none() -> None:
    bench = Bench()
    leave = Leave(LARGE.pod, "rules match it", ON_OVER_LIMIT)
    bench.eviction.restore(msgspec.json.decode(b'{"tried": {}, "leaving": {}}', type=EvictionState), 0.0)
    bench.eviction.restore(EvictionState(counted={f"before-{number}": 1e12 for number in range(6)}), 0.0)
    asyncio.run(bench.eviction.stopper.stop_all({"after": leave}))
    assert bench.stopped == []
    bench.clock.advance(600.0)
    asyncio.run(bench.eviction.stopper.stop_all({"after": leave}))
    assert bench.stopped == ["after"]


@pytest.mark.parametrize("shift_s", [0.0, 5000.0])
def test_after_a_restart_none_goes_for_cpu_while_an_evicted_pod_has_its_grace_period(shift_s: float) -> None:
    api = Api("job1", "job2")
    bench = Bench(evicts=api)
    bench.evict(OF_CPU)
    restarted(bench, shift_s)
    bench.clock.advance(10.0)
    meanwhile = bench.evict(OF_CPU)
    bench.clock.advance(api.ends_s - 10.0)
    later = bench.evict(OF_CPU)

    assert (meanwhile, later) == (None, ())
    assert ([name for name, *_ in api.asked], bench.stopped) == (["job1"], ["s1"]), "it has not ended in its time"


def test_after_a_restart_none_goes_for_cpu_while_a_pod_has_its_notice() -> None:
    bench = Bench(notices={"s1": 60}, containers=(ListedContainer("c1", "s1", "main", True),))

    async def orders() -> list[tuple[str, ...] | None]:
        first = await bench.eviction.evict(OF_CPU, ON_OVER_LIMIT)
        restarted(bench)
        bench.clock.advance(VICTIM_HELD_S - 2.0)
        meanwhile = await bench.eviction.evict(OF_CPU, ON_OVER_LIMIT)
        bench.clock.advance(2.0)
        return [first, meanwhile, await bench.eviction.evict(OF_CPU, ON_OVER_LIMIT)]

    assert asyncio.run(orders()) == [(), None, ()]
    assert bench.stopped == ["s1"], "it has had its notice"


def test_where_memory_is_scarce_nobody_waits_for_the_last_one() -> None:
    api = Api("job1", "job2")
    bench = Bench(evicts=api)
    bench.evict()
    bench.evict()

    assert [name for name, *_ in api.asked] == ["job2", "job1"]


def test_pods_that_have_gone_or_are_not_bounded_or_counted_are_left_out_of_what_is_read() -> None:
    driver = FakeDriver()
    driver.boxes = {
        "/offline/poda": {MEMORY: 64 * MIB},
        "/offline/podb": {MEMORY: UNLIMITED},
    }
    driver.disk_bytes = {"/offline/poda": 7}
    pods = ("/offline/poda", "/offline/podb", "/offline/podc")

    assert usages(driver, pods).keys() == {"/offline/poda", "/offline/podb"}
    assert memory_limits(driver, pods) == {"/offline/poda": 64 * MIB}
    assert disk_uses(driver, pods) == {"/offline/poda": 7}


@pytest.mark.parametrize(("signal", "short"), [("cpu_pressure", CPU), ("", "")], ids=["harm", "too little"])
def test_what_online_was_short_of_is_known_while_the_pod_ends_after_a_restart_too(signal: str, short: str) -> None:
    bench = Bench(evicts=Api("job1", "job2"))
    assert bench.eviction.leaving == frozenset()
    bench.evict(replace(OF_CPU, signal=signal))
    assert bench.eviction.leaving == {short}
    restarted(bench)
    assert bench.eviction.leaving == {short}
