"""Who is asked, how often, how many at once, and what is known afterwards."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from msgspec.structs import replace
from structlog.testing import capture_logs

from criproxy.concurrency.clock import Clock
from criproxy.control.interference.service_checks import ANNOTATION, ServiceAnswer, ServiceCheck
from criproxy.hooks.offline import DEFAULT_RULE, OfflineRules
from criproxy.model import Pod, PodRef
from criproxy.pods.inventory import Inventory, PodObserver
from criproxy.pods.runtime import ListedContainer
from criproxy.pods.service_checks import (
    MOST,
    MOST_COMMANDS,
    PUT_OFF_S,
    NotAskedError,
    ServiceChecks,
    ServiceChecksSettings,
    TooLargeError,
    random_pause_s,
)
from tests.fakes.clock import FakeClock
from tests.fakes.part import node_settings, round_of
from tests.fakes.waiting import until

RULES = OfflineRules((DEFAULT_RULE,))

HTTP = '{"http": {"port": 80}, "threshold": 100, "hold_s": 7, "every_s": 5, "timeout_s": 1}'
EXEC = '{"exec": {"command": ["x"], "container": "main"}}'


def pod(name: str, text: str | None = HTTP) -> Pod:
    return Pod(PodRef(f"u-{name}", "shop", name), annotations={} if text is None else {ANNOTATION: text})


@dataclass
class Bench:
    """The inventory and the asker, too. `says`: the answer, or what is raised; while `gate` is clear, none comes."""

    outside: dict[str, Pod]
    says: ServiceAnswer | Exception = field(default_factory=lambda: ServiceAnswer(True, "50"))
    running_pods: tuple[object, ...] = ("an offline pod",)
    containers: tuple[ListedContainer, ...] = ()
    active: bool = True
    measured_s: float = 5.0
    random_pause_s: Callable[[], float] = lambda: 0.0
    queries: Mapping[str, str] = field(default_factory=lambda: {"x": "max(x)"})

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[tuple[str, str]] = []
        self.asked_s: list[float] = []
        self.hindered = ""
        self.under_way = self.most_under_way = 0
        shared: Any = SimpleNamespace(inventory=self, clock=self.clock, log=structlog.get_logger())
        self.checks = ServiceChecks(shared, self, self.settings(), self.random_pause_s)

    def settings(self, active: bool | None = None) -> ServiceChecksSettings:
        return ServiceChecksSettings(self.active if active is None else active, RULES, self.measured_s, self.queries)

    def watch(self, observer: PodObserver) -> None:
        pass

    def runs(self, sandbox_id: str) -> bool:
        return sandbox_id in self.outside

    def containers_of(self, sandbox_id: str) -> tuple[ListedContainer, ...]:
        return self.containers

    async def ask(self, check: ServiceCheck, sandbox_id: str, container_id: str) -> ServiceAnswer:
        self.asked.append((sandbox_id, container_id))
        self.asked_s.append(self.clock.boottime_s())
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.gate.wait()
        finally:
            self.under_way -= 1
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    async def hindrance(self, check: ServiceCheck, sandbox_id: str) -> str:
        return self.hindered

    async def seconds(self, count: int) -> None:
        for _ in range(count):
            await self.checks.look()
            for _ in range(10):
                await asyncio.sleep(0)
            self.clock.advance(1.0)

    def percents(self) -> list[float]:
        return [one.percent for one in self.checks.signals()]


def run(test: Callable[[], object]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_service_is_asked_as_often_as_it_says_and_its_last_word_is_the_signal() -> None:
    async def test() -> None:
        bench = Bench({"s1": pod("web"), "s2": pod("silent", None)})
        await bench.seconds(11)
        assert bench.asked == [("s1", "")] * 3
        (signal,) = bench.checks.signals()
        assert (signal.pod.name, signal.percent, signal.threshold, signal.hold_s) == ("web", 50.0, 100.0, 7.0)
        bench.says = ServiceAnswer(True, "250")
        await bench.seconds(5)
        assert bench.percents() == [250.0]

    run(test)


class CountedPods(dict[str, Pod]):
    """Counts how often all are gone through."""

    walks = 0

    def items(self) -> Any:
        self.walks += 1
        return super().items()


def test_pods_are_gone_through_once_for_each_listing() -> None:
    async def test() -> None:
        pods = CountedPods({f"s{number}": pod("silent", None) for number in range(3)})
        bench = Bench(pods)
        await bench.seconds(10)
        assert pods.walks == 1
        pods["s9"] = pod("web")
        bench.checks.pods_listed()
        await bench.seconds(10)
        assert (pods.walks, bench.asked) == (2, [("s9", "")] * 2)

    run(test)


def test_requests_come_about_each_second_and_never_at_a_time_that_can_be_foreseen() -> None:
    """Nothing that an experiment does reaches the checks, so that their pace is the same with one and without."""

    async def test() -> None:
        bench = Bench({"s1": pod("web", HTTP.replace('"every_s": 5', '"every_s": 1'))}, random_pause_s=random_pause_s)
        for _ in range(400):
            begin_s = bench.clock.boottime_s()
            await bench.seconds(1)
            bench.clock.advance(begin_s + 1.0 - bench.clock.boottime_s())
        gaps = [after - before for before, after in pairwise(bench.asked_s)]
        assert len(gaps) == 399
        assert 0.5 <= min(gaps) < 0.7
        assert 1.3 < max(gaps) <= 1.5
        assert 0.98 < sum(gaps) / len(gaps) < 1.02

    run(test)


def test_word_is_of_the_moment_that_it_was_asked_for() -> None:
    async def test() -> None:
        bench = Bench({"s1": pod("web")})
        bench.gate.clear()
        asked_s = bench.clock.boottime_s()
        await bench.seconds(3)
        bench.gate.set()
        await bench.seconds(1)
        assert [one.asked_s for one in bench.checks.signals()] == [asked_s]

    run(test)


def test_word_of_a_query_is_as_old_as_its_answer_may_be() -> None:
    async def test() -> None:
        bench = Bench(
            {"s1": pod("web", '{"prometheus": {"query": "x", "lag_s": 20}, "threshold": 100}')}, measured_s=21.0
        )
        asked_s = bench.clock.boottime_s()
        await bench.seconds(1)
        assert [one.asked_s for one in bench.checks.signals()] == [asked_s - 20.0]

    run(test)


def test_query_that_the_node_names_anew_is_asked_without_another_list_of_pods() -> None:
    async def test() -> None:
        bench = Bench({"s1": pod("web", '{"prometheus": {"query": "x", "lag_s": 0}, "threshold": 100}')}, queries={})
        with capture_logs() as logs:
            await bench.seconds(2)
        (service,) = bench.checks.services()
        assert (bench.asked, [one["event"] for one in logs]) == ([], ["service_check_ignored"])
        assert "no query is named 'x' in interference.queries of this node" in service.problem
        bench.checks.configure(node_settings("[[interference.queries]]\nname = 'x'\npromql = 'max(x)'\n"))
        await bench.seconds(2)
        assert bench.percents() == [50.0]
        (service,) = bench.checks.services()
        assert str(service.check.asked if service.check else "") == "query max(x)"

    run(test)


def test_query_that_lags_behind_for_as_long_as_an_experiment_measures_says_why_it_is_not_asked() -> None:
    async def test() -> None:
        bench = Bench({"s1": pod("web", '{"prometheus": {"query": "x"}, "threshold": 100}')}, measured_s=15.0)
        await bench.seconds(2)
        (service,) = bench.checks.services()
        assert (bench.asked, bench.percents()) == ([], [])
        assert "up to 15 s old (lag_s), and an experiment measures for 15 s" in service.problem
        bench.measured_s = 16.0
        bench.checks.settings = bench.settings()
        await bench.seconds(2)
        assert (bench.percents(), service.problem) == ([50.0], "")

    run(test)


def test_services_that_never_answer_keep_no_other_waiting() -> None:
    async def test() -> None:
        bench = Bench({f"s{n}": pod(f"p{n}") for n in range(MOST)})
        bench.gate.clear()
        await bench.seconds(1)
        assert bench.under_way == MOST
        await bench.seconds(5)
        assert bench.most_under_way == MOST, "each has one request at a time"

    run(test)


def test_check_is_asked_at_least_once_in_what_an_experiment_measures() -> None:
    async def test() -> None:
        bench = Bench({"s1": pod("web")}, measured_s=2.0)
        await bench.seconds(9)
        assert [after - before for before, after in pairwise(bench.asked_s)] == [2.0, 2.0, 2.0, 2.0]
        assert bench.percents() == [50.0]

    run(test)


@pytest.mark.parametrize("measured_s", [1.0, 5.0])
def test_commands_are_few_and_asked_every_other_second(measured_s: float) -> None:
    async def test() -> None:
        bench = Bench({f"s{n}": pod(f"p{n}", EXEC) for n in range(MOST_COMMANDS + 1)}, measured_s=measured_s)
        bench.containers = (ListedContainer("c1", "s0", "main", True),)
        await bench.seconds(4)
        assert len(bench.asked) == 2 * MOST_COMMANDS
        (left_out,) = (one for one in bench.checks.services() if not one.was_well)
        assert left_out.problem == "8 commands of this node are asked already"

    run(test)


def test_failing_service_is_harm_only_once_it_was_well() -> None:
    async def test() -> None:
        bench = Bench({"s1": pod("web")}, ConnectionRefusedError("refused"))
        await bench.seconds(6)
        assert bench.percents() == []
        assert bench.checks.services()[0].problem == "it has not been well since it was first asked: refused"
        bench.says = ServiceAnswer(True, "1")
        await bench.seconds(5)
        bench.says = ConnectionRefusedError("refused")
        await bench.seconds(5)
        assert bench.percents() == [200.0]
        assert bench.checks.services()[0].problem == "refused"

    run(test)


def test_service_that_could_not_be_asked_is_not_failing_but_unknown_in_the_end() -> None:
    async def test() -> None:
        bench = Bench({"s1": pod("web")})
        await bench.seconds(6)
        bench.says = NotAskedError("the runtime is restarted")
        await bench.seconds(6)
        soon = bench.percents()
        await bench.seconds(12)
        assert (soon, bench.percents()) == ([50.0], [])
        assert bench.checks.services()[0].problem == "it could not be asked: the runtime is restarted"
        bench.says = ServiceAnswer(True, "60")
        await bench.seconds(6)
        assert (bench.percents(), bench.checks.services()[0].problem) == ([60.0], "")

    run(test)


def test_service_that_was_well_before_a_restart_is_believed_at_once() -> None:
    async def test() -> None:
        before, after = (Bench({"s1": pod("web"), "s2": pod("api")}) for _ in range(2))
        before.says = ServiceAnswer(True, "1")
        await before.seconds(5)
        assert before.checks.well == {"s1", "s2"}
        after.says = ConnectionRefusedError("refused")
        after.checks.recall({"s1"})
        await after.seconds(5)
        assert [(one.pod.name, one.percent) for one in after.checks.signals()] == [("web", 200.0)]
        assert after.checks.well == {"s1"}

    run(test)


@pytest.mark.parametrize("idle", ["inactive", "no-offline-pod"])
def test_service_that_was_well_before_a_while_without_offline_pods_is_believed_at_once(idle: str) -> None:
    """As after a hold-off: what offline pods do then begins before the service is asked again."""

    async def test() -> None:
        bench = Bench({"s1": pod("web")})
        await bench.seconds(5)
        pods = bench.running_pods
        bench.running_pods = () if idle == "no-offline-pod" else pods
        bench.checks.settings = bench.settings(idle != "inactive")
        await bench.seconds(3)
        known = bench.checks.well
        bench.running_pods = pods
        bench.checks.settings = bench.settings(True)
        bench.says = ServiceAnswer(True, "250")
        await bench.seconds(2)
        assert known == {"s1"}, "a restart meanwhile keeps it, too"
        assert bench.percents() == [250.0]
        bench.outside = {}
        await bench.seconds(1)
        assert bench.checks.well == frozenset(), "pods that go are forgotten"

    run(test)


def test_slow_service_is_given_up_in_time_and_keeps_nobody() -> None:
    async def test() -> None:
        bench = Bench({"s1": pod("web", HTTP.replace('"timeout_s": 1', '"timeout_s": 0.1'))})
        await bench.seconds(1)
        bench.gate.clear()
        await bench.seconds(6)
        assert bench.under_way == 1
        await asyncio.sleep(0.3)
        assert bench.under_way == 0
        assert bench.percents() == [200.0]
        assert bench.checks.services()[0].problem == "no answer within 0.1 s"

    run(test)


@pytest.mark.parametrize("says", [ServiceAnswer(False, "status 500"), ConnectionError("gone")], ids=["no", "nothing"])
def test_service_that_the_machine_keeps_criproxy_from_says_nothing_of_harm(says: ServiceAnswer | Exception) -> None:
    async def test() -> None:
        bench = Bench({"s1": pod("web")})
        await bench.seconds(1)
        bench.says, bench.hindered = says, "systemctl set-property"
        await bench.seconds(6)
        answered = isinstance(says, ServiceAnswer)
        assert bench.percents() == ([200.0] if answered else [])
        assert (bench.checks.services()[0].problem == "systemctl set-property") is not answered

    run(test)


def test_who_starts_many_takes_no_place_from_another() -> None:
    async def test() -> None:
        many = {f"m{number}": pod(f"many-{number}") for number in range(3 * MOST)}
        other = Pod(PodRef("u-other", "bank", "other"), annotations={ANNOTATION: HTTP})
        bench = Bench({**many, "s-other": other})
        await bench.seconds(12)
        assert "s-other" in {sandbox for sandbox, _ in bench.asked}

    run(test)


def test_only_so_many_of_a_node_are_asked() -> None:
    async def test() -> None:
        bench = Bench({f"s{number}": pod(f"web-{number}") for number in range(MOST + 3)})
        bench.gate.clear()
        await bench.seconds(3)
        assert bench.under_way == MOST
        bench.gate.set()
        await bench.seconds(12)
        assert bench.most_under_way == MOST
        assert len({sandbox for sandbox, _ in bench.asked}) == MOST
        assert len(bench.percents()) == MOST
        problems = [one.problem for one in bench.checks.services() if one.problem]
        assert problems == [f"{MOST} services of this node are asked already"] * 3

    run(test)


def test_too_large_an_answer_puts_the_check_off() -> None:
    async def test() -> None:
        bench = Bench({"s1": pod("web")}, TooLargeError("has more than 16384 bytes"))
        await bench.seconds(200)
        assert len(bench.asked) == 1
        assert "more than 16384 bytes" in bench.checks.services()[0].problem
        await bench.seconds(int(PUT_OFF_S) - 198)
        assert len(bench.asked) == 2
        assert bench.percents() == []

    run(test)


@pytest.mark.parametrize("idle", ["inactive", "no-offline-pod"])
def test_nobody_is_asked_while_there_is_no_harm_to_be_seen(idle: str) -> None:
    async def test() -> None:
        bench = Bench({"s1": pod("web")}, active=idle != "inactive")
        bench.running_pods = () if idle == "no-offline-pod" else bench.running_pods
        await bench.seconds(10)
        assert (bench.asked, bench.checks.services()) == ([], ())

    run(test)


def test_offline_pods_outside_the_box_are_not_asked_and_pods_that_go_are_forgotten() -> None:
    async def test() -> None:
        bench = Bench({"s1": pod("web"), "s2": replace(pod("stray"), labels={DEFAULT_RULE.key: "offline"})})
        await bench.seconds(1)
        assert bench.asked == [("s1", "")]
        bench.outside = {}
        await bench.seconds(1)
        assert (bench.checks.services(), bench.checks.signals()) == ((), ())

    run(test)


def test_word_that_is_old_is_none() -> None:
    async def test() -> None:
        bench = Bench({"s1": pod("web")})
        await bench.seconds(1)
        bench.clock.advance(11.0)
        assert bench.percents() == [50.0]
        bench.clock.advance(1.0)
        assert bench.percents() == []

    run(test)


def test_nonsense_is_told_once_and_its_pod_is_never_asked() -> None:
    async def test() -> None:
        bench = Bench({"s1": pod("web", "nonsense")})
        with capture_logs() as logs:
            await bench.seconds(10)
        assert [entry["event"] for entry in logs] == ["service_check_ignored"]
        assert bench.asked == []
        assert ANNOTATION in bench.checks.services()[0].problem

    run(test)


@pytest.mark.parametrize(
    ("names", "asked", "problem"),
    [
        pytest.param(("main", "side"), [("s1", "c-main")], "", id="by-name"),
        pytest.param(("side",), [], "there is not exactly one container main that runs, of side", id="not-there"),
        pytest.param((), [], "of none", id="none"),
    ],
)
def test_command_runs_in_the_container_that_is_named(names: tuple[str, ...], asked: list, problem: str) -> None:
    async def test() -> None:
        bench = Bench({"s1": pod("web", EXEC)})
        bench.containers = tuple(ListedContainer(f"c-{name}", "s1", name, True) for name in names)
        await bench.seconds(1)
        assert bench.asked == asked
        assert problem in bench.checks.services()[0].problem

    run(test)


def test_command_runs_in_the_container_that_was_started_last() -> None:
    """Kubelet keeps the last one that ended, and only a listing, each minute, says that it does not run."""
    node: Any = None
    inventory = Inventory(node, node)
    for id in ("c-before", "c-now"):
        inventory.container_created(id, "s1", "main")
        inventory.container_started(id)

    async def test() -> None:
        bench = Bench({"s1": pod("web", EXEC)})
        bench.containers = inventory.containers_of("s1")
        await bench.seconds(1)
        assert bench.asked == [("s1", "c-now")]

    run(test)


def test_end_of_the_part_ends_what_is_under_way() -> None:
    async def test() -> None:
        bench = Bench({"s1": pod("web")})
        bench.gate.clear()
        task = asyncio.create_task(round_of(bench.checks, structlog.get_logger(), Clock()).run())
        await until(lambda: bench.under_way)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for _ in range(5):
            await asyncio.sleep(0)
        assert bench.under_way == 0

    run(test)
